# SPDX-License-Identifier: Apache-2.0
"""Roundings, seeds and streams as the operators torch.ops.cpd.* take them."""

# torch's types are untyped in part.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cpd._torch.private import FakeTensor
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast, Drawing, elements
from cpd.numeric.formats import dtype_name
from cpd.numeric.numbers import Number, plain_number

NAMES = {
    dtype: dtype_name(dtype) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def name_of(dtype: torch.dtype) -> str:
    """`dtype_name`, as a look-up that torch.compile can trace."""
    return NAMES[dtype]


def cast_arguments(options: Drawing, x: Tensor) -> tuple[str, Tensor | None, Tensor | None]:
    """Returns a rounding as operators take it.

    Operators take its text (of a scaled format, the text of its elements), and seed and stream if
    the rounding uses them.
    """
    text = elements(options.cast)
    if options.rounding != "stochastic":
        return text, None, None
    return text, number_of("seed", options.seed, x), number_of("stream", options.stream, x)


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
    """Returns a seed or stream, checked, as a 0-d int64 tensor with the number's 64 bits.

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
    number = plain_number(name, value)
    if isinstance(number, Tensor) and number.is_cuda and not x.is_meta:
        number = number.to(x.device)
    return number_of(name, number, x)


def stacked_numbers(
    pairs: Sequence[tuple[Tensor | None, Tensor | None]], x: Tensor
) -> Tensor | None:
    """Returns seeds and streams as an operator takes them, int64, n x 2.

    Missing seeds and streams are zeros; None if all are missing. The result is on the CPU if all
    came from there, else on x's device.
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
    """Returns the number there.

    One from the CPU is written by a kernel, which a CUDA graph can capture and the host does not
    wait for, as it would for a copy.
    """
    if number.device == place or torch.compiler.is_compiling() or has_no_memory(number):
        return number.to(place)
    return torch.full((), int(number), dtype=torch.int64, device=place)


def has_no_memory(x: Tensor) -> bool:
    """Returns whether `x` has a shape and no values."""
    return x.is_meta or isinstance(x, FakeTensor)
