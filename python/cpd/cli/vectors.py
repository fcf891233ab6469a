# SPDX-License-Identifier: Apache-2.0
"""`cpd vectors`: writes test vectors for hardware, and checks vectors from other sources."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd._files import STDOUT
from cpd.cli import options as opt
from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.output import counted, new_console, new_progress
from cpd.numeric.names import listed
from cpd.numeric.shown import byte_size

if TYPE_CHECKING:
    from cpd.hardware import VectorCheck, Vectors
    from cpd.hardware.vectors.rules import ElementRule
    from cpd.hardware.vectors.sums import SumRule


_ROUNDINGS = {
    "nearest_even": ("rne", "rnear_even"),
    "nearest_away": ("rna", "rmm", "rnear_maxmag"),
    "toward_zero": ("rtz", "rminmag"),
    "up": ("rup", "rmax"),
    "down": ("rdn", "rmin"),
    "to_odd": ("rto", "rodd"),
    "stochastic": ("sr",),
}
"""Maps a rounding mode to its names in file names, in RISC-V and in TestFloat."""


def register(commands: opt.Commands) -> None:
    """Adds the command `vectors`."""
    opt.command(commands, "vectors", _run, Options)


def _rounding(text: str) -> str:
    """Returns the rounding mode that `text` names, in any letter case; else returns `text`."""
    word = text.lower()
    known = (mode for mode, names in _ROUNDINGS.items() if word in (mode, *names))
    return next(known, text)


@dataclass
class Rule:
    """Options for the operation. They are arguments of `cpd.hardware.make_vectors`."""

    result: str | None = opt.option(
        "the format of the results",
        absent="the first operand's format, or for a sum the accumulator's",
        metavar="FORMAT",
    )
    rounding: str = opt.option(
        "nearest_even (rne), nearest_away (rna, RMM), toward_zero (rtz), up (rup), down (rdn), "
        "to_odd (rto) or stochastic (sr); a sum uses its accumulator's rounding instead",
        "nearest_even",
        type=_rounding,
        metavar="MODE",
    )
    overflow: str = opt.overflow("ieee")
    random_bits: int = opt.option(
        "number of random bits of stochastic rounding; they are field r of a line", 24
    )
    variant: str = opt.option(
        "the variant of stochastic rounding in IEEE P3109", "A", choices=("A", "B", "C")
    )
    tininess: str = opt.option(
        "detect underflow (UF) after or before rounding", "after", choices=("after", "before")
    )
    nan_signals: bool = opt.option(
        "NaN operands raise NV even in formats that do not distinguish signaling NaN", False
    )
    accumulator: str | None = opt.accumulator(
        "the accumulator of a sum", absent="none; required for a sum"
    )
    length: int | None = opt.option(
        "number of products or terms of a sum", absent="a unit's block, else 16"
    )


@dataclass
class Lines:
    """Options that select test vectors. They are arguments of `cpd.hardware.make_vectors`."""

    exhaustive: bool = opt.option("add all lines", False)
    directed: bool = opt.option("add inputs near special values", False)
    random: int = opt.option("add N random lines", 0)
    seed: int = opt.seed()


@dataclass
class Files:
    """Options of files."""

    kind: str | None = opt.option(
        "the kind of file",
        absent="by the suffix of FILE, else testfloat",
        flags=("--as",),
        choices=("testfloat", "readmemh", "csv", "jsonl"),
    )
    out: Path | None = opt.option(
        "the file to write (overwritten if it exists), or its folder, or - for standard output",
        absent="a name such as e4m3fn_mul_rne.tv in the current folder",
        flags=("-o", "--out"),
    )
    testbench: Path | None = opt.option(
        "write the vectors, a self-checking SystemVerilog test bench and a Makefile to a folder",
        metavar="DIR",
    )
    check: Path | None = opt.option("compare a file's lines with the results computed here")


@dataclass
class Module:
    """Options for the module under test."""

    module: str | None = opt.option(
        "the name of your module; its ports are named as the fields of a line (a, b, …, result, "
        "flags)",
        absent="the operation's module in tests/rtl",
        metavar="NAME",
    )
    rtl: list[Path] | None = opt.option(
        "a source file of the module; may be given several times", type=Path, action="append"
    )
    ports: str | None = opt.option(
        "the ports with other names than their fields, as in a=op_a_i,result=res_o",
        metavar="FIELD=PORT,…",
    )
    signals: str | None = opt.option(
        "the inner signals for which the module has ports, or all; for block_fma and mma it also "
        "needs a port special, which is 1 if inner signals are not to be compared",
        metavar="NAMES",
    )
    flags: bool = opt.option("the module has no port named flags, so flags are not compared", True)
    any_nan: bool = opt.option("accept any NaN where a NaN is expected", False)


def _port(help: str, absent: str = "none") -> Any:
    return opt.option(help, absent=absent, metavar="PORT")


@dataclass
class Clock:
    """Options for a module with a clock. They are arguments of `cpd.hardware.Ports`."""

    clock: str | None = _port(
        "the clock's port; the rising edge is used", "none, the module is combinational"
    )
    latency: int = opt.option(
        "number of rising edges from a line to its result, if there is no --valid-out", 1
    )
    valid_in: str | None = _port("an input port that is 1 while the bench presents a line")
    ready_in: str | None = _port(
        "an output port that is 1 when the module accepts a line", "it accepts every line"
    )
    valid_out: str | None = _port(
        "an output port that is 1 with each result; results must be in the order of the lines",
        "none, see --latency",
    )
    ready_out: str | None = _port(
        "an input port that is 1 when the bench accepts a result", "it accepts every result"
    )
    reset: str | None = _port("the reset's port; it is active only before the first line")
    reset_level: int = opt.option(
        "the level of the reset port that resets the module", 1, choices=(0, 1)
    )
    reset_cycles: int = opt.option(
        "number of rising edges in reset; 0: a pulse between edges (asynchronous reset)", 4
    )
    interval: int = opt.option(
        "least number of cycles from one line to the next, if there is no --ready-in", 1
    )
    gaps: int | None = opt.option(
        "percentage of cycles, in bursts, in which the bench presents no line, and in which it "
        "holds --ready-out at 0",
        absent="25 with --ready-in or --ready-out, else 0",
        metavar="PERCENT",
    )


@dataclass
class Options:
    """Write and check test vectors and test benches for hardware.

    Writes test vectors for hardware: inputs, results and exception flags of one operation. An exact
    reference implementation and the kernels both compute each line. If they differ, the command
    fails and writes nothing. Then it prints the number of lines for each kind of case. For a kind
    without lines, it prints "cannot happen" if the formats exclude the case, or if a search of all
    inputs finds none (up to 2^24 inputs, for sums 2^21). Otherwise it prints "not reached".

      cpd vectors mul e4m3fn --exhaustive
      cpd vectors cast fp32,e4m3fn --rounding stochastic --random-bits 8 --as csv
      cpd vectors fma bf16 --directed --random 100000 --as readmemh -o fma.hex
      cpd vectors block_fma --accumulator h100-fp16 --random 5000 --as jsonl -o -
      cpd vectors dot int8 --accumulator int32 --testbench tb --module mac
      cpd vectors div fp16 --testbench tb --module div --clock clk --valid-out done
      cpd vectors --check e4m3fn_mul_rne.tv

    Operations: cast, add, mul, fma, div, sqrt; and sums: dot (an element of a matrix product), sum
    (of terms), block_fma (dot by a matrix unit) and mma (dot by a unit with scales). Lines of sums
    also have the inner signals of the hardware, except for units that do not align all terms.

    FORMAT: one format for all operands, or one for each. For a cast: the formats of operand and
    result, or of the result alone (the operand is then fp32). For a matrix unit, the default is the
    unit's own formats. Results are in the first operand's format (fma e4m3fn,e4m3fn,fp32: e4m3fn)
    unless --result is given.

    Kinds of files: testfloat (`a b result flags`; flags NX 1, UF 2, OF 4, DZ 8, NV 16), readmemh
    (one word per line with the first field in the highest bits, and a SystemVerilog package), csv,
    jsonl (a header, then one object per line). All numbers are hexadecimal. The first element of a
    field is in the lowest bits. Comments begin with # (readmemh: //).

    A test bench reports a valid signal that is stuck or missing, X and Z (in Icarus), lost lines
    and extra results. If results match with another latency, it reports this latency. In all these
    cases, its exit status is not 0.
    """

    operation: str | None = opt.argument(
        "one of the operations above", nargs="?", metavar="OPERATION"
    )
    formats: str | None = opt.argument(
        "the formats of the operands, as above", nargs="?", metavar="FORMAT,…"
    )
    rule: Rule = opt.group(Rule, "the operation")
    lines: Lines = opt.group(
        Lines,
        "lines",
        "Default: all lines if they are at most 2^20, else --directed and 10,000 random lines.",
    )
    files: Files = opt.group(Files, "files")
    module: Module = opt.group(Module, "the module under test")
    clock: Clock = opt.group(Clock, "a module with a clock")


def _run(options: Options) -> int:
    if options.files.check is not None:
        return _check(options, options.files.check)
    if options.operation is None:
        raise UsageError("say which operation, such as mul, or --check FILE")
    from cpd.hardware import make_vectors

    with users_mistakes():
        _check_bench(options)
        vectors = make_vectors(**_rule_options(options), **vars(options.lines))
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
def _progress(vectors: Vectors, options: Options) -> Iterator[None]:
    """Prints how many lines and bytes the file will have, then shows a progress bar, on stderr."""
    bench = options.files.testbench is not None
    kind = "readmemh" if bench else _kind(options.files)
    lines, size = vectors.size(kind)
    if not (options.lines.exhaustive or options.lines.random):
        yield
        return
    directed = " and the directed ones" if vectors.planned is None else ""
    new_console(stderr=True).print(f"{lines:,} lines{directed}, {byte_size(size)}")
    with new_progress(unit="lines") as bars:
        task = bars.add_task(vectors.rule.stem, total=vectors.planned, note="")
        vectors.on_batch = lambda done: bars.update(task, completed=done)
        yield


def _kind(files: Files) -> str:
    from cpd.hardware.vectors.lines import kind_of

    path = files.out
    if files.kind is None and (path is None or path == STDOUT or path.is_dir()):
        return "testfloat"
    return kind_of(path, files.kind)


def _written(vectors: Vectors, options: Options) -> Path:
    from cpd.hardware import Ports, write_testbench

    files, module = options.files, options.module
    if files.testbench is None:
        return vectors.write(files.out or Path(), files.kind)
    ports = Ports(
        **vars(options.clock),
        flags=module.flags,
        any_nan=module.any_nan,
        signals=tuple(listed(module.signals)) if module.signals else (),
        names=_port_names(module.ports),
    )
    return write_testbench(vectors, files.testbench, module.rtl or [], module.module, ports)


def _check_bench(options: Options) -> None:
    """Raises UsageError for missing files of --rtl, and for options that need another option."""
    from cpd.hardware.testbench.ports import CLOCKED, NEEDS

    files, clock = options.files, options.clock
    flags = opt.changed(options.module) | opt.changed(clock)
    _check_needs(flags, flags, files.testbench, "--testbench DIR")
    if files.testbench is None:
        return
    if files.out is not None or files.kind is not None:
        raise UsageError("--testbench writes a folder of its own: leave out --as and -o")
    users = set(flags) - {"module", "rtl", "any_nan"}
    _check_needs(flags, users, options.module.module, "--module NAME")
    _check_needs(flags, CLOCKED, clock.clock, "--clock PORT")
    for name, needed in NEEDS.items():
        port = next((p for p in needed if getattr(clock, p) is not None), None)
        ports = " or ".join(f"--{p.replace('_', '-')} PORT" for p in needed)
        _check_needs(flags, [name], port, ports)
    for path in options.module.rtl or ():
        if not path.is_file():
            raise UsageError(f"--rtl {path}: no such file")


def _check_needs(flags: dict[str, str], users: Collection[str], value: object, needed: str) -> None:
    """Raises UsageError if an option is given without the option that it needs.

    `flags` maps each given option to its flag. `users` are the options that need the option
    `needed`. `value` is the value of `needed`, or None if the user has not given `needed`.
    """
    named = sorted(flag for name, flag in flags.items() if name in users)
    if named and value is None:
        raise UsageError(f"{' and '.join(named)} need{'s' * (len(named) == 1)} {needed}")


def _port_names(text: str | None) -> dict[str, str]:
    """Reads the names of ports by field from a text FIELD=PORT,…."""
    names: dict[str, str] = {}
    for part in re.split(r",\s*", text) if text else ():
        name, equals, port = part.partition("=")
        if not (name and equals and port) or name in names:
            raise UsageError(f"--ports must be FIELD=PORT,… with each field once, got {text!r}")
        names[name] = port
    return names


@contextmanager
def _disagreement_told() -> Iterator[None]:
    """A context that raises RunError if the reference and the kernels differ.

    A regular file is then not written: an existing file remains unchanged.
    """
    try:
        yield
    except RuntimeError as error:
        raise RunError(str(error)) from error


def _cases(
    rule: ElementRule | SumRule, coverage: Mapping[str, int], is_exhaustive: bool = False
) -> str:
    """Returns a text with a line for each special case: its name and its number of test vectors.

    In place of the number 0, the line has `cannot happen` if no input produces the case, else `not
    reached`.
    """
    from cpd.hardware.vectors.coverage import cannot_happen

    excluded = cannot_happen(rule, coverage, is_exhaustive)
    rows = []
    for name, count in coverage.items():
        zero = "cannot happen" if name in excluded else "not reached"
        rows.append(f"  {name:16}{count or zero:>14}")
    return "\n".join(rows)


def _rule_options(options: Options) -> dict[str, Any]:
    formats = listed(options.formats) if options.formats else []
    return {
        **vars(options.rule),
        "operation": options.operation,
        "formats": formats,
        "accumulator": _with_operands(options.rule.accumulator, formats),
    }


_E4M3 = (
    "note: e4m3 is IEEE-like here, with Inf and a max of 240; OCP's format, with a max of 448, is "
    "e4m3fn"
)


def _note_e4m3(options: Options) -> None:
    """Prints a note on the format `e4m3` if the command line names it.

    The function is called after the work, so a wrong command line prints only its error.
    """
    formats = listed(options.formats) if options.formats else []
    if any(text and text.lower() == "e4m3" for text in (*formats, options.rule.result)):
        print(_E4M3, file=sys.stderr)


def _with_operands(acc: str | None, formats: list[str]) -> str | None:
    """Adds the operands' formats of the command line to the text of a `block_fma` accumulator.

    Adds only the keys `a` and `b` that the text lacks. Returns other texts unchanged.
    """
    words = () if acc is None else acc.split()
    if "block_fma" not in words or not formats:
        return acc
    keys = {word.partition("=")[0] for word in words}
    operands = {"a": formats[0], "b": formats[min(1, len(formats) - 1)]}
    missing = [f" {name}={text}" for name, text in operands.items() if name not in keys]
    return f"{acc}{''.join(missing)}"


def _check(options: Options, file: Path) -> int:
    from cpd.hardware import make_vectors
    from cpd.hardware.vectors.checking import checked_lines

    with users_mistakes():
        rule = None if options.operation is None else make_vectors(**_rule_options(options)).rule
        with _disagreement_told():
            check = checked_lines(file, options.files.kind, rule)
    _note_e4m3(options)
    console = new_console()
    for line in check.shown:
        console.print(line, soft_wrap=True)
    console.print(_verdict(check, file), soft_wrap=True)
    console.print(_cases(check.rule, check.coverage), soft_wrap=True)
    return 1 if check.wrong else 0


def _verdict(check: VectorCheck, file: Path) -> str:
    lines = counted(check.lines, "line")
    summary = f"{file}: {check.rule.stem}: {lines}, {check.wrong} wrong"
    places = {name: count for name, count in check.wrong_in.items() if count}
    if places:
        summary += f" ({', '.join(f'{name} {count}' for name, count in places.items())})"
    if check.other_nans:
        summary += f"; {check.other_nans} NaN of another code"
    if rule := check.rule_of_quiet_nans():
        summary += f"; {rule}"
    return summary
