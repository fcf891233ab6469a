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

if TYPE_CHECKING:
    import torch

Number: TypeAlias = "int | torch.Tensor"
"""A 64-bit number: an int or a one-element integer tensor (of which int64 holds the bits)."""

MAX_RANDOM_BITS = 24
_BITS64 = 2**64


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
        for name in ("rounding", "overflow", "variant"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        check_names(self.rounding, self.overflow, self.variant)
        bits = integer("random_bits", self.random_bits)
        if not 1 <= bits <= MAX_RANDOM_BITS:
            raise ValueError(f"random_bits must be 1…{MAX_RANDOM_BITS}, got {bits}")
        check_number("seed", self.seed)
        check_number("stream", self.stream)

    def text(self, f: formats.Format) -> str:
        """Checked, with a format, as torch's operators of elements take them: "e4m3
        rounding=stochastic". Seed and stream are no part of it."""
        self.check()
        return cast_text(f.name, self.rounding, self.overflow, self.random_bits, self.variant)

    def native(self) -> _core.RoundingOptions:
        """Checked, as C++ takes them."""
        self.check()
        seed, stream = number("seed", self.seed), number("stream", self.stream)
        bits = index(self.random_bits)
        return _core.RoundingOptions(self.rounding, self.overflow, seed, stream, bits, self.variant)


@constant
def check_names(rounding: str, overflow: str, variant: str) -> None:
    """Raises ValueError for a name that does not exist. A constant to torch.compile."""
    _known_names(rounding, overflow, variant)


@constant
def cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """The canonical text of a rounding to a format. A constant to torch.compile."""
    return _cast_text(f, rounding, overflow, index(random_bits), variant)


@functools.lru_cache(maxsize=1024)
def _known_names(rounding: str, overflow: str, variant: str) -> None:
    _core.RoundingOptions(rounding, overflow, 0, 0, 1, variant)


@functools.lru_cache(maxsize=1024)
def _cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """A sequential accumulator's text without its scheme: its format and its options."""
    from cpd.numeric.accumulator import Accumulator  # which imports this module

    text = Accumulator(
        f, rounding=rounding, overflow=overflow, random_bits=random_bits, variant=variant
    ).text
    return text.replace(" sequential", "", 1)


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


def number(name: str, value: Number) -> int:
    """A seed or stream as an int in [0, 2^64)."""
    check_number(name, value)
    return int(value.item()) % _BITS64 if is_torch(value) else index(value)


def plain_number(name: str, value: Number) -> Number:
    """A seed or stream as it is kept: checked, and an int where it is no tensor."""
    check_number(name, value)
    return value if is_torch(value) else integer(name, value)


def same_number(a: Number, b: Number) -> bool:
    """Whether two seeds or streams are the same number, be they ints or tensors."""
    return a is b or number("a", a) == number("b", b)


def check_number(name: str, value: Number) -> None:
    """Raises unless `value` is an int in [0, 2^64) or a one-element integer tensor."""
    if not is_torch(value):
        if not 0 <= integer(name, value) < _BITS64:
            raise ValueError(f"{name} must be 0…2^64 - 1, got {value}")
    elif value.numel() != 1:
        raise ValueError(f"{name} must have one element, got shape {tuple(value.shape)}")
    elif value.is_floating_point() or value.is_complex() or str(value.dtype) == "torch.bool":
        raise TypeError(f"{name} must be an integer tensor, got {value.dtype}")


def is_torch(x: object) -> TypeGuard[torch.Tensor]:
    """Whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)
