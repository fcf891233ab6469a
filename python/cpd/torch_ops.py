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
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cpd import formats, tensors, torch_derivatives
from cpd import torch_gemm as torch_gemm  # registers the gradients of gemm
from cpd.accumulator import Accumulator
from cpd.formats import Format
from cpd.tensors import Number, Options, Region, Shape
from cpd.torch_library import ops as _ops

_WRITERS = ("cast_out", "add_out", "mul_out", "fma_out", "decode_out")


def cast(x: Tensor, f: Format, options: Options, out: Any, random: Any) -> Tensor:
    _check("x", x, tensors.FLOATS)
    arguments = _arguments(f, options, x)
    integers = _random(random, x, options)
    tensors.check_carrier(name_of(x.dtype), f.name)
    if out is None:
        return _ops.cast(x, *arguments, integers)
    _check_out(out, x.shape, x, {"x": x, "random": integers})
    _ops.cast_out(x, *arguments, integers, out=out)
    return out


def encode(x: Tensor, f: Format, options: Options, random: Any) -> Tensor:
    _check("x", x, tensors.FLOATS)
    arguments = _arguments(f, options, x)
    return _ops.encode(x, *arguments, _random(random, x, options))


def decode(codes: Tensor, f: Format, shape: Shape, dtype: Any, out: Any) -> Tensor:
    sizes = tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (shape,)
    if codes.dtype != torch.uint8 or codes.dim() != 1:
        raise TypeError(f"codes must be a 1-D uint8 tensor, got {_describe(codes)}")
    _check_place("codes", codes)
    default = out.dtype if isinstance(out, Tensor) else torch.float32
    element = default if dtype is None else dtype
    if not isinstance(element, torch.dtype) or name_of(element) not in tensors.FLOATS:
        raise TypeError(f"dtype must be one of torch's {', '.join(tensors.FLOATS)}, got {element}")
    tensors.check_carrier(name_of(element), f.name)
    if not torch.compiler.is_compiling():
        _check_codes(codes, f, sizes)
    codes = codes.contiguous()
    if out is None:
        return _ops.decode(codes, f.name, sizes, element)
    _check_out(out, sizes, codes.new_empty(0, dtype=element), {"codes": codes})
    _ops.decode_out(codes, f.name, out=out)
    return out


def add(x: Tensor, y: Any, f: Format, options: Options, out: Any) -> Tensor:
    return _arithmetic(_ops.add, _ops.add_out, {"x": x, "y": y}, f, options, out)


def mul(x: Tensor, y: Any, f: Format, options: Options, out: Any) -> Tensor:
    return _arithmetic(_ops.mul, _ops.mul_out, {"x": x, "y": y}, f, options, out)


def fma(x: Tensor, y: Any, z: Any, f: Format, options: Options, out: Any) -> Tensor:
    return _arithmetic(_ops.fma, _ops.fma_out, {"x": x, "y": y, "z": z}, f, options, out)


def sum(x: Tensor, acc: Accumulator, dim: int) -> Tensor:
    _check("x", x, tensors.NARROW_FLOATS)
    axis = tensors.dimension(dim, x.dim())
    tensors.check_carrier(name_of(x.dtype), acc.format.name)
    return _ops.sum(x, axis, acc.text, *random_numbers(acc.options, x))


def gemm(a: Tensor, b: Any, acc: Accumulator, c: Any, dtype: Any, blas: bool) -> Tensor:
    element = check_product(a, b, c, dtype, ("a", "b", "c"))
    tensors.check_result(name_of(element), acc.format.name)
    return _ops.gemm(a, b, c, acc.text, *random_numbers(acc.options, a), element, blas)


def _arithmetic(
    new: Callable[..., Tensor],
    into: Callable[..., None],
    operands: dict[str, Any],
    f: Format,
    options: Options,
    out: Any,
) -> Tensor:
    x = operands["x"]
    for name, operand in operands.items():
        _check(name, operand, tensors.NARROW_FLOATS)
        if operand.dtype != x.dtype:
            raise TypeError(f"{name} must have x's type, {x.dtype}, got {operand.dtype}")
        if operand.device != x.device:
            raise ValueError(f"{name} must be on x's device, {x.device}, got {operand.device}")
    arguments = _arguments(f, options, x)
    tensors.check_carrier(name_of(x.dtype), f.name)
    views = _broadcast(operands)
    if out is None:
        return new(*views, *arguments)
    _check_out(out, views[0].shape, x, dict(zip(operands, views, strict=True)))
    into(*views, *arguments, out=out)
    return out


