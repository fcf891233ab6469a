# SPDX-License-Identifier: Apache-2.0
"""Functions that several studies share: they list measurements and make tables of trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpd_lab.papers.quotations import labels_of
from cpd_lab.papers.study import Cell, Found, Results, Spread, Table


def over_seeds(
    kind: str, rows: Mapping[str, Mapping[str, Any]], seeds: int, minutes: float, **shared: Any
) -> list[Cell]:
    """Returns a cell (one measurement) for each label in `rows` and each seed 0 … seeds - 1.

    `rows` maps the label of a table's row to the options of its measurements. Those options take
    precedence over `shared`.
    """
    return [
        Cell(kind, {**shared, **own, "seed": seed}, label, minutes)
        for label, own in rows.items()
        for seed in range(seeds)
    ]


def final(result: dict[str, Any]) -> float:
    """Returns the training's main metric after the last epoch."""
    return float(result["final"])


def lost(result: dict[str, Any]) -> float:
    """Returns the share of nonzero gradients that the all-reduce's cast turned into zero."""
    return float(result["lost"])


def accuracy(results: Results, label: str) -> Spread | None:
    """Returns the main metric of a training over seeds, or None if the training is not measured."""
    return results.spread(label, final)


def training_table(
    title: str,
    results: Results,
    labels: Sequence[str],
    row: str,
    what: str,
    names: Mapping[str, str] | None = None,
) -> Table:
    """Returns a table with a row for each training.

    A row has the metric in percent over seeds, the paper's value, the share of gradients that
    became zero, and the number of runs that diverged.

    Args:
        title: the table's title.
        results: the measured results.
        labels: the labels of the table's rows.
        row: the row of papers.toml that quotes the paper's values; empty if the paper states none.
        what: the head of the metric's column.
        names: maps a label to the quotation's label if the two differ; default None.

    Returns:
        The table.
    """
    quotes = labels_of(row) if row else {}
    paper = {label: quotes.get((names or {}).get(label, label), "") for label in labels}
    rows = []
    for label in labels:
        measurements = results.of(label)
        if not measurements:
            rows.append([label, "not run", paper[label], "", ""])
            continue
        metric, zeros = results.spread(label, final), results.spread(label, lost)
        assert metric is not None
        assert zeros is not None
        rows.append(
            [
                label,
                metric.text(1, 100),
                paper[label],
                zeros.text(1, 100),
                diverged(measurements),
            ]
        )
    return Table(title, [" ", what, "paper", "lost to zero, %", "diverged"], rows)


def diverged(found: Sequence[Found]) -> str:
    """Returns how many runs diverged, such as '2 of 3'; empty if no run did."""
    count = sum(measurement.result["diverged_at"] is not None for measurement in found)
    return f"{count} of {len(found)}" if count else ""
