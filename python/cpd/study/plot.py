# SPDX-License-Identifier: Apache-2.0
"""The plot of `cpd roundoff`: relative RMS by group size, one line for each all-reduce."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpd._picture import GREY, MARKERS, PALETTE, log_axis, number_axis, per_cent, save
from cpd.study.series import Series

_BASELINES = ("--", ":")
_FAR = 100  # a baseline is far if its error is this many times less than all formats' errors


def draw(path: Path, series: Sequence[Series], nodes: int) -> None:
    """Writes the plot to a file, with one line for each series (an all-reduce).

    `nodes` is the number of ranks. Baselines (sums without groups, for comparison) are horizontal
    lines. If a baseline's error is far below the formats' errors, it is only named in the legend,
    with its error.
    """
    save(path, "roundoff", lambda: _figure(series, nodes))


def _figure(series: Sequence[Series], nodes: int) -> Figure:
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    formats = [way for way in series if not way.baseline]
    handles = [_line(axes, way, index) for index, way in enumerate(formats)]
    errors = [line.row.relative_rms for way in formats for line in way.lines]
    errors = [error for error in errors if math.isfinite(error)] or [1.0]
    for way, dashes in zip((s for s in series if s.baseline), _BASELINES, strict=False):
        level = way.lines[0].row.relative_rms
        near = level * _FAR >= min(errors)
        label = f"{way.label}, no groups" + ("" if near else f":\n{level:.1e}, far below")
        handles.append(axes.plot([], [], color=GREY, lw=1.4, ls=dashes, label=label)[0])
        if near:
            axes.axhline(level, color=GREY, lw=1.4, ls=dashes)
            errors.append(level)
    sizes = sorted({size for way in formats for size in way.sizes})
    number_axis(axes, sizes, ["none" if size == nodes else str(size) for size in sizes])
    _error_axis(axes, errors)
    axes.set_xlabel("group size")
    axes.set_ylabel("relative RMS error")
    axes.set_title(f"Round-off of the all-reduce over {nodes} node{'s' * (nodes != 1)}")
    figure.legend(handles=handles, loc="outside right upper")
    return figure


def _line(axes: Axes, way: Series, index: int) -> Any:
    spreads = [line.choice.spread if line.choice else None for line in way.lines]
    errors = [spread for spread in spreads if spread is not None]
    return axes.errorbar(
        [line.row.group_size for line in way.lines],
        [
            line.row.relative_rms if line.row.non_finite < line.row.count else math.nan
            for line in way.lines
        ],
        yerr=errors if len(errors) == len(spreads) else None,
        fmt=f"{MARKERS[index % len(PALETTE)]}-",
        color=PALETTE[index % len(PALETTE)],
        lw=1.8,
        capsize=3,
        label=way.label,
    )


def _error_axis(axes: Axes, errors: list[float]) -> None:
    """Makes the error axis logarithmic, or linear from 0 if an error is 0 or not finite."""
    axes.yaxis.set_major_formatter(per_cent)
    low, high = min(errors), max(errors)
    if not (math.isfinite(high) and low > 0):
        axes.set_ylim(bottom=0)
        return
    axes.set_ylim(low / 1.5, high * 1.5)
    log_axis(axes, high / low, per_cent)
