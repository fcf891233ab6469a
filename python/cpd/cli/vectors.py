# SPDX-License-Identifier: Apache-2.0
"""`cpd vectors`: vectors for hardware, and checks of others'."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd._files import STDOUT
from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.options import (
    Commands,
    accumulator_argument,
    add_command,
    integer,
    overflow_argument,
    rounding_argument,
    seed_argument,
)
from cpd.cli.output import counted, new_console, new_progress
from cpd.numeric.names import listed
from cpd.numeric.shown import byte_size

if TYPE_CHECKING:
    from cpd.hardware import VectorCheck, Vectors
    from cpd.hardware.vectors.rules import ElementRule
    from cpd.hardware.vectors.sums import SumRule

_TEXT = """\
Vectors for hardware: inputs, results and exception flags of one operation, each
computed by the slow exact oracle and by the kernels, which must agree before a
line is written. It then prints how many lines cover each kind of case; of no line,
"cannot happen" where the formats exclude the case or no input has it (up to 2^24
inputs, of sums 2^21), else "not reached".

  cpd vectors mul e4m3fn --exhaustive
  cpd vectors cast fp32,e4m3fn --rounding stochastic --random-bits 8 --as csv
  cpd vectors fma bf16 --directed --random 100000 --as readmemh -o fma.hex
  cpd vectors block_fma --accumulator h100-fp16 --random 5000 --as jsonl -o -
  cpd vectors dot int8 --accumulator int32 --testbench tb --rtl mac.sv --module mac
  cpd vectors div fp16 --testbench tb --module div --clock clk --valid-out done
  cpd vectors --check e4m3fn_mul_rne.tv

Operations: cast, add, mul, fma, div, sqrt; of sums dot (an element of a matrix product),
sum (of terms), block_fma (dot by a matrix unit) and mma (by one that takes
scales), each with the signals inside, unless the unit does not align every term.
FORMAT: of the operands, one for all or one each; of a cast the operand's and the
result's, or the result's alone (from fp32); of a unit by default its own. Results
are in the first operand's format (fma e4m3fn,e4m3fn,fp32: e4m3fn) unless
--result says otherwise.

Kinds: testfloat (`a b result flags`, flags NX 1, UF 2, OF 4, DZ 8, NV 16),
readmemh (a word a line, first field on top, with a SystemVerilog package), csv,
jsonl (a head, then an object a line). All numbers are hexadecimal; of a field of
several elements the first stands lowest. Comments begin with # (readmemh: //).

A test bench reports stuck or missing valid, X and Z (in Icarus), lost lines, results
too many, and the latency with which results match. Its exit status is not 0 then.
"""

_ROUNDINGS = {
    "nearest_even": ("rne", "rnear_even"),
    "nearest_away": ("rna", "rmm", "rnear_maxmag"),
    "toward_zero": ("rtz", "rminmag"),
    "up": ("rup", "rmax"),
    "down": ("rdn", "rmin"),
    "to_odd": ("rto", "rodd"),
    "stochastic": ("sr",),
}
"""Each mode's names in file names, RISC-V and TestFloat."""


_BENCH: dict[str, Any] = {
    **dict.fromkeys(("module", "ports", "signals", "clock", "valid_in", "ready_in", "valid_out")),
    **dict.fromkeys(("ready_out", "reset", "gaps")),
    "rtl": [],
    "flags": True,
    "any_nan": False,
    "latency": 1,
    "interval": 1,
    "reset_level": 1,
    "reset_cycles": 4,
}
"""The defaults of the test bench's options."""


