# SPDX-License-Identifier: Apache-2.0
"""`SweepRow`: the errors and the hardware cost of one combination of a sweep's options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpd.hardware.gate_counts import Gates, gates
from cpd.numeric.checked import checked
from cpd.numeric.names import checked_name
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import share
from cpd.study.sweeps.cells import Cell, Losses
from cpd.study.sweeps.store import Measured

ERRORS = ("dot_error", "relative_rms", "mean_error", "worst", "underflow", "overflow", "accuracy")
"""The errors that a Pareto front can weigh against a cost. Smaller is better, except for
`accuracy`."""
COSTS = ("gates", "bits", "multiplier", "aligner", "adder", "normalizer")
_FIGURES = ("relative_rms", "sqnr", "mean_error", "worst", "underflow", "dot_error")


@checked
@dataclass(frozen=True)
class SweepRow:
    """One combination of a sweep: its errors on all tensors together, and its cost.

    Attributes:
        operand: the text of a format or a scaled format.
        accumulator: the text of an accumulator.
        rounding: the rounding of the cast, such as `nearest_even` or `stochastic:8`.
        overflow: the overflow of the cast, `saturate` or `ieee`.
        seed: the seed of stochastic rounding.
        accuracy: the result of the user's function `accuracy`; None if there was no function.
        bits: the number of bits per value, including scales.
        cost: the cost of a multiply-accumulate in hardware.
        relative_rms: sqrt(sum (q - x)^2 / sum x^2).
        sqnr: sum x^2 / sum (q - x)^2, in dB; inf if all errors are 0, -inf for infinite errors.
        mean_error: the mean magnitude of the errors, after each tensor is divided by its RMS.
        worst: the largest magnitude of an error, after each tensor is divided by its RMS.
        underflow: the fraction of values that became 0.
        dot_error: the relative RMS error of dot products, compared with dot products in binary64 of
            values before the cast; None if there were no dot products.
    """

    operand: str
    accumulator: str
    rounding: str
    overflow: str
    seed: int
    accuracy: float | None
    bits: float
    cost: Gates
    relative_rms: float
    sqnr: float
    mean_error: float
    worst: float
    underflow: float
    dot_error: float | None
    _cell: Cell
    _losses: Losses
    _tensors: tuple[Losses, ...]

    def __str__(self) -> str:
        return (
            f"{self._cell}: {self.bits:.4g} bits, SQNR {self.sqnr:.1f} dB"
            + ("" if self.dot_error is None else f", dot error {share(self.dot_error)}")
            + ("" if self.accuracy is None else f", accuracy {self.accuracy:.4f}")
            + f", {self.cost.total:.0f} gates"
        )

    def value(self, name: str) -> float:
        """Returns an error or a cost by its name.

        Args:
            name: an error: `dot_error`, `relative_rms`, `mean_error`, `worst`, `underflow`,
                `overflow` (the fraction of magnitudes above the format's largest value) or
                `accuracy`; or a cost: `gates`, `bits`, `multiplier`, `aligner`, `adder` or
                `normalizer`.

        Returns:
            The number.

        Raises:
            ValueError: for an unknown name, and for an error that was not measured.

        >>> import numpy as np
        >>> from cpd.study import sweep
        >>> sweep(np.ones((2, 4), np.float32), "e2m1").rows[0].value("bits")
        4.0
        """
        checked_name("name", name, (*ERRORS, *COSTS))
        if name in ("gates", "overflow"):
            return self.cost.total if name == "gates" else self._losses.overflow
        holder: Any = self.cost if name in COSTS and name != "bits" else self
        figure: float | None = getattr(holder, name)
        if figure is None:
            raise ValueError(f"{name} was not measured")
        return figure

    def json(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the row as plain data.

        Args:
            names: the names of the tensors, in order.

        Returns:
            A dict of the row's numbers; `overflow` is the fraction of magnitudes above the format's
            largest value.
        """
        tensors = {n: losses.json() for n, losses in zip(names, self._tensors, strict=True)}
        return {
            **self._cell.json(),
            **self._losses.json(),
            "accuracy": self.accuracy,
            "bits": self.bits,
            "cost": self.cost.json(),
            "tensors": tensors,
        }


def row_of(measured: Measured, shapes: Sequence[tuple[int, int]]) -> SweepRow:
    """Makes the `SweepRow` of a measured cell; `shapes` are the shapes of the tensors."""
    cell, total = measured.cell, Losses.total(measured.losses)
    return SweepRow(
        **asdict(cell),
        accuracy=measured.accuracy,
        bits=_bits(cell, shapes),
        cost=gates(cell.format, cell.sum),
        **{name: getattr(total, name) for name in _FIGURES},
        _cell=cell,
        _losses=total,
        _tensors=measured.losses,
    )


def _bits(cell: Cell, shapes: Sequence[tuple[int, int]]) -> float:
    q = cell.format
    if not isinstance(q, Scaled):
        return float(q.bits)
    values = sum(map(math.prod, shapes))
    return sum(q.bits_per_value(shape) * math.prod(shape) for shape in shapes) / values
