# SPDX-License-Identifier: Apache-2.0
"""Defines the style of all pictures, and writes figures as files or as elements of an HTML page."""

import io
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpd._files import replaced
from cpd.numeric.shown import share as share_text

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
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
MARKERS = "os^DvPX*"

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


def check_plot_path(path: Path) -> None:
    """Raises ValueError unless the file's ending is one of `SUFFIXES`."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a plot must end in {' or '.join(SUFFIXES)}")


def save(
    path: Path, name: str, draw: Callable[[], Figure], dpi: int = 160, style: Any = STYLE
) -> None:
    """Writes a figure in a style of matplotlib.

    Element ids of an SVG are derived from `name`, so that equal figures give equal files. Raises
    ValueError for an ending that is not in `SUFFIXES`, before anything is drawn.
    """
    check_plot_path(path)
    with matplotlib.rc_context({**style, "svg.hashsalt": name}):
        figure = draw()
        metadata: Any = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with replaced(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=dpi, metadata=metadata)


def number_axis(axes: Axes, numbers: Sequence[int], labels: Sequence[str], **options: Any) -> None:
    """Makes the horizontal axis logarithmic, with a tick for each number.

    `numbers` must be in ascending order. A label that would touch the next label is left out.
    """
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, _apart(numbers, labels), **options)
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())


def _apart(numbers: Sequence[int], labels: Sequence[str]) -> list[str]:
    """Returns the labels, with "" for each label that is too near to the next shown label.

    >>> _apart([1, 7, 8, 512], ["1", "7", "8", "none"])
    ['1', '', '8', 'none']
    """
    least = 0.04 * math.log2(max(numbers) / min(numbers))  # of the axis, the width of a label
    shown: list[str] = []
    after = math.inf
    for number, label in zip(reversed(numbers), reversed(labels), strict=True):
        is_free = math.isinf(after) or math.log2(after / number) >= least
        shown.append(label if is_free else "")
        after = number if is_free else after
    return shown[::-1]


def log_axis(axes: Axes, ratio: float, text: Callable[[float, object], str]) -> None:
    """Makes the vertical axis logarithmic.

    `ratio` is the largest value over the smallest. For a smaller ratio, more multiples of powers of
    ten have ticks. `text` returns the label of a tick.
    """
    axes.set_yscale("log")
    steps = (1, 2, 3, 5, 7) if ratio < 10 else (1, 2, 5) if ratio < 1000 else (1,)
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=steps, numticks=30))
    axes.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.yaxis.set_major_formatter(text)


def per_cent(share: float, _: object) -> str:
    """Returns a fraction as the label of an axis, in percent."""
    return share_text(share)


def to_svg(figure: Figure, title: str) -> str:
    """Returns the figure as an <svg> element with real text and without external references."""
    stream = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": title}):
        figure.savefig(stream, format="svg", metadata=metadata, transparent=True)
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) (?:width)="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) (?:height)="[^"]*"', r"\1", svg, count=1)
    prefix = re.sub(r"\W+", "-", title.lower())  # ids are unique in the whole page
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", svg)
    name = escape(title, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{name}"', 1).strip()
