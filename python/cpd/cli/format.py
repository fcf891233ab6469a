# SPDX-License-Identifier: Apache-2.0
"""Prints formats and scaled formats for `cpd show`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd.cli import options as opt
from cpd.cli.compare import compare, comparison_rows
from cpd.cli.errors import UsageError
from cpd.cli.format_bench import neighbors_row, neighbors_table, number
from cpd.cli.output import exact, new_console, new_table, short
from cpd.cli.scaled import describe_scaled, notes, scaled_table
from cpd.numeric.formats import Format
from cpd.numeric.scaled import Scaled
from cpd.ops import decode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LISTED_BITS = 8
"""The largest number of bits of a format for which `--values` lists the values."""
_FIGURES = (
    *("exp", "man", "bias", "encoding", "signed", "subnormals", "bits", "max", "min_normal"),
    *("min_subnormal", "epsilon", "num_values"),
)
"""The names of the attributes of a format that are written to the JSON output."""
_SIDE_BY_SIDE = 4
"""The columns of the table of scaled formats."""


@dataclass
class FormatOptions:
    """Options that select the properties of formats to show."""

    values: bool = opt.option(
        f"list every code and its value, for formats of up to {LISTED_BITS} bits and the elements "
        "of scaled formats",
        False,
    )
    compare: list[str] | None = opt.option(
        "compare two formats: properties, spacing, and the values that only one of them has",
        type=str,
        nargs=2,
        metavar=("A", "B"),
    )
    neighbors: str | None = opt.option(
        "show the formats' values next to a number, such as 0.3 or 0x1.8p-3; write a negative "
        "number as --neighbors=-1",
        metavar="VALUE",
    )
    picture: Path | None = opt.plot_file("number lines and the spacing of values of the formats")


def describe(options: FormatOptions, found: Sequence[Format | Scaled]) -> Any:
    """Returns the formats' data for JSON: a list with an object for each format.

    With --compare, returns one object, which has this list and the comparison.
    """
    formats = [f for f in found if isinstance(f, Format)]
    if options.neighbors is not None:
        return [neighbors_row(number(options.neighbors), f) for f in formats]
    rows = [_describe(f, options.values) for f in found]
    if options.compare is not None:
        return {"formats": rows, **comparison_rows(*formats)}
    return rows


def print_formats(
    options: FormatOptions, found: Sequence[Format | Scaled], whole_names: bool
) -> None:
    """Prints tables of the formats, and the additional data that the options select.

    If `whole_names` is true, names of formats are not broken in a narrow window.
    """
    formats = [f for f in found if isinstance(f, Format)]
    scaled = [f for f in found if isinstance(f, Scaled)]
    console = new_console()
    if options.compare is not None:
        compare(console, *formats)
    elif options.neighbors is not None:
        console.print(neighbors_table(number(options.neighbors), formats))
    elif formats:
        console.print(_format_table(formats, whole_names))
    for begin in range(0, len(scaled), _SIDE_BY_SIDE):
        console.print(scaled_table(scaled[begin : begin + _SIDE_BY_SIDE]))
    for note in notes(scaled) if scaled else ():
        console.print(note)
    if options.values:
        for f in found:
            _print_values(console, f.element if isinstance(f, Scaled) else f)


def check_formats(options: FormatOptions, found: Sequence[Format | Scaled]) -> None:
    """Raises UsageError for options that do not apply to all of the formats."""
    for f in found:
        wire = f.element if isinstance(f, Scaled) else f
        if options.values and wire.bits > LISTED_BITS:
            raise UsageError(
                f"--values lists formats of up to {LISTED_BITS} bits, {wire} has {wire.bits}"
            )
        for name in ("compare", "picture", "neighbors"):
            if getattr(options, name) is not None and isinstance(f, Scaled):
                raise UsageError(f"--{name} takes formats without scales, got {f}")


def _describe(f: Format | Scaled, values: bool) -> dict[str, Any]:
    if isinstance(f, Scaled):
        of_elements = {"elements": _describe(f.element, values)} if values else {}
        return {**describe_scaled(f), **of_elements}
    return _describe_format(f, values)


def _describe_format(wire: Format, values: bool) -> dict[str, Any]:
    described = {"name": str(wire), **{name: getattr(wire, name) for name in _FIGURES}}
    if values:
        described["values"] = [
            {"code": code, "value": value if math.isfinite(value) else str(value)}
            for code, value in enumerate(_code_values(wire))
        ]
    return described


def _format_table(formats: list[Format], whole_names: bool) -> Table:
    table = new_table(
        "Format", "Bits", "e,m,bias", "Max", "Min\nnormal", "Min\nsubn.", "Eps", "Values"
    )
    table.columns[0].no_wrap = whole_names
    for wire in formats:
        table.add_row(
            str(wire),
            str(wire.bits),
            f"{wire.exp},{wire.man},{wire.bias}",
            short(wire.max),
            short(wire.min_normal),
            "none" if wire.min_subnormal == wire.min_normal else short(wire.min_subnormal),
            short(wire.epsilon),
            f"{wire.num_values}",
        )
    return table


def _print_values(console: Console, wire: Format) -> None:
    digits = -(-wire.bits // 4)
    cells = [f"{code:0{digits}x}  {exact(value)}" for code, value in enumerate(_code_values(wire))]
    console.print(f"{wire}: codes (hexadecimal) and values")
    from rich.columns import Columns

    console.print(Columns(cells, equal=True, column_first=True, padding=(0, 3)))


def _code_values(wire: Format) -> list[float]:
    """Returns the value of every code, in ascending order of the codes."""
    codes = np.arange(2**wire.bits, dtype=np.uint8)
    return [float(decode(codes[i : i + 1], wire, (1,))[0]) for i in range(len(codes))]
