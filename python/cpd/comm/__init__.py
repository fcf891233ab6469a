# SPDX-License-Identifier: Apache-2.0
"""All-reduce, and its parts, in a customized precision over real ranks.

>>> import cpd, numpy as np
>>> def step(comm):
...     return comm.all_reduce([np.float32([1 + comm.rank])], "e4m3")[0].item()
>>> cpd.comm.local(3).run(step)
[6.0, 6.0, 6.0]

In a program of many processes, each rank makes one communicator. It calls `cpd.comm.mpi()` under
mpirun or `cpd.comm.distributed()` under torchrun. `cpd.comm.nccl(comm)` makes a communicator
between GPUs. The transport that carries the messages does not change the bits of results.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cpd import _core
from cpd._core import DEFAULT_CHUNK, DEFAULT_TIMEOUT
from cpd._lazy import attach
from cpd.comm.communicator import Communicator
from cpd.comm.errors import Mismatch, RankLost, TransportError
from cpd.comm.launched import broken_promise
from cpd.comm.reports import ReduceReport, Traffic
from cpd.comm.threads import LocalGroup
from cpd.comm.virtual import TensorReport
from cpd.numeric.checked import checked
from cpd.numeric.numbers import at_least, int32, integer
from cpd.numeric.numbers import number as whole_number
from cpd.numeric.warned import warn
from cpd.ops.device_memory import current_device

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from cpd.parallel.ddp import HookState
    from cpd.parallel.fsdp import ReduceScatter

__all__ = [
    "Communicator",
    "HookState",
    "LocalGroup",
    "Mismatch",
    "RankLost",
    "ReduceReport",
    "ReduceScatter",
    "TensorReport",
    "Traffic",
    "TransportError",
    "distributed",
    "local",
    "mpi",
    "nccl",
]


@checked
def mpi(
    *, seed: int = 0, timeout: float = DEFAULT_TIMEOUT, chunk: int = DEFAULT_CHUNK
) -> Communicator:
    """Makes the communicator of all ranks of MPI_COMM_WORLD.

    All ranks call this function. It starts MPI unless MPI is already started.

    Args:
        seed: the seed of the communicator's reductions, the same on all ranks; default 0.
        timeout: the seconds after which a rank that does not answer is lost, in this call too;
            default 300.
        chunk: the number of values in a chunk, 1…2^31 - 1, the same on all ranks; data is sent and
            summed by chunks. Default 2^20. A call needs memory for its inputs, its results and a
            small multiple of this number of values.

    Returns:
        This process's communicator. A RuntimeWarning is issued if a launcher's environment variable
        promises more ranks than MPI has started, as under srun without PMIx. The warning names the
        variable. If MPI has started a single rank, each process is rank 0 of 1, and its sums
        contain its own values alone.

    Raises:
        RuntimeError: if MPI, or the library that was built with it, is missing.
        RankLost: if some ranks do not make this call within the timeout; `ranks` lists them. Until
            MPI has started, missing ranks of other hosts are not listed. After this error MPI
            cannot be used in this process.
        ValueError: for a timeout or chunk out of range.
        TypeError: for an argument of another type.
    """
    timeout, chunk, seed = _options(timeout, chunk, seed)
    comm = Communicator(_core.mpi_communicator(timeout, chunk), timeout, chunk, seed)
    if broken := broken_promise(comm.size):
        warn(broken, RuntimeWarning)
    return comm


@checked
def nccl(
    comm: Communicator,
    *,
    device: int | None = None,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    chunk: int = DEFAULT_CHUNK,
) -> Communicator:
    """Makes a communicator between GPUs, over NCCL, of the ranks of another communicator.

    All ranks of `comm` call this function. `comm` sends NCCL's unique id from rank 0 to the other
    ranks, and remains open.

    Args:
        comm: a communicator of the same ranks, such as `mpi()`.
        device: the index of the CUDA device; default: torch's current one.
        seed: the seed of the communicator's reductions, the same on all ranks; default 0.
        timeout: the seconds after which a rank that does not answer is lost, in this call too;
            default 300.
        chunk: the number of values in a chunk, 1…2^31 - 1, the same on all ranks; data is sent and
            summed by chunks. Default 2^20. A call needs memory for its inputs, its results and a
            small multiple of this number of values.

    Returns:
        This rank's communicator.

    Raises:
        RuntimeError: if NCCL, or the library that was built with it, is missing.
        ValueError: for an argument out of range.
        TypeError: for an argument of another type.
    """
    timeout, chunk, seed = _options(timeout, chunk, seed)
    index = current_device() if device is None else int32("device", device)
    name = comm.all_gather_bytes(_core.make_nccl_id() if comm.rank == 0 else b"")[0]
    native = _core.nccl_communicator(name, comm.rank, comm.size, index, 0, timeout, chunk)
    return Communicator(native, timeout, chunk, seed)


@checked
def distributed(
    group: ProcessGroup | None = None,
    *,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    chunk: int = DEFAULT_CHUNK,
) -> Communicator:
    """Makes the communicator of the ranks of a process group of torch.distributed.

    All ranks of the group call this function. The group's backend, gloo or NCCL, sends the
    messages, over new connections that the group itself does not use.

    After a `RankLost`, `Communicator.subgroup` works only while the key-value store of
    torch.distributed answers. torchrun keeps the store in its agent; without torchrun the store is
    in the process of rank 0, and is lost with that rank.

    Args:
        group: the process group; default: the group of all ranks.
        seed: the seed of the communicator's reductions, the same on all ranks; default 0.
        timeout: the seconds after which a rank that does not answer is lost, in this call too;
            default 300.
        chunk: the number of values in a chunk, 1…2^31 - 1, the same on all ranks; data is sent and
            summed by chunks. Default 2^20. A call needs memory for its inputs, its results and a
            small multiple of this number of values.

    Returns:
        This process's communicator.

    Raises:
        RankLost: on all ranks that have made this call, if other ranks do not make it within the
            timeout.
        TransportError: if the ranks could not be connected, but no rank is known to be lost.
        ValueError: if torch.distributed has no process group, if this process is not in `group`, if
            the backend is neither gloo nor NCCL, and for an argument out of range.
        TypeError: for an argument of another type.
    """
    from cpd.comm import torch_transport

    timeout, chunk, seed = _options(timeout, chunk, seed)
    transport = torch_transport.transport(group, timeout)
    native = _core.python_communicator(transport, timeout, chunk)
    return Communicator(native, timeout, chunk, seed)


@checked
def local(
    size: int, *, seed: int = 0, timeout: float = DEFAULT_TIMEOUT, chunk: int = DEFAULT_CHUNK
) -> LocalGroup:
    """Makes a group of `size` ranks that are threads of this process.

    Args:
        size: the number of ranks, at least 1.
        seed: the seed of the communicators' reductions; default 0.
        timeout: the seconds after which a rank that does not answer is lost; default 300.
        chunk: the number of values in a chunk, 1…2^31 - 1; default 2^20. Data is sent and summed by
            chunks.

    Returns:
        The group, a `LocalGroup`. Its `run` calls a function on every rank.

    Raises:
        ValueError: for an argument out of range.
        TypeError: for an argument of another type.

    >>> import cpd, numpy as np
    >>> tensors = [np.ones(3, np.float32)]
    >>> with local(4) as group:
    ...     sums = group.run(lambda comm: comm.all_reduce(tensors, "e4m3"))
    >>> sums[0][0].tolist()
    [4.0, 4.0, 4.0]
    """
    number = at_least(1, "size", size)
    return LocalGroup(number, *_options(timeout, chunk, seed))


def _options(timeout: float, chunk: int, seed: int) -> tuple[float, int, int]:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number, got {type(timeout).__name__}")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout must be positive and finite, got {timeout}")
    number = integer("chunk", chunk)
    if not 1 <= number < 2**31:
        raise ValueError(f"chunk must be 1…2^31 - 1, got {number}")
    return float(timeout), number, whole_number("seed", seed)


attach(__name__)
