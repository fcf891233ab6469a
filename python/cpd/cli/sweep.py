# SPDX-License-Identifier: Apache-2.0
"""`cpd sweep`: formats, accumulators, roundings and scales on tensors of one's own."""

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.options import (
    Commands,
    accumulator_argument,
    add_command,
    integer,
    jobs_arguments,
    overflow_argument,
    rounding_argument,
    seed_argument,
    table_arguments,
)
from cpd.cli.output import (
    MAY_BREAK,
    check_readable,
    check_tables,
    counted,
    is_stdout,
    new_console,
    new_progress,
    new_table,
)

if TYPE_CHECKING:
    from cpd.study.sweeps.results import Sweep

_TEXT = """\
What every combination of formats, accumulators, roundings and scales makes of
tensors: errors, SQNR, underflow, overflow, the error of dot products against those
of the values as given, and what a multiply-accumulate costs in hardware. Rows on
the Pareto front, which no other beats, are marked.

Files are .npy, .npz, .safetensors, .pt or .pth, such as a model's checkpoint;
nothing in them is executed, and what is no floating-point tensor is left out.
Values are rounded to binary32 first. Each tensor counts divided by its RMS. Sums
and blocks run along the last dimension; each value is cast and multiplied.

A pattern e[2-5]m[1-3] names all formats of these exponent and mantissa bits; so
do int[4-8] and, for accumulators, e8m[7,10,13] or int[24,32]. Several stand between
commas (in quotes and brackets commas separate nothing). Some short names are finite
formats (e2m1, e2m3, e3m2), which a warning says; e[2-5]m[1-3]:ieee or :finite has one
kind.
Scales are none, tensor and row (fp32), mx (32 values, e8m0), nv (16 values, e4m3fn
below a tensor's fp32), or what stands behind the element of a scaled format, as
'64 scale=e8m0'. Scaled formats such as mxfp4 have their own.

--out keeps each cell in a file of its own, and writes cells.csv, sweep.json,
front.png and report.html. Interrupted, it goes on from there: only cells that are
missing, damaged or of other tensors are measured.

The cost is that of the model cpd-2026: bits of multiplier, aligner, adder and
normalizer for each product, as gates of two inputs. It compares; it does not
predict an area.
"""

_FORMATS = "e[2-5]m[1-3]"


def register(commands: Commands) -> None:
    """Adds the command `sweep`."""
    parser = add_command(
        commands, "sweep", _run, "formats and accumulators on tensors of one's own", _TEXT
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="a file of tensors")
    parser.add_argument(
        "--capture",
        metavar="MODULE:FUNCTION",
        help="in place of files: a function of yours that gives what cpd.study.capture takes, "
        "(model, inputs) or (model, inputs, loss); default: none",
    )
    group = parser.add_argument_group("the choices")
    group.add_argument(
        "--formats", default=_FORMATS, metavar="NAME,…", help=f"formats; default {_FORMATS}"
    )
    accumulator_argument(group, "accumulators of dot products", default="fp32")
    rounding_argument(
        group,
        metavar="MODE,…",
        help="roundings of the casts; stochastic:8 has 8 random bits; default nearest_even",
    )
    group.add_argument(
        "--scales", default="none", metavar="NAME,…", help="scales of the formats; default none"
    )
    integer(group, "bits", None, "take formats of that many bits only; default: all")
    overflow_argument(group, "saturate")
    seed_argument(group)
    group = parser.add_argument_group("the measurement")
    integer(group, "length", 1024, "take up to N terms of a dot product")
    group.add_argument(
        "--no-dots", dest="dots", action="store_false", help="leave out dot products"
    )
    integer(group, "sample", None, "take up to N values of each tensor; default all")
    group.add_argument(
        "--accuracy",
        metavar="MODULE:FUNCTION",
        help="a function of yours that gives the accuracy of a model in a cell; default: none",
    )
    jobs_arguments(group, "one, or one per CPU for large sweeps")
    group = parser.add_argument_group("the front")
    group.add_argument(
        "--error",
        metavar="NAME",
        help="dot_error, relative_rms, mean_error, worst, underflow, overflow or accuracy; "
        "default: the accuracy where it is measured, else dot_error",
    )
    group.add_argument(
        "--cost",
        default="gates",
        choices=("gates", "bits", "multiplier", "aligner", "adder", "normalizer"),
        help="the cost that the front weighs; default gates",
    )
    group.add_argument(
        "--front", action="store_true", help="show the front alone; in CSV a column says it"
    )
    group = parser.add_argument_group("the results")
    group.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="a folder for cells, figures and a report; default: none",
    )
    table_arguments(group, "the front")


