# SPDX-License-Identifier: Apache-2.0
"""Loses ranks before a communicator exists; reports which error each survivor gets, and when."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patience import scaled
from spawn import spawn_ranks

WORLD = 4
TIMEOUT = 4.0
"""The communicators' timeout in seconds, on an idle machine."""
PATIENCE = 3
"""The greatest number of runs of a trial, a test that loses ranks. Each run has three times the
timeout of the run before."""
ROOM = 60.0
"""Seconds after the timeout at which a survivor counts as hanging, on an idle machine."""
WAYS = {
    "mpi": ("at once", "in MPI", "subgroup"),
    "gloo": ("at once", "connecting", "subgroup"),
}
"""The moments at which a rank, the victim, is lost.

At once: before it has done anything. In MPI: when all ranks have started MPI. Connecting: when it
would connect to the other ranks, which know that it exists. Subgroup: before it makes a subgroup of
the ranks that remain after an earlier loss.
"""
KINDS = ("kill", "stop", "exit")
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The file with the lowest and the highest port that the kernel gives to outgoing connections."""


def end(kind: str) -> None:
    """Ends or stops this process: by exit, SIGKILL or SIGSTOP."""
    if kind == "exit":
        os._exit(0)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])


def free_port() -> int:
    """Returns a free port below the ports of outgoing connections.

    The kernel could give a port of outgoing connections to another program before the rank listens.
    """
    lowest = int(OUTGOING.read_text().split()[0]) if OUTGOING.exists() else 32768
    for port in random.sample(range(10_000, lowest), 100):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("", port))
            return port
    raise OSError(f"none of 100 ports from 10000 to {lowest - 1} is free")


def start_mpi() -> None:
    """Starts MPI without CPD, as a program does that calls MPI itself."""
    mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
    multiple = 3
    mpi.MPI_Init_thread(None, None, multiple, ctypes.byref(ctypes.c_int()))


def end_while_connecting(kind: str) -> None:
    """Makes this rank end at the moment when it would connect by gloo."""
    from torch.distributed import distributed_c10d as c10d

    c10d.ProcessGroupGloo = lambda *_: end(kind)


def heard(make: Callable[[], Any]) -> dict[str, Any]:
    """Returns the error that a call raises on a survivor, with its time."""
    begin = time.monotonic()
    try:
        make()
    except Exception as error:
        return {
            "type": type(error).__name__,
            "lost": getattr(error, "ranks", None),
            "took": time.monotonic() - begin,
            "text": str(error),
        }
    return {"type": "none", "lost": None, "took": time.monotonic() - begin, "text": ""}


def rank_of_trial(
    rank: int, connect: Callable[[], Any], way: str, kind: str, victims: list[int]
) -> dict[str, Any]:
    """Runs one rank of a trial, a test that loses the ranks `victims`. A survivor returns the error
    that reports the lost rank. If `victims` has two ranks, the error reports the second one."""
    if way == "subgroup":
        return rank_of_subgroup(rank, connect(), kind, victims)
    if way == "in MPI":
        start_mpi()
    if rank == victims[0]:
        if way == "connecting":
            end_while_connecting(kind)
        else:
            end(kind)
    return heard(connect)


def rank_of_subgroup(rank: int, comm: Any, kind: str, victims: list[int]) -> dict[str, Any]:
    """Loses one rank, and then a second one before the others have made a subgroup.

    A subgroup without both lost ranks then works.
    """
    comm.barrier()
    if rank == victims[0]:
        end(kind)
    heard(comm.barrier)
    left = [r for r in range(comm.size) if r != victims[0]]
    if rank == victims[1]:
        end(kind)
    said = heard(lambda: comm.subgroup(left))
    with comm.subgroup([r for r in left if r != victims[1]]) as rest:
        rest.barrier()
        return said | {"size": rest.size}


def victims_of(way: str, number: int) -> list[int]:
    """Returns the ranks to lose in trial `number`, a test with all ranks. Over all trials, every
    rank is lost, rank 0 included."""
    first = number % WORLD
    return [first, (first + 1 + number // WORLD % (WORLD - 1)) % WORLD][: 1 + (way == "subgroup")]


def trial(transport: str, way: str, kind: str, victims: list[int]) -> dict[int, dict[str, Any]]:
    """Loses `victims` in a run of all ranks. Returns the error of each survivor.

    The key "limit" has the seconds within which the error had to occur. If the timeout was over
    before the victim was lost, runs again: a busy machine may be too slow.
    """
    for attempt in range(PATIENCE):
        timeout = scaled(TIMEOUT) * 3**attempt
        ranks = spawn_ranks(
            transport,
            WORLD,
            "lost_before:rank_of_trial",
            way,
            kind,
            victims,
            timeout=timeout,
            victims=tuple(victims),
            connects=False,
        )
        said = {rank: one.result for rank, one in enumerate(ranks) if rank not in victims}
        for one in said.values():
            one["limit"] = timeout + scaled(ROOM)
        if not all(outlived(one) for one in said.values()):
            break
    return said


def outlived(one: dict[str, Any]) -> bool:
    """Returns True if the timeout was over before the victim (the rank to lose) was lost. The error
    then says that no rank could connect."""
    return one["type"] == "TransportError" and "could not be connected" in one["text"]


def trials(transport: str, count: int) -> list[tuple[str, str, list[int]]]:
    """Returns `count` trials. A trial is a tuple: the moment of the loss (one of WAYS), its kind
    (one of KINDS), and the ranks to lose."""
    ways = WAYS[transport]
    return [
        (way, KINDS[n // len(ways) % len(KINDS)], victims_of(way, n))
        for n in range(count)
        for way in (ways[n % len(ways)],)
    ]
