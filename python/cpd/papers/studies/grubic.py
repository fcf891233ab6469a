# SPDX-License-Identifier: Apache-2.0
"""Studies of Grubic, Tam, Alistarh, Zhang (EDBT 2018) and of QSGD (NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpd.numeric.later import Later
from cpd.papers.studies.common import compared, over_seeds, present, training_table
from cpd.papers.study import Cell, Finding, Results, Shown, Size, Study, Table

pictures = Later("cpd.papers.pictures")

_CNN: dict[str, Any] = {"model": "resnet18", "nodes": 8, "divide": "after"}
_LSTM: dict[str, Any] = {"model": "text_lstm", "nodes": 8, "divide": "after"}
_SMOKE_CNN: dict[str, Any] = {"images": 256, "tests": 200, "epochs": 1, "width": 4}
_SMOKE_LSTM: dict[str, Any] = {"images": 128, "tests": 16, "epochs": 1, "width": 16, "length": 16}
_FULL: dict[str, Any] = {
    "model": "resnet110",
    "images": 50_000,
    "tests": 10_000,
    "batch": 16,
    "epochs": 160,
}
WIRES = {
    "fp32": "fp32",
    "16 bits": "qsgd bits=16 bucket=8192",
    "8 bits": "qsgd bits=8 bucket=512",
    "4 bits": "qsgd bits=4 bucket=512",
    "2 bits": "qsgd bits=2 bucket=128",
    "1bitSGD": "one_bit",
    "1bitSGD* (64)": "one_bit bucket=64",
}
"""Section 4's settings: bits and buckets."""
_LOW = {
    "4 bits, 2-norm": "qsgd bits=4 bucket=512 norm=2",
    "2 bits, 2-norm": "qsgd bits=2 bucket=128 norm=2",
    "1 bit QSGD": "qsgd bits=1 levels=intervals bucket=128",
}


def _wired(prefix: str, wires: Mapping[str, str], **options: Any) -> dict[str, dict[str, Any]]:
    """Rows by wire: 99 % of the parameters stay quantized, as section 3.2 has it."""
    return {
        f"{prefix}{label}": {**options, "wire": wire, "quantized_share": 0.99}
        for label, wire in wires.items()
    }


def _cnn(size: Size) -> dict[str, Any]:
    return {"smoke": _CNN | _SMOKE_CNN, "small": _CNN, "full": _CNN | _FULL}[size]


def _lstm(size: Size) -> dict[str, Any]:
    return _LSTM | _SMOKE_LSTM if size == "smoke" else _LSTM


def _minutes(size: Size) -> float:
    return {"smoke": 0.05, "small": 1.5, "full": 300}[size]


# ---- figure 5: accuracy --------------------------------------------------------------------------


def _cells_accuracy(size: Size, seeds: int) -> list[Cell]:
    wires = {**WIRES, **_LOW} if size != "smoke" else {"2 bits": WIRES["2 bits"]}
    rows = {**_wired("CNN ", wires, **_cnn(size)), **_wired("LSTM ", wires, **_lstm(size))}
    return over_seeds("train", rows, seeds, _minutes(size))


_PAPER5 = {
    "CNN 8 bits": "at least fp32",
    "CNN 4 bits": "within 0.1 %",
    "CNN 2 bits": "at least 1 point lost",
    "CNN 1bitSGD": "within 0.3 %",
    "CNN 1bitSGD* (64)": "within 0.3 %",
    "LSTM 2 bits": "nothing lost",
}


def _show_accuracy(results: Results) -> Shown:
    tables, drawn = [], {}
    for name, metric, what in (
        ("CNN", "accuracy", "accuracy, %"),
        ("LSTM", "accuracy", "right, %"),
    ):
        labels = [f"{name} {label}" for label in (*WIRES, *_LOW)]
        tables.append(_metric_table(f"{name}, 8 nodes", results, labels, metric, what))
        title = f"{name}: {metric} by epoch"
        drawn[title] = pictures.curves(title, results, labels[:7], metric, what)
    keep = [
        _against_fp32(results, "grubic.F5", "CNN 8 bits", "at least fp32"),
        _against_fp32(results, "grubic.F5", "CNN 4 bits", "within 0.1 %"),
        _against_fp32(results, "grubic.F5", "CNN 1bitSGD* (64)", "within 0.3 %"),
        _against_fp32(results, "grubic.F5", "LSTM 2 bits", "nothing lost"),
        _against_fp32(results, "grubic.F5", "CNN 2 bits", "at least 1 point", below=True),
        _against_fp32(results, "grubic.low", "CNN 1 bit QSGD", "loses", below=True),
        _against_fp32(
            results, "qsgd.T1", "CNN 4 bits", "74.76 for 74.68 and others: not below", below=True
        ),
    ]
    return Shown(tables, present(keep), drawn)


