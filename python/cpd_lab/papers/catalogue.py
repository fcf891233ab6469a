# SPDX-License-Identifier: Apache-2.0
"""`STUDIES`, all studies by name, and `papers`, the list of the papers' tables and figures."""

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
"""The states of a paper's table or figure in this reproduction.

`reproduced`: a command measures it with the paper's own model and data. `substitute`: a command
measures it with another model or data; `Row.why` says why. `absent`: no command measures it yet.
`out of scope`: CPD computes nothing that it shows; `Row.why` says why.
"""


@dataclass(frozen=True)
class Row:
    """A table, a figure or a stated experiment of a paper.

    Attributes:
        name: `paper.row`, such as `aps.T4` for Table 4 of the APS paper.
        title: what the table or figure shows, in one line.
        state: one of STATES.
        why: the reason for a state other than `reproduced`, as a sentence.
        command: the command that measures the row; empty if no command does.
        values: the figures that the paper states.
    """

    name: str
    title: str
    state: str
    command: str = ""
    values: str = ""
    why: str = ""

    @property
    def studies(self) -> list[str]:
        """The names of the studies that `command` runs; empty unless it is `cpd study run`."""
        words = self.command.split()
        return words[3:] if words[:3] == ["cpd", "study", "run"] else []


@dataclass(frozen=True)
class Paper:
    """A paper and its rows in papers.toml: its tables, figures and stated experiments."""

    name: str
    title: str
    rows: tuple[Row, ...]


def papers() -> tuple[Paper, ...]:
    """Returns the papers in the order of papers.toml, with their figures from quotations.toml.

    A row of papers.toml is a table or a figure of a paper. Raises ValueError if a row has no valid
    state or refers to a label that quotations.toml lacks.
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
    """Returns the studies with these names; the single name `all` selects every study.

    Raises ValueError for an unknown name; the message suggests the nearest name.
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
