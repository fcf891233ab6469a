# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of sums over ranks: limits that code may miss by one, and arguments that code
may ignore."""

from __future__ import annotations

import socket
import threading
import warnings
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import cpd
from cpd import _core
from cpd.comm import Communicator, Traffic
from cpd.comm.costs import cost_of_step
from cpd.comm.schedule import averaging, divided, specs_in_use
from cpd.study.costs import cost

FP32, E4M3 = cpd.Reduce("fp32"), cpd.Reduce("e4m3")
ONES = [np.ones(1000, np.float32)]


def test_a_communicator_counts_all_its_calls():
    """A communicator adds up the traffic of all its calls. Each of two ranks sends 500 of its 1000
    four-byte values, then 500 sums: 4000 bytes a call."""

    def calls(comm):
        for _ in range(3):
            comm.all_reduce(ONES, FP32)
        return comm.traffic

    with cpd.comm.local(2) as group:
        for traffic in group.run(calls):
            assert traffic.bytes_sent == traffic.bytes_received == 3 * 4000


def test_traffic_is_added_number_by_number():
    bound = Traffic(1, 2, 3, 4, 5, 0.5, exact=False)
    other = Traffic(10, 20, 30, 40, 50, 0.25)
    assert bound + other == Traffic(11, 22, 33, 44, 55, 0.75, exact=False) == other + bound
    assert (other + other).exact
    assert not (bound + bound).exact


def test_sent_and_received_are_told_apart():
    """Reports distinguish bytes sent from bytes received. The root of a reduce over three ranks
    receives the slices of both other ranks and sends no result."""
    with cpd.comm.local(3) as group:
        reports = group.run(lambda comm: comm.reduce(ONES, FP32, root=1, report=True)[1].traffic)
    root = reports[1]
    assert root.bytes_received > root.bytes_sent
    assert sum(one.bytes_sent for one in reports) == sum(one.bytes_received for one in reports)


def test_gathered_layers_are_cast_by_the_seed():
    """all_gather rounds each value stochastically to one of its two neighbors. The random bits
    depend on the communicator's seed."""
    x = np.linspace(-3, 3, 999, dtype=np.float32)

    def gathered(comm):
        found = []
        for seed in (1, 1, 2):
            comm.seed = seed
            found.append(comm.all_gather([x], "e4m3 stochastic", step=0))
        return found

    with cpd.comm.local(2) as group:
        for one, again, other in group.run(gathered):
            for rank in range(2):
                assert np.array_equal(one[rank][0], again[rank][0])
                assert 100 < np.count_nonzero(one[rank][0] != other[rank][0]) < 900
                for rounding, bound in (("down", np.greater_equal), ("up", np.less_equal)):
                    assert bound(
                        one[rank][0], cpd.cast(x, cpd.Cast("e4m3", rounding=rounding))
                    ).all()


def test_a_gather_counts_as_a_step():
    x = np.linspace(-3, 3, 999, dtype=np.float32)

    def calls(comm):
        found = [comm.all_gather([x], "e4m3 stochastic") for _ in range(2)]
        with pytest.raises(ValueError, match="is a scaled format"):
            comm.all_gather([x], "mxfp8")  # this call raises, so it does not count as a call
        found.append(comm.all_gather([x], "e4m3 stochastic", step=9))
        assert comm.step == 3
        return found

    with cpd.comm.local(2, seed=4) as group:
        for gathered in group.run(calls):
            for step, ranks in zip((0, 1, 9), gathered, strict=True):
                for rank, (tensor,) in enumerate(ranks):
                    stream = 1 << 60 | step << 36 | rank
                    wanted = cpd.cast(x, "e4m3 stochastic", seed=4, stream=stream)
                    assert np.array_equal(tensor, wanted)


@pytest.mark.parametrize("step", [-1, 2.0, 1 << 24])
def test_a_gather_refuses_other_steps(step):
    with cpd.comm.local(1) as group, pytest.raises((ValueError, TypeError), match="step"):
        group.ranks[0].all_gather([np.ones(3, np.float32)], step=step)


