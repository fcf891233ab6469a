# SPDX-License-Identifier: Apache-2.0
"""`cpd show --compare A B`: two formats side by side.

All that is counted follows from binades: in [2^k, 2^(k+1)) a format holds the multiples of one
power of two up to its largest value. So formats of any width are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd.cli.output import counted, exact, new_table, short
from cpd.numeric.formats import Format
from cpd.ops import cast, encode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LISTED = 12
"""Values that are listed of those that one format alone has: half from each end."""
_MOST_IN_JSON = 2**16


@dataclass(frozen=True)
class Binade:
    """The multiples of 2^spacing from `first` to `last`, of which there is at least one."""

    spacing: int
    first: float
    last: float

    @property
    def count(self) -> int:
        """The number of values."""
        return int((self.last - self.first) / 2.0**self.spacing) + 1


def binade(f: Format, k: int) -> Binade | None:
    """The positive values of `f` in [2^k, 2^(k+1))."""
    if f.min_subnormal is None or f.max < 2.0**k:
        return None
    least = math.frexp(f.min_subnormal)[1] - 1
    if k < least:
        return None
    spacing = max(k - f.man, least) if f.subnormals else k - f.man
    last = min(f.max, 2.0**k * 2 - 2.0**spacing)
    return Binade(spacing, 2.0**k, last)


def binades(*formats: Format) -> range:
    """The exponents of all positive values."""
    ends = [
        (math.frexp(f.min_subnormal)[1] - 1, math.frexp(f.max)[1])
        for f in formats
        if f.min_subnormal is not None
    ]
    return range(min(low for low, _ in ends), max(high for _, high in ends)) if ends else range(0)


def shared(one: Binade | None, other: Binade | None) -> int:
    """Returns the number of values of a binade that both have."""
    if one is None or other is None:
        return 0
    step = 2.0 ** max(one.spacing, other.spacing)
    return int((min(one.last, other.last) - one.first) / step) + 1


def alone(one: Binade | None, other: Binade | None, descending: bool = False) -> Iterator[float]:
    """The values of a binade that `one` has and `other` has not."""
    if one is None:
        return
    step = 2.0**one.spacing
    first = one.first
    if other is not None and other.spacing <= one.spacing:
        first += shared(one, other) * step  # all before it are shared
    numbers = range(int((one.last - first) / step) + 1)
    for number in reversed(numbers) if descending else numbers:
        value = first + number * step
        if other is None or value > other.last or math.fmod(value, 2.0**other.spacing) != 0:
            yield value


def only_in(f: Format, other: Format | None) -> Iterator[float]:
    """The positive values that `f` has and `other` has not, ascending."""
    for k in binades(f):
        yield from alone(binade(f, k), None if other is None else binade(other, k))


@dataclass(frozen=True)
class Comparison:
    """Two formats, and how many finite values they share."""

    a: Format
    b: Format
    common: int

    @classmethod
    def of(cls, a: Format, b: Format) -> Comparison:
        """Compares two formats, binade by binade."""
        positive = sum(shared(binade(a, k), binade(b, k)) for k in binades(a, b))
        signs = 2 if a.signed and b.signed else 1
        return cls(a, b, positive * signs + (_has_zero(a) and _has_zero(b)))

    def sides(self) -> list[tuple[Format, Format]]:
        """Each format with the other one."""
        return [(self.a, self.b), (self.b, self.a)]

    def spacings(self) -> list[Spacing]:
        """The binades, ascending; those of the same relative spacings in one."""
        found: list[Spacing] = []
        for k in binades(self.a, self.b):
            sides = binade(self.a, k), binade(self.b, k)
            relative = tuple(None if one is None else one.spacing - k for one in sides)
            counts = (*(0 if one is None else one.count for one in sides), shared(*sides))
            if found and found[-1].relative == relative:
                found[-1].add(k, counts)
            else:
                found.append(Spacing(k, k, relative, counts))
        return found


@dataclass
class Spacing:
    """The binades from 2^first to 2^last, in which each format has one relative spacing."""

    first: int
    last: int
    relative: tuple[int | None, ...]
    """log2 of the distance to the next value over the power of two; None: no values."""
    counts: tuple[int, ...]
    """Positive values of each format, and of both."""

    def add(self, k: int, counts: tuple[int, ...]) -> None:
        """Adds the counts of binade `k`."""
        self.last = k
        self.counts = tuple(map(sum, zip(self.counts, counts, strict=True)))


def compare(console: Console, a: Format, b: Format) -> None:
    """Prints the comparison."""
    found = Comparison.of(a, b)
    console.print(_figures_table(a, b))
    console.print(_spacings_table(found))
    if a == b:
        console.print(f"both names are of the same format, {a}", soft_wrap=True)
        return
    console.print(f"{counted(found.common, 'value')} in both", soft_wrap=True)
    for one, other in found.sides():
        console.print(_alone_line(found, one, other), soft_wrap=True)


def comparison_rows(a: Format, b: Format) -> dict[str, Any]:
    """The same for JSON; without the values of one format alone where they are more than 2^16."""
    found = Comparison.of(a, b)
    return {
        "common": found.common,
        "only": [
            {
                "name": str(one),
                "count": one.num_values - found.common,
                "values": _all_alone(found, one, other),
            }
            for one, other in found.sides()
        ],
        "special": [{"name": str(one), **specials(one)} for one in (a, b)],
        "spacings": [
            {
                "first_exponent": run.first,
                "last_exponent": run.last,
                "relative": [None if one is None else 2.0**one for one in run.relative],
                "positive_values": list(run.counts[:2]),
                "in_both": run.counts[2],
            }
            for run in found.spacings()
        ],
    }


def specials(f: Format) -> dict[str, bool]:
    """Returns whether a format holds each kind of value besides finite numbers."""
    x = np.array([np.inf, -0.0], np.float32)
    infinite, zero = cast(x, f).tolist()
    return {
        "infinity": math.isinf(infinite),
        "nan": _has_nan(f),
        "negative_zero": zero == 0 and math.copysign(1, zero) < 0,
        "subnormals": f.min_subnormal != f.min_normal,
    }


def _has_nan(f: Format) -> bool:
    try:
        encode(np.array([np.nan], np.float32), f)
    except ValueError:  # it has no code for NaN
        return False
    return True


def _has_zero(f: Format) -> bool:
    return f.encoding != "e8m0"


def _figures_table(a: Format, b: Format) -> Table:
    table = new_table("", str(a), str(b))

    def row(name: str, *shown: str) -> None:
        table.add_row(name, *shown)

    row("Bits", str(a.bits), str(b.bits))
    row("Exponent, mantissa", *(f"{f.exp}, {f.man}" for f in (a, b)))
    row("Bias", str(a.bias), str(b.bias))
    row("Encoding", *(f.encoding + ("" if f.signed else ", unsigned") for f in (a, b)))
    row("Max", *(short(f.max) for f in (a, b)))
    row("Min normal", *(short(f.min_normal) for f in (a, b)))
    row(
        "Min subnormal",
        *(short(f.min_subnormal) if specials(f)["subnormals"] else "none" for f in (a, b)),
    )
    row("Epsilon", *(short(f.epsilon) for f in (a, b)))
    row("Binades", *(str(len(binades(f))) for f in (a, b)))
    row("Finite values", *(str(f.num_values) for f in (a, b)))
    for name, title in (("infinity", "Infinity"), ("nan", "NaN"), ("negative_zero", "-0")):
        row(title, *("yes" if specials(f)[name] else "no" for f in (a, b)))
    return table


def _spacings_table(found: Comparison) -> Table:
    a, b = found.a, found.b
    table = new_table("At", str(a), str(b), f"Values\n{a}", f"Values\n{b}", "In both")
    table.columns[0].no_wrap = True
    table.title = "Relative spacing at powers of two, and positive values from there to the next"
    for run in found.spacings():
        powers = f"2^{run.first}" + ("" if run.first == run.last else f" … 2^{run.last}")
        spacings = ["-" if one is None else f"2^{one}" for one in run.relative]
        table.add_row(powers, *spacings, *(str(count) for count in run.counts))
    return table


def _alone_line(found: Comparison, one: Format, other: Format) -> str:
    """Returns the number of values that one format alone has, and some of them."""
    count = one.num_values - found.common
    if count == 0:
        return f"none in {one} alone"
    parts = []
    if _has_zero(one) and not _has_zero(other):
        parts.append("0")
    both_signs = one.signed and other.signed
    some = _some(one, other)
    if some:
        parts.append(f"±({some})" if both_signs else some)
    if one.signed and not other.signed:
        parts.append("all that are negative")
    return f"{count} in {one} alone: {', '.join(parts)}"


def _some(one: Format, other: Format) -> str:
    """The positive values of one format alone, or the first and the last of them."""
    first = list(islice(only_in(one, other), _LISTED + 1))
    if len(first) <= _LISTED:
        return ", ".join(map(exact, first))
    half = _LISTED // 2
    ends = [exact(value) for value in (*first[:half], *reversed(_last(one, other, half)))]
    return ", ".join(ends[:half]) + ", …, " + ", ".join(ends[half:])


def _last(one: Format, other: Format, count: int) -> list[float]:
    """The greatest positive values of one format alone, descending."""
    found: list[float] = []
    for k in reversed(binades(one)):
        for value in alone(binade(one, k), binade(other, k), descending=True):
            found.append(value)
            if len(found) == count:
                return found
    return found


def _all_alone(found: Comparison, one: Format, other: Format) -> list[float] | None:
    """The values that one format alone has, ascending; None where they are too many."""
    if one.num_values - found.common > _MOST_IN_JSON:
        return None
    positive = list(only_in(one, other))
    zero = [0.0] if _has_zero(one) and not _has_zero(other) else []
    negative = positive if other.signed else list(only_in(one, None))
    return [-value for value in reversed(negative) if one.signed] + zero + positive
