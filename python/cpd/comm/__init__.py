# SPDX-License-Identifier: Apache-2.0
"""All-reduce, and its parts, in a customized precision over real ranks.

>>> import cpd, numpy as np
>>> def step(comm):
...     return comm.all_reduce([np.float32([1 + comm.rank])], cpd.ReduceSpec("e4m3"))[0].item()
>>> cpd.comm.local(3).run(step)
[6.0, 6.0, 6.0]

A program of many processes asks for its own end of the group once, and all its ranks do:
`cpd.comm.mpi()` under mpirun, `cpd.comm.torch()` under torchrun, `cpd.comm.nccl(id, rank, size)`
between GPUs. What moves the messages never changes the bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cpd import _core
from cpd._core import DEFAULT_CHUNK, DEFAULT_TIMEOUT
from cpd.comm.communicator import Communicator, ReduceReport, Traffic
from cpd.comm.errors import Corrupt, Mismatch, RankLost, TransportError
from cpd.comm.launched import broken_promise
from cpd.comm.spec_text import reduce_spec
from cpd.comm.threads import LocalGroup
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32, integer
from cpd.numeric.warned import warn
from cpd.ops.device_memory import current_device

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "Communicator",
    "Corrupt",
    "LocalGroup",
    "Mismatch",
    "RankLost",
    "ReduceReport",
    "Traffic",
    "TransportError",
    "local",
    "mpi",
    "nccl",
    "nccl_id",
    "reduce_spec",
    "torch",
]


@checked
def mpi(*, timeout: float = DEFAULT_TIMEOUT, chunk: int = DEFAULT_CHUNK) -> Communicator:
    """All ranks of MPI_COMM_WORLD, which all call this. Starts MPI if it is not started.

    Args:
        timeout: seconds until a silent rank is lost, here too.
        chunk: values that are processed at once; memory in addition to inputs and results is a
            small multiple of it. The same on all ranks.

    Returns:
        This process's communicator. Warns (RuntimeWarning) by the name of the variable where a
        launcher has promised more ranks than MPI has started, as under srun without PMIx: each
        process is then rank 0 of 1, and no sum leaves it.

    Raises RuntimeError where MPI, or the library that was built with it, is not there.

    Raises RankLost with those that have not come within the timeout; before MPI runs, those of
    other hosts are not known by name. MPI cannot be used in this process after that.
    """
    timeout, chunk = _options(timeout, chunk)
    comm = Communicator(_core.mpi_communicator(timeout, chunk), timeout, chunk)
    if broken := broken_promise(comm.size):
        warn(broken, RuntimeWarning)
    return comm


def nccl_id() -> bytes:
    """A new name for a group of `nccl`: one rank makes it and sends it to the others."""
    return _core.make_nccl_id()


@checked
def nccl(
    id: bytes,
    rank: int,
    size: int,
    *,
    device: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    chunk: int = DEFAULT_CHUNK,
) -> Communicator:
    """Rank `rank` of `size` between GPUs, over NCCL; all of them call this.

    Args:
        id: what `nccl_id` returned on one rank.
        device: index of the CUDA device; default: torch's current one.
        timeout, chunk: as in `mpi`.

    Raises RuntimeError where NCCL, or the library that was built with it, is not there.
    """
    timeout, chunk = _options(timeout, chunk)
    if not isinstance(id, bytes):
        raise TypeError(f"id must be bytes, got {type(id).__name__}")
    rank, size = int32("rank", rank), int32("size", size)
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0…size - 1, got rank {rank} of {size}")
    index = current_device() if device is None else int32("device", device)
    native = _core.nccl_communicator(id, rank, size, index, 0, timeout, chunk)
    return Communicator(native, timeout, chunk)


@checked
def torch(
    group: ProcessGroup | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    chunk: int = DEFAULT_CHUNK,
) -> Communicator:
    """The ranks of a process group of torch.distributed, with gloo or NCCL as it has; all of them
    call this. The connections are new, not the group's own. Raises RankLost on all that have come
    where the others do not within the timeout.

    After ranks were lost, `subgroup` works only while torch's store answers: torchrun keeps it in
    its agent; without torchrun it is in rank 0's process.

    Args:
        group: default: the group of all ranks.
        timeout, chunk: as in `mpi`.
    """
    from cpd.comm import torch_transport

    timeout, chunk = _options(timeout, chunk)
    transport = torch_transport.transport(group, timeout)
    return Communicator(_core.python_communicator(transport, timeout, chunk), timeout, chunk)


@checked
def local(size: int, *, timeout: float = DEFAULT_TIMEOUT, chunk: int = DEFAULT_CHUNK) -> LocalGroup:
    """`size` ranks as threads of this process: see `LocalGroup`.

    Raises ValueError for a size below 1.

    >>> import cpd, numpy as np
    >>> layers, spec = [np.ones(3, np.float32)], cpd.ReduceSpec("e4m3")
    >>> with local(4) as group:
    ...     sums = group.run(lambda comm: comm.all_reduce(layers, spec))
    >>> sums[0][0].tolist()
    [4.0, 4.0, 4.0]
    """
    number = integer("size", size)
    if number < 1:
        raise ValueError(f"size must be at least 1, got {number}")
    return LocalGroup(number, *_options(timeout, chunk))


def _options(timeout: float, chunk: int) -> tuple[float, int]:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number, got {type(timeout).__name__}")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout must be positive and finite, got {timeout}")
    number = integer("chunk", chunk)
    if not 1 <= number < 2**31:
        raise ValueError(f"chunk must be 1…2^31 - 1, got {number}")
    return float(timeout), number
