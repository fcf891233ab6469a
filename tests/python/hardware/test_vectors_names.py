# SPDX-License-Identifier: Apache-2.0
"""Tests names of formats and matrix units on the command line of `cpd vectors`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpd.cli import main
from cpd.hardware import make_vectors


def _lines(path: Path) -> list[str]:
    return [one for one in path.read_text(encoding="ascii").splitlines() if one[:1] != "#"]


def test_a_unit_takes_the_operands_of_the_command(tmp_path: Path) -> None:
    text = "fp32 block_fma block=4 fraction_bits=6"
    short, whole = tmp_path / "short.tv", tmp_path / "whole.tv"
    for acc, path in ((text, short), (f"{text} a=e4m3fn b=e5m2", whole)):
        given = ["vectors", "block_fma", "e4m3fn,e5m2", "--accumulator", acc, "--length", "4"]
        assert main([*given, "--random", "300", "-o", str(path)]) == 0
    assert _lines(short) == _lines(whole)
    with pytest.raises(ValueError, match="needs a= and b="):
        make_vectors("block_fma", "e4m3fn", accumulator=text, random=1)


@pytest.mark.parametrize("name", ["e4m3", "E4M3"])
def test_a_bare_e4m3_is_noted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "mul.tv")
    assert main(["vectors", "mul", name, "--random", "10", "-o", path]) == 0
    assert "OCP's format, with a max of 448, is e4m3fn" in capsys.readouterr().err
    assert main(["vectors", "mul", "e4m3fn", "--random", "10", "-o", path]) == 0
    assert "note" not in capsys.readouterr().err


def test_the_help_says_the_default_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["vectors", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "fma e4m3fn,e4m3fn,fp32: e4m3fn" in shown
    made = make_vectors("fma", ["e4m3fn", "e4m3fn", "fp32"], random=5)
    assert str(made.rule.result) == "e4m3fn"
