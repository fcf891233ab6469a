# SPDX-License-Identifier: Apache-2.0
"""Writes the judged claims of studies as one HTML page, and as one JSON file for each study.

A finding is a claim of a paper with the measured figures and a verdict.
"""

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
"""Maps the verdict `Finding.holds` (True, False or None) to a word."""


def summary(study: Study, results: Results) -> dict[str, Any]:
    """Returns the results of a study's cells (its measurements), as JSON.

    The JSON has the CPUs, the versions, the tables, the findings, and the options and seconds of
    each cell. `stored` reads the tables back, so that claims can be judged again.
    """
    shown = study.show(results)
    return {
        "study": study.name,
        "cpu": sorted({measurement.cpu for measurement in results}),
        "version": sorted({measurement.version for measurement in results}),
        "stale_cells": sum(map(is_stale, results)),
        "seconds": round(sum(measurement.seconds for measurement in results), 1),
        "tables": [asdict(table) for table in shown.tables],
        "findings": findings_json(shown.findings),
        "cells": [
            {
                "label": measurement.cell.label,
                "key": measurement.cell.key,
                "seconds": measurement.seconds,
            }
            | {"options": measurement.cell.options}
            for measurement in results
        ],
    }


def stored(summary: dict[str, Any]) -> Measured:
    """Reads the tables, and the number of runs of each label, from a dict that `summary` made."""
    tables = [Table(table["title"], table["head"], table["rows"]) for table in summary["tables"]]
    return Measured(tables, Counter(cell["label"] for cell in summary["cells"]))


def findings_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Returns findings (judged claims) as dicts for JSON, with the verdict as a word."""
    return [{**asdict(finding), "holds": HOLDS[finding.holds]} for finding in findings]


def write_summaries(every: dict[str, Results], folder: Path) -> list[Path]:
    """Writes `NAME.json` for each study that has at least one measurement."""
    written = []
    for name, results in every.items():
        if len(results):
            written.append(folder / f"{name}.json")
            write_json(written[-1], summary(STUDIES[name], results))
    return written


def write_page(every: dict[str, Results], path: Path) -> None:
    """Writes the page of all studies as one HTML file that needs no other file and no network.

    The page lists the papers' tables and figures with their states and commands, the findings, and
    the tables and pictures of each study.
    """
    shown = {name: STUDIES[name].show(results) for name, results in every.items() if len(results)}
    write_text(path, _render(every, shown))


def _render(every: dict[str, Results], shown: dict[str, Shown]) -> str:
    of_row: dict[str, list[dict[str, str]]] = {}
    for finding in (finding for view in shown.values() for finding in view.findings):
        of_row.setdefault(finding.row, []).append(
            {"claim": finding.claim, "paper": finding.paper}
            | {"ours": finding.ours, "why": finding.why}
            | {"holds": HOLDS[finding.holds]}
        )
    sections = [
        {
            "name": name,
            "text": STUDIES[name].text,
            "shown": view,
            "cells": len(every[name]),
            "stale": sum(map(is_stale, every[name])),
            "cpus": ", ".join(sorted({measurement.cpu for measurement in every[name]})),
            "minutes": f"{sum(measurement.seconds for measurement in every[name]) / 60:.1f}",
        }
        for name, view in shown.items()
    ]
    return fill(
        Path(__file__).with_name("page.html.j2"),
        papers=papers(),
        of_row=of_row,
        sections=sections,
        measured=set(shown),
        version=VERSION,
    )
