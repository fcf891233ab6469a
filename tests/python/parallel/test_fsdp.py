# SPDX-License-Identifier: Apache-2.0
"""Tests that FSDP2's reduce-scatter gives each rank its part of the virtual ranks' sum.

The bits must be equal.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import spawn
from fsdp_ranks import CASES

WORLD = 3


@pytest.fixture(scope="module")
def told() -> list[dict[str, str]]:
    """Returns the error text of each case (empty: none), by [rank][case]."""
    ranks = spawn.spawn_ranks("gloo", WORLD, "fsdp_ranks:run_all")
    return [rank.result for rank in ranks]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_over_gloo(told, case):
    for rank in range(WORLD):
        assert not told[rank][case], f"rank {rank}: {told[rank][case]}"