def register(commands: Commands) -> None:
    """Adds the command `vectors`."""
    parser = add_command(commands, "vectors", _run, "vectors for hardware", _TEXT)
    parser.add_argument(
        "operation", nargs="?", metavar="OPERATION", help="one of the operations above"
    )
    parser.add_argument(
        "formats", nargs="?", metavar="FORMAT,…", help="the formats of the operands, as above"
    )
    parser.add_argument(
        "--result",
        metavar="FORMAT",
        help="the format of the results; default the first operand's, of a sum the accumulator's",
    )
    rounding_argument(
        parser,
        type=_rounding,
        metavar="MODE",
        help="nearest_even (rne), nearest_away (rna, RMM), toward_zero (rtz), up (rup), down "
        "(rdn), to_odd (rto) or stochastic (sr); default nearest_even; a sum takes its "
        "accumulator's",
    )
    overflow_argument(parser, "ieee")
    integer(parser, "random-bits", 24, "random bits of stochastic rounding, a line's field r")
    parser.add_argument(
        "--variant",
        default="A",
        choices=("A", "B", "C"),
        help="the variant of stochastic rounding in IEEE P3109; default A",
    )
    parser.add_argument(
        "--tininess",
        default="after",
        choices=("after", "before"),
        help="whether UF is found after rounding or before; default after",
    )
    parser.add_argument(
        "--nan-signals",
        action="store_true",
        help="NaN operands raise NV also in formats whose NaN are neither quiet nor signalling",
    )
    accumulator_argument(parser, "the accumulator of a sum", without="none: a sum needs one")
    integer(
        parser, "length", None, "the products or terms of a sum; default a unit's block, else 16"
    )
    group = parser.add_argument_group(
        "which lines", "Default: all up to 2^20, else directed and 10,000 random ones."
    )
    group.add_argument("--exhaustive", action="store_true", help="add all lines there are")
    group.add_argument("--directed", action="store_true", help="add inputs near special values")
    integer(group, "random", 0, "add N random lines")
    seed_argument(group)
    group = parser.add_argument_group("files")
    group.add_argument(
        "--as",
        dest="kind",
        choices=("testfloat", "readmemh", "csv", "jsonl"),
        help="the kind of file; default by the suffix of FILE, else testfloat",
    )
    group.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="a file, which is overwritten, a folder, or - for standard output; default a name "
        "such as e4m3fn_mul_rne.tv in the current folder",
    )
    group.add_argument(
        "--testbench",
        type=Path,
        metavar="DIR",
        help="a folder for the vectors, a self-checking SystemVerilog test bench and a Makefile; "
        "default: no bench",
    )
    group.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="compare a file's lines with the results computed here; default: none",
    )
    _register_bench(parser)


def _register_bench(parser: argparse.ArgumentParser) -> None:
    """The options of --testbench."""
    group = parser.add_argument_group("the test bench's module")
    group.add_argument(
        "--module",
        metavar="NAME",
        help="your module, whose ports are the fields of a line (a, b, …, result, flags); default: "
        "the operation's module in tests/rtl",
    )
    group.add_argument(
        "--rtl",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a source under test; may be given several times; default: none",
    )
    group.add_argument(
        "--ports",
        metavar="FIELD=PORT,…",
        help="ports with other names than their fields, as in a=op_a_i,result=res_o; default: none",
    )
    group.add_argument(
        "--signals",
        metavar="NAMES",
        help="signals inside that are ports too, or all; those of a block_fma or mma also need the "
        "port special, which is 1 where they are not compared; default none",
    )
    group.add_argument(
        "--no-flags", dest="flags", action="store_false", help="the module has no port flags"
    )
    group.add_argument("--any-nan", action="store_true", help="any NaN passes for any other")
    group = parser.add_argument_group("a module with a clock")
    group.add_argument(
        "--clock",
        metavar="PORT",
        help="the clock, used at its rising edge; default: none, the module is combinational",
    )
    integer(group, "latency", 1, "rising edges from a line to its result, without --valid-out")
    group.add_argument(
        "--valid-in", metavar="PORT", help="an input, 1 with each line; default: none"
    )
    group.add_argument(
        "--ready-in",
        metavar="PORT",
        help="an output, 1 where the module takes a line; default: it takes each",
    )
    group.add_argument(
        "--valid-out",
        metavar="PORT",
        help="an output, 1 with each result, in the lines' order; default: none, see --latency",
    )
    group.add_argument(
        "--ready-out",
        metavar="PORT",
        help="an input, 1 where the bench takes a result; default: it takes each",
    )
    group.add_argument(
        "--reset",
        metavar="PORT",
        help="the reset, active before the first line alone; default: none",
    )
    group.add_argument(
        "--reset-level",
        type=int,
        default=1,
        choices=(0, 1),
        help="the value that resets; default 1",
    )
    integer(
        group,
        "reset-cycles",
        4,
        "rising edges in reset, 0 for a pulse between edges (asynchronous)",
    )
    integer(group, "interval", 1, "cycles from one line to the next, at least, without --ready-in")
    group.add_argument(
        "--gaps",
        type=int,
        metavar="PERCENT",
        help="cycles without a line and without --ready-out, in bursts; default 25 with --ready-in "
        "or --ready-out, else 0",
    )


