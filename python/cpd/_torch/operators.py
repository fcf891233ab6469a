# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors: torch.ops.cpd.*, checked. Documented in `cpd.ops`.

The kernels are in libcpd_torch; here are their fake kernels (shapes and types, for torch.compile)
and their gradients. What Python can check is checked before an operator is called, so that errors
have their type; what is unknown while torch compiles is left to the library.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cpd._torch import gemm as gemm_derivatives  # noqa: F401  # registers them
from cpd._torch import kept as kept  # registers it
from cpd._torch import rounding as rounding  # registers round_both
from cpd._torch import vmap as vmap  # registers batching rules
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
from cpd._torch.derivatives import (
    Tangents,
    differentiable,
    run,
    saved,
    total,
    write,
    writes_into_out,
)
from cpd._torch.derivatives import check_no_derivative as check_no_derivative
from cpd._torch.derivatives import library as library
from cpd._torch.derivatives import unwrapped as unwrapped
from cpd._torch.explain import explain as explain
from cpd._torch.library import ops as _ops
from cpd._torch.scaled import cast_scaled as cast_scaled
from cpd._torch.scaled import decode_scaled as decode_scaled
from cpd._torch.scaled import encode_scaled as encode_scaled
from cpd._torch.scaled import gemm_scaled as gemm_scaled
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

_cast_out = _ops.cast_out.default, _ops.cast_out_plain.default
_decode_out = _ops.decode_out.default, _ops.decode_out_plain.default
_add_out = _ops.add_out.default, _ops.add_out_plain.default
_mul_out = _ops.mul_out.default, _ops.mul_out_plain.default
_fma_out = _ops.fma_out.default, _ops.fma_out_plain.default
_div_out = _ops.div_out.default, _ops.div_out_plain.default
_sqrt_out = _ops.sqrt_out.default, _ops.sqrt_out_plain.default
_hadamard_out = _ops.hadamard_out.default, _ops.hadamard_out_plain.default


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
    write(*_cast_out, x, *arguments, integers, out=out)
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
    write(*_decode_out, codes, f.name, out=out)
    return out


def add(x: Tensor, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("add", _add_out, {"x": x, "y": y}, f, options, out, random)


def mul(x: Tensor, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("mul", _mul_out, {"x": x, "y": y}, f, options, out, random)


def fma(x: Tensor, y: Any, z: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("fma", _fma_out, {"x": x, "y": y, "z": z}, f, options, out, random)


def div(x: Tensor, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("div", _div_out, {"x": x, "y": y}, f, options, out, random)


def sqrt(x: Tensor, f: Format, options: Drawing, out: Any, random: Any) -> Tensor:
    return _arithmetic("sqrt", _sqrt_out, {"x": x}, f, options, out, random)


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
    write(*_hadamard_out, x, transform.text, along, inverse, out=out)
    return out


def _arithmetic(
    name: str,
    into: tuple[Any, Any],
    operands: dict[str, Any],
    f: Format,
    options: Drawing,
    out: Any,
    random: Any,
) -> Tensor:
    """`name`: the operator that makes the result; `into`: the one that writes into `out`."""
    x = operands["x"]
    views, arguments = _together(operands, f, options)
    integers = None
    if random is not None:
        integers = checked_integers(random, x, views[0].shape, "the result's shape", options)
    if out is None:
        return run(name, *views, *arguments, integers)
    inputs = dict(zip(operands, views, strict=True))
    check_out(out, views[0].shape, x, {**inputs, "random": integers})
    write(*into, *views, *arguments, integers, out=out)
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


# ---- fake kernels: types and shapes of what the real ones would give ----------------------------


@torch.library.register_fake("cpd::cast")
@torch.library.register_fake("cpd::cast_plain")
@torch.library.register_fake("cpd::hadamard")
@torch.library.register_fake("cpd::hadamard_plain")
def _(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("cpd::add")
@torch.library.register_fake("cpd::mul")
@torch.library.register_fake("cpd::fma")
@torch.library.register_fake("cpd::add_plain")
@torch.library.register_fake("cpd::mul_plain")
@torch.library.register_fake("cpd::fma_plain")
@torch.library.register_fake("cpd::div")
@torch.library.register_fake("cpd::div_plain")
@torch.library.register_fake("cpd::sqrt")
@torch.library.register_fake("cpd::sqrt_plain")
def _(x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("cpd::flags")
def _(x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.uint8)


@torch.library.register_fake("cpd::sum")
@torch.library.register_fake("cpd::sum_plain")
def _(x: Tensor, dim: int, *args: Any) -> Tensor:
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :])


@torch.library.register_fake("cpd::sum_flags")
def _(x: Tensor, dim: int, *args: Any) -> Tensor:
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :], dtype=torch.uint8)


@torch.library.register_fake("cpd::gemm_flags")
def _(a: Tensor, b: Tensor, *args: Any) -> Tensor:
    return a.new_empty(product_shape(a.shape, b.shape), dtype=torch.uint8)


@torch.library.register_fake("cpd::encode")
def _(x: Tensor, how: str, *args: Any) -> Tensor:
    bits = element_of(named_cast(how)).bits
    return x.new_empty((x.numel() * bits + 7) // 8, dtype=torch.uint8)


@torch.library.register_fake("cpd::decode")
def _(codes: Tensor, f: str, shape: Any, dtype: torch.dtype) -> Tensor:
    return codes.new_empty(shape, dtype=dtype)


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


differentiable("cast", _keep_nothing, lambda ctx, grad: (grad,), lambda ctx, t: t[0])
differentiable("add", _keep_nothing, lambda ctx, grad: (grad, grad), lambda ctx, t: total(*t[:2]))
differentiable("mul", _keep_factors, _mul_backward, _mul_tangent)
differentiable(
    "fma", _keep_factors, lambda ctx, grad: (*_mul_backward(ctx, grad), grad), _fma_tangent
)
differentiable("div", _keep_factors, _div_backward, _div_tangent)
differentiable(
    "sqrt",
    _keep_x,
    lambda ctx, grad: (grad / (2 * ctx.saved_tensors[0].sqrt()),),
    lambda ctx, tangents: tangents[0] / (2 * saved(ctx)[0].sqrt()),
)
differentiable(
    "sum",
    _keep_dim,
    lambda ctx, grad: (grad.unsqueeze(ctx.dim).expand(ctx.shape),),
    lambda ctx, tangents: tangents[0].sum(ctx.dim),
)
differentiable(
    "hadamard",
    _keep_transform,
    lambda ctx, grad: (_ops.hadamard(grad, ctx.text, ctx.axis, not ctx.inverse),),
    lambda ctx, tangents: _ops.hadamard(tangents[0], ctx.text, ctx.axis, ctx.inverse),
)


for _writer in ("cast", "add", "mul", "fma", "div", "sqrt", "decode", "hadamard"):
    writes_into_out(f"{_writer}_out")
