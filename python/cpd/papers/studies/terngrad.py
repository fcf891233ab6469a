# SPDX-License-Identifier: Apache-2.0
"""Studies of Wen et al.: TernGrad (NeurIPS 2017)."""

from __future__ import annotations

from typing import Any

from cpd.numeric.later import Later
from cpd.papers.studies.common import compared, over_seeds, present, training_table
from cpd.papers.study import Cell, Finding, Results, Shown, Size, Study, Table

pictures = Later("cpd.papers.pictures")

_WORKERS = (2, 4, 8, 16, 32, 64)
_TOTAL = 64
"""Images of a step, of all workers."""


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
    rows = {
        _label(name, n, momentum): {
            "nodes": n,
            "batch": _TOTAL // n,
            "momentum": momentum,
            "wire": wire,
        }
        for momentum in (0.9, 0.0)
        for n in workers
        for name, wire in (("float", "fp32"), ("TernGrad", "terngrad"))
        if size != "smoke" or (name == "TernGrad" and momentum)
    }
    return over_seeds("train", rows, seeds, {"smoke": 0.05, "small": 1.0, "full": 1.0}[size],
                      **shared)  # fmt: skip


def _label(name: str, workers: int, momentum: float) -> str:
    return f"{name}, {workers} workers{', momentum' if momentum else ''}"


def _show_workers(results: Results) -> Shown:
    labels = [
        _label(name, n, momentum)
        for momentum in (0.9, 0.0)
        for n in _WORKERS
        for name in ("float", "TernGrad")
    ]
    table = training_table("LeNet on digits, 64 images a step", results, labels, {}, "accuracy, %")
    findings = [
        compared(
            results,
            "terngrad.F3",
            f"{n} workers: TernGrad keeps float's accuracy",
            "-0.22 … +0.15 %",
            _label("TernGrad", n, 0.9),
            _label("float", n, 0.9),
            equal=True,
        )
        for n in _WORKERS
    ]
    return Shown([table], present(findings))


# ---- tables 1 and 2, figure 4: CifarNet with Adam, clipping --------------------------------------

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
        shared |= {"images": 50_000, "tests": 10_000, "epochs": 100, "ema": 0.9999}
    workers = (2, 8, 16) if size != "smoke" else (2,)
    wires = _WIRES if size != "smoke" else {"TernGrad": "terngrad"}
    rows = {
        f"{name}, {n} workers": {"nodes": n, "batch": 128 // n, "wire": wire}
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


def _show_clip(results: Results) -> Shown:
    labels = [f"{name}, {n} workers" for n in (2, 8, 16) for name in _WIRES]
    paper = {
        "float, 2 workers": "86.56",
        "TernGrad, 2 workers": "85.64",
        "float, 16 workers": "83.19",
        "TernGrad, 16 workers": "82.80",
    }
    tables = [training_table("CifarNet with Adam", results, labels, paper, "accuracy, %")]
    findings = [
        compared(results, "terngrad.T1", f"{n} workers: TernGrad keeps float's accuracy", text,
                 f"TernGrad, {n} workers", f"float, {n} workers", equal=True)
        for n, text in ((2, "85.64 for 86.56"), (16, "82.80 for 83.19"))
    ] + [
        compared(results, "terngrad.T2", "clipping helps", "57.61, without 54.63",
                 "TernGrad, 8 workers", "TernGrad, no clip, 8 workers"),
    ]  # fmt: skip
    drawn: dict[str, str] = {}
    for one in results.of("gradients")[:1]:
        bounds, zeros = one.result["bounds"], one.result["zeros"]
        tables.append(_bound_table(bounds))
        tables.append(
            Table(
                "Share of zeros after ternarizing",
                ["layer", "zeros, %"],
                [[name, f"{100 * share:.1f}"] for name, share in zeros.items()],
            )
        )
        findings.append(_bound(bounds))
        findings.append(_zeros(zeros))
        for name, stages in one.result["histograms"].items():
            title = f"Gradients of {name}: as they are, clipped, ternary, averaged"
            series = {stage: (of["places"], of["counts"]) for stage, of in stages.items()}
            drawn[title] = pictures.lines(title, series, "value / standard deviation", "count",
                                          log_y=True)  # fmt: skip
    return Shown(tables, present(findings), drawn)


def _bound_table(bounds: dict[str, float]) -> Table:
    rows = [[name, f"{ratio:.1f}"] for name, ratio in bounds.items()]
    return Table("‖g‖∞ ‖g‖₁ / ‖g‖², which float has at 1", ["scaler", "ratio"], rows)


def _bound(bounds: dict[str, float]) -> Finding:
    ours = ", ".join(f"{name} {ratio:.1f}" for name, ratio in bounds.items())
    whole, by_layer, clipped = (
        bounds[name] for name in ("global", "layer-wise", "layer-wise, clipped")
    )
    claim = "scalers layer by layer and clipping close the gap of the bounds"
    return Finding("terngrad.bound", claim, "stated", ours, whole > by_layer > clipped)


def _zeros(zeros: dict[str, float]) -> Finding:
    share = max(zeros.values())
    claim = "most ternary values are zeros"
    return Finding("terngrad.F4", claim, "71.32 % in one layer", f"up to {100 * share:.1f} %",
                   share > 0.5)  # fmt: skip


STUDIES = (
    Study("terngrad-workers", "TernGrad by the number of workers", _cells_workers, _show_workers),
    Study("terngrad-clip", "TernGrad's clipping, zeros and bounds", _cells_clip, _show_clip),
)
