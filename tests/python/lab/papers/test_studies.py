# SPDX-License-Identifier: Apache-2.0
"""Tests studies: their cells (single experiments), the files with the cells' results, and the
reports of these results."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from cpd_lab.papers import run as papers_run
from cpd_lab.papers.catalogue import STUDIES
from cpd_lab.papers.kinds import KINDS, measure, sources_of
from cpd_lab.papers.run import is_stale, kept, run
from cpd_lab.papers.small import dot_product, scale_factor
from cpd_lab.papers.study import SIZES, Cell, Results, Spread

FACTOR = Cell("scale-factor", {"format": "fp32", "factor": 8.0, "values": [0.1]}, "factor 8")
DOT = Cell("dot-product", {"format": "e2m0", "a": [1.0], "b": [1.0]}, "dot")


# ---- cells and files -----------------------------------------------------------------------------


def test_a_key_is_that_of_kind_and_options():
    assert FACTOR.key == replace(FACTOR, label="another", minutes=9.0).key
    assert FACTOR.key != replace(FACTOR, options={**FACTOR.options, "factor": 4.0}).key
    assert FACTOR.key != replace(FACTOR, kind="dot-product").key


def test_a_second_run_measures_nothing(tmp_path, monkeypatch):
    first = run([FACTOR, DOT, FACTOR], tmp_path)
    assert len(first) == 2
    monkeypatch.setattr(papers_run, "measure", lambda cell: pytest.fail("measured again"))
    done = []
    assert run([FACTOR, DOT], tmp_path, done=done.append) == first
    assert done == first


def test_a_run_that_ends_early_loses_one_cell(tmp_path, monkeypatch):
    def stop_at_dot(cell):
        if cell.kind == "dot-product":
            raise KeyboardInterrupt
        return measure(cell)

    monkeypatch.setattr(papers_run, "measure", stop_at_dot)
    with pytest.raises(KeyboardInterrupt):
        run([FACTOR, DOT], tmp_path)
    assert [one.cell for one in kept([FACTOR, DOT], tmp_path, pytest.fail)] == [FACTOR]


@pytest.mark.parametrize("text", ["", "{}", '{"sha256": "0", "body": {}}', "[1, 2]"])
def test_a_broken_file_is_named_and_measured_again(tmp_path, text):
    (before,) = run([FACTOR], tmp_path)
    path = tmp_path / "cells" / f"{FACTOR.key}.json"
    path.write_text(text)
    told = []
    (after,) = run([FACTOR], tmp_path, tell=told.append)
    assert len(told) == 1
    assert str(path) in told[0]
    assert after.result == before.result
    assert json.loads(path.read_text())["body"]["key"] == FACTOR.key


def test_cells_of_other_sources_are_marked_and_renewed(tmp_path, monkeypatch):
    (one,) = run([FACTOR], tmp_path)
    assert not is_stale(one)
    monkeypatch.setattr(papers_run, "sources_of", lambda kind: "0123456789abcdef")
    assert is_stale(one)
    assert run([FACTOR], tmp_path) == [one]  # a stored result is reused by default
    measured = []
    monkeypatch.setattr(papers_run, "measure", lambda cell: measured.append(cell) or measure(cell))
    run([FACTOR], tmp_path, again=is_stale)
    assert measured == [FACTOR]


def test_sources_are_the_files_that_decide():
    assert sources_of("scale-factor") != sources_of("train")
    assert sources_of("train") == sources_of("masks")  # both use cpd_lab.train and one more module
    for kind in KINDS.values():
        assert callable(kind.function())


def test_a_full_disk_is_told_before(tmp_path, monkeypatch):
    class Usage:
        free = 1 << 10

    monkeypatch.setattr(papers_run.shutil, "disk_usage", lambda folder: Usage)
    monkeypatch.setattr(papers_run, "measure", lambda cell: pytest.fail("measured"))
    with pytest.raises(OSError, match="the disk has"):
        run([FACTOR], tmp_path)


# ---- what is measured without training -----------------------------------------------------------


def test_powers_of_two_round_nothing():
    values = [2.0**e * (1 + m / 4) for e in range(-3, 4) for m in range(4)]
    assert all(scale_factor("e5m2", 8.0, values)["same"])
    # The products of 10 with 1, 1.25, 1.5 and 1.75 are 10, 12.5, 15 and 17.5. Only 10 has at most
    # three significant bits.
    ten = scale_factor("e5m2", 10.0, values)
    assert ten["values"] == values
    assert ten["same"] == [True, False, False, False] * 7
    assert ten["scaled"][12:16] == [1.0, np.float32(1.2), np.float32(1.6), np.float32(1.6)]


def test_a_dot_product_by_hand():
    # The finite values of (2,0) are 0, 1 and 2. The sum 3 is a tie and rounds to 2, whose code is
    # even.
    found = dot_product("e2m0", [1.0] * 4, [1.0] * 4)
    assert found["exact"] == 4.0
    assert found["cast_at_the_end"] == float("inf")
    assert found["steps"] == [1.0, 2.0, 2.0, 2.0]
    assert found["each_step"] == 2.0


# ---- what results say ----------------------------------------------------------------------------


def test_spreads():
    assert Spread((1.0, 2.0)).text(1) == "1.5 (1.0 … 2.0)"
    assert Spread((1.0,)).text(2, 100) == "100.00"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_cells_are_distinct_and_bounded(study, size):
    cells = study.cells(size, 2)
    assert cells
    assert len({cell.key for cell in cells}) >= len({cell.label for cell in cells})
    for cell in cells:
        json.dumps(cell.options, allow_nan=False)
        if size == "small":
            assert cell.minutes <= 10
        if cell.kind in ("train", "masks"):
            from cpd_lab.papers.trained import chosen_options

            chosen_options({n: v for n, v in cell.options.items() if n != "pictures"})


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_study_shows_what_little_there_is(study):
    shown = study.show(Results([]))
    assert not shown.findings


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_study_says_what_full_is(study):
    """If a study has the same experiments at the sizes `small` and `full`, its description of the
    size `full` gives the reason."""
    small, full = ([cell.key for cell in study.cells(size, 3)] for size in ("small", "full"))
    assert (small == full) == study.full.startswith("as small: ")


def test_terngrads_full_size_has_the_papers_settings():
    """At the size `full`, trainings have the settings of the TernGrad paper's table 1 and figure 3:
    learning rates, batch sizes, steps and weight decay. The last layer is quantized, too."""
    by_label = {cell.label: cell.options for cell in STUDIES["terngrad-clip"].cells("full", 1)}
    for workers, total, steps in ((2, 128, 300_000), (16, 2048, 18_750)):
        options = by_label[f"TernGrad, {workers} workers"]
        assert options["lr"] == 0.0002
        assert options["batch"] * workers == total
        assert options["epochs"] * options["images"] == steps * total
        assert not options["last_layer_fp32"]
    by_label = {cell.label: cell.options for cell in STUDIES["terngrad-workers"].cells("full", 1)}
    for momentum, rate in ((", momentum", 0.01), ("", 0.1)):
        options = by_label[f"TernGrad, 64 workers{momentum}"]
        assert options["lr"] == rate
        assert options["weight_decay"] == 0.0005
        assert options["batch"] * 64 == 64
        assert options["epochs"] * 1438 // 64 == pytest.approx(10_000, rel=0.01)
        assert not options["last_layer_fp32"]


def test_the_hybrid_is_of_fp32_and_e4m3_with_the_last_layer_in_fp32():
    cells = STUDIES["aps-table6-7-8"].cells("small", 1)
    (hybrid,) = (cell.options for cell in cells if cell.label.startswith("hybrid"))
    assert hybrid["reduce"].startswith("e4m3 aps ")
    assert hybrid["last_layer_fp32"]
    assert hybrid["fp32_epochs"] / hybrid["epochs"] == pytest.approx(30 / 90, abs=0.05)
    of_table_6 = {c.label: c.options for c in cells if c.label.endswith("last layer fp32")}
    assert len(of_table_6) == 5
    assert all(options["last_layer_fp32"] for options in of_table_6.values())


@pytest.mark.parametrize(
    ("name", "titles", "papers"),
    [
        (
            "aps-table6-7-8",
            ["Table 6: ", "Table 7: ", "Table 8: "],
            [
                ["76.02", "75.98", "71.00", "75.93", "0.1", "76.09"],
                ["75.08", "75.98", "75.46", "75.93"],
                ["75.08", "74.91", "75.46", "74.95"],
            ],
        ),
        ("terngrad-workers", ["Figure 3a: .* momentum", "Figure 3b: .* vanilla"], [[], []]),
    ],
)
def test_tables_are_those_of_the_paper(name, titles, papers):
    """A study shows one table for each table of its paper that it repeats, with the paper's
    values."""
    tables = STUDIES[name].show(Results([])).tables
    assert len(tables) == len(titles)
    for table, title, values in zip(tables, titles, papers, strict=True):
        assert re.match(title, table.title)
        labels = [row[0] for row in table.rows]
        assert len(set(labels)) == len(labels)
        assert [row[2] for row in table.rows if row[2]] == values


def test_grubics_codecs_quantize_99_percent():
    """In all studies of Grubic's codecs, 99 % of the parameters are quantized, as in section 3.2.2
    of Grubic et al."""
    for name in ("grubic-accuracy", "grubic-buckets", "qsgd-cnn", "qsgd-lstm", "codec-digits"):
        for cell in STUDIES[name].cells("small", 1):
            if cell.options["wire"].startswith(("qsgd", "one_bit")):
                assert cell.options["quantized_share"] == 0.99, cell.label
