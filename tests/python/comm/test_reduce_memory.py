# SPDX-License-Identifier: Apache-2.0
"""Tests the peak memory of `cpd.simulate_all_reduce`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Many sums in this file are too long for their format: their last terms do not change the sum. CPD
# warns of such sums.
pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")

# ---- memory ------------------------------------------------------------------------------------

MEMORY_SCRIPT = """
import resource, sys
import numpy as np
import cpd

world, size, order, scheme, group, aps = sys.argv[1:]
size = int(size)

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def rank(r):
    sizes = size // 2, size - size // 2
    return lambda: [np.full(n, 0.1 * r, np.float32) for n in sizes]

options = {"order": order, "group_size": int(group) or None, "aps": bool(int(aps))}
spec = cpd.Reduce("e4m3", accumulator=f"e4m3 {scheme}", **options)
small = [lambda: [np.ones(1000, np.float32)]] * max(3, int(group))
cpd.simulate_all_reduce(small, spec)
before = peak()
cpd.simulate_all_reduce([rank(r) for r in range(int(world))], spec)
print(peak() - before)
"""


def grown(world, size, order, scheme, group, aps):
    """Returns the bytes by which an all-reduce increases the peak memory of a new process."""
    arguments = [str(a) for a in (world, size, order, scheme, group, int(aps))]
    run = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"MALLOC_ARENA_MAX": "2"},
    )
    return int(run.stdout)


@pytest.mark.few("", 2)
@pytest.mark.parametrize(
    ("order", "scheme"),
    [
        ("sequential", "sequential"),
        ("sequential", "kahan"),
        ("sequential", "chunked"),
        ("sequential", "pairwise"),
        ("ring", "sequential"),
        ("ring", "kahan"),
        ("tree", "sequential"),
    ],
)
@pytest.mark.parametrize("group", [0, 2])
def test_memory(order, scheme, group):
    """simulate_all_reduce increases the process's peak memory by at most four times the bytes of
    one rank's values plus 64 MiB."""
    size = 10_000_000
    assert grown(4, size, order, scheme, group, aps=True) <= 4 * 4 * size + (64 << 20)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_memory_of_256_ranks_of_25_million_values():
    size = 25_000_000
    assert grown(256, size, "sequential", "sequential", 16, aps=True) <= 16 * size + (64 << 20)
