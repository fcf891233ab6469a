# SPDX-License-Identifier: Apache-2.0
"""Sums in integers of a fixed width, in Python's own integers and rationals: what accumulators of
scheme `fixed` are compared with. Values as in `oracle`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from oracle import (
    NAN,
    Number,
    Options,
    Spec,
    Value,
    bits_from_value,
    multiply_values,
    number,
    power_of_two,
    round_value,
    value_from_bits,
    value_from_double,
)

NX, UF, OF, NV = 1, 2, 4, 16


@dataclass(frozen=True)
class Fixed:
    """The oracle's own view of a `cpd.Accumulator` of scheme `fixed`."""

    format: Spec
    width: int
    fraction: int
    saturates: bool = False
    rounding: str = "toward_zero"
    options: Options = field(default_factory=Options)

    @property
    def least(self) -> int:
        return -(1 << (self.width - 1))

    @property
    def greatest(self) -> int:
        return (1 << (self.width - 1)) - 1

    def units(self, x: Fraction) -> int:
        """x in whole units, rounded once."""
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
        """s as the integer holds it."""
        if self.saturates:
            return min(max(s, self.least), self.greatest)
        return (s - self.least) % (1 << self.width) + self.least


def sum_of(acc: Fixed, terms: Iterable[Value]) -> tuple[Value, int]:
    """The sum, rounded into the format, and its exceptions but for those of the last rounding."""
    s, flags = 0, 0
    for term in terms:
        if not isinstance(term, Number):
            return NAN, flags
        units = acc.units(term.value)
        if units * power_of_two(-acc.fraction) != term.value:
            flags |= NX
        exact = s + units
        s = acc.kept(exact)
        if s != exact:
            flags |= OF | NX
    return round_value(acc.format, number(s * power_of_two(-acc.fraction)), acc.options), flags


def dot(a: Sequence[int], b: Sequence[int], c: int | None, acc: Fixed) -> int:
    """One element of `cpd.gemm`, binary32 patterns in and out. A product with an infinity counts as
    not finite, whatever the other operand is."""
    terms: list[Value] = [] if c is None else [value_from_bits(c)]
    for x, y in zip(map(value_from_bits, a), map(value_from_bits, b), strict=True):
        finite = isinstance(x, Number) and isinstance(y, Number)
        terms.append(multiply_values(x, y) if finite else NAN)
    return bits_from_value(sum_of(acc, terms)[0])


def total(acc: Fixed, terms: Iterable[float]) -> int:
    """`cpd.sum` of binary64 terms, as a binary32 pattern."""
    return bits_from_value(sum_of(acc, map(value_from_double, terms))[0])
