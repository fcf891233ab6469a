# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of operations on torch tensors, and their form for torch.ops.cpd.*.

What is unknown while torch compiles is left to the library.
"""

# torch's types are untyped in part.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cpd._torch.derivatives import OUT_AND_AUTOGRAD, check_no_derivative
from cpd._torch.private import FakeTensor, unwrapped
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast, Drawing, elements
from cpd.numeric.formats import dtype_name
from cpd.numeric.numbers import Number, plain_number
from cpd.ops.arguments import (
    MAX_RANK,
    NARROW_FLOATS,
    OVERLAPS_ITSELF,
    Region,
    check_addend,
    check_out_memory,
    check_random_is_used,
    check_random_range,
    check_whole,
    product_shape,
)

Rounded: TypeAlias = Drawing | Accumulator | Cast
"""A specification of a rounding."""


_NAMES = {
    dtype: dtype_name(dtype) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def name_of(dtype: torch.dtype) -> str:
    """`dtype_name`, as a look-up that torch.compile can trace."""
    return _NAMES[dtype]


def check_product(a: Any, b: Any, c: Any, dtype: Any) -> torch.dtype:
    """Checks the operands of c + a b by type, device and shape; returns the result's type."""
    check("a", a, NARROW_FLOATS, "a")
    _check_other("b", b, a)
    if c is not None:
        _check_other("c", c, a)
    shape = product_shape(a.shape, b.shape)
    if c is not None:
        check_addend(c.shape, shape)
    return a.dtype if dtype is None else result_type(a, dtype)


def _check_other(name: str, x: Any, a: Tensor) -> None:
    """Raises unless `x` is a tensor that products take, on the device of `a`."""
    check(name, x, NARROW_FLOATS, "a")
    if x is not a and x.device != a.device:
        raise ValueError(f"{name} must be on a's device, {a.device}, got {x.device}")


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
    check(name, x, NARROW_FLOATS, like)


def check(name: str, x: Any, allowed: tuple[str, ...], like: str = "x") -> None:
    if not isinstance(x, Tensor):
        wanted = "a torch tensor" if name == like else f"a torch tensor like {like}"
        raise TypeError(f"{name} must be {wanted}, got {type(x).__name__}")
    if _NAMES[x.dtype] not in allowed:
        raise TypeError(f"{name} must be of type {', '.join(allowed)}, got {x.dtype}")
    check_place(name, x)


def check_place(name: str, x: Tensor) -> None:
    check_whole(name, x)
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense (strided) tensor, got {x.layout}")
    if not (x.is_cpu or x.is_cuda or x.is_meta):
        raise ValueError(f"{name} must be on the CPU or a CUDA device, got {x.device}")
    if x.dim() > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {x.dim()}")


def check_out(out: Any, shape: Any, x: Tensor, inputs: dict[str, Tensor | None]) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a torch tensor like x, got {type(out).__name__}")
    if out.dtype != x.dtype:
        raise TypeError(f"out must be of type {x.dtype}, got {out.dtype}")
    check_whole("out", out)
    if out.layout is not torch.strided or out.shape != shape or out.device != x.device:
        check_place("out", out)
        if out.shape != shape:
            raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
        raise ValueError(f"out must be on x's device, {x.device}, got {out.device}")
    tensors = [out]
    tensors += [t for t in inputs.values() if t is not None]
    if torch.compiler.is_compiling():
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise ValueError(OUT_AND_AUTOGRAD)
        repeats = (n > 1 and step == 0 for n, step in zip(out.shape, out.stride(), strict=True))
        if 0 not in out.shape and any(repeats):
            raise ValueError(OVERLAPS_ITSELF)
        return
    check_no_derivative(*tensors)
    if out.is_meta or FakeTensor in map(type, tensors):
        return
    if all(_are_disjoint(out, t) for t in tensors[1:]):
        return
    regions = {name: _region(t) for name, t in inputs.items() if t is not None}
    check_out_memory(_region(out), regions)


