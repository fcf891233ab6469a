# SPDX-License-Identifier: Apache-2.0
"""Tests the judgments of claims, which follow from tables of results. Each judgment can come out as
yes or no, and stored judgments can be repeated."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cpd_lab.papers.catalogue import STUDIES, papers
from cpd_lab.papers.judgements import is_above, is_kept, is_trained
from cpd_lab.papers.page import findings_json, stored
from cpd_lab.papers.quotations import labels_of
from cpd_lab.papers.study import Measured, Range, Table

RESULTS = Path(__file__).parents[4] / "benchmarks/results/papers"
STORED = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(RESULTS.glob("*.json"))
    if path.stem in STUDIES
}


def span(low, high, mean=None, seeds=3):
    mean = (low + high) / 2 if mean is None else mean
    return Range.read(f"{mean} ({low} … {high})", seeds)


# ---- verdicts ------------------------------------------------------------------------------------


def test_ranges_are_read():
    assert Range.read("48.0 (46.1 … 49.2)", 3) == Range(46.1, 48.0, 49.2, 3, "48.0 (46.1 … 49.2)")
    assert Range.read("36.6 (7.5 … 94.7); 2 of 3 diverged", 3).high == 94.7
    one = Range.read("-0.06", 1)
    assert (one.low, one.mean, one.high) == (-0.06, -0.06, -0.06)
    with pytest.raises(ValueError, match="not a figure over seeds: 'not run'"):
        Range.read("not run", 3)


@pytest.mark.parametrize(
    ("a", "b", "by", "holds"),
    [
        (span(50, 70), span(10, 30), 0, True),
        (span(10, 30), span(50, 70), 0, False),
        (span(10, 60), span(50, 70), 0, None),
        (span(50, 50), span(50, 50), 0, None),  # equal is not above
        (span(50, 50, seeds=2), span(10, 10), 0, None),
        (span(50, 51), span(48, 49), 1, True),
        (span(50, 50.2), span(49, 49.9), 1, False),  # above, but by less than claimed
        (span(50, 52), span(50, 51), 1, None),
    ],
)
def test_above(a, b, by, holds):
    assert is_above(a, b, by)[0] is holds
    assert bool(is_above(a, b, by)[1]) == (holds is None)


@pytest.mark.parametrize(
    ("a", "b", "within", "holds"),
    [
        (span(50, 52), span(50, 52), 0, True),
        (span(51, 53), span(50, 52), 0, True),
        (span(49, 51), span(50, 52), 0, None),  # lower, though the ranges meet
        (span(49, 51), span(50, 52), 1, True),
        (span(40, 42), span(50, 52), 1, False),
        (span(49.8, 49.9), span(50, 50.1), 0.3, True),  # wholly below, but within the margin
        (span(49.8, 49.9), span(50, 50.1), 0.1, False),
        (span(50, 52, seeds=1), span(50, 52), 0, None),
    ],
)
def test_kept(a, b, within, holds):
    assert is_kept(a, b, within)[0] is holds
    assert bool(is_kept(a, b, within)[1]) == (holds is None)


@pytest.mark.parametrize(
    ("a", "holds"),
    [
        (span(19.1, 23.3), True),
        (span(10, 13.8), False),
        (span(10, 15), False),
        (span(14, 20), None),
        (span(30, 40, seeds=2), None),
    ],
)
def test_trained(a, holds):
    assert is_trained(a)[0] is holds


# ---- every study ---------------------------------------------------------------------------------

NEVER_YES = {
    "4 bits are 2.5 times faster than fp32",
    "2 bits are 2 times faster than fp32",
}
"""Claims about time. Measured bytes can contradict such a claim but cannot prove it."""


def random_cell(random_, scale, text):
    """Returns a random table cell in the notation of the cell `text`, such as "3 of 5"."""
    if re.fullmatch(r"\d+ of \d+", text):
        whole = text.split(" of ")[1]
        return f"{random_.choice([whole, 0])} of {whole}"
    if ", " in text or text == "inf":
        return random_.choice(["1, 2, 2, 2", "inf", "1, 2, 2, inf"])
    if re.fullmatch(r"-?\d+", text):
        return str(random_.choice([-17, -17, -16, -3]))
    if re.match(r"-?\d+\.\d+", text):
        mean, half = scale * random_.random(), scale * 0.02 * random_.random()
        return f"{mean:.3f} ({mean - half:.3f} … {mean + half:.3f})" if "…" in text else f"{mean}"
    return text


def randomized(study, seed):
    """Returns the study's stored tables with random values, and three seeds for every row."""
    random_ = random.Random(seed)
    tables = []
    for table in stored(STORED[study]).tables:
        scale = random_.choice([1, 30, 100])
        rows = [[row[0], *(random_cell(random_, scale, c) for c in row[1:])] for row in table.rows]
        if "seeds with least error" in table.head:
            best = random_.randrange(len(rows))
            rows = [[*row[:-1], "3" if n == best else "0"] for n, row in enumerate(rows)]
        tables.append(replace(table, rows=rows))
    labels = [row[0] for table in tables for row in table.rows]
    labels += STORED[study]["cells"] and [cell["label"] for cell in STORED[study]["cells"]]
    return Measured(tables, dict.fromkeys(labels, 3))


@pytest.mark.parametrize("study", STORED)
def test_each_judgement_can_say_yes_and_no(study):
    verdicts = {}
    for seed in range(400):
        for finding in STUDIES[study].judge(randomized(study, seed)):
            verdicts.setdefault((finding.row, finding.claim), set()).add(finding.holds)
    assert verdicts
    for (row, claim), said in verdicts.items():
        wanted = {False, None} if claim in NEVER_YES else {True, False}
        assert wanted <= said, f"{row}: {claim}"
        assert (True in said) == (claim not in NEVER_YES)


