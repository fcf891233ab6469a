# SPDX-License-Identifier: Apache-2.0
"""The types of a study: `Cell` is a measurement, `Study` a table of cells, `Shown` its results."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from cpd.study.store import digest

Size = Literal["smoke", "small", "full"]
SIZES: tuple[Size, ...] = ("smoke", "small", "full")
"""The extent of a study's run.

`smoke`: one measurement of each kind, in seconds. `small`: minutes on two cores. `full`: the
paper's settings, where its models and data are available; `Study.full` describes the settings.
"""


@dataclass(frozen=True)
class Cell:
    """One measurement of a study.

    Attributes:
        kind: the name of the kind of measurement, in `cpd_lab.papers.kinds.KINDS`.
        options: everything that decides the result, as JSON. Kind and options form the cell's key.
        label: the label of the table's row to which the cell belongs. The cells of one row differ
            in their seeds.
        minutes: the estimated time on two cores, in minutes.
    """

    kind: str
    options: dict[str, Any] = field(hash=False)
    label: str = field(default="", compare=False)
    minutes: float = field(default=0.1, compare=False)

    @cached_property
    def key(self) -> str:
        """The name, without `.json`, of the file that stores the measurement's result."""
        return digest({"kind": self.kind, "options": self.options})


@dataclass(frozen=True)
class Found:
    """A measured cell.

    Attributes:
        cell: the cell.
        result: the measured values, as JSON.
        seconds: the time of the measurement, in seconds.
        cpu: the CPU on which it ran.
        version: CPD's version.
        sources: the digest of the source files that decide the result.
    """

    cell: Cell
    result: dict[str, Any]
    seconds: float
    cpu: str
    version: str
    sources: str


@dataclass(frozen=True)
class Spread:
    """The values of one figure, such as an accuracy, for several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    def text(self, digits: int = 1, factor: float = 1.0) -> str:
        """Returns the mean and the range, such as '48.0 (46.1 … 49.2)', or '48.0' for one seed."""
        low, high = factor * min(self.values), factor * max(self.values)
        mean = f"{factor * self.mean:.{digits}f}"
        return mean if len(self.values) == 1 else f"{mean} ({low:.{digits}f} … {high:.{digits}f})"


class Results:
    """The finished measurements of a study, in the study's order."""

    def __init__(self, found: Iterable[Found]) -> None:
        self.found = list(found)

    def __iter__(self) -> Iterator[Found]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    @property
    def labels(self) -> list[str]:
        """The labels of the finished measurements, each once, in the study's order."""
        return list(dict.fromkeys(measurement.cell.label for measurement in self.found))

    def of(self, label: str) -> list[Found]:
        """Returns the finished measurements with this label, one for each seed."""
        return [measurement for measurement in self.found if measurement.cell.label == label]

    def spread(self, label: str, figure: Callable[[dict[str, Any]], float]) -> Spread | None:
        """Returns `figure` of each result with this label; None if no result has the label."""
        values = tuple(figure(measurement.result) for measurement in self.of(label))
        return Spread(values) if values else None


@dataclass(frozen=True)
class Table:
    """A table whose entries are texts. The first column has the labels of the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """A claim of a paper, and the figures that were measured for it.

    Attributes:
        row: the row of papers.toml, such as `aps.T4`.
        claim: the claim, as a sentence.
        paper: the paper's figures.
        ours: the measured figures.
        holds: True if the measured figures support the claim, False if they contradict it, None if
            they cannot decide, as with one seed.
        why: a sentence on the difference from the paper; empty if it needs no explanation.
    """

    row: str
    claim: str
    paper: str
    ours: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class Shown:
    """The tables, the judged claims (findings) and the pictures of a study.

    `pictures` maps a title to an SVG element.
    """

    tables: Sequence[Table] = ()
    findings: Sequence[Finding] = ()
    pictures: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Measured:
    """The tables by which a study's claims are judged.

    The same tables are printed and stored, so a stored result can be judged again.

    Attributes:
        tables: the study's tables.
        seeds: maps a label to its number of runs.
    """

    tables: Sequence[Table]
    seeds: Mapping[str, int]

    def text(self, label: str, column: str | None = None) -> str | None:
        """Returns the entry of row `label` in the first table that has such a row.

        `column` is the head of the column; by default the second column is read. Returns None if
        the row is missing or was not run.
        """
        for table in self.tables:
            number = 1 if column is None else _index(table.head, column)
            for row in table.rows if number is not None else ():
                if row[0] == label and number is not None and row[number] not in ("", "not run"):
                    return row[number]
        return None

    def range(self, label: str, column: str | None = None, runs: str | None = None) -> Range | None:
        """Returns the figure of row `label` with its range over seeds; None if `text` finds none.

        The number of seeds is the number of runs with the label `runs`, by default `label`.
        """
        text = self.text(label, column)
        return None if text is None else Range.read(text, self.seeds.get(runs or label, 0))


def _index(head: Sequence[str], column: str) -> int | None:
    return list(head).index(column) if column in head else None


_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})(?: \(({_NUMBER}) … ({_NUMBER})\))?")


@dataclass(frozen=True)
class Range:
    """The mean and the range of a figure over seeds, rounded as a table prints them."""

    low: float
    mean: float
    high: float
    seeds: int
    text: str

    @classmethod
    def read(cls, text: str, seeds: int) -> Range:
        """Reads a table's figure, such as '48.0 (46.1 … 49.2)' (mean and range) or '48.0'.

        Raises ValueError for another text.
        """
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(f"not a figure over seeds: {text!r}")
        mean, low, high = match.groups()
        return cls(float(low or mean), float(mean), float(high or mean), seeds, text)


@dataclass(frozen=True)
class Study:
    """A table of cells (measurements), and the functions that read their results.

    Attributes:
        name: the study's name in `cpd study run NAME`.
        text: the question that the study asks, in one line.
        cells: returns the cells of a size, for the seeds 0 … n - 1.
        draw: makes tables and pictures of the measured cells. Some cells may be missing.
        judge: judges the claims of the paper that the study repeats, by the tables alone.
        full: describes the settings of size `full`. It begins with 'as small' if the sizes `small`
            and `full` have the same cells.
    """

    name: str
    text: str
    cells: Callable[[Size, int], list[Cell]]
    draw: Callable[[Results], Shown]
    judge: Callable[[Measured], list[Finding]]
    full: str

    def show(self, results: Results) -> Shown:
        """Returns the tables, pictures and judged claims of the finished measurements."""
        drawn = self.draw(results)
        seeds = {label: len(results.of(label)) for label in results.labels}
        return replace(drawn, findings=self.judge(Measured(drawn.tables, seeds)))
