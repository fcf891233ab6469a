# SPDX-License-Identifier: Apache-2.0
"""Options of roundings: `Options`."""

from __future__ import annotations

import functools
from operator import index
from typing import Any, NamedTuple, Self

from cpd import _core
from cpd.numeric import formats
from cpd.numeric.compiling import constant
from cpd.numeric.numbers import int32

MAX_RANDOM_BITS = _core.MAX_RANDOM_BITS
_PLAIN = (str, str, int, str)
"""The types of options that can be looked up: True equals 1."""


class _Fields(NamedTuple):
    rounding: str = "nearest_even"
    overflow: str = "ieee"
    random_bits: int = 24
    variant: str = "A"


class Options(_Fields):
    """Options of a rounding."""

    __slots__ = ()

    def __new__(cls, *fields: Any, **named: Any) -> Self:
        """Pickles of 0.7 have a seed and a stream before `random_bits`."""
        return super().__new__(
            cls, *fields[:2], *fields[-2:] if len(fields) == 6 else fields[2:], **named
        )

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

    def text(self, f: formats.Format) -> str:
        """Returns the options, checked, with a format, as torch's operators of elements take them.

        An example: "e4m3 rounding=stochastic".
        """
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
    names = options.rounding, options.overflow
    return _core.RoundingOptions(*names, index(options.random_bits), options.variant)


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
    _core.RoundingOptions(rounding, overflow, random_bits, variant)


@constant
def cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """The canonical text of a rounding to a format. A constant to torch.compile."""
    options = f"rounding={rounding} overflow={overflow} random_bits={random_bits} variant={variant}"
    return _core.CastSpec.parse(f"{f} {options}").text


def options_of_codec(random_bits: int) -> _core.RoundingOptions:
    """The options of a codec, which rounds in its own way. Raises TypeError or ValueError."""
    return _core.RoundingOptions.of_codec(int32("random_bits", random_bits))
