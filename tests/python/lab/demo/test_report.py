# SPDX-License-Identifier: Apache-2.0
"""Tests the demo on a small scale: its files, its HTML page, and that a command can repeat each
result in its tables."""

import json
import os
import random
import re
import resource
import shlex
import shutil
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from cpd.cli import build_parser, main
from cpd.study.store import digest
from cpd_lab.cli.demo import run_line, stall_lines
from cpd_lab.cli.train import train_options
from cpd_lab.demo.cells import CODECS, DemoOptions, cells
from cpd_lab.demo.figures import share_lost
from cpd_lab.demo.report import _find, render, write_report
from cpd_lab.demo.results import accuracy_range, best_of, load, measure
from cpd_lab.papers.run import kept
from cpd_lab.train import train

SMALL = DemoOptions(epochs=1, roundoff_epochs=1, roundoff_nodes=16, search_exponents=(4, 6, 120))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Runs the demo's experiments (cells) once. Returns the demo and the folder with the cells'
    results."""
    folder = tmp_path_factory.mktemp("demo")
    done = []
    demo = measure(SMALL, folder, done.append)
    assert len(done) == 1 + 8 + 3 + 2 + len(CODECS)
    return demo, folder


@pytest.fixture(scope="module")
def demo(measured):
    return measured[0]


@pytest.fixture
def folder(measured, tmp_path):
    demo, folder = measured
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    demo.write(tmp_path)
    write_report(demo, tmp_path)
    return tmp_path


def ignore(found):
    pass


def test_results_file(folder):
    results = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    rows = results["accuracy"]
    assert [(row["format"], row["aps"], row["loss_scale"] != 1) for row in rows] == [
        ("fp32", False, False),
        ("e4m3", False, False),
        ("e4m3", False, True),
        ("e4m3", True, False),
        ("e5m2", False, False),
        ("e3m0", False, False),
        ("e3m0", True, False),
        ("e5m2", True, False),
        ("e5m2", True, False),
    ]
    assert "--fp32-epochs" in rows[-1]["options"]
    for row in rows:
        assert {"format", "aps", "loss_scale", "accuracy", "options", "weights"} <= row.keys()
        assert re.fullmatch("[0-9a-f]{16}", row["weights"])
        assert 0 <= row["accuracy"] <= 1
    assert [row["group_size"] for row in results["roundoff"]] == [4, 8, 16]
    assert all(row["error"] > 0 for row in results["roundoff"])
    assert [row["loss_scale"] for row in results["loss_scale_search"]] == [16, 64, 2**120]
    assert results["loss_scale_search"][2]["state"] == "diverged at epoch 1"
    assert [row["depth"] for row in results["shallow"]] == [3, 3]


def test_rows_of_codecs(demo, folder):
    """results.json has an entry for each codec. The entry's `bytes` are the size of node 0's last
    gradients, encoded by the codec itself."""
    rows = json.loads((folder / "results.json").read_text())["codecs"]
    named = {row["wire"].split(" ")[0] for row in rows}
    assert named == {wire.split(" ")[0] for wire in CODECS}
    values = 6 * (64 * 64 + 64) + 64 * 10 + 10
    fp32, *_, aps = demo.table
    assert fp32.bits_a_value == 32
    assert aps.bits_a_value == 8
    html = (folder / "report.html").read_text()
    for run, row in zip(demo.codecs, rows, strict=True):
        assert row["bits_a_value"] == 8 * row["bytes"] / values == run.bits_a_value
        assert run.bits_a_value < (9 if "rows" in run.wire else 7)
        assert f"{run.bytes:,}" in html
        assert run.wire in html
        assert "cpd train " + run.options.replace("'", "&#39;") in html


def test_a_rows_options_repeat_it(folder):
    results = json.loads((folder / "results.json").read_text())
    rows = results["accuracy"][3], results["loss_scale_search"][2], results["shallow"][1]
    for row in (*rows, results["codecs"][2], results["codecs"][6]):
        parsed = build_parser().parse_args(["train", *shlex.split(row["options"])])
        again = train(train_options(parsed, parsed.nodes or 8))
        assert (again.weights, again.accuracy) == (row["weights"], row["accuracy"])


def test_roundoff_options_repeat_it(folder, tmp_path):
    results = json.loads((folder / "results.json").read_text())
    out = tmp_path / "again.json"
    assert main(["roundoff", *shlex.split(results["roundoff_options"]), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["roundoff"] == results["roundoff"]


def test_results_do_not_depend_on_jobs(demo, tmp_path):
    options = replace(SMALL, search_exponents=(4,), codecs=("one_bit",))
    other = measure(options, tmp_path, ignore, jobs=2)
    for name, count in (("table", 9), ("shallow", 2), ("search", 1), ("codecs", 1)):
        rows, others = ([run.row() for run in getattr(each, name)] for each in (demo, other))
        assert len(others) == count
        assert all(row in rows for row in others)
    assert demo.roundoff == other.roundoff


class Page(HTMLParser):
    """Collects the references of an HTML page, and checks that its elements are closed."""

    VOID = ("meta", "br", "link", "img", "hr", "input")

    def __init__(self):
        super().__init__()
        self.open, self.links, self.tags = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [v for name, v in attributes if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open
        assert self.open.pop() == tag


def test_page_stands_alone(folder):
    html = (folder / "report.html").read_text()
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"https?:|@import|<script|<link|<img", html)
    assert not re.search(r"url\((?!#)", html)
    assert page.tags.count("svg") == 4
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.links} <= set(ids)


def test_page_holds_the_figures(demo, folder):
    html = (folder / "report.html").read_text()
    for run in demo.table:
        assert f"{run.accuracy:.3f}" in html
        assert run.weights in html
        assert "cpd train " + run.options.replace("'", "&#39;") in html
    for row in demo.roundoff.series[0].rows:
        assert f"{row.error:.2%}".replace("%", " %") in html


def test_the_curves_as_a_file(folder):
    """The picture of the curves is a file by itself: valid XML with the names of the runs and of
    the axes."""
    root = ElementTree.parse(folder / "accuracy.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = {"".join(text.itertext()).strip() for text in root.iter(f"{root.tag[:-3]}text")}
    assert {"FP32", "(4,3)", "epoch", "guessing"} <= words


def test_report_command_makes_the_same_page(folder, capsys):
    page = folder / "report.html"
    before = page.read_text()
    page.unlink()
    assert main(["report", str(folder)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert page.read_text() == before


def test_report_on_a_full_disk(folder, capsys, monkeypatch):
    """If the disk is full, the old page stays and no partial file is left in the folder."""
    page = folder / "report.html"
    before, files = page.read_text(), sorted(os.listdir(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a module's cache would be cut short
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (90, limit[1]))
    try:
        assert main(["report", str(folder)]) in (1, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "File too large" in capsys.readouterr().err
    assert page.read_text() == before
    assert sorted(os.listdir(folder)) == files


def test_every_cell_is_measured_anew(measured, tmp_path, monkeypatch):
    """The demo runs every experiment (cell) again, even if its result is stored. A cell's key does
    not include the sources of the compiled library, so a stored result may be outdated."""
    shutil.copytree(measured[1], tmp_path, dirs_exist_ok=True)
    done = []
    monkeypatch.setattr("cpd_lab.papers.run.measure", lambda cell: done.append(cell) or stop())

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(SMALL, tmp_path, ignore)
    assert len(done) == 1


def some_cell(folder, label="e4m3"):
    (cell,) = (cell for cell in cells(SMALL) if cell.label == label)
    return folder / "cells" / f"{cell.key}.json"


def test_a_cell_that_is_missing_or_damaged(folder, capsys):
    path = some_cell(folder)
    text = path.read_text()
    for content, told in (
        (text.replace('"accuracy": 0.', '"accuracy": 1.'), "damaged (its SHA-256 is not that of"),
        ("no", "damaged (Expecting value"),
        (some_cell(folder, "fp32").read_text(), "damaged (it is another cell's)"),
        (None, "1 cells of `cpd demo` are missing"),
    ):
        path.unlink() if content is None else path.write_text(content)
        assert main(["report", str(folder)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert told in err
    (folder / "demo.json").unlink()
    assert main(["report", str(folder)]) == 2
    assert "there is no demo.json of `cpd demo`" in capsys.readouterr().err


def rewritten(path, change):
    """Applies `change` to the results in a file of `cpd demo`, and updates the file's SHA-256."""
    body = json.loads(path.read_text())["body"]
    change(body)
    path.write_text(json.dumps({"sha256": digest(body), "body": body}))


