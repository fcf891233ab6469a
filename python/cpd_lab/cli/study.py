# SPDX-License-Identifier: Apache-2.0
"""`cpd study`: measures the tables and figures of five papers again."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cpd.cli import options as opt
from cpd.cli.errors import UsageError, users_mistakes, warn
from cpd.cli.output import counted, new_console, new_progress, new_table
from cpd_lab.cli import figure
from cpd_lab.cli.cells_bar import CellsBar

if TYPE_CHECKING:
    from cpd_lab.papers.study import Cell, Shown, Size, Study
_SEEDS = {"smoke": 1, "small": 3, "full": 3}

_warn = functools.partial(warn, "study")


def register(commands: opt.Commands) -> None:
    """Adds the command `study` to the parser of `cpd`."""
    actions = opt.actions(commands, "study", Actions)
    opt.command(actions, "list", _list, Listing)
    opt.command(actions, "run", _measure, Running)
    opt.command(actions, "report", _report, Reporting)
    opt.command(actions, "figure", figure.run, figure.Options)


class Actions:
    """The papers' tables and figures.

    Repeats the experiments of five papers on gradients in few bits. A study is a table of cells. A
    cell is one measurement, for one choice of model, data, format or codec, nodes and seed. --out
    stores each cell's result in a file, named by the hash of the cell's options. An interrupted run
    loses only the cells in progress, and the next run continues. Studies share cells with equal
    options.

      cpd study list                    studies, cells and minutes
      cpd study list --size full        whether size full has the paper's settings
      cpd study run aps-table4          measures its cells and prints its table
      cpd study run all --size smoke    seconds: one cell of each kind
      cpd study report                  out/study/report.html
      cpd study figure grubic-10        published times of steps, and the model's

    CIFAR-10 is read from $CPD_DATA; `cpd train --help` describes it.
    """


@dataclass
class Listing:
    """Print each study's question, number of measurements and estimated minutes."""

    size: str = opt.option(
        "smoke: one cell of each kind, in seconds; small: minutes on two cores; full: the papers' "
        "settings where they can be had, for a GPU (see list --size full)",
        "small",
        choices=tuple(_SEEDS),
    )
    seeds: int | None = opt.option("runs of each cell", absent="3, of size smoke 1")

    def cells(self, study: "Study") -> "list[Cell]":
        """Returns a study's cells (its measurements) for the chosen size and number of seeds."""
        seeds = _SEEDS[self.size] if self.seeds is None else self.seeds
        return study.cells(cast("Size", self.size), seeds)


@dataclass
class Jobs(opt.Cluster):
    """Options of processes."""

    jobs: int | None = opt.jobs("1")


def _out() -> Any:
    """Returns the option `--out`, the folder that stores the measurements."""
    return opt.option(
        "the folder of the cells", Path("out/study"), flags=("-o", "--out"), metavar="DIR"
    )


@dataclass
class Running(Listing):
    """Measure studies."""

    names: list[str] = opt.argument("studies; all: every one", nargs="+", metavar="NAME")
    jobs: Jobs = opt.group(Jobs, "processes")
    device: str | None = opt.option(
        "where models compute: cpu, cuda or cuda:N", absent="cpu", metavar="NAME"
    )
    stale: bool = opt.option("measure again what other sources measured", False)
    out: Path = _out()

    def cells(self, study: "Study") -> "list[Cell]":
        """Returns a study's measurements. Measurements that train a model run on --device."""
        from dataclasses import replace

        cells = super().cells(study)
        if self.device is None:
            return cells
        return [
            replace(cell, options={**cell.options, "device": self.device})
            if "model" in cell.options
            else cell
            for cell in cells
        ]


@dataclass
class Reporting(Listing):
    """Make an HTML page of all measured studies."""

    store: Path | None = opt.option(
        "write NAME.json of each study there, too", absent="not written", metavar="DIR"
    )
    out: Path = _out()


def _list(options: Listing) -> int:
    from cpd_lab.papers.catalogue import STUDIES

    table = new_table("study", "asks", "cells", "minutes")
    for study in STUDIES.values():
        cells = options.cells(study)
        minutes = sum(cell.minutes for cell in cells)
        text = f"size full: {study.full}" if options.size == "full" else study.text
        table.add_row(study.name, text, str(len(cells)), f"{minutes:.0f}")
    console = new_console()
    console.print(table)
    console.print("Minutes are estimates for one process; --jobs N divides them.")
    return 0


def _measure(options: Running) -> int:
    from cpd_lab.papers.catalogue import studies_named
    from cpd_lab.papers.run import is_stale, run
    from cpd_lab.papers.study import Results

    with users_mistakes():
        studies = studies_named(options.names)
        cells = {study.name: options.cells(study) for study in studies}
    every = [cell for of in cells.values() for cell in of]
    with new_progress(unit="cells") as progress:
        bar = CellsBar(progress, every)
        with users_mistakes():
            measurements = run(
                every,
                options.out,
                jobs=1 if options.jobs.jobs is None else options.jobs.jobs,
                again=is_stale if options.stale else None,
                cluster=options.jobs.cluster,
                cluster_options=options.jobs.cluster_options,
                done=bar.done,
                tell=_warn,
            )
    by_key = {measurement.cell.key: measurement for measurement in measurements}
    for study in studies:
        results = Results(_labelled(cells[study.name], by_key))
        _print(study, study.show(results), options.size)
    return 0


def _labelled(cells: "Sequence[Cell]", by_key: dict[str, Any]) -> list[Any]:
    """Returns the measured results of `cells`, each with this study's label.

    Studies share measurements, so `by_key` may hold a measurement under the label of another study.
    """
    from dataclasses import replace

    return [replace(by_key[cell.key], cell=cell) for cell in cells if cell.key in by_key]


def _report(options: Reporting) -> int:
    from cpd_lab.papers.catalogue import STUDIES
    from cpd_lab.papers.page import write_page, write_summaries
    from cpd_lab.papers.run import kept
    from cpd_lab.papers.study import Results

    with users_mistakes():
        every: dict[str, Results] = {}
        for study in STUDIES.values():
            every[study.name] = Results(kept(options.cells(study), options.out, _warn))
        if not any(map(len, every.values())):
            raise UsageError(f"{options.out} has no measured cells of size {options.size}")
        write_page(every, options.out / "report.html")
        if options.store is not None:
            options.store.mkdir(parents=True, exist_ok=True)
            write_summaries(every, options.store)
    console = new_console()
    for name, results in every.items():
        whole = len(options.cells(STUDIES[name]))
        console.print(f"{name}: {len(results)} of {counted(whole, 'cell')}")
    console.print(f"report {options.out / 'report.html'}", soft_wrap=True)
    return 0


def _print(study: "Study", shown: "Shown", size: str) -> None:
    from cpd_lab.papers.page import HOLDS

    console = new_console()
    console.print(f"{study.name}: {study.text}", style="bold", soft_wrap=True)
    if size == "full":
        console.print(f"size full: {study.full}", soft_wrap=True)
    for shown_table in shown.tables:
        table = new_table(*shown_table.head, title=shown_table.title)
        for row in shown_table.rows:
            table.add_row(*row)
        console.print(table)
    for finding in shown.findings:
        why = f" ({finding.why})" if finding.why else ""
        console.print(
            f"{finding.row}: {finding.claim}: {HOLDS[finding.holds]}{why}\n"
            f"  paper {finding.paper}; ours {finding.ours}",
            soft_wrap=True,
        )
    for note in shown.notes:
        console.print(note, soft_wrap=True)
