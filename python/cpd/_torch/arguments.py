# SPDX-License-Identifier: Apache-2.0
"""Converts roundings, seeds and streams to arguments of the operators torch.ops.cpd.*."""

# Relaxes mypy's checks: many functions of torch have no type annotations.
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
    """Returns the name of a dtype by a dictionary lookup, which torch.compile can trace."""
    return NAMES[dtype]


def cast_arguments(options: Drawing, x: Tensor) -> tuple[str, Tensor | None, Tensor | None]:
    """Returns a rounding as three arguments of operators: its text, the seed and the stream.

    For a scaled cast, the text is the text of its elements' cast. Seed and stream are None unless
    the rounding is stochastic.
    """
    text = elements(options.cast)
    if options.rounding != "stochastic":
        return text, None, None
    return text, number_of("seed", options.seed, x), number_of("stream", options.stream, x)


def sum_numbers(
    acc: Accumulator, seed: Number, stream: Number, x: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Checks the seed and the stream of a call.

    Returns them if the accumulator uses them, else None.
    """
    draws = acc.rounding == "stochastic"
    if draws or not torch.compiler.is_dynamo_compiling():
        seed, stream = plain_number("seed", seed), plain_number("stream", stream)
    if not draws:
        return None, None
    return number_of("seed", seed, x), number_of("stream", stream, x)


def number_of(name: str, value: Number, x: Tensor) -> Tensor:
    """Checks a seed or stream and returns its 64 bits as a 0-d int64 tensor.

    A tensor on a GPU remains on the GPU, so the host does not wait for it.
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
    """Returns the seed and the stream of a call if the rounding uses them, else None.

    Many layers share a seed, so tensors on another GPU are copied to x's device. The host does not
    wait for such a copy.
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
    """Returns n pairs of seed and stream as one int64 tensor, n x 2, for an operator.

    None in a pair becomes 0. The result is None if all are None. It is on the CPU if all tensors
    are on the CPU, else on x's device.
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
    """Returns the 0-d tensor `number` on the device `place`.

    If `number` is on the CPU and `place` is a GPU, a kernel writes the number to the GPU. A copy
    would make the host wait, and a CUDA graph could not capture it.
    """
    if number.device == place or torch.compiler.is_compiling() or has_no_memory(number):
        return number.to(place)
    return torch.full((), int(number), dtype=torch.int64, device=place)


def has_no_memory(x: Tensor) -> bool:
    """Returns whether `x` has no values: a tensor of device `meta`, or a fake tensor."""
    return x.is_meta or isinstance(x, FakeTensor)
