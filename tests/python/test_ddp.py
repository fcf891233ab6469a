# SPDX-License-Identifier: Apache-2.0
"""The DDP hook: gradients are the virtual ranks' sums, bit for bit, in whatever buckets."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import spawn  # noqa: E402
from ddp_ranks import CASES  # noqa: E402

WORLD = 3


@pytest.fixture(scope="module")
def told() -> list[dict[str, str]]:
    """[rank][case]: what went wrong."""
    ranks = spawn.spawn_ranks("gloo", WORLD, "ddp_ranks:run_all")
    return [rank.result for rank in ranks]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_over_gloo(told, case):
    for rank in range(WORLD):
        assert not told[rank][case], f"rank {rank}: {told[rank][case]}"


@pytest.mark.gpu
def test_on_the_gpu():
    if not torch.cuda.is_available():
        if os.environ.get("CPD_REQUIRE_GPU") == "1":
            pytest.fail("CPD_REQUIRE_GPU=1, but torch sees no CUDA device")
        pytest.skip("torch sees no CUDA device")
    for rank in spawn.spawn_ranks("gloo", 2, "ddp_ranks:run_all", True):
        assert rank.result == {"on_the_gpu": ""}
