# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.comm` over ranks that are processes, under MPI and gloo. Results have the virtual
ranks' bits, and all ranks raise the same error. Ranks are killed, stopped or disconnected in every
phase of a call."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import comm_cases
import forked
import lost_before
from comm_cases import Fault
from forked import PIPE
from patience import scaled
from spawn import TRANSPORTS, Spawned, skip_without, spawn_ranks

KINDS = ("kill", "stop", "drop")
EXHAUSTIVE = pytest.mark.exhaustive
PHASES = ("handshake", "exponents", "exchange", "fold", "gather")
EXCHANGES = ("ring", "hierarchical", "gather")
TIMEOUT = 5.0
"""The timeout, in seconds on an idle machine, of tests in which ranks are lost."""
ROOM = 40.0
"""After the timeout, a rank must report the lost ranks within this number of seconds on an idle
machine."""


def also(transport: str, *worlds: int) -> list[Any]:
    """Returns a pytest parameter for each number of ranks in `worlds`, for the exhaustive tier."""
    return [pytest.param(transport, world, marks=EXHAUSTIVE) for world in worlds]


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("transport", "world"), [*also("mpi", 2, 4), ("mpi", 3), *also("gloo", 2), ("gloo", 4)]
)
def test_bits(transport: str, world: int) -> None:
    """All-reduces over processes have the bits of simulate_all_reduce (virtual ranks), for all
    orders of summation, exchanges of messages and group sizes. All ranks have the same sums.
    Calls that differ between ranks or that ranks refuse raise the expected errors."""
    ways = len(comm_cases.ways(world))
    ranks = spawn_ranks(transport, world, "comm_cases:every_check", 2 * ways, chunk=2048)
    for rank in ranks:
        assert rank.result["compare"][:-1] == []
        assert rank.result["others"] == []
    assert len({rank.result["compare"][-1] for rank in ranks}) == 1
    texts = ranks[0].result["mismatches"]
    assert all(rank.result["mismatches"] == texts for rank in ranks)
    assert texts.pop("after") == ""
    assert [t for t in texts.values() if not t.startswith("the ranks do not agree")] == []
    for name, said in comm_cases.SAID.items():
        assert said in texts[name], name
    comm_cases.check_refusals([rank.result["refusals"] for rank in ranks])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("transport", "world"), [("mpi", 3), ("gloo", 2), *also("gloo", 3)])
def test_messages_of_any_size(transport: str, world: int) -> None:
    """A codec of run lengths, whose messages vary in size, gives the bits of simulate_all_reduce
    (virtual ranks) for all orders of summation, exchanges of messages and group sizes."""
    for rank in spawn_ranks(transport, world, "comm_cases:any_size", chunk=2048):
        assert rank.result == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("transport", "world"), [*also("mpi", 3), ("gloo", 3)])
def test_scaled_formats(transport: str, world: int) -> None:
    """Sums in scaled formats have the bits of simulate_all_reduce (virtual ranks), for all orders
    of summation, exchanges of messages and group sizes."""
    for rank in spawn_ranks(transport, world, "comm_cases:scaled", chunk=2048):
        assert rank.result == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("transport", "world", "of"),
    [
        ("mpi", 2, 3),
        ("gloo", 3, 3),
        *(pytest.param(name, n, 1, marks=EXHAUSTIVE) for name, n in (("mpi", 3), ("gloo", 3))),
    ],
)
def test_codecs(transport: str, world: int, of: int) -> None:
    """Every codec has the sums and states of simulate_all_reduce (virtual ranks), with the
    exchanges "owner" and "gather", with and without groups. Each codec is tested with every
    `of`-th combination of order, exchange and group size."""
    for rank in spawn_ranks(transport, world, "comm_cases:codecs", of, chunk=2048):
        assert rank.result == []


