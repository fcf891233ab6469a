# SPDX-License-Identifier: Apache-2.0
"""`cpd study figure`."""

import csv
import io
import json

import numpy as np
import pytest

from cpd.cli import main


def run(*arguments):
    return main(["study", "figure", *map(str, arguments)])


def as_json(capsys, *arguments):
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("figure", ["grubic-10", "grubic-11", "grubic-6", "grubic-12"])
def test_tables_of_figures(capsys, monkeypatch, figure):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(figure) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("fitted to the rows of 32 bits: alpha ")
    assert lines[-1].startswith("RMS of the errors: ")
    assert said.err == ""


def test_errors_of_a_figure(tmp_path, capsys):
    told = as_json(capsys, "grubic-10")
    assert len(told["cells"]) == 6 * 7 * 4
    cell = told["cells"][0]
    assert (cell["network"], cell["wire"], cell["ranks"]) == ("alexnet", "fp32", 2)
    assert cell["error"] == pytest.approx(cell["predicted"] / cell["published"] - 1)
    assert told["rms"] == pytest.approx(np.sqrt(np.mean([c["error"] ** 2 for c in told["cells"]])))
    shared = as_json(capsys, "grubic-10", "--shared")
    assert shared["cells"] != told["cells"]
    slow = as_json(capsys, "grubic-10", "--codec-gbps", "1")
    assert slow["cells"][5]["predicted"] < told["cells"][5]["predicted"]
    path = tmp_path / "cells.csv"
    assert run("terngrad-5", "--csv", path) == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert {row["published"] for row in rows} == {"3.04", "2.0"}
    capsys.readouterr()


def test_the_curve_of_larger_models(capsys):
    told = as_json(capsys, "grubic-16")
    speedups = [speedup for _, speedup in told["by_ratio"]]
    assert speedups == sorted(speedups)
    assert speedups[-1] < 4
    assert run("grubic-16") == 0
    assert "MB/GFLOP" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grubic10"], "did you mean grubic-10"),
        (["qsgd-2", "--codec-gbps", "0"], "above 0"),
        (["grubic-10", "--csv", "no/such/folder.csv"], "no/such"),
    ],
)
def test_mistakes(capsys, arguments, message):
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("cpd study: error: ")
    assert said.err.count("\n") == 1
    assert message in said.err
