# SPDX-License-Identifier: Apache-2.0
"""The rows of a sweep: each cell's errors and cost, their Pareto fronts, their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cpd.hardware.gate_counts import MODEL, Gates
from cpd.numeric.checked import checked
from cpd.numeric.shown import shown
from cpd.study.sweeps.cells import Cell, Losses

ERRORS = ("dot_error", "relative_rms", "mean_error", "worst", "underflow", "overflow", "accuracy")
"""The errors for fronts: the less the better, except the accuracy."""
COSTS = ("gates", "bits", "multiplier", "aligner", "adder", "normaliser")


@dataclass(frozen=True)
class Tensor:
    """A measured tensor.

    Attributes:
        name: the tensor's name.
        shape: the number of rows and their length.
        nonfinite: the number of NaN and infinities, which were left out.
        zeros: the number of zeros, with those in place of NaN and infinities.
        amax: the largest magnitude.
        rms: the root of the mean of the squares.
    """

    name: str
    shape: tuple[int, int]
    nonfinite: int
    zeros: int
    amax: float
    rms: float


@checked
@dataclass(frozen=True)
class Row:
    """A cell, its errors on all tensors and on each, and its cost.

    Attributes:
        cell: the cell.
        losses: the errors on all tensors together.
        tensors: the errors on each tensor.
        accuracy: the result of the user's function for the cell; None: there was none.
        bits: bits of codes and scales per value.
        cost: the cost of a multiply-accumulate in hardware.
    """

    cell: Cell
    losses: Losses
    tensors: tuple[Losses, ...]
    accuracy: float | None
    bits: float
    cost: Gates

    def __str__(self) -> str:
        dots, score = self.losses.dot_error, self.accuracy
        return (
            f"{self.cell}: {self.bits:.4g} bits, SQNR {self.losses.sqnr:.1f} dB"
            + ("" if dots is None else f", dot error {share(dots)}")
            + ("" if score is None else f", accuracy {score:.4f}")
            + f", {self.cost.total:.0f} gates"
        )

    def value(self, name: str) -> float:
        """Returns an error or a cost by its name.

        Args:
            name: one of `ERRORS` or `COSTS`, such as `relative_rms` or `gates`.

        Returns:
            The number.

        Raises:
            ValueError: for another name, and for an error that was not measured.

        >>> import numpy as np
        >>> from cpd.study import sweep
        >>> sweep(np.ones((2, 4), np.float32), "e2m1").rows[0].value("bits")
        4.0
        """
        if name in ("bits", "gates"):
            return self.bits if name == "bits" else self.cost.total
        if name not in (*ERRORS, *COSTS):
            known = ", ".join((*ERRORS, *COSTS))
            raise ValueError(f"name must be one of {known}, got {shown(name)}")
        holder: Any = self.cost if name in COSTS else self if name == "accuracy" else self.losses
        found: float | None = getattr(holder, name)
        if found is None:
            raise ValueError(f"{name} was not measured")
        return found

    def json(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the cell, its errors and its cost, for JSON.

        Args:
            names: the names of the tensors, in order.

        Returns:
            The figures by their names.
        """
        tensors = {n: one.json() for n, one in zip(names, self.tensors, strict=True)}
        return {
            **self.cell.json(),
            **self.losses.json(),
            "accuracy": self.accuracy,
            "bits": self.bits,
            "cost": self.cost.json(),
            "tensors": tensors,
        }


