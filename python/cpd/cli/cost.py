# SPDX-License-Identifier: Apache-2.0
"""`cpd cost`: the time, bytes and price of a training step by number of ranks."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd.cli import options as opt
from cpd.cli.errors import UsageError, users_mistakes, warn
from cpd.cli.output import (
    MAY_BREAK,
    check_tables,
    counted,
    csv_text,
    new_console,
    new_progress,
    new_table,
    write_tables,
)
from cpd.comm.spec import as_reduce
from cpd.numeric.shown import percent
from cpd.numeric.warned import PrecisionWarning

if TYPE_CHECKING:
    from cpd.study.machines import Machine
    from cpd.study.networks import Network
    from cpd.study.published import Cell
    from cpd.study.step_rows import StepRow


_MACHINE = "ec2-p2"
_RANKS = [4, 8, 16]


def register(commands: opt.Commands) -> None:
    """Adds the command `cost`."""
    opt.command(commands, "cost", _run, Options)


@dataclass
class Step:
    """Options of the step."""

    compute: float | None = opt.option(
        "seconds of the computation", absent="from published rates", metavar="S"
    )
    batch: int | None = opt.option("samples of each rank", absent="the published number")
    codec_gbps: str | None = opt.option(
        "GB/s of binary32 values that a codec encodes, and also decodes; or measured: its speed on "
        "this CPU",
        absent="the machine's",
        metavar="X",
    )
    mean_bits: float | None = opt.option(
        "mean bits a value of codecs of variable sizes", absent="their largest size"
    )


@dataclass
class Published:
    """Options of published figures."""

    figure: str | None = opt.option(
        "compare with what a paper publishes, as grubic-10", metavar="NAME"
    )
    shared: bool = opt.option(
        "fit a third constant: what the GPUs of a host share, such as its memory", False
    )


@dataclass
class Results(opt.Tables):
    """Options of the results."""

    plot: Path | None = opt.plot_file("samples a second")


@dataclass
class Options:
    """Estimate time, bytes and price of a training step.

    Computes the time of a training step: computation, codec and messages, with the bytes that a
    rank sends and the price. It marks the rows on the Pareto front. No other row is at least as
    good in samples a second, the price of a sample (or seconds of GPUs, if no price is known) and
    round-off, and better in one of them.

    The exchange itself, run without values, gives the messages. Each of its steps takes as
    long as its longest message: `alpha` seconds plus its bytes over `beta` bytes a second, within a
    host or between hosts. The GPUs of a host share its link, and each message passes its GPU's
    `port`. For APS and formats without NaN the ranks first agree on the largest magnitude of each
    tensor, which takes 4 bytes a tensor. Two times are shown: all parts one after another, and
    codec and messages at the same time.

    The computation follows from published rates of one K80 and the machine's speed, unless
    --compute is given. The speed of the codec is the machine's `codec_gbps`, unless --codec-gbps is
    given; the lines below the table say which. Codecs of variable sizes count with their largest
    size, unless --mean-bits is given.

    Networks: alexnet, vgg19, vgg-a, bn-inception, resnet50, resnet110, resnet152, lstm. Machines:
    ec2-p2, ec2-p2-nccl, dgx-1, dgx-1-mpi, ethernet-1g, ethernet-10g, ethernet-100g, nvlink-like; a
    .toml file of one (like cpd/study/machines.toml); or a text such as 'alpha=1e-5 beta=1e10 gpus=8
    alpha_between=5e-6 beta_between=5e10 port=1.25e10 dollars=30'.

    --gradients measures the round-off of each all-reduce on the ranks of a file, as cpd roundoff
    does. Without --model its tensors are the network.

    --figure compares the model with what a paper publishes, cell by cell: grubic-6 to grubic-16,
    qsgd-2, terngrad-5. For tables the constants of the links are fitted to the rows of 32 bits
    alone. The time of a codec, which is not published for those GPUs, is 0 unless --codec-gbps is
    given.
    """

    model: str | None = opt.option(
        "the network, one of those above", absent="the --gradients", metavar="NAME"
    )
    machine: str | None = opt.machine(_MACHINE)
    ranks: list[int] | None = opt.option(
        "numbers of ranks; '…' or '...' continues with the same factor, as in 4,8,…,64",
        absent="4,8,16",
        type=opt.integers,
        metavar="N,…",
    )
    reduce: list[str] | None = opt.reduce("fp32")
    step: Step = opt.group(Step, "the step")
    source: opt.GradientsFile = opt.group(opt.GradientsFile, "the round-off")
    published: Published = opt.group(Published, "published figures")
    results: Results = opt.group(Results, "the results")


def _run(options: Options) -> int:
    check_tables(options.results)
    if options.published.figure is not None:
        return _figure(options, options.published.figure)
    if options.published.shared:
        raise UsageError("--shared needs --figure")
    return _steps(options)


# ---- steps ----------------------------------------------------------------------------------


def _steps(options: Options) -> int:
    from cpd.study.machines import Machine
    from cpd.study.step_rows import step_rows

    world, texts = options.ranks or _RANKS, options.reduce or ["fp32"]
    with users_mistakes():
        on = Machine(options.machine or _MACHINE)
    rate = _codec_gbps(options.step.codec_gbps)
    with users_mistakes():
        for text in texts:
            as_reduce(text)
    network, largest, roundoffs, measured = _gradients(options, texts)
    results = options.results
    with new_progress(quiet=results.to_stdout, unit="rows") as progress:
        bar = progress.add_task("modelling", total=len(world) * len(texts), note="")
        with users_mistakes(), _warned_in_lines():
            rows = step_rows(
                network,
                on,
                world,
                texts,
                compute=options.step.compute,
                batch=options.step.batch,
                codec_gbps=rate,
                bits=options.step.mean_bits,
                largest=largest,
                roundoffs=roundoffs,
                done=lambda: progress.advance(bar),
            )
    if not results.to_stdout:
        _show(rows, network, on)
        if roundoffs is not None and any(row.step.ranks != measured for row in rows):
            new_console().print(
                f"round-off: of the file's {counted(measured, 'rank')}, in every row",
                soft_wrap=True,
            )
    table = [row.json() for row in rows]
    setting = {"network": network.name, "values": network.values, "machine": asdict(on)}
    write_tables(results, lambda: csv_text(table), lambda: {**setting, "rows": table})
    if results.plot is not None:
        from cpd.study.step_plot import draw_rows

        draw_rows(results.plot, rows, f"{network.name} on {on.name}")
    return 0


@contextmanager
def _warned_in_lines() -> Iterator[None]:
    """Prints each warning of a wire once, in one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrecisionWarning)
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        warn("cost", text)


