# SPDX-License-Identifier: Apache-2.0
"""Makes the HTML page of a sweep from the template `sweep.html.j2`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpd import _core
from cpd._picture import to_svg
from cpd.hardware.gate_counts import GATES, MODEL
from cpd.numeric.shown import share
from cpd.study.pages import fill
from cpd.study.sweeps.picture import NAMES, draw
from cpd.study.sweeps.results import Sweep
from cpd.study.sweeps.rows import SweepRow

_PARTS = ["multiplier", "aligner", "adder", "normalizer", "exponent", "scales"]


def render(found: Sweep) -> str:
    """Returns the HTML page of a sweep.

    The page has the Pareto fronts of error and gates, and of error and bits, tables of all cells,
    of the parts of their costs, and of the tensors.
    """
    fronts = [_front(found, cost) for cost in ("gates", "bits")]
    head, rows = found.table()
    least = found.front()
    return fill(
        Path(__file__).with_name("sweep.html.j2"),
        title=f"{len(found)} choices on {len(found.tensors)} tensors",
        found=found,
        error=NAMES[found.error],
        column=found.error.replace("_", " ").capitalize(),
        cards=[(row.operand, row._cell.total, _value(found, row)) for row in _few(least)],
        fronts=fronts,
        head=[*head, "Front"],
        rows=[[*texts, "●" if best else ""] for texts, best in rows],
        parts=[_parts(row) for row in least],
        part_names=_PARTS,
        gates=", ".join(f"{name} {count}" for name, count in GATES.items()),
        model=MODEL,
        tensors=[_tensor(tensor) for tensor in found.tensors],
        by_tensor=_by_tensor(found, least),
        version=_core.__version__,
    )


def _front(sweep: Sweep, cost: str) -> dict[str, Any]:
    rows = sweep.front(cost=cost)
    return {
        "cost": NAMES[cost],
        "svg": to_svg(draw(sweep, sweep.error, cost), f"{NAMES[sweep.error]} by {NAMES[cost]}"),
        "rows": [
            (
                row.operand,
                row.rounding,
                row._cell.total,
                f"{row.bits:.4g}",
                f"{row.cost.total:,.0f}",
                _value(sweep, row),
                f"{row.sqnr:.1f}",
            )
            for row in rows
        ],
    }


def _tensor(tensor: dict[str, Any]) -> list[str]:
    shape = " × ".join(f"{count:,}" for count in tensor["shape"])
    sizes = f"{tensor['rms']:.3g}", f"{tensor['amax']:.3g}"
    return [tensor["name"], shape, *sizes, f"{tensor['zeros']:,}", f"{tensor['nonfinite']:,}"]


def _value(sweep: Sweep, row: SweepRow) -> str:
    value = row.value(sweep.error)
    return f"{value:.4f}" if sweep.error == "accuracy" else share(value)


def _few(rows: list[SweepRow], most: int = 4) -> list[SweepRow]:
    """Returns up to `most` rows of a Pareto front, evenly spaced from cheap to exact."""
    if len(rows) <= most:
        return rows
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]


def _parts(row: SweepRow) -> list[str]:
    bits = [f"{getattr(row.cost, name):.3g}" for name in _PARTS]
    return [row.operand, row._cell.total, *bits, f"{row.cost.total:,.0f}"]


def _by_tensor(sweep: Sweep, rows: list[SweepRow]) -> list[list[str]]:
    """Returns a table row for each tensor: its name, then its SQNR for up to four of `rows`."""
    return [
        [tensor["name"], *(f"{row._tensors[place].sqnr:.1f}" for row in _few(rows))]
        for place, tensor in enumerate(sweep.tensors)
    ]
