# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors: torch.ops.cpd.*, checked. Documented in `cpd.ops`.

The kernels are in libcpd_torch; here are the rows of the operators of elements and sums
(`cpd._torch.table`). What Python can check is checked before an operator is called, so that errors
have their type; what is unknown while torch compiles is left to the library.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cpd._torch import gemm as gemm_rows  # noqa: F401  # adds its rows
from cpd._torch import kept as kept  # adds its rows
from cpd._torch import rounding as rounding  # adds its row
from cpd._torch.arguments import (
    cast_arguments,
    check,
    check_codes,
    check_out,
    checked_draws,
    checked_integers,
    result_element,
    sizes_of,
    wider_type,
)
from cpd._torch.arguments import check_float as check_float
from cpd._torch.arguments import check_product as check_product
from cpd._torch.arguments import name_of as name_of
from cpd._torch.arguments import random_numbers as random_numbers
from cpd._torch.arguments import result_type as result_type
from cpd._torch.arguments import sum_numbers as sum_numbers
from cpd._torch.derivatives import OUT_AND_AUTOGRAD as OUT_AND_AUTOGRAD
from cpd._torch.derivatives import Derivative, Tangents, run, saved, total, write
from cpd._torch.derivatives import check_no_derivative as check_no_derivative
from cpd._torch.derivatives import library as library
from cpd._torch.explain import explain as explain
from cpd._torch.library import ops as _ops
from cpd._torch.private import unwrapped as unwrapped
from cpd._torch.scaled import cast_scaled as cast_scaled
from cpd._torch.scaled import decode_scaled as decode_scaled
from cpd._torch.scaled import encode_scaled as encode_scaled
from cpd._torch.scaled import gemm_scaled as gemm_scaled
from cpd._torch.table import operator
from cpd._torch.vmap import (
    Batching,
    never,
    sum_draws,
    widen_elements,
    widen_hadamard,
    widen_sum,
)
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Drawing, element_of, named_cast
from cpd.numeric.formats import Format
from cpd.numeric.hadamard import Hadamard, linear_text
from cpd.numeric.numbers import Number as Number
from cpd.ops.arguments import (
    FLOATS,
    NARROW_FLOATS,
    Shape,
    check_cast,
    check_result,
    check_storage,
    dimension,
    product_shape,
    shape_of,
    transform_axis,
)
from cpd.ops.arguments import Region as Region
from cpd.ops.slow import warn_if_slow