def _codec_gbps(text: str | None) -> Any:
    if text in (None, "measured"):
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"a codec's rate must be a number or 'measured', got {text!r}") from None


def _gradients(
    options: Options, texts: list[str]
) -> "tuple[Network, list[float] | None, dict[str, float] | None, int]":
    """Returns the network, and of gradients the largest magnitude of each tensor.

    Also the round-off of each all-reduce, and the number of ranks of these.
    """
    from cpd.study.networks import Network

    file = options.source.gradients
    if file is None:
        if options.source.round:
            raise UsageError("--round needs --gradients")
        if options.model is None:
            raise UsageError("give a network by --model, gradients by --gradients, or --figure")
        with users_mistakes():
            return Network(options.model), None, None, 0
    from cpd.study import roundoff
    from cpd.study.gradients import load_gradients

    with users_mistakes():
        loaded = load_gradients(file, options.source.round)
        errors = {}
        for text in texts:
            spec = as_reduce(text)
            size = min(spec.group_size or loaded.ranks, loaded.ranks)
            errors[text] = roundoff(loaded.per_rank, spec, [size])[size].relative_rms
        if options.model is not None:
            return Network(options.model), None, errors, loaded.ranks
    shapes = tuple(layer.shape for layer in loaded.per_rank[0])
    layers = zip(*loaded.per_rank, strict=True)
    largest = [max(float(np.abs(x).max(initial=0)) for x in ranks) for ranks in layers]
    return Network._of(name=file.stem, shapes=shapes), largest, errors, loaded.ranks


def _show(rows: "list[StepRow]", network: "Network", on: "Machine") -> None:
    console = new_console()
    source = f" ({on.summary})" if on.summary else ""
    console.print(
        f"{network.name}, {counted(network.values, 'value')}, on {on.name}{source}", soft_wrap=True
    )
    has_price = any(row.step.dollars_an_hour for row in rows)
    has_error = any(row.roundoff is not None for row in rows)
    exchanges = dict.fromkeys(row.step.exchange for row in rows)
    has_exchange = len(exchanges) > 1
    head = ["Wire", *[f"Ex{MAY_BREAK}change"] * has_exchange, "Ranks"]
    head += [f"{name} ms" for name in _TIMES]
    head += [f"Sam{MAY_BREAK}ples /s", f"Speed{MAY_BREAK}up", "MB a rank"]
    head += ["$ / 1,000 steps"] * has_price + ["Round-off"] * has_error
    table = new_table(*head, "")
    for column in table.columns[: 1 + has_exchange]:
        column.no_wrap = False
    for row in rows:
        step = row.step
        cells = [row.wire, *[step.exchange] * has_exchange, str(step.ranks)]
        times = (step.computation, step.codec, step.messages, step.apart, step.overlapped)
        cells += [_milliseconds(seconds) for seconds in times]
        cells += [f"{step.samples_a_second:,.1f}", f"{row.speedup:.2f}×"]
        cells += [("" if step.exact else "≤ ") + f"{step.bytes_sent / 1e6:,.2f}"]
        if has_price:
            cells.append(f"{step.dollars():,.2f}" if step.dollars_an_hour else "")
        if has_error:
            cells.append("" if row.roundoff is None else percent(row.roundoff))
        table.add_row(*cells, "front" if row.front else "", style="bold" if row.front else None)
    console.print(table)
    if not has_exchange:
        console.print(f"exchange {next(iter(exchanges))}", soft_wrap=True)
    for source in dict.fromkeys(row.step.codec_source for row in rows if row.step.codec_source):
        console.print(f"codec: {source}", soft_wrap=True)


