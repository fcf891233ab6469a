# SPDX-License-Identifier: Apache-2.0
"""Runs ranks as processes, for tests.

`spawn_ranks` starts the ranks under mpirun, or forks them around a gloo group, and returns each
rank's result.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import forked
from patience import scaled

TRANSPORTS = ("mpi", "gloo")

_MPI_SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # containers forbid it, loudly
}
_START = 60.0
"""The seconds until MPI has started, on an idle machine.

Communicators' timeouts do not include it.
"""


_RECOVERY = {"OMPI_MCA_orte_enable_recovery": "1"}
"""mpirun's options with which a dead rank does not end other ranks. The exit status is always 0."""


@dataclass
class Spawned:
    """The outcome of one rank."""

    result: Any
    """The result of the function that the rank ran; None if the function did not return."""
    ended: bool
    """True if the rank's process ended by itself."""


@functools.cache
def _missing(transport: str) -> str:
    """Returns the reason why a transport is not available here; empty if it is available."""
    if transport == "gloo":
        try:
            import torch.distributed as dist
        except ImportError:
            return "torch is not installed"
        return "" if dist.is_available() and dist.is_gloo_available() else "torch has no gloo"
    if shutil.which("mpirun") is None:
        return "there is no mpirun"
    limit = scaled(60)
    program = f"import cpd; c = cpd.comm.mpi(timeout={limit}); print('size', c.size); c.close()"
    try:
        done = subprocess.run(
            ["mpirun", "-n", "1", sys.executable, "-c", program],
            env=os.environ | _MPI_SETTINGS,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail("mpirun -n 1 did not end in time")
    if "size 1" in done.stdout:
        return ""
    said = [line for line in done.stderr.splitlines() if line.startswith("RuntimeError")]
    if not said:
        pytest.fail(f"cpd.comm.mpi() failed on one rank:\n{done.stderr[-2000:]}")
    return said[0]


def skip_without(transport: str) -> None:
    if reason := _missing(transport):
        pytest.skip(f"no {transport}: {reason}")


def spawn_ranks(
    transport: str,
    world: int,
    function: str,
    *arguments: Any,
    timeout: float | None = None,
    chunk: int = 4096,
    limit: float = 120.0,
    victims: tuple[int, ...] = (),
    connects: bool = True,
) -> list[Spawned]:
    """Runs `module:function`(comm, *arguments) on `world` ranks, and returns each rank's result and
    how its process ended.

    Skips the test if the transport is not available. Fails the test if a rank raises, does not end
    within `limit`, or ends with an error. Only ranks in `victims` may do so. Under MPI with
    victims, the error statuses of the other ranks are not detected.

    Args:
        transport: "mpi" or "gloo".
        world: the number of ranks.
        function: the function, as `module:function`.
        arguments: further arguments, which are passed as JSON, as is the result.
        timeout: the timeout of the communicators in seconds; None: 30 s on an idle machine.
        chunk: the chunk size of the communicators in bytes.
        limit: the seconds within which all ranks must end, on an idle machine.
        victims: ranks that may die or stop. They are killed after all other ranks have ended.
        connects: if False, the function gets (rank, connect, *arguments), and connect() makes the
            communicator. All processes and torch's group exist then, but MPI has not been started.
    """
    skip_without(transport)
    with tempfile.TemporaryDirectory(prefix="cpd-ranks-") as folder:
        job = {
            "transport": transport,
            "world": world,
            "function": function,
            "arguments": arguments,
            "timeout": scaled(30) if timeout is None else timeout,
            "start": scaled(_START),
            "chunk": chunk,
            "folder": folder,
            "victims": victims,
            "connects": connects,
        }
        program = [__file__, json.dumps(job)]
        settings = _MPI_SETTINGS | {"CPD_NUM_THREADS": "1"}
        if victims:
            settings |= _RECOVERY
        with Path(folder, "log").open("wb") as log:
            how: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
            how["env"] = os.environ | settings
            process: subprocess.Popen[bytes] | forked.Program
            if transport == "mpi":
                command = ["mpirun", "-n", str(world), sys.executable, *program]
                process = subprocess.Popen(command, **how)
            else:
                process = forked.Program(program, **how)
            ended = _wait(process, Path(folder), world, victims, scaled(limit))
        ranks = [_read(Path(folder), rank, ended) for rank in range(world)]
        bad = [r for r in range(world) if r not in victims and not _is_good(ranks[r])]
        if bad or process.returncode != 0:
            said = Path(folder, "log").read_text(errors="replace")[-4000:]
            about = f"ranks {bad} did not return and end" if bad else "a rank did not end well"
            pytest.fail(
                f"{transport}, {world} ranks: {about}, status {process.returncode}:\n{said}"
            )
        return ranks


def _is_good(rank: Spawned) -> bool:
    return rank.ended and rank.result is not None


def _wait(
    process: subprocess.Popen[bytes] | forked.Program,
    folder: Path,
    world: int,
    victims: tuple[int, ...],
    limit: float,
) -> set[int]:
    """Waits for the ranks' processes, and kills the ones that remain after `limit` seconds.

    Returns the ranks whose processes ended by themselves.
    """
    deadline = time.monotonic() + limit
    others = set(range(world)) - set(victims)
    ended: set[int] = set()
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        ended = {rank for rank in range(world) if _has_ended(_pid(folder, rank))}
        if others <= ended:
            _kill(folder, victims)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(scaled(20))
            break
    else:
        ended = {rank for rank in range(world) if _has_ended(_pid(folder, rank))}
    _kill(folder, range(world))
    if process.poll() is None:
        process.kill()
    process.wait()
    return ended


def _pid(folder: Path, rank: int) -> tuple[int, str] | None:
    """Returns a rank's process number and start time; None before the rank has written them."""
    try:
        number, begun = (folder / f"{rank}.pid").read_text().split()
    except (OSError, ValueError):
        return None
    return int(number), begun


def _begun(pid: int) -> str:
    """Returns the start time of a process in the kernel's ticks; empty if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _has_ended(process: tuple[int, str] | None) -> bool:
    return process is not None and _begun(process[0]) != process[1]


def _kill(folder: Path, ranks: Any) -> None:
    for rank in ranks:
        process = _pid(folder, rank)
        if process is not None and not _has_ended(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process[0], signal.SIGKILL)


def _read(folder: Path, rank: int, ended: set[int]) -> Spawned:
    try:
        result = json.loads((folder / f"{rank}.json").read_text())
    except (OSError, ValueError):
        result = None
    return Spawned(result, rank in ended)


# ---- a rank's side -------------------------------------------------------------------------------


def _run_rank(job: dict[str, Any], rank: int, connect: Callable[[], Any]) -> None:
    module, _, name = job["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    if job["connects"]:
        result = function(connect(), *job["arguments"])
    else:
        _await_all(job, rank)
        result = function(rank, connect, *job["arguments"])
    target = Path(job["folder"], f"{rank}.json")
    target.with_suffix(".new").write_text(json.dumps(result))
    target.with_suffix(".new").rename(target)


def _await_all(job: dict[str, Any], rank: int) -> None:
    """Waits until every rank has called this function."""
    folder = Path(job["folder"])
    (folder / f"{rank}.there").touch()
    while len(list(folder.glob("*.there"))) < job["world"]:
        time.sleep(0.01)


def _note_pid(job: dict[str, Any], rank: int) -> None:
    pid = os.getpid()
    target = Path(job["folder"], f"{rank}.pid")
    target.with_suffix(".tmp").write_text(f"{pid} {_begun(pid)}")
    target.with_suffix(".tmp").rename(target)


def _mpi_rank(job: dict[str, Any]) -> None:
    from cpd import _core
    from cpd.comm import Communicator

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    _note_pid(job, rank)
    options = job["timeout"], job["chunk"]

    def connect() -> Communicator:
        return Communicator(_core.mpi_communicator(*options, breakable=True), *options)

    if job["connects"]:  # MPI itself takes as long to start as the host is busy
        started = _core.mpi_communicator(job["start"], job["chunk"])  # noqa: F841 - kept until the end
    _run_rank(job, rank, connect)


def _gloo_ranks(job: dict[str, Any]) -> None:
    """Forks the ranks, so that torch is imported once.

    This process has the store, as torchrun's agent does, because the store must outlive every rank.
    The store is made after the forks, because its threads would not survive a fork.
    """
    import torch.distributed as dist

    importlib.import_module(job["function"].partition(":")[0])
    children = []
    for rank in range(job["world"]):
        child = os.fork()
        if child == 0:
            _gloo_rank(job, rank)
            sys.exit(0)
        children.append(child)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = Path(job["folder"], "port")
    port.with_suffix(".new").write_text(str(store.port))
    port.with_suffix(".new").rename(port)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(status for rank, status in enumerate(statuses) if rank not in job["victims"]))


def _gloo_rank(job: dict[str, Any], rank: int) -> None:
    import torch.distributed as dist

    from cpd import _core
    from cpd.comm import Communicator, torch_transport

    _note_pid(job, rank)
    port = Path(job["folder"], "port")
    while not port.exists():
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", int(port.read_text()), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["world"])
    options = job["timeout"], job["chunk"]

    def connect() -> Communicator:
        transport = torch_transport.transport(None, job["timeout"])
        return Communicator(
            _core.python_communicator(transport, *options, breakable=True), *options
        )

    _run_rank(job, rank, connect)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    (_mpi_rank if given["transport"] == "mpi" else _gloo_ranks)(given)
