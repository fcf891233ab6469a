# SPDX-License-Identifier: Apache-2.0
"""Studies of Han, Demmel, You: Auto-Precision Scaling for Distributed Deep Learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpd.numeric.later import Later
from cpd.papers.studies.common import compared, over_seeds, present, training_table
from cpd.papers.study import Cell, Finding, Results, Shown, Size, Study, Table

pictures = Later("cpd.papers.pictures")

WIRES = ("fp32", "e5m2", "e5m2 aps", "e4m3", "e4m3 aps", "(3,0)", "(3,0) aps")
EIGHT_BITS = WIRES[:5]
_TINY: dict[str, Any] = {"images": 256, "tests": 200, "epochs": 1, "width": 4}
"""What a smoke test makes of a training on CIFAR-10."""


def _rows(name: str, wires: tuple[str, ...], **options: Any) -> dict[str, dict[str, Any]]:
    return {f"{name} {wire}".strip(): {**options, "reduce": f"{wire} order=ring"} for wire in wires}


def _sized(size: Size, small: Mapping[str, Any], full: Mapping[str, Any]) -> dict[str, Any]:
    return {"smoke": {**small, **_TINY}, "small": dict(small), "full": {**small, **full}}[size]


# ---- table 4, figure 6: CIFAR-10 over 8 nodes ----------------------------------------------------

_RESNET: dict[str, Any] = {
    "width": 64,
    "images": 50_000,
    "tests": 10_000,
    "batch": 512,
    "epochs": 100,
    "lr": 1.6,
    "schedule": "warmup 5 from 0.0625 steps 40 80",
}
_SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "davidnet": (
        {"model": "davidnet", "divide": "after"},
        {"width": 64, "images": 50_000, "tests": 10_000, "batch": 512, "epochs": 25, "lr": 0.4},
    ),
    "resnet18": ({"model": "resnet18", "divide": "after"}, _RESNET),
    "resnet18 loss/N": ({"model": "resnet18", "divide": "before"}, _RESNET),
}
"""Options of the small and, in addition, of the full size. 'loss/N': each node's loss is divided by
the number of nodes before the backward pass, as the authors' code does: gradients are 8 times
smaller, and (4,3) loses more of them."""
_PAPER4 = {
    **dict(
        zip(
            (f"davidnet {wire}" for wire in WIRES),
            ("88.2", "88.3", "88.4", "10.0", "88.6", "10.0", "81.3"),
            strict=True,
        )
    ),
    **dict(
        zip(
            (f"{name} {wire}" for name in ("resnet18", "resnet18 loss/N") for wire in WIRES),
            ("91.4", "90.1", "91.4", "90.4", "91.6", "10.0", "86.7") * 2,
            strict=True,
        )
    ),
}


def _cells4(size: Size, seeds: int) -> list[Cell]:
    cells = []
    for name, (small, full) in _SETTINGS.items():
        wires = WIRES if size != "smoke" else ("e4m3 aps",)
        rows = _rows(name, wires, **_sized(size, small, full))
        minutes = {"smoke": 0.05, "small": 1.5, "full": 600}[size]
        cells += over_seeds("train", rows, seeds, minutes)
    return cells


def _show4(results: Results) -> Shown:
    tables, drawn = [], {}
    for name in _SETTINGS:
        labels = [f"{name} {wire}" for wire in WIRES]
        tables.append(training_table(name, results, labels, _PAPER4, "accuracy, %"))
        title = f"{name}: accuracy by epoch"
        drawn[title] = pictures.curves(title, results, labels, "accuracy", "accuracy, %")
    claim = "(4,3) with APS keeps fp32's accuracy"
    findings = [
        compared(results, "aps.T4", f"{name}: {claim}", paper, f"{name} e4m3 aps", f"{name} fp32",
                 equal=True)
        for name, paper in (("davidnet", "88.6 for 88.2"), ("resnet18 loss/N", "91.6 for 91.4"))
    ]  # fmt: skip
    findings += [
        compared(results, "aps.T4", f"{name}: (4,3) without APS is below it with", paper,
                 f"{name} e4m3 aps", f"{name} e4m3")
        for name, paper in (("davidnet", "10.0"), ("resnet18 loss/N", "90.4"))
    ]  # fmt: skip
    findings += [
        compared(results, "aps.T4", f"{name}: (3,0) trains with APS only", paper,
                 f"{name} (3,0) aps", f"{name} (3,0)")
        for name, paper in (("davidnet", "81.3, 10.0"), ("resnet18 loss/N", "86.7, 10.0"))
    ]  # fmt: skip
    return Shown(tables, present(findings), drawn)


# ---- table 5, figure 9: LARS ---------------------------------------------------------------------

_LARS = (
    {"model": "resnet18", "optimizer": "lars", "divide": "before", "lr": 2.0, "nodes": 8},
    {"width": 64, "images": 50_000, "tests": 10_000, "batch": 1024, "epochs": 100, "lr": 8.0},
)
_PAPER5 = dict(zip(EIGHT_BITS, ("92.07", "92.02", "91.74", "92.44", "92.04"), strict=True))


def _cells5(size: Size, seeds: int) -> list[Cell]:
    wires = EIGHT_BITS if size != "smoke" else ("e4m3 aps",)
    minutes = {"smoke": 0.05, "small": 1.5, "full": 600}[size]
    return over_seeds("train", _rows("", wires, **_sized(size, *_LARS)), seeds, minutes)


def _show5(results: Results) -> Shown:
    table = training_table("ResNet-18 with LARS", results, EIGHT_BITS, _PAPER5, "accuracy, %")
    title = "LARS: accuracy by epoch"
    drawn = {title: pictures.curves(title, results, EIGHT_BITS, "accuracy", "accuracy, %")}
    findings = [
        compared(results, "aps.T5", f"LARS with {wire} keeps fp32's accuracy", paper, wire, "fp32",
                 equal=True)
        for wire, paper in (("e4m3 aps", "92.04 for 92.07"), ("e5m2 aps", "91.74 for 92.07"))
    ]  # fmt: skip
    return Shown([table], present(findings), drawn)


# ---- tables 6, 7 and 8, figure 10: 256 nodes -----------------------------------------------------

_NODES = (
    {
        "model": "davidnet",
        "nodes": 256,
        "batch": 2,
        "images": 2048,
        "tests": 1000,
        "epochs": 8,
        "lr": 0.4,
        "loss_sum": 1.0,
        "weight_decay": 5e-4,
        "divide": "before",
        "augment": "none",
    },
    {
        "model": "resnet18",
        "width": 64,
        "images": 50_000,
        "tests": 10_000,
        "batch": 32,
        "epochs": 90,
        "lr": 1.6,
        "weight_decay": 1e-4,
        "schedule": "warmup 5 from 0.0625 steps 30 60 80",
    },
)
"""DavidNet, with a mean loss and without augmentation, learns in 32 steps; ResNet-18 does not."""
_GROUPED = "order=ring group_size=16"
_HYBRID = "hybrid: fp32, then (5,2) + APS"
_ROWS6: dict[str, dict[str, Any]] = {
    "fp32": {"reduce": f"fp32 {_GROUPED}"},
    "(5,2)": {"reduce": f"e5m2 {_GROUPED}"},
    "(5,2) + APS": {"reduce": f"e5m2 aps {_GROUPED}"},
    "(4,3)": {"reduce": f"e4m3 {_GROUPED}"},
    "(4,3) + APS": {"reduce": f"e4m3 aps {_GROUPED}"},
    _HYBRID: {"reduce": f"e5m2 aps {_GROUPED}"},
    "(5,2) + APS, last layer fp32": {"reduce": f"e5m2 aps {_GROUPED}", "last_layer_fp32": True},
    "(4,3) + APS, last layer fp32": {"reduce": f"e4m3 aps {_GROUPED}", "last_layer_fp32": True},
}
_GROUPS = (4, 16, 32, 64, 256)
_ROWS8 = {
    f"({wire[1]},{wire[3]}) + APS, groups of {size}": {
        "reduce": f"{wire} aps order=ring group_size={size}"
    }
    for wire in ("e5m2", "e4m3")
    for size in _GROUPS
    if size != 16
}
_PAPER6 = {
    "fp32": "76.02",
    "(5,2)": "71.00",
    "(5,2) + APS": "75.08 (table 7)",
    "(4,3)": "0.1",
    "(4,3) + APS": "75.46 (table 7)",
    _HYBRID: "76.09",
    "(5,2) + APS, last layer fp32": "75.98",
    "(4,3) + APS, last layer fp32": "75.93",
    "(5,2) + APS, groups of 32": "74.91",
    "(4,3) + APS, groups of 32": "74.95",
}


def _cells678(size: Size, seeds: int) -> list[Cell]:
    shared = _sized(size, *_NODES)
    if size == "smoke":
        shared |= {"nodes": 8, "batch": 2}
        return over_seeds("train", {"hybrid": _SMOKE_HYBRID}, seeds, 0.05, **shared)
    minutes = 0.8 if size == "small" else 5000
    rows = {**_ROWS6, **_ROWS8}
    rows[_HYBRID] = {**rows[_HYBRID], "fp32_epochs": round(shared["epochs"] / 3)}
    return over_seeds("train", rows, seeds, minutes, **shared)


_SMOKE_HYBRID = {
    "reduce": "e5m2 aps order=ring group_size=4",
    "fp32_epochs": 1,
    "last_layer_fp32": True,
}


def _show678(results: Results) -> Shown:
    labels6, labels8 = list(_ROWS6), [*_ROWS8, "(5,2) + APS", "(4,3) + APS"]
    tables = [
        training_table("256 nodes, groups of 16", results, labels6, _PAPER6, "accuracy, %"),
        training_table("Group sizes (16: plain rows)", results, labels8, _PAPER6, "accuracy, %"),
    ]
    title = "256 nodes: accuracy by epoch"
    drawn = {title: pictures.curves(title, results, labels6, "accuracy", "accuracy, %")}
    findings = [
        compared(results, "aps.T6", "(4,3) without APS does not train", "0.1 of 76.02", "fp32",
                 "(4,3)"),
        compared(results, "aps.T6", "a hybrid keeps fp32's accuracy", "76.09 for 76.02",
                 _HYBRID, "fp32", equal=True),
        compared(results, "aps.T7", "the last layer in fp32 does not hurt (5,2)", "75.98 for 75.08",
                 "(5,2) + APS, last layer fp32", "(5,2) + APS", equal=True),
        compared(results, "aps.T8", "groups of 16 are not below groups of 32", "75.46 for 74.95",
                 "(4,3) + APS", "(4,3) + APS, groups of 32", equal=True),
    ]  # fmt: skip
    return Shown(tables, present(findings), drawn)


# ---- table 9: round-off by group size ------------------------------------------------------------

_GROUPS9 = (4, 8, 16, 32, 64, 256)
_PAPER9 = dict(zip(_GROUPS9, ("55.0", "44.21", "41.83", "49.62", "58.21", "85.22"), strict=True))


def _cells9(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {
        "layer": "0.weight",
        "ranks": 256,
        "micro_batch": 4,
        "groups": list(_GROUPS9),
        "spec": "e5m2 aps order=ring",
        "model": "resnet18",
        "epochs": 2,
    }
    if size == "smoke":
        shared |= {"ranks": 16, "groups": [4, 16], **_TINY}
    rows = {"first convolution": {}, "every layer": {"layer": "*"}}
    if size == "smoke":
        rows.pop("every layer")
    return over_seeds("roundoff", rows, seeds, {"smoke": 0.05, "small": 1.5, "full": 60}[size],
                      **shared)  # fmt: skip


def _show9(results: Results) -> Shown:
    tables, drawn = [], {}
    findings: list[Finding] = []
    for label in results.labels:
        every = [one.result["rows"] for one in results.of(label)]
        groups = [row["group"] for row in every[0]]
        means = [sum(rows[n]["error"] for rows in every) / len(every) for n in range(len(groups))]
        rows = [
            [
                str(group),
                f"{100 * mean:.2f}",
                _PAPER9.get(group, "") if label.startswith("first") else "",
                f"{100 * every[0][n]['rms']:.2f} ± {100 * (every[0][n]['spread'] or 0):.2f}",
                str(sum(rows[n]["non_finite"] for rows in every)),
            ]
            for n, (group, mean) in enumerate(zip(groups, means, strict=True))
        ]
        head = ["group size", "mean |(h - l) / h|, %", "paper", "relative RMS, %", "not finite"]
        tables.append(Table(f"{label}, {len(every)} seeds", head, rows))
        title = f"Round-off by group size: {label}"
        series = {"ours": (groups, [100 * mean for mean in means])}
        if label.startswith("first"):
            series["paper"] = (groups, [float(_PAPER9[group]) for group in groups])
        drawn[title] = pictures.lines(title, series, "group size", "mean |(h - l) / h|, %",
                                      log_x=True)  # fmt: skip
        findings.append(_minimum(label, every, groups, means))
    return Shown(tables, findings, drawn)


def _minimum(label: str, every: list[Any], groups: list[int], means: list[float]) -> Finding:
    """Whether the least error is between the ends, for every seed."""
    best = [min(range(len(groups)), key=lambda n: rows[n]["error"]) for rows in every]
    inside = [0 < n < len(groups) - 1 for n in best]
    least = groups[min(range(len(groups)), key=means.__getitem__)]
    places = ", ".join(str(groups[n]) for n in best)
    is_mean_inside = groups[0] < least < groups[-1]
    agree = all(inside) == is_mean_inside and len(set(inside)) == 1
    holds = is_mean_inside if len(every) >= 3 and agree else None
    why = "the seeds and their mean disagree" if not agree else ""
    return Finding(
        "aps.T9",
        f"{label}: the error has its minimum between no groups and one group",
        "41.83 % at groups of 16, of 256 nodes",
        f"least at groups of {least}; by seed {places}",
        holds,
        why if len(every) >= 3 else "one seed or two do not decide",
    )


# ---- table 3, figures 7 and 8: segmentation ------------------------------------------------------

_PAPER3 = dict(
    zip(EIGHT_BITS, ("75.16", "74.41", "74.76", "74.60", "75.88"), strict=True),
)


def _cells3(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {"model": "fcn", "divide": "before", "pictures": 4}
    if size == "smoke":
        shared |= {"images": 64, "tests": 16, "epochs": 1, "width": 4, "batch": 2}
    wires = EIGHT_BITS if size != "smoke" else ("e4m3 aps",)
    minutes = {"smoke": 0.05, "small": 1.5, "full": 30}[size]
    return over_seeds("masks", _rows("", wires, **shared), seeds, minutes)


def _show3(results: Results) -> Shown:
    table = training_table("Segmentation of shapes", results, EIGHT_BITS, _PAPER3, "mean IoU, %")
    title = "Segmentation: mean IoU by epoch"
    drawn = {title: pictures.curves(title, results, EIGHT_BITS, "mean_iou", "mean IoU, %")}
    first = {label: results.of(label)[0].result for label in results.labels}
    if first:
        columns = {"truth": next(iter(first.values()))["truth"]}
        columns |= {label: result["masks"] for label, result in first.items()}
        name = "Segmentation: held-out pictures, seed 0"
        drawn[name] = pictures.grid(name, columns)
    findings = [
        compared(results, "aps.T3", f"{wire} keeps fp32's mean IoU", paper, wire, "fp32",
                 equal=True)
        for wire, paper in (("e4m3 aps", "75.88 for 75.16"), ("e5m2 aps", "74.76 for 75.16"))
    ]  # fmt: skip
    return Shown([table], present(findings), drawn)


# ---- figures 1 and 2: distributions --------------------------------------------------------------

_MODELS = ("mlp", "resnet18", "davidnet", "text_lstm", "gpt")


def _cells12(size: Size, seeds: int) -> list[Cell]:
    rows = {name: {"model": name} for name in (_MODELS if size != "smoke" else ("mlp",))}
    minutes = {"smoke": 0.02, "small": 0.7, "full": 30}[size]
    return over_seeds("distribution", rows, seeds, minutes, epochs=[1], batch=8)


def _show12(results: Results) -> Shown:
    drawn, rows = {}, []
    whole: dict[str, dict[int, int]] = {}
    for label in results.labels:
        layers = results.of(label)[0].result["layers"]
        by_layer = {
            name: {int(e): n for e, n in epochs["1"].items()}
            for name, epochs in layers.items()
            if "1" in epochs
        }
        title = f"log₂|g| by layer: {label}, first epoch"
        drawn[title] = pictures.histograms(title, _spread_out(by_layer), "floor(log₂ |g|)")
        whole[label] = _summed(by_layer.values())
        rows.append([label, *_quantiles(whole[label])])
    title = "log₂|g| of five models, first epoch"
    if whole:
        drawn = {title: pictures.histograms(title, whole, "floor(log₂ |g|)"), **drawn}
    head = ["model", "1 % are below 2^", "median 2^", "99 % are below 2^", "below (4,3)'s 2^-10, %"]
    return Shown([Table("Exponents of gradients", head, rows)], _ranges(whole), drawn)


def _ranges(whole: dict[str, dict[int, int]]) -> list[Finding]:
    if len(whole) < 2:
        return []
    medians = {label: _quantile(of, 0.5) for label, of in whole.items()}
    low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    return [
        Finding(
            "aps.F1",
            "gradients of several networks lie in different ranges",
            "a figure",
            f"medians from 2^{medians[low]} ({low}) to 2^{medians[high]} ({high})",
            medians[high] - medians[low] >= 2,
        )
    ]


_MOST_DRAWN = 8


def _spread_out(by_layer: dict[str, Any]) -> dict[str, Any]:
    """At most 8 of the weights, the first and the last among them, evenly through the model."""
    names = [name for name in by_layer if name.endswith("weight")]
    last, most = len(names) - 1, min(len(names), _MOST_DRAWN)
    chosen = [names[round(n * last / max(most - 1, 1))] for n in range(most)]
    return {name: by_layer[name] for name in chosen}


def _summed(layers: Any) -> dict[int, int]:
    total: dict[int, int] = {}
    for of in layers:
        for exponent, count in of.items():
            total[exponent] = total.get(exponent, 0) + count
    return total


def _quantile(of: dict[int, int], share: float) -> int:
    """The least exponent below or at which so large a share lies."""
    left = share * sum(of.values())
    for exponent in sorted(of):
        left -= of[exponent]
        if left <= 0:
            return exponent
    return max(of)


def _quantiles(of: dict[int, int]) -> list[str]:
    below = sum(n for exponent, n in of.items() if exponent < -10) / sum(of.values())
    return [*(str(_quantile(of, share)) for share in (0.01, 0.5, 0.99)), f"{100 * below:.1f}"]


# ---- figures 4 and 12: without training ----------------------------------------------------------


def _cells_factor(size: Size, seeds: int) -> list[Cell]:
    values = [2.0**e * (1 + m / 4) for e in range(-8, 8) for m in range(4)]
    return [
        Cell("scale-factor", {"format": "e5m2", "factor": factor, "values": values}, label, 0.001)
        for label, factor in (("factor 8", 8.0), ("factor 10", 10.0))
    ]


def _show_factor(results: Results) -> Shown:
    rows, holds = [], {}
    for label in results.labels:
        result = results.of(label)[0].result
        kept = sum(result["same"])
        holds[label] = kept == len(result["same"])
        rows.append([label, f"{kept} of {len(result['same'])}"])
    table = Table(
        "Values of (5,2), times a factor, cast to (5,2), divided again", [" ", "as before"], rows
    )
    if len(holds) < 2:
        return Shown([table])
    claim = "a factor that is a power of two rounds nothing, another one does"
    ours = "; ".join(f"{row[0]}: {row[1]}" for row in rows)
    ok = holds["factor 8"] and not holds["factor 10"]
    return Shown([table], [Finding("aps.F4", claim, "a figure: 8 exact, 10 not", ours, ok)])


def _cells_dot(size: Size, seeds: int) -> list[Cell]:
    options = {"format": "e2m0", "a": [1.0] * 4, "b": [1.0] * 4}
    return [Cell("dot-product", options, "three bits, (2,0)", 0.001)]


def _show_dot(results: Results) -> Shown:
    rows, findings = [], []
    for label in results.labels:
        r = results.of(label)[0].result
        steps = ", ".join(f"{step:g}" for step in r["steps"])
        rows.append([label, f"{r['exact']:g}", f"{r['cast_at_the_end']:g}", steps])
        findings.append(
            Finding(
                "aps.F12",
                "a cast of the result alone is another number than rounding at each step",
                "a figure with its own numbers",
                f"{r['cast_at_the_end']:g} and {r['each_step']:g}, exact {r['exact']:g}",
                r["cast_at_the_end"] != r["each_step"],
            )
        )
    head = [" ", "exact", "cast at the end", "sums, rounded at each step"]
    return Shown([Table("A dot product of 1 1 1 1 and 1 1 1 1", head, rows)], findings)


STUDIES = (
    Study("aps-table4", "APS on CIFAR-10 over 8 nodes: 8 and 4 bits", _cells4, _show4),
    Study("aps-table5", "APS with LARS", _cells5, _show5),
    Study("aps-table6-7-8", "256 nodes: APS, hybrid, last layer, group sizes", _cells678, _show678),
    Study("aps-table9", "round-off of a sum over 256 nodes by group size", _cells9, _show9),
    Study("aps-fcn", "APS on a segmentation", _cells3, _show3),
    Study("aps-distributions", "where gradients lie, by model and layer", _cells12, _show12),
    Study("aps-fig4", "scaling by 8 and by 10", _cells_factor, _show_factor),
    Study("aps-fig12", "a dot product, cast at the end or at each step", _cells_dot, _show_dot),
)
