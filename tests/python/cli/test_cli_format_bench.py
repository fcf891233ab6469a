# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd show` of formats: neighboring values, tables of standards, and pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.cli.format_bench import Neighbors, names_of, number
from cpd.cli.scaled import find_format

FORMATS = ["e4m3fn", "e5m2", "e4m3", "e2m1", "e3m2", "e5m2fnuz", "binary8p4se", "e4m3:nosub"]


@pytest.mark.parametrize("name", FORMATS)
def test_neighbors_are_the_values_beside(name: str) -> None:
    f = cpd.Format(name)
    values = f.values().astype(np.float64)
    between = (values[1:] + values[:-1]) / 2
    for x in [*values[1:-1].tolist(), *between.tolist()]:
        found = Neighbors.of(x, f)
        assert found.below == values[values < x].max()
        assert found.above == values[values > x].min()
        assert found.nearest == cpd.cast(np.array([x]), f)[0]
    beyond = Neighbors.of(values[-1] * 4, f)
    assert beyond.below == values[-1]
    assert beyond.above == math.inf or math.isnan(beyond.above)


def test_numbers_may_be_hexadecimal() -> None:
    assert number("0x1.8p-3") == 0.1875


def test_standards() -> None:
    ocp, p3109 = (names_of(one) for one in ("ocp", "p3109"))
    assert {"e4m3fn", "e5m2", "e2m1", "mxfp4"} <= set(ocp)
    assert len(p3109) == len(set(p3109)) > 100
    assert {"binary8p4se", "binary3p1uf"} <= set(p3109)
    assert all(cpd.Format(name).bits == int(name[6]) for name in p3109)


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "e4m3fn", "e2m1", "--neighbors", "0.3"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["e4m3fn", "0.28125", "0.3125", "0.3125", "0.03125", "0.0125", "2a"] in told
    for standard in ("ocp", "p3109"):
        assert main(["show", "--tables", standard]) == 0
        told = capsys.readouterr().out
        some = [one for one in map(find_format, names_of(standard)) if isinstance(one, cpd.Format)]
        assert all(str(f) in told for f in some)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "e2m1", "--neighbors", "9", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "name": "e2m1",
        "below": 6,
        "nearest": 6,
        "above": "nan",
        "ulp": "nan",
        "value": 9,
    }
    assert main(["show", "--tables", "ocp", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(names_of("ocp"))


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ["e4m3fn", "e3m2", "bf16", "e8m0", "e1m2"]
    for name in ("a.png", "a.svg", "b.svg"):
        assert main(["show", *names, "--picture", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    told = (tmp_path / "a.svg").read_text()
    assert all(f">{name}<" in told for name in names)