def _accuracy(result: dict[str, Any]) -> float:
    return float(result["curves"]["accuracy"][-1])


def _metric_table(title: str, results: Results, labels: list[str], metric: str, what: str) -> Table:
    rows = []
    for label in labels:
        spread = results.spread(label, _accuracy)
        if spread is None:
            rows.append([label, "not run", _PAPER5.get(label, ""), "", ""])
            continue
        first = results.of(label)[0].result
        rows.append(
            [
                label,
                spread.text(1, 100),
                _PAPER5.get(label, ""),
                f"{first['bytes_sent'] / 1e6:.3f}",
                f"{100 * first['share']:.1f}",
            ]
        )
    return Table(title, [" ", what, "paper", "MB sent a step", "quantized, %"], rows)


def _against_fp32(
    results: Results, row: str, label: str, paper: str, *, below: bool = False
) -> Finding | None:
    """Whether a row is not below fp32 of the same model, or, with `below`, is, for all seeds."""
    a = results.spread(label, _accuracy)
    b = results.spread(f"{label.split()[0]} fp32", _accuracy)
    if a is None or b is None:
        return None
    few, meet = min(len(a.values), len(b.values)) < 3, below and a.meets(b)
    holds = None if few or meet else b.above(a) == below
    why = "the ranges over seeds meet: this setting cannot tell" if meet else ""
    why = "one seed or two do not decide" if few else why
    claim = f"{label} is {'' if below else 'not '}below fp32"
    return Finding(row, claim, paper, f"{a.text(1, 100)}; fp32 {b.text(1, 100)}", holds, why)


# ---- section 5.1: buckets, layers ----------------------------------------------------------------

_BUCKETS = {
    "fp32": "fp32",
    **{f"4 bits, buckets of {n}": f"qsgd bits=4 bucket={n}" for n in (64, 512, 8192)},
    **{f"2 bits, buckets of {n}": f"qsgd bits=2 bucket={n}" for n in (32, 64, 512, 8192)},
    **{f"1bitSGD*, buckets of {n}": f"one_bit bucket={n}" for n in (64, 512)},
}


def _cells_buckets(size: Size, seeds: int) -> list[Cell]:
    wires = _BUCKETS if size != "smoke" else {"4 bits, buckets of 64": "qsgd bits=4 bucket=64"}
    return over_seeds("train", _wired("", wires, **_cnn(size)), seeds, _minutes(size))


def _show_buckets(results: Results) -> Shown:
    paper = {
        "4 bits, buckets of 8192": "loses more than 0.6 %",
        "4 bits, buckets of 512": "gains",
        "2 bits, buckets of 32": "still loses",
        "1bitSGD*, buckets of 512": "1 point below 64",
    }
    table = training_table("CNN, 8 nodes", results, _BUCKETS, paper, "accuracy, %")
    findings = [
        compared(results, "grubic.bucket", "4 bits: buckets of 8192 lose against 512",
                 "more than 0.6 %", "4 bits, buckets of 512", "4 bits, buckets of 8192"),
        compared(results, "grubic.bucket", "1bitSGD*: buckets of 512 lose against 64", "1 point",
                 "1bitSGD*, buckets of 64", "1bitSGD*, buckets of 512"),
        compared(results, "qsgd.aggr", "2 bits with buckets of 64 lose", "1.73 %", "fp32",
                 "2 bits, buckets of 64"),
    ]  # fmt: skip
    return Shown([table], present(findings))


_LAYERS: dict[str, dict[str, Any]] = {
    "fp32": {"wire": "fp32"},
    "2 bits, all layers": {},
    "2 bits, convolutions": {"exempt_types": ["Linear"]},
    "2 bits, fully connected": {"exempt_types": ["Conv2d"]},
}