@dataclass(frozen=True)
class Rows:
    """The rows of a sweep, in the order of its cells, and its tensors."""

    rows: tuple[Row, ...]
    tensors: tuple[Tensor, ...]
    length: int
    sample: int | None
    reused: int = 0
    left_out: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def values(self) -> int:
        """The number of values of all tensors."""
        return sum(math.prod(one.shape) for one in self.tensors)

    @cached_property
    def error(self) -> str:
        """The error by which cells are compared by default.

        It is the accuracy if it was measured, else the error of dot products, else the relative
        RMS.
        """
        if any(row.accuracy is not None for row in self.rows):
            return "accuracy"
        return "dot_error" if any(row.losses.dots for row in self.rows) else "relative_rms"

    def front(self, error: str | None = None, cost: str = "gates") -> list[Row]:
        """Returns the Pareto front, by ascending cost.

        For a row on the front no other row is better in error or cost and no worse in the other. Of
        equal rows the first is on the front. Infinite and NaN errors are left out.

        Args:
            error: one of `ERRORS`, such as `dot_error` or `relative_rms`; default: the sweep's
                `error`.
            cost: one of `COSTS`: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normaliser`.

        Returns:
            The rows.

        Raises:
            ValueError: for an unknown error or cost, or one that was not measured.

        >>> import numpy as np
        >>> from cpd.study import sweep
        >>> x = np.linspace(-1, 1, 64, dtype=np.float32)[None]
        >>> [row.cell.operand for row in sweep(x, "e2m[1-3]").front("relative_rms", "bits")]
        ['e2m1', 'e2m2', 'e2m3']
        """
        by = _lesser(error or self.error)
        points = [(row.value(cost), by(row), place) for place, row in enumerate(self.rows)]
        best, found = math.inf, []
        for _, loss, place in sorted(p for p in points if math.isfinite(p[1])):
            if loss < best:
                best = loss
                found.append(self.rows[place])
        return found

    def best(self, error: str | None = None, within: float = math.inf, cost: str = "gates") -> Row:
        """Returns the row of least error that costs no more than `within`; of equals the cheapest.

        Args:
            error: one of `ERRORS`, such as `dot_error` or `relative_rms`; default: the sweep's
                `error`.
            within: the most that the row may cost; default: any cost.
            cost: one of `COSTS`: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normaliser`.

        Returns:
            The row.

        Raises:
            ValueError: if no row costs so little, and for an unknown error or cost.
        """
        front = [row for row in self.front(error, cost) if row.value(cost) <= within]
        if not front:
            raise ValueError(f"no cell has finite errors and at most {within:g} {cost}")
        return front[-1]

    def table(self, error: str | None = None, cost: str = "gates") -> tuple[list[str], list[Any]]:
        """Returns the table of the sweep, by ascending cost.

        Args:
            error: one of `ERRORS`, for the front; default: the sweep's `error`.
            cost: one of `COSTS`, by which rows are sorted; default `gates`.

        Returns:
            The head, and each row's texts with whether the row is on the front.
        """
        front = {id(row) for row in self.front(error, cost)}
        columns = _columns(self)
        rows = [
            ([text(row) for _, text in columns], id(row) in front)
            for row in sorted(self.rows, key=lambda row: row.value(cost))
        ]
        return [name for name, _ in columns], rows

    def __str__(self) -> str:
        head, rows = self.table()
        lines = [["", *head], *(["*" if best else "", *texts] for texts, best in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            "  ".join(
                text.ljust(width) if i < 2 else text.rjust(width)
                for i, (text, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def json(self) -> dict[str, Any]:
        """All figures, also of each tensor; infinite ones are null in a file."""
        names = [one.name for one in self.tensors]
        return {
            "values": self.values,
            "length": self.length,
            "sample": self.sample,
            "cost_model": MODEL,
            "error": self.error,
            "left_out": list(self.left_out),
            "front": [self.rows.index(row) for row in self.front()],
            "tensors": [asdict(one) for one in self.tensors],
            "cells": [row.json(names) for row in self.rows],
        }


def _lesser(error: str) -> Callable[[Row], float]:
    """The function of a row that a front minimizes."""
    if error not in ERRORS:
        raise ValueError(f"error must be one of {', '.join(ERRORS)}, got {shown(error)}")
    if error == "accuracy":
        return lambda row: -row.value(error)
    return lambda row: row.value(error)


def _columns(found: Rows) -> list[tuple[str, Callable[[Row], str]]]:
    """A table's columns, without those that are equal in all rows or were not measured."""
    columns: list[tuple[str, Callable[[Row], str]]] = [("Format", lambda row: row.cell.operand)]
    chosen: list[tuple[str, Callable[[Row], str]]] = [
        ("Rounding", lambda row: row.cell.rounding),
        ("Accumulator", lambda row: row.cell.total),
    ]
    columns += [(name, of) for name, of in chosen if len(set(map(of, found.rows))) > 1]
    columns += [
        ("Bits", lambda row: f"{row.bits:.4g}"),
        ("SQNR dB", lambda row: f"{row.losses.sqnr:.1f}"),
        ("Mean error", lambda row: f"{row.losses.mean_error:.2e}"),
        ("Max error", lambda row: f"{row.losses.worst:.2e}"),
        ("Underflow", lambda row: share(row.losses.underflow)),
        ("Overflow", lambda row: share(row.losses.overflow)),
    ]
    if any(row.losses.dots for row in found.rows):
        columns.append(("Dot error", lambda row: share(row.losses.dot_error or 0.0)))
    if any(row.accuracy is not None for row in found.rows):
        columns.append(("Accuracy", lambda row: f"{row.accuracy:.4f}"))
    columns.append(("Gates", lambda row: f"{row.cost.total:.0f}"))
    return columns


def share(value: float) -> str:
    """Returns a share of 1 in per cent, with three digits."""
    return f"{100 * value:.3g} %"
