# SPDX-License-Identifier: Apache-2.0
"""`cpd cost`: estimates time, bytes and price of a training step for numbers of ranks."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd._files import csv_text
from cpd.cli import options as opt
from cpd.cli.errors import UsageError, users_mistakes, warn
from cpd.cli.output import (
    MAY_BREAK,
    check_tables,
    counted,
    new_console,
    new_progress,
    new_table,
    write_tables,
)
from cpd.cli.roundoff_output import print_averaged
from cpd.comm.spec import as_reduce
from cpd.numeric.shown import percent
from cpd.numeric.warned import PrecisionWarning

if TYPE_CHECKING:
    from cpd.study.machines import Machine
    from cpd.study.networks import Network
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
        "seconds of the computation of a step", absent="estimated from published rates", metavar="S"
    )
    batch: int | None = opt.option("number of samples of each rank", absent="the published number")
    codec_gbps: str | None = opt.option(
        "the speed at which a codec encodes, and at which it decodes, in GB/s of binary32 values; "
        "or the word measured: the speed on this CPU",
        absent="the machine's",
        metavar="X",
    )
    mean_bits: float | None = opt.option(
        "mean number of bits per value, for codecs of variable size", absent="the largest size"
    )


@dataclass
class Results(opt.Tables):
    """Options for the output of results."""

    plot: Path | None = opt.plot_file("samples per second")


@dataclass
class Options:
    """Estimate time, bytes and price of a training step.

    Computes the time of a training step (computation, codec and messages), the bytes that a rank
    sends, and the price. It marks the rows on the Pareto front. A row is on the front if no other
    row is at least as good in samples per second, price of a sample and round-off, and better in
    one of these. If no price is known, GPU seconds replace the price.

    The messages are found by a run of the real exchange without values. Each step of the exchange
    takes as long as its longest message: `alpha` seconds plus its bytes over `beta` bytes a second,
    within a host or between hosts. The GPUs of a host share its link, and each message passes its
    GPU's `port`. For APS, and for formats without NaN, the ranks first agree on the largest
    magnitude of each tensor, in messages of 4 bytes a tensor. Two times are shown: one with all
    parts one after another, and one with codec and messages at the same time.

    The time of the computation is estimated from published rates of one K80 and the machine's
    speed, unless --compute is given. The speed of the codec is the machine's `codec_gbps`, unless
    --codec-gbps is given. The lines below the table report both. For codecs of variable size, the
    largest size is used, unless --mean-bits is given.

    Networks: alexnet, vgg19, vgg-a, bn-inception, resnet50, resnet110, resnet152, lstm. Machines:
    ec2-p2, ec2-p2-nccl, dgx-1, dgx-1-mpi, ethernet-1g, ethernet-10g, ethernet-100g, nvlink-like; a
    .toml file with a machine (like cpd/study/machines.toml); or a text such as 'alpha=1e-5
    beta=1e10 gpus=8 alpha_between=5e-6 beta_between=5e10 port=1.25e10 dollars=30'.

    --gradients measures the round-off of each all-reduce on the ranks of a file, as cpd roundoff
    does. If an all-reduce gives a sum that is not finite, its round-off counts as infinite, is
    shown as –, and its rows are not on the front. Without --model, the tensors of the file are the
    network.

    `cpd study figure` (of the package cpd-lab) compares this model with published times.
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
    results: Results = opt.group(Results, "the results")


def _run(options: Options) -> int:
    from cpd.study.machines import Machine
    from cpd.study.step_rows import step_rows

    check_tables(options.results)
    world, texts = options.ranks or _RANKS, options.reduce or ["fp32"]
    with users_mistakes():
        on = Machine(options.machine or _MACHINE)
    rate = _codec_gbps(options.step.codec_gbps)
    with users_mistakes():
        for text in texts:
            opt.reduce_of(text)
    network, largest, roundoffs, measured = _gradients(options, texts)
    results = options.results
    with new_progress(quiet=results.to_stdout, unit="rows") as progress:
        bar = progress.add_task("modeling", total=len(world) * len(texts), note="")
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
        if roundoffs is not None:
            print_averaged(new_console(), {text: as_reduce(text) for text in texts})
    table = [row.json() for row in rows]
    setting = {"network": network.name, "values": network.values, "machine": asdict(on)}
    write_tables(results, lambda: csv_text(table), lambda: {**setting, "rows": table})
    if results.plot is not None:
        from cpd.study.step_plot import draw_rows

        draw_rows(results.plot, rows, f"{network.name} on {on.name}")
    return 0


@contextmanager
def _warned_in_lines() -> Iterator[None]:
    """Prints each warning of a codec or format once, in one line."""
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
        raise UsageError(f"--codec-gbps must be a number or 'measured', got {text!r}") from None


def _gradients(
    options: Options, texts: list[str]
) -> "tuple[Network, list[float] | None, dict[str, float] | None, int]":
    """Returns the network, and three results from the file of `--gradients`.

    The results are the largest magnitude of each tensor, the round-off of each all-reduce in
    `texts`, and the number of ranks. Without a file, they are None, None and 0. With `--model`, the
    largest magnitudes are None.
    """
    from cpd.study.networks import Network

    file = options.source.gradients
    if file is None:
        if options.source.round:
            raise UsageError("--round needs --gradients")
        if options.model is None:
            raise UsageError("give a network by --model, or gradients by --gradients")
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
            found = roundoff(loaded.per_rank, spec, [size])[size]
            errors[text] = math.inf if found.non_finite else found.relative_rms
            if found.non_finite:
                sums = "no sum is" if math.isinf(found.relative_rms) else "not all sums are"
                warn("cost", f"{text}: {sums} finite")
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
    head = ["Sum", *[f"Ex{MAY_BREAK}change"] * has_exchange, "Ranks"]
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
        cells += [("" if step.exact else "≤ ") + _megabytes(step.bytes_sent)]
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
    """Returns seconds as milliseconds, with four significant digits, or as a whole number."""
    shown = value * 1e3
    return f"{shown:.4g}" if shown < 1e4 else f"{shown:,.0f}"


def _megabytes(number: float) -> str:
    """Returns bytes as MB with two decimals.

    Below 1 MB, the text has three significant digits.
    """
    shown = number / 1e6
    return f"{shown:,.2f}" if shown >= 1 or number == 0 else f"{shown:.3g}"
