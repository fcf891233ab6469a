# SPDX-License-Identifier: Apache-2.0
"""Codecs where fp32 trains and where it hardly does: the demo's digits in three networks."""

from __future__ import annotations

from typing import Any

from cpd.papers.studies.common import accuracy, compared, diverged, over_seeds, present
from cpd.papers.study import Cell, Results, Shown, Size, Study, Table
from cpd.train.wire import CODECS

_NETWORKS: dict[str, dict[str, Any]] = {
    "3 hidden layers": {"model": "mlp", "depth": 3, "epochs": 40},
    "6 hidden layers": {"model": "mlp", "depth": 6, "epochs": 40},
    "LeNet": {"model": "lenet", "lr": 0.02, "epochs": 20},
}
"""The demo's network is the second, made so deep that (4,3) loses its gradients."""
_WIRES = ("fp32", *CODECS)
_SEEDS_MINUTES = {"smoke": 0.02, "small": 0.06, "full": 0.06}


def _cells(size: Size, seeds: int) -> list[Cell]:
    rows: dict[str, dict[str, Any]] = {}
    for network, options in _NETWORKS.items():
        for wire in _WIRES:
            row = {**options, "wire": wire}
            if wire.startswith("terngrad"):  # as its paper has it
                row["last_layer_fp32"] = True
            rows[_label(network, wire)] = row
    if size == "smoke":
        rows = {label: {**rows[label], "epochs": 1} for label in [_label("LeNet", "one_bit")]}
    return over_seeds("train", rows, seeds, _SEEDS_MINUTES[size])


def _label(network: str, wire: str) -> str:
    return f"{network}, {wire}"


def _show(results: Results) -> Shown:
    rows = []
    for wire in _WIRES:
        cells = []
        for network in _NETWORKS:
            label = _label(network, wire)
            spread, found = accuracy(results, label), results.of(label)
            lost = diverged(found) if found else ""
            text = "not run" if spread is None else spread.text(1, 100)
            cells.append(f"{text}; {lost} diverged" if lost else text)
        rows.append([wire, *cells])
    table = Table("Held-out digits, accuracy in %, 8 nodes", ["codec", *_NETWORKS], rows)
    findings = [
        compared(results, "grubic.F5", f"{network}: {name} keeps fp32's accuracy", paper,
                 _label(network, wire), _label(network, "fp32"), equal=True)
        for network in _NETWORKS
        for name, paper, wire in (
            ("4-bit QSGD", "within 0.1 %", "qsgd bits=4 bucket=512"),
            ("1bitSGD", "within 0.3 %", "one_bit"),
        )
    ]  # fmt: skip
    return Shown([table], present(findings))


STUDIES = (Study("codec-digits", "codecs on digits, by network", _cells, _show),)