def cast(x: Tensor, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    check("x", x, FLOATS)
    arguments = cast_arguments(options, x)
    integers = (
        None if random is None else checked_integers(random, x, x.shape, "x's shape", options)
    )
    check_cast(name_of(x.dtype), f)
    if out is None:
        return run("cast", x, *arguments, integers)
    check_out(out, x.shape, x, {"x": x, "random": integers})
    write("cast", x, *arguments, integers, out=out)
    return out


def widened(x: Tensor, dtype: Any) -> Tensor:
    """`x` in a wider type."""
    check("x", x, FLOATS)
    return x.to(wider_type(x, dtype, FLOATS))


def encode(x: Tensor, f: Format, options: Drawing, random: Any) -> Tensor:
    check("x", x, FLOATS)
    arguments = cast_arguments(options, x)
    integers = (
        None if random is None else checked_integers(random, x, x.shape, "x's shape", options)
    )
    return _ops.encode(x, *arguments, integers)


def decode(codes: Tensor, f: Format, shape: Shape, dtype: Any, out: Any) -> Tensor:
    sizes = sizes_of(shape)
    check_codes("codes", codes, codes)
    element = result_element(dtype, out, FLOATS)
    check_storage(name_of(element), f.name)
    if not torch.compiler.is_compiling():
        _check_bytes(codes, f, sizes)
    codes = codes.contiguous()
    if out is None:
        return _ops.decode(codes, f.name, sizes, element)
    check_out(out, torch.Size(sizes), codes.new_empty(0, dtype=element), {"codes": codes})
    write("decode", codes, f.name, out=out)
    return out


def add(x: Tensor, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("add", {"x": x, "y": y}, f, options, out, random)


def mul(x: Tensor, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("mul", {"x": x, "y": y}, f, options, out, random)


def fma(x: Tensor, y: Any, z: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("fma", {"x": x, "y": y, "z": z}, f, options, out, random)


def div(x: Tensor, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("div", {"x": x, "y": y}, f, options, out, random)


def sqrt(x: Tensor, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("sqrt", {"x": x}, f, options, out, random)


def flags(
    operation: str,
    operands: Sequence[Any],
    f: Format,
    options: Drawing,
    random: Any,
    tininess: str,
) -> Tensor:
    views, arguments = _together(dict(zip("xyz", operands, strict=False)), f, options)
    integers = None
    if random is not None:
        integers = checked_integers(random, views[0], views[0].shape, "the result's shape", options)
    padded = (*views, None, None)[:3]
    return _ops.flags(*padded, operation, *arguments, integers, tininess)


def sum(
    x: Tensor,
    acc: Accumulator,
    axis: Any,
    seed: Number,
    stream: Number,
    random: Any,
    tininess: str | None = None,
) -> Any:
    check("x", x, FLOATS)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = dimension(axis, x.dim())
    check_storage(name_of(x.dtype), acc.format.name)
    integers = None
    if random is not None:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        integers = checked_draws(random, x, shape, acc, lambda: acc.sum_integers(x.shape[axis]))
        integers = integers.contiguous()
    numbers = sum_numbers(acc, seed, stream, x)
    if tininess is None:
        return run("sum", x, axis, acc.text, *numbers, integers)
    raised = _ops.sum_flags(x, axis, acc.text, *numbers, integers, tininess)
    return run("sum", x, axis, acc.text, *numbers, integers), raised


def gemm(
    a: Tensor,
    b: Any,
    acc: Accumulator,
    c: Any,
    seed: Number,
    stream: Number,
    dtype: Any,
    blas: bool,
    random: Any,
    tininess: str | None = None,
) -> Any:
    element = check_product(a, b, c, dtype)
    check_result(name_of(element), acc.format.name)
    integers = None
    if random is not None:
        shape = product_shape(a.shape, b.shape)
        integers = checked_draws(
            random, a, shape, acc, lambda: acc.gemm_integers(a.shape[-1]), like="a"
        )
        integers = integers.contiguous()
    if a.is_cpu and not torch.compiler.is_compiling():
        warn_if_slow(acc, a, b)
    numbers = sum_numbers(acc, seed, stream, a)
    product = a, b, c, acc.text, *numbers, element
    if tininess is None:
        return run("gemm", *product, blas, integers)
    raised = _ops.gemm_flags(*product, integers, tininess)
    return run("gemm", *product, blas, integers), raised


def hadamard(x: Tensor, transform: Hadamard, axis: Any, inverse: bool, out: Any) -> Tensor:
    check("x", x, NARROW_FLOATS)
    along = transform_axis(axis, x.shape, transform.size)
    if transform.bf16:
        check_storage(name_of(x.dtype), "bf16")
    if out is None:
        return run("hadamard", x, transform.text, along, inverse)
    check_out(out, x.shape, x, {"x": x})
    write("hadamard", x, transform.text, along, inverse, out=out)
    return out


def _arithmetic(
    name: str,
    operands: dict[str, Any],
    f: Format,
    options: Drawing,
    out: Any,
    random: Any,
) -> Tensor:
    x = operands["x"]
    views, arguments = _together(operands, f, options)
    integers = None
    if random is not None:
        integers = checked_integers(random, x, views[0].shape, "the result's shape", options)
    if out is None:
        return run(name, *views, *arguments, integers)
    inputs = dict(zip(operands, views, strict=True))
    check_out(out, views[0].shape, x, {**inputs, "random": integers})
    write(name, *views, *arguments, integers, out=out)
    return out


def _together(
    operands: dict[str, Any], f: Format, options: Drawing
) -> tuple[Sequence[Tensor], tuple[Any, ...]]:
    """The operands, checked and broadcast to one shape, and the arguments of their rounding."""
    x = operands["x"]
    for name, operand in operands.items():
        check(name, operand, FLOATS)
        if operand is x:
            continue
        if operand.dtype != x.dtype:
            raise TypeError(f"{name} must have x's type, {x.dtype}, got {operand.dtype}")
        if operand.device != x.device:
            raise ValueError(f"{name} must be on x's device, {x.device}, got {operand.device}")
    arguments = cast_arguments(options, x)
    check_storage(name_of(x.dtype), f.name)
    return _broadcast(operands), arguments


def _broadcast(operands: dict[str, Tensor]) -> Sequence[Tensor]:
    views = tuple(operands.values())
    if torch.compiler.is_compiling():
        return torch.broadcast_tensors(*views)
    if all(x.shape == views[0].shape for x in views):
        return views
    try:
        return torch.broadcast_tensors(*views)
    except RuntimeError:
        names, shapes = ", ".join(operands), [tuple(x.shape) for x in views]
        raise ValueError(f"{names} must broadcast together, got shapes {shapes}") from None


def _check_bytes(codes: Tensor, f: Format, sizes: Any) -> None:
    sizes = shape_of("shape", tuple(sizes))
    need = f._held.packed_bytes(math.prod(sizes))
    if codes.numel() != need:
        raise ValueError(f"codes must have {need} bytes for {sizes} of {f}, got {codes.numel()}")


# ---- derivatives: those of the exact operation; a cast's is straight through --------------------


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    """For derivatives that are linear in the operands."""


def _keep_factors(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    ctx.save_for_backward(*inputs[:2])
    if forward:
        ctx.save_for_forward(*inputs[:2])


def _keep_dim(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    ctx.dim, ctx.shape = inputs[1], inputs[0].shape


def _mul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    for_x, for_y = ctx.needs_input_grad[:2]
    return grad * y if for_x else None, grad * x if for_y else None


def _mul_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    x, y = saved(ctx)
    of_x, of_y = tangents[:2]
    return total(None if of_x is None else of_x * y, None if of_y is None else x * of_y)


def _fma_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    of_product = _mul_tangent(ctx, tangents) if tangents[:2] != (None, None) else None
    return total(of_product, tangents[2])


def _div_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    for_x, for_y = ctx.needs_input_grad[:2]
    return grad / y if for_x else None, -grad * x / (y * y) if for_y else None


def _div_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    x, y = saved(ctx)
    of_x, of_y = tangents[:2]
    return total(None if of_x is None else of_x / y, None if of_y is None else -of_y * x / (y * y))


def _keep_x(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    ctx.save_for_backward(inputs[0])
    if forward:
        ctx.save_for_forward(inputs[0])


def _keep_transform(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    _, text, ctx.axis, ctx.inverse = inputs
    ctx.text = linear_text(text)


# ---- the rows: the fake kernels give types and shapes as the kernels do --------------------------


def _like(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x)


def _contiguous(x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape)


def _sum(x: Tensor, dim: int, *args: Any, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :], dtype=dtype)


def _packed(x: Tensor, how: str, *args: Any) -> Tensor:
    bits = element_of(named_cast(how)).bits
    return x.new_empty((x.numel() * bits + 7) // 8, dtype=torch.uint8)


_ELEMENTS, _SUM = Batching(widen_elements), Batching(widen_sum, sum_draws)


def _rounded(name: str, setup: Any, backward: Any, tangent: Any, fake: Any = _contiguous) -> None:
    """Adds the row of an operation of elements whose results are rounded once."""
    operator(name, fake, Derivative(setup, backward, tangent), _ELEMENTS, has_out=True)


_rounded("cast", _keep_nothing, lambda ctx, grad: (grad,), lambda ctx, t: t[0], _like)
_rounded("add", _keep_nothing, lambda ctx, grad: (grad, grad), lambda ctx, t: total(*t[:2]))
_rounded("mul", _keep_factors, _mul_backward, _mul_tangent)
_rounded("fma", _keep_factors, lambda ctx, grad: (*_mul_backward(ctx, grad), grad), _fma_tangent)
_rounded("div", _keep_factors, _div_backward, _div_tangent)
_rounded(
    "sqrt",
    _keep_x,
    lambda ctx, grad: (grad / (2 * ctx.saved_tensors[0].sqrt()),),
    lambda ctx, tangents: tangents[0] / (2 * saved(ctx)[0].sqrt()),
)
operator("flags", lambda x, *args: x.new_empty(x.shape, dtype=torch.uint8), batching=_ELEMENTS)
operator(
    "sum",
    _sum,
    Derivative(
        _keep_dim,
        lambda ctx, grad: (grad.unsqueeze(ctx.dim).expand(ctx.shape),),
        lambda ctx, tangents: tangents[0].sum(ctx.dim),
    ),
    _SUM,
)
operator("sum_flags", functools.partial(_sum, dtype=torch.uint8), batching=_SUM)
operator(
    "hadamard",
    _like,
    Derivative(
        _keep_transform,
        lambda ctx, grad: (_ops.hadamard(grad, ctx.text, ctx.axis, not ctx.inverse),),
        lambda ctx, tangents: _ops.hadamard(tangents[0], ctx.text, ctx.axis, ctx.inverse),
    ),
    Batching(widen_hadamard, never),
    has_out=True,
)
operator("encode", _packed, batching=Batching(None))
operator(
    "decode",
    lambda codes, f, shape, dtype: codes.new_empty(shape, dtype=dtype),
    batching=Batching(None, never),
    has_out=True,
)
