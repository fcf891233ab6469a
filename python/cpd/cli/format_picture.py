# SPDX-License-Identifier: Apache-2.0
"""`cpd show --picture FILE`: draws formats as number lines, and the spacing of their values."""

from pathlib import Path
from typing import Any

import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpd._picture import PALETTE, save
from cpd.cli.compare import binade, binades
from cpd.numeric.formats import Format

_WIDE = 64
"""The ends of the axis of magnitudes are chosen from formats with fewer binades than this. If all
formats have at least this number of binades, the axis covers all formats."""
_TICKS = 8
"""The largest number of bits of a format for which each value is drawn as a tick. For wider
formats, each range is drawn as a bar."""


def draw(path: Path, formats: list[Format]) -> None:
    """Writes the picture. Raises ValueError for another ending than .png or .svg."""
    save(path, "format", lambda: _figure(formats), dpi=150)


def _figure(formats: list[Format]) -> Figure:
    height = 2.6 + 0.42 * len(formats)
    figure = Figure(figsize=(9.2, height + 3.2), layout="constrained")
    panels: Any = figure.subplots(3, 1, height_ratios=[height / 2, height / 2, 3.2])
    panels[2].sharex(panels[1])
    _near_zero(panels[0], formats)
    _number_lines(panels[1], formats)
    _distances(panels[2], formats)
    return figure


def _color(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _rows(axes: Axes, formats: list[Format]) -> None:
    """Writes the formats' names along the vertical axis, with the first format at the top."""
    axes.set_yticks(range(len(formats)), [str(f) for f in formats])
    axes.set_ylim(len(formats) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _near_zero(axes: Axes, formats: list[Format]) -> None:
    """Draws the values from -2 to 2 on a linear axis."""
    for row, f in enumerate(formats):
        if f.bits > _TICKS:
            axes.barh(row, 4, 0.62, left=-2, color=_color(row), alpha=0.45)
            continue
        values = f.values()
        values = values[np.abs(values) <= 2]
        axes.vlines(values, row - 0.31, row + 0.31, color=_color(row), lw=0.9)
    axes.set_xlim(-2.04, 2.04)
    axes.set_title("the number line from −2 to 2")
    _rows(axes, formats)


def _number_lines(axes: Axes, formats: list[Format]) -> None:
    """Draws all positive values on a logarithmic axis: normal ones dark, subnormal ones pale."""
    for row, f in enumerate(formats):
        least = f.min_normal if f.min_normal is not None else np.inf
        if f.bits <= _TICKS:
            values = f.values()
            values = values[values > 0].astype(np.float64)
            for some, alpha in ((values[values >= least], 1.0), (values[values < least], 0.5)):
                where = np.log2(some)
                axes.vlines(where, row - 0.31, row + 0.31, color=_color(row), lw=0.9, alpha=alpha)
            continue
        powers = binades(f)
        first = int(np.log2(least))
        spans = ((powers.start, first, 0.25), (first, powers.stop, 0.7))
        for low, high, alpha in spans:
            axes.barh(row, high - low, 0.62, left=low, color=_color(row), alpha=alpha, lw=0)
    axes.set_title("all positive values by magnitude; pale: subnormal")
    axes.xaxis.set_major_formatter(_power)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    _rows(axes, formats)


def _distances(axes: Axes, formats: list[Format]) -> None:
    """Draws the distance from each value to the next, relative to the power of two below it."""
    for number, f in enumerate(formats):
        pairs = [(k, interval) for k in binades(f) if (interval := binade(f, k)) is not None]
        edges = [k for k, _ in pairs] + [pairs[-1][0] + 1]
        axes.stairs(
            [interval.spacing - k for k, interval in pairs], edges, baseline=None,
            color=_color(number), lw=1.8, label=str(f),
            ls=("-", "--", ":")[number // len(PALETTE) % 3],
        )  # fmt: skip
    spans = [binades(f) for f in formats]
    narrow = [span for span in spans if len(span) < _WIDE] or spans
    axes.set_xlim(min(s.start for s in narrow) - 1.5, max(s.stop for s in narrow) + 1.5)
    axes.set_title("ulp map: the distance to the next value, relative to the power of two below")
    axes.set_xlabel("magnitude")
    axes.xaxis.set_major_formatter(_power)
    axes.yaxis.set_major_formatter(_power)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    below: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
    axes.legend(**below, ncols=min(len(formats), 6), fontsize=9)


def _power(exponent: float, _: object) -> str:
    return f"$2^{{{exponent:g}}}$"
