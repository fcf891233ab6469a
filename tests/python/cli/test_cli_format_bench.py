# SPDX-License-Identifier: Apache-2.0
"""`cpd format` as a workbench: neighbours, one operation, tables of standards, pictures."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.cli.format_bench import Neighbours, Operation, names_of, number
from cpd.cli.scaled import find_format

FORMATS = ["e4m3fn", "e5m2", "e4m3", "e2m1", "e3m2", "e5m2fnuz", "binary8p4se", "e4m3:nosub"]


@pytest.mark.parametrize("name", FORMATS)
def test_neighbours_are_the_values_beside(name: str) -> None:
    f = cpd.Format(name)
    values = f.values().astype(np.float64)
    between = (values[1:] + values[:-1]) / 2
    for x in [*values[1:-1].tolist(), *between.tolist()]:
        found = Neighbours.of(x, f)
        assert found.below == values[values < x].max()
        assert found.above == values[values > x].min()
        assert found.nearest == cpd.cast(np.array([x]), f)[0]
    beyond = Neighbours.of(values[-1] * 4, f)
    assert beyond.below == values[-1]
    assert beyond.above == math.inf or math.isnan(beyond.above)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ["7/3", "0.1 + 0.2", "1 - 0x1.8p-3", "3*-5", "-2 / 1.5"])
def test_operations_round_once(name: str, text: str) -> None:
    f = cpd.Format(name)
    operation = Operation.parse(text)
    held, result = operation.result(f, "nearest_even")
    exact = operation.exactly(held)
    assert isinstance(exact, Fraction)
    values = [Fraction(x) for x in f.values().astype(np.float64).tolist()]
    if abs(exact) <= max(values) and min(values) <= exact:
        assert abs(Fraction(result) - exact) == min(abs(value - exact) for value in values)


def test_a_root() -> None:
    held, result = Operation.parse("sqrt(2)").result(cpd.Format("fp16"), "up")
    assert (held, result) == ([2.0], 1.4150390625)
    assert Operation.parse("sqrt(-1)").exactly([-1.0]) is None


@pytest.mark.parametrize("text", ["", "7", "7//3", "__import__('os')", "1+2+3", "sqrt(x)", "1e/2"])
def test_what_is_no_operation(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "e4m3", f"--calc={text}"]) == 2
    assert "is no operation on one or two numbers" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "0x", "1e", "--1"])
def test_what_is_no_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "e4m3", f"--neighbours={text}"]) == 2
    assert "is no number" in capsys.readouterr().err
    assert number("0x1.8p-3") == 0.1875


def test_standards() -> None:
    ocp, p3109 = (names_of(one) for one in ("ocp", "p3109"))
    assert {"e4m3fn", "e5m2", "e2m1", "mxfp4"} <= set(ocp)
    assert len(p3109) == len(set(p3109)) > 100
    assert {"binary8p4se", "binary3p1uf"} <= set(p3109)
    assert all(cpd.Format(name).bits == int(name[6]) for name in p3109)


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "e4m3fn", "e2m1", "--neighbours", "0.3"]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["e4m3fn", "0.28125", "0.3125", "0.3125", "0.03125", "0.0125", "2a"] in told
    assert main(["format", "e4m3fn", "--calc", "7/3"]) == 0
    line = capsys.readouterr().out.splitlines()[3].split()
    assert line == ["e4m3fn", "7", "/", "3", "7/3", "=", "2.333333", "2.25", "-0.333", "41"]
    for standard in ("ocp", "p3109"):
        assert main(["format", "--tables", standard]) == 0
        told = capsys.readouterr().out
        some = [one for one in map(find_format, names_of(standard)) if isinstance(one, cpd.Format)]
        assert all(str(f) in told for f in some)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "e2m1", "--neighbours", "9", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "name": "e2m1",
        "below": 6,
        "nearest": 6,
        "above": "nan",
        "ulp": "nan",
        "value": 9,
    }
    assert main(["format", "e5m2", "--calc", "1/0", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["exact"], row["result"]) == (None, "inf")
    assert main(["format", "--tables", "ocp", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(names_of("ocp"))


def test_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    names = ["e4m3fn", "e3m2", "bf16", "e8m0", "e1m2"]
    for name in ("a.png", "a.svg", "b.svg"):
        assert main(["format", *names, "--picture", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    told = (tmp_path / "a.svg").read_text()
    assert all(f">{name}<" in told for name in names)
    capsys.readouterr()
    assert main(["format", "e4m3", "--picture", str(tmp_path / "a.gif")]) == 2
    assert "a plot must end in .png or .svg" in capsys.readouterr().err
    assert main(["format", "mxfp8", "--picture", str(tmp_path / "a.png")]) == 2
    assert "--picture takes formats without scales, got mxfp8" in capsys.readouterr().err


def test_what_does_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "--compare", "e4m3", "e5m2", "--tables", "ocp"]) == 2
    assert "--compare takes two formats and no table" in capsys.readouterr().err
    assert main(["format", "e4m3", "--calc", "1/3", "--rounding", "odd"]) == 2
