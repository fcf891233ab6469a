# SPDX-License-Identifier: Apache-2.0
"""`cpd format`: what numbers a format holds."""

import argparse
import json
import math
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from cpd.cli.compare import compare, comparison_rows
from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.options import Commands, add_command
from cpd.cli.output import exact, new_console, new_table, short
from cpd.cli.scaled import describe_scaled, find_format, notes, scaled_table
from cpd.numeric.formats import Format
from cpd.numeric.scaled import Scaled
from cpd.ops import decode

LISTED_BITS = 8
"""The widest format whose values `--values` lists."""
_COMMON = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1", "e8m0")


def register(commands: Commands) -> None:
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
        "--json", nargs="?", const="-", metavar="-", help="print JSON instead of tables"
    )


def _run(options: argparse.Namespace) -> int:
    names = options.names
    if options.json not in (None, "-"):
        names = [options.json, *names]  # `--json e4m3`: it stands before the names
    if options.compare is not None and names:
        raise UsageError(f"--compare takes two formats and no more, got {' '.join(names)} too")
    with users_mistakes():
        found = [find_format(name) for name in options.compare or names or _COMMON]
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
    if options.json:
        rows: Any = [_describe(f, options.values) for f in found]
        if options.compare is not None:
            rows = {"formats": rows, **comparison_rows(*formats)}
        print(json.dumps(rows, indent=2, allow_nan=False))
        return 0
    console = new_console()
    if options.compare is not None:
        compare(console, *formats)
    elif formats:
        console.print(_format_table(formats))
    if scaled:
        console.print(scaled_table(scaled))
        for note in notes(scaled):
            console.print(note)
    if options.values:
        for wire in listed:
            _print_values(console, wire)
    return 0


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


def _format_table(formats: list[Format]) -> Table:
    table = new_table(
        "Format", "Bits", "e,m,bias", "Max", "Min\nnormal", "Min\nsubn.", "Eps", "Values"
    )
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
    console.print(Columns(cells, equal=True, column_first=True, padding=(0, 3)))


def _code_values(wire: Format) -> list[float]:
    """The value of every code, ascending by code."""
    codes = np.arange(2**wire.bits, dtype=np.uint8)
    return [float(decode(codes[i : i + 1], wire, (1,))[0]) for i in range(len(codes))]
