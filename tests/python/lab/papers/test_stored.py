# SPDX-License-Identifier: Apache-2.0
"""Tests that the documentation's answers to the papers' questions agree with the stored results."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from cpd_lab.papers.catalogue import STUDIES

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "python/docs/papers.md").read_text(encoding="utf-8")


def figures(study, table, label):
    """Returns the numbers of a row of a stored table, without the first column."""
    stored = json.loads((ROOT / f"benchmarks/results/papers/{study}.json").read_text())
    (row,) = [row for row in stored["tables"][table]["rows"] if row[0] == label]
    return [re.match(r"[\d.]*", text)[0] for text in row[1:]]


def ends(study, table, label):
    """Returns the lowest and the highest value over seeds of the first figure in row `label` of a
    study's stored table."""
    stored = json.loads((ROOT / f"benchmarks/results/papers/{study}.json").read_text())
    (row,) = [row for row in stored["tables"][table]["rows"] if row[0] == label]
    low, high = re.search(r"\(([\d.]+) … ([\d.]+)\)", row[1]).groups()
    return float(low), float(high)


def answer(command):
    """Returns the rows of papers.md whose last cell is `command`, joined to one text."""
    return " ".join(line for line in PAGE.splitlines() if line.endswith(f"| `{command}` |"))


ANSWERS = {
    "aps-table4": [
        (0, 0, ["davidnet fp32", "davidnet e4m3 aps", "davidnet (3,0) aps", "davidnet (3,0)"]),
        (1, 0, ["resnet18 (3,0)", "resnet18 e4m3 aps", "resnet18 e4m3"]),
        (2, 0, ["resnet18 loss/N (3,0) aps", "resnet18 loss/N (3,0)"]),
    ],
    "aps-table5": [(0, 0, ["fp32", "e4m3", "e4m3 aps"])],
    "aps-table6-7-8": [
        (0, 0, ["fp32", "(4,3), last layer fp32", "(4,3) + APS, last layer fp32"]),
        (0, 0, ["hybrid: fp32, then (4,3) + APS, last layer fp32"]),
        (2, 0, ["(4,3) + APS, groups of 16"]),
        (2, 0, ["(5,2) + APS, groups of 16", "(5,2) + APS, groups of 256"]),
    ],
    "aps-fcn": [(0, 0, ["fp32", "e4m3", "e4m3 aps"])],
    "oland-weights": [(0, 1, ["fp32", "8 bits", "2 bits"])],
    "qsgd-lstm": [(0, 0, ["fp32", "4 bits", "2 bits"])],
}
"""For each study, the stored figures that papers.md quotes. A tuple has the index of a table, the
index of a column of figures, and the labels of rows."""


@pytest.mark.parametrize("study", ANSWERS)
def test_the_page_has_the_stored_figures(study):
    said = answer(f"cpd study run {study}")
    for table, column, labels in ANSWERS[study]:
        for label in labels:
            assert figures(study, table, label)[column] in said, label


def test_shares_and_ratios_of_the_page():
    share = figures("aps-table5", 0, "e4m3")[2]
    assert f"{float(share):.0f} % of its gradients" in answer("cpd study run aps-table5")
    sent = {label: float(figures("qsgd-lstm", 0, label)[1]) for label in ("fp32", "2 bits")}
    ratio = f"{sent['fp32'] / sent['2 bits']:.0f} times fewer bytes"
    assert ratio in answer("cpd study run qsgd-lstm")


def test_codecs_and_buckets():
    said = answer("cpd study run grubic-accuracy")
    for table, name in enumerate(("CNN", "LSTM")):
        labels = ["fp32", "8 bits", "4 bits", "2 bits", "1bitSGD", "1bitSGD* (64)", "1 bit QSGD"]
        for label in [*labels, "16 bits"] if name == "CNN" else labels:
            assert figures("grubic-accuracy", table, f"{name} {label}")[0] in said, (name, label)
        for bits in ("4 bits", "2 bits"):
            value = figures("grubic-accuracy", table, f"{name} {bits}, 2-norm")[0]
            assert re.search(rf"by 2-norms [^;]*{bits} {value}", said), (name, bits)
    said = answer("cpd study run grubic-buckets").replace(" % in buckets of ", " of ")
    for codec in ("4 bits", "2 bits", "1bitSGD*"):
        for bucket in {"4 bits": (512, 8192), "2 bits": (32, 8192)}.get(codec, (64, 512)):
            label = f"{codec}, buckets of {bucket}"
            assert f"{figures('grubic-buckets', 0, label)[0]} of {bucket}" in said, label


