# SPDX-License-Identifier: Apache-2.0
"""`./dev gpu`, as far as it goes without a GPU: its stages, and its benchmarks on the CPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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
    """Stages that cannot run are skipped, with the reason."""
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


def gpu_layers() -> ModuleType:
    sys.path.append(str(_ROOT / "benchmarks"))
    return importlib.import_module("gpu_layers")


def test_an_fp8_layer_next_to_torchs_product_of_fp8() -> None:
    """On the CPU: the operands' bits are the same, and so nearly all results are."""
    torch = pytest.importorskip("torch")
    cpd = pytest.importorskip("cpd")
    layers = gpu_layers()
    x, w = layers.activations_and_weights("cpu", 160)
    for operand in (x, w):
        ours = cpd.cast(operand.float(), "e4m3fn tensor scale=fp32 arithmetic=te")
        values, inverse = layers.quantized(operand)
        assert torch.equal(values.float() * inverse, ours)
    try:
        theirs = layers.scaled_mm(x, w)
    except NotImplementedError as error:
        pytest.skip(f"torch._scaled_mm on this CPU: {error}")
    assert layers.share_that_differs(layers.fp8_layer(x, w), theirs) < 2e-3
    half = theirs.clone()
    half[: len(half) // 2] += 1
    assert layers.share_that_differs(half, theirs) == 0.5


def test_steps_under_autocast_stand_next_to_the_plain_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ["--device", "cpu", "--small", "--repeats", "1", "--only", "autocast/4096/"]
    done = run("benchmarks/gpu.py", *options, "--out", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["name"].rpartition("/")[2] for row in rows] == list(gpu_layers().STEPS)
    assert {row["against"] for row in rows} == {"gpu/step/autocast/4096/plain"}
    assert rows[0]["ratio"] == 1
