# SPDX-License-Identifier: Apache-2.0
"""How to round, and the numbers that say it: ints or one-element tensors, checked."""

from __future__ import annotations

import functools
import sys
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np

from cpd import _core
from cpd.numeric import formats
from cpd.numeric.compiling import constant
from cpd.numeric.shown import shown

if TYPE_CHECKING:
    import torch

Number: TypeAlias = "int | torch.Tensor"
"""A 64-bit number: an int or a one-element integer tensor (of which int64 holds the bits)."""

MAX_RANDOM_BITS = _core.MAX_RANDOM_BITS
_BITS64 = 2**64
_PLAIN = (str, str, int, int, int, str)
"""The types of options that can be looked up: a tensor's number changes, and True equals 1."""


class Options(NamedTuple):
    """How to round: the arguments that every rounding operation takes."""

    rounding: str = "nearest_even"
    overflow: str = "ieee"
    seed: Number = 0
    stream: Number = 0
    random_bits: int = 24
    variant: str = "A"

    def check(self) -> None:
        """Raises TypeError or ValueError where one of them is wrong."""
        names = (
            ("rounding", self.rounding),
            ("overflow", self.overflow),
            ("variant", self.variant),
        )
        for name, value in names:
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        bits = int32("random_bits", self.random_bits)
        check_names(self.rounding, self.overflow, self.variant, bits)
        check_number("seed", self.seed)
        check_number("stream", self.stream)

    def text(self, f: formats.Format) -> str:
        """Checked, with a format, as torch's operators of elements take them: "e4m3
        rounding=stochastic". Seed and stream are no part of it."""
        self.check()
        return cast_text(f.name, self.rounding, self.overflow, self.random_bits, self.variant)

    def kept_text(self, f: formats.Format) -> str:
        """`text`, looked up where it can be; not for torch.compile."""
        return _kept_text(self, f.name) if tuple(map(type, self)) == _PLAIN else self.text(f)

    def native(self) -> _core.RoundingOptions:
        """Checked, as C++ takes them."""
        return _kept(self) if tuple(map(type, self)) == _PLAIN else _native(self)


def _native(options: Options) -> _core.RoundingOptions:
    options.check()
    seed, stream = number("seed", options.seed), number("stream", options.stream)
    names = options.rounding, options.overflow
    return _core.RoundingOptions(*names, seed, stream, index(options.random_bits), options.variant)


_kept = functools.lru_cache(maxsize=1024)(_native)


@functools.lru_cache(maxsize=1024)
def _kept_text(options: Options, f: str) -> str:
    return options.text(formats.named(f))


@constant
def check_names(rounding: str, overflow: str, variant: str, random_bits: int) -> None:
    """Raises ValueError for a name that does not exist or a number of bits out of range. A constant
    to torch.compile."""
    _core.RoundingOptions(rounding, overflow, 0, 0, random_bits, variant)


@constant
def cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """The canonical text of a rounding to a format. A constant to torch.compile."""
    return _core.CastSpec(f, rounding, overflow, random_bits, variant).text


def integer(name: str, value: Any) -> int:
    """`value` as an int, which a bool or a float is not."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an int, got bool")
    if isinstance(value, int):
        return value  # as it is: index() would fix a symbolic int of torch.compile to its value
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None


def int32(name: str, value: Any) -> int:
    return _ranged(name, value, 31)


def int64(name: str, value: Any) -> int:
    return _ranged(name, value, 63)


def _ranged(name: str, value: Any, bits: int) -> int:
    """`value` as an int that C++ can take; what it may be is checked there."""
    number = integer(name, value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{name} must fit in {bits + 1} bits, got {shown(number)}")
    return number


def number(name: str, value: Number) -> int:
    """A seed or stream as an int in [0, 2^64)."""
    kept = plain_number(name, value)
    return int(kept.item()) % _BITS64 if is_torch(kept) else index(kept)


def check_number(name: str, value: Number) -> None:
    """Raises unless `value` is an int in [0, 2^64) or a one-element integer tensor."""
    plain_number(name, value)


def plain_number(name: str, value: Number) -> Number:
    """A seed or stream as it is kept: checked, and an int where it is no tensor."""
    if not is_torch(value):
        kept = integer(name, value)
        if not 0 <= kept < _BITS64:
            raise ValueError(f"{name} must be 0…2^64 - 1, got {shown(value)}")
        return kept
    if value.numel() != 1:
        raise ValueError(f"{name} must have one element, got shape {tuple(value.shape)}")
    if value.is_floating_point() or value.is_complex() or str(value.dtype) == "torch.bool":
        raise TypeError(f"{name} must be an integer tensor, got {value.dtype}")
    return value


def same_number(a: Number, b: Number) -> bool:
    """Whether two seeds or streams are the same number, be they ints or tensors."""
    return a is b or number("a", a) == number("b", b)


def is_torch(x: object) -> TypeGuard[torch.Tensor]:
    """Whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)
