# SPDX-License-Identifier: Apache-2.0
"""`Sweep`, the result of a sweep: its rows, their Pareto fronts, and files that show them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cpd._files import csv_text, write_json, write_text
from cpd.hardware.gate_counts import MODEL
from cpd.numeric.checked import checked
from cpd.numeric.names import checked_name
from cpd.numeric.shown import share
from cpd.study.sweeps.rows import ERRORS, SweepRow, row_of
from cpd.study.sweeps.store import Measured
from cpd.study.sweeps.tensors import Workload


@checked
@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, in the order of its cells. str() of a sweep is a table.

    Attributes:
        rows: one `SweepRow` for each combination.
        tensors: a dict for each measured tensor: its `name`, its `shape` (rows and their length),
            `nonfinite` (the number of NaNs and infinities, which were replaced by zeros), `zeros`
            (the number of zeros after that), `amax` (the largest magnitude), and `rms` (the root
            mean square).
        length: the largest number of terms of a dot product, an argument of `sweep`.
        sample: the largest number of values of each tensor, an argument of `sweep`; None: all.
        reused: the number of cells whose results were read from the folder; default 0.
        left_out: texts that name the accumulators and formats that cannot be combined; default ().
    """

    rows: tuple[SweepRow, ...]
    tensors: tuple[dict[str, Any], ...]
    length: int
    sample: int | None
    reused: int = 0
    left_out: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[SweepRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def values(self) -> int:
        """The number of values of all tensors."""
        return sum(math.prod(tensor["shape"]) for tensor in self.tensors)

    @cached_property
    def error(self) -> str:
        """The name of the error by which cells are compared by default.

        `accuracy` if it was measured, else `dot_error` if dot products were computed, else
        `relative_rms`.
        """
        if any(row.accuracy is not None for row in self.rows):
            return "accuracy"
        return (
            "dot_error" if any(row.dot_error is not None for row in self.rows) else "relative_rms"
        )

    def front(self, error: str | None = None, cost: str = "gates") -> list[SweepRow]:
        """Returns the rows of the Pareto front, in ascending order of cost.

        For a row on the front, no other row is better in error or cost and at least as good in the
        other. Of equal rows, only the first is on the front. Rows with infinite or NaN errors are
        left out.

        Args:
            error: the name of an error (see `SweepRow.value`); default None: the sweep's `error`.
            cost: a cost: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normalizer`.

        Returns:
            The rows.

        Raises:
            ValueError: for an unknown error or cost, or an error that was not measured.

        >>> import numpy as np
        >>> from cpd.study import sweep
        >>> x = np.linspace(-1, 1, 64, dtype=np.float32)[None]
        >>> [row.operand for row in sweep(x, "e2m[1-3]").front("relative_rms", "bits")]
        ['e2m1', 'e2m2', 'e2m3']
        """
        by = _lesser(error or self.error)
        points = [(row.value(cost), by(row), place) for place, row in enumerate(self.rows)]
        best, front_rows = math.inf, []
        for _, loss, place in sorted(p for p in points if math.isfinite(p[1])):
            if loss < best:
                best = loss
                front_rows.append(self.rows[place])
        return front_rows

    def best(
        self, error: str | None = None, within: float = math.inf, cost: str = "gates"
    ) -> SweepRow:
        """Returns the row with the least error at a cost up to `within`.

        Of rows with equal errors, the cheapest row is returned.

        Args:
            error: the name of an error (see `SweepRow.value`); default None: the sweep's `error`.
            within: the largest cost of the row; default: any cost is allowed.
            cost: a cost: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normalizer`.

        Returns:
            The row.

        Raises:
            ValueError: if no row is cheap enough, and for an unknown error or cost.
        """
        front = [row for row in self.front(error, cost) if row.value(cost) <= within]
        if not front:
            raise ValueError(f"no cell has finite errors and at most {within:g} {cost}")
        return front[-1]

    def table(self, error: str | None = None, cost: str = "gates") -> tuple[list[str], list[Any]]:
        """Returns the table of the sweep, by ascending cost.

        Args:
            error: the name of the error of the front (see `SweepRow.value`); default None: the
                sweep's `error`.
            cost: a cost, by which rows are sorted; default `gates`.

        Returns:
            The columns' names; and for each row a pair: its texts, and True if it is on the front.
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
        """Returns the whole sweep as plain data: each cell's errors and costs, and the front.

        Errors are given for all tensors together and for each tensor. A JSON file has null for an
        infinite number.
        """
        names = [tensor["name"] for tensor in self.tensors]
        return {
            "values": self.values,
            "length": self.length,
            "sample": self.sample,
            "cost_model": MODEL,
            "error": self.error,
            "left_out": list(self.left_out),
            "front": [self.rows.index(row) for row in self.front()],
            "tensors": list(self.tensors),
            "cells": [row.json(names) for row in self.rows],
        }

    def to_json(self, path: str | Path) -> None:
        """Writes `json()` to a file.

        Args:
            path: the file; `-` is standard output.

        Raises:
            OSError: if the file cannot be written.
        """
        write_json(path, self.json())

    def to_csv(self, path: str | Path, error: str | None = None, cost: str = "gates") -> None:
        """Writes a .csv file: a header line, then one line for each combination of options.

        A line has the errors of all tensors together. The column `front` is 1 for combinations on
        the Pareto front of `error` and `cost`, else 0.

        Args:
            path: the file; `-` is standard output.
            error: the name of an error (see `SweepRow.value`); default None: the sweep's `error`.
            cost: a cost: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normalizer`.

        Raises:
            ValueError: for an unknown error or cost, or an error that was not measured.
            OSError: if the file cannot be written.
        """
        front = {id(row) for row in self.front(error, cost)}
        rows = [
            {
                **row._cell.json(),
                **row._losses.json(),
                "accuracy": row.accuracy,
                "bits": row.bits,
                **{name: part for name, part in row.cost.json().items() if name != "model"},
                "front": int(id(row) in front),
            }
            for row in self.rows
        ]
        write_text(path, csv_text(rows))

    def plot(self, path: str | Path, error: str | None = None, cost: str = "gates") -> None:
        """Draws each cell as a point of error over cost, and the Pareto front. Needs matplotlib.

        Args:
            path: the picture, .png or .svg.
            error: the name of an error (see `SweepRow.value`); default None: the sweep's `error`.
            cost: a cost: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normalizer`.

        Raises:
            ValueError: if the file name does not end in .png or .svg, and for an unknown error or
                cost.
            OSError: if the file cannot be written.
        """
        picture = importlib.import_module("cpd.study.sweeps.picture")
        picture.write(Path(path), self, error or self.error, cost)

    def report(self, path: str | Path) -> None:
        """Writes a self-contained HTML page. Needs jinja2 and matplotlib.

        The page has the Pareto fronts as plots and tables, and a table of all cells.

        Args:
            path: the page; `-` is standard output.

        Raises:
            OSError: if the file cannot be written.
        """
        write_text(path, importlib.import_module("cpd.study.sweeps.page").render(self))


def swept(work: Workload, found: Sequence[Measured], **more: Any) -> Sweep:
    """Makes a `Sweep` from measured cells. `more` has arguments of `Sweep`, such as `left_out`."""
    shapes = [(matrix.x.shape[0], matrix.x.shape[1]) for matrix in work.matrices]
    tensors = tuple(
        {
            "name": matrix.name,
            "shape": shape,
            "nonfinite": matrix.nonfinite,
            "zeros": matrix.zeros,
            "amax": matrix.amax,
            "rms": math.sqrt(matrix.squares / matrix.x.size),
        }
        for matrix, shape in zip(work.matrices, shapes, strict=True)
    )
    rows = tuple(row_of(measured, shapes) for measured in found)
    return Sweep(rows, tensors, work.length, work.sample, **more)


def _lesser(error: str) -> Callable[[SweepRow], float]:
    """Returns a sort key for rows, best first: the error, or the negated accuracy."""
    checked_name("error", error, ERRORS)
    if error == "accuracy":
        return lambda row: -row.value(error)
    return lambda row: row.value(error)


def _columns(sweep: Sweep) -> list[tuple[str, Callable[[SweepRow], str]]]:
    """Returns a table's columns, without columns that were not measured.

    The columns of roundings and accumulators are also left out if all rows have the same entry.
    """
    columns: list[tuple[str, Callable[[SweepRow], str]]] = [("Format", lambda row: row.operand)]
    chosen: list[tuple[str, Callable[[SweepRow], str]]] = [
        ("Rounding", lambda row: row.rounding),
        ("Accumulator", lambda row: row._cell.total),
    ]
    columns += [(name, of) for name, of in chosen if len(set(map(of, sweep.rows))) > 1]
    columns += [
        ("Bits", lambda row: f"{row.bits:.4g}"),
        ("SQNR dB", lambda row: f"{row.sqnr:.1f}"),
        ("Mean error", lambda row: f"{row.mean_error:.2e}"),
        ("Max error", lambda row: f"{row.worst:.2e}"),
        ("Underflow", lambda row: share(row.underflow)),
        ("Overflow", lambda row: share(row.value("overflow"))),
    ]
    if any(row.dot_error is not None for row in sweep.rows):
        columns.append(("Dot error", lambda row: share(row.dot_error or 0.0)))
    if any(row.accuracy is not None for row in sweep.rows):
        columns.append(("Accuracy", lambda row: f"{row.accuracy:.4f}"))
    columns.append(("Gates", lambda row: f"{row.cost.total:.0f}"))
    return columns
