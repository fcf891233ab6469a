# SPDX-License-Identifier: Apache-2.0
"""The picture of one observed step: the range of each layer's tensors, and the SQNR of recipes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from cpd._files import replaced

if TYPE_CHECKING:
    from cpd.nn.observed_rows import Row

ROLES = ("activation", "weight", "gradient")
LONGEST = 24
"""The most characters of a name that are shown."""
SUFFIXES = (".png", ".svg")


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Writes the picture. Raises ValueError for another ending, or where nothing was observed."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a plot must end in {' or '.join(SUFFIXES)}")
    if not rows:
        raise ValueError("nothing was observed yet, so there is nothing to draw")
    with matplotlib.rc_context({"font.size": 8, "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 5), layout="constrained")
        panels: Any = figure.subplots(2, len(ROLES), sharex="col", sharey="row")
        names = dict.fromkeys(row.judge for row in rows)
        colours = {name: f"C{number % 10}" for number, name in enumerate(filter(None, names))}
        for role, (upper, lower) in zip(ROLES, panels.T, strict=True):
            _panels(upper, lower, [row for row in rows if row.role == role], colours)
            upper.set_title(role)
        panels[0][0].set_ylabel("log₂ |x|, smallest to largest")
        panels[1][0].set_ylabel("SQNR in dB")
        figure.suptitle(f"step {rows[-1].step}")
        lines = {line.get_label(): line for axes in panels[1] for line in axes.lines}
        if lines:
            figure.legend(lines.values(), lines, loc="outside lower center", ncols=len(lines))
        with replaced(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=120)


def _panels(upper: Any, lower: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Draws one role: bars of ranges above, a line for each recipe below."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    places = {layer: place for place, layer in enumerate(layers)}
    for row in {row.layer: row for row in rows}.values():
        if row.smallest is not None:
            low, high = math.log2(row.smallest), math.log2(row.amax)
            upper.vlines(places[row.layer], low, high, color="#777777", linewidth=6)
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.sqnr is not None and math.isfinite(row.sqnr):
            series.setdefault(row.judge, []).append((places[row.layer], row.sqnr))
    for name, points in series.items():
        look = {"markersize": 3, "linewidth": 1, "color": colours[name], "label": name}
        lower.plot(*zip(*points, strict=True), "o-", **look)
    lower.set_xticks(range(len(layers)), map(_short, layers), rotation=90)


def _short(name: str) -> str:
    """The end of a long name."""
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]