def _rounding(text: str) -> str:
    """The mode of a name, in capitals or not; an unknown name as it is."""
    word = text.lower()
    known = (mode for mode, names in _ROUNDINGS.items() if word in (mode, *names))
    return next(known, text)


def _run(options: argparse.Namespace) -> int:
    if options.check is not None:
        return _check(options)
    if options.operation is None:
        raise UsageError("say which operation, such as mul, or --check FILE")
    with users_mistakes():
        _check_bench(options)
        vectors = _made(options)
    with _disagreement_told(), users_mistakes(), _progress(vectors, options):
        path = _written(vectors, options)
    _note_e4m3(options)
    to_stdout = path == STDOUT
    console = new_console(stderr=to_stdout)
    name = vectors.rule.stem if to_stdout else str(path)
    console.print(f"{name}: {counted(vectors.count, 'line')}, {vectors.source}", soft_wrap=True)
    if vectors.left_out:
        console.print(
            f"{counted(vectors.left_out, 'line')} left out: their NaN has no code in "
            f"{vectors.rule.result}"
        )
    is_exhaustive = vectors.source == "exhaustive"
    console.print(_cases(vectors.rule, vectors.coverage, is_exhaustive), soft_wrap=True)
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
    new_console(stderr=True).print(f"{lines:,} lines, {byte_size(size)}{directed}")
    with new_progress(unit="lines") as bars:
        task = bars.add_task(vectors.rule.stem, total=vectors.planned, note="")
        vectors.on_batch = lambda done: bars.update(task, completed=done)
        yield


def _kind(options: argparse.Namespace) -> str:
    from cpd.hardware.vectors.lines import kind_of

    path = options.out
    if options.kind is None and (path is None or path == STDOUT or path.is_dir()):
        return "testfloat"
    return kind_of(path, options.kind)


def _written(vectors: Vectors, options: argparse.Namespace) -> Path:
    from cpd.hardware import Ports, write_testbench

    if options.testbench is None:
        return vectors.write(options.out or Path(), options.kind)
    elsewhere = ("module", "rtl", "ports", "signals")
    ports = Ports(
        **{name: getattr(options, name) for name in _BENCH if name not in elsewhere},
        signals=tuple(listed(options.signals)) if options.signals else (),
        names=_port_names(options.ports),
    )
    return write_testbench(vectors, options.testbench, options.rtl, options.module, ports)


def _check_bench(options: argparse.Namespace) -> None:
    """Refuses options of the test bench that need another one, and sources that do not exist."""
    from cpd.hardware.testbench.ports import CLOCKED, NEEDS

    given = [name for name, default in _BENCH.items() if getattr(options, name) != default]
    _check_needs(given, _BENCH, options.testbench, "--testbench DIR")
    if options.testbench is None:
        return
    if options.out is not None or options.kind is not None:
        raise UsageError("--testbench writes a folder of its own: leave out --as and -o")
    users = set(_BENCH) - {"module", "rtl", "any_nan"}
    _check_needs(given, users, options.module, "--module NAME")
    _check_needs(given, CLOCKED, options.clock, "--clock PORT")
    for name, needed in NEEDS.items():
        port = next((each for each in needed if getattr(options, each) is not None), None)
        _check_needs(given, [name], port, " or ".join(f"{_option(each)} PORT" for each in needed))
    for path in options.rtl:
        if not path.is_file():
            raise UsageError(f"--rtl {path}: no such file")


def _check_needs(given: list[str], users: Collection[str], value: object, needed: str) -> None:
    """Refuses given options of `users` where the value that they need is None."""
    named = [_option(name) for name in given if name in users]
    if named and value is None:
        raise UsageError(f"{' and '.join(named)} need{'s' * (len(named) == 1)} {needed}")


