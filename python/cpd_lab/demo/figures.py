# SPDX-License-Identifier: Apache-2.0
"""The plots of the demo's report, as SVG elements for an HTML page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpd._picture import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from cpd.numeric.formats import Format, named
from cpd_lab.demo.results import Roundoff
from cpd_lab.picture import picture
from cpd_lab.shares import percent
from cpd_lab.train.runs import Layer, Run
from cpd_lab.train.wire import power_of_two


def lost_below(wire: Format) -> int:
    """Returns the exponent k such that rounding to nearest turns every |g| < 2^k into zero.

    2^k is half of the least positive value of the format.
    """
    least = wire.min_subnormal
    assert least is not None
    return math.frexp(least)[1] - 2


def share_lost(counts: Mapping[str, int], wire: Format, shift: int = 0) -> float:
    """Returns the share of a histogram's values that rounding to `wire` turns into zero.

    Args:
        counts: maps an exponent floor(log2|g|) to its number of values.
        wire: the format to which the values are rounded.
        shift: is added to each exponent first, as by a scale of 2^shift; default 0.

    Returns:
        The share, 0…1; 0 for an empty histogram.
    """
    total = sum(counts.values())
    lost = sum(n for exponent, n in counts.items() if int(exponent) + shift < lost_below(wire))
    return lost / total if total else 0.0


def top_exponent(wire: Format) -> int:
    """Returns the exponent of the largest power of two that the format represents."""
    return math.frexp(wire.max)[1] - 1


def weight_layers(run: Run) -> list[Layer]:
    """Returns the run's counts (`Layer`) of weight tensors, without the counts of biases."""
    return [layer for layer in run.layers if layer.name.endswith(".weight")]


def gradient_ranges(run: Run, formats: Sequence[str]) -> str:
    """Draws the gradients of every layer in the first epoch, and the ranges of the formats.

    The left panel has the gradients as they are, the right panel after scaling by APS.
    """
    wires = [named(name) for name in formats]
    layers = weight_layers(run)
    with picture(
        "Gradient magnitudes of every layer against the formats' ranges", 9.6, 4.3
    ) as drawn:
        left, right = drawn.figure.subplots(1, 2, sharey=True)
        _range_panel(left, [layer.exponents["1"] for layer in layers], wires)
        _range_panel(right, [layer.relative["1"] for layer in layers], wires, aps=True)
        left.set_yticks(range(len(layers)), [layer.name.split(".")[0] for layer in layers])
        left.set_ylim(len(layers) - 0.6, -0.8)
        left.set_title("As they are")
        right.set_title("After APS: every layer moved to the format's top")
        left.set_xlabel("log₂ |gradient|")
        right.set_xlabel("log₂ |gradient|, relative to the format's top")
        _legend_below(drawn.figure, left)
    return drawn.svg


_HATCHED: dict[str, Any] = {
    "facecolor": "none",
    "edgecolor": ORANGE,
    "hatch": "///",
    "linewidth": 1,
}


def _range_panel(
    axes: Axes, histograms: list[dict[str, int]], wires: list[Format], aps: bool = False
) -> None:
    for index, wire in enumerate(wires):
        top = top_exponent(wire)
        low, high = lost_below(wire), math.log2(wire.max)
        if aps:
            low, high = low - top, high - top
        axes.axvspan(
            low,
            high,
            **({"color": SKY, "alpha": 0.25, "linewidth": 0} if index == 0 else _HATCHED),
            label=f"({wire.exp},{wire.man}) can hold",
        )
    for row, counts in enumerate(histograms):
        _range_bar(axes, row, {int(e): n for e, n in counts.items()})
    least = min(min(map(int, counts)) for counts in histograms)
    axes.set_xlim(max(least, -45) - 1, 10 if not aps else 2)
    axes.grid(axis="y", visible=False)
    for row, counts in enumerate(histograms):
        share = share_lost(counts, wires[0], top_exponent(wires[0]) if aps else 0)
        axes.annotate(
            f"({wires[0].exp},{wires[0].man}) loses {percent(share)}",
            (0.015, row - 0.36),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=GREY,
        )


