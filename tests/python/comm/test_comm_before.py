# SPDX-License-Identifier: Apache-2.0
"""Tests ranks that are lost before a communicator exists, with MPI and with gloo. Every survivor
must raise an error in time that names the lost rank. A subgroup of the survivors then works."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import forked
import lost_before
from forked import PIPE
from lost_before import WORLD, trial, trials
from patience import scaled
from spawn import TRANSPORTS, skip_without


def check(said: dict[int, dict[str, Any]], way: str, victims: list[int]) -> None:
    assert len(said) == WORLD - len(victims)
    for rank, one in said.items():
        about = f"rank {rank}: {one}"
        assert one["type"] == "RankLost", about
        assert one["lost"] == victims[-1:], about
        assert one["text"].startswith(f"rank {victims[-1]} of {WORLD} lost before"), about
        assert one["took"] < one["limit"], about
        if way == "subgroup":
            assert one["size"] == WORLD - 2, about


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("transport", "way", "kind", "victims"),
    [
        pytest.param("mpi", "at once", "kill", [2], marks=pytest.mark.exhaustive),
        ("mpi", "in MPI", "stop", [0]),
        ("mpi", "subgroup", "kill", [1, 3]),
        pytest.param("gloo", "at once", "exit", [0], marks=pytest.mark.exhaustive),
        ("gloo", "connecting", "kill", [3]),
        pytest.param("gloo", "subgroup", "stop", [0, 2], marks=pytest.mark.exhaustive),
    ],
)
def test_a_rank_is_lost_before(transport: str, way: str, kind: str, victims: list[int]) -> None:
    check(trial(transport, way, kind, victims), way, victims)


@pytest.mark.exhaustive
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_twenty_times(transport: str) -> None:
    for way, kind, victims in trials(transport, 20):
        check(trial(transport, way, kind, victims), way, victims)


def test_a_free_port_is_not_given_to_an_outgoing_connection() -> None:
    """Before a rank listens on a port from `free_port`, no outgoing connection may take the port.
    So it must be below the ports that the system gives to outgoing connections."""
    with socket.socket() as other, socket.socket() as outgoing:
        other.listen()
        outgoing.connect(other.getsockname())
        taken = {one.getsockname()[1] for one in (other, outgoing)}
    ports = {lost_before.free_port() for _ in range(20)}
    assert max(ports) < min(taken)
    for port in ports:
        with socket.socket() as rank:
            rank.bind(("127.0.0.1", port))
            rank.listen()


STORE_IN_RANK_0 = """
import os, signal, sys
import torch.distributed as dist
import cpd
dist.init_process_group("gloo", init_method=sys.argv[2], rank=int(sys.argv[1]), world_size=3)
store = dist.distributed_c10d._get_default_store()
if sys.argv[1] == "0":
    store.wait(["1", "2"])  # torch has connected them: what is lost from now on is cpd's to tell
    os.kill(os.getpid(), signal.SIGKILL)
store.set(sys.argv[1], "")
try:
    cpd.comm.distributed(timeout=float(sys.argv[3]))
except cpd.comm.RankLost as error:
    print(error.ranks, error, flush=True)
"""


@pytest.mark.timeout(180)
def test_the_rank_that_keeps_the_store(tmp_path: Path) -> None:
    """Rank 0's process has torch's store, by which survivors exchange the list of lost ranks. If
    rank 0 is lost, the survivors' error names rank 0 alone."""
    skip_without("gloo")
    address, timeout = f"tcp://127.0.0.1:{lost_before.free_port()}", scaled(lost_before.TIMEOUT)
    program = tmp_path / "rank.py"
    program.write_text(STORE_IN_RANK_0)
    ranks = [
        forked.Program([program, rank, address, timeout], stdout=PIPE, stderr=PIPE, text=True)
        for rank in range(3)
    ]
    try:
        said = [rank.communicate(timeout=scaled(120)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, err in said[1:]:
        assert out.startswith("[0] rank 0 of 3 lost before the group was made"), out + err
    assert [rank.returncode for rank in ranks[1:]] == [0, 0], said
