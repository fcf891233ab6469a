# SPDX-License-Identifier: Apache-2.0
"""`cpd sweep`: measures formats, accumulators, roundings and scales on the user's tensors."""

import functools
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli import options as opt
from cpd.cli.errors import UsageError, users_mistakes, warn
from cpd.cli.output import (
    MAY_BREAK,
    check_readable,
    check_tables,
    counted,
    new_console,
    new_progress,
    new_table,
)

if TYPE_CHECKING:
    from cpd.study.sweeps.results import Sweep


_warn = functools.partial(warn, "sweep")


def register(commands: opt.Commands) -> None:
    """Adds the command `sweep`."""
    opt.command(commands, "sweep", _run, Options)


@dataclass
class Choices:
    """Options for the combinations to measure. They are arguments of `cpd.study.sweep`."""

    formats: str = opt.option("the formats, as patterns or names", "e[2-5]m[1-3]", metavar="NAME,…")
    accumulators: str = opt.accumulator(
        "accumulators of dot products", "fp32", flags=("--accumulator",), metavar="TEXT,…"
    )
    rounding: str = opt.option(
        "the roundings of the casts; stochastic:8 is stochastic rounding with 8 random bits",
        "nearest_even",
        metavar="MODE,…",
    )
    scales: str = opt.option(
        "the scales of the formats, as described above", "none", metavar="NAME,…"
    )
    bits: int | None = opt.option("measure only formats of N bits", absent="all")
    overflow: str = opt.overflow("saturate")
    seed: int = opt.seed()


@dataclass
class Measurement:
    """Options for the measurement of a cell (a combination).

    They are arguments of `cpd.study.sweep`.
    """

    length: int = opt.option("the largest number of terms of a dot product", 1024)
    dots: bool = opt.option("do not measure dot products", True)
    sample: int | None = opt.option("measure at most N values of each tensor", absent="all")
    accuracy: str | None = opt.option(
        "your function that returns the accuracy of a model with a cell's formats",
        metavar="MODULE:FUNCTION",
    )


@dataclass
class Jobs(opt.Cluster):
    """Options for processes and clusters. They are arguments of `cpd.study.sweep`."""

    jobs: int | None = opt.jobs("one, or one per CPU for large sweeps")


@dataclass
class Front:
    """Options of the Pareto front."""

    error: str | None = opt.option(
        "the error that determines the front: dot_error, relative_rms, mean_error, worst, "
        "underflow, overflow or accuracy",
        absent="accuracy if it is measured, else dot_error",
        metavar="NAME",
    )
    cost: str = opt.option(
        "the hardware cost that determines the front",
        "gates",
        choices=("gates", "bits", "multiplier", "aligner", "adder", "normalizer"),
    )
    front: bool = opt.option(
        "show only the rows on the front; CSV still has all rows, and a column that marks the "
        "front",
        False,
    )


@dataclass
class Results(opt.Tables):
    """Options for the output of results."""

    plot: Path | None = opt.plot_file("the front")
    out: Path | None = opt.option(
        "write cells, figures and a report to a folder", flags=("-o", "--out"), metavar="DIR"
    )


@dataclass
class Options:
    """Compare formats and accumulators on your tensors.

    Measures every combination of formats, accumulators, roundings and scales on tensors of yours:
    errors, SQNR, underflow, overflow, the error of dot products against dot products of the uncast
    values, and the hardware cost of a multiply-accumulate. It marks the rows on the Pareto front.
    No other row is better than these in error or cost and at least as good in the other.

    Files are .npy, .npz, .safetensors, .pt or .pth, such as a model's checkpoint. Nothing in them
    is executed. Only floating-point tensors are read, and values are rounded to binary32 first.
    Each tensor is divided by its RMS, so that all tensors have equal weight. Sums and blocks run
    along the last dimension; each value is cast and multiplied.

    A pattern such as e[2-5]m[1-3] stands for all formats with these exponent and mantissa bits.
    Other patterns are int[4-8] and, for accumulators, e8m[7,10,13] or int[24,32]. Lists are
    separated by commas, except in quotes or brackets. The names e2m1, e2m3 and e3m2 are finite
    formats, and a warning is printed if a pattern mixes them with others. e[2-5]m[1-3]:ieee or
    :finite stands for formats of one kind. Scales can be none, tensor or row (in fp32), mx (blocks
    of 32 values, in e8m0), nv (blocks of 16 values, in e4m3fn, with an outer fp32 scale of the
    tensor), or the words after the element in the text of a scaled format, such as '64 scale=e8m0'.
    Scaled formats such as mxfp4 have their own scales.

    --out stores each cell in a file, and writes cells.csv, sweep.json, front.png and report.html.
    If a sweep is interrupted, the same command continues it: it measures only cells that are
    missing, damaged or of other tensors.

    The cost is from the model cpd-2026: the bits of multiplier, aligner, adder and normalizer for
    each product, converted to two-input gates. Use it to compare formats, not to predict an area.
    """

    files: list[Path] = opt.argument("a file of tensors", nargs="*", metavar="FILE")
    capture: str | None = opt.option(
        "your function that returns the arguments of cpd.study.capture, (model, inputs) or (model, "
        "inputs, loss), in place of files",
        metavar="MODULE:FUNCTION",
    )
    choices: Choices = opt.group(Choices, "the choices")
    measurement: Measurement = opt.group(Measurement, "the measurement")
    jobs: Jobs = opt.group(Jobs, "processes")
    front: Front = opt.group(Front, "the front")
    results: Results = opt.group(Results, "the results")


