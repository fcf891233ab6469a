# SPDX-License-Identifier: Apache-2.0
"""Studies: `Cell`, one measurement; `Study`, a table of them; `Shown`, their results."""

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
"""`smoke`: seconds, one of each kind. `small`: minutes on two cores. `full`: the paper's settings
where the models and the data can be had; `Study.full` says what they are."""


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        kind: the name of what is measured, in `cpd_lab.papers.kinds.KINDS`.
        options: all that decides the result, as JSON: with the kind the cell's key.
        label: the row of a table to which it belongs; cells of other seeds share it.
        minutes: an estimate on two cores.
    """

    kind: str
    options: dict[str, Any] = field(hash=False)
    label: str = field(default="", compare=False)
    minutes: float = field(default=0.1, compare=False)

    @cached_property
    def key(self) -> str:
        """The name of its file."""
        return digest({"kind": self.kind, "options": self.options})


@dataclass(frozen=True)
class Found:
    """A measured cell.

    Attributes:
        result: what its kind measures, as JSON.
        seconds: how long that took, and the `cpu` on which.
        version, sources: of the library, and the digest of the files that decide the result.
    """

    cell: Cell
    result: dict[str, Any]
    seconds: float
    cpu: str
    version: str
    sources: str


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.values)

    def text(self, digits: int = 1, factor: float = 1.0) -> str:
        """'48.0 (46.1 … 49.2)'; of one seed '48.0'."""
        low, high = factor * min(self.values), factor * max(self.values)
        mean = f"{factor * self.mean:.{digits}f}"
        return mean if len(self.values) == 1 else f"{mean} ({low:.{digits}f} … {high:.{digits}f})"


class Results:
    """A study's measured cells, in the study's order."""

    def __init__(self, found: Iterable[Found]) -> None:
        self.found = list(found)

    def __iter__(self) -> Iterator[Found]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    @property
    def labels(self) -> list[str]:
        """The labels of the rows, each once."""
        return list(dict.fromkeys(measurement.cell.label for measurement in self.found))

    def of(self, label: str) -> list[Found]:
        """Returns a row's cells, one a seed."""
        return [measurement for measurement in self.found if measurement.cell.label == label]

    def spread(self, label: str, figure: Callable[[dict[str, Any]], float]) -> Spread | None:
        """Returns a figure of the results of a row; None where nothing of it is measured."""
        values = tuple(figure(measurement.result) for measurement in self.of(label))
        return Spread(values) if values else None


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column names rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """A claim of a paper and what was measured.

    Attributes:
        row: of papers.toml, such as `aps.T4`.
        claim: a sentence.
        paper, ours: the figures.
        holds: whether ours bear the claim out; None where they cannot tell, as with one seed.
        why: a sentence on the difference, where there is one.
    """

    row: str
    claim: str
    paper: str
    ours: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class Shown:
    """The tables and pictures of a study's results. `pictures`: SVG elements by their titles."""

    tables: Sequence[Table] = ()
    findings: Sequence[Finding] = ()
    pictures: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Measured:
    """A study's tables, from which its claims are judged.

    They are the same tables that are printed and stored, so a stored result can be judged again.

    Attributes:
        tables: the study's tables.
        seeds: how many runs each label has.
    """

    tables: Sequence[Table]
    seeds: Mapping[str, int]

    def text(self, label: str, column: str | None = None) -> str | None:
        """Returns a cell of the first table with this row, in the second column or under this head.

        None if the row is missing or not run.
        """
        for table in self.tables:
            number = 1 if column is None else _index(table.head, column)
            for row in table.rows if number is not None else ():
                if row[0] == label and number is not None and row[number] not in ("", "not run"):
                    return row[number]
        return None

    def range(self, label: str, column: str | None = None, runs: str | None = None) -> Range | None:
        """Returns a cell as a range over seeds. `runs`: the label of its runs; default: the row."""
        text = self.text(label, column)
        return None if text is None else Range.read(text, self.seeds.get(runs or label, 0))


def _index(head: Sequence[str], column: str) -> int | None:
    return list(head).index(column) if column in head else None


_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})(?: \(({_NUMBER}) … ({_NUMBER})\))?")


@dataclass(frozen=True)
class Range:
    """A figure over seeds as a table has it: rounded, with its mean."""

    low: float
    mean: float
    high: float
    seeds: int
    text: str

    @classmethod
    def read(cls, text: str, seeds: int) -> Range:
        """Reads '48.0 (46.1 … 49.2)' or '48.0'. Raises ValueError for another text."""
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(f"not a figure over seeds: {text!r}")
        mean, low, high = match.groups()
        return cls(float(low or mean), float(mean), float(high or mean), seeds, text)


@dataclass(frozen=True)
class Study:
    """A table of cells, and how it is read.

    Attributes:
        name: of the command, `cpd study run NAME`.
        text: what it asks, in a line.
        cells: makes the cells of a size, for seeds 0 … n - 1.
        draw: makes tables and pictures of what is measured, which may be a part of the cells.
        judge: judges the papers' claims by the tables alone.
        full: describes what size full runs. It begins with 'as small' if both sizes have the same
            cells.
    """

    name: str
    text: str
    cells: Callable[[Size, int], list[Cell]]
    draw: Callable[[Results], Shown]
    judge: Callable[[Measured], list[Finding]]
    full: str

    def show(self, results: Results) -> Shown:
        """Returns the tables, the pictures and the findings of what is measured."""
        drawn = self.draw(results)
        seeds = {label: len(results.of(label)) for label in results.labels}
        return replace(drawn, findings=self.judge(Measured(drawn.tables, seeds)))
