# SPDX-License-Identifier: Apache-2.0
"""Tests how operations allocate and release GPU memory.

Without a GPU, the CPU emulation of CUDA replaces it where that is possible.
"""

from __future__ import annotations

from typing import Any

import pytest

import cpd
from front_ends import GPU_IS_CPU, require_gpu_itself


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        (-1, ValueError, "device must be 0 or more, got -1"),
        ("0", TypeError, "device must be an int"),
    ],
)
def test_no_index(device: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        cpd.release_cuda_memory(device)


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch has no CUDA device here"):
        cpd.release_cuda_memory()


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_it_is_given_back() -> None:
    require_gpu_itself("count of free memory")
    import torch

    x = torch.randn(64, 64, device="cuda")
    cpd.gemm(x, x, "e4m3", blas=False)
    cpd.release_cuda_memory()
    free, _ = torch.cuda.mem_get_info()
    cpd.release_cuda_memory(0)
    assert torch.cuda.mem_get_info()[0] >= free


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_kernels_memory_is_torchs() -> None:
    """The kernels allocate their work memory through torch, which counts it."""
    import torch

    x = torch.randn(64, 64, device="cuda")
    out = torch.empty_like(x)
    cpd.cast(x, "mxfp8", out=out)
    if GPU_IS_CPU:
        import sitecustomize

        before = sitecustomize.library.cuda_on_cpu_allocated()
        cpd.cast(x, "mxfp8", out=out)
        assert sitecustomize.library.cuda_on_cpu_allocated() > before
    else:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        cpd.cast(x, "mxfp8", out=out)
        assert torch.cuda.max_memory_allocated() > before
    wanted = cpd.cast(x.cpu(), "mxfp8")
    assert torch.equal(out.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_no_memory() -> None:
    """An operation that needs too much GPU memory raises torch.OutOfMemoryError.

    test_out_of_memory.py tests every operator, with an allocator that fails on demand.
    """
    import torch

    huge = torch.empty(1, device="cuda").expand(1 << 40)
    for operation in (cpd.cast, cpd.encode):
        with pytest.raises(torch.OutOfMemoryError, match=r"bytes, a tensor of shape \(\d+,\)"):
            operation(huge, "e4m3")
    x = torch.randn(64, 64, device="cuda")
    assert torch.equal(cpd.cast(x, "mxfp8").cpu(), cpd.cast(x.cpu(), "mxfp8"))
