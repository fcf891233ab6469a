# SPDX-License-Identifier: Apache-2.0
"""`WatchRow`, a result of an observer, and the output of rows as table, JSON, CSV and scalars."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from cpd._files import write_text
from cpd.nn.losses import Judged, Measured
from cpd.nn.observed import GEMMS

Key: TypeAlias = tuple[str, str, str, str]
"""The key of a measurement: layer, role of the tensor, recipe, GEMM. Recipe and GEMM are "" in the
key of a tensor's range."""

EXEMPT = "left in torch by the rule"
"""The beginning of `WatchRow.why` if a rule leaves the layer to torch."""
_RANGE = ("min", "max", "amax", "smallest", "zeros", "nonfinite")
_LOSS = ("underflow", "overflow", "saturation", "sqnr", "mse", "scale_min", "scale_max")


@dataclass(frozen=True)
class WatchRow:
    """The measurements of one tensor of one layer in one step, and the losses of a recipe.

    Shares are in percent of `count`. NaN and infinities are counted only in `nonfinite`. A row
    without a recipe has only a range: its losses (from `underflow` on) are None. If a layer is
    called several times in a step, its calls are measured together.

    Attributes:
        step: the number of the step, from 0.
        layer: the layer's qualified name.
        role: `activation`, `weight`, `gradient` (of the output) or `output`.
        recipe: `own` (the layer's recipe) or a name in `what_if`; empty in a row without a recipe.
        gemm: the GEMM that the tensor enters: `forward`, `grad_input` or `grad_weight`. The second
            GEMM of a role has its own row only if its cast, or the axis of its blocks, differs.
        cast: the text of the cast.
        count: the number of values.
        zeros: the share of values that are 0.
        nonfinite: the number of NaN and infinities.
        min: the least value; None without finite values.
        max: the largest value; None without finite values.
        amax: the largest magnitude.
        smallest: the smallest magnitude other than 0; None if all are 0.
        underflow: the share of values that the cast rounded from nonzero to 0.
        overflow: the share of magnitudes above the largest value of the format, times the scale.
        saturation: the share of values that became an infinity or the largest value of the format,
            times the scale.
        sqnr: 20 log10(|x| / |x - q|) in dB, of the tensor x and its cast q; inf if q = x, None if x
            is 0.
        mse: the mean of (x - q)², of the tensor x and its cast q.
        scale_min: the least scale (the factor that decodes) of nonzero values; None without scales.
        scale_max: the largest scale of nonzero values; None without scales.
        why: the reason why the recipe cannot cast this tensor, or the rule that leaves the layer to
            torch; empty otherwise.
    """

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
    underflow: float | None = None
    overflow: float | None = None
    saturation: float | None = None
    sqnr: float | None = None
    mse: float | None = None
    scale_min: float | None = None
    scale_max: float | None = None
    why: str = ""

    @property
    def judge(self) -> str:
        """The recipe's name, and after it the GEMM's name if the GEMM is the tensor's second GEMM.

        An activation, a weight or a gradient enters two GEMMs; `GEMMS` has their order.
        """
        is_first = not self.gemm or self.gemm == GEMMS[self.role][0][0]
        return self.recipe if is_first else f"{self.recipe} {self.gemm}"

    @property
    def exempt(self) -> bool:
        """True if a rule of the recipe leaves the layer to torch."""
        return self.why.startswith(EXEMPT)

    @property
    def dynamic_range(self) -> float | None:
        """The range of magnitudes in octaves: log2(amax / smallest); None if all values are 0."""
        return None if self.smallest is None else math.log2(self.amax) - math.log2(self.smallest)


COLUMNS = tuple(column.name for column in fields(WatchRow))


def row_of(
    step: int, key: Key, cast: str, seen: Measured, judged: Judged | None, why: str
) -> WatchRow:
    """Returns the `WatchRow` of one tensor and recipe in one step, from its measurements."""
    layer, role, name, gemm = key
    count = int(seen.values)
    finite = seen.nonfinite < seen.values
    whole: dict[str, Any] = {
        "step": step,
        "layer": layer,
        "role": role,
        "recipe": name,
        "gemm": gemm,
        "cast": cast,
        "count": count,
        "zeros": 100 * seen.zeros / count,
        "nonfinite": int(seen.nonfinite),
        "min": seen.least if finite else None,
        "max": seen.most if finite else None,
        "amax": seen.amax,
        "smallest": None if seen.smallest == math.inf else seen.smallest,
        "why": why,
    }
    return WatchRow(**whole) if judged is None else WatchRow(**whole, **_loss(seen, judged))


