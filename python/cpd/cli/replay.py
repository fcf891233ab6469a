# SPDX-License-Identifier: Apache-2.0
"""`cpd replay`: a unit's published dot products through an accumulator."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli.errors import users_mistakes
from cpd.cli.options import Commands, accumulator_argument, add_command, json_argument
from cpd.cli.output import check_writable, is_stdout, new_console, new_table

if TYPE_CHECKING:
    from cpd.hardware.replaying import Replay

_TEXT = """\
Runs the dot products of a file again and compares the results bit by bit: those of
a matrix unit (.npz with arrays E4M3_a, E4M3_b, E4M3_c, E4M3_d_fp32, … of binary32
patterns), or of `cpd vectors` (.csv, .jsonl; operations dot and block_fma).

The accumulator is the preset that the file's name is of (H100.npz, Ada-fp8.npz), or
what the file's head says; --accumulator names another one. Exit status 1
where a result differs. --mutations counts what changed rules give: one fraction bit more or less,
twice or half the block, the other rounding. A count of 0 there says that the file
does not tell the two rules apart.
"""


def register(commands: Commands) -> None:
    """Adds the command `replay`."""
    parser = add_command(
        commands, "replay", _run, "a unit's published dot products through an accumulator", _TEXT
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of dot products")
    accumulator_argument(parser, "the accumulator of the products", without="the file's own")
    parser.add_argument(
        "--operands",
        metavar="FORMAT",
        help="only dot products of these operands, as E4M3; default: all",
    )
    parser.add_argument(
        "--result",
        metavar="FORMAT",
        help="only dot products with these results, as fp16; default: all",
    )
    parser.add_argument("--no-c", action="store_true", help="the results hold no addends")
    parser.add_argument("--mutations", action="store_true", help="count what changed rules give")
    json_argument(parser)


def _run(options: argparse.Namespace) -> int:
    from cpd._files import write_json
    from cpd.hardware.replaying import replay

    check_writable(options.json)
    with users_mistakes():
        found = replay(
            options.file,
            options.accumulator,
            operands=options.operands,
            result=options.result,
            adds_c=False if options.no_c else None,
            mutations=options.mutations,
        )
    if options.json is not None:
        write_json(options.json, [_describe(one) for one in found])
    if options.json is None or not is_stdout(options.json):
        _show(found)
    return 0 if all(one.matches == one.total for one in found) else 1


def _describe(one: "Replay") -> dict[str, Any]:
    return {
        "name": one.name,
        "accumulator": str(one.accumulator),
        "adds_c": one.adds_c,
        "matches": one.matches,
        "total": one.total,
        "first": [
            {"number": number, "published": published.hex(), "result": result.hex()}
            for number, published, result in one.first
        ],
        "mutations": one.mutations,
    }


def _show(found: "list[Replay]") -> None:
    console = new_console()
    table = new_table("Dot products", "Match", "Of", "Accumulator")
    table.columns[0].no_wrap = True
    table.columns[3].justify = "left"
    for one in found:
        name = one.name if one.adds_c else f"{one.name}, without c"
        table.add_row(name, str(one.matches), str(one.total), str(one.accumulator))
    console.print(table)
    for one in found:
        for number, published, result in one.first:
            console.print(
                f"{one.name}, number {number}: published {published.hex()}, "
                f"the accumulator gives {result.hex()}",
                soft_wrap=True,
            )
        if one.mutations:
            counts = ", ".join(f"{name} {count}" for name, count in one.mutations.items())
            console.print(f"{one.name}, of {one.total} differ: {counts}", soft_wrap=True)
