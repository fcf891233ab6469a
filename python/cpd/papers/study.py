# SPDX-License-Identifier: Apache-2.0
"""What a study is: `Cell`, one measurement; `Study`, a table of them; `Shown`, what they say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from cpd.cells.store import digest

Size = Literal["smoke", "small", "full"]
SIZES: tuple[Size, ...] = ("smoke", "small", "full")
"""`smoke`: seconds, one of each kind. `small`: minutes on two cores. `full`: the paper's sizes."""


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        kind: the name of what is measured, in `cpd.papers.kinds.KINDS`.
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
        return statistics.fmean(self.values)

    def text(self, digits: int = 1, factor: float = 1.0) -> str:
        """'48.0 (46.1 … 49.2)'; of one seed '48.0'."""
        low, high = factor * min(self.values), factor * max(self.values)
        mean = f"{factor * self.mean:.{digits}f}"
        return mean if len(self.values) == 1 else f"{mean} ({low:.{digits}f} … {high:.{digits}f})"

    def above(self, other: Spread) -> bool:
        """Whether every seed's figure is above all of the other's."""
        return min(self.values) > max(other.values)

    def meets(self, other: Spread) -> bool:
        """Whether the two ranges have a value in common."""
        return not self.above(other) and not other.above(self)


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
        """Of the rows, each once."""
        return list(dict.fromkeys(one.cell.label for one in self.found))

    def of(self, label: str) -> list[Found]:
        """A row's cells, one a seed."""
        return [one for one in self.found if one.cell.label == label]

    def spread(self, label: str, figure: Callable[[dict[str, Any]], float]) -> Spread | None:
        """A figure of the results of a row; None where nothing of it is measured."""
        values = tuple(figure(one.result) for one in self.of(label))
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
        holds: whether ours bear the claim out; None where they cannot tell, as with ranges over
            seeds that meet, or with one seed.
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
    """What a study's results say. `pictures`: SVG elements by their titles."""

    tables: Sequence[Table] = ()
    findings: Sequence[Finding] = ()
    pictures: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """A table of cells, and how it is read.

    Attributes:
        name: of the command, `cpd study run NAME`.
        text: what it asks, in a line.
        cells: makes the cells of a size, for seeds 0 … n - 1.
        show: reads what is measured, which may be a part of the cells.
    """

    name: str
    text: str
    cells: Callable[[Size, int], list[Cell]]
    show: Callable[[Results], Shown]