@pytest.mark.timeout(180)
def test_bytes_that_no_decoder_takes() -> None:
    ranks = spawn_ranks("gloo", 3, "comm_cases:any_size", True, chunk=2048, timeout=scaled(TIMEOUT))
    told = [text for rank in ranks for text in rank.result]
    assert len(told) == 3
    assert any("is damaged: tensor" in text and "a run is cut off" in text for text in told)
    assert all(text.startswith(("TransportError", "RankLost")) for text in told)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_leaves_by_an_exception(transport: str) -> None:
    """If a rank leaves the communicator's block by an exception, the other ranks raise RankLost at
    once, long before the timeout."""
    timeout = scaled(60)
    ranks = spawn_ranks(transport, 3, "comm_cases:leaves_by_error", timeout=timeout, victims=(1,))
    assert ranks[1].result["said"].startswith("KeyError")
    for rank in (ranks[0], ranks[2]):
        assert rank.result["said"].startswith("RankLost"), rank.result
        assert "gave up" in rank.result["said"], rank.result
        assert rank.result["took"] < timeout / 2, rank.result


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_program_that_ends_by_an_exception(transport: str) -> None:
    """If an uncaught exception ends a rank's program outside the communicator's block, the other
    ranks raise RankLost at once."""
    timeout = scaled(60)
    ranks = spawn_ranks(transport, 3, "comm_cases:ends_by_error", timeout=timeout, victims=(1,))
    for rank in (ranks[0], ranks[2]):
        said = re.search(r"ranks? ([0-9, ]+) gave up", rank.result["said"])
        assert said is not None, rank.result
        assert "1" in said[1].split(", "), rank.result
        assert rank.result["took"] < timeout / 2, rank.result


# ---- the rank that keeps the store ---------------------------------------------------------------

KILLED_IN_A_CALL = """
import os, signal, sys
import numpy as np
import torch.distributed as dist
import cpd
from cpd import _core
rank, port, whose = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if whose == "torch's":
    how = {"init_method": f"tcp://127.0.0.1:{port}"}
else:
    how = {"store": dist.TCPStore("127.0.0.1", port, is_master=rank == 0)}
dist.init_process_group("gloo", rank=rank, world_size=4, **how)
comm = cpd.comm.distributed(timeout=float(sys.argv[4]))
comm.barrier()
if rank == 0:
    def strike(phase, chunk, rank, drop):
        os.kill(os.getpid(), signal.SIGKILL) if phase == "exchange" else None
    _core.set_fault_hook(strike)
spec = cpd.Reduce("e4m3", order="ring", exchange="ring")
try:
    while True:
        comm.all_reduce([np.ones(5000, np.float32)], spec)
except cpd.comm.RankLost as error:
    print(error.ranks, error, flush=True)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("whose", "said"), [("torch's", "[0] "), ("the program's", "[] ")])
def test_no_survivor_is_named(tmp_path: Path, whose: str, said: str) -> None:
    """Rank 0, whose process has torch's store, is killed. If torch made the store, the error of the
    waiting ranks names rank 0. If the program made the store, its owner is unknown, and the error
    names no rank."""
    skip_without("gloo")
    program = tmp_path / "rank.py"
    program.write_text(KILLED_IN_A_CALL)
    port, timeout = lost_before.free_port(), scaled(lost_before.TIMEOUT)
    ranks = [
        forked.Program([program, rank, port, whose, timeout], stdout=PIPE, stderr=PIPE, text=True)
        for rank in range(4)
    ]
    try:
        outputs = [rank.communicate(timeout=scaled(120)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, err in outputs[1:]:
        assert out.startswith(said), out + err
    assert [rank.returncode for rank in ranks[1:]] == [0, 0, 0], outputs


ENDS = """
import sys, time
import torch.distributed as dist
import cpd
rank, port = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
comm = cpd.comm.distributed(timeout=float(sys.argv[3]))
if rank == 0:
    time.sleep(0.1)
comm.barrier()  # the others wait for it, and ask the store whether it has given up
print("done", flush=True)
time.sleep(20 if rank == 0 else 0.05)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seconds", [0.8, *(pytest.param(s, marks=EXHAUSTIVE) for s in (0.6, 1.0))])
def test_ranks_that_end_while_the_store_is_silent(tmp_path: Path, seconds: float) -> None:
    """Ranks end cleanly while torch's store does not answer. A thread that returns from the store
    while Python shuts down must not abort the process."""
    skip_without("gloo")
    program = tmp_path / "rank.py"
    program.write_text(ENDS)
    port = lost_before.free_port()
    ranks = [
        forked.Program([program, rank, port, scaled(30)], stdout=PIPE, stderr=PIPE, text=True)
        for rank in range(3)
    ]
    try:
        assert ranks[0].stdout is not None
        ranks[0].stdout.readline()
        os.kill(ranks[0].pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(ranks[0].pid, signal.SIGKILL)
        said = [rank.communicate(timeout=scaled(60)) for rank in ranks[1:]]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks[1:]] == [0, 0], said


