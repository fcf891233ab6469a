# SPDX-License-Identifier: Apache-2.0
"""Options of roundings: `Options`."""

from __future__ import annotations

import functools
from operator import index
from typing import NamedTuple

from cpd import _core
from cpd.numeric import formats
from cpd.numeric.compiling import constant
from cpd.numeric.numbers import Number, check_number, int32, number

MAX_RANDOM_BITS = _core.MAX_RANDOM_BITS
_PLAIN = (str, str, int, int, int, str)
"""The types of options that can be looked up: a tensor's number changes, and True equals 1."""


class Options(NamedTuple):
    """Options of a rounding: the arguments that every rounding operation takes."""

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
        """Returns the options, checked, with a format, as torch's operators of elements take them.

        An example: "e4m3 rounding=stochastic". Seed and stream are not part of it.
        """
        self.check()
        return cast_text(f.name, self.rounding, self.overflow, self.random_bits, self.variant)

    def kept_text(self, f: formats.Format) -> str:
        """`text`, looked up where it can be; not for torch.compile."""
        return _kept_text(self, f.name) if tuple(map(type, self)) == _PLAIN else self.text(f)

    def native(self) -> _core.RoundingOptions:
        """Checked, as C++ takes them."""
        has_ints = type(self[2]) is int and type(self[3]) is int and type(self[4]) is int
        if has_ints and self == _DEFAULTS:
            return _NATIVE_DEFAULTS
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
    """Raises ValueError for an unknown name or a number of bits out of range.

    Also for bits or a variant beside a rounding that is not stochastic. A constant to
    torch.compile.
    """
    _core.RoundingOptions(rounding, overflow, 0, 0, random_bits, variant)


@constant
def cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """The canonical text of a rounding to a format. A constant to torch.compile."""
    options = f"rounding={rounding} overflow={overflow} random_bits={random_bits} variant={variant}"
    return _core.CastSpec.parse(f"{f} {options}").text


def numbers_of_codec(seed: int, random_bits: int) -> _core.RoundingOptions:
    """The options of a codec, which rounds in its own way. Raises TypeError or ValueError."""
    return _core.RoundingOptions.of_codec(number("seed", seed), int32("random_bits", random_bits))


_DEFAULTS = Options()
_NATIVE_DEFAULTS = _native(_DEFAULTS)
