# SPDX-License-Identifier: Apache-2.0
"""Figures as elements of an HTML page."""

import io
import re
from html import escape

import matplotlib
from matplotlib.figure import Figure

from cpd.study.plot import STYLE


def to_svg(figure: Figure, title: str) -> str:
    """The figure as one <svg> element, with text as text and without external references."""
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
