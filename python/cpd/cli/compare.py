# SPDX-License-Identifier: Apache-2.0
"""`cpd show --compare A B`: compares two formats.

In each binade [2^k, 2^(k+1)), the values of a format are the multiples of a power of two, up to the
format's largest value. So the values that two formats share can be counted without a list of all
values, and the comparison is exact for formats of any width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd.cli.output import counted, exact, new_table, short
from cpd.numeric.formats import Format
from cpd.ops import cast, encode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LISTED = 12
"""Up to this number of the positive values that only one format has are printed. Of more values,
only the first and the last values are printed: half of this number each."""
_LISTED_BITS = 20
"""The largest number of bits of a format whose values are listed. For a format with more bits,
values are only counted."""
_MOST_IN_JSON = 2**16


@dataclass(frozen=True)
class Binade:
    """A format's values in a binade: the multiples of 2^spacing from `first` to `last`."""

    spacing: int
    first: float
    last: float

    @property
    def count(self) -> int:
        """The number of values in the binade, at least 1."""
        return int((self.last - self.first) / 2.0**self.spacing) + 1


def binade(f: Format, k: int) -> Binade | None:
    """Returns the positive values of `f` in [2^k, 2^(k+1)), or None if there are none."""
    if f.min_subnormal is None or f.max < 2.0**k:
        return None
    least = math.frexp(f.min_subnormal)[1] - 1
    if k < least:
        return None
    spacing = max(k - f.man, least) if f.subnormals else k - f.man
    last = min(f.max, 2.0**k * 2 - 2.0**spacing)
    return Binade(spacing, 2.0**k, last)


def binades(*formats: Format) -> range:
    """Returns the exponents k, from the least to the greatest, of the formats' positive values."""
    ends = [
        (math.frexp(f.min_subnormal)[1] - 1, math.frexp(f.max)[1])
        for f in formats
        if f.min_subnormal is not None
    ]
    return range(min(low for low, _ in ends), max(high for _, high in ends)) if ends else range(0)


def shared(one: Binade | None, other: Binade | None) -> int:
    """Returns the number of values that two formats share in a binade."""
    if one is None or other is None:
        return 0
    step = 2.0 ** max(one.spacing, other.spacing)
    return int((min(one.last, other.last) - one.first) / step) + 1


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

    def spacings(self) -> list[Spacing]:
        """Returns both formats' spacings of values, one `Spacing` for each range of binades.

        Ranges ascend. A range has successive binades with equal relative spacings of each format.
        """
        rows: list[Spacing] = []
        for k in binades(self.a, self.b):
            sides = binade(self.a, k), binade(self.b, k)
            relative = tuple(None if side is None else side.spacing - k for side in sides)
            counts = (*(0 if side is None else side.count for side in sides), shared(*sides))
            if rows and rows[-1].relative == relative:
                rows[-1].add(k, counts)
            else:
                rows.append(Spacing(k, k, relative, counts))
        return rows


@dataclass
class Spacing:
    """A row of the comparison: binades in which the relative spacing of both formats is constant.

    The row covers the binades [2^k, 2^(k+1)) for k from `first` to `last`.
    """

    first: int
    last: int
    relative: tuple[int | None, ...]
    """For each format, log2(d / 2^k): d is the distance between its values in [2^k, 2^(k+1)). None:
    the format has no values in these binades."""
    counts: tuple[int, ...]
    """Three counts of positive values: of the first format, of the second, and of both."""

    def add(self, k: int, counts: tuple[int, ...]) -> None:
        """Extends the range of binades to k, and adds the three counts of binade k to `counts`."""
        self.last = k
        self.counts = tuple(map(sum, zip(self.counts, counts, strict=True)))


def compare(console: Console, a: Format, b: Format) -> None:
    """Prints the comparison."""
    comparison = Comparison.of(a, b)
    console.print(_figures_table(a, b))
    console.print(_spacings_table(comparison))
    if a == b:
        console.print(f"both names are of the same format, {a}", soft_wrap=True)
        return
    console.print(f"{counted(comparison.common, 'value')} in both", soft_wrap=True)
    for sides in ((a, b), (b, a)):
        console.print(_only(*sides, comparison.common), soft_wrap=True)


def comparison_rows(a: Format, b: Format) -> dict[str, Any]:
    """Returns the comparison of two formats, for JSON.

    `values` lists the values that only one format has. `values` is None if there are more than
    2^16 such values. It is also None if such values exist and a format has more than 20 bits.
    """
    comparison = Comparison.of(a, b)
    return {
        "common": comparison.common,
        "only": [
            {
                "name": str(f),
                "count": (count := f.num_values - comparison.common),
                "values": _values_only(f, other, count) if count <= _MOST_IN_JSON else None,
            }
            for f, other in ((a, b), (b, a))
        ],
        "special": [{"name": str(f), **specials(f)} for f in (a, b)],
        "spacings": [
            {
                "first_exponent": run.first,
                "last_exponent": run.last,
                "relative": [
                    None if exponent is None else 2.0**exponent for exponent in run.relative
                ],
                "positive_values": list(run.counts[:2]),
                "in_both": run.counts[2],
            }
            for run in comparison.spacings()
        ],
    }


def specials(f: Format) -> dict[str, bool]:
    """Returns whether a format has each kind of special value, such as Inf, NaN and -0."""
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


def _spacings_table(comparison: Comparison) -> Table:
    a, b = comparison.a, comparison.b
    table = new_table("At", str(a), str(b), f"Values\n{a}", f"Values\n{b}", "In both")
    table.columns[0].no_wrap = True
    table.title = "Relative spacing at powers of two, and positive values from there to the next"
    for run in comparison.spacings():
        powers = f"2^{run.first}" + ("" if run.first == run.last else f" … 2^{run.last}")
        spacings = ["-" if exponent is None else f"2^{exponent}" for exponent in run.relative]
        table.add_row(powers, *spacings, *(str(count) for count in run.counts))
    return table


def _only(a: Format, b: Format, common: int) -> str:
    """Returns a text with the number of values that only `a` has.

    For narrow formats, it lists some values.
    """
    count = a.num_values - common
    if count == 0:
        return f"none in {a} alone"
    values = _values_only(a, b, count)
    if values is None:
        return f"{count} in {a} alone"
    parts = ["0"] if 0 in values else []
    if positive := _some([value for value in values if value > 0]):
        parts.append(f"±({positive})" if a.signed and b.signed else positive)
    if a.signed and not b.signed:
        parts.append("all that are negative")
    return f"{count} in {a} alone: {', '.join(parts)}"


def _values_only(a: Format, b: Format, count: int) -> list[float] | None:
    """Returns the `count` values that only `a` has, ascending.

    Returns None if `count` is above 0 and a format has more than 20 bits.
    """
    if max(a.bits, b.bits) > _LISTED_BITS:
        return None if count else []
    values: list[float] = np.setdiff1d(a.values(), b.values()).tolist()
    return values


def _some(values: list[float]) -> str:
    """Returns `values` as a text; of many values, only the first and the last ones."""
    if len(values) <= _LISTED:
        return ", ".join(map(exact, values))
    half = _LISTED // 2
    return ", ".join([*map(exact, values[:half]), "…", *map(exact, values[-half:])])
