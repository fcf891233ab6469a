# SPDX-License-Identifier: Apache-2.0
"""Writes the output of `cpd roundoff`: tables, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpd._files import csv_text
from cpd.cli.output import new_table
from cpd.numeric.shown import percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cpd.comm.spec import Reduce
    from cpd.study.series import Line, RoundoffRow, Series

_CSV = (
    "name",
    "format",
    "accumulator",
    "result",
    "order",
    "aps",
    "loss_scale",
    "rounding",
    "overflow",
    "baseline",
    "layer",
    "group_size",
    "relative_rms",
    "spread",
    "error",
    "count",
    "zero_references",
    "non_finite",
    "steps",
    "bytes_sent",
    "seconds",
)


def series_table(series: Sequence[Series]) -> Table:
    """Returns a table of all measured all-reduces, with times if a network was given."""
    timed = any(line.choice for entry in series for line in entry.lines)
    table = new_table(
        "Sum",
        "Group\nsize",
        "Relative\nRMS",
        *(["±"] if timed else []),
        "Eq. 5\nerror",
        "Not\nfinite",
        "Steps",
        *(["MB", "ms"] if timed else []),
    )
    for entry in series:
        for line in entry.lines:
            table.add_row(entry.label, *_cells(line))
    return _narrow(table)


def _cells(line: Line) -> list[str]:
    row, choice = line.row, line.choice
    lost = [str(row.group_size), percent(row.relative_rms, 1)]
    steps = (
        row.steps if choice is None else choice.steps
    )  # with a network: the steps of its exchange
    counts = [percent(row.error, 1), str(row.non_finite), str(steps)]
    if choice is None:
        return [*lost, *counts]
    spread = "" if choice.spread is None else percent(choice.spread, 1)
    times = [_short(choice.bytes_sent / 1e6), _short(choice.seconds * 1e3)]
    return [*lost, spread, *counts, *times]


def _short(value: float) -> str:
    """Returns a number with four significant digits, in at most seven characters."""
    plain = f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
    return plain if len(plain) <= 7 else f"{value:.1e}"


def layer_table(series: Series) -> Table:
    """Returns a table of each layer's relative RMS, with a column for each group size."""
    from cpd.study.gradient_files import shown

    layers: dict[str, list[RoundoffRow]] = {}
    for line in series.layers:
        layers.setdefault(shown(line.layer or ""), []).append(line.row)
    some_not_finite = any(line.row.non_finite for line in series.layers)
    table = new_table(
        "Layer",
        "Values",
        *(["Not\nfinite"] if some_not_finite else []),
        *(f"{'Group' if i == 0 else ''}\n{size}" for i, size in enumerate(series.sizes)),
        title=f"{series.label}: relative RMS of each layer",
    )
    for name, rows in layers.items():
        counts = [f"{rows[0].count:,}"]
        if some_not_finite:
            counts.append(str(max(row.non_finite for row in rows)))
        table.add_row(name, *counts, *(percent(row.relative_rms, 1) for row in rows))
    return _narrow(table)


def _narrow(table: Table) -> Table:
    """Narrows the space between columns, so that the table fits in a window of 80 columns.

    Words of up to 14 characters in the first column are not broken.
    """
    table.padding = (0, 1, 0, 0)
    longest = max((len(str(cell)) for cell in table.columns[0].cells), default=0)
    table.columns[0].min_width = min(longest, 14)
    return table


def print_series(console: Console, series: Sequence[Series], per_layer: bool) -> None:
    """Prints the table, the table by layer if requested, and the recommendation."""
    console.print(series_table(series))
    if per_layer:
        for entry in series:
            if not entry.baseline:
                console.print(layer_table(entry))
    advised = [entry for entry in series if entry.advice is not None]
    for entry in advised:
        assert entry.advice is not None
        if len(advised) > 1:
            console.print(f"{entry.label}:", soft_wrap=True)
        for line in entry.advice.lines():
            console.print(line, soft_wrap=True)
    if any(entry.advice and entry.advice.best.draws for entry in series):
        console.print("±: standard error over 16 blocks of the values", soft_wrap=True)
    print_averaged(console, {entry.label: entry.spec for entry in series})


def print_averaged(console: Console, specs: Mapping[str, Reduce]) -> None:
    """Prints which all-reduces use codecs with error feedback.

    For these codecs, the table has the round-off of the mean of several sums.
    """
    from cpd.study.reduce import STEPS, feeds_back

    labels = [label for label, spec in specs.items() if feeds_back(spec)]
    if labels:
        console.print(
            f"mean of {STEPS} sums, with errors fed back: {', '.join(labels)}", soft_wrap=True
        )


def csv_of(series: Sequence[Series], per_layer: bool) -> str:
    """Returns the header and the rows of the CSV file. `layer` is empty for all layers together."""
    rows = []
    for entry in series:
        setting = {"name": entry.label, **entry.setting(), "baseline": int(entry.baseline)}
        for line in [*entry.lines, *(entry.layers if per_layer else [])]:
            rows.append({**setting, "layer": line.layer, **line.json()})
    return csv_text(rows, _CSV)


def json_of(series: Sequence[Series], per_layer: bool) -> dict[str, Any]:
    """Returns the data for JSON.

    For one all-reduce, the object has the key `roundoff` and, if requested, `per_layer` and
    `recommend`. For several all-reduces, the key `formats` has a list of such objects. The key
    `baselines` has a list of such objects for the two all-reduces that are common today.
    """
    pairs = [(entry, _json_of_one(entry, per_layer)) for entry in series]
    chosen = [
        {"name": entry.label, **entry.setting(), **data}
        for entry, data in pairs
        if not entry.baseline
    ]
    chosen_rows: dict[str, Any] = chosen[0] if len(chosen) == 1 else {"formats": chosen}
    against = [
        {"name": entry.label, **entry.setting(), **d} for entry, d in pairs if entry.baseline
    ]
    return {**chosen_rows, "baselines": against}


def _json_of_one(series: Series, per_layer: bool) -> dict[str, Any]:
    data: dict[str, Any] = {"roundoff": [line.json() for line in series.lines]}
    if per_layer:
        data["per_layer"] = [{"layer": line.layer, **line.json()} for line in series.layers]
    if series.advice is not None:
        data["recommend"] = series.advice.json()
    return data
