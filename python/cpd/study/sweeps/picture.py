# SPDX-License-Identifier: Apache-2.0
"""Draws a sweep: each cell is a point of error over cost; the Pareto front is a line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
from matplotlib.figure import Figure

from cpd._picture import GREY, MARKERS, PALETTE, STYLE, log_axis, per_cent, save
from cpd.numeric.scaled import Scaled
from cpd.study.sweeps.results import Sweep
from cpd.study.sweeps.rows import SweepRow

NAMES = {
    "dot_error": "relative error of dot products",
    "relative_rms": "relative RMS error",
    "mean_error": "mean error / RMS",
    "worst": "largest error / RMS",
    "underflow": "share of values that became 0",
    "overflow": "share of magnitudes above the max",
    "accuracy": "accuracy",
    "gates": "gates for a multiply-accumulate (cpd-2026)",
    "bits": "bits a value",
    "multiplier": "bits of the multiplier (cpd-2026)",
    "aligner": "bits of the aligner (cpd-2026)",
    "adder": "bits of the adder (cpd-2026)",
    "normalizer": "bits of the normalizer (cpd-2026)",
}
_SHARES = ("dot_error", "relative_rms", "underflow", "overflow")
_APART = 0.045
"""The least distance between the labels of points on the Pareto front, as a fraction of the plot's
size."""


def write(path: Path, found: Sweep, error: str, cost: str) -> None:
    """Writes the plot. Raises ValueError unless the file name ends in .png or .svg."""
    save(path, "sweep", lambda: draw(found, error, cost))


def draw(found: Sweep, error: str, cost: str) -> Figure:
    """Returns the plot as a figure of matplotlib.

    Each cell is a point: its color stands for scales, its marker for the accumulator. A line
    connects the points of the Pareto front, which are labeled if there is space. The title has the
    number of cells with infinite errors, which are not drawn.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.2), layout="constrained")
        axes = figure.subplots()
        rows = [row for row in found.rows if math.isfinite(row.value(error))]
        colour = _keys([_scale(row) for row in rows], PALETTE)
        marker = _keys([row._cell.total for row in rows], MARKERS)
        for row in rows:
            axes.plot(
                row.value(cost),
                row.value(error),
                marker[row._cell.total],
                color=colour[_scale(row)],
                ms=5,
                alpha=0.75,
                mew=0,
            )
        front = found.front(error, cost)
        points = [(row.value(cost), row.value(error)) for row in front]
        axes.plot(*zip(*points, strict=True), color=GREY, lw=1.4, zorder=1, drawstyle="steps-post")
        _error_axis(axes, error, [row.value(error) for row in rows])
        _name(axes, [row._cell.element.name for row in front], points)
        axes.set_xlabel(NAMES[cost])
        missing = len(found.rows) - len(rows)
        axes.set_title(
            f"{len(found.rows)} cells" + (f", {missing} with infinite errors" * bool(missing))
        )
        _legend(figure, colour, marker)
        return figure


def _name(axes: Any, names: list[str], points: list[tuple[float, float]]) -> None:
    """Writes names next to their points; leaves out a name that would overlap another name."""
    to_picture = axes.transData + axes.transAxes.inverted()
    last = (-1.0, -1.0)
    for name, point in zip(names, points, strict=True):
        x, y = to_picture.transform(point)
        if abs(x - last[0]) > 2 * _APART or abs(y - last[1]) > _APART:
            last = (x, y)
            axes.annotate(name, point, xytext=(4, 4), textcoords="offset points", fontsize=8.5)


def _scale(row: SweepRow) -> str:
    """Returns the legend's text for the scales of a row's format."""
    q = row._cell.format
    if not isinstance(q, Scaled):
        return "no scales"
    if q.block in ("tensor", "row"):
        return f"{q.scale} scale a {q.block}"
    return f"{q.scale} scale for {q.block}" + (" below a tensor's" if q.tensor_scale else "")


def _keys(names: list[str], keys: Any) -> dict[str, Any]:
    return {name: keys[place % len(keys)] for place, name in enumerate(dict.fromkeys(names))}


def _error_axis(axes: Any, error: str, values: list[float]) -> None:
    axes.set_ylabel(NAMES[error])
    if error in _SHARES:
        axes.yaxis.set_major_formatter(per_cent)
    positive = [value for value in values if value > 0]
    if error == "accuracy" or not positive or max(positive) / min(positive) < 4:
        return
    text = per_cent if error in _SHARES else lambda value, _: f"{value:,g}"
    if len(positive) == len(values):
        log_axis(axes, max(positive) / min(positive), text)
        return
    axes.set_yscale("symlog", linthresh=min(positive))  # some errors are 0
    axes.yaxis.set_major_formatter(text)
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def _legend(figure: Figure, colour: dict[str, Any], marker: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    def dot(shape: str, shade: str, label: str) -> Line2D:
        return Line2D([], [], marker=shape, color=shade, ls="", label=label)

    handles = [dot("o", shade, name) for name, shade in colour.items()]
    if len(marker) > 1:
        handles += [dot(shape, GREY, f"sums in {name}") for name, shape in marker.items()]
    handles.append(Line2D([], [], color=GREY, lw=1.4, label="Pareto front"))
    figure.legend(handles=handles, loc="outside right upper")
