# SPDX-License-Identifier: Apache-2.0
"""`cpd format`: what numbers a format holds."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cpd.cli.compare import compare, comparison_rows
from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.format_bench import (
    STANDARDS,
    Operation,
    calculation_row,
    calculation_table,
    names_of,
    neighbours_row,
    neighbours_table,
    number,
)
from cpd.cli.options import Commands, add_command
from cpd.cli.output import check_writable, exact, new_console, new_table, short
from cpd.cli.scaled import describe_scaled, find_format, notes, scaled_table
from cpd.numeric.formats import Format
from cpd.numeric.scaled import Scaled
from cpd.ops import decode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LISTED_BITS = 8
"""The widest format whose values `--values` lists."""
_SIDE_BY_SIDE = 4
"""Scaled formats in a table."""
COMMON = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1", "e8m0")


def register(commands: Commands) -> None:
    """Adds the command `format`."""
    parser = add_command(commands, "format", _run, "what numbers a format holds")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="e4m3, (4,3), e4m3fn, float8_e5m2, e5m2fnuz, e6m9:bias=40, bf16, binary8p4se …; "
        "scaled ones: mxfp8, nvfp4, fp8-block, 'int8 row', 'e4m3fn 1x128' …; default: common ones",
    )
    parser.add_argument(
        "--values",
        action="store_true",
        help=f"list every code and its value (formats of up to {LISTED_BITS} bits; of a scaled one "
        "its elements')",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="two formats side by side: figures, spacing, and the values that one alone has",
    )
    parser.add_argument(
        "--tables",
        choices=STANDARDS,
        help="the formats of a standard: IEEE P3109's of 3 to 8 bits, or OCP's FP8 and MX",
    )
    parser.add_argument(
        "--neighbours",
        metavar="VALUE",
        help="what each format holds beside a number: 0.3, 0x1.8p-3; --neighbours=-1 if negative",
    )
    parser.add_argument(
        "--calc",
        metavar="EXPR",
        help="one operation, 7/3, 0.1 + 0.2, 3*5 or 'sqrt(2)': operands are rounded to the format, "
        "and their exact result once",
    )
    parser.add_argument(
        "--rounding", default="nearest_even", metavar="MODE", help="of --calc; default nearest_even"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="number lines and the distances of values, as .png or .svg",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="-", help="print JSON instead of tables"
    )


def _run(options: argparse.Namespace) -> int:
    names = options.names
    if options.json not in (None, "-"):
        names = [options.json, *names]  # `--json e4m3`: it precedes the names
    if options.compare is not None and names:
        raise UsageError(f"--compare takes two formats and no more, got {' '.join(names)} too")
    if options.compare is not None and options.tables is not None:
        raise UsageError("--compare takes two formats and no table")
    if options.tables is not None:
        names = [*names, *names_of(options.tables)]
    with users_mistakes():
        found = [find_format(name) for name in options.compare or names or COMMON]
    listed = [f.element if isinstance(f, Scaled) else f for f in found]
    if options.values:
        for wire in listed:
            if wire.bits > LISTED_BITS:
                raise UsageError(
                    f"--values lists formats of up to {LISTED_BITS} bits, {wire} has {wire.bits}"
                )
    scaled = [f for f in found if isinstance(f, Scaled)]
    formats = [f for f in found if isinstance(f, Format)]
    if options.compare is not None and scaled:
        raise UsageError(f"--compare takes formats without scales, got {scaled[0]}")
    worked = _worked(options, formats, scaled)
    if options.json and worked:
        print(json.dumps([row(f) for row, _ in worked for f in formats], indent=2, allow_nan=False))
        return 0
    if options.json:
        rows: Any = [_describe(f, options.values) for f in found]
        if options.compare is not None:
            rows = {"formats": rows, **comparison_rows(*formats)}
        print(json.dumps(rows, indent=2, allow_nan=False))
        return 0
    console = new_console()
    if options.compare is not None:
        compare(console, *formats)
    elif worked:
        for _, table in worked:
            console.print(table(formats))
    elif formats:
        console.print(_format_table(formats, whole_names=options.tables is not None))
    if scaled:
        for begin in range(0, len(scaled), _SIDE_BY_SIDE):
            console.print(scaled_table(scaled[begin : begin + _SIDE_BY_SIDE]))
        for note in notes(scaled):
            console.print(note)
    if options.values:
        for wire in listed:
            _print_values(console, wire)
    return 0


_Worked: TypeAlias = (
    "list[tuple[Callable[[Format], dict[str, Any]], Callable[[list[Format]], Table]]]"
)


def _worked(options: argparse.Namespace, formats: list[Format], scaled: list[Scaled]) -> _Worked:
    """Draws the picture; returns what --neighbours and --calc print, as a row and as a table."""
    asked = {
        name: getattr(options, name)
        for name in ("picture", "neighbours", "calc")
        if getattr(options, name) is not None
    }
    if asked and scaled:
        raise UsageError(f"--{next(iter(asked))} takes formats without scales, got {scaled[0]}")
    if "picture" in asked:
        from cpd.cli.format_picture import draw

        check_writable(options.picture)
        with users_mistakes():
            draw(options.picture, formats)
    worked: _Worked = []
    if "neighbours" in asked:
        value = number(options.neighbours)
        worked.append((partial(neighbours_row, value), partial(neighbours_table, value)))
    if "calc" in asked:
        operation = Operation.parse(options.calc)
        with users_mistakes():
            for f in formats:
                operation.result(f, options.rounding)
        worked.append(
            (
                lambda f: calculation_row(operation, f, options.rounding),
                lambda some: calculation_table(operation, some, options.rounding),
            )
        )
    return worked


def _describe(f: Format | Scaled, values: bool) -> dict[str, Any]:
    if isinstance(f, Scaled):
        of_elements = {"elements": _describe(f.element, values)} if values else {}
        return {**describe_scaled(f), **of_elements}
    return _describe_format(f, values)


def _describe_format(wire: Format, values: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": str(wire),
        "exp": wire.exp,
        "man": wire.man,
        "bias": wire.bias,
        "encoding": wire.encoding,
        "signed": wire.signed,
        "subnormals": wire.subnormals,
        "bits": wire.bits,
        "max": wire.max,
        "min_normal": wire.min_normal,
        "min_subnormal": wire.min_subnormal,
        "epsilon": wire.epsilon,
        "num_values": wire.num_values,
    }
    if values:
        described["values"] = [
            {"code": code, "value": value if math.isfinite(value) else str(value)}
            for code, value in enumerate(_code_values(wire))
        ]
    return described


def _format_table(formats: list[Format], whole_names: bool = False) -> Table:
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
            short(wire.min_subnormal) if wire.subnormals else "none",
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
    """The value of every code, ascending by code."""
    codes = np.arange(2**wire.bits, dtype=np.uint8)
    return [float(decode(codes[i : i + 1], wire, (1,))[0]) for i in range(len(codes))]
