# SPDX-License-Identifier: Apache-2.0
"""`./dev gpu`, as far as it goes without a GPU: its stages, and its benchmarks on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=_ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_unknown_stage() -> None:
    done = run("tests/testing/gpu.py", "run", "memchek")
    assert done.returncode == 1
    assert "must be one of cpp, python, memcheck, racecheck, bench, got memchek" in done.stderr


def test_no_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("tests/testing/gpu.py", "run", "cpp")
    assert done.returncode == 1
    assert "torch sees no CUDA device" in done.stderr


def test_stages_without_a_gpu(tmp_path: Path) -> None:
    """What cannot run is skipped, with the reason."""
    done = run("tests/testing/gpu.py", "run", "cpp", CPD_GPU_TRIAL="1", OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["stages"]["cpp"]["result"] in (
        "passed",
        "skipped: no test program was built",
    )


def test_benchmarks_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ["--device", "cpu", "--small", "--repeats", "1", "--only", "gpu/gemm"]
    done = run("benchmarks/gpu.py", *options, "--out", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 10
    assert all(row["ratio"] > 0 for row in rows)
