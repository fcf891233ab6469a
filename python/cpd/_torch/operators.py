# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors: torch.ops.cpd.*, checked. Documented in `cpd.ops`.

The kernels are in libcpd_torch; here are their fake kernels (shapes and types, for torch.compile)
and their gradients. What Python can check is checked before an operator is called, so that errors
have their type; what cannot be seen while torch compiles is left to the library.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cpd._torch import gemm as gemm_derivatives  # noqa: F401  # registers them
from cpd._torch import vmap as vmap  # registers batching rules
from cpd._torch.derivatives import (
    OUT_AND_AUTOGRAD,
    Tangents,
    call,
    check_no_derivative,
    differentiable,
    library,
    saved,
    total,
    unwrapped,
    write,
)
from cpd._torch.library import ops as _ops
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import CastSpec, parsed_cast
from cpd.numeric.formats import Format
from cpd.numeric.hadamard import Hadamard, linear_text
from cpd.numeric.options import Number, Options
from cpd.ops.arguments import (
    FLOATS,
    MAX_RANK,
    NARROW_FLOATS,
    OVERLAPS_ITSELF,
    Region,
    Shape,
    check_addend,
    check_carrier,
    check_out_memory,
    check_random_is_used,
    check_random_range,
    check_result,
    dimension,
    product_shape,
    shape_of,
    transform_axis,
)

Rounded: TypeAlias = Options | Accumulator | CastSpec
"""What says how to round."""

_cast_out = _ops.cast_out.default, _ops.cast_out_plain.default
_decode_out = _ops.decode_out.default, _ops.decode_out_plain.default
_cast = _ops.cast.default, _ops.cast_plain.default
_sum = _ops.sum.default, _ops.sum_plain.default
_gemm = _ops.gemm.default, _ops.gemm_plain.default
_add = _ops.add.default, _ops.add_plain.default
_add_out = _ops.add_out.default, _ops.add_out_plain.default
_mul = _ops.mul.default, _ops.mul_plain.default
_mul_out = _ops.mul_out.default, _ops.mul_out_plain.default
_fma = _ops.fma.default, _ops.fma_plain.default
_fma_out = _ops.fma_out.default, _ops.fma_out_plain.default
_hadamard = _ops.hadamard.default, _ops.hadamard_plain.default
_hadamard_out = _ops.hadamard_out.default, _ops.hadamard_out_plain.default
_WRITERS = ("cast_out", "add_out", "mul_out", "fma_out", "decode_out", "hadamard_out")


def cast(x: Tensor, f: Format, options: Options, out: Any, random: Any) -> Tensor:
    _check("x", x, FLOATS)
    arguments = _arguments(f, options, x)
    integers = None if random is None else _random(random, x, x.shape, "x's shape", options)
    check_carrier(name_of(x.dtype), f.name)
    if out is None:
        return call(*_cast, x, *arguments, integers)
    _check_out(out, x.shape, x, {"x": x, "random": integers})
    write(*_cast_out, x, *arguments, integers, out=out)
    return out


def encode(x: Tensor, f: Format, options: Options, random: Any) -> Tensor:
    _check("x", x, FLOATS)
    arguments = _arguments(f, options, x)
    integers = None if random is None else _random(random, x, x.shape, "x's shape", options)
    return _ops.encode(x, *arguments, integers)


def decode(codes: Tensor, f: Format, shape: Shape, dtype: Any, out: Any) -> Tensor:
    sizes = tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (shape,)
    if codes.dtype != torch.uint8 or codes.dim() != 1:
        raise TypeError(f"codes must be a 1-D uint8 tensor, got {_describe(codes)}")
    _check_place("codes", codes)
    default = out.dtype if isinstance(out, Tensor) else torch.float32
    element = default if dtype is None else dtype
    if not isinstance(element, torch.dtype) or name_of(element) not in FLOATS:
        raise TypeError(f"dtype must be one of torch's {', '.join(FLOATS)}, got {element}")
    check_carrier(name_of(element), f.name)
    if not torch.compiler.is_compiling():
        _check_codes(codes, f, sizes)
    codes = codes.contiguous()
    if out is None:
        return _ops.decode(codes, f.name, sizes, element)
    _check_out(out, torch.Size(sizes), codes.new_empty(0, dtype=element), {"codes": codes})
    write(*_decode_out, codes, f.name, out=out)
    return out


def add(x: Tensor, y: Any, f: Format, options: Options, out: Any, random: Any) -> Tensor:
    return _arithmetic(_add, _add_out, {"x": x, "y": y}, f, options, out, random)


