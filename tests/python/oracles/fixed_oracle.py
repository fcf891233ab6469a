# SPDX-License-Identifier: Apache-2.0
"""An oracle for accumulators of scheme `fixed`: sums in Python's integers and rationals.

Values are represented as in `oracle`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flags_oracle import NV, NX, OF, result
from oracle import (
    NAN,
    Infinity,
    NotANumber,
    Number,
    Options,
    Spec,
    Value,
    bits_from_value,
    multiply_values,
    number,
    power_of_two,
    value_from_bits,
    value_from_double,
)
from rationals import Fraction


@dataclass(frozen=True)
class Fixed:
    """The options of a `cpd.Accumulator` of scheme `fixed`, in the types of this oracle."""

    format: Spec
    width: int
    fraction: int
    rounding: str = "toward_zero"
    options: Options = field(default_factory=Options)

    @property
    def least(self) -> int:
        return -(1 << (self.width - 1))

    @property
    def greatest(self) -> int:
        return (1 << (self.width - 1)) - 1

    def units(self, x: Fraction) -> int:
        """Returns x / 2^-fraction, rounded once to an integer: x in units of the last place."""
        exact = x / power_of_two(-self.fraction)
        down = math.floor(exact)
        up = math.ceil(exact)
        match self.rounding:
            case "nearest_even":
                return round(exact)
            case "nearest_away":
                away = math.floor(abs(exact) + Fraction(1, 2))
                return away if exact > 0 else -away
            case "toward_zero":
                return math.trunc(exact)
            case "up":
                return up
            case "down":
                return down
            case "to_odd":
                return down if down % 2 == 1 else up
        raise ValueError(self.rounding)

    def kept(self, s: int) -> int:
        """Returns the sum s as an integer of `width` bits: saturated or wrapped around."""
        if self.options.overflow == "saturate":
            return min(max(s, self.least), self.greatest)
        return (s - self.least) % (1 << self.width) + self.least


def sum_of(acc: Fixed, terms: Iterable[Value], tininess: str = "after") -> tuple[Value, int]:
    """Returns the sum of the terms in the accumulator `acc`, rounded to the format of its result,
    and the exception flags of the sum."""
    s, flags, finite = 0, 0, True
    for term in terms:
        if not isinstance(term, Number):
            finite = False
            flags |= NV if isinstance(term, Infinity) else 0
            continue
        units = acc.units(term.value)
        if units * power_of_two(-acc.fraction) != term.value:
            flags |= NX
        exact = s + units
        s = acc.kept(exact)
        if s != exact:
            flags |= OF | NX
    total = number(s * power_of_two(-acc.fraction)) if finite else NAN
    made, last = result("cast", (total,), acc.format, acc.options, tininess)
    return made, flags | last


def product(x: Value, y: Value) -> Value:
    """Returns x * y: NaN if an operand is NaN, +Inf if an operand is infinite and none is NaN."""
    if isinstance(x, NotANumber) or isinstance(y, NotANumber):
        return NAN
    finite = isinstance(x, Number) and isinstance(y, Number)
    return multiply_values(x, y) if finite else Infinity(False)


def dot(
    a: Sequence[int], b: Sequence[int], c: int | None, acc: Fixed, tininess: str = "after"
) -> tuple[int, int]:
    """Returns one element of `cpd.gemm` and its flags, from and to binary32 bit patterns."""
    terms: list[Value] = [] if c is None else [value_from_bits(c)]
    terms += map(product, map(value_from_bits, a), map(value_from_bits, b))
    value, flags = sum_of(acc, terms, tininess)
    return bits_from_value(value), flags


def total(acc: Fixed, terms: Iterable[float], tininess: str = "after") -> tuple[int, int]:
    """Returns `cpd.sum` of binary64 terms, as a binary32 bit pattern, and its flags."""
    value, flags = sum_of(acc, map(value_from_double, terms), tininess)
    return bits_from_value(value), flags
