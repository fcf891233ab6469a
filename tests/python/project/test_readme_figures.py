# SPDX-License-Identifier: Apache-2.0
"""Tests that figures in READMEs and guides are measured, or computed by this program."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import cpd

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
BITS = (ROOT / "benchmarks/BITS.md").read_text()
MODELS = (ROOT / "python/MODELS.md").read_text()
RANGE = r"(\d\.\d{3})–(\d\.\d{3})"


def accuracies() -> list[dict[str, tuple[float, float]]]:
    """Returns, for each CPU with stored results, the demo's least and greatest held-out accuracy
    over seeds."""
    files = sorted((ROOT / "benchmarks/results/demo").glob("*.json"))
    assert len(files) >= 2
    return [
        {name: tuple(ends) for name, ends in json.loads(file.read_text())["accuracy"].items()}
        for file in files
    ]


def ranges(line: str) -> list[tuple[float, float]]:
    return [(float(low), float(high)) for low, high in re.findall(RANGE, line)]


def test_what_the_demo_finds() -> None:
    """README states the demo's least and greatest accuracies over all stored CPUs."""
    stored = accuracies()
    for name in ("FP32", "(4,3)", "(3,0)"):
        (line,) = (line for line in README.splitlines() if line.startswith(f"| {name}"))
        rows = [name] if name == "FP32" else [name, f"{name} + APS"]
        envelope = [
            (min(cpu[row][0] for cpu in stored), max(cpu[row][1] for cpu in stored)) for row in rows
        ]
        assert ranges(line) == envelope, name


def test_what_the_demo_finds_on_each_cpu() -> None:
    text = (ROOT / "benchmarks/README.md").read_text()
    amd, intel = accuracies()
    cells = [cell.strip() for cell in re.split(r"[|\n]", text)]
    for row in amd:
        at = cells.index(row, cells.index("AMD EPYC"))
        assert [ranges(cell)[0] for cell in cells[at + 1 : at + 3]] == [intel[row], amd[row]], row


LINEAR, CONVOLUTION, WORLD = (1024, 1024), (256, 256, 3, 3), 8
CODECS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in BITS.split("| codec | from |")[1].partition("\n\n")[0].splitlines()
    if line.startswith("| `")
]


def spec_of(text: str, exchange: str) -> cpd.Reduce:
    by = cpd.Codec(text)
    if by._is_compressor:
        return cpd.Reduce(by, exchange=exchange)
    return cpd.Reduce(text, exchange=exchange, aps=not text.startswith(("mx", "nv")))


@pytest.mark.parametrize("row", CODECS, ids=lambda row: row[0].strip("`"))
def test_what_compressors_take(row: list[str]) -> None:
    """The table of compressors states what `cpd.Codec` and `cpd.study.cost` compute.

    It has the bits of a value in a linear layer and in a convolution. It also has the bytes of an
    all-reduce in FP32, divided by the compressed bytes, for the exchanges owner and gather.
    """
    text, _, *told = row
    draw = np.random.default_rng(0)
    ranks = [[draw.normal(size=LINEAR).astype(np.float32)] for _ in range(WORLD)]
    convolution = draw.normal(size=CONVOLUTION).astype(np.float32)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cpd.PrecisionWarning)
        for layer in ranks[0][0], convolution:
            found.append(cpd.Codec(text.strip("`")).encode(layer).bits_a_value)
        plain = cpd.study.cost(cpd.Reduce("fp32"), WORLD, [LINEAR]).bytes_sent
        for exchange in "owner", "gather":
            spec = spec_of(text.strip("`"), exchange)
            cost = cpd.study.cost(spec, WORLD, [LINEAR])
            found.append(plain / (cost.bytes_sent if cost.exact else mean_sent(ranks, spec)))
    for value, cell in zip(found, told, strict=True):
        places = len(cell.partition(".")[2])
        assert float(cell) == pytest.approx(value, abs=0.51 * 10**-places), cell


def mean_sent(ranks: list[list[np.ndarray]], spec: cpd.ReduceSpec) -> float:
    """Returns the mean number of bytes that a rank sends."""
    with cpd.comm.local(WORLD) as group:
        reports = group.run(lambda comm: comm.all_reduce(ranks[comm.rank], spec, report=True)[1])
    return sum(report.traffic.bytes_sent for report in reports) / WORLD


def test_short_columns_are_warned_of() -> None:
    with pytest.warns(cpd.PrecisionWarning, match=r"96 bits .*\(64, 64, 1, 1\).*bucket=64"):
        cpd.study.cost(cpd.Reduce("one_bit"), 2, [(64, 64), (64, 64, 1, 1)])
    layers = [np.zeros((8, 8, 3, 3), np.float32)]
    with pytest.warns(cpd.PrecisionWarning, match="32 bits"):
        cpd.simulate_all_reduce([layers, layers], cpd.Reduce("one_bit"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpd.study.cost(cpd.Reduce("one_bit bucket=64"), 2, [(64, 64, 1, 1)])
        cpd.study.cost(cpd.Reduce("int8_rows"), 2, [(64, 64, 1, 1), (3,), (1,)])


def test_a_few_sums_near_zero_decide_the_mean_relative_error() -> None:
    """The mean relative error (equation 5 of the APS paper) and the relative RMS error of an
    all-reduce prefer different group sizes.

    They prefer the same size if the mean leaves out the ten of a thousand sums with the largest
    relative errors. Such sums are near zero.
    """
    x = np.random.default_rng(0).standard_normal((256, 1000), "f")
    true = x.astype(np.float64).sum(0)
    all_of_them, most = {}, {}
    for group_size in (16, 256):
        spec = cpd.Reduce("e5m2", accumulator="e5m2", aps=True, group_size=group_size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cpd.PrecisionWarning)
            [got] = cpd.simulate_all_reduce([[row] for row in x], spec)
        relative = np.sort(np.abs(got - true) / np.abs(true))
        all_of_them[group_size], most[group_size] = relative.mean(), relative[:-10].mean()
        assert f" {100 * relative.mean():.2f} % " in README
    assert all_of_them[16] > all_of_them[256]
    assert most[16] < most[256]


def test_what_models_cost() -> None:
    """MODELS.md states times relative to an unconverted model: reciprocals of the stored rates."""
    (name,) = re.findall(r"all rows in `(benchmarks/results/[\w.-]+)`", " ".join(MODELS.split()))
    rows = json.loads((ROOT / name).read_text())["rows"]
    ratio = {row["name"]: row["ratio"] for row in rows if row.get("ratio")}
    unchanged = "| | converted, all layers left in torch |"
    head, _, *table = MODELS.partition(unchanged)[2].partition("\n\n")[0].splitlines()
    recipes = ["off", *(cell.strip() for cell in head.strip("|").split("|"))]
    assert len(recipes) == 7
    for line, model in zip(table, ("gpt", "resnet18"), strict=True):
        cells = [float(cell) for cell in line.strip("|").split("|")[1:]]
        assert cells == [round(1 / ratio[f"model/{model}/{recipe}"], 2) for recipe in recipes]
    text = " ".join(MODELS.split())
    torchao = round(ratio["model/gpt/peer/torchao-float8"], 2)
    assert f"takes {torchao} times as long as `te-current`" in text
    nodes = [
        round(1 / ratio[f"model/virtual-nodes-{model}/{keep}"], 2)
        for keep in ("one-pass", "recompute")
        for model in ("gpt-block", "resnet18")
    ]
    sentence = MODELS.partition("A step of 256 virtual nodes")[2].partition("\n\n")[0]
    assert [float(number) for number in re.findall(r"\d\.\d\d", sentence)] == nodes