def mul(x: Tensor, y: Any, f: Format, options: Options, out: Any, random: Any) -> Tensor:
    return _arithmetic(_mul, _mul_out, {"x": x, "y": y}, f, options, out, random)


def fma(x: Tensor, y: Any, z: Any, f: Format, options: Options, out: Any, random: Any) -> Tensor:
    return _arithmetic(_fma, _fma_out, {"x": x, "y": y, "z": z}, f, options, out, random)


def sum(x: Tensor, acc: Accumulator, dim: int, random: Any) -> Tensor:
    _check("x", x, FLOATS)
    axis = dimension(dim, x.dim())
    check_carrier(name_of(x.dtype), acc.format.name)
    integers = None
    if random is not None:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        integers = _draws(random, x, shape, acc, lambda: acc.sum_draws(x.shape[axis]))
        if x.device.type == "cuda":
            raise ValueError("random is for sums on the CPU; CUDA tensors take seed and stream")
    return call(*_sum, x, axis, acc.text, *random_numbers(acc, x), integers)


def gemm(
    a: Tensor, b: Any, acc: Accumulator, c: Any, dtype: Any, blas: bool, random: Any
) -> Tensor:
    element = check_product(a, b, c, dtype, ("a", "b", "c"))
    check_result(name_of(element), acc.format.name)
    integers = None
    if random is not None:
        shape = product_shape(a.shape, b.shape)
        integers = _draws(random, a, shape, acc, lambda: acc.gemm_draws(a.shape[-1]), like="a")
        if a.device.type == "cuda":
            raise ValueError("random is for products on the CPU; CUDA tensors take seed and stream")
    numbers = random_numbers(acc, a)
    return call(*_gemm, a, b, c, acc.text, *numbers, element, blas, integers)


def hadamard(x: Tensor, transform: Hadamard, axis: Any, inverse: bool, out: Any) -> Tensor:
    _check("x", x, NARROW_FLOATS)
    along = transform_axis(axis, x.shape, transform.size)
    if transform.bf16:
        check_carrier(name_of(x.dtype), "bf16")
    if out is None:
        return call(*_hadamard, x, transform.text, along, inverse)
    _check_out(out, x.shape, x, {"x": x})
    write(*_hadamard_out, x, transform.text, along, inverse, out=out)
    return out


def _arithmetic(
    new: tuple[Any, Any],
    into: tuple[Any, Any],
    operands: dict[str, Any],
    f: Format,
    options: Options,
    out: Any,
    random: Any,
) -> Tensor:
    """`new`: the operator that makes the result, with and without derivatives; `into`: the one that
    writes into `out`."""
    x = operands["x"]
    for name, operand in operands.items():
        _check(name, operand, FLOATS)
        if operand is x:
            continue
        if operand.dtype != x.dtype:
            raise TypeError(f"{name} must have x's type, {x.dtype}, got {operand.dtype}")
        if operand.device != x.device:
            raise ValueError(f"{name} must be on x's device, {x.device}, got {operand.device}")
    arguments = _arguments(f, options, x)
    check_carrier(name_of(x.dtype), f.name)
    views = _broadcast(operands)
    integers = None
    if random is not None:
        integers = _random(random, x, views[0].shape, "the result's shape", options)
    if out is None:
        return call(*new, *views, *arguments, integers)
    inputs = dict(zip(operands, views, strict=True))
    _check_out(out, views[0].shape, x, {**inputs, "random": integers})
    write(*into, *views, *arguments, integers, out=out)
    return out


# ---- arguments ---------------------------------------------------------------------------------


_NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def name_of(dtype: torch.dtype) -> str:
    return _NAMES[dtype]


def check_product(a: Any, b: Any, c: Any, dtype: Any, names: tuple[str, str, str]) -> torch.dtype:
    """Checks the operands of c + a b by type, device and shape; gives the result's type."""
    for name, x in zip(names, (a, b) if c is None else (a, b, c), strict=False):
        _check(name, x, NARROW_FLOATS, names[0])
        if x is not a and x.device != a.device:
            raise ValueError(f"{name} must be on {names[0]}'s device, {a.device}, got {x.device}")
    shape = product_shape(a.shape, b.shape)
    if c is not None:
        check_addend(c.shape, shape)
    return result_type(a, dtype)


def result_type(a: Tensor, dtype: Any) -> torch.dtype:
    """The type of a product: `dtype`, or a's."""
    if dtype is None:
        return a.dtype
    if not isinstance(dtype, torch.dtype) or name_of(dtype) not in NARROW_FLOATS:
        allowed = ", ".join(NARROW_FLOATS)
        raise TypeError(f"dtype must be one of torch's {allowed}, got {dtype}")
    return dtype