_TIMES = (
    f"Compu{MAY_BREAK}tation",
    "Codec",
    f"Mes{MAY_BREAK}sages",
    "Step",
    f"Over{MAY_BREAK}lapped",
)


def _milliseconds(value: float) -> str:
    """Four digits, or all those before the point."""
    shown = value * 1e3
    return f"{shown:.4g}" if shown < 1e4 else f"{shown:,.0f}"


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:,.3f} s"
    return f"{value * 1e3:.3f} ms" if value >= 1e-3 or value == 0 else f"{value * 1e6:.2f} µs"


# ---- figures ----------------------------------------------------------------------------------


def _figure(options: Options, figure: str) -> int:
    from cpd.study.published import by_ratio, compared, rms

    flags = opt.changed(options) | opt.changed(options.step)
    for name in ("model", "machine", "ranks", "reduce", "compute", "batch"):
        if name in flags:
            raise UsageError(f"--figure has its own {flags[name]}")
    results, shared = options.results, options.published.shared
    flags |= opt.changed(options.source) | opt.changed(results)
    for name in ("mean_bits", "gradients", "plot"):
        if name in flags:
            raise UsageError(f"--figure takes no {flags[name]}")
    if options.step.codec_gbps == "measured":
        raise UsageError("--figure takes a codec's rate as a number, not 'measured'")
    with users_mistakes():
        cells = compared(figure, _codec_gbps(options.step.codec_gbps), shared)
    rows = [{**asdict(cell), "error": cell.error} for cell in cells]
    curve = by_ratio([1, 2, 4, 8, 16, 32, 64, 128]) if figure == "grubic-16" else []
    if not results.to_stdout:
        console = new_console()
        for line in _fitted(figure, shared):
            console.print(line, soft_wrap=True)
        _show_cells(cells)
        if curve:
            console.print("AlexNet with larger gradients, 8 GPUs by NCCL, 8 bits:")
            for ratio, speedup in curve:
                console.print(f"  {ratio:8.3f} MB/GFLOP  {speedup:.3f}×")
        console.print(f"RMS of the errors: {percent(rms(cells))} of {counted(len(cells), 'cell')}")
    data: dict[str, Any] = {"figure": figure, "cells": rows, "rms": rms(cells)}
    if curve:
        data["by_ratio"] = [list(point) for point in curve]
    write_tables(results, lambda: csv_text(rows), lambda: data)
    return 0


def _fitted(figure: str, with_shared: bool) -> list[str]:
    from cpd.study.published import fit, table_of

    source = table_of(figure)
    if source is None:
        return []
    constants = fit(source, with_shared)
    shared = f", shared {constants.shared / 1e9:.3g} GB/s" if constants.shared else ""
    lines = [
        f"fitted to the rows of 32 bits: alpha {_seconds(constants.alpha)}, "
        f"beta {constants.beta / 1e9:.3g} GB/s{shared}; RMS error {percent(constants.error)}"
    ]
    if constants.left_out:
        left = ", ".join(f"{name} on {ranks}" for name, ranks in constants.left_out)
        lines.append(f"left out of the fit, as faster than their computation alone: {left}")
    return lines


def _show_cells(cells: "list[Cell]") -> None:
    from cpd.study.published import rms

    console = new_console()
    has_source = any(cell.source for cell in cells)
    head = ["Network", "Wire", "Ranks", "Quantity", "Published", "Model", "Error"]
    table = new_table(*head, *["Source"] * has_source)
    for column in (1, 3, 7):
        if column < len(table.columns):
            table.columns[column].justify = "left"
            table.columns[column].no_wrap = False
    for cell in cells:
        relation = "" if cell.relation == "=" else f"{cell.relation} "
        texts = [cell.network, cell.wire, str(cell.ranks), cell.quantity]
        texts += [f"{relation}{cell.published:,.6g}", f"{cell.predicted:,.4g}"]
        texts += [f"{cell.error:+.1%}"]
        table.add_row(*texts, *[cell.source] * has_source)
    console.print(table)
    if has_source:
        return
    summary = new_table("Wire", "Cells", "RMS error", "Mean", "Worst")
    for wire in dict.fromkeys(cell.wire for cell in cells):
        mine = [cell for cell in cells if cell.wire == wire]
        errors = [cell.error for cell in mine]
        worst = max(errors, key=abs)
        mean = sum(errors) / len(errors)
        summary.add_row(wire, str(len(mine)), f"{rms(mine):.1%}", f"{mean:+.1%}", f"{worst:+.1%}")
    console.print(summary)
