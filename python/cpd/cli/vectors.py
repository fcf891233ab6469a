# SPDX-License-Identifier: Apache-2.0
"""`cpd vectors`: vectors for hardware, and checks of others'."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd import _core
from cpd._files import STDOUT
from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.options import Commands, add_command
from cpd.cli.output import counted, new_console, new_progress

if TYPE_CHECKING:
    from cpd.hardware.testbench import Ports
    from cpd.hardware.vectors import Check, Vectors

_TEXT = """\
Vectors for hardware: inputs, results and exception flags of one operation, each
computed by the slow exact oracle and by the kernels, which must agree before a
line is written. Printed is what the lines are cases of.

  cpd vectors mul e4m3fn --exhaustive
  cpd vectors cast fp32,e4m3fn --rounding stochastic --random-bits 8 --as csv
  cpd vectors fma bf16 --directed --random 100000 --as readmemh -o fma.hex
  cpd vectors block_fma --acc h100-fp16 --random 5000 --as jsonl -o -
  cpd vectors dot int8 --acc int32 --length 16 --testbench bench --module mac --rtl mac.sv
  cpd vectors --check e4m3fn_mul_rne.tv

Operations: cast, add, mul, fma, div, sqrt; of sums dot (an element of a matrix product),
sum (of terms), block_fma (dot by a matrix unit) and mma (by one that takes
scales), each with the signals inside, unless the unit does not align every term.
FORMAT: of the operands, one for all or one each; of a cast the operand's and the
result's, or the result's alone (from fp32); of a unit by default its own.

Kinds: testfloat (`a b result flags`, flags NX 1, UF 2, OF 4, DZ 8, NV 16),
readmemh (a word a line, first field on top, with a SystemVerilog package), csv,
jsonl (a head, then an object a line). All numbers are hexadecimal; of a field of
several elements the first stands lowest. Comments begin with # (readmemh: //).
"""


def register(commands: Commands) -> None:
    parser = add_command(commands, "vectors", _run, "vectors for hardware", _TEXT)
    parser.add_argument("operation", nargs="?", metavar="OPERATION")
    parser.add_argument("formats", nargs="?", metavar="FORMAT[,FORMAT…]")
    parser.add_argument("--out-format", metavar="FORMAT", help="of the result")
    parser.add_argument("--rounding", default="nearest_even", metavar="MODE")
    parser.add_argument("--overflow", default="ieee", choices=_core.OVERFLOWS)
    parser.add_argument(
        "--random-bits", type=int, default=24, metavar="N", help="of stochastic rounding"
    )
    parser.add_argument("--variant", default="A", choices=("A", "B", "C"))
    parser.add_argument("--tininess", default="after", choices=("after", "before"), help="of UF")
    parser.add_argument(
        "--nan-signals",
        action="store_true",
        help="NaN operands raise NV also in formats whose NaN are neither quiet nor signalling",
    )
    parser.add_argument("--acc", metavar="TEXT", help="of sums: a preset, or as 'e6m9 kahan'")
    parser.add_argument("--length", type=int, metavar="K", help="of sums: products or terms")
    group = parser.add_argument_group(
        "which lines", "default: all up to 2^20, else directed and 10,000 random ones"
    )
    group.add_argument("--exhaustive", action="store_true", help="all there are")
    group.add_argument("--directed", action="store_true", help="those near corners")
    group.add_argument("--random", type=int, default=0, metavar="N", help="so many random ones")
    group.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    group = parser.add_argument_group("files")
    group.add_argument(
        "--as",
        dest="kind",
        choices=("testfloat", "readmemh", "csv", "jsonl"),
        help="the kind of file; default by the suffix of FILE, else testfloat",
    )
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="a file, which is overwritten, a folder, or - for standard output; default a name "
        "such as e4m3fn_mul_rne.tv in the current folder",
    )
    group.add_argument(
        "--testbench",
        type=Path,
        metavar="DIR",
        help="a folder for the vectors, a self-checking SystemVerilog test bench and a Makefile",
    )
    group.add_argument(
        "--module",
        metavar="NAME",
        help="of the test bench: your module, whose ports are the fields of a line; without it the "
        "operation's module in tests/rtl",
    )
    group.add_argument(
        "--rtl",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="of the test bench: a source under test; may be given several times",
    )
    group.add_argument("--clock", metavar="PORT", help="of the module: it takes a line each cycle")
    group.add_argument("--latency", type=int, default=1, metavar="N", help="in cycles; default 1")
    group.add_argument("--valid-in", metavar="PORT", help="1 with each line")
    group.add_argument("--valid-out", metavar="PORT", help="1 with each result, in their order")
    group.add_argument(
        "--signals", metavar="NAMES", help="signals inside that are ports too, or all; default none"
    )
    group.add_argument("--no-flags", dest="flags", action="store_false", help="no port of flags")
    group.add_argument("--any-nan", action="store_true", help="any NaN passes for any other")
    group.add_argument("--check", type=Path, metavar="FILE", help="compare a file's lines instead")


def _run(options: argparse.Namespace) -> int:
    if options.check is not None:
        return _check(options)
    if options.operation is None:
        raise UsageError("say which operation, such as mul, or --check FILE")
    with users_mistakes():
        vectors = _made(options)
    with _disagreement_told(), users_mistakes(), _progress(vectors, options):
        path = _written(vectors, options)
    to_stdout = path == STDOUT
    console = new_console(stderr=to_stdout)
    name = vectors.rule.stem if to_stdout else str(path)
    console.print(f"{name}: {counted(vectors.count, 'line')}, {vectors.source}", soft_wrap=True)
    if vectors.left_out:
        console.print(
            f"{counted(vectors.left_out, 'line')} left out: their NaN has no code in "
            f"{vectors.rule.result}"
        )
    console.print(_cases(vectors.coverage), soft_wrap=True)
    return 0


@contextmanager
def _progress(vectors: Vectors, options: argparse.Namespace) -> Iterator[None]:
    """Prints lines and bytes first, then a bar, on standard error."""
    bench = options.testbench is not None
    kind = "readmemh" if bench else _kind(options)
    lines, size = vectors.size(kind)
    if not (options.exhaustive or options.random):
        yield
        return
    directed = " and the directed ones" if vectors.planned is None else ""
    new_console(stderr=True).print(f"{lines:,} lines, {size / 1e9:,.3f} GB{directed}")
    with new_progress(unit="lines") as bars:
        task = bars.add_task(vectors.rule.stem, total=vectors.planned, note="")
        vectors.on_batch = lambda done: bars.update(task, completed=done)
        yield


def _kind(options: argparse.Namespace) -> str:
    from cpd.hardware.vectors.lines import kind_of

    path = options.output
    if options.kind is None and (path is None or path == STDOUT or path.is_dir()):
        return "testfloat"
    return kind_of(path, options.kind)


def _written(vectors: Vectors, options: argparse.Namespace) -> Path:
    from cpd.hardware.testbench import Ports, write_testbench

    if options.testbench is None:
        if options.rtl or options.module or _ports(options) != Ports():
            raise UsageError("--rtl, --module and what the module has are of the --testbench")
        return vectors.write(options.output or Path(), options.kind)
    if options.output is not None or options.kind is not None:
        raise UsageError("--testbench writes a folder of its own: leave out --as and -o")
    ports = _ports(options)
    if options.module is None and replace(ports, any_nan=False) != Ports():
        raise UsageError("--clock, --latency, --valid-in, --signals … are of a --module")
    return write_testbench(vectors, options.testbench, options.rtl, options.module, ports)


def _ports(options: argparse.Namespace) -> Ports:
    from cpd.hardware.testbench import Ports

    names = ("clock", "latency", "valid_in", "valid_out", "any_nan", "flags")
    signals = tuple(re.split(r",\s*", options.signals)) if options.signals else ()
    return Ports(**{name: getattr(options, name) for name in names}, signals=signals)


@contextmanager
def _disagreement_told() -> Iterator[None]:
    """Where oracle and kernels differ nothing is written, and that is no mistake of the user's."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(str(error)) from error