def check_float(name: str, x: Any, like: str) -> None:
    """Raises unless `x` is a tensor that products take. `like`: the first operand's name."""
    _check(name, x, NARROW_FLOATS, like)


def _check(name: str, x: Any, allowed: tuple[str, ...], like: str = "x") -> None:
    if not isinstance(x, Tensor):
        wanted = "a torch tensor" if name == like else f"a torch tensor like {like}"
        raise TypeError(f"{name} must be {wanted}, got {type(x).__name__}")
    if _NAMES[x.dtype] not in allowed:
        raise TypeError(f"{name} must be of type {', '.join(allowed)}, got {x.dtype}")
    _check_place(name, x)


def _check_place(name: str, x: Tensor) -> None:
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense (strided) tensor, got {x.layout}")
    if not (x.is_cpu or x.is_cuda or x.is_meta):
        raise ValueError(f"{name} must be on the CPU or a CUDA device, got {x.device}")
    if x.dim() > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {x.dim()}")


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


def _check_codes(codes: Tensor, f: Format, sizes: Any) -> None:
    sizes = shape_of("shape", tuple(sizes))
    need = f._native.packed_bytes(math.prod(sizes))
    if codes.numel() != need:
        raise ValueError(f"codes must have {need} bytes for {sizes} of {f}, got {codes.numel()}")


def _check_out(out: Any, shape: Any, x: Tensor, inputs: dict[str, Tensor | None]) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a torch tensor like x, got {type(out).__name__}")
    if out.dtype != x.dtype:
        raise TypeError(f"out must be of type {x.dtype}, got {out.dtype}")
    if out.layout is not torch.strided or out.shape != shape or out.device != x.device:
        _check_place("out", out)
        if out.shape != shape:
            raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
        raise ValueError(f"out must be on x's device, {x.device}, got {out.device}")
    given = [out]
    given += [t for t in inputs.values() if t is not None]
    if torch.compiler.is_compiling():
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            raise ValueError(OUT_AND_AUTOGRAD)
        repeats = (n > 1 and step == 0 for n, step in zip(out.shape, out.stride(), strict=True))
        if 0 not in out.shape and any(repeats):
            raise ValueError(OVERLAPS_ITSELF)
        return
    check_no_derivative(*given)
    if out.is_meta or FakeTensor in map(type, given):
        return
    if all(_lie_apart(out, t) for t in given[1:]):
        return
    regions = {name: _region(t) for name, t in inputs.items() if t is not None}
    check_out_memory(_region(out), regions)


def _has_no_memory(x: Tensor) -> bool:
    return x.is_meta or isinstance(x, FakeTensor)


def _lie_apart(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors of no gaps have no byte in common; a quick look at most of them."""
    if not (x.is_contiguous() and y.is_contiguous()):
        return False
    of_x, of_y = x.data_ptr(), y.data_ptr()
    return of_x + x.nbytes <= of_y or of_y + y.nbytes <= of_x


def _region(x: Tensor) -> Region:
    size = x.element_size()
    return Region(x.data_ptr(), size, tuple(x.shape), tuple(s * size for s in x.stride()))


def _arguments(f: Format, options: Options, x: Tensor) -> tuple[str, Tensor | None, Tensor | None]:
    """Format and options as an operator of elements takes them, checked: their text, and seed and
    stream where they are used."""
    text = options.text(f) if torch.compiler.is_compiling() else options.kept_text(f)
    return text, *random_numbers(options, x)


def random_numbers(options: Rounded, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Seed and stream, where the rounding uses them."""
    if options.rounding != "stochastic":
        return None, None
    return _number("seed", options.seed, x), _number("stream", options.stream, x)


def _number(name: str, value: Number, x: Tensor) -> Tensor:
    """A seed or stream, checked, as a 0-d int64 tensor with the number's 64 bits. One on a GPU
    stays there, and nothing waits for it."""
    if not isinstance(value, Tensor):
        return torch.full((), value - 2**64 if value >= 2**63 else value, dtype=torch.int64)
    if value.device.type != "cpu" and value.device != x.device:
        raise ValueError(f"{name} must be on the CPU or on x's device, got {value.device}")
    value = value.detach().reshape(())
    return value.view(torch.int64) if value.dtype == torch.uint64 else value.to(torch.int64)


def _draws(
    random: Any,
    x: Tensor,
    shape: Sequence[int],
    acc: Accumulator,
    draws: Callable[[], int],
    like: str = "x",
) -> Tensor:
    """The given random integers of an ordered sum: `draws()` for each element of the result. (How
    many must not be asked while torch compiles; the library checks it then.)"""
    if torch.compiler.is_compiling():
        return _random(random, x, None, "", acc, like)
    count = draws()
    wanted = f"the result's shape and {count} draws"
    return _random(random, x, (*shape, count), wanted, acc, like)


def _random(
    random: Any,
    x: Tensor,
    shape: Sequence[int] | None,
    wanted: str,
    options: Rounded,
    like: str = "x",
) -> Tensor:
    """The given random integers as int32 (they are below 2^24), checked; `wanted` is what their
    shape is, None leaves it to the library."""
    check_random_is_used(options.rounding)
    if not isinstance(random, Tensor) or random.dtype not in _INTEGERS:
        raise TypeError(f"random must be a tensor of integers, got {_describe(random)}")
    if shape is not None and tuple(random.shape) != tuple(shape):
        raise ValueError(f"random must have {wanted}, {tuple(shape)}, got {tuple(random.shape)}")
    if random.device != x.device:
        raise ValueError(f"random must be on {like}'s device, {x.device}, got {random.device}")
    if not torch.compiler.is_compiling() and random.numel() and not _has_no_memory(random):
        low, high = unwrapped(random).to(torch.int64).aminmax()
        check_random_range(int(low), int(high), options.random_bits)
    return random.to(torch.int32)


_INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
)


