# SPDX-License-Identifier: Apache-2.0
"""Checks integer arguments: sizes, seeds and streams. Seeds and streams may be torch tensors."""

from __future__ import annotations

import sys
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from cpd.numeric.shown import kind_of, shown

if TYPE_CHECKING:
    import torch

Number: TypeAlias = "int | torch.Tensor"
"""A 64-bit number: an int in [0, 2^64), or a one-element integer tensor. Negative values of an
int64 tensor stand for value + 2^64."""

_BITS64 = 2**64


def integer(name: str, value: Any) -> int:
    """Returns `value` as an int. Raises TypeError for a bool, a float or another type."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an int, got bool")
    if isinstance(value, int):
        return value  # index() would turn a symbolic int of torch.compile into a constant
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {kind_of(value)}") from None


def at_least(least: int, name: str, value: Any) -> int:
    """Returns `value` as an int. Raises ValueError if `value` is less than `least`.

    >>> at_least(1, "every", 0)
    Traceback (most recent call last):
    ValueError: every must be at least 1, got 0
    """
    number = integer(name, value)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(number)}")
    return number


def int32(name: str, value: Any) -> int:
    """Returns `value` as an int in [-2^31, 2^31). Raises TypeError or ValueError otherwise."""
    if type(value) is int and -0x80000000 <= value <= 0x7FFFFFFF:
        return value
    return _ranged(name, value, 31)


def int64(name: str, value: Any) -> int:
    """Returns `value` as an int in [-2^63, 2^63). Raises TypeError or ValueError otherwise."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    return _ranged(name, value, 63)


def _ranged(name: str, value: Any, bits: int) -> int:
    """Returns `value` as an int. Raises ValueError unless it is in [-2^bits, 2^bits).

    C++ can read all these ints, and checks the narrower range that an operation allows.
    """
    number = integer(name, value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{name} must fit in {bits + 1} bits, got {shown(number)}")
    return number


def number(name: str, value: Number) -> int:
    """Returns a seed or stream as an int in [0, 2^64). Reads the value of a tensor."""
    if type(value) is int and 0 <= value < _BITS64:
        return value
    checked = plain_number(name, value)
    return int(checked.item()) % _BITS64 if is_torch(checked) else index(checked)


def key_of(seed: Number, stream: Number) -> tuple[int, int]:
    """Returns the seed and the stream of a call as ints in [0, 2^64) for C++."""
    if type(seed) is type(stream) is int and 0 <= seed < _BITS64 and 0 <= stream < _BITS64:
        return seed, stream
    return number("seed", seed), number("stream", stream)


def check_number(name: str, value: Number) -> None:
    """Raises TypeError or ValueError unless `value` is an int in [0, 2^64) or a torch tensor.

    A tensor must have one element and an integer dtype.
    """
    plain_number(name, value)


def plain_number(name: str, value: Number) -> Number:
    """Checks a seed or stream. Returns a tensor unchanged, and any other value as an int."""
    if type(value) is int and 0 <= value < _BITS64:
        return value
    if not is_torch(value):
        checked = integer(name, value)
        if not 0 <= checked < _BITS64:
            raise ValueError(f"{name} must be 0…2^64 - 1, got {shown(value)}")
        return checked
    if value.numel() != 1:
        raise ValueError(f"{name} must have one element, got shape {tuple(value.shape)}")
    if value.is_floating_point() or value.is_complex() or str(value.dtype) == "torch.bool":
        raise TypeError(f"{name} must be an integer tensor, got {value.dtype}")
    return value


def is_torch(x: object) -> TypeGuard[torch.Tensor]:
    """Returns whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)