def _range_bar(axes: Axes, row: int, counts: dict[int, int]) -> None:
    """Draws the distribution of one layer's exponents.

    A thin line spans all values, a thick line the middle 90 %, and a dot marks the median.
    """
    first = row == 0
    low, high = min(counts), max(counts) + 1
    axes.plot([low, high], [row, row], color=BLUE, lw=1.2, label="all values" if first else None)
    five, half, ninety_five = (_quantile(counts, q) for q in (0.05, 0.5, 0.95))
    axes.plot(
        [five, ninety_five],
        [row, row],
        color=BLUE,
        lw=6,
        solid_capstyle="butt",
        label="middle 90 %" if first else None,
    )
    axes.plot([half], [row], "o", color="white", mec=BLUE, ms=6, label="median" if first else None)


def _quantile(counts: dict[int, int], q: float) -> float:
    """Returns the q-quantile of log2|g|. Values with equal exponents count as evenly spread."""
    target = q * sum(counts.values())
    seen = 0
    for exponent, number in sorted(counts.items()):
        if seen + number >= target:
            return exponent + (target - seen) / number
        seen += number
    return max(counts) + 1


_RUN_STYLES: list[tuple[str, str]] = [
    (GREY, "-"),
    (RED, "-"),
    (ORANGE, "--"),
    (BLUE, "-"),
    (GREEN, "--"),
    (PURPLE, "-"),
    (SKY, "-"),
]


def accuracy_curves(runs: Sequence[Run]) -> str:
    """Draws the held-out accuracy of each run after every epoch, and marks where a run diverged."""
    with picture("Held-out accuracy by epoch for every run of the table", 9.6, 4.0) as drawn:
        axes = drawn.figure.subplots()
        for run, (colour, line) in zip(runs, _RUN_STYLES, strict=False):
            epochs = range(1, len(run.curve) + 1)
            axes.plot(epochs, run.curve, line, color=colour, lw=1.8, label=run.label)
            if run.diverged:
                axes.plot(len(run.curve), run.curve[-1], "x", color=colour, ms=8, mew=2)
        axes.axhline(0.1, color=GREY, lw=1, ls=":", label="guessing")
        axes.set(xlabel="epoch", ylabel="held-out accuracy", ylim=(0, 1.02))
        drawn.figure.legend(loc="outside right center")
    return drawn.svg


def loss_scale_search(search: Sequence[Run], with_aps: Run, without: Run) -> str:
    """Draws the accuracy of e4m3 trainings by constant loss scale, and the accuracy with APS."""
    with picture("Held-out accuracy of (4,3) by constant loss scale", 9.6, 3.2) as drawn:
        axes = drawn.figure.subplots()
        tried = [without, *search]
        exponents = [int(math.log2(run.loss_scale)) for run in tried]
        axes.plot(exponents, [run.accuracy for run in tried], "o-", color=RED, label="(4,3)")
        diverged = [(e, r.accuracy) for e, r in zip(exponents, tried, strict=True) if r.diverged]
        if diverged:
            axes.plot(*zip(*diverged, strict=True), "x", color="black", ms=8, label="diverged")
        axes.axhline(with_aps.accuracy, color=BLUE, lw=1.6, ls="--", label="(4,3) + APS, no search")
        axes.set_xticks(exponents, [power_of_two(e) for e in exponents])
        axes.set(xlabel="constant loss scale", ylabel="held-out accuracy", ylim=(0, 1.02))
        drawn.figure.legend(loc="outside right center")
    return drawn.svg


def roundoff_by_group_size(roundoff: Roundoff) -> str:
    """Draws the round-off of an all-reduce by the number of ranks in a group.

    One panel has the mean relative error, the other the relative RMS. A line is one way to sum.
    """
    with picture("Round-off of the all-reduce by group size", 9.6, 3.8) as drawn:
        panels = drawn.figure.subplots(1, 2)
        figures = (("error", "mean relative error (Eq. 5)"), ("relative_rms", "relative RMS"))
        for axes, (name, title) in zip(panels, figures, strict=True):
            for series, colour, line in zip(
                roundoff.series, (BLUE, ORANGE, GREEN), ("o-", "s--", "^-"), strict=False
            ):
                sizes = [row.group_size for row in series.rows]
                values = [getattr(row, name) for row in series.rows]
                axes.plot(sizes, values, line, color=colour, label=series.label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
            axes.set_xlabel("group size")
            axes.set_title(title)
        _legend_below(drawn.figure, panels[0])
    return drawn.svg


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