def _describe(x: object) -> str:
    if isinstance(x, Tensor):
        return f"tensor of {x.dtype} with shape {tuple(x.shape)}"
    return type(x).__name__


# ---- fake kernels: types and shapes of what the real ones would give ----------------------------


def _nothing(*args: Any, out: Tensor) -> None:
    """Operators that write into `out` make no tensor."""


for _name_of_writer in _WRITERS:
    torch.library.register_fake(f"cpd::{_name_of_writer}")(_nothing)
    torch.library.register_fake(f"cpd::{_name_of_writer}_plain")(_nothing)


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
def _(x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("cpd::sum")
@torch.library.register_fake("cpd::sum_plain")
def _(x: Tensor, dim: int, *args: Any) -> Tensor:
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :])


@torch.library.register_fake("cpd::encode")
def _(x: Tensor, how: str, *args: Any) -> Tensor:
    bits = parsed_cast(how).format.bits
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


def _keep_transform(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    _, text, ctx.axis, ctx.inverse = inputs
    ctx.text = linear_text(text)


differentiable("cast", _keep_nothing, lambda ctx, grad: (grad,), lambda ctx, t: t[0])
differentiable("add", _keep_nothing, lambda ctx, grad: (grad, grad), lambda ctx, t: total(*t[:2]))
differentiable("mul", _keep_factors, _mul_backward, _mul_tangent)
differentiable(
    "fma", _keep_factors, lambda ctx, grad: (*_mul_backward(ctx, grad), grad), _fma_tangent
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


# ---- operators that write into `out` -------------------------------------------------------------


def _register_writer(name: str) -> None:
    """Tells autograd that `out` changes, as it does for torch's own operators: a backward pass that
    needs the old values then fails instead of taking the new ones. Views that torch negates when
    they are read are written negated."""
    operator = getattr(_ops, name).default

    def change(keyset: Any, *args: Any, out: Tensor) -> None:
        torch.autograd.graph.increment_version(out)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            operator.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out)

    def differentiate(keyset: Any, *args: Any, out: Tensor) -> None:
        check_no_derivative(*args, out)
        change(keyset, *args, out=out)

    library.impl(name, change, "ADInplaceOrView", with_keyset=True)
    library.impl(name, differentiate, "Autograd", with_keyset=True)
    library.impl(f"{name}_plain", torch.library.fallthrough_kernel, "Autograd")
    for one in (name, f"{name}_plain"):
        _register_negated(one)


def _register_negated(name: str) -> None:
    operator = getattr(_ops, name).default

    def negate(*args: Any, out: Tensor) -> None:
        plain = [a.resolve_neg() if isinstance(a, Tensor) else a for a in args]
        if not out.is_neg():
            operator(*plain, out=out)
            return
        made = torch.empty_like(out, memory_format=torch.contiguous_format)
        operator(*plain, out=made)
        out.copy_(made)

    library.impl(name, negate, "Negative")


for _name_of_writer in _WRITERS:
    _register_writer(_name_of_writer)
