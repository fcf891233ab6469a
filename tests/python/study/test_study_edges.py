# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of studies: equally good candidates, negative values as largest magnitudes, and
invalid values in files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import cpd
from cpd.study import compression
from cpd.study.machines import Machine
from cpd.study.networks import Network
from cpd.study.reduce import Contributions
from cpd.study.series import check_group_sizes
from cpd.study.step_rows import step_rows


def test_measured_costs_are_the_ranks():
    """The predicted cost of each rank equals the traffic that the rank reports, by exchange owner.

    Rank 0 owns 2 of 5 values; the other three ranks own 1 value each. Rank 0 receives 3 · 2 values
    and sends 3. Then it sends its 2 sums to 3 ranks and receives 3 sums. Another rank receives 3 ·
    1 values and sends 4. Then it sends its sum to 3 ranks and receives 4 sums. Values are in e4m3,
    sums in fp32 (4 bytes).
    """
    per_rank = [[np.ones(5, np.float32)] for _ in range(4)]
    spec = cpd.Reduce("e4m3", result="fp32")
    costs = [cpd.study.cost(spec, 4, [5], rank, ranks=per_rank) for rank in range(4)]
    with cpd.comm.local(4) as group:
        ranks = group.run(lambda c: c.all_reduce(per_rank[0], spec, report=True)[1].traffic)
    counts = ("steps", "bytes_sent", "bytes_received")
    for cost, traffic in zip(costs, ranks, strict=True):
        assert [getattr(cost, n) for n in counts] == [getattr(traffic, n) for n in counts]
    assert [one.bytes_received for one in ranks] != [one.bytes_sent for one in ranks]


def test_the_largest_magnitude_may_be_negative():
    x = np.float32([-8.0, 1.0])
    assert Contributions([[x], [-x / 2]]).largest == [8.0]
    assert Contributions([[np.zeros(0, np.float32)]]).largest == [0.0]


@pytest.mark.parametrize("size", [0, 9, -1])
def test_group_sizes_are_of_the_nodes(size):
    check_group_sizes([1, 8], 8)
    with pytest.raises(ValueError, match=f"group sizes must be 1…8 .* got {size}"):
        check_group_sizes([1, size], 8)


def test_ties_by_error_and_of_the_compromise_are_told_apart():
    from cpd.study.series import Advice

    one, other = SimpleNamespace(group_size=4, exchange="ring"), SimpleNamespace(group_size=8)
    other.exchange = "hierarchical"
    best = SimpleNamespace(
        by_error=4, by_time=8, compromise=8, exact_tie=[one], balanced_tie=[other, one],
        most_exact=one, fastest=other, balanced=other, owner_seconds=1.0, draws=20,
    )  # fmt: skip
    link = Machine(alpha=5e-6, beta=1.25e9)
    made = Advice.json(SimpleNamespace(best=best, machine=link))
    assert (made["by_error_tie"], made["compromise_tie"]) == ([4], [8, 4])
    assert (made["by_error_exchange"], made["compromise_exchange"]) == ("ring", "hierarchical")


def test_figures_of_a_codec_by_hand(monkeypatch):
    """The errors and variances that `compression.measured` returns for a codec equal NumPy's."""
    x = np.float32([[0.3, -0.7, 0.2], [1.0, 0.45, -0.11]])
    wire, seeds = "qsgd bits=4 bucket=3", range(5, 9)
    figures, data = compression.measured(wire, seeds, x)
    decoded = np.array([cpd.Codec(wire).encode(x, seed=seed).values for seed in seeds], np.float64)
    wide = x.astype(np.float64)
    assert data == cpd.Codec(wire).encode(x, seed=5).data
    assert figures.squares == pytest.approx((wide**2).sum())
    assert figures.errors == pytest.approx(((decoded[0] - wide) ** 2).sum())
    assert figures.variances == pytest.approx(decoded.var(axis=0, ddof=1).sum())
    assert figures.variances > 0
    assert compression.measured("int8_rows", seeds, x)[0].variances is None
    told = compression.Figures(encode=1.0, decode=2.0).json()
    assert (told["encode_seconds"], told["decode_seconds"]) == (1.0, 2.0)


def test_bits_are_for_codecs_of_variable_sizes_alone():
    net, on = Network(shapes=[(1000,)]), Machine("alpha=1e-6 beta=1e9")
    given = {"compute": 0.1, "codec_gbps": None}
    rows = {
        bits: step_rows(net, on, [2], ["fp32", "int8_rows", "top_k 0.01 fp32"], bits=bits, **given)
        for bits in (None, 2.0)
    }
    times = {bits: [row.step.apart for row in found] for bits, found in rows.items()}
    assert times[None][:2] == times[2.0][:2]
    assert times[None][2] != times[2.0][2]