def test_a_value_alone_is_no_short_row():
    """A call warns if a codec stores a scale for each row and the rows have few values. A layer
    with a single value gives no such warning, because its row cannot be longer."""
    layers = [np.ones((1, 1), np.float32)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", cpd.PrecisionWarning)
        cpd.simulate_all_reduce([layers] * 2, cpd.Reduce("int8_rows"))


def test_a_cost_of_several_layers_takes_each_ones_largest():
    """`cost` predicts a layer's bytes from the largest magnitude of this layer. e3m0 cannot encode
    NaN, so a layer whose sum may overflow is sent in binary32."""
    spec = cpd.Reduce("e3m0")
    parts = [cost(spec, 2, [1000], largest=value) for value in (1.0, 1e30)]
    assert parts[0].bytes_sent < parts[1].bytes_sent
    assert cost(spec, 2, [1000], largest=[1e30]) == parts[1]
    both = cost(spec, 2, [1000, 1000], largest=[1.0, 1e30])
    assert both == cost(spec, 2, [1000, 1000], largest=[1e30, 1.0])
    assert both.bytes_sent > cost(spec, 2, [1000, 1000], largest=1.0).bytes_sent


def test_a_steps_cost_is_exact_where_all_parts_are():
    inexact = cpd.Reduce("top_k 0.01 fp32")
    layers = {"a.weight": (100, 100), "a.bias": (100,)}
    assert not cost_of_step(cpd.Schedule(inexact), 4, layers, 0).exact
    assert not cost_of_step(cpd.Schedule(inexact, exempt=["*.bias"]), 4, layers, 0).exact
    assert cost_of_step(cpd.Schedule(E4M3, exempt=["*.bias"]), 4, layers, 0).exact


def test_a_layers_first_owner_follows_from_its_number():
    """The rank that sums a layer's first slice depends on the layer's number in the model, not on
    its spec. Rank 0 of three sums the value of `a` and sends the sum to two ranks, one byte each.
    Rank 1 sums the value of `b`, so rank 0 sends its value of `b`: one byte, or four in fp32."""
    layers = {"a": (1,), "b": (1,)}
    together, apart = (
        cost_of_step(cpd.Schedule(E4M3, exempt=e), 3, layers, 0) for e in ([], ["b"])
    )
    assert (together.bytes_sent, together.bytes_received) == (2 + 1, 2 + 1)
    assert (apart.bytes_sent, apart.bytes_received) == (2 + 4, 2 + 4)


def test_specs_in_use():
    first = cpd.Reduce("e5m2")
    assert specs_in_use(cpd.Schedule(E4M3)) == [E4M3]
    assert specs_in_use(cpd.Schedule(E4M3, exempt=["a"], exempt_spec=first)) == [E4M3, first]
    assert specs_in_use(cpd.Schedule(E4M3, first_steps=1, first_spec=first)) == [E4M3, first]


def test_averaging_averages_all_specs():
    schedule = cpd.Schedule(E4M3, exempt=["a"], first_steps=1)
    made = averaging(schedule, "before")
    for name in ("spec", "exempt_spec", "first_spec"):
        assert not getattr(schedule, name).average
        assert (getattr(made, name).average, getattr(made, name).divide) == (True, "before")
    assert divided(schedule, False, None) is schedule
    with pytest.raises(ValueError, match="divide='before' needs average=True"):
        divided(schedule, False, "before")


def test_ranks_of_other_hosts_are_not_counted():
    dist = pytest.importorskip("torch.distributed")
    from cpd.comm.torch_transport import Transport

    store = dist.HashStore()
    for rank, host in enumerate(["elsewhere", socket.gethostname(), "elsewhere"]):
        store.set(f"host/{rank}", host)
    for rank, host, count in ((1, socket.gethostname(), 1), (0, socket.gethostname(), 2)):
        store.set(f"host/{rank}", host)
        ours = SimpleNamespace(_store=store, rank=rank, size=3)
        assert Transport._count_host(ours) == count


@pytest.mark.parametrize(("code", "fails"), [(None, 0), (0, 0), (1, 1), (2, 1), ("why", 1)])
def test_a_rank_that_exits_tells_the_others(code, fails):
    """A rank that leaves a communicator's block by SystemExit informs the other ranks, unless its
    exit status means success."""
    ended = MagicMock()
    Communicator.__exit__(ended, SystemExit, SystemExit(code), None)
    assert ended._give_up.call_count == fails
    ended.close.assert_called_once_with()


def test_torchs_groups_that_cannot_be_used(monkeypatch):
    dist = pytest.importorskip("torch").distributed
    from cpd.comm import torch_transport
    from cpd.parallel.nodes import real

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="this process is not in the group"):
            torch_transport.transport(dist.GroupMember.NON_GROUP_MEMBER, 1)
        monkeypatch.setattr(torch_transport.dist, "get_backend", lambda group: "mpi")
        with pytest.raises(ValueError, match="the group's backend must be gloo or nccl, got mpi"):
            torch_transport.transport(None, 1)
    finally:
        dist.destroy_process_group()
    late = MagicMock(alarms=MagicMock(side_effect=[[], [True, False]]))
    for half, grace in ((MagicMock(alarms=lambda: [True, False]), 0.1), (late, 0.0)):
        lost = torch_transport._lost(half, "no answer for 1.0 s", grace, [4, 7], 9)
        assert str(lost) == "rank 7 of 9 lost before the group was made (no answer for 1.0 s)"
    monkeypatch.setattr(real, "check_launched", lambda: None)
    monkeypatch.setattr(real.dist, "init_process_group", MagicMock(side_effect=dist.DistError("X")))
    with (
        pytest.raises(cpd.comm.TransportError, match=r"torch\.distributed did not start: X"),
        real.connected("torch", 1),
    ):
        pass


def test_only_the_root_has_an_out():
    ranks = _core.local_communicators(2, 20.0, 1 << 20)
    x, errors = ONES[0], {}

    def reduce(rank):
        try:
            ranks[rank].reduce([x], [x.copy()], FP32._held, 0, True)
        except ValueError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=reduce, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = "out must be empty on ranks other than the root, 0, got 1 tensors on rank 1"
    assert errors[1] == said


def test_a_broken_group_says_so():
    _, comm = _core.local_communicators(2, 0.2, 1 << 20)
    for said in ("rank 0 of 2 lost in phase", "this group of ranks is broken: rank 0 of 2 lost"):
        with pytest.raises(cpd.comm.RankLost, match=said):
            comm.barrier()
