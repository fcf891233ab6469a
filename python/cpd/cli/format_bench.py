# SPDX-License-Identifier: Apache-2.0
"""`cpd format` as a workbench.

It shows a value's neighbors, one operation with one rounding, and the formats of a standard.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cpd.cli.errors import UsageError
from cpd.cli.output import exact, new_table
from cpd.numeric.cast import Cast
from cpd.numeric.formats import Format, as_format
from cpd.ops import add, cast, div, encode, mul, sqrt

if TYPE_CHECKING:
    from rich.table import Table

STANDARDS = ("p3109", "ocp")
_OCP = (
    "e4m3fn",
    "e5m2",
    "e3m2",
    "e2m3",
    "e2m1",
    "e8m0",
    "mxfp8",
    "mxfp8-e5m2",
    "mxfp6-e3m2",
    "mxfp6-e2m3",
    "mxfp4",
    "mxint8",
)
_NUMBER = r"[-+]?(?:0x[0-9a-f]*\.?[0-9a-f]+(?:p[-+]?\d+)?|\d*\.?\d+(?:e[-+]?\d+)?|inf|nan)"


def names_of(standard: str) -> list[str]:
    """The formats of IEEE P3109's draft, 3 to 8 bits, or of OCP (FP8, MX)."""
    return list(_OCP) if standard == "ocp" else list(_p3109())


def _p3109() -> Iterator[str]:
    for bits in range(8, 2, -1):
        for precision in range(1, bits + 1):
            for kind in ("se", "sf", "ue", "uf"):
                name = f"binary{bits}p{precision}{kind}"
                try:
                    as_format(name)
                except ValueError:
                    continue  # of all these there are not
                yield name


def number(text: str) -> float:
    """A number: decimal, or hexadecimal as C writes it."""
    word = text.strip().lower()
    if not re.fullmatch(_NUMBER, word):
        raise UsageError(f"{text!r} is no number, such as 0.3, -1e-4, 0x1.8p-3 or inf")
    return float.fromhex(word) if "0x" in word else float(word)


# ---- neighbours ----------------------------------------------------------------------------------


class Neighbours(NamedTuple):
    """The values that a format holds at and next to a value; NaN if it holds nothing there."""

    below: float
    nearest: float
    above: float
    ulp: float
    """From the neighbour below (of a value that is held: from itself) to the one above."""

    @classmethod
    def of(cls, value: float, f: Format) -> Neighbours:
        """Returns the neighbors of a value in a format."""
        nearest = _cast(value, f, "nearest_even")
        held = nearest == value
        below = _cast(math.nextafter(value, -math.inf) if held else value, f, "down")
        above = _cast(math.nextafter(value, math.inf) if held else value, f, "up")
        below = below if below <= value else math.nan
        above = above if above >= value else math.nan
        return cls(below, nearest, above, above - (nearest if held else below))


def _cast(value: float, f: Format, rounding: str) -> float:
    return float(cast(np.array([value]), Cast(f, rounding=rounding))[0])


def neighbours_table(value: float, formats: list[Format]) -> Table:
    """Returns a table of a value's neighbors in each format."""
    table = new_table("Format", "Below", "Nearest", "Above", "Ulp", "Error", "Code")
    for f in formats:
        found = Neighbours.of(value, f)
        error = found.nearest - value
        shown = (found.below, found.nearest, found.above, found.ulp)
        cells = ["none" if math.isnan(x) else exact(x) for x in shown]
        table.add_row(str(f), *cells, f"{error:.3g}", _code(found.nearest, f))
    return table


def neighbours_row(value: float, f: Format) -> dict[str, Any]:
    """For JSON."""
    found = Neighbours.of(value, f)._asdict()
    return {"name": str(f), **{key: _plain(x) for key, x in found.items()}, "value": _plain(value)}