# ---- arguments ---------------------------------------------------------------------------------


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_product(a: Any, b: Any, c: Any, dtype: Any, names: tuple[str, str, str]) -> torch.dtype:
    """Checks the operands of c + a b by type, device and shape; gives the result's type."""
    for name, x in zip(names, (a, b, c), strict=True):
        if x is c and c is None:
            continue
        _check(name, x, tensors.NARROW_FLOATS, like=names[0])
        if x.device != a.device:
            raise ValueError(f"{name} must be on {names[0]}'s device, {a.device}, got {x.device}")
    shape = tensors.product_shape(a.shape, b.shape)
    if c is not None:
        tensors.check_addend(c.shape, shape)
    return result_type(a, dtype)


def result_type(a: Tensor, dtype: Any) -> torch.dtype:
    """The type of a product: `dtype`, or a's."""
    element = a.dtype if dtype is None else dtype
    if not isinstance(element, torch.dtype) or name_of(element) not in tensors.NARROW_FLOATS:
        allowed = ", ".join(tensors.NARROW_FLOATS)
        raise TypeError(f"dtype must be one of torch's {allowed}, got {element}")
    return element


def check_float(name: str, x: Any, like: str) -> None:
    """Raises unless `x` is a tensor that products take. `like`: the first operand's name."""
    _check(name, x, tensors.NARROW_FLOATS, like)


def _check(name: str, x: Any, allowed: tuple[str, ...], like: str = "x") -> None:
    if not isinstance(x, Tensor):
        wanted = "a torch tensor" if name == like else f"a torch tensor like {like}"
        raise TypeError(f"{name} must be {wanted}, got {type(x).__name__}")
    if name_of(x.dtype) not in allowed:
        raise TypeError(f"{name} must be of type {', '.join(allowed)}, got {x.dtype}")
    _check_place(name, x)


def _check_place(name: str, x: Tensor) -> None:
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense (strided) tensor, got {x.layout}")
    if x.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{name} must be on the CPU or a CUDA device, got {x.device}")
    if x.dim() > tensors.MAX_RANK:
        raise ValueError(f"{name} must have at most {tensors.MAX_RANK} dimensions, got {x.dim()}")


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
    sizes = tensors.shape_of("shape", tuple(sizes))
    need = f._native.packed_bytes(math.prod(sizes))
    if codes.numel() != need:
        raise ValueError(f"codes must have {need} bytes for {sizes} of {f}, got {codes.numel()}")


