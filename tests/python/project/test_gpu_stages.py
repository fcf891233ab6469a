# SPDX-License-Identifier: Apache-2.0
"""Tests `./dev gpu` without a GPU: its stages, and its benchmarks on the CPU."""

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
    """On the CPU, an FP8 layer casts operands exactly as torch's FP8 product does. More than 99.8 %
    of the layer's results equal the results of torch's product."""
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
    options = ["--device", "cpu", "--small", "--repeats", "1", "--only", "autocast/1024/"]
    done = run("benchmarks/gpu.py", *options, "--out", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["name"].rpartition("/")[2] for row in rows] == list(gpu_layers().STEPS)
    assert {row["against"] for row in rows} == {"gpu/step/autocast/1024/plain"}
    assert rows[0]["ratio"] == 1
