# SPDX-License-Identifier: Apache-2.0
"""`cpd demo`: accuracy without and with APS, round-off, and an HTML report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cpd.cli import options as opt
from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.output import counted, new_console, new_progress, new_table
from cpd.numeric import formats, shown
from cpd_lab.cli.cells_bar import CellsBar
from cpd_lab.shares import percent
from cpd_lab.train.runs import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cpd.study.series import RoundoffRow
    from cpd_lab.demo.results import Demo
    from cpd_lab.papers.study import Found


def register(commands: opt.Commands) -> None:
    """Adds the command `demo` to the parser of `cpd`."""
    opt.command(commands, "demo", _run, Options)


@dataclass
class Options:
    """Measure accuracy without and with APS, and round-off; write an HTML report."""

    out: Path = opt.option("the folder of the results", Path("out/demo"), metavar="DIR")
    seed: int = opt.seed()
    seeds: int = opt.option("seeds of each row of the accuracy table, which gives the range", 3)
    epochs: int = opt.option("epochs of every training run", 40)
    jobs: int | None = opt.option("processes", absent="one per core, up to 8")


def _run(options: Options) -> int:
    from cpd_lab.demo.cells import DemoOptions, cells

    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {options.jobs}")
    with users_mistakes():
        chosen = DemoOptions(seed=options.seed, seeds=options.seeds, epochs=options.epochs)
        options.out.mkdir(parents=True, exist_ok=True)
    from cpd_lab.demo.report import write_report
    from cpd_lab.demo.results import RESULTS, measure

    console = new_console()
    with new_progress(unit="cells") as progress:
        bar = CellsBar(progress, cells(chosen), more=chosen.seeds - 1)

        def done(measurement: Found) -> None:
            bar.done(measurement)
            if line := run_line(measurement):
                progress.console.print(line, soft_wrap=True)

        demo = measure(chosen, options.out, done, options.jobs or min(_cores(), 8))
    demo.write(options.out)
    page = write_report(demo, options.out)
    _print_demo(console, demo)
    console.print(f"\nreport  {page}\nresults {options.out / RESULTS}", soft_wrap=True)
    return 0


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def run_line(found: Found) -> str:
    """Returns the line that reports a finished training; "" for the round-off study."""
    if "label" not in found.result:
        return ""
    run = Run.read(found.result)
    return (
        f"  {run.label:<14} {counted(run.depth, 'hidden layer')}  seed {run.seed}  "
        f"accuracy {run.accuracy:.3f}  {found.seconds:4.1f} s  "
        f"{'' if run.state == 'finished' else run.state}".rstrip()
    )


def _print_demo(console: Console, demo: Demo) -> None:
    from cpd_lab.demo.results import accuracy_range, state_of

    table = new_table("Gradients", "Bits", "Accuracy", "Lost to zero", "State", "Weights")
    for run in demo.table:
        every = demo.of_all_seeds(run)
        table.add_row(
            run.label,
            str(formats.as_format(run.format).bits),
            accuracy_range(every),
            percent(run.underflow),
            state_of(every),
            run.weights,
        )
    seeds = 1 + len({run.seed for run in demo.repeats})
    table.title = f"Held-out accuracy, {counted(demo.options.nodes, 'node')}"
    if seeds > 1:
        first = demo.table[0].seed
        table.title += f"; ranges over {seeds} seeds, the rest of seed {first}"
    console.print(table)
    shallow = ", ".join(f"{run.label} {run.accuracy:.3f}" for run in demo.shallow)
    console.print(codec_table(demo))
    depth = counted(demo.shallow[0].depth, "hidden layer")
    console.print(f"With {depth} instead: {shallow}", soft_wrap=True)
    for line in stall_lines(demo):
        console.print(line, soft_wrap=True)
    console.print()
    rounded = roundoff_table(demo.roundoff.series[0].rows)
    wire = formats.as_format(demo.roundoff.format)
    rounded.title = (
        f"Round-off of ({wire.exp},{wire.man}) + APS, {demo.roundoff.nodes} nodes, "
        "ring across groups"
    )
    console.print(rounded)


def roundoff_table(rows: Sequence[RoundoffRow]) -> Table:
    """Returns a table of the round-off of one way to sum, by the size of a group of ranks."""
    table = new_table(
        "Group size", "Eq. 5 error", "Relative RMS", "Zero refs", "Not finite", "Steps"
    )
    for row in rows:
        table.add_row(
            str(row.group_size),
            shown.percent(row.error),
            shown.percent(row.relative_rms),
            str(row.zero_references),
            str(row.non_finite),
            str(row.steps),
        )
    return table


def codec_table(demo: Demo) -> Table:
    """Returns a table with a row for each compressor that replaced the format of the gradients."""
    table = new_table("Codec", "Bits a value", "Bytes", "Accuracy", "State")
    for run in demo.codecs:
        size = f"{run.bits_a_value:.2f}", f"{run.bytes:,}"
        table.add_row(run.wire, *size, f"{run.accuracy:.3f}", run.state)
    table.title = "Compressors in place of a format; bytes of a node's gradients"
    return table


def stall_lines(demo: Demo) -> list[str]:
    """Returns a warning for each format in which sums may stall, with the number of affected runs.

    A sum stalls if its partial sum is so large that adding a further term does not change it.
    """
    runs = demo.runs
    counts = Counter(run.format for run in runs if run.may_stall)
    nodes = demo.options.nodes
    lines = []
    for name, count in counts.items():
        wire = formats.as_format(name)
        lines.append(
            f"Sums in ({wire.exp},{wire.man}) may have stalled, in {count} of "
            f"{counted(len(runs), 'run')}: of {nodes} equal terms the first {2 ** (wire.man + 1)} "
            "count"
        )
    return lines