def _loss(seen: Measured, judged: Judged) -> dict[str, Any]:
    return {
        "underflow": 100 * judged.underflows / judged.values,
        "overflow": 100 * judged.overflows / judged.values,
        "saturation": 100 * judged.saturated / judged.values,
        "sqnr": _sqnr(seen.squares, judged.errors),
        "mse": judged.errors / judged.values,
        "scale_min": None if judged.scale_min == math.inf else judged.scale_min,
        "scale_max": None if judged.scale_max == -math.inf else judged.scale_max,
    }


def _sqnr(signal: float, errors: float) -> float | None:
    if signal == 0:
        return None
    if errors == 0:
        return math.inf
    return -math.inf if errors == math.inf else 10 * math.log10(signal / errors)


# ---- how rows are written ------------------------------------------------------------------------


def json_of(rows: Iterable[WatchRow]) -> str:
    """Returns the rows as a JSON array of objects."""
    return json.dumps([{k: _json_value(v) for k, v in asdict(row).items()} for row in rows])


def _json_value(value: Any) -> Any:
    """Converts a value for JSON: a number that is not finite becomes a text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_csv(path: Path, rows: Iterable[WatchRow]) -> None:
    """Writes a CSV file: a line with the names of columns, then a line for each row."""
    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS)
    out.writeheader()
    out.writerows(asdict(row) for row in rows)
    write_text(path, text.getvalue())


def write_scalars(writer: Any, rows: Sequence[WatchRow]) -> None:
    """Writes the numbers that `scalars_of` finds in one step's rows, by `writer.add_scalar`."""
    for name, value in scalars_of(rows).items():
        writer.add_scalar(name, value, rows[0].step)


def scalars_of(rows: Iterable[WatchRow]) -> dict[str, float]:
    """Returns a dict from tags to the finite numbers in the rows of one step.

    A tag `layer/role/column` names a number of the tensor's range, such as `amax`, from the first
    row of the tensor. A tag `layer/role/judge/column` names a loss of a recipe's cast, such as
    `sqnr`; `judge` stands for the recipe's name (`WatchRow.judge`).
    """
    scalars: dict[str, float] = {}
    ranged: set[tuple[str, str]] = set()
    for row in rows:
        tag = f"{row.layer}/{row.role}" if row.layer else row.role
        numbers = {f"{tag}/{name}": getattr(row, name) for name in _RANGE}
        if (row.layer, row.role) in ranged:
            numbers = {}
        ranged.add((row.layer, row.role))
        numbers |= {f"{tag}/{row.judge}/{name}": getattr(row, name) for name in _LOSS}
        scalars |= {n: x for n, x in numbers.items() if x is not None and math.isfinite(x)}
    return scalars


_HEAD = (
    "layer", "role", "recipe", "gemm", "amax", "smallest", "zeros %", "underflow %", "overflow %",
    "saturation %", "SQNR dB", "scales", "",
)  # fmt: skip


MOST = 40
"""The largest number of rows that a table shows."""


def table(rows: Sequence[WatchRow]) -> str:
    """Returns a text table with aligned columns: one line for each row, in the model's order.

    If there are more than `MOST` rows, it shows only the rows with the lowest SQNR, the lowest
    first, and a line about the other rows.
    """
    if len(rows) <= MOST:
        return _aligned(rows)
    worst = sorted((row for row in rows if row.sqnr is not None), key=lambda row: row.sqnr or 0.0)
    shown = worst[:MOST] if worst else rows[:MOST]
    which = "with the lowest SQNR" if worst else "first in the model"
    more = f"the {len(shown)} rows {which}, of {len(rows)}: watch.rows and watch.to_csv() have all"
    return f"{_aligned(shown)}\n{more}"


def _aligned(rows: Sequence[WatchRow]) -> str:
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = 0, 1, 2, 3, len(_HEAD) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number in texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: WatchRow) -> tuple[str, ...]:
    scales = f"{_short(row.scale_min)}…{_short(row.scale_max)}" if row.scale_max else ""
    numbers = row.amax, row.smallest, row.zeros, row.underflow, row.overflow, row.saturation
    return (
        row.layer,
        row.role,
        row.recipe,
        row.gemm,
        *map(_short, (*numbers, row.sqnr)),
        scales,
        row.why,
    )


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
