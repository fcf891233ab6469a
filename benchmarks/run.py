# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks: `./dev bench [NAME]`. Checks the bits of each row, then times the row.
Prints tables, and writes out/bench.json and out/bench/<cpu>.json. Without a NAME, it measures the
main rows, in about nine minutes on two cores.

Exits 1 if bits are wrong. A row that misses its bar (the ratio that it must reach) is shown, but
does not change the exit status, because times depend on the machine. With --against, it measures
this tree and another revision alternately, and shows which rows are slower. With --compare, it
measures nothing: it shows two stored runs row by row, with the rows that lost most first. With
CPD_BACKEND=avx2 on a CPU with AVX-512, it also limits memcpy and sgemm to AVX2.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import all_reduce
import compare
import held
from selection import selection

ROOT = Path(__file__).resolve().parent.parent


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", default="", help="of all rows, those that contain this")
    parser.add_argument("--all", action="store_true", help="every row: more than an hour")
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="two runs: paths, or names of files in benchmarks/results",
    )
    parser.add_argument(
        "--against",
        metavar="REV",
        help="a git revision: builds it in build/against, and alternates both versions",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="of --against, at least 3 (default: 3)"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="with --against, also processor time of compiling libcpd's sources: minutes",
    )
    parser.add_argument(
        "--floats", type=int, help="of a cast (default: 64 Mi; with --against 16 Mi)"
    )
    parser.add_argument(
        "--values", type=int, default=all_reduce.VALUES, help="of an all-reduce (default: all)"
    )
    parser.add_argument(
        "--repeats", type=int, help="timings of each row (default: 9; with --against 15 a turn)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of data and drawn formats")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench.json")
    parser.add_argument("--programs", type=Path, default=None, help="folder of built benchmarks")
    parser.add_argument("--store", action="store_true", help="keep the rows in benchmarks/results")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        parser.error(f"--rounds must be at least 3, got {options.rounds}")
    if (options.compile or options.rounds != 3) and not options.against:
        parser.error("--rounds and --compile are options of --against")
    if options.against and (options.compare or options.store):
        parser.error("--against measures two versions: no --compare, no --store")
    if options.store and (options.floats is not None or options.values != all_reduce.VALUES):
        parser.error("--store keeps rows of full size: no --floats, no --values")
    if options.repeats is None:
        options.repeats = 15 if options.against else 9
    if options.floats is None:
        options.floats = (16 if options.against else 64) << 20
    options.selection = selection(options.name, options.all or bool(options.compare))
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    return options


def main() -> int:
    options = parse()
    if options.compare:
        return compare.show(*options.compare, wants=options.selection.wants)
    held.start_again_where_needed()
    if options.against:
        import against  # which loads rich

        return against.run(options)
    from measure import measure  # which loads NumPy and torch

    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
