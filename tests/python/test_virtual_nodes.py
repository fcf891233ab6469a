# SPDX-License-Identifier: Apache-2.0
"""Virtual nodes: the weights, buffers, losses and counts of real ranks, bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
import spawn  # noqa: E402
from node_cases import (  # noqa: E402
    DDP_CASES,
    WORLD,
    batch_of,
    by_hand,
    by_nodes,
    classifier,
    loss_of,
    nodes_hash,
)

E4M3 = cpd.ReduceSpec("e4m3")
APS = cpd.ReduceSpec("e4m3", aps=True)


# ---- against ranks of DDP ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, str]]:
    found = spawn.spawn_ranks("gloo", WORLD, "node_cases:run_ranks")
    return [rank.result for rank in found]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", DDP_CASES)
def test_the_state_is_that_of_rank_0(ranks, one_thread, name):
    assert nodes_hash(DDP_CASES[name]) == ranks[0][name], ranks[0][name]


# ---- against the step written by hand ------------------------------------------------------------

ONE_PASS = {
    "sequential": E4M3,
    "groups": cpd.ReduceSpec("e4m3", group_size=3),
    "tree": cpd.ReduceSpec("e5m2", order="tree"),
    "kahan": cpd.ReduceSpec("e4m3", "e4m3 kahan", group_size=2),
    "pairwise": cpd.ReduceSpec("e4m3", "bf16 pairwise"),
    "chunked": cpd.ReduceSpec("e4m3", "e6m9 chunked chunk=2", loss_scale=4.0),
    "stochastic": cpd.ReduceSpec(
        "e4m3", "e4m3 sequential rounding=stochastic", rounding="stochastic", seed=3, group_size=2
    ),
    "mxfp8": cpd.ReduceSpec("mxfp8", rounding="stochastic", result="bf16"),
    "schedule": cpd.Schedule(E4M3, exempt=["*.bias"], first_steps=1),
}
SEVERAL = {
    "aps": cpd.ReduceSpec("e3m0", aps=True, rounding="stochastic"),
    "paper": cpd.ReduceSpec("e4m3", aps="paper", group_size=2),
    "ring": cpd.ReduceSpec("e4m3", "e4m3 kahan", order="ring"),
    "ring with groups": cpd.ReduceSpec("e4m3", order="ring", group_size=2),
    "ring with aps": cpd.ReduceSpec("e4m3", order="ring", aps=True),
    "schedule": cpd.Schedule(
        APS, exempt=["*.bias"], exempt_spec=cpd.ReduceSpec("bf16", order="ring"), first_steps=1
    ),
}


def expect_same(spec, world, keep=None, **options) -> None:
    wanted = by_hand(spec, world, **options)
    got = by_nodes(spec, world, keep=keep, **options)
    assert got.losses == wanted.losses
    assert got.reports == wanted.reports
    assert got.hash == wanted.hash


@pytest.mark.parametrize("name", ONE_PASS)
def test_one_pass(name):
    expect_same(ONE_PASS[name], 5)


@pytest.mark.parametrize("keep", ["memory", "disk", "recompute"])
@pytest.mark.parametrize("name", SEVERAL)
def test_what_is_kept_or_recomputed(name, keep):
    expect_same(SEVERAL[name], 5, keep)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_numbers_of_nodes(world):
    for spec in (E4M3, cpd.ReduceSpec("e4m3", order="ring", aps=True)):
        for keep in (None, "recompute"):
            expect_same(spec, world, keep, steps=2)


def test_options():
    expect_same(APS, 3, broadcast_buffers=False)
    expect_same(APS, 3, "recompute", broadcast_buffers=False)
    expect_same(APS, 3, average=False)


@pytest.mark.filterwarnings("ignore::cpd.StallWarning")
def test_256_nodes():
    expect_same(cpd.ReduceSpec("e4m3", "e4m3 kahan", group_size=16), 256, steps=1)
    expect_same(cpd.ReduceSpec("e3m0", aps=True), 256, "recompute", steps=1)