def _cells_layers(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {
        "model": "cifarnet",
        "nodes": 8,
        "divide": "after",
        "wire": "qsgd bits=2 bucket=512",
    }
    rows: dict[str, dict[str, Any]] = dict(_LAYERS)
    if size == "smoke":
        shared |= _SMOKE_CNN
        rows = {"2 bits, convolutions": _LAYERS["2 bits, convolutions"]}
    return over_seeds("train", rows, seeds, _minutes(size), **shared)


def _show_layers(results: Results) -> Shown:
    table = training_table("CifarNet, 8 nodes", results, _LAYERS, {}, "accuracy, %")
    claim = "convolutions lose more than fully connected layers"
    findings = [
        compared(results, row, claim, "stated", "2 bits, fully connected", "2 bits, convolutions")
        for row in ("grubic.layers", "qsgd.layer")
    ]
    return Shown([table], present(findings))


# ---- QSGD, figure 3: a CNN's accuracy and an LSTM's loss by bytes and seconds --------------------

_BY_BYTES = {label: WIRES[label] for label in ("fp32", "8 bits", "4 bits", "2 bits")}
_GIGABIT = 1.25e8
"""Bytes a second."""


def _cells_by_bytes(size: Size, seeds: int, options: dict[str, Any]) -> list[Cell]:
    wires = _BY_BYTES if size != "smoke" else {"4 bits": WIRES["4 bits"]}
    rows = _wired("", wires, **{**options, "nodes": 4})
    return over_seeds("train", rows, seeds, _minutes(size))


def _cells_lstm(size: Size, seeds: int) -> list[Cell]:
    return _cells_by_bytes(size, seeds, _lstm(size))


def _cells_cnn(size: Size, seeds: int) -> list[Cell]:
    return _cells_by_bytes(size, seeds, _cnn(size))


def _show_by_bytes(results: Results, name: str, metric: str, what: str, row: str) -> Shown:
    """A metric by the bytes that a node has sent, and what these take on a link of 1 Gb/s."""
    rows, series = [], {}
    for label in results.labels:
        first = results.of(label)[0].result
        spread = results.spread(label, lambda result: float(result["curves"][metric][-1]))
        assert spread is not None
        curve = first["curves"][metric]
        each = first["bytes_sent"] * first["steps"] / len(curve)
        series[label] = ([each * (n + 1) / 1e6 for n in range(len(curve))], curve)
        seconds = first["bytes_sent"] / _GIGABIT
        sent = f"{each * len(curve) / 1e6:.1f}"
        rows.append([label, spread.text(3), sent, f"{1e3 * seconds:.2f}"])
    head = [" ", what, "MB sent by a node", "ms a step at 1 Gb/s, one way"]
    tables = [Table(f"{name} over 4 nodes", head, rows)]
    if not series:
        return Shown(tables)
    title = f"{name}: held-out {metric} by bytes sent"
    drawn = {title: pictures.lines(title, series, "MB sent by a node", what)}
    return Shown(tables, _faster(results, name, row), drawn)


def _show_lstm(results: Results) -> Shown:
    return _show_by_bytes(results, "LSTM", "loss", "loss, nats a character", "qsgd.F3b")


def _show_cnn(results: Results) -> Shown:
    return _show_by_bytes(results, "CNN", "accuracy", "accuracy", "qsgd.F3a")


def _faster(results: Results, name: str, row: str) -> list[Finding]:
    if not results.of("fp32") or not results.of("2 bits"):
        return []
    fp32, bits = (results.of(label)[0].result["bytes_sent"] for label in ("fp32", "2 bits"))
    return [
        Finding(
            row,
            f"messages of {'an LSTM' if name == 'LSTM' else 'a CNN'} take less than half the time "
            "in 2 bits",
            "more than twice as fast on 2 GPUs" if name == "LSTM" else "4 bits 2.5 times faster",
            f"{fp32 / bits:.1f} times fewer bytes; computation is not counted here",
            fp32 / bits > 2,
        )
    ]


STUDIES = (
    Study("grubic-accuracy", "32 to 1 bits, on a CNN and an LSTM", _cells_accuracy, _show_accuracy),
    Study("grubic-buckets", "how large buckets may be", _cells_buckets, _show_buckets),
    Study("grubic-layers", "which layers need more bits", _cells_layers, _show_layers),
    Study("qsgd-cnn", "a CNN's accuracy by bytes sent", _cells_cnn, _show_cnn),
    Study("qsgd-lstm", "an LSTM's loss by bytes sent", _cells_lstm, _show_lstm),
)
