# SPDX-License-Identifier: Apache-2.0
"""What studies share: cells over seeds, rows of trainings, comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cpd.papers.study import Cell, Finding, Found, Results, Spread, Table


def over_seeds(
    kind: str, rows: Mapping[str, Mapping[str, Any]], seeds: int, minutes: float, **shared: Any
) -> list[Cell]:
    """A cell for each row, by its label, and seed: `shared` options, with the row's own."""
    return [
        Cell(kind, {**shared, **own, "seed": seed}, label, minutes)
        for label, own in rows.items()
        for seed in range(seeds)
    ]


def final(result: dict[str, Any]) -> float:
    """The metric that counts, at the end."""
    return float(result["final"])


def lost(result: dict[str, Any]) -> float:
    """The share of nonzero gradients that became zero on the wire."""
    return float(result["lost"])


def accuracy(results: Results, label: str) -> Spread | None:
    return results.spread(label, final)


def training_table(
    title: str, results: Results, labels: Iterable[str], paper: Mapping[str, str], what: str
) -> Table:
    """A row of each training: the metric in percent over seeds, the paper's value, the share lost
    to zero, and how many runs diverged."""
    rows = []
    for label in labels:
        found = results.of(label)
        if not found:
            rows.append([label, "not run", paper.get(label, ""), "", ""])
            continue
        metric, zeros = results.spread(label, final), results.spread(label, lost)
        assert metric is not None
        assert zeros is not None
        rows.append(
            [
                label,
                metric.text(1, 100),
                paper.get(label, ""),
                zeros.text(1, 100),
                diverged(found),
            ]
        )
    return Table(title, [" ", what, "paper", "lost to zero, %", "diverged"], rows)


def diverged(found: Sequence[Found]) -> str:
    """'2 of 3' runs; empty where none did."""
    count = sum(one.result["diverged_at"] is not None for one in found)
    return f"{count} of {len(found)}" if count else ""


def compared(
    results: Results,
    row: str,
    claim: str,
    paper: str,
    better: str,
    worse: str,
    *,
    equal: bool = False,
) -> Finding | None:
    """Whether the row `better` is above `worse` for all seeds, or, with `equal`, not below it.
    Three seeds each decide; None where one of the two is not measured."""
    a, b = accuracy(results, better), accuracy(results, worse)
    if a is None or b is None:
        return None
    ours = f"{better}: {a.text(1, 100)}; {worse}: {b.text(1, 100)}"
    few = min(len(a.values), len(b.values)) < 3
    if equal:
        holds = None if few else not b.above(a)
        why = "one seed or two do not decide" if few else ""
        return Finding(row, claim, paper, ours, holds, why)
    holds = None if few else True if a.above(b) else False if b.above(a) else None
    why = "one seed or two do not decide" if few else ""
    if not few and holds is None:
        why = "the ranges over seeds meet: this setting cannot tell"
    return Finding(row, claim, paper, ours, holds, why)


def present(findings: Iterable[Finding | None]) -> list[Finding]:
    return [one for one in findings if one is not None]
