# SPDX-License-Identifier: Apache-2.0
"""Tests the errors for conditions of the machine, which are not ValueErrors.

A missing library raises a RuntimeError that says what to install. Missing memory raises
MemoryError, or RuntimeError from torch's allocator.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import cpd
from cpd import _core
from patience import scaled

torch = pytest.importorskip("torch")

BLAS = pytest.mark.skipif(not _core.cpu_blas(), reason="CPD was built without a CPU BLAS")


@BLAS
@pytest.mark.parametrize("front_end", ["numpy", "torch"])
def test_blas_hidden(tmp_path, front_end):
    """A file that has the name of a BLAS library but is not a library raises an error.

    The test runs in another process, where the loader finds that file.
    """
    (tmp_path / "libopenblas.so.0").write_text("no library")
    script = f"""
import numpy as np, torch, cpd
a = np.ones((2, 2), np.float32) if {front_end!r} == "numpy" else torch.ones(2, 2)
try:
    cpd.gemm(a, a, "fp32", blas=True)
except Exception as error:
    print(type(error).__name__, error)
"""
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=True,
    )
    assert out.stdout.startswith("RuntimeError "), out.stdout
    assert "Debian: libopenblas0" in out.stdout


def test_nccl_that_is_not_there(monkeypatch):
    monkeypatch.setenv("CPD_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    with pytest.raises(RuntimeError, match="NCCL") as raised, cpd.comm.local(1) as group:
        group.run(lambda comm: cpd.comm.nccl(comm, device=0))
    assert not isinstance(raised.value, ValueError)


# ---- memory --------------------------------------------------------------------------------------


def repeated(front_end, *shape):
    """Returns a huge array with one element in memory, by strides of 0."""
    if front_end == "numpy":
        return np.broadcast_to(np.float32(1), shape)
    return torch.ones(1).expand(*shape)


def test_a_tensor_that_virtual_ranks_do_not_have():
    reduction = _core.VirtualReduce(cpd.Reduce("fp32")._held, 2, [8])
    with pytest.raises(ValueError, match="layer must be 0…0, got 3"):
        reduction.contribute(3, np.ones(8, np.float32))


def test_no_memory_for_virtual_ranks():
    """A reduction over virtual ranks raises MemoryError if it cannot allocate the sums."""
    spec = cpd.Reduce("fp32")
    reduction = _core.VirtualReduce(spec._held, 2, [8, 2**56])
    with pytest.raises(MemoryError):
        reduction.contribute(0, np.ones(8, np.float32))


@BLAS
@pytest.mark.parametrize("front_end", ["numpy", "torch"])
def test_no_memory_within_the_library(front_end):
    """A product by BLAS raises MemoryError if the library cannot copy an operand.

    A BLAS needs dense rows, so the library would copy four pebibytes here.
    """
    a, b = repeated(front_end, 2**10, 2**40), repeated(front_end, 2**40, 1)
    with pytest.raises(MemoryError):
        cpd.gemm(a, b, "fp32", blas=True)


@pytest.mark.parametrize("front_end", ["numpy", "torch"])
@pytest.mark.parametrize("operation", ["cast", "add", "encode", "sum", "gemm"])
def test_no_memory_for_results(front_end, operation):
    x = repeated(front_end, 2**25, 2**25)
    run = {
        "cast": lambda: cpd.cast(x, "e4m3"),
        "add": lambda: cpd.add(x, x, "e4m3"),
        "encode": lambda: cpd.encode(x, "e4m3"),
        "sum": lambda: cpd.sum(repeated(front_end, 2**50, 2), cpd.Accumulator("e4m3"), axis=1),
        "gemm": lambda: cpd.gemm(
            repeated(front_end, 2**25, 1), repeated(front_end, 1, 2**25), "fp32"
        ),
    }[operation]
    with pytest.raises(MemoryError):
        run()


@pytest.mark.parametrize("operation", ["sum", "gemm", "add"])
def test_sizes_whose_bytes_cannot_be_counted(operation):
    """Sizes in bytes that exceed 64 bits raise an error. (NumPy cannot make such arrays.)"""
    x = repeated("torch", 2**31, 2**31)
    run = {
        "sum": lambda: cpd.sum(repeated("torch", 2**60, 4, 1), cpd.Accumulator("fp32"), axis=0),
        "gemm": lambda: cpd.gemm(repeated("torch", 1, 2**61), repeated("torch", 2**61, 1), "fp32"),
        "add": lambda: cpd.add(x, x, "e4m3", out=x),
    }[operation]
    with pytest.raises(ValueError, match=r"2\^63 bytes|out must"):
        run()