@pytest.mark.parametrize("study", STORED)
def test_a_stored_judgement_follows_from_the_stored_tables(study):
    summary = STORED[study]
    assert summary["findings"] == findings_json(STUDIES[study].judge(stored(summary)))


@pytest.mark.parametrize("study", STORED)
def test_stored_tables_are_of_stored_cells(study):
    """A row of a stored table reads "not run" only if the stored summary has no run for it. The
    summary has only runs that the study defines."""
    summary = STORED[study]
    cells = {cell.key: cell.label for cell in STUDIES[study].cells("small", 3)}
    assert {cell["key"]: cell["label"] for cell in summary["cells"]}.items() <= cells.items()
    counts = Counter(cell["label"] for cell in summary["cells"])
    for table in summary["tables"]:
        for row in table["rows"]:
            if row[0] in cells.values():
                assert (row[1] == "not run") == (counts[row[0]] == 0), row


def test_every_row_with_a_study_has_a_stored_result():
    stored_rows = set(STORED)
    missing = [
        row.name
        for paper in papers()
        for row in paper.rows
        if row.studies and not set(row.studies) & stored_rows
    ]
    assert missing == []


@pytest.mark.parametrize("study", STORED)
def test_findings_quote_the_paper(study):
    """A finding repeats decimal numbers of a paper. Each of these numbers is in quotations.toml,
    for the finding's row of papers.toml."""
    for finding in STORED[study]["findings"]:
        quotes = labels_of(finding["row"])
        assert quotes, finding["row"]
        for number in re.findall(r"\d+\.\d+", finding["paper"]):
            assert any(number in value for value in quotes.values()), finding


def test_tables_name_their_columns():
    table = Table("t", [" ", "a", "b"], [["x", "1.0", "2.0"], ["y", "not run", ""]])
    measured = Measured([table], {"x": 3})
    assert measured.text("x") == "1.0"
    assert measured.text("x", "b") == "2.0"
    assert measured.text("x", "c") is None
    assert measured.text("y") is None
    assert measured.range("x", "b").seeds == 3


# ---- claims by name ------------------------------------------------------------------------------


def holds(study, rows, seeds=3):
    """Judges a table whose entries are `rows`, by label. Returns the study's verdicts, by row of
    papers.toml and claim."""
    tables = [Table("t", [" ", "accuracy, %"], [[label, text] for label, text in rows.items()])]
    measured = Measured(tables, dict.fromkeys(rows, seeds))
    return {(one.row, one.claim): one.holds for one in STUDIES[study].judge(measured)}


HIGH, LOW = "50.0 (49.0 … 51.0)", "40.0 (39.0 … 41.0)"
LOSS = "1.425 (1.417 … 1.431)"
CLAIMS = {
    "QSGD in 4 bits recovers fp32": (
        *("grubic-accuracy", "qsgd.T1", "CNN in 4 bits recovers fp32's accuracy"),
        ["CNN fp32", "CNN 4 bits"],
        [(HIGH, LOW, False), (LOW, HIGH, True)],
    ),
    "groups of 16 have to improve": (
        *("aps-table6-7-8", "aps.T8", "(4,3) with APS: groups of 16 improve on groups of 32"),
        ["(4,3) + APS, groups of 16", "(4,3) + APS, groups of 32"],
        [(HIGH, LOW, True), (LOW, HIGH, False), (HIGH, HIGH, None)],
    ),
    "the last layer has to improve": (
        *("aps-table6-7-8", "aps.T7", "the last layer in fp32 improves (5,2) with APS"),
        ["(5,2) + APS, last layer fp32", "(5,2) + APS, groups of 16"],
        [(HIGH, LOW, True), (LOW, HIGH, False), (HIGH, HIGH, None)],
    ),
    "nothing trains without APS": (
        *("aps-table4", "aps.T4", "resnet18: (3,0) without APS does not train"),
        ["resnet18 (3,0)"],
        [("21.2 (19.1 … 23.3)", False), ("10.0 (10.0 … 10.0)", True)],
    ),
    "a higher loss is not reached": (
        *("qsgd-lstm", "qsgd.F3b", "an LSTM in 2 bits reaches fp32's loss"),
        ["fp32", "2 bits"],
        [(LOSS, "1.457 (1.444 … 1.466)", False), (LOSS, "1.420 (1.415 … 1.424)", True)],
    ),
    "convolutions in 2 bits are compared with fp32": (
        *("grubic-layers", "qsgd.layer", "convolutions in 2 bits lose against fp32"),
        ["fp32", "2 bits, convolutions", "2 bits, fully connected"],
        [(HIGH, LOW, LOW, True), (LOW, HIGH, LOW, False)],
    ),
    "buckets of 512 are compared with 1bitSGD by columns": (
        *("grubic-buckets", "grubic.bucket"),
        "1bitSGD* with buckets of 512 loses 1 point against 1bitSGD by columns",
        ["1bitSGD*, buckets of 512", "1bitSGD, by columns"],
        [(LOW, HIGH, True), (HIGH, LOW, False), ("49.5 (49.4 … 49.6)", "50.0", False)],
    ),
}
"""Claims to judge. An entry has the study, the row of papers.toml, the claim, and labels of rows in
the study's table. Tuples follow: a figure for each label, and the verdict that these figures must
give."""


@pytest.mark.parametrize(("study", "row", "claim", "labels", "cases"), CLAIMS.values(), ids=CLAIMS)
def test_a_verdict_follows_from_the_figures(study, row, claim, labels, cases):
    for *texts, wanted in cases:
        assert holds(study, dict(zip(labels, texts, strict=True)))[row, claim] is wanted, texts
