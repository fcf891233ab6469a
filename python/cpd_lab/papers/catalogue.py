# SPDX-License-Identifier: Apache-2.0
"""All studies by name, and the papers' tables and figures: `STUDIES`, `papers`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpd.numeric.names import did_you_mean
from cpd.numeric.shown import shown
from cpd_lab.papers.quotations import quoted
from cpd_lab.papers.studies import aps, digits, grubic, oland, terngrad
from cpd_lab.papers.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for module in (aps, grubic, digits, terngrad, oland)
    for study in module.STUDIES
}

STATES = ("reproduced", "substitute", "absent", "out of scope")
"""`reproduced`: by a command, with the paper's own subject. `substitute`: with another model or
data, and why. `absent`: no command yet. `out of scope`: nothing of ours to measure, and why."""


@dataclass(frozen=True)
class Row:
    """A table, figure or stated experiment of a paper.

    Attributes:
        name: `paper.row`, such as `aps.T4`.
        title: what it shows, in a line.
        state: one of STATES; `why`: a sentence where it is not `reproduced`.
        command: what measures it; empty where nothing does.
        values: the paper's figures.
    """

    name: str
    title: str
    state: str
    command: str = ""
    values: str = ""
    why: str = ""

    @property
    def studies(self) -> list[str]:
        """The studies that its command runs; empty for other commands."""
        words = self.command.split()
        return words[3:] if words[:3] == ["cpd", "study", "run"] else []


@dataclass(frozen=True)
class Paper:
    """A paper and its rows in papers.toml."""

    name: str
    title: str
    rows: tuple[Row, ...]


def papers() -> tuple[Paper, ...]:
    """Returns the papers of papers.toml, in its order, with the values of quotations.toml.

    Raises ValueError for a row without a state, and for a label that the row does not quote.
    """
    read = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
    return tuple(
        Paper(name, paper["title"], tuple(_row(name, *item) for item in paper["rows"].items()))
        for name, paper in read.items()
    )


def _row(paper: str, name: str, of: dict[str, Any]) -> Row:
    row = Row(f"{paper}.{name}", **of)
    row = replace(row, values=quoted(row.name, row.values))
    if row.state not in STATES:
        raise ValueError(f"{row.name}: state must be one of {', '.join(STATES)}")
    return row


def studies_named(names: Iterable[str]) -> list[Study]:
    """Returns the studies of these names.

    `all`: every one. Raises ValueError, which names the nearest.
    """
    chosen = list(names)
    if chosen == ["all"]:
        return list(STUDIES.values())
    for name in chosen:
        if name not in STUDIES:
            meant = did_you_mean(name, STUDIES, 0.4)
            known = ", ".join(STUDIES)
            raise ValueError(f"no study {shown(name)}; {meant and meant + ' '}there are {known}")
    return [STUDIES[name] for name in chosen]
