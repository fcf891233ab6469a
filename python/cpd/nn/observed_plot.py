# SPDX-License-Identifier: Apache-2.0
"""Draws one observed step: the ranges of each layer's tensors, and the SQNR of each recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from cpd._picture import check_plot_path, save

if TYPE_CHECKING:
    from cpd.nn.observed_rows import WatchRow

ROLES = ("activation", "weight", "gradient")
LONGEST = 32
"""The largest number of characters of a layer's name in the picture."""
_MARKERS = {"": "o", "grad_input": "s", "grad_weight": "^"}
"""Markers: "o" for the first GEMM that a tensor enters, another marker for the second GEMM."""
_TALLEST = 100.0  # inches


def draw(path: Path, rows: Sequence[WatchRow]) -> None:
    """Writes the picture to a file: one line for each layer, with a mark for each recipe.

    Marks of different recipes have different heights within the line, so that equal values remain
    visible. Raises ValueError for a file that is not .png or .svg, or if nothing was observed.
    """
    check_plot_path(path)
    if not rows:
        raise ValueError("nothing was observed yet, so there is nothing to draw")
    save(path, "observed", lambda: _figure(rows), dpi=120, style=_STYLE)


_STYLE = {"font.size": 8, "svg.fonttype": "none"}


def _figure(rows: Sequence[WatchRow]) -> Figure:
    shown = [row for row in rows if row.role in ROLES]
    places = {layer: place for place, layer in enumerate(dict.fromkeys(r.layer for r in shown))}
    looks = _looks(shown)
    tall = 1.2 + 0.2 * len(looks) + len(places) * max(0.22, 0.08 * len(looks))
    figure = Figure(figsize=(12, min(tall, _TALLEST)), layout="constrained")
    widths = [2, 3] * len(ROLES)
    panels: Any = figure.subplots(1, len(widths), sharey=True, width_ratios=widths)
    for number, role in enumerate(ROLES):
        of_role = [row for row in shown if row.role == role]
        _ranges(panels[2 * number], of_role, places, role)
        _losses(panels[2 * number + 1], of_role, places, looks, role)
    for axes in panels:
        for place in range(0, len(places), 2):
            axes.axhspan(place - 0.5, place + 0.5, color="#f0f0f0", zorder=0)
    panels[0].set_yticks(range(len(places)), map(_short, places))
    panels[0].set_ylim(len(places) - 0.5, -0.5)
    figure.suptitle(f"step {rows[-1].step}: ranges, and what recipes leave of them")
    _legend(figure, looks)
    return figure


def _looks(rows: Sequence[WatchRow]) -> dict[str, dict[str, Any]]:
    """Returns the style of each recipe's marks.

    A style is a color for the recipe, a marker for the GEMM, and a height within a layer's line.
    """
    recipes = list(dict.fromkeys(row.recipe for row in rows if row.recipe))
    judges = {row.judge: row for row in rows if row.recipe}
    ordered = sorted(judges, key=lambda name: recipes.index(judges[name].recipe))
    step = 0.8 / max(len(ordered), 3)
    return {
        name: {
            "color": f"C{recipes.index(judges[name].recipe) % 10}",
            "marker": _MARKERS[judges[name].gemm if name != judges[name].recipe else ""],
            "offset": (number - (len(ordered) - 1) / 2) * step,
        }
        for number, name in enumerate(ordered)
    }


def _ranges(axes: Any, rows: Sequence[WatchRow], places: dict[str, int], role: str) -> None:
    """Draws a bar for each layer, from the smallest magnitude to the largest."""
    for row in {row.layer: row for row in rows}.values():
        if row.smallest is not None:
            low, high = math.log2(row.smallest), math.log2(row.amax)
            axes.hlines(places[row.layer], low, high, color="#777777", linewidth=5)
    axes.set_title(role, loc="left")
    axes.set_xlabel("log₂ |x|")


def _losses(
    axes: Any,
    rows: Sequence[WatchRow],
    places: dict[str, int],
    looks: dict[str, dict[str, Any]],
    role: str,
) -> None:
    """Draws a mark for each recipe of each layer.

    The mark is at the right edge if the cast loses nothing. A cross at the left edge means that a
    rule leaves the layer to torch.
    """
    edges = axes.get_yaxis_transform()  # x from 0 to 1
    for row in rows:
        if not row.recipe:
            continue
        look = looks[row.judge]
        place = places[row.layer] + look["offset"]
        mark = {"color": look["color"], "s": 16, "linewidths": 0.8, "zorder": 3}
        if row.exempt:
            axes.scatter(0.03, place, marker="x", transform=edges, **mark)
        elif row.sqnr == math.inf:
            axes.scatter(0.97, place, marker=">", transform=edges, **mark)
        elif row.sqnr is not None and math.isfinite(row.sqnr):
            axes.scatter(row.sqnr, place, marker=look["marker"], **mark)
    axes.set_xlabel("SQNR in dB")
    axes.margins(x=0.12)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)


def _legend(figure: Any, looks: dict[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    shown = [(name, look["marker"], look["color"]) for name, look in looks.items()]
    if not shown:
        return
    shown += [("nothing lost", ">", "#777777"), ("exempt by a rule", "x", "#777777")]
    marks = [Line2D([], [], linestyle="", marker=m, color=c, markersize=4) for _, m, c in shown]
    names = [name for name, _, _ in shown]
    figure.legend(marks, names, loc="outside lower center", ncols=min(len(names), 5))


def _short(name: str) -> str:
    """Shortens a long name to its end."""
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]