def _cases(coverage: dict[str, int]) -> str:
    return "\n".join(f"  {name:16}{count:>12}" for name, count in coverage.items())


def _made(options: argparse.Namespace) -> Vectors:
    from cpd.hardware.vectors import make

    return make(
        **_rule_options(options),
        exhaustive=options.exhaustive,
        directed=options.directed,
        random=options.random,
        seed=options.seed,
    )


def _rule_options(options: argparse.Namespace) -> dict[str, Any]:
    formats = re.split(r",\s*", options.formats) if options.formats else ()
    return {
        "operation": options.operation,
        "formats": formats,
        "result": options.out_format,
        "rounding": options.rounding,
        "overflow": options.overflow,
        "random_bits": options.random_bits,
        "variant": options.variant,
        "tininess": options.tininess,
        "nan_signals": options.nan_signals,
        "accumulator": options.acc,
        "length": options.length,
    }


def _check(options: argparse.Namespace) -> int:
    from cpd.hardware.vectors import check, make

    with users_mistakes():
        rule = None if options.operation is None else make(**_rule_options(options)).rule
        with _disagreement_told():
            found = check(options.check, options.kind, rule)
    console = new_console()
    for line in found.shown:
        console.print(line, soft_wrap=True)
    console.print(_verdict(found, options), soft_wrap=True)
    console.print(_cases(found.coverage), soft_wrap=True)
    return 1 if found.wrong else 0


def _verdict(found: Check, options: argparse.Namespace) -> str:
    lines = counted(found.lines, "line")
    summary = f"{options.check}: {found.rule.stem}: {lines}, {found.wrong} wrong"
    places = {name: count for name, count in found.wrong_in.items() if count}
    if places:
        summary += f" ({', '.join(f'{name} {count}' for name, count in places.items())})"
    if found.other_nans:
        summary += f"; {found.other_nans} NaN of another code"
    return summary
