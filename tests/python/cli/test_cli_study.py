# SPDX-License-Identifier: Apache-2.0
"""`cpd study`."""

import json
import re

import pytest

pytest.importorskip("torch")

from cpd.cli import main
from cpd.papers.catalogue import STUDIES
from cpd.train.images import data_folder


def told(capsys, *arguments):
    assert main(["study", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_list_has_every_study(capsys):
    lines = told(capsys, "list").splitlines()
    for name in STUDIES:
        assert any(line.split()[:1] == [name] for line in lines)


def test_run_then_report(capsys, tmp_path):
    out = told(capsys, "run", "aps-fig4", "aps-fig12", "--smoke", "--out", tmp_path)
    assert "aps.F4: a factor that is a power of two rounds nothing" in out
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3
    out = told(capsys, "report", "--smoke", "--out", tmp_path, "--store", tmp_path / "stored")
    assert "aps-fig4: 2 of 2 cells" in out
    assert "aps-table4: 0 of" in out
    page = (tmp_path / "report.html").read_text()
    assert "Figure 4: a factor of 10 rounds" in page
    assert not re.search(r'(src|href)="(?!#)', page)  # needs nothing else
    stored = json.loads((tmp_path / "stored/aps-fig4.json").read_text())
    assert stored["findings"][0]["holds"] == "yes"
    assert stored["cpu"]
    assert stored["stale_cells"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "aps-table44"], "did you mean aps-table4?"),
        (["run", "aps-fig4", "--jobs", "0"], "jobs must be an int of at least 1, got 0"),
        (["report"], "no measured cells"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, arguments, message):
    assert main(["study", *arguments, "--out", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.slow("trains one model of each kind")
def test_smoke_runs_every_study(capsys, tmp_path):
    if not data_folder().exists():
        pytest.skip("CIFAR-10 is not at hand ($CPD_DATA)")
    out = told(capsys, "run", "all", "--smoke", "--out", tmp_path)
    for name in STUDIES:
        assert f"{name}: " in out
    assert "not run" not in out or "e4m3 aps" in out
    told(capsys, "report", "--smoke", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 6
