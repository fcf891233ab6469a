# SPDX-License-Identifier: Apache-2.0
"""Custom modules in `cpd.convert`, and what `convert` and `observe` return."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, overload

from torch import nn

from cpd import Coverage

def register(cls: type[nn.Module], how: str | type[nn.Module]) -> None:
    """Makes `cpd.convert` emulate modules of a class."""

class ReportRow:
    """A row of a `Report`: one module."""

    name: str
    kind: str
    what: str
    how: str
    why_not: str
    layer: int | None

class Report(Sequence[ReportRow]):
    """The result of `cpd.convert`: a row for each module that computes."""

    rows: tuple[ReportRow, ...]
    recipe: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the parts that remained in torch."""

    @property
    def emulated(self) -> tuple[ReportRow, ...]:
        """The rows of emulated modules."""

    @property
    def not_emulated(self) -> tuple[ReportRow, ...]:
        """The rows of modules that remained in torch."""

    def coverage(self, *inputs: Any, **keywords: Any) -> Coverage:
        """Counts the products of a training step on these inputs."""

    def off(self) -> None:
        """Makes the model compute as torch does, until `on`."""

    def on(self) -> None:
        """Makes the model compute as the recipe says, after `off`."""

    def to_json(self, **options: Any) -> str:
        """Returns the rows and notes as JSON."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int) -> ReportRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReportRow]: ...

class WatchRow:
    """The losses of one cast of one operand of a layer in one step."""

    step: int
    layer: str
    role: str
    recipe: str
    gemm: str
    cast: str
    count: int
    zeros: float
    nonfinite: int
    min: float | None
    max: float | None
    amax: float
    smallest: float | None
    underflow: float | None
    overflow: float | None
    saturation: float | None
    sqnr: float | None
    mse: float | None
    scale_min: float | None
    scale_max: float | None
    why: str

    @property
    def judge(self) -> str:
        """The format or recipe that the row measures."""

    @property
    def exempt(self) -> bool:
        """True if a rule exempts the operand."""

    @property
    def dynamic_range(self) -> float | None:
        """Binary orders of magnitude between the least and the largest magnitude."""

class Watch:
    """The measurements of `cpd.observe`. Also a context manager, which removes its hooks."""

    every: int

    @property
    def rows(self) -> list[WatchRow]:
        """The rows of all measured steps."""

    def last(self) -> list[WatchRow]:
        """Returns the rows of the last measured step."""

    def remove(self) -> None:
        """Removes the hooks from the model."""

    def to_json(self, path: str | Path | None = None) -> str:
        """Returns the rows as JSON, and writes them to a file."""

    def to_csv(self, path: str | Path) -> None:
        """Writes the rows as CSV."""

    def plot(self, path: str | Path) -> None:
        """Draws the ranges of the operands over the steps."""

    def __iter__(self) -> Iterator[WatchRow]: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class Products:
    """The products of one module in a training step."""

    module: str
    operation: str
    backward: bool
    recipe: str
    macs: int
    calls: int
