# SPDX-License-Identifier: Apache-2.0
"""`Sweep`, the result of a sweep: rows computed from measurements, and files that show them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpd._files import write_json, write_text
from cpd.hardware.gate_counts import gates
from cpd.numeric.checked import checked
from cpd.numeric.scaled import Scaled
from cpd.study.sweeps.cells import Cell, Losses
from cpd.study.sweeps.rows import Row, Rows, Tensor
from cpd.study.sweeps.store import Measured
from cpd.study.sweeps.tensors import Workload


@checked
@dataclass(frozen=True)
class Sweep(Rows):
    """The rows of a sweep, in the order of its cells. Printable, as a table.

    - `rows`: one `Row` for each cell.
    - `tensors`: the tensors on which cells were measured.
    - `length`: the most terms of a dot product, an argument of `sweep`.
    - `sample`: the most values of each tensor, an argument of `sweep`; None: all.
    - `reused`: the number of cells that were read from the folder.
    - `left_out`: the formats and accumulators that cannot be combined, in words.
    """

    @classmethod
    def of(cls, work: Workload, found: Sequence[Measured], **more: Any) -> Sweep:
        """Returns the sweep of measurements.

        Args:
            work: the tensors.
            found: the measurements, one for each cell.
            **more: `reused` and `left_out`.

        Returns:
            The sweep.
        """
        tensors = tuple(
            Tensor(
                one.name,
                (one.x.shape[0], one.x.shape[1]),
                one.nonfinite,
                one.zeros,
                one.amax,
                math.sqrt(one.squares / one.x.size),
            )
            for one in work.matrices
        )
        rows = tuple(_row(one, tensors) for one in found)
        return cls(rows, tensors, work.length, work.sample, **more)

    def to_json(self, path: str | Path) -> None:
        """Writes `json()` to a file.

        Args:
            path: the file; `-` is standard output.

        Raises:
            OSError: if the file cannot be written.
        """
        write_json(path, self.json())

    def to_csv(self, path: str | Path, error: str | None = None, cost: str = "gates") -> None:
        """Writes a line per cell, over all tensors, with a head of names.

        The column `front` is 1 on the Pareto front of `error` against `cost`, else 0.

        Args:
            path: the file; `-` is standard output.
            error: one of `ERRORS`, such as `dot_error` or `relative_rms`; default: the sweep's
                `error`.
            cost: one of `COSTS`: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normaliser`.

        Raises:
            ValueError: for an unknown error or cost, or one that was not measured.
            OSError: if the file cannot be written.
        """
        front = {id(row) for row in self.front(error, cost)}
        parts = [part for part in self.rows[0].cost.json() if part != "model"]
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        shown = [*self.rows[0].losses.json(), "accuracy", "bits"]
        lines.writerow([*self.rows[0].cell.json(), *shown, *parts, "front"])
        for row in self.rows:
            told = row.losses.json() | {"accuracy": row.accuracy, "bits": row.bits}
            parted = row.cost.json()
            figures = [*(told[n] for n in shown), *(parted[p] for p in parts)]
            lines.writerow([*row.cell.json().values(), *figures, int(id(row) in front)])
        write_text(path, text.getvalue())

    def plot(self, path: str | Path, error: str | None = None, cost: str = "gates") -> None:
        """Draws every cell's error over its cost, and the Pareto front as a line. Needs matplotlib.

        Args:
            path: the picture, .png or .svg.
            error: one of `ERRORS`, such as `dot_error` or `relative_rms`; default: the sweep's
                `error`.
            cost: one of `COSTS`: `gates` (default), `bits`, `multiplier`, `aligner`, `adder` or
                `normaliser`.

        Raises:
            ValueError: for another ending of the file's name, and for an unknown error or cost.
            OSError: if the file cannot be written.
        """
        from cpd.study.sweeps.picture import write

        write(Path(path), self, error or self.error, cost)

    def report(self, path: str | Path) -> None:
        """Writes one HTML page that needs nothing else. Needs jinja2 and matplotlib.

        The page has the Pareto fronts as pictures and tables.

        Args:
            path: the page; `-` is standard output.

        Raises:
            OSError: if the file cannot be written.
        """
        from cpd.study.sweeps.page import render

        write_text(path, render(self))


def _row(measured: Measured, tensors: Sequence[Tensor]) -> Row:
    cell = measured.cell
    return Row(
        cell,
        Losses.total(measured.losses),
        measured.losses,
        measured.accuracy,
        _bits(cell, tensors),
        gates(cell.format, cell.sum),
    )


def _bits(cell: Cell, tensors: Sequence[Tensor]) -> float:
    q = cell.format
    if not isinstance(q, Scaled):
        return float(q.bits)
    values = sum(math.prod(one.shape) for one in tensors)
    return sum(q.bits_per_value(one.shape) * math.prod(one.shape) for one in tensors) / values
