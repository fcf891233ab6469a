# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of reports in one style: `picture`, `as_file`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure

from cpd._picture import STYLE, to_svg


@dataclass
class Picture:
    """A Matplotlib figure and, after it is drawn, the figure as an SVG element."""

    figure: Figure
    svg: str = ""


@contextmanager
def picture(title: str, width: float, height: float) -> Iterator[Picture]:
    """Yields a figure of this size in inches, and draws it as SVG when the `with` block ends."""
    with matplotlib.rc_context(STYLE):
        drawn = Picture(Figure(figsize=(width, height), layout="constrained"))
        yield drawn
        drawn.svg = to_svg(drawn.figure, title)


def as_file(svg: str) -> str:
    """Returns the text of an SVG file that shows the element `svg` on a white background."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return svg.replace("<svg", f'<svg {spaces} style="background: #fff"', 1) + "\n"
