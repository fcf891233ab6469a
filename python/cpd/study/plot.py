# SPDX-License-Identifier: Apache-2.0
"""The plot of `cpd roundoff`: relative RMS by group size, one line for each format."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpd._files import replaced
from cpd.study.series import Series

# Okabe and Ito's colors, which most color-blind readers can tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
)
GREY = "#555555"

STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}

SUFFIXES = (".png", ".svg")
_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_MARKERS = ("o-", "s-", "^-", "D-", "v-", "P-")
_BASELINES = ("--", ":")
_FAR = 100  # times less than the least error of the formats


def check_plot_path(path: Path) -> None:
    """Raises ValueError unless the file's ending is one of `SUFFIXES`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a plot must end in {' or '.join(SUFFIXES)}")


def save(path: Path, name: str, draw: Callable[[], Figure]) -> None:
    """Writes a figure in this style. `name` makes the ids of an SVG the same each time.

    Raises ValueError as `check_plot_path`, before it draws.
    """
    check_plot_path(path)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = draw()
        metadata: Any = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with replaced(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=160, metadata=metadata)


def draw(path: Path, series: Sequence[Series], nodes: int) -> None:
    """Writes the plot.

    Baselines, which have no groups, are horizontal lines. A baseline far below the formats is only
    in the legend, with its error.
    """
    save(path, "roundoff", lambda: _figure(series, nodes))


def _figure(series: Sequence[Series], nodes: int) -> Figure:
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    formats = [way for way in series if not way.baseline]
    handles = [_line(axes, way, index) for index, way in enumerate(formats)]
    errors = [line.row.relative_rms for way in formats for line in way.lines]
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


def number_axis(axes: Axes, numbers: Sequence[int], labels: Sequence[str], **options: Any) -> None:
    """Makes the horizontal axis logarithmic, with a tick for each number."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, labels, **options)
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def _line(axes: Axes, way: Series, index: int) -> Any:
    spreads = [line.choice.spread if line.choice else None for line in way.lines]
    errors = [spread for spread in spreads if spread is not None]
    return axes.errorbar(
        [line.row.group_size for line in way.lines],
        [line.row.relative_rms for line in way.lines],
        yerr=errors if len(errors) == len(spreads) else None,
        fmt=_MARKERS[index % len(_MARKERS)],
        color=_COLOURS[index % len(_COLOURS)],
        lw=1.8,
        capsize=3,
        label=way.label,
    )


def _error_axis(axes: Axes, errors: list[float]) -> None:
    """Makes the axis of errors logarithmic, unless an error is 0 or not finite."""
    axes.yaxis.set_major_formatter(per_cent)
    low, high = min(errors), max(errors)
    if not (math.isfinite(high) and low > 0):
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    axes.set_ylim(low / 1.5, high * 1.5)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=steps, numticks=30))
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.yaxis.set_major_formatter(per_cent)


def per_cent(share: float, _: object) -> str:
    """The text of a share at an axis."""
    return f"{100 * share:.3g} %"