def _run(options: argparse.Namespace) -> int:
    from cpd.study.sweeps.cells import fitting, grid
    from cpd.study.sweeps.patterns import mixed
    from cpd.study.sweeps.run import sweep

    _check(options)
    choices = options.formats, options.accumulator
    others = {n: getattr(options, n) for n in ("rounding", "scales", "bits", "overflow", "seed")}
    with users_mistakes():
        total = len(fitting(grid(*choices, **others))[0])
    quiet = is_stdout(options.csv) or is_stdout(options.json)
    with new_progress(quiet=quiet, unit="cells") as progress:
        bar = progress.add_task("measuring", total=total, note="")
        with users_mistakes():
            found = sweep(
                _tensors(options),
                *choices,
                **others,
                length=options.length,
                dots=options.dots,
                sample=options.sample,
                accuracy=None if options.accuracy is None else _function(options.accuracy),
                folder=options.out,
                jobs=options.jobs,
                cluster=options.cluster,
                cluster_options=options.cluster_options,
                done=lambda _: progress.advance(bar),
                tell=_warn,
            )
            front = found.front(options.error, options.cost)
    for text in mixed(options.formats):
        _warn(text)
    for text in found.left_out:
        _warn(f"left out: {text}")
    if not quiet:
        _show(found, len(front), options)
    _write(found, options)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Finds out before the work what is wrong."""
    if bool(options.files) == (options.capture is not None):
        raise UsageError("give files of tensors, or a function by --capture")
    with users_mistakes():
        for file in options.files:
            check_readable(Path(file))
    check_tables(options)
    if options.out is not None:
        importlib.import_module("cpd.study.sweeps.page")  # with what it needs
        with users_mistakes():
            options.out.mkdir(parents=True, exist_ok=True)


def _tensors(options: argparse.Namespace) -> Any:
    if options.capture is None:
        return options.files
    from cpd.study.sweeps.capture import capture

    captured = _function(options.capture)()
    if not isinstance(captured, tuple) or len(captured) not in (2, 3):
        raise UsageError(
            f"--capture {options.capture} must give (model, inputs) or (model, inputs, loss), got "
            f"{type(captured).__name__}"
        )
    return capture(*captured)


def _function(text: str) -> Callable[..., Any]:
    """A function of the user's, of a module that Python finds from the current folder too."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError(f"must be MODULE:FUNCTION, got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise UsageError(f"{text}: no module {error.name!r}") from error
    if not callable(found):
        raise UsageError(f"{text}: the module {module!r} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def _warn(text: str) -> None:
    print(f"cpd sweep: warning: {text}", file=sys.stderr)


def _show(found: "Sweep", on_front: int, options: argparse.Namespace) -> None:
    error = options.error or found.error
    console = new_console()
    sampled = "" if found.sample is None else f" (at most {found.sample:,} of each)"
    reused = "" if not found.reused else f", {found.reused} of them from {options.out}"
    console.print(
        f"{counted(len(found.tensors), 'tensor')}, {counted(found.values, 'value')}{sampled}; "
        f"{counted(len(found), 'cell')}{reused}; {on_front} on the front of {error} against "
        f"{options.cost}",
        soft_wrap=True,
    )
    head, rows = found.table(options.error, options.cost)
    broken = {name: re.sub(r"(?<=r)(?=flow)|(?<=Accu)(?=m)", MAY_BREAK, name) for name in head}
    table = new_table(*broken.values(), "")
    for number, name in enumerate(head):
        if name in ("Rounding", "Accumulator"):
            table.columns[number].justify = "left"
            table.columns[number].no_wrap = False
    for texts, best in rows:
        if best or not options.front:
            table.add_row(*texts, "front" if best else "", style="bold" if best else None)
    console.print(table)
    lost = [f"{x['name']} ({x['nonfinite']:,})" for x in found.tensors if x["nonfinite"]]
    if lost:
        console.print(f"NaN and infinities were left out: {', '.join(lost)}", soft_wrap=True)


def _write(found: "Sweep", options: argparse.Namespace) -> None:
    from cpd._files import write_text

    if options.out is not None:
        found.to_csv(options.out / "cells.csv", options.error, options.cost)
        found.to_json(options.out / "sweep.json")
        found.plot(options.out / "front.png", options.error, options.cost)
        found.report(options.out / "report.html")
    if options.csv is not None:
        found.to_csv(options.csv, options.error, options.cost)
    if options.json is not None:
        found.to_json(options.json)
    if options.plot is not None:
        found.plot(options.plot, options.error, options.cost)
    if options.out is not None and not (is_stdout(options.csv) or is_stdout(options.json)):
        write_text(Path("-"), f"report {options.out / 'report.html'}\n")
