# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs: what can be told without one."""

from __future__ import annotations

from typing import Any

import pytest

import cpd
from front_ends import require_gpu_itself


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
