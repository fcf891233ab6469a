# SPDX-License-Identifier: Apache-2.0
"""The study of Øland and Raj: Reducing Communication Overhead in Distributed Learning."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from cpd.numeric.later import Later
from cpd_lab.papers.judgements import above, is_above, keeps, present, stated
from cpd_lab.papers.studies.common import over_seeds
from cpd_lab.papers.study import Cell, Finding, Measured, Results, Shown, Size, Study, Table

pictures = Later("cpd_lab.papers.pictures")

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


def _draw(results: Results) -> Shown:
    rows = []
    for label in _WIRES:
        best, last = results.spread(label, _peak), results.spread(label, _last)
        epochs = results.spread(label, _epochs_to_peak)
        if best is None or last is None or epochs is None:
            rows.append([label, "not run", "", "", "", ""])
            continue
        runs = results.of(label)
        chosen = [bits for bits in map(_mean_chosen, (run.result for run in runs)) if bits]
        rows.append(
            [
                label,
                last.text(1, 100),
                best.text(1, 100),
                epochs.text(1),
                f"{statistics.fmean(chosen):.2f}" if chosen else "",
                f"{statistics.fmean(_mean_bits(run.result) for run in runs):.2f}",
            ]
        )
    head = [" ", "accuracy at the end, %", _BEST, _EPOCHS, _CHOSEN, _CODED]
    tables = [Table("Weights of 5 workers, averaged each epoch", head, rows)]
    label = "c = 6, M = 4"
    runs = results.of(label)
    if runs and len(runs[0].result["accuracy"]) >= 3:
        layer_rows = [
            [name, f"{statistics.fmean(_correlated(run.result, name) for run in runs):.2f}"]
            for name in _LAYERS
        ]
        tables.append(Table(f"Over the epochs of {label}", ["layer", _CORRELATION], layer_rows))
    drawn: dict[str, str] = {}
    for run in results.of(label)[:1]:
        for key, what in (("rms", "RMS of the gradient"), ("entropy", "entropy, bits")):
            title = f"{what} by epoch, {label}"
            series = {name: _by_epoch(run.result[key][name]) for name in _LAYERS}
            drawn[title] = pictures.lines(title, series, "epoch", what)
        title = f"Bits a weight by epoch, {label}"
        series = {name: _by_epoch(run.result["bits_a_value"][name]) for name in _LAYERS}
        drawn[title] = pictures.lines(title, series, "epoch", "bits")
    return Shown(tables, pictures=drawn)


_BEST = "best, %"
_EPOCHS = "epochs to within 0.5 %"
_CHOSEN = "bits of the bins"
_CODED = "bits a weight"
_CORRELATION = "correlation of log(G + 1) and entropy"


def _judge(measured: Measured) -> list[Finding]:
    return present([
        keeps(measured, "oland.F1", "8 bits keep fp32's accuracy", "8 bits: {8 bits}", "8 bits",
              "fp32", column=_BEST),
        _best_split(measured),
        above(measured, "oland.F4b", "c = 6, M = 4 is above fp32", "{superior}", "c = 6, M = 4",
              "fp32", column=_BEST),
        _fewer_epochs(measured),
        _bits(measured),
        _correlation(measured),
    ])  # fmt: skip


def _peak(result: dict[str, Any]) -> float:
    return float(max(result["accuracy"]))


def _last(result: dict[str, Any]) -> float:
    return float(result["accuracy"][-1])


def _epochs_to_peak(result: dict[str, Any]) -> float:
    """Returns the first epoch with an accuracy at most half a percentage point below the best."""
    near = _peak(result) - 0.005
    return 1.0 + next(n for n, value in enumerate(result["accuracy"]) if value >= near)


def _mean_bits(result: dict[str, Any]) -> float:
    """Returns the mean number of bits sent for each weight of the largest layer, over epochs."""
    return float(np.mean(result["bits_a_value"][_LAYERS[0]]))


def _mean_chosen(result: dict[str, Any]) -> float | None:
    """Returns the mean number of bits that the codec chose for the largest layer, over epochs.

    Returns None for a format, which chooses no bits.
    """
    chosen = [bits for bits in result["bits"][_LAYERS[0]] if bits is not None]
    return float(np.mean(chosen)) if chosen else None


def _by_epoch(values: list[float]) -> tuple[list[float], list[float]]:
    return [float(n) for n in range(1, len(values) + 1)], values


def _best_split(measured: Measured) -> Finding | None:
    """Judges whether the codec `uniform` is most accurate with M = 4, if c + M = 10.

    The codec estimates the entropy H of weights in 2^M bins, and sends H + c bits a value.
    """
    splits = {m: measured.range(f"c = {10 - m}, M = {m}", _BEST) for m in (2, 3, 4, 5, 6, 8)}
    ranges = {m: best for m, best in splits.items() if best is not None}
    if 4 not in ranges or len(ranges) < 2:
        return None
    verdicts = [is_above(ranges[4], best) for m, best in ranges.items() if m != 4]
    holds = [verdict for verdict, _ in verdicts]
    verdict: tuple[bool | None, str]
    if all(holds):
        verdict = True, ""
    elif any(hold is False for hold in holds):
        verdict = False, ""
    else:
        verdict = next(pair for pair in verdicts if pair[0] is None)
    ours = "; ".join(f"M = {m}: {best.text}" for m, best in ranges.items())
    return stated("oland.F4a", "M = 4 is the best at a ceiling of 10 bits", "M = {best}", ours,
                  verdict)  # fmt: skip


def _fewer_epochs(measured: Measured) -> Finding | None:
    a, b = (measured.range(label, _EPOCHS) for label in ("c = 6, M = 4", "fp32"))
    if a is None or b is None:
        return None
    ours = f"{a.text} epochs; fp32: {b.text}"
    return stated("oland.F4d", "c = 6, M = 4 needs a fifth fewer epochs than fp32", "{fewer} fewer",
                  ours, is_above(b, a, by=0.2 * b.mean))  # fmt: skip


def _bits(measured: Measured) -> Finding | None:
    bins, coded = (measured.text("c = 5, M = 4", column) for column in (_CHOSEN, _CODED))
    if bins is None or coded is None:
        return None
    times = 32 / float(coded)
    ours = f"{bins} bits, {coded} in Huffman's code ({times:.2f} times fewer)"
    paper = "{bins} bits, {Huffman} in Huffman's code ({times} times)"
    claim = "c = 5, M = 4: Huffman's code makes weights 9 times smaller"
    return stated("oland.F5", claim, paper, ours, times >= 9)


def _correlation(measured: Measured) -> Finding | None:
    """Judges the claim that two figures are correlated over epochs, above 0.75 in every layer.

    They are the weights' entropy and log(G + 1), where G is the RMS of the gradient. The judged
    correlations are means over seeds.
    """
    texts = {name: measured.text(name, _CORRELATION) for name in _LAYERS}
    correlations = {name: float(text) for name, text in texts.items() if text is not None}
    if not correlations:
        return None
    ours = ", ".join(f"{name} {value:.2f}" for name, value in correlations.items())
    claim = "log(G + 1) and the weights' entropy are correlated above 0.75 in every layer"
    return stated("oland.corr", claim, "above {least}, often above {often}", ours,
                  min(correlations.values()) > 0.75)  # fmt: skip


def _correlated(result: dict[str, Any], name: str) -> float:
    logs = np.log1p(result["rms"][name])
    return float(np.corrcoef(logs, result["entropy"][name])[0, 1])


STUDIES = (
    Study("oland-weights", "weights averaged each epoch, in few bits", _cells, _draw, _judge,
          "as small: the paper's workers and layers, but scikit-learn's digits, not MNIST"),
)  # fmt: skip