# ---- lost ranks ----------------------------------------------------------------------------------


def check_faults(transport: str, plan: list[Fault]) -> None:
    """Starts ranks once and makes one rank after another fail, as `plan` says. Every survivor must
    name the lost rank in time, keep its inputs unchanged, and continue with the other
    survivors."""
    skip_without(transport)
    world = len(plan) + 2
    left = list(range(world))
    victims = [left.pop(fault.victim) for fault in plan]
    timeout = scaled(TIMEOUT)
    ranks = spawn_ranks(
        transport,
        world,
        "comm_cases:faults",
        [vars(fault) for fault in plan],
        timeout=timeout,
        chunk=comm_cases.FAULT_CHUNK,
        victims=tuple(victims),
    )
    for rank, spawned in enumerate(ranks):
        until = victims.index(rank) if rank in victims else len(plan)
        check_rank(spawned, rank, plan, until, timeout + scaled(ROOM))


def check_rank(spawned: Spawned, rank: int, plan: list[Fault], until: int, limit: float) -> None:
    """Checks what one rank recorded while `plan` made one rank after another fail. This rank fails
    itself at plan[until]. It must notice each earlier fault within `limit` seconds."""
    seen = spawned.result
    if seen is None:  # killed or stopped: it cannot say what it saw
        assert until < len(plan)
        assert plan[until].kind != "drop"
        assert not (plan[until].kind == "stop" and spawned.ended)
        return
    for fault, record in zip(plan[:until], seen, strict=False):
        about = f"{fault}, rank {rank}: {record}"
        assert record.get("lost") == [fault.victim], about
        where = ("handshake",) if record.get("finished") else seen_in(fault.phase)
        assert any(f"in phase {phase}" in record["text"] for phase in where), about
        assert record.get("finished", True), about
        assert record["took"] < limit, about
        assert record["untouched"], about
        assert record["broken"], about
        assert record["works"], about
    if until < len(plan):  # a disconnected rank loses all others
        assert plan[until].kind == "drop"
        assert len(seen) == until + 1
        assert seen[until].get("lost"), seen[until]
        assert seen[until]["untouched"]


def seen_in(phase: str) -> tuple[str, ...]:
    """Returns the phases of an all-reduce in which other ranks may be while one rank is in `phase`.
    Ranks work on several chunks at once, so they can be in different phases."""
    return PHASES[2:] if phase in PHASES[2:] else (phase,)


def plan_of(
    kinds: list[str], phases: list[str], shift: int, exchange: str = "owner"
) -> list[Fault]:
    """Returns faults to inject one after another: the n-th has the n-th of `kinds` and occurs in
    the n-th of `phases` of an all-reduce. The rank that fails varies."""
    plan = []
    for number, (kind, phase) in enumerate(zip(kinds, phases, strict=True)):
        world = len(kinds) + 2 - number
        plan.append(Fault(kind, phase, (shift + 2 * number) % world, exchange))
    return plan


@pytest.mark.slow("waits until ranks are given up")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=EXHAUSTIVE) for n in (1, 2))])
def test_lost_ranks(transport: str, turn: int) -> None:
    """The test's three runs (`turn`) together try every kind of fault in every phase of an
    all-reduce. The first run alone tries each phase once and each kind at least once."""
    kinds = [KINDS[(turn + number) % 3] for number in range(5)]
    check_faults(transport, plan_of(kinds, list(PHASES), turn))


@pytest.mark.exhaustive
@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", PHASES)
def test_lost_ranks_three_times(transport: str, kind: str, phase: str) -> None:
    check_faults(transport, plan_of([kind] * 3, [phase] * 3, len(phase)))


@pytest.mark.exhaustive
@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_lost_ranks_of_other_exchanges(transport: str, turn: int, exchange: str) -> None:
    """For each of the exchanges ring, hierarchical and gather, the test's three runs (`turn`)
    together try every kind of fault in every phase of an all-reduce."""
    phases = [p for p in PHASES if exchange != "gather" or p != "gather"]  # gather lacks it
    kinds = [KINDS[(turn + number) % 3] for number in range(len(phases))]
    check_faults(transport, plan_of(kinds, phases, turn + 1, exchange))