def test_results_of_another_version(folder, capsys):
    """A stored result whose fields differ from the present version's raises an error. No page is
    made."""
    rewritten(some_cell(folder), lambda body: body["result"].pop("curve"))
    assert main(["report", str(folder)]) == 2
    assert "no page can be made of it (TypeError: " in capsys.readouterr().err
    rewritten(folder / "demo.json", lambda body: body["options"].update(seeds=0))
    assert main(["report", str(folder)]) == 2
    assert "demo.json: damaged (seeds must be at least 1, got 0)" in capsys.readouterr().err


def mutated(data, generator):
    """Returns a copy of JSON data in which one random part is removed or replaced by junk."""
    junk = (None, -1, 10**400, 1e308, "x", "<b>", [], {}, True, [[]], {"a": {}})
    if isinstance(data, (list, dict)) and data and generator.random() < 0.8:
        copy = dict(data) if isinstance(data, dict) else list(data)
        key = generator.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
        if generator.random() < 0.2:
            del copy[key]
        else:
            copy[key] = mutated(copy[key], generator)
        return copy
    return generator.choice(junk)


def test_hostile_files_give_one_line(folder, capsys, monkeypatch):
    """Files with any contents give a page or one line of error, never a traceback."""
    generator = random.Random(5)
    paths = [folder / "demo.json", *(some_cell(folder, n) for n in ("fp32", "scale 2^4"))]
    texts = {path: path.read_text() for path in paths}
    monkeypatch.setattr("cpd_lab.picture.to_svg", lambda figure, *_: "")  # the slow part
    broken = [
        b"",
        b"\xff\xfe\x00",
        b"PK\x03\x04",
        b"[" * 200_000,
        b'{"body": ' * 10_000,
        b"null",
        b'"text"',
        b"{}",
        b'{"sha256": 3, "body": 3}',
    ]
    files = [(path, junk) for path in paths for junk in broken]
    for _ in range(24):
        path = generator.choice(paths)
        body = json.loads(texts[path])["body"]
        part = "result" if "result" in body else "options"
        changed = {**body, part: mutated(body[part], generator)}
        whole = {"sha256": digest(changed), "body": changed}
        files.append((path, json.dumps(whole).encode()))
    told = 0
    for path, junk in files:
        path.write_bytes(junk)
        status = main(["report", str(folder)])
        captured = capsys.readouterr()
        assert status in (0, 2)
        assert captured.err.count("\n") == (status == 2)
        told += status == 2
        path.write_text(texts[path])
    assert told > 30
    (folder / "demo.json").unlink()
    (folder / "demo.json").mkdir()
    assert main(["report", str(folder)]) == 2


