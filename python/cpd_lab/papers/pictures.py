# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of studies as SVG elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap

from cpd._picture import BLUE, GREEN, GREY, ORANGE, PALETTE
from cpd_lab.papers.study import Results
from cpd_lab.picture import picture

COLORS = (*PALETTE, GREY)


def curves(
    title: str,
    results: Results,
    labels: Sequence[str],
    metric: str,
    what: str,
    factor: float = 100.0,
) -> str:
    """Draws a metric of trainings by epoch.

    A line is a label's mean over seeds, a shade its range.
    """
    with picture(title, 8, 4) as drawn:
        axes = drawn.figure.subplots()
        for number, label in enumerate(labels):
            runs = [measurement.result["curves"][metric] for measurement in results.of(label)]
            if not runs:
                continue
            length = max(map(len, runs))
            padded = factor * np.array([run + [np.nan] * (length - len(run)) for run in runs])
            epochs = np.arange(1, length + 1)
            color = COLORS[number % len(COLORS)]
            style = ".-" if number < len(COLORS) else ".--"  # a point where a run ends at once
            axes.plot(epochs, np.nanmean(padded, 0), style, color=color, label=label)
            axes.fill_between(
                epochs, np.nanmin(padded, 0), np.nanmax(padded, 0), color=color, alpha=0.15
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(what)
        if axes.lines:
            drawn.figure.legend(loc="outside right upper")
    return drawn.svg


def lines(
    title: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x: str,
    y: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Draws lines. `series` maps the label of a line to the x values and y values of its points."""
    with picture(title, 8, 4) as drawn:
        axes = drawn.figure.subplots()
        for number, (label, (places, values)) in enumerate(series.items()):
            axes.plot(places, values, "o-", color=COLORS[number % len(COLORS)], label=label)
        if log_x:
            axes.set_xscale("log", base=2)
            places = sorted({place for places, _ in series.values() for place in places})
            axes.set_xticks(places, [f"{place:g}" for place in places])
        if log_y:
            axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(series) > 1:
            drawn.figure.legend(loc="outside right upper")
    return drawn.svg


def histograms(title: str, counts: Mapping[str, Mapping[int, int]], x: str) -> str:
    """Draws a line for each label: the share of values by exponent."""
    with picture(title, 8, 4.5) as drawn:
        axes = drawn.figure.subplots()
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, max(len(counts), 2)))
        for shade, (label, of) in zip(shades, counts.items(), strict=False):
            total = sum(of.values()) or 1
            exponents = range(min(of, default=0), max(of, default=0) + 1)
            shares = [100 * of.get(exponent, 0) / total for exponent in exponents]
            axes.step(list(exponents), shares, where="mid", color=shade, label=label)
        axes.set_xlabel(x)
        axes.set_ylabel("share of the values, %")
        drawn.figure.legend(loc="outside right upper", fontsize=8)
    return drawn.svg


_CLASSES = ListedColormap(["#eeeeee", BLUE, ORANGE, GREEN])


def grid(title: str, columns: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Draws the classes of pixels as pictures, with a column for each label.

    `columns` maps a label to pictures. A picture is a list of rows of digits, a digit for the class
    of each pixel.
    """
    rows = min(len(pictures) for pictures in columns.values())
    with picture(title, 1.5 * len(columns), 1.5 * rows) as drawn:
        every = drawn.figure.subplots(rows, len(columns), squeeze=False)
        for column, (label, pictures) in enumerate(columns.items()):
            for row in range(rows):
                axes = every[row][column]
                values = np.array([[int(digit) for digit in line] for line in pictures[row]])
                axes.imshow(values, cmap=_CLASSES, vmin=0, vmax=3, interpolation="nearest")
                axes.set_axis_off()
                if row == 0:
                    axes.set_title(label, fontsize=8, loc="center")
    return drawn.svg
