# SPDX-License-Identifier: Apache-2.0
"""Finds the neighbors of a number in formats, and the formats of a standard, for `cpd show`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cpd.cli.errors import UsageError
from cpd.cli.output import exact, new_table
from cpd.numeric.cast import Cast
from cpd.numeric.formats import Format, as_format
from cpd.ops import cast, encode

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
    """Returns the formats of a standard: IEEE P3109 (3 to 8 bits), or OCP (FP8 and MX)."""
    return list(_OCP) if standard == "ocp" else list(_p3109())


def _p3109() -> Iterator[str]:
    for bits in range(8, 2, -1):
        for precision in range(1, bits + 1):
            for kind in ("se", "sf", "ue", "uf"):
                name = f"binary{bits}p{precision}{kind}"
                try:
                    as_format(name)
                except ValueError:
                    continue  # this combination does not exist
                yield name


def number(text: str) -> float:
    """Reads a number, decimal or hexadecimal as in C, such as 0x1.8p-3."""
    word = text.strip().lower()
    if not re.fullmatch(_NUMBER, word):
        raise UsageError(
            f"--neighbors must be a number such as 0.3, -1e-4, 0x1.8p-3 or inf, got {text!r}"
        )
    return float.fromhex(word) if "0x" in word else float(word)


class Neighbors(NamedTuple):
    """The value of a format nearest to a number, the next value below, and the next above.

    `below` is NaN if no value of the format is below the number. `above` is NaN if no value of the
    format is above the number.
    """

    below: float
    nearest: float
    above: float
    ulp: float
    """The distance from the neighbor below to the neighbor above. If the number itself is a value
    of the format, the distance is from the number to the neighbor above."""

    @classmethod
    def of(cls, value: float, f: Format) -> Neighbors:
        """Returns the neighbors of the number `value` in a format."""
        nearest = _cast(value, f, "nearest_even")
        held = nearest == value
        below = _cast(math.nextafter(value, -math.inf) if held else value, f, "down")
        above = _cast(math.nextafter(value, math.inf) if held else value, f, "up")
        below = below if below <= value else math.nan
        above = above if above >= value else math.nan
        return cls(below, nearest, above, above - (nearest if held else below))


def _cast(value: float, f: Format, rounding: str) -> float:
    return float(cast(np.array([value]), Cast(f, rounding=rounding))[0])


def neighbors_table(value: float, formats: list[Format]) -> Table:
    """Returns a table of the neighbors of the number `value` in each format."""
    table = new_table("Format", "Below", "Nearest", "Above", "Ulp", "Error", "Code")
    for f in formats:
        neighbors = Neighbors.of(value, f)
        error = neighbors.nearest - value
        shown = (neighbors.below, neighbors.nearest, neighbors.above, neighbors.ulp)
        cells = ["none" if math.isnan(x) else exact(x) for x in shown]
        table.add_row(str(f), *cells, f"{error:.3g}", _code(neighbors.nearest, f))
    return table


def neighbors_row(value: float, f: Format) -> dict[str, Any]:
    """For JSON."""
    neighbors = Neighbors.of(value, f)._asdict()
    return {
        "name": str(f),
        **{key: _plain(x) for key, x in neighbors.items()},
        "value": _plain(value),
    }


def _code(value: float, f: Format) -> str:
    """Returns the code of a value in hexadecimal, or "" if the value has no code."""
    try:
        packed = encode(np.array([value]), f)
    except ValueError:
        return "-"
    return f"{int.from_bytes(packed.tobytes(), 'little'):0{-(-f.bits // 4)}x}"


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
