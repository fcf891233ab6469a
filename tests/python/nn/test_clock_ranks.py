# SPDX-License-Identifier: Apache-2.0
"""Tests which ranks exchange the largest magnitudes for delayed scaling, and that no rank waits for
a rank that does not exchange."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import spawn
from clock_ranks import CASES


@pytest.fixture(scope="module")
def told():
    """Runs all cases of clock_ranks.py on two ranks. Returns the errors of each case, by rank."""
    return [rank.result for rank in spawn.spawn_ranks("gloo", 2, "clock_ranks:run_all")]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_over_ranks(told, case):
    for rank, result in enumerate(told):
        assert not result[case], f"rank {rank}: {result[case]}"
