# SPDX-License-Identifier: Apache-2.0
"""Studies of Han, Demmel, You: Auto-Precision Scaling (APS) for Distributed Deep Learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpd.numeric.later import Later
from cpd_lab.papers.judgements import above, is_above, keeps, present, stated, trains
from cpd_lab.papers.quotations import labels_of
from cpd_lab.papers.studies.common import over_seeds, training_table
from cpd_lab.papers.study import (
    Cell,
    Finding,
    Measured,
    Results,
    Shown,
    Size,
    Spread,
    Study,
    Table,
)

pictures = Later("cpd_lab.papers.pictures")

WIRES = ("fp32", "e5m2", "e5m2 aps", "e4m3", "e4m3 aps", "(3,0)", "(3,0) aps")
EIGHT_BITS = WIRES[:5]
_TINY: dict[str, Any] = {"images": 256, "tests": 200, "epochs": 1, "width": 4}
"""The options of a training on CIFAR-10 in a smoke test."""


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
"""Maps a training's label to all options of the size `small` and to the changes for `full`.

In a label, 'loss/N' says that each node's loss is divided by the number of nodes before the
backward pass, as the authors' code does. With N = 8 nodes, gradients are then 8 times smaller, and
rounding to e4m3 turns more of them into zero.
"""


def _cells4(size: Size, seeds: int) -> list[Cell]:
    cells = []
    for name, (small, full) in _SETTINGS.items():
        wires = WIRES if size != "smoke" else ("e4m3 aps",)
        rows = _rows(name, wires, **_sized(size, small, full))
        minutes = {"smoke": 0.05, "small": 1.5, "full": 600}[size]
        cells += over_seeds("train", rows, seeds, minutes)
    return cells


def _draw4(results: Results) -> Shown:
    tables, drawn = [], {}
    for name in _SETTINGS:
        labels = [f"{name} {wire}" for wire in WIRES]
        names = {label: label.replace(" loss/N", "") for label in labels}
        tables.append(training_table(name, results, labels, "aps.T4", "accuracy, %", names))
        title = f"{name}: accuracy by epoch"
        drawn[title] = pictures.curves(title, results, labels, "accuracy", "accuracy, %")
    return Shown(tables, pictures=drawn)


def _judge4(measured: Measured) -> list[Finding]:
    return present(finding for name in _SETTINGS for finding in _judge_model(measured, name))


def _judge_model(measured: Measured, name: str) -> list[Finding | None]:
    """Judges what table 4 of the APS paper claims on accuracies of trainings on CIFAR-10.

    With APS, sums in 8 bits keep fp32's accuracy and sums in 4 bits train. Without APS, sums in 4
    bits do not train, DavidNet diverges in e4m3, and ResNet-18 loses accuracy in 8 bits.
    """
    quote = name.split()[0]
    with_aps = [
        keeps(measured, "aps.T4", f"{name}: {wire} with APS keeps fp32's accuracy",
              f"{{{quote} {wire} aps}} for {{{quote} fp32}}", f"{name} {wire} aps", f"{name} fp32")
        for wire in ("e4m3", "e5m2")
    ]  # fmt: skip
    four = [
        trains(measured, "aps.T4", f"{name}: (3,0) trains with APS", f"{{{quote} (3,0) aps}}",
               f"{name} (3,0) aps"),
        trains(measured, "aps.T4", f"{name}: (3,0) without APS does not train",
               f"{{{quote} (3,0)}}", f"{name} (3,0)", fails=True),
    ]  # fmt: skip
    if quote == "davidnet":
        without = [
            trains(measured, "aps.T4", f"{name}: (4,3) without APS does not train",
                   "{davidnet e4m3}", f"{name} e4m3", fails=True)
        ]  # fmt: skip
    else:
        without = [
            above(measured, "aps.T4", f"{name}: {wire} with APS is above it without",
                  f"{{{quote} {wire} aps}} for {{{quote} {wire}}}",
                  f"{name} {wire} aps", f"{name} {wire}")
            for wire in ("e4m3", "e5m2")
        ]  # fmt: skip
    return [*with_aps, *without, *four]


# ---- table 5, figure 9: LARS ---------------------------------------------------------------------

_LARS = (
    {"model": "resnet18", "optimizer": "lars", "divide": "before", "lr": 2.0, "nodes": 8},
    {"width": 64, "images": 50_000, "tests": 10_000, "batch": 1024, "epochs": 100, "lr": 8.0},
)


def _cells5(size: Size, seeds: int) -> list[Cell]:
    wires = EIGHT_BITS if size != "smoke" else ("e4m3 aps",)
    minutes = {"smoke": 0.05, "small": 1.5, "full": 600}[size]
    return over_seeds("train", _rows("", wires, **_sized(size, *_LARS)), seeds, minutes)


def _draw5(results: Results) -> Shown:
    table = training_table("ResNet-18 with LARS", results, EIGHT_BITS, "aps.T5", "accuracy, %")
    title = "LARS: accuracy by epoch"
    drawn = {title: pictures.curves(title, results, EIGHT_BITS, "accuracy", "accuracy, %")}
    return Shown([table], pictures=drawn)


def _judge5(measured: Measured) -> list[Finding]:
    return _with_aps(measured, "aps.T5", "LARS: ", "accuracy", ("e4m3", "e5m2"))


def _with_aps(
    measured: Measured, row: str, prefix: str, metric: str, wires: tuple[str, ...]
) -> list[Finding]:
    """Judges two kinds of claims of a table or figure, `row`.

    The first: a training in each format of `wires` with APS keeps fp32's metric. The second: APS
    improves the metric in e4m3 and in e5m2.
    """
    keep = [
        keeps(measured, row, f"{prefix}{wire} with APS keeps fp32's {metric}",
              f"{{{wire} aps}} for {{fp32}}", f"{wire} aps", "fp32")
        for wire in wires
    ]  # fmt: skip
    improve = [
        above(measured, row, f"{prefix}APS improves {wire}", f"{{{wire} aps}} for {{{wire}}}",
              f"{wire} aps", wire)
        for wire in ("e4m3", "e5m2")
    ]  # fmt: skip
    return present([*keep, *improve])


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
"""The options of trainings over 256 nodes. The first dict has all options of the size `small`, the
second the options that the size `full` changes.

