# SPDX-License-Identifier: Apache-2.0
"""Runs the examples that simulate a module: one that leads from an accumulator to a simulation, one
with cocotb, and one with DPI-C."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from rtl_tools import call, needs

FOLDER = Path(__file__).parents[3] / "examples"


@needs("iverilog", "make")
def test_from_an_accumulator_to_a_run() -> None:
    options = ["--simulator", "icarus", "--lines", 40]
    done = call(sys.executable, FOLDER / "22_verilator.py", *options)
    assert "p_shift" in done.stdout
    assert "PASS block_fma: 40 vectors" in done.stdout
    assert done.returncode == 0
    done = call(sys.executable, FOLDER / "22_verilator.py", *options, "--bug", "MUT_CUT_DOWN")
    assert "FAIL block_fma: " in done.stdout
    assert done.returncode == 1


COCOTB = pytest.mark.skipif(
    importlib.util.find_spec("cocotb") is None, reason="not installed: cocotb"
)


@COCOTB
@needs("iverilog")
def test_cocotb() -> None:
    done = call(sys.executable, FOLDER / "23_cocotb.py")
    expected = "PASS: mul_elastic in icarus gives the lines' results\n"
    assert done.stdout.endswith(expected), done.stdout + done.stderr
    assert done.returncode == 0


@COCOTB
@needs("iverilog")
@pytest.mark.few("", 9)
@pytest.mark.parametrize(
    ("bug", "said"),
    [
        ("LINE_LOST", r"line 387: 3C \* B8: \(190, 1\), expected \(188, 0\)"),
        ("UNSTABLE", "a result changes before it is taken"),
        ("VALID_STUCK", r"line \d+: "),
        ("READY_STUCK", r"line \d+: "),
    ],
)
def test_cocotb_finds_a_bug(bug: str, said: str) -> None:
    done = call(sys.executable, FOLDER / "23_cocotb.py", "--bug", f"BUG_{bug}")
    assert re.search(f"AssertionError: {said}", done.stdout), done.stdout
    assert done.stdout.endswith("FAIL\n")
    assert done.returncode == 1


@needs("verilator", "make", "g++")
def test_dpi(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    done = call(FOLDER / "24_dpi" / "run.sh")
    assert "PASS: 100000 products and 1000 blocks equal CPD's" in done.stdout, done.stderr
    assert done.returncode == 0


def test_without_a_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("bash", "dirname", "readlink"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, said in (("22_verilator", "skipped: no make"), ("23_cocotb", "skipped: ")):
        done = call(sys.executable, FOLDER / f"{name}.py")
        assert done.stdout.startswith(said)
        assert done.returncode == 0
    done = call(FOLDER / "24_dpi" / "run.sh", tmp_path)
    assert (done.returncode, done.stdout) == (0, "skipped: no verilator on this machine\n")
