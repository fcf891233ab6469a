# SPDX-License-Identifier: Apache-2.0
"""`cpd study`: the papers' tables and figures, measured again."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.options import Commands, Help, Parser, add_command, integer, jobs_arguments
from cpd.cli.output import counted, new_console, new_progress, new_table
from cpd_lab.cli.cells_bar import CellsBar

if TYPE_CHECKING:
    from cpd_lab.papers.study import Cell, Shown, Study

_TEXT = """\
Measures what five papers on gradients in few bits show: a study is a table of cells
(model, data, wire, nodes, seed), and each cell's result is a file of its own in
--out, named by the hash of its options. A run that is interrupted loses one cell, and
the next run goes on. Cells of the same options are shared by all studies.

  cpd study list                    studies, cells and minutes
  cpd study list --size full        whether size full has the paper's settings
  cpd study run aps-table4          measures its cells and prints its table
  cpd study run all --size smoke    seconds: one cell of each kind
  cpd study report                  out/study/report.html

CIFAR-10 is looked for in $CPD_DATA, as `cpd train --model resnet18` says.
"""
_OUT = Path("out/study")
_SEEDS = {"smoke": 1, "small": 3, "full": 3}


def register(commands: Commands) -> None:
    """Adds the command `study`."""
    parser = add_command(commands, "study", _run, "the papers' tables and figures", _TEXT)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = _action(actions, "list", "print studies, cells and minutes")
    _sizes(listing)
    running = _action(actions, "run", "measure studies")
    running.add_argument("names", nargs="+", metavar="NAME", help="studies; all: every one")
    _sizes(running)
    jobs_arguments(running, "1")
    running.add_argument("--device", help="where models compute: cpu, cuda or cuda:N; default cpu")
    running.add_argument(
        "--stale", action="store_true", help="measure again what other sources measured"
    )
    reporting = _action(actions, "report", "make the page of what is measured")
    _sizes(reporting)
    reporting.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="write NAME.json of each study there, too; default: not written",
    )
    for subparser in (running, reporting):
        subparser.add_argument(
            "-o",
            "--out",
            type=Path,
            default=_OUT,
            metavar="DIR",
            help=f"the folder of the cells; default {_OUT}",
        )


def _action(actions: Any, name: str, help: str) -> Parser:
    parser: Parser = actions.add_parser(
        name, help=help, description=f"{help[0].upper()}{help[1:]}.", formatter_class=Help
    )
    return parser


def _sizes(parser: Parser) -> None:
    parser.add_argument(
        "--size",
        choices=tuple(_SEEDS),
        default="small",
        help="smoke: one cell of each kind, in seconds; small: minutes on two cores; full: the "
        "papers' settings where they can be had, for a GPU (see list --size full); default small",
    )
    integer(parser, "seeds", None, "runs of each cell; default 3, of size smoke 1")


def _run(options: argparse.Namespace) -> int:
    if options.seeds is None:
        options.seeds = _SEEDS[options.size]
    return {"list": _list, "run": _measure, "report": _report}[options.action](options)


def _list(options: argparse.Namespace) -> int:
    from cpd_lab.papers.catalogue import STUDIES

    table = new_table("study", "asks", "cells", "minutes")
    for study in STUDIES.values():
        cells = study.cells(options.size, options.seeds)
        minutes = sum(cell.minutes for cell in cells)
        text = f"size full: {study.full}" if options.size == "full" else study.text
        table.add_row(study.name, text, str(len(cells)), f"{minutes:.0f}")
    console = new_console()
    console.print(table)
    console.print("Minutes are estimates for one process; --jobs N divides them.")
    return 0


def _measure(options: argparse.Namespace) -> int:
    from cpd_lab.papers.catalogue import studies_named
    from cpd_lab.papers.run import is_stale, run
    from cpd_lab.papers.study import Results

    with users_mistakes():
        studies = studies_named(options.names)
        cells = {study.name: _cells(study, options) for study in studies}
    every = [cell for of in cells.values() for cell in of]
    with new_progress(unit="cells") as progress:
        bar = CellsBar(progress, every)
        with users_mistakes():
            measurements = run(
                every,
                options.out,
                jobs=1 if options.jobs is None else options.jobs,
                again=is_stale if options.stale else None,
                cluster=options.cluster,
                cluster_options=options.cluster_options,
                done=bar.done,
                tell=_warn,
            )
    by_key = {measurement.cell.key: measurement for measurement in measurements}
    for study in studies:
        results = Results(_labelled(cells[study.name], by_key))
        _print(study, study.show(results), options.size)
    return 0


def _cells(study: "Study", options: argparse.Namespace) -> "list[Cell]":
    from dataclasses import replace

    cells = study.cells(options.size, options.seeds)
    if options.device is None:
        return cells
    return [
        replace(cell, options={**cell.options, "device": options.device})
        if "model" in cell.options
        else cell
        for cell in cells
    ]


def _labelled(cells: "Sequence[Cell]", by_key: dict[str, Any]) -> list[Any]:
    """The results with the labels of this study's cells."""
    from dataclasses import replace

    return [replace(by_key[cell.key], cell=cell) for cell in cells if cell.key in by_key]


def _report(options: argparse.Namespace) -> int:
    from cpd_lab.papers.catalogue import STUDIES
    from cpd_lab.papers.page import write_page, write_summaries
    from cpd_lab.papers.run import kept
    from cpd_lab.papers.study import Results

    with users_mistakes():
        every: dict[str, Results] = {}
        for study in STUDIES.values():
            cells = study.cells(options.size, options.seeds)
            every[study.name] = Results(kept(cells, options.out, _warn))
        if not any(map(len, every.values())):
            raise UsageError(f"{options.out} has no measured cells of size {options.size}")
        write_page(every, options.out / "report.html")
        if options.store is not None:
            options.store.mkdir(parents=True, exist_ok=True)
            write_summaries(every, options.store)
    console = new_console()
    for name, results in every.items():
        whole = len(STUDIES[name].cells(options.size, options.seeds))
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


def _warn(text: str) -> None:
    print(f"cpd study: warning: {text}", file=sys.stderr)