DavidNet learns in the 32 steps of the small size, but ResNet-18 does not.

DavidNet is trained with a mean loss and without augmentation.
"""
_GROUPED = "order=ring group_size=16"
_HYBRID = "hybrid: fp32, then (4,3) + APS, last layer fp32"
_ROWS6: dict[str, dict[str, Any]] = {
    "fp32": {"reduce": f"fp32 {_GROUPED}"},
    **{
        f"({wire[1]},{wire[3]}){' + APS' if aps else ''}, last layer fp32": {
            "reduce": f"{wire}{aps} {_GROUPED}",
            "last_layer_fp32": True,
        }
        for wire in ("e5m2", "e4m3")
        for aps in (" aps", "")
    },
    _HYBRID: {"reduce": f"e4m3 aps {_GROUPED}", "last_layer_fp32": True},
}
"""Maps the labels of the APS paper's table 6 to the options of the trainings.

The last layer is summed in fp32, as in the paper. The paper's table 7 compares some of these
trainings with trainings whose last layer is summed in 8 bits.
"""
_GROUPS = (4, 16, 32, 64, 256)
_ROWS8 = {
    f"({wire[1]},{wire[3]}) + APS, groups of {size}": {
        "reduce": f"{wire} aps order=ring group_size={size}"
    }
    for wire in ("e5m2", "e4m3")
    for size in _GROUPS
}
_QUOTES6 = {_HYBRID: "hybrid", **{label: label.removesuffix(", last layer fp32") for label in
                                  _ROWS6 if label not in ("fp32", _HYBRID)}}  # fmt: skip
_QUOTES7 = {
    f"{wire} + APS{last or ', groups of 16'}": f"{wire}{last}"
    for wire in ("(5,2)", "(4,3)")
    for last in ("", ", last layer fp32")
}
_QUOTES8 = {
    f"{wire} + APS, groups of {size}": f"{wire}, {size}"
    for wire in ("(5,2)", "(4,3)")
    for size in (16, 32)
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
    "reduce": "e4m3 aps order=ring group_size=4",
    "fp32_epochs": 1,
    "last_layer_fp32": True,
}


def _draw678(results: Results) -> Shown:
    tables = [
        training_table("Table 6: 256 nodes, groups of 16, the last layer in fp32", results,
                       list(_ROWS6), "aps.T6", "accuracy, %", _QUOTES6),
        training_table("Table 7: the last layer in 8 bits or in fp32, groups of 16", results,
                       list(_QUOTES7), "aps.T7", "accuracy, %", _QUOTES7),
        training_table("Table 8: all layers in 8 bits, by group size", results, list(_ROWS8),
                       "aps.T8", "accuracy, %", _QUOTES8),
    ]  # fmt: skip
    title = "256 nodes: accuracy by epoch"
    drawn = {title: pictures.curves(title, results, list(_ROWS6), "accuracy", "accuracy, %")}
    return Shown(tables, pictures=drawn)


def _judge678(measured: Measured) -> list[Finding]:
    last = ", last layer fp32"
    six = [
        keeps(measured, "aps.T6", f"{wire} with APS loses less than 0.05 points",
              f"{{{wire} + APS}} for {{fp32}}, less than {{loss}}", f"{wire} + APS{last}", "fp32",
              within=0.05)
        for wire in ("(5,2)", "(4,3)")
    ]  # fmt: skip
    six += [
        above(measured, "aps.T6", "APS improves (5,2)", "{(5,2) + APS} for {(5,2)}",
              f"(5,2) + APS{last}", f"(5,2){last}"),
        trains(measured, "aps.T6", "(4,3) without APS does not train", "{(4,3)} of {fp32}",
               f"(4,3){last}", fails=True),
        keeps(measured, "aps.T6", "a hybrid of fp32 and (4,3) keeps fp32's accuracy",
              "{hybrid} for {fp32}", _HYBRID, "fp32"),
    ]  # fmt: skip
    seven = [
        above(measured, "aps.T7", f"the last layer in fp32 improves {wire} with APS",
              f"{{{wire}{last}}} for {{{wire}}}", f"{wire} + APS{last}",
              f"{wire} + APS, groups of 16")
        for wire in ("(5,2)", "(4,3)")
    ]  # fmt: skip
    eight = [
        above(measured, "aps.T8", f"{wire} with APS: groups of 16 improve on groups of 32",
              f"{{{wire}, 16}} for {{{wire}, 32}}", f"{wire} + APS, groups of 16",
              f"{wire} + APS, groups of 32")
        for wire in ("(5,2)", "(4,3)")
    ]  # fmt: skip
    return present([*six, *seven, *eight])


# ---- table 9: round-off by group size ------------------------------------------------------------

_GROUPS9 = (4, 8, 16, 32, 64, 256)


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


_ERROR = "mean |(h - l) / h|, %"
_FIRST = "first convolution"


def _draw9(results: Results) -> Shown:
    tables, drawn = [], {}
    paper = labels_of("aps.T9")
    for label in results.labels:
        every = [measurement.result["rows"] for measurement in results.of(label)]
        groups = [row["group"] for row in every[0]]
        errors = [Spread(tuple(rows[n]["error"] for rows in every)) for n in range(len(groups))]
        least = [min(range(len(groups)), key=lambda n: rows[n]["error"]) for rows in every]
        is_first = label == _FIRST
        rows = [
            [
                _grouped(label, group),
                errors[n].text(2, 100),
                paper.get(f"n{group}", "").rstrip("%") if is_first else "",
                f"{100 * every[0][n]['rms']:.2f} ± {100 * (every[0][n]['spread'] or 0):.2f}",
                str(sum(rows[n]["non_finite"] for rows in every)),
                str(sum(best == n for best in least)),
            ]
            for n, group in enumerate(groups)
        ]
        head = [
            "group size", _ERROR, "paper", "relative RMS, %", "not finite", "seeds with least error"
        ]  # fmt: skip
        tables.append(Table(f"{label}, {len(every)} seeds", head, rows))
        title = f"Round-off by group size: {label}"
        series = {"ours": (groups, [100 * error.mean for error in errors])}
        if is_first:
            series["paper"] = (groups, [float(paper[f"n{group}"].rstrip("%")) for group in groups])
        drawn[title] = pictures.lines(title, series, "group size", _ERROR, log_x=True)
    return Shown(tables, pictures=drawn)


def _grouped(label: str, size: int) -> str:
    return f"{label}, groups of {size}"


def _judge9(measured: Measured) -> list[Finding]:
    """Judges what table 9 of the APS paper claims on the round-off of sums by group size.

    Groups of 16 ranks have a smaller error than groups of other sizes. The judged layer is the
    first convolution, as in the paper.
    """
    seeds = measured.seeds.get(_FIRST, 0)
    n256, n16 = (measured.range(_grouped(_FIRST, n), runs=_FIRST) for n in (256, 16))
    column = "seeds with least error"
    best = {n: measured.text(_grouped(_FIRST, n), column) for n in _GROUPS9}
    if n256 is None or n16 is None or None in best.values():
        return []
    counts = {n: int(count or 0) for n, count in best.items()}
    ours = ", ".join(f"groups of {n} in {count}" for n, count in counts.items() if count)
    verdict: tuple[bool | None, str]
    if seeds < 3:
        verdict = None, "one seed or two do not decide"
    elif 0 < counts[16] < seeds:
        verdict = None, "the seeds disagree"
    else:
        verdict = counts[16] == seeds, ""
    return [
        stated("aps.T9", "groups of 16 round less than one group of 256", "{n16} for {n256} %",
               f"groups of 16: {n16.text}; one group: {n256.text}", is_above(n256, n16)),
        stated("aps.T9", "groups of 16 have the least error", "{n16} %, the least of six",
               f"least by seed: {ours}", verdict),
    ]  # fmt: skip


# ---- table 3, figures 7 and 8: segmentation ------------------------------------------------------


def _cells3(size: Size, seeds: int) -> list[Cell]:
    shared: dict[str, Any] = {"model": "fcn", "divide": "before", "pictures": 4}
    if size == "smoke":
        shared |= {"images": 64, "tests": 16, "epochs": 1, "width": 4, "batch": 2}
    wires = EIGHT_BITS if size != "smoke" else ("e4m3 aps",)
    minutes = {"smoke": 0.05, "small": 1.5, "full": 30}[size]
    return over_seeds("masks", _rows("", wires, **shared), seeds, minutes)


def _draw3(results: Results) -> Shown:
    table = training_table("Segmentation of shapes", results, EIGHT_BITS, "aps.T3", "mean IoU, %")
    title = "Segmentation: mean IoU by epoch"
    drawn = {title: pictures.curves(title, results, EIGHT_BITS, "mean_iou", "mean IoU, %")}
    first = {label: results.of(label)[0].result for label in results.labels}
    if first:
        columns = {"truth": next(iter(first.values()))["truth"]}
        columns |= {label: result["masks"] for label, result in first.items()}
        name = "Segmentation: held-out pictures, seed 0"
        drawn[name] = pictures.grid(name, columns)
    return Shown([table], pictures=drawn)


def _judge3(measured: Measured) -> list[Finding]:
    return _with_aps(measured, "aps.T3", "", "mean IoU", ("e4m3",))


# ---- figures 1 and 2: distributions --------------------------------------------------------------

_MODELS = ("mlp", "resnet18", "davidnet", "text_lstm", "gpt")


def _cells12(size: Size, seeds: int) -> list[Cell]:
    rows = {name: {"model": name} for name in (_MODELS if size != "smoke" else ("mlp",))}
    minutes = {"smoke": 0.02, "small": 0.7, "full": 30}[size]
    return over_seeds(
        "distribution", rows, seeds, minutes, epochs=[1], batch=64 if size == "smoke" else 8
    )


def _draw12(results: Results) -> Shown:
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
    return Shown([Table("Exponents of gradients", head, rows)], pictures=drawn)


def _judge12(measured: Measured) -> list[Finding]:
    medians = {name: measured.text(name, "median 2^") for name in _MODELS}
    exponents = {name: int(median) for name, median in medians.items() if median is not None}
    if len(exponents) < 2:
        return []
    low, high = min(exponents, key=exponents.__getitem__), max(exponents, key=exponents.__getitem__)
    claim = "gradients of several networks lie in different ranges: medians differ by 4 or more"
    ours = f"medians from 2^{exponents[low]} ({low}) to 2^{exponents[high]} ({high})"
    return [stated("aps.F1", claim, "a figure", ours, exponents[high] - exponents[low] >= 2)]


_MOST_DRAWN = 8


def _spread_out(by_layer: dict[str, Any]) -> dict[str, Any]:
    """Returns the histograms of up to 8 weight tensors, from the histograms of all layers.

    The chosen tensors are evenly spread from the first to the last layer. Biases are left out.
    """
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
    """Returns the least exponent e such that a `share` of the values has exponents up to e."""
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


def _draw_factor(results: Results) -> Shown:
    rows = []
    for label in results.labels:
        result = results.of(label)[0].result
        rows.append([label, f"{sum(result['same'])} of {len(result['same'])}"])
    title = "Values of (5,2), times a factor, cast to (5,2), divided again"
    return Shown([Table(title, [" ", "as before"], rows)])


def _judge_factor(measured: Measured) -> list[Finding]:
    labels = ("factor 8", "factor 10")
    texts = {label: measured.text(label) for label in labels}
    counts = [text.split(" of ") for text in texts.values() if text is not None]
    if len(counts) < 2:
        return []
    exact, other = (unchanged == all_of for unchanged, all_of in counts)
    claim = "a factor of 8 rounds nothing, one of 10 does"
    ours = "; ".join(f"{label}: {text}" for label, text in texts.items())
    return [stated("aps.F4", claim, "a figure: 8 exact, 10 not", ours, exact and not other)]


def _cells_dot(size: Size, seeds: int) -> list[Cell]:
    options = {"format": "e2m0", "a": [1.0] * 4, "b": [1.0] * 4}
    return [Cell("dot-product", options, _DOT, 0.001)]


_DOT = "three bits, (2,0)"


def _draw_dot(results: Results) -> Shown:
    rows = []
    for label in results.labels:
        r = results.of(label)[0].result
        steps = ", ".join(f"{step:g}" for step in r["steps"])
        rows.append([label, f"{r['exact']:g}", f"{r['cast_at_the_end']:g}", steps])
    head = [" ", "exact", "cast at the end", "sums, rounded at each step"]
    return Shown([Table("A dot product of 1 1 1 1 and 1 1 1 1", head, rows)])


def _judge_dot(measured: Measured) -> list[Finding]:
    exact, end, steps = (
        measured.text(_DOT, column)
        for column in ("exact", "cast at the end", "sums, rounded at each step")
    )
    if end is None or steps is None:
        return []
    rounded = steps.split(", ")[-1]
    claim = "a cast of the result alone is another number than rounding at each step"
    ours = f"{end} and {rounded}, exact {exact}"
    return [stated("aps.F12", claim, "a figure with its own numbers", ours, end != rounded)]


_CIFAR = "the paper's widths, images, batches and epochs"
STUDIES = (
    Study("aps-table4", "APS on CIFAR-10 over 8 nodes: 8 and 4 bits", _cells4, _draw4, _judge4,
          f"{_CIFAR}; ResNet-18 twice, by where the sum is divided"),
    Study("aps-table5", "APS with LARS", _cells5, _draw5, _judge5,
          f"{_CIFAR}; a rate of 8, which the paper does not state"),
    Study("aps-table6-7-8", "256 nodes: APS, hybrid, last layer, group sizes", _cells678, _draw678,
          _judge678, "ResNet-18 on all of CIFAR-10 for the paper's 90 epochs, not ResNet-50 on "
          "ImageNet"),
    Study("aps-table9", "round-off of a sum over 256 nodes by group size", _cells9, _draw9, _judge9,
          "as small: 256 nodes as in the paper, but ResNet-18 on CIFAR-10"),
    Study("aps-fcn", "APS on a segmentation", _cells3, _draw3, _judge3,
          "as small: Cityscapes cannot be had offline"),
    Study("aps-distributions", "where gradients lie, by model and layer", _cells12, _draw12,
          _judge12, "as small: other networks than the paper's"),
    Study("aps-fig4", "scaling by 8 and by 10", _cells_factor, _draw_factor, _judge_factor,
          "as small: no training"),
    Study("aps-fig12", "a dot product, cast at the end or at each step", _cells_dot, _draw_dot,
          _judge_dot, "as small: no training"),
)  # fmt: skip