def _check_out(out: Any, shape: Any, x: Tensor, inputs: dict[str, Tensor | None]) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a torch tensor like x, got {type(out).__name__}")
    if out.dtype != x.dtype:
        raise TypeError(f"out must be of type {x.dtype}, got {out.dtype}")
    _check_place("out", out)
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
    if out.device != x.device:
        raise ValueError(f"out must be on x's device, {x.device}, got {out.device}")
    given = [t for t in (out, *inputs.values()) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise ValueError("out= takes no part in autograd: use it under torch.no_grad()")
    if torch.compiler.is_compiling() or any(_has_no_memory(t) for t in given):
        return
    regions = {name: _region(t) for name, t in inputs.items() if t is not None}
    tensors.check_out_memory(_region(out), regions)


def _has_no_memory(x: Tensor) -> bool:
    return x.device.type == "meta" or isinstance(x, FakeTensor)


def _region(x: Tensor) -> Region:
    size = x.element_size()
    return Region(x.data_ptr(), size, tuple(x.shape), tuple(s * size for s in x.stride()))


def _arguments(f: Format, options: Options, x: Tensor) -> tuple[str, Tensor | None, Tensor | None]:
    """Format and options as an operator of elements takes them, checked: their text, and seed and
    stream where they are used."""
    return options.text(f), *random_numbers(options, x)


def random_numbers(options: Options, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
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


def _random(random: Any, x: Tensor, options: Options) -> Tensor | None:
    """The given random integers as int32 (they are below 2^24), checked."""
    if random is None:
        return None
    tensors.check_random_is_used(options)
    if not isinstance(random, Tensor) or random.dtype not in _INTEGERS:
        raise TypeError(f"random must be a tensor of integers, got {_describe(random)}")
    if random.shape != x.shape:
        raise ValueError(f"random must have x's shape, {tuple(x.shape)}, got {tuple(random.shape)}")
    if random.device != x.device:
        raise ValueError(f"random must be on x's device, {x.device}, got {random.device}")
    if not torch.compiler.is_compiling() and random.numel() and not _has_no_memory(random):
        low, high = random.to(torch.int64).aminmax()
        tensors.check_random_range(int(low), int(high), options.random_bits)
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


@torch.library.register_fake("cpd::cast")
def _(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("cpd::add")
@torch.library.register_fake("cpd::mul")
@torch.library.register_fake("cpd::fma")
def _(x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("cpd::sum")
def _(x: Tensor, dim: int, *args: Any) -> Tensor:
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :])


@torch.library.register_fake("cpd::encode")
def _(x: Tensor, how: str, *args: Any) -> Tensor:
    bits = formats.named(how.split(" ")[0]).bits
    return x.new_empty((x.numel() * bits + 7) // 8, dtype=torch.uint8)


@torch.library.register_fake("cpd::decode")
def _(codes: Tensor, f: str, shape: Any, dtype: torch.dtype) -> Tensor:
    return codes.new_empty(shape, dtype=dtype)


# ---- gradients ---------------------------------------------------------------------------------


def _register_gradient(
    name: str, operands: int, backward: Callable[[Any, Tensor], tuple[Any, ...]], saved: int = 0
) -> None:
    """`backward` gives the gradients of the tensor operands; the options have none. `saved`: how
    many operands it needs."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.arguments = len(inputs)
        ctx.save_for_backward(*inputs[:saved])
        ctx.rest = inputs[operands : operands + 1]
        ctx.shape = inputs[0].shape

    def run(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gradients = backward(ctx, grad)
        return gradients + (None,) * (ctx.arguments - len(gradients))

    torch.library.register_autograd(f"cpd::{name}", run, setup_context=setup)


def _mul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    for_x, for_y = ctx.needs_input_grad[:2]
    return grad * y if for_x else None, grad * x if for_y else None


def _fma_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
    return (*_mul_backward(ctx, grad), grad)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    (dim,) = ctx.rest
    return (grad.unsqueeze(dim).expand(ctx.shape),)


def _setup_cast(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.arguments = len(inputs)


def _batched_cast(samples: int, dims: Any, x: Tensor, *rest: Any) -> tuple[Tensor, int]:
    return _ops.cast(x, *rest), dims[0]


def _cast_draws(args: tuple[Any, ...]) -> bool:
    return any(isinstance(x, Tensor) for x in args[1:])


torch_derivatives.register(
    "cast",
    _setup_cast,
    lambda ctx, grad: (grad, *(None,) * (ctx.arguments - 1)),
    lambda ctx, tangent, *rest: tangent.view_as(tangent),
)
torch_derivatives.register_batches("cast", _batched_cast, _cast_draws)
_register_gradient("add", 2, lambda ctx, grad: (grad, grad))
_register_gradient("mul", 2, _mul_backward, saved=2)
_register_gradient("fma", 3, _fma_backward, saved=2)
_register_gradient("sum", 1, _sum_backward)


# ---- operators that write into `out` -------------------------------------------------------------

_writers = torch.library.Library("cpd", "IMPL")


def _register_writer(name: str) -> None:
    """Tells autograd that `out` changes, as it does for torch's own operators: a backward pass that
    needs the old values then fails instead of taking the new ones."""
    operator = getattr(_ops, name).default

    def run(keyset: Any, *args: Any, out: Tensor) -> None:
        torch.autograd.graph.increment_version(out)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            operator.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out)

    _writers.impl(name, run, "ADInplaceOrView", with_keyset=True)


for _name_of_writer in _WRITERS:
    _register_writer(_name_of_writer)