def _run(options: Options) -> int:
    from cpd.study.sweeps.cells import fitting, grid
    from cpd.study.sweeps.patterns import mixed
    from cpd.study.sweeps.run import sweep

    _check(options)
    measurement = vars(options.measurement)
    if options.measurement.accuracy is not None:
        measurement = {**measurement, "accuracy": _function(options.measurement.accuracy)}
    with users_mistakes():
        total = len(fitting(grid(**vars(options.choices)))[0])
    results = options.results
    with new_progress(quiet=results.to_stdout, unit="cells") as progress:
        bar = progress.add_task("measuring", total=total, note="")
        with users_mistakes():
            swept = sweep(
                _tensors(options),
                **vars(options.choices),
                **measurement,
                **vars(options.jobs),
                folder=results.out,
                done=lambda _: progress.advance(bar),
                tell=_warn,
            )
            front = swept.front(options.front.error, options.front.cost)
    for text in mixed(options.choices.formats):
        _warn(text)
    for text in swept.left_out:
        _warn(f"left out: {text}")
    if not results.to_stdout:
        _show(swept, len(front), options)
    _write(swept, options)
    return 0


def _check(options: Options) -> None:
    """Raises an error for invalid options before the work begins."""
    if bool(options.files) == (options.capture is not None):
        got = "both" if options.files else "neither"
        raise UsageError(f"give either files of tensors or --capture, got {got}")
    with users_mistakes():
        for file in options.files:
            check_readable(file)
    check_tables(options.results)
    if options.results.out is not None:
        importlib.import_module("cpd.study.sweeps.page")  # with what it needs
        with users_mistakes():
            options.results.out.mkdir(parents=True, exist_ok=True)


def _tensors(options: Options) -> Any:
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
    """Returns the user's function from a module in Python's path or the current folder."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError(f"--capture must be MODULE:FUNCTION, got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise UsageError(f"{text}: no module {error.name!r}") from error
    if not callable(function):
        raise UsageError(f"{text}: the module {module!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _show(sweep: "Sweep", on_front: int, options: Options) -> None:
    error = options.front.error or sweep.error
    console = new_console()
    sampled = "" if sweep.sample is None else f" (at most {sweep.sample:,} of each)"
    reused = "" if not sweep.reused else f", {sweep.reused} of them from {options.results.out}"
    console.print(
        f"{counted(len(sweep.tensors), 'tensor')}, {counted(sweep.values, 'value')}{sampled}; "
        f"{counted(len(sweep), 'cell')}{reused}; {on_front} on the front of {error} against "
        f"{options.front.cost}",
        soft_wrap=True,
    )
    head, rows = sweep.table(error, options.front.cost)
    broken = {name: re.sub(r"(?<=r)(?=flow)|(?<=Accu)(?=m)", MAY_BREAK, name) for name in head}
    table = new_table(*broken.values(), "")
    for number, name in enumerate(head):
        if name in ("Rounding", "Accumulator"):
            table.columns[number].justify = "left"
            table.columns[number].no_wrap = False
    for texts, best in rows:
        if best or not options.front.front:
            table.add_row(*texts, "front" if best else "", style="bold" if best else None)
    console.print(table)
    lost = [f"{x['name']} ({x['nonfinite']:,})" for x in sweep.tensors if x["nonfinite"]]
    if lost:
        console.print(f"NaN and infinities were left out: {', '.join(lost)}", soft_wrap=True)


def _write(sweep: "Sweep", options: Options) -> None:
    from cpd._files import write_text

    results, front = options.results, (options.front.error, options.front.cost)
    if results.out is not None:
        sweep.to_csv(results.out / "cells.csv", *front)
        sweep.to_json(results.out / "sweep.json")
        sweep.plot(results.out / "front.png", *front)
        sweep.report(results.out / "report.html")
    if results.csv is not None:
        sweep.to_csv(results.csv, *front)
    if results.json is not None:
        sweep.to_json(results.json)
    if results.plot is not None:
        sweep.plot(results.plot, *front)
    if results.out is not None and not results.to_stdout:
        write_text(Path("-"), f"report {results.out / 'report.html'}\n")