def _has_no_memory(x: Tensor) -> bool:
    return x.is_meta or isinstance(x, FakeTensor)


def _are_disjoint(x: Tensor, y: Tensor) -> bool:
    """Returns whether two tensors are contiguous and share no byte: a quick check."""
    if not (x.is_contiguous() and y.is_contiguous()):
        return False
    of_x, of_y = x.data_ptr(), y.data_ptr()
    return of_x + x.nbytes <= of_y or of_y + y.nbytes <= of_x


def _region(x: Tensor) -> Region:
    size = x.element_size()
    return Region(x.data_ptr(), size, tuple(x.shape), tuple(s * size for s in x.stride()))


def cast_arguments(options: Drawing, x: Tensor) -> tuple[str, Tensor | None, Tensor | None]:
    """Returns a rounding as operators take it.

    They take the text, of a scaled format that of its elements, and seed and stream if the rounding
    uses them.
    """
    return elements(options.cast), *random_numbers(options, x)


def random_numbers(options: Drawing, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Seed and stream, where the rounding uses them."""
    if options.rounding != "stochastic":
        return None, None
    return number_of("seed", options.seed, x), number_of("stream", options.stream, x)


def sum_numbers(
    acc: Accumulator, seed: Number, stream: Number, x: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Seed and stream of a call, checked, where its accumulator uses them."""
    draws = acc.rounding == "stochastic"
    if draws or not torch.compiler.is_dynamo_compiling():
        seed, stream = plain_number("seed", seed), plain_number("stream", stream)
    if not draws:
        return None, None
    return number_of("seed", seed, x), number_of("stream", stream, x)


def number_of(name: str, value: Number, x: Tensor) -> Tensor:
    """A seed or stream, checked, as a 0-d int64 tensor with the number's 64 bits.

    One on a GPU stays there, without a synchronization.
    """
    if not isinstance(value, Tensor):
        return torch.full((), value - 2**64 if value >= 2**63 else value, dtype=torch.int64)
    if value.device.type != "cpu" and value.device != x.device:
        raise ValueError(f"{name} must be on the CPU or on x's device, got {value.device}")
    value = value.detach().reshape(())
    return value.view(torch.int64) if value.dtype == torch.uint64 else value.to(torch.int64)


def call_numbers(
    options: Accumulator | Cast, seed: Number, stream: Number, x: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Seed and stream of a call, where the rounding uses them.

    From another device they are copied to x's, between GPUs without waiting: many layers share
    them.
    """
    if options.rounding != "stochastic":
        return None, None
    return _shared("seed", seed, x), _shared("stream", stream, x)


def _shared(name: str, value: Number, x: Tensor) -> Tensor:
    kept = plain_number(name, value)
    if isinstance(kept, Tensor) and kept.is_cuda and not x.is_meta:
        kept = kept.to(x.device)
    return number_of(name, kept, x)


def stacked_numbers(
    pairs: Sequence[tuple[Tensor | None, Tensor | None]], x: Tensor
) -> Tensor | None:
    """Returns seeds and streams as an operator takes them, int64, n x 2.

    Missing ones are zeros; None if all are missing. They are on the CPU if all came from there,
    else on x's device.
    """
    present = [number for pair in pairs for number in pair if number is not None]
    if not present:
        return None
    on_cpu = all(number.device.type == "cpu" for number in present)
    place = present[0].device if on_cpu else x.device
    zero = torch.zeros((), dtype=torch.int64, device=place)
    flat = [zero if number is None else _on(place, number) for pair in pairs for number in pair]
    return torch.stack(flat).view(len(pairs), 2)


def _on(place: torch.device, number: Tensor) -> Tensor:
    """The number there.

    One from the CPU is written by a kernel, which a CUDA graph can capture and the host does not
    wait for, as it would for a copy.
    """
    if number.device == place or torch.compiler.is_compiling() or _has_no_memory(number):
        return number.to(place)
    return torch.full((), int(number), dtype=torch.int64, device=place)


def checked_draws(
    random: Any,
    x: Tensor,
    shape: Sequence[int],
    acc: Accumulator,
    draws: Callable[[], int],
    like: str = "x",
) -> Tensor:
    """The random integers of an ordered sum, checked: `draws()` for each element of the result.

    (While torch compiles, `draws` must not be called; the library checks the shape then.)
    """
    if torch.compiler.is_compiling():
        return checked_integers(random, x, None, "", acc, like)
    count = draws()
    wanted = f"the result's shape and {count} draws"
    return checked_integers(random, x, (*shape, count), wanted, acc, like)


def checked_integers(
    random: Any,
    x: Tensor,
    shape: Sequence[int] | None,
    wanted: str,
    options: Rounded,
    like: str = "x",
) -> Tensor:
    """Random integers, checked, as int32 (they are below 2^24).

    `wanted`: `shape` in words; a `shape` of None leaves that check to the library.
    """
    check_random_is_used(options.rounding)
    if not isinstance(random, Tensor) or random.dtype not in _INTEGERS:
        raise TypeError(f"random must be a tensor of integers, got {describe(random)}")
    check_whole("random", random)
    if shape is not None and tuple(random.shape) != tuple(shape):
        raise ValueError(f"random must have {wanted}, {tuple(shape)}, got {tuple(random.shape)}")
    if random.device != x.device:
        raise ValueError(f"random must be on {like}'s device, {x.device}, got {random.device}")
    at_once = not (torch.compiler.is_compiling() or _checked_by_kernels(random))
    if at_once and random.numel() and not _has_no_memory(random):
        low, high = unwrapped(random).to(torch.int64).aminmax()
        check_random_range(int(low), int(high), options.random_bits)
    return random.to(torch.int32)


def _checked_by_kernels(random: Tensor) -> bool:
    """Returns whether `cpd.check_cuda` raises for integers out of range.

    It does on a GPU, where reading them would wait for it. Integers of 64 bits lose what does not
    fit, so they are read.
    """
    is_kept = random.element_size() <= 4
    return random.device.type == "cuda" and is_kept and os.environ.get("CPD_CHECK") != "sync"


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


def describe(x: object) -> str:
    if isinstance(x, Tensor) and x.is_nested:
        return f"nested tensor of {x.dtype}"
    if isinstance(x, Tensor):
        return f"tensor of {x.dtype} with shape {tuple(x.shape)}"
    return type(x).__name__


def check_codes(name: str, codes: Any, like: Any) -> None:
    """Raises unless `codes` are packed codes, on the device of `like`."""
    is_bytes = isinstance(codes, Tensor) and codes.dtype == torch.uint8
    if not is_bytes or codes.is_nested or codes.dim() != 1:
        raise TypeError(f"{name} must be a 1-D uint8 tensor, got {describe(codes)}")
    check_place(name, codes)
    if codes.device != like.device:
        raise ValueError(f"{name} must be on codes' device, {like.device}, got {codes.device}")


def sizes_of(shape: Any) -> tuple[Any, ...]:
    """`shape` as a tuple, not yet checked."""
    return tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (shape,)


def wider_type(x: Tensor, dtype: Any, allowed: tuple[str, ...]) -> torch.dtype:
    """The type `dtype`. Raises ValueError where it does not hold every value of `x`."""
    element = result_element(dtype, None, allowed)
    if torch.promote_types(x.dtype, element) != element:
        raise ValueError(f"dtype must hold every value of x, which is {x.dtype}, got {element}")
    return element


def result_element(dtype: Any, out: Any, allowed: tuple[str, ...]) -> torch.dtype:
    """The type of decoded values: `dtype`, or out's, or float32."""
    default = out.dtype if isinstance(out, Tensor) else torch.float32
    element = default if dtype is None else dtype
    if not isinstance(element, torch.dtype) or name_of(element) not in allowed:
        raise TypeError(f"dtype must be one of torch's {', '.join(allowed)}, got {element}")
    return element
