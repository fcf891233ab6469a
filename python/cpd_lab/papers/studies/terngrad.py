# SPDX-License-Identifier: Apache-2.0
"""Studies of the TernGrad paper (Wen et al., NeurIPS 2017)."""

from __future__ import annotations

from typing import Any

from cpd.numeric.later import Later
from cpd_lab.papers.judgements import above, keeps, present, stated
from cpd_lab.papers.studies.common import over_seeds, training_table
from cpd_lab.papers.study import Cell, Finding, Measured, Results, Shown, Size, Study, Table

pictures = Later("cpd_lab.papers.pictures")

_WORKERS = (2, 4, 8, 16, 32, 64)
_TOTAL = 64
"""The number of images in a training step, of all workers together."""
_ITERATIONS = 10_000
"""The number of steps of a training in the TernGrad paper."""


# ---- figure 3: the number of workers -------------------------------------------------------------


def _cells_workers(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {
        "model": "lenet",
        "data": "digits",
        "schedule": "polynomial power 0.5",
        "divide": "after",
        "last_layer_fp32": True,
    }
    workers = _WORKERS if size != "smoke" else (4,)
    if size == "smoke":
        shared |= {"epochs": 1, "images": 256, "tests": 64}
    if size == "full":
        shared |= {"epochs": _ITERATIONS * _TOTAL // 1438, "weight_decay": 0.0005}
        shared["last_layer_fp32"] = False
    rates = {0.9: 0.01, 0.0: 0.1} if size == "full" else {}
    rows = {
        _label(name, n, momentum): {
            "nodes": n,
            "batch": _TOTAL // n,
            "momentum": momentum,
            "wire": wire,
            **({"lr": rates[momentum]} if rates else {}),
        }
        for momentum in (0.9, 0.0)
        for n in workers
        for name, wire in (("float", "fp32"), ("TernGrad", "terngrad"))
        if size != "smoke" or (name == "TernGrad" and momentum)
    }
    return over_seeds("train", rows, seeds, {"smoke": 0.05, "small": 1.0, "full": 20.0}[size],
                      **shared)  # fmt: skip


_PAIR = ("float", "TernGrad")


def _label(name: str, workers: int, momentum: float) -> str:
    return f"{name}, {workers} workers{', momentum' if momentum else ''}"


def _draw_workers(results: Results) -> Shown:
    tables = [
        training_table(f"Figure {figure}: LeNet on digits, 64 images a step, {which} SGD", results,
                       [_label(name, n, momentum) for n in _WORKERS for name in _PAIR], "",
                       "accuracy, %")
        for figure, which, momentum in (("3a", "momentum", 0.9), ("3b", "vanilla", 0.0))
    ]  # fmt: skip
    return Shown(tables)


def _judge_workers(measured: Measured) -> list[Finding]:
    return present(
        keeps(measured, "terngrad.F3",
              f"{_label('TernGrad', n, momentum)}: loses at most 0.22 points", "at most {loss} %",
              _label("TernGrad", n, momentum), _label("float", n, momentum), within=0.22)
        for momentum in (0.9, 0.0)
        for n in _WORKERS
    )  # fmt: skip


# ---- tables 1 and 2, figure 4: CifarNet with Adam, clipping --------------------------------------

_TABLE1: dict[str, Any] = {
    "lr": 0.0002,
    "epochs": 768,
    "dropout": 0.0,
    "last_layer_fp32": False,
}
"""The training options of the TernGrad paper's table 1: its learning rate and number of images.

768 epochs have the images of 300,000 steps of 128, or of 18,750 steps of 2048. The paper states no
weight decay and no dropout. The paper keeps layers in floating point only in its larger networks,
so this training's last layer is not summed in fp32.
"""
_BATCHES = {2: 64, 8: 128, 16: 128}
"""Maps the number of workers to the images of one worker in a step.

The TernGrad paper's table 1 gives the values for 2 and 16 workers, its table 2 the value for 8.
"""
_WIRES = {"float": "fp32", "TernGrad": "terngrad", "TernGrad, no clip": "terngrad clip=none"}


def _cells_clip(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {
        "model": "cifarnet",
        "optimizer": "adam",
        "lr": 0.001,
        "divide": "after",
        "last_layer_fp32": True,
        "dropout": 0.2,
    }
    if size == "smoke":
        shared |= {"images": 256, "tests": 200, "epochs": 1, "width": 4}
    if size == "full":
        shared |= {"images": 50_000, "tests": 10_000, "ema": 0.9999, **_TABLE1}
    workers = (2, 8, 16) if size != "smoke" else (2,)
    wires = _WIRES if size != "smoke" else {"TernGrad": "terngrad"}
    rows = {
        f"{name}, {n} workers": {
            "nodes": n,
            "batch": _BATCHES[n] if size == "full" else 128 // n,
            "wire": wire,
        }
        for n in workers
        for name, wire in wires.items()
    }
    cells = over_seeds("train", rows, seeds, {"smoke": 0.05, "small": 2.0, "full": 300}[size],
                       **shared)  # fmt: skip
    return cells + _cells_gradients(size, seeds)


def _cells_gradients(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {
        "model": "cifarnet",
        "augment": "none",
        "workers": 2,
        "micro_batch": 64,
        "epochs": 2,
    }
    if size == "smoke":
        shared |= {"images": 256, "tests": 200, "epochs": 1, "width": 4, "micro_batch": 8}
    return over_seeds("ternary", {"gradients": {}}, seeds, 0.5, **shared)


_ZEROS = "zeros, %"
_RATIO = "ratio"


def _draw_clip(results: Results) -> Shown:
    labels = [f"{name}, {n} workers" for n in (2, 8, 16) for name in _WIRES]
    tables = [training_table("CifarNet with Adam", results, labels, "terngrad.T1", "accuracy, %")]
    drawn: dict[str, str] = {}
    for measurement in results.of("gradients")[:1]:
        bounds, zeros = measurement.result["bounds"], measurement.result["zeros"]
        tables.append(_bound_table(bounds))
        tables.append(
            Table(
                "Share of zeros after ternarizing",
                ["layer", _ZEROS],
                [[name, f"{100 * share:.1f}"] for name, share in zeros.items()],
            )
        )
        for name, stages in measurement.result["histograms"].items():
            title = f"Gradients of {name}: as they are, clipped, ternary, averaged"
            series = {stage: (of["places"], of["counts"]) for stage, of in stages.items()}
            drawn[title] = pictures.lines(title, series, "value / standard deviation", "count",
                                          log_y=True)  # fmt: skip
    return Shown(tables, pictures=drawn)


def _judge_clip(measured: Measured) -> list[Finding]:
    trained = [
        keeps(measured, "terngrad.T1", f"{n} workers: TernGrad loses less than 1 point",
              f"{{TernGrad, {n} workers}} for {{float, {n} workers}}", f"TernGrad, {n} workers",
              f"float, {n} workers", within=1.0)
        for n in (2, 16)
    ]  # fmt: skip
    trained += [
        above(measured, "terngrad.T2", "2 workers: clipping improves TernGrad",
              "{TernGrad, 2 workers}, without {TernGrad, no clip, 2 workers}",
              "TernGrad, 2 workers", "TernGrad, no clip, 2 workers"),
        above(measured, "terngrad.T2", "8 workers: TernGrad improves on float",
              "{TernGrad, 8 workers} for {float, 8 workers}", "TernGrad, 8 workers",
              "float, 8 workers"),
    ]  # fmt: skip
    return present([*trained, _bound(measured), _zeros(measured)])


def _bound_table(bounds: dict[str, float]) -> Table:
    rows = [[name, f"{ratio:.1f}"] for name, ratio in bounds.items()]
    return Table("‖g‖∞ ‖g‖₁ / ‖g‖², which float has at 1", ["scaler", _RATIO], rows)


def _bound(measured: Measured) -> Finding | None:
    names = ("global", "layer-wise", "layer-wise, clipped")
    texts = [measured.text(name, _RATIO) for name in names]
    ratios = [float(text) for text in texts if text is not None]
    if len(ratios) < 3:
        return None
    claim = "scalers layer by layer, and then clipping, close the gap of the bounds"
    ours = ", ".join(f"{name} {ratio}" for name, ratio in zip(names, ratios, strict=True))
    whole, by_layer, clipped = ratios
    return stated("terngrad.bound", claim, "{closer}", ours, whole > by_layer > clipped)


_FULLY_CONNECTED = "fc3.weight"
"""CifarNet's first fully connected layer, in place of AlexNet's fc6 in the TernGrad paper."""


def _zeros(measured: Measured) -> Finding | None:
    share = measured.text(_FULLY_CONNECTED, _ZEROS)
    if share is None:
        return None
    claim = "most gradients of the first fully connected layer become zeros"
    ours = f"{share} % of {_FULLY_CONNECTED}"
    return stated("terngrad.F4", claim, "{zeros} of fc6", ours, float(share) > 50)


STUDIES = (
    Study("terngrad-workers", "TernGrad by the number of workers", _cells_workers, _draw_workers,
          _judge_workers, "the paper's rates, batches, weight decay and 10,000 steps, on "
          "scikit-learn's digits in place of MNIST"),
    Study("terngrad-clip", "TernGrad's clipping, zeros and bounds", _cells_clip, _draw_clip,
          _judge_clip, "table 1's rate, batches and 768 epochs on all of CIFAR-10, without weight "
          "decay, which it does not state; the gradients as small"),
)  # fmt: skip