def test_terngrad():
    said = answer("cpd study run terngrad-clip")
    for workers in (2, 8, 16):
        a, b, c = (
            figures("terngrad-clip", 0, f"{name}, {workers} workers")[0]
            for name in ("TernGrad", "float", "TernGrad, no clip")
        )
        told = f"{workers} workers {a}, {b} and {c}"
        assert told in said.replace(" %, float ", ", ").replace(", without clipping ", " and "), (
            told
        )
    said = answer("cpd study run terngrad-workers")
    for workers in (2, 64):
        for name in ("float", "TernGrad"):
            label = f"{name}, {workers} workers, momentum"
            assert figures("terngrad-workers", 0, label)[0] in said, label
    for name in ("float", "TernGrad"):
        assert figures("terngrad-workers", 1, f"{name}, 8 workers")[0] in said, name
    low, high = ends("terngrad-workers", 1, "float, 8 workers")
    assert f"seeds that lie {high - low:.0f} points apart" in said


def test_rows_that_are_not_run():
    minutes, listed = 0.0, []
    for name, study in STUDIES.items():
        stored = json.loads((ROOT / f"benchmarks/results/papers/{name}.json").read_text())
        rows = [
            row[0] for table in stored["tables"] for row in table["rows"] if row[1] == "not run"
        ]
        cells = {cell.key: cell for cell in study.cells("small", 3)}
        missing = {key for key, cell in cells.items() if cell.label in rows}
        assert {cell["key"] for cell in stored["cells"]} == set(cells) - missing, name
        minutes += sum(cells[key].minutes for key in missing)
        listed += [f"'{row}' of `{name}`" for row in rows]
    page = " ".join(PAGE.split())
    said = "Rows of the tables in `benchmarks/results/papers` that no run has measured"
    assert f"{said}: {', '.join(listed) or 'none'}." in page
    assert not listed or f"About {minutes:.0f} minutes of two idle cores" in page


def test_how_many_claims_are_judged():
    files = (ROOT / "benchmarks/results/papers").glob("*.json")
    counts = Counter(
        one["holds"] for file in files for one in json.loads(file.read_text())["findings"]
    )
    said = f"{sum(counts.values())} so far, {counts['yes']} yes, {counts['no']} no, "
    assert f"{said}{counts['cannot tell']} cannot tell" in " ".join(PAGE.split())


def test_group_sizes():
    stored = json.loads((ROOT / "benchmarks/results/papers/aps-table9.json").read_text())
    rows = stored["tables"][0]["rows"]
    best = min(rows, key=lambda row: float(row[1].split()[0]))[0].split()[-1]
    assert f"| {best}, of 4 … 256" in answer("cpd study run aps-table9")


def test_a_step_on_four_hosts():
    said = answer("./dev run python benchmarks/training_step.py")
    for label, columns in (("fp32", (0, 3)), ("4 bits", (0, 2, 3))):
        row = figures("grubic-measured", 0, label)
        assert all(f"{float(row[column]):.0f}" in said for column in columns), label
    assert f"{figures('grubic-measured', 0, '4 bits')[5]} times faster" in said
    assert f"{figures('grubic-measured', 0, '1bitSGD')[5]} times" in said


def test_codecs_on_digits():
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    stored = json.loads((ROOT / "benchmarks/results/papers/codec-digits.json").read_text())
    for row in stored["tables"][0]["rows"]:
        assert f"| `{row[0]}` | {' | '.join(row[1:])} |" in page
    refuted = {one["claim"] for one in stored["findings"] if one["holds"] == "no"}
    assert refuted == {
        f"{network}: {codec} is within 0.2 points of fp32"
        for network in ("6 hidden layers", "LeNet")
        for codec in ("1bitSGD", "1bitSGD* (64)")
    }