def test_seeds_give_ranges(folder, demo, capsys):
    """With several seeds, the page has ranges. The test invents the results of the other seeds."""
    others = [
        replace(run, accuracy=run.accuracy + 0.125 * seed, seed=seed, state=state)
        for run in demo.table
        for seed, state in ((1, "finished"), (2, "diverged at epoch 1"))
    ]
    several = replace(demo, repeats=others, options=replace(SMALL, seeds=3))
    several.write(folder)
    (row, *_) = json.loads((folder / "results.json").read_text())["accuracy"]
    low = demo.table[0].accuracy
    assert row["accuracies"] == {"0": low, "1": low + 0.125, "2": low + 0.25}
    assert accuracy_range(several.of_all_seeds(demo.table[0])) == f"{low:.3f}–{low + 0.25:.3f}"
    html = render(several)
    assert f"{low:.3f}–{low + 0.25:.3f}" in html
    assert "ranges over 3 seeds, 0 and those behind it" in html
    assert "2 of 3 diverged" not in html
    assert "1 of 3 diverged" in html
    assert len(several.runs) == 8 + 3 + 2 + 18 + len(CODECS)
    assert stall_lines(several) == [
        f"Sums in (3,0) may have stalled, in 6 of {31 + len(CODECS)} runs: of 8 equal terms the "
        "first 2 count"
    ]


def test_every_seed_is_run(tmp_path):
    options = replace(
        SMALL, epochs=1, seed=7, seeds=2, search_exponents=(4, 6), codecs=("one_bit",)
    )
    done = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no warning, even if sums may stall
        measured = measure(options, tmp_path, done.append)
    assert len(done) == 1 + 8 + 2 + 2 + 9 + 1
    assert [run.seed for run in measured.table] == [7] * 9
    assert sorted(run.label for run in measured.repeats) == sorted(r.label for r in measured.table)
    for run in measured.repeats:
        assert "--seed 8" in run.options
    assert load(tmp_path) == measured
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        replace(options, seeds=0)


def test_a_line_for_each_training(measured):
    demo, folder = measured
    found = list(kept(cells(SMALL), folder, pytest.fail))
    study, *lines = (run_line(one) for one in found)
    assert study == ""
    assert lines[2].split()[-4:] == ["diverged", "at", "epoch", "1"]
    for line, run in zip(lines[3:6], (demo.table[0], demo.table[1], demo.table[3]), strict=True):
        assert line.startswith(f"  {run.label} ")
        assert f"accuracy {run.accuracy:.3f} " in line


def test_best_scale_prefers_accuracy_then_the_least(demo):
    a, b, c = demo.search
    good = [replace(a, accuracy=0.9), replace(b, accuracy=0.9), replace(c, accuracy=0.1)]
    assert best_of(good).loss_scale == a.loss_scale


def test_a_page_needs_its_rows(demo):
    with pytest.raises(ValueError, match=r"the demo has no row \(9,9\), APS on"):
        _find(demo, "(9,9)", aps=True, scaled=False)


def test_share_lost_counts_below_half_the_least_value():
    import cpd

    e4m3 = cpd.Format("e4m3")  # least value 2^-9
    assert share_lost({"-10": 1, "-11": 3}, e4m3) == 0.75
    assert share_lost({"-10": 1, "-11": 3}, e4m3, shift=1) == 0
