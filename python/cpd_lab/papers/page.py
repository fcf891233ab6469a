# SPDX-License-Identifier: Apache-2.0
"""The findings of studies, as one HTML page and as a JSON file each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpd._files import write_json, write_text
from cpd.study.pages import fill
from cpd_lab.papers.catalogue import STUDIES, papers
from cpd_lab.papers.kinds import VERSION
from cpd_lab.papers.run import is_stale
from cpd_lab.papers.study import Finding, Measured, Results, Shown, Study, Table

HOLDS = {True: "yes", False: "no", None: "cannot tell"}
"""The words for a finding's `holds`."""


def summary(study: Study, results: Results) -> dict[str, Any]:
    """Returns the results of a study's cells, as JSON.

    It has machine, versions, tables, findings, and the options and seconds of each cell. `stored`
    reads the tables back, so that claims can be judged again.
    """
    shown = study.show(results)
    return {
        "study": study.name,
        "cpu": sorted({one.cpu for one in results}),
        "version": sorted({one.version for one in results}),
        "stale_cells": sum(map(is_stale, results)),
        "seconds": round(sum(one.seconds for one in results), 1),
        "tables": [asdict(table) for table in shown.tables],
        "findings": findings_json(shown.findings),
        "cells": [
            {"label": one.cell.label, "key": one.cell.key, "seconds": one.seconds}
            | {"options": one.cell.options}
            for one in results
        ],
    }


def stored(summary: dict[str, Any]) -> Measured:
    """The tables of a summary that was stored, and how many runs each label has."""
    tables = [Table(one["title"], one["head"], one["rows"]) for one in summary["tables"]]
    return Measured(tables, Counter(cell["label"] for cell in summary["cells"]))


def findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as a summary has them."""
    return [{**asdict(one), "holds": HOLDS[one.holds]} for one in findings]


def write_summaries(every: dict[str, Results], folder: Path) -> list[Path]:
    """Writes `NAME.json` for each study of which a cell is measured."""
    written = []
    for name, results in every.items():
        if len(results):
            written.append(folder / f"{name}.json")
            write_json(written[-1], summary(STUDIES[name], results))
    return written


def write_page(every: dict[str, Results], path: Path) -> None:
    """Writes the page of all studies.

    It has the papers' rows with their states and commands, the findings, and each study's tables
    and pictures. It needs no other file and no network.
    """
    shown = {name: STUDIES[name].show(found) for name, found in every.items() if len(found)}
    write_text(path, _render(every, shown))


def _render(every: dict[str, Results], shown: dict[str, Shown]) -> str:
    of_row: dict[str, list[dict[str, str]]] = {}
    for one in (finding for each in shown.values() for finding in each.findings):
        of_row.setdefault(one.row, []).append(
            {"claim": one.claim, "paper": one.paper, "ours": one.ours, "why": one.why}
            | {"holds": HOLDS[one.holds]}
        )
    sections = [
        {
            "name": name,
            "text": STUDIES[name].text,
            "shown": each,
            "cells": len(every[name]),
            "stale": sum(map(is_stale, every[name])),
            "cpus": ", ".join(sorted({one.cpu for one in every[name]})),
            "minutes": f"{sum(one.seconds for one in every[name]) / 60:.1f}",
        }
        for name, each in shown.items()
    ]
    return fill(
        Path(__file__).with_name("page.html.j2"),
        papers=papers(),
        of_row=of_row,
        sections=sections,
        measured=set(shown),
        version=VERSION,
    )