def _code(value: float, f: Format) -> str:
    """The value's code in hexadecimal, where it has one."""
    try:
        packed = encode(np.array([value]), f)
    except ValueError:
        return "-"
    return f"{int.from_bytes(packed.tobytes(), 'little'):0{-(-f.bits // 4)}x}"


# ---- one operation -------------------------------------------------------------------------------


class Operation(NamedTuple):
    """Numbers and the operation on them.

    `exact` computes it on rational operands; None if the result is not rational or infinite.
    """

    sign: str
    operands: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Operation:
        """`7/3`, `0.1 + 0.2`, `3*5`, `1 - 1e-3`, `sqrt(2)`."""
        word = text.strip().lower()
        root = re.fullmatch(rf"sqrt\s*\(\s*({_NUMBER})\s*\)", word)
        if root:
            return cls("sqrt", (number(root[1]),))
        pair = re.fullmatch(rf"({_NUMBER})\s*([-+*/])\s*({_NUMBER})", word)
        if not pair:
            raise UsageError(
                f"{text!r} is no operation on one or two numbers, such as 7/3, 0.1 + 0.2 or sqrt(2)"
            )
        return cls(pair[2], (number(pair[1]), number(pair[3])))

    def result(self, f: Format, rounding: str) -> tuple[list[float], float]:
        """The operands as the format holds them, and their exact result rounded once."""
        held = [_cast(x, f, "nearest_even") for x in self.operands]
        arrays = [np.array([x]) for x in held]
        operations: dict[str, Any] = {"+": add, "-": add, "*": mul, "/": div, "sqrt": sqrt}
        if self.sign == "-":
            arrays[1] = -arrays[1]
        return held, float(operations[self.sign](*arrays, f, rounding)[0])

    def exactly(self, operands: list[float]) -> Fraction | float | None:
        """The result without rounding: a fraction, or a root to binary64."""
        if not all(map(math.isfinite, operands)):
            return None
        if self.sign == "sqrt":
            return math.sqrt(operands[0]) if operands[0] >= 0 else None
        x, y = map(Fraction, operands)
        if self.sign == "/":
            return x / y if y else None
        return {"+": x + y, "-": x - y, "*": x * y}[self.sign]

    def shown(self, operands: list[float]) -> str:
        """Returns the operation as text."""
        words = [exact(x) for x in operands]
        return f"sqrt({words[0]})" if self.sign == "sqrt" else f" {self.sign} ".join(words)


def calculation_table(operation: Operation, formats: list[Format], rounding: str) -> Table:
    """Returns a table of the operation's result in each format."""
    table = new_table("Format", "Operands held", "Exact", "Result", "Error in ulps", "Code")
    for f in formats:
        held, result = operation.result(f, rounding)
        value = operation.exactly(held)
        table.add_row(
            str(f),
            operation.shown(held),
            "-" if value is None else _fraction(value),
            exact(result),
            "-" if value is None else _ulps(result, value, f),
            _code(result, f),
        )
    return table


def calculation_row(operation: Operation, f: Format, rounding: str) -> dict[str, Any]:
    """For JSON."""
    held, result = operation.result(f, rounding)
    value = operation.exactly(held)
    return {
        "name": str(f),
        "operation": operation.shown(held),
        "exact": None if value is None else str(value),
        "result": _plain(result),
        "rounding": rounding,
    }


def _fraction(value: Fraction | float) -> str:
    if isinstance(value, float) or value.denominator & (value.denominator - 1) == 0:
        return exact(float(value))
    return f"{value} = {float(value):.7g}" if len(str(value)) < 16 else f"{float(value):.9g}"


def _ulps(result: float, value: Fraction | float, f: Format) -> str:
    """The error over the distance of the format's values there."""
    if not math.isfinite(result):
        return "-"
    ulp = Neighbours.of(float(value), f).ulp
    if not (math.isfinite(ulp) and ulp > 0):
        return "-"
    return f"{float(Fraction(result) - Fraction(value)) / ulp:.3g}"


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
