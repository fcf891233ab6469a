# SPDX-License-Identifier: Apache-2.0
"""`cpd replay`: compares a matrix unit's recorded dot products with an accumulator's."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli import options as opt
from cpd.cli.errors import users_mistakes
from cpd.cli.output import check_writable, json_written, new_console, new_table

if TYPE_CHECKING:
    from cpd.hardware.replaying import Replay


def register(commands: opt.Commands) -> None:
    """Adds the command `replay`."""
    opt.command(commands, "replay", _run, Options)


@dataclass
class Options:
    """Compare a unit's recorded dot products with an accumulator's.

    Computes the dot products of a file again and compares the results bit by bit. The file has
    results of a matrix unit (.npz with arrays E4M3_a, E4M3_b, E4M3_c, E4M3_d_fp32, … of binary32
    patterns) or was written by `cpd vectors` (.csv, .jsonl; operations dot and block_fma). The exit
    status is 1 if a result differs.

    The accumulator is the matrix unit that the file is named after (H100.npz, Ada-fp8.npz) or that
    the file's first line names, unless --accumulator is given.

    --mutations changes the rule: one fraction bit more or less, twice or half the block, the other
    rounding. It counts the results that each change alters. If the count is 0, the file does not
    distinguish the changed rule from the original one.
    """

    file: Path = opt.argument("a file of dot products")
    accumulator: str | None = opt.accumulator(
        "the accumulator to compute with", absent="the one that the file names"
    )
    operands: str | None = opt.option(
        "only dot products with operands in this format, such as E4M3",
        absent="all",
        metavar="FORMAT",
    )
    result: str | None = opt.option(
        "only dot products with results in this format, such as fp16",
        absent="all",
        metavar="FORMAT",
    )
    no_c: bool = opt.option("the recorded results do not include the addends c", False)
    mutations: bool = opt.option(
        "also count the results that change if the accumulator's rule is changed", False
    )
    json: Path | None = opt.json_file()


def _run(options: Options) -> int:
    from cpd.hardware.replaying import replay

    check_writable(options.json)
    with users_mistakes():
        replays = replay(
            options.file,
            options.accumulator,
            operands=options.operands,
            result=options.result,
            adds_c=False if options.no_c else None,
            mutations=options.mutations,
        )
    if not json_written(options.json, lambda: [_describe(replayed) for replayed in replays]):
        _show(replays)
    return 0 if all(replayed.matches == replayed.total for replayed in replays) else 1


def _describe(replayed: "Replay") -> dict[str, Any]:
    return {
        "name": replayed.name,
        "accumulator": str(replayed.accumulator),
        "adds_c": replayed.adds_c,
        "matches": replayed.matches,
        "total": replayed.total,
        "first": [
            {"number": number, "published": published.hex(), "result": result.hex()}
            for number, published, result in replayed.first
        ],
        "mutations": replayed.mutations,
    }


def _show(replays: "list[Replay]") -> None:
    console = new_console()
    table = new_table("Dot products", "Match", "Of", "Accumulator")
    table.columns[0].no_wrap = True
    table.columns[3].justify = "left"
    for replayed in replays:
        name = replayed.name if replayed.adds_c else f"{replayed.name}, without c"
        table.add_row(name, str(replayed.matches), str(replayed.total), str(replayed.accumulator))
    console.print(table)
    for replayed in replays:
        for number, published, result in replayed.first:
            console.print(
                f"{replayed.name}, number {number}: published {published.hex()}, "
                f"the accumulator gives {result.hex()}",
                soft_wrap=True,
            )
        if replayed.mutations:
            counts = ", ".join(f"{name} {count}" for name, count in replayed.mutations.items())
            console.print(f"{replayed.name}, of {replayed.total} differ: {counts}", soft_wrap=True)
