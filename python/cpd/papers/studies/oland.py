# SPDX-License-Identifier: Apache-2.0
"""The study of Øland, Raj: Reducing Communication Overhead in Distributed Learning."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from cpd.numeric.later import Later
from cpd.papers.studies.common import over_seeds, present
from cpd.papers.study import Cell, Finding, Results, Shown, Size, Spread, Study, Table

pictures = Later("cpd.papers.pictures")

_BITS = (2, 3, 4, 5, 6, 8, 10, 16)
_WIRES = {
    "fp32": "fp32",
    **{f"{n} bits": f"uniform bits={n}" for n in _BITS},
    **{f"c = {c}, M = 4": f"uniform c={c} sample=4" for c in (2, 3, 4, 5, 6, 7)},
    **{f"c = {10 - m}, M = {m}": f"uniform c={10 - m} sample={m}" for m in (2, 3, 5, 6, 8)},
    "by the gradient": "uniform bits=gradient c0=1 c1=8",
}
_SHARED: dict[str, Any] = {
    "workers": 5,
    "epochs": 30,
    "lr": 1.0,
    "decay": 0.97,
    "l1": 1e-6,
    "batch": 10,
}
_LAYERS = ("layer1.weight", "layer2.weight", "layer3.weight")


def _cells(size: Size, seeds: int) -> list[Cell]:
    wires = _WIRES if size != "smoke" else {"c = 6, M = 4": _WIRES["c = 6, M = 4"]}
    shared = _SHARED if size != "smoke" else {**_SHARED, "epochs": 2, "images": 200}
    rows = {label: {"wire": wire} for label, wire in wires.items()}
    return over_seeds("weights", rows, seeds, 0.25 if size != "smoke" else 0.02, **shared)


def _show(results: Results) -> Shown:
    rows = []
    for label in _WIRES:
        best, last = results.spread(label, _peak), results.spread(label, _last)
        epochs = results.spread(label, _epochs_to_peak)
        if best is None or last is None or epochs is None:
            rows.append([label, "not run", "", "", ""])
            continue
        bits = [_mean_bits(one.result) for one in results.of(label)]
        rows.append(
            [
                label,
                last.text(1, 100),
                best.text(1, 100),
                epochs.text(1),
                f"{statistics.fmean(bits):.2f}",
            ]
        )
    head = [" ", "accuracy at the end, %", "best, %", "epochs to within 0.5 %", "bits a weight"]
    tables = [Table("Weights of 5 workers, averaged each epoch", head, rows)]
    drawn: dict[str, str] = {}
    label = "c = 6, M = 4"
    for one in results.of(label)[:1]:
        for key, what in (("rms", "RMS of the gradient"), ("entropy", "entropy, bits")):
            title = f"{what} by epoch, {label}"
            series = {name: _by_epoch(one.result[key][name]) for name in _LAYERS}
            drawn[title] = pictures.lines(title, series, "epoch", what)
        title = f"Bits a weight by epoch, {label}"
        series = {name: _by_epoch(one.result["bits_a_value"][name]) for name in _LAYERS}
        drawn[title] = pictures.lines(title, series, "epoch", "bits")
    return Shown(tables, present(_findings(results)), drawn)


def _findings(results: Results) -> list[Finding | None]:
    return [
        _not_below(results, "oland.F1", "8 bits", "8 bits are the baseline"),
        _not_below(results, "oland.F4b", "c = 6, M = 4", "above the baseline"),
        _fewer_epochs(results),
        _bits(results),
        _correlation(results),
    ]


def _peak(result: dict[str, Any]) -> float:
    return float(max(result["accuracy"]))


def _last(result: dict[str, Any]) -> float:
    return float(result["accuracy"][-1])


def _epochs_to_peak(result: dict[str, Any]) -> float:
    """The first epoch whose accuracy is within half a percent of the best."""
    near = _peak(result) - 0.005
    return 1.0 + next(n for n, value in enumerate(result["accuracy"]) if value >= near)


def _mean_bits(result: dict[str, Any]) -> float:
    """Bits a weight of the largest layer, over epochs."""
    return float(np.mean(result["bits_a_value"][_LAYERS[0]]))


def _by_epoch(values: list[float]) -> tuple[list[float], list[float]]:
    return [float(n) for n in range(1, len(values) + 1)], values


def _not_below(results: Results, row: str, label: str, paper: str) -> Finding | None:
    a, b = results.spread(label, _peak), results.spread("fp32", _peak)
    if a is None or b is None:
        return None
    return _finding(row, f"{label}: not below fp32", paper, a, b, not b.above(a))


def _finding(row: str, claim: str, paper: str, a: Spread, b: Spread, holds: bool) -> Finding:
    few = min(len(a.values), len(b.values)) < 3
    ours = f"{a.text(1, 100)}; fp32 {b.text(1, 100)}"
    why = "one seed or two do not decide" if few else ""
    return Finding(row, claim, paper, ours, None if few else holds, why)


def _fewer_epochs(results: Results) -> Finding | None:
    a = results.spread("c = 6, M = 4", _epochs_to_peak)
    b = results.spread("fp32", _epochs_to_peak)
    if a is None or b is None:
        return None
    few, meet = min(len(a.values), len(b.values)) < 3, a.meets(b)
    why = "one seed or two do not decide" if few else "the ranges over seeds meet" if meet else ""
    ours = f"{a.text(1)} epochs; fp32 {b.text(1)}"
    holds = None if few or meet else b.above(a)
    return Finding("oland.F4d", "c = 6: fewer epochs than fp32", "20 % fewer", ours, holds, why)


def _bits(results: Results) -> Finding | None:
    found = results.of("c = 5, M = 4")
    if not found:
        return None
    raw = statistics.fmean(float(np.mean(one.result["bits"][_LAYERS[0]])) for one in found)
    coded = statistics.fmean(_mean_bits(one.result) for one in found)
    ours = f"{raw:.2f} bits, {coded:.2f} after Huffman's code ({32 / coded:.2f} times fewer)"
    paper = "6.8 bits, 3.55 in Huffman's code (9.01 times)"
    claim = "c = 5: Huffman's code takes at most three quarters of the bins' bits"
    return Finding("oland.F5", claim, paper, ours, coded <= 0.75 * raw)


def _correlation(results: Results) -> Finding | None:
    """Of log(G + 1) and H over epochs, layer by layer; the means over seeds."""
    found = results.of("c = 6, M = 4")
    if not found or len(found[0].result["accuracy"]) < 3:
        return None
    each = {
        name: statistics.fmean(_correlated(one.result, name) for one in found) for name in _LAYERS
    }
    ours = ", ".join(f"{name} {value:.2f}" for name, value in each.items())
    claim = "log(G + 1) and the weights' entropy are correlated in every layer"
    return Finding("oland.corr", claim, "above 0.75, often above 0.95", ours,
                   min(each.values()) > 0.75)  # fmt: skip


def _correlated(result: dict[str, Any], name: str) -> float:
    logs = np.log1p(result["rms"][name])
    return float(np.corrcoef(logs, result["entropy"][name])[0, 1])


STUDIES = (Study("oland-weights", "weights averaged each epoch, in few bits", _cells, _show),)
