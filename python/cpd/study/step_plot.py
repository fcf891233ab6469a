# SPDX-License-Identifier: Apache-2.0
"""The plot of `cpd cost`: samples a second by the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from cpd._picture import GREY, MARKERS, PALETTE, log_axis, number_axis, save
from cpd.study.step_rows import StepRow

_COLORS = (*PALETTE, GREY)


def draw_rows(path: Path, rows: Sequence[StepRow], title: str) -> None:
    """Writes the plot: samples a second by number of ranks, one color for each wire.

    A wire is the text of an all-reduce. Solid lines: nothing overlaps. Dotted lines: encoding
    overlaps with messages. Raises ValueError for an unsupported suffix of the file name.
    """
    save(path, "cost", lambda: _figure(rows, title))


def _figure(rows: Sequence[StepRow], title: str) -> Figure:
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    wires = list(dict.fromkeys(row.wire for row in rows))
    handles = []
    for number, wire in enumerate(wires):
        mine = [row for row in rows if row.wire == wire]
        color = _COLORS[number % len(_COLORS)]
        world = [row.step.ranks for row in mine]
        apart = [row.step.samples_a_second for row in mine]
        both = [row.step.samples / row.step.overlapped for row in mine]
        marker = MARKERS[number % len(MARKERS)]
        handles += axes.plot(world, apart, color=color, marker=marker, ms=4, label=wire)
        axes.plot(world, both, color=color, ls=":", lw=1)
    world = sorted({row.step.ranks for row in rows})
    ideal = {
        row.step.ranks: row.step.samples / row.step.computation
        for row in rows
        if row.step.computation
    }
    if ideal:
        points = [ideal[ranks] for ranks in world]
        label = "computation alone"
        handles += axes.plot(world, points, color=GREY, ls="--", lw=1, label=label)
    number_axis(axes, world, list(map(str, world)), rotation=45 * (len(world) > 8))
    rates = axes.dataLim.intervaly
    log_axis(axes, rates[1] / rates[0], lambda rate, _: f"{rate:,g}")
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples a second\n(dotted: codec and messages overlap)")
    axes.set_title(title)
    figure.legend(handles=handles, loc="outside right upper")
    return figure
