# SPDX-License-Identifier: Apache-2.0
"""Compares codecs on networks that fp32 trains well and on a network that fp32 hardly trains.

The networks classify the demo's images of digits.
"""

from __future__ import annotations

from typing import Any

from cpd_lab.papers.judgements import is_kept, present, stated
from cpd_lab.papers.studies.common import accuracy, diverged, over_seeds
from cpd_lab.papers.study import Cell, Finding, Measured, Results, Shown, Size, Study, Table
from cpd_lab.train.wire import CODECS

_NETWORKS: dict[str, dict[str, Any]] = {
    "3 hidden layers": {"model": "mlp", "depth": 3, "epochs": 40},
    "6 hidden layers": {"model": "mlp", "depth": 6, "epochs": 40},
    "LeNet": {"model": "lenet", "lr": 0.02, "epochs": 20},
}
"""Maps a network's name to the options of its training.

The network with 6 hidden layers is the demo's. It is so deep that rounding to e4m3 turns its
gradients into zeros.
"""
_WIRES = ("fp32", *CODECS)
_SEEDS_MINUTES = {"smoke": 0.02, "small": 0.06, "full": 0.06}


def _cells(size: Size, seeds: int) -> list[Cell]:
    rows: dict[str, dict[str, Any]] = {}
    for network, options in _NETWORKS.items():
        for wire in _WIRES:
            row = {**options, "wire": wire}
            if wire.startswith("terngrad"):  # as its paper has it
                row["last_layer_fp32"] = True
            if wire.startswith(("qsgd", "one_bit")):  # as Grubic et al., section 3.2.2
                row["quantized_share"] = 0.99
            rows[_label(network, wire)] = row
    if size == "smoke":
        rows = {label: {**rows[label], "epochs": 1} for label in [_label("LeNet", "one_bit")]}
    return over_seeds("train", rows, seeds, _SEEDS_MINUTES[size])


def _label(network: str, wire: str) -> str:
    return f"{network}, {wire}"


def _draw(results: Results) -> Shown:
    rows = []
    for wire in _WIRES:
        cells = []
        for network in _NETWORKS:
            label = _label(network, wire)
            spread, measurements = accuracy(results, label), results.of(label)
            lost = diverged(measurements) if measurements else ""
            text = "not run" if spread is None else spread.text(1, 100)
            cells.append(f"{text}; {lost} diverged" if lost else text)
        rows.append([wire, *cells])
    table = Table("Held-out digits, accuracy in %, 8 nodes", ["codec", *_NETWORKS], rows)
    return Shown([table])


def _judge(measured: Measured) -> list[Finding]:
    return present(
        _judge_one(measured, network, *codec)
        for network in _NETWORKS
        for codec in (
            ("4-bit QSGD", "4 bits", "qsgd bits=4 bucket=512", 0.1),
            ("1bitSGD", "1bitSGD", "one_bit", 0.2),
            ("1bitSGD* (64)", "1bitSGD", "one_bit bucket=64", 0.2),
        )
    )


def _judge_one(
    measured: Measured, network: str, name: str, quote: str, wire: str, within: float
) -> Finding | None:
    a = measured.range(wire, network, _label(network, wire))
    b = measured.range("fp32", network, _label(network, "fp32"))
    if a is None or b is None:
        return None
    claim = f"{network}: {name} is within {within} points of fp32"
    paper, ours = f"within {{{quote}}} %", f"{wire}: {a.text}; fp32: {b.text}"
    return stated("grubic.F5", claim, paper, ours, is_kept(a, b, within))


STUDIES = (
    Study("codec-digits", "codecs on digits, by network", _cells, _draw, _judge,
          "as small: no paper has these networks"),
)  # fmt: skip
