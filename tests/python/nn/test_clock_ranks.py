# SPDX-License-Identifier: Apache-2.0
"""Which ranks exchange the magnitudes of delayed scaling, and that none waits for another."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import spawn
from clock_ranks import CASES


@pytest.fixture(scope="module")
def told():
    """[rank][case]: what went wrong."""
    return [rank.result for rank in spawn.spawn_ranks("gloo", 2, "clock_ranks:run_all")]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_over_ranks(told, case):
    for rank, result in enumerate(told):
        assert not result[case], f"rank {rank}: {result[case]}"
