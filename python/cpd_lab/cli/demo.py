# SPDX-License-Identifier: Apache-2.0
"""`cpd demo`: accuracy without and with APS, round-off, and an HTML report."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.options import Commands, add_command, integer, seed_argument
from cpd.cli.output import counted, new_console, new_progress, new_table
from cpd.cli.roundoff_output import roundoff_table
from cpd.numeric import formats

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from cpd_lab.demo.report.results import Demo, Run


def register(commands: Commands) -> None:
    """Adds the command `demo`."""
    parser = add_command(
        commands, "demo", _run, "accuracy without and with APS, round-off, and an HTML report"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        metavar="DIR",
        help="the folder of the results; default out/demo",
    )
    seed_argument(parser)
    integer(parser, "seeds", 3, "seeds of each row of the accuracy table, which gives the range")
    integer(parser, "epochs", 40, "epochs of every training run")
    integer(parser, "jobs", None, "processes; default: one per core, up to 8")


def _run(options: argparse.Namespace) -> int:
    from cpd_lab.demo.report.demo import DemoOptions, measure, other_seeds, total_epochs
    from cpd_lab.demo.report.page import write_report

    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {options.jobs}")
    with users_mistakes():
        chosen = DemoOptions(seed=options.seed, seeds=options.seeds, epochs=options.epochs)
        other_seeds(chosen)
        options.out.mkdir(parents=True, exist_ok=True)
    console = new_console()
    with new_progress() as progress:
        demo = measure(chosen, _DemoProgress(progress, total_epochs(chosen)), options.jobs)
    demo.save(options.out)
    page = write_report(demo, options.out)
    _print_demo(console, demo)
    console.print(f"\nreport  {page}\nresults {options.out / 'results.json'}", soft_wrap=True)
    return 0


class _DemoProgress:
    """The demo's progress: one bar over all epochs, one line for each finished run."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._bar = progress.add_task("training", total=total, note="")

    def epoch(self, count: int) -> None:
        self._progress.advance(self._bar, count)

    def done(self, run: Run) -> None:
        self._progress.console.print(
            f"  {run.label:<14} {counted(run.depth, 'hidden layer')}  seed {run.seed}  "
            f"accuracy {run.accuracy:.3f}  {run.seconds:4.1f} s  "
            f"{'' if run.state == 'finished' else run.state}".rstrip(),
            soft_wrap=True,
        )


def _print_demo(console: Console, demo: Demo) -> None:
    from cpd_lab.demo.report.results import accuracy_range, state_of
    from cpd_lab.demo.shares import percent

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
    table.title = f"Held-out accuracy, {counted(demo.settings.nodes, 'node')}"
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


def codec_table(demo: Demo) -> Table:
    """A row for each compressor on the wire."""
    table = new_table("Codec", "Bits a value", "Bytes", "Accuracy", "State")
    for run in demo.codecs:
        size = f"{run.bits_a_value:.2f}", f"{run.bytes:,}"
        table.add_row(run.wire, *size, f"{run.accuracy:.3f}", run.state)
    table.title = "Compressors in place of a format; bytes of a node's gradients"
    return table


def stall_lines(demo: Demo) -> list[str]:
    """For each format whose sums may stall, the runs that they are in."""
    runs = demo.runs
    found = Counter(run.format for run in runs if run.may_stall)
    nodes = demo.settings.nodes
    lines = []
    for name, count in found.items():
        wire = formats.as_format(name)
        lines.append(
            f"Sums in ({wire.exp},{wire.man}) may have stalled, in {count} of "
            f"{counted(len(runs), 'run')}: of {nodes} equal terms the first {2 ** (wire.man + 1)} "
            "count"
        )
    return lines