def _option(name: str) -> str:
    return "--no-flags" if name == "flags" else f"--{name.replace('_', '-')}"


def _port_names(text: str | None) -> dict[str, str]:
    """Returns the ports of FIELD=PORT,…."""
    names: dict[str, str] = {}
    for part in re.split(r",\s*", text) if text else ():
        name, equals, port = part.partition("=")
        if not (name and equals and port) or name in names:
            raise UsageError(f"--ports must be FIELD=PORT,… with each field once, got {text!r}")
        names[name] = port
    return names


@contextmanager
def _disagreement_told() -> Iterator[None]:
    """Makes a difference of oracle and kernels a failure of the run: nothing is written."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(str(error)) from error


def _cases(
    rule: ElementRule | SumRule, coverage: Mapping[str, int], is_exhaustive: bool = False
) -> str:
    """The number of lines of each case. A 0 is `cannot happen` where no input is such a case."""
    from cpd.hardware.vectors.coverage import cannot_happen

    excluded = cannot_happen(rule, coverage, is_exhaustive)
    rows = []
    for name, count in coverage.items():
        zero = "cannot happen" if name in excluded else "not reached"
        rows.append(f"  {name:16}{count or zero:>14}")
    return "\n".join(rows)


def _made(options: argparse.Namespace) -> Vectors:
    from cpd.hardware import make_vectors

    return make_vectors(
        **_rule_options(options),
        exhaustive=options.exhaustive,
        directed=options.directed,
        random=options.random,
        seed=options.seed,
    )


def _rule_options(options: argparse.Namespace) -> dict[str, Any]:
    formats = listed(options.formats) if options.formats else []
    return {
        "operation": options.operation,
        "formats": formats,
        "result": options.result,
        "rounding": options.rounding,
        "overflow": options.overflow,
        "random_bits": options.random_bits,
        "variant": options.variant,
        "tininess": options.tininess,
        "nan_signals": options.nan_signals,
        "accumulator": _with_operands(options.accumulator, formats),
        "length": options.length,
    }


_E4M3 = (
    "note: e4m3 is IEEE-like here, with Inf and a max of 240; OCP's format, with a max of 448, is "
    "e4m3fn"
)


def _note_e4m3(options: argparse.Namespace) -> None:
    """Tells which E4M3 was meant; called after the work, as a mistake is one line."""
    formats = listed(options.formats) if options.formats else []
    if any(text and text.lower() == "e4m3" for text in (*formats, options.result)):
        print(_E4M3, file=sys.stderr)


def _with_operands(acc: str | None, formats: list[str]) -> str | None:
    """The accumulator's text; a unit without operand formats gets those of the command."""
    words = () if acc is None else acc.split()
    if "block_fma" not in words or not formats:
        return acc
    given = {word.partition("=")[0] for word in words}
    operands = {"a": formats[0], "b": formats[min(1, len(formats) - 1)]}
    missing = [f" {name}={text}" for name, text in operands.items() if name not in given]
    return f"{acc}{''.join(missing)}"


def _check(options: argparse.Namespace) -> int:
    from cpd.hardware import make_vectors
    from cpd.hardware.vectors.checking import checked_lines

    with users_mistakes():
        rule = None if options.operation is None else make_vectors(**_rule_options(options)).rule
        with _disagreement_told():
            found = checked_lines(options.check, options.kind, rule)
    _note_e4m3(options)
    console = new_console()
    for line in found.shown:
        console.print(line, soft_wrap=True)
    console.print(_verdict(found, options), soft_wrap=True)
    console.print(_cases(found.rule, found.coverage), soft_wrap=True)
    return 1 if found.wrong else 0


def _verdict(found: VectorCheck, options: argparse.Namespace) -> str:
    lines = counted(found.lines, "line")
    summary = f"{options.check}: {found.rule.stem}: {lines}, {found.wrong} wrong"
    places = {name: count for name, count in found.wrong_in.items() if count}
    if places:
        summary += f" ({', '.join(f'{name} {count}' for name, count in places.items())})"
    if found.other_nans:
        summary += f"; {found.other_nans} NaN of another code"
    if rule := found.rule_of_quiet_nans():
        summary += f"; {rule}"
    return summary
