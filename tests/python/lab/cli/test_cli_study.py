# SPDX-License-Identifier: Apache-2.0
"""`cpd study`."""

import json
import re

import pytest

pytest.importorskip("torch")

from cpd.cli import main
from cpd_lab.papers.catalogue import STUDIES
from cpd_lab.train.images import data_folder


def told(capsys, *arguments):
    assert main(["study", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_list_has_every_study(capsys):
    lines = told(capsys, "list").splitlines()
    for name in STUDIES:
        assert any(line.split()[:1] == [name] for line in lines)


def test_the_list_of_full_sizes_says_what_they_are(capsys):
    out = " ".join(told(capsys, "list", "--size", "full").split())
    assert "as small: Cityscapes" in out


def test_run_then_report(capsys, tmp_path):
    out = told(capsys, "run", "aps-fig4", "aps-fig12", "--size", "smoke", "--out", tmp_path)
    assert "aps.F4: a factor of 8 rounds nothing, one of 10 does: yes" in out
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3
    out = told(
        capsys, "report", "--size", "smoke", "--out", tmp_path, "--store", tmp_path / "stored"
    )
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


IMAGES = [
    study.name
    for study in STUDIES.values()
    if any(
        of.get("model") in ("resnet18", "davidnet", "cifarnet")
        for of in (cell.options for cell in study.cells("smoke", 1))
    )
]
"""Studies that need the data set CIFAR-10."""


@pytest.mark.slow("trains a model of each study")
@pytest.mark.parametrize("data", ["at hand", "CIFAR-10"])
def test_smoke_measures_every_cell(capsys, tmp_path, data):
    if data == "CIFAR-10" and not data_folder().exists():
        pytest.skip("CIFAR-10 is not at hand ($CPD_DATA)")
    names = [name for name in STUDIES if (name in IMAGES) == (data == "CIFAR-10")]
    assert len(names) >= 5
    out = told(capsys, "run", *names, "--size", "smoke", "--out", tmp_path)
    cells = {cell.key for name in names for cell in STUDIES[name].cells("smoke", 1)}
    assert {path.stem for path in (tmp_path / "cells").glob("*.json")} == cells
    reported = told(capsys, "report", "--size", "smoke", "--out", tmp_path)
    for name in names:
        assert f"{name}: " in out
        count = len(STUDIES[name].cells("smoke", 1))
        assert f"{name}: {count} of {count} cell" in reported
