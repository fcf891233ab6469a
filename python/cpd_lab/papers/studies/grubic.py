# SPDX-License-Identifier: Apache-2.0
"""Studies of the papers of Grubic, Tam, Alistarh, Zhang (EDBT 2018) and of QSGD (NeurIPS 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpd.numeric.later import Later
from cpd_lab.papers.judgements import above, below, is_kept, keeps, present, stated
from cpd_lab.papers.studies.common import over_seeds, training_table
from cpd_lab.papers.study import Cell, Finding, Measured, Range, Results, Shown, Size, Study, Table

pictures = Later("cpd_lab.papers.pictures")

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
"""The bits and bucket sizes of section 4 of Grubic et al."""
_LOW = {
    "4 bits, 2-norm": "qsgd bits=4 bucket=512 norm=2",
    "2 bits, 2-norm": "qsgd bits=2 bucket=128 norm=2",
    "1 bit QSGD": "qsgd bits=1 levels=intervals bucket=128",
}


def _wired(prefix: str, wires: Mapping[str, str], **options: Any) -> dict[str, dict[str, Any]]:
    """Returns the options of a training for each codec of `wires`, by label.

    Each training quantizes 99 % of the parameters, as in section 3.2.2 of Grubic et al.
    """
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


_CLAIMED = {
    "CNN 8 bits": "at least fp32",
    "CNN 4 bits": "within 0.1 %",
    "CNN 2 bits": "at least 1 point lost",
    "CNN 1bitSGD": "within 0.2 %",
    "CNN 1bitSGD* (64)": "within 0.2 %",
    "LSTM 2 bits": "not 1 point lost",
}


def _draw_accuracy(results: Results) -> Shown:
    tables, drawn = [], {}
    for name, what in (("CNN", "accuracy, %"), ("LSTM", "right, %")):
        labels = [f"{name} {label}" for label in (*WIRES, *_LOW)]
        tables.append(_metric_table(f"{name}, 8 nodes", results, labels, what))
        title = f"{name}: accuracy by epoch"
        drawn[title] = pictures.curves(title, results, labels[:7], "accuracy", what)
    return Shown(tables, pictures=drawn)


def _judge_accuracy(measured: Measured) -> list[Finding]:
    five = [
        keeps(measured, "grubic.F5", "a CNN in 8 bits matches fp32", "{8 bits}", "CNN 8 bits",
              "CNN fp32"),
        keeps(measured, "grubic.F5", "a CNN in 4 bits is within 0.1 points", "within {4 bits} %",
              "CNN 4 bits", "CNN fp32", within=0.1),
        *(
            keeps(measured, "grubic.F5", f"a CNN by {wire} is within 0.2 points",
                  "within {1bitSGD} %", f"CNN {wire}", "CNN fp32", within=0.2)
            for wire in ("1bitSGD", "1bitSGD* (64)")
        ),
        below(measured, "grubic.F5", "a CNN in 2 bits loses at least 1 point",
              "at least {2 bits} point", "CNN 2 bits", "CNN fp32", by=1.0),
        keeps(measured, "grubic.F5", "an LSTM in 2 bits does not lose 1 point",
              "LSTMs handle {LSTM}", "LSTM 2 bits", "LSTM fp32", within=1.0),
    ]  # fmt: skip
    low = [
        below(measured, "grubic.low", f"{label} loses against fp32", "{loses}", label,
              f"{label.split()[0]} fp32")
        for label in (f"{name} {wire}" for name in ("CNN", "LSTM") for wire in _LOW)
    ]  # fmt: skip
    qsgd = [
        keeps(measured, "qsgd.T1", f"{name} in 4 bits recovers fp32's accuracy", paper,
              f"{name} 4 bits", f"{name} fp32")
        for name, paper in (
            ("CNN", "{ResNet-50 4 bits} for {ResNet-50}, {AlexNet 4 bits} for {AlexNet}"),
            ("LSTM", "{LSTM 4 bits} for {LSTM}"),
        )
    ]  # fmt: skip
    qsgd.append(
        keeps(measured, "qsgd.F3c", "a CNN in 8 bits recovers fp32's accuracy", "{8 bits}",
              "CNN 8 bits", "CNN fp32")
    )  # fmt: skip
    return present([*five, *low, *qsgd])


def _accuracy(result: dict[str, Any]) -> float:
    return float(result["curves"]["accuracy"][-1])


def _metric_table(title: str, results: Results, labels: list[str], what: str) -> Table:
    rows = []
    for label in labels:
        spread = results.spread(label, _accuracy)
        if spread is None:
            rows.append([label, "not run", _CLAIMED.get(label, ""), "", ""])
            continue
        first = results.of(label)[0].result
        rows.append(
            [
                label,
                spread.text(1, 100),
                _CLAIMED.get(label, ""),
                f"{first['bytes_sent'] / 1e6:.3f}",
                f"{100 * first['share']:.1f}",
            ]
        )
    return Table(title, [" ", what, "paper", "MB sent a step", "quantized, %"], rows)


# ---- section 5.1: buckets, layers ----------------------------------------------------------------

_BUCKETS = {
    "fp32": "fp32",
    **{f"4 bits, buckets of {n}": f"qsgd bits=4 bucket={n}" for n in (64, 512, 8192)},
    **{f"2 bits, buckets of {n}": f"qsgd bits=2 bucket={n}" for n in (32, 64, 512, 8192)},
    "1bitSGD, by columns": "one_bit",
    **{f"1bitSGD*, buckets of {n}": f"one_bit bucket={n}" for n in (64, 512)},
}


def _cells_buckets(size: Size, seeds: int) -> list[Cell]:
    wires = _BUCKETS if size != "smoke" else {"4 bits, buckets of 64": "qsgd bits=4 bucket=64"}
    return over_seeds("train", _wired("", wires, **_cnn(size)), seeds, _minutes(size))


def _draw_buckets(results: Results) -> Shown:
    return Shown([training_table("CNN, 8 nodes", results, list(_BUCKETS), "", "accuracy, %")])


def _judge_buckets(measured: Measured) -> list[Finding]:
    """Judges what Grubic et al. and the QSGD paper claim on bucket sizes and accuracy.

    QSGD, by bucket size, is compared with fp32. 1bitSGD in buckets (1bitSGD*) is compared with
    fp32 and with 1bitSGD by columns.
    """
    return present([
        below(measured, "grubic.bucket", "4 bits with buckets of 8192 lose more than 0.6 points",
              "more than {4 bits, 8192} %", "4 bits, buckets of 8192", "fp32", by=0.6),
        above(measured, "grubic.bucket", "4 bits with buckets of 512 improve on fp32",
              "{4 bits, 512}", "4 bits, buckets of 512", "fp32"),
        below(measured, "grubic.bucket", "2 bits with buckets of 32 lose", "{2 bits, 32}",
              "2 bits, buckets of 32", "fp32"),
        keeps(measured, "grubic.bucket", "1bitSGD* with buckets of 64 keeps fp32's accuracy",
              "{1bitSGD* 64}", "1bitSGD*, buckets of 64", "fp32"),
        below(measured, "grubic.bucket",
              "1bitSGD* with buckets of 512 loses 1 point against 1bitSGD by columns",
              "{1bitSGD* 512} point", "1bitSGD*, buckets of 512", "1bitSGD, by columns", by=1.0),
        below(measured, "qsgd.aggr", "4 bits with buckets of 8192 lose",
              "{4 bits, 8192} %", "4 bits, buckets of 8192", "fp32"),
        below(measured, "qsgd.aggr", "2 bits with buckets of 64 lose", "{2 bits, 64} %",
              "2 bits, buckets of 64", "fp32"),
    ])  # fmt: skip


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


def _draw_layers(results: Results) -> Shown:
    return Shown([training_table("CifarNet, 8 nodes", results, list(_LAYERS), "", "accuracy, %")])


def _judge_layers(measured: Measured) -> list[Finding]:
    return present([
        below(measured, "grubic.layers",
              "quantizing convolutions too costs more than fully connected layers alone",
              "convolutions {more}", "2 bits, all layers", "2 bits, fully connected"),
        below(measured, "grubic.layers", "convolutions lose more than fully connected layers",
              "convolutions {more}", "2 bits, convolutions", "2 bits, fully connected"),
        below(measured, "qsgd.layer", "convolutions in 2 bits lose against fp32", "{2 bits}",
              "2 bits, convolutions", "fp32"),
    ])  # fmt: skip


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


_SENT = "MB sent by a node"


def _draw_by_bytes(results: Results, name: str, metric: str, what: str) -> Shown:
    """Draws a metric by the bytes that a node has sent, and makes a table.

    The table also has the time that a step's messages take on a link of 1 Gb/s.
    """
    rows, series = [], {}
    for label in results.labels:
        first = results.of(label)[0].result
        spread = results.spread(label, lambda result: float(result["curves"][metric][-1]))
        assert spread is not None
        curve = first["curves"][metric]
        epoch_bytes = first["bytes_sent"] * first["steps"] / len(curve)
        series[label] = ([epoch_bytes * (n + 1) / 1e6 for n in range(len(curve))], curve)
        seconds = first["bytes_sent"] / _GIGABIT
        sent = f"{epoch_bytes * len(curve) / 1e6:.1f}"
        rows.append([label, spread.text(3), sent, f"{1e3 * seconds:.2f}"])
    head = [" ", what, _SENT, "ms a step at 1 Gb/s, one way"]
    tables = [Table(f"{name} over 4 nodes", head, rows)]
    if not series:
        return Shown(tables)
    title = f"{name}: held-out {metric} by bytes sent"
    return Shown(tables, pictures={title: pictures.lines(title, series, _SENT, what)})


def _draw_lstm(results: Results) -> Shown:
    return _draw_by_bytes(results, "LSTM", "loss", "loss, nats a character")


def _draw_cnn(results: Results) -> Shown:
    return _draw_by_bytes(results, "CNN", "accuracy", "accuracy")


def _judge_cnn(measured: Measured) -> list[Finding]:
    return present([
        *(
            keeps(measured, "qsgd.F3a", f"{bits} recover fp32's accuracy", "{recover}", bits,
                  "fp32")
            for bits in ("4 bits", "8 bits")
        ),
        _faster(measured, "qsgd.F3a", "4 bits", 2.5, "{epoch} times on 16 GPUs"),
    ])  # fmt: skip


def _judge_lstm(measured: Measured) -> list[Finding]:
    return present([
        *(_reached(measured, bits) for bits in ("2 bits", "4 bits", "8 bits")),
        _faster(measured, "qsgd.F3b", "2 bits", 2.0, "{times} on 2 GPUs"),
    ])  # fmt: skip


def _reached(measured: Measured, bits: str) -> Finding | None:
    """Judges whether an LSTM reaches fp32's loss with QSGD in `bits`, such as "2 bits".

    Figure 3b of the QSGD paper shows the losses.
    """
    a, b = measured.range(bits), measured.range("fp32")
    if a is None or b is None:
        return None
    verdict = is_kept(_negative(a), _negative(b))
    paper = "a figure: {2 bits}" if bits == "2 bits" else "{recover}"
    ours = f"{bits}: {a.text}; fp32: {b.text} nats"
    return stated("qsgd.F3b", f"an LSTM in {bits} reaches fp32's loss", paper, ours, verdict)


def _negative(loss: Range) -> Range:
    return Range(-loss.high, -loss.mean, -loss.low, loss.seeds, loss.text)


def _faster(measured: Measured, row: str, bits: str, times: float, paper: str) -> Finding | None:
    """Judges the claim that a training step is `times` faster with codes of `bits` than in fp32.

    The verdict is False if fp32 messages are at most `times` as large as the codes. Otherwise the
    verdict is None, because bytes alone do not determine a step's time.
    """
    fp32, few = measured.text("fp32", _SENT), measured.text(bits, _SENT)
    if fp32 is None or few is None:
        return None
    ratio = float(fp32) / float(few)
    verdict = (False, "") if ratio <= times else (None, "bytes alone do not tell a step's time")
    claim = f"{bits} are {times:g} times faster than fp32"
    return stated(row, claim, paper, f"{ratio:.1f} times fewer bytes", verdict)


_NO_DATA = "as small: AN4 cannot be had offline"
STUDIES = (
    Study("grubic-accuracy", "32 to 1 bits, on a CNN and an LSTM", _cells_accuracy, _draw_accuracy,
          _judge_accuracy, "ResNet-110 on all of CIFAR-10, 160 epochs; the LSTM as small, for AN4 "
          "cannot be had offline"),
    Study("grubic-buckets", "how large buckets may be", _cells_buckets, _draw_buckets,
          _judge_buckets, "ResNet-110 on all of CIFAR-10, 160 epochs; the paper has AlexNet on "
          "ImageNet"),
    Study("grubic-layers", "which layers need more bits", _cells_layers, _draw_layers,
          _judge_layers, "as small: the paper has AlexNet on ImageNet"),
    Study("qsgd-cnn", "a CNN's accuracy by bytes sent", _cells_cnn, _draw_cnn, _judge_cnn,
          "ResNet-110 on all of CIFAR-10, 160 epochs; the paper has AlexNet on ImageNet"),
    Study("qsgd-lstm", "an LSTM's loss by bytes sent", _cells_lstm, _draw_lstm, _judge_lstm,
          _NO_DATA),
)  # fmt: skip
