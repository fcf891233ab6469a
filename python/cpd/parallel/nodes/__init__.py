# SPDX-License-Identifier: Apache-2.0
"""The nodes (workers) of a training: all in this process, or one in each of several processes.

`RealNode` and `RealRanks` need torch, so they are imported when they are first used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cpd._lazy import attach
from cpd.parallel.nodes.ranks import Ranks, RanksDiffer, Tensors, gather_integers
from cpd.parallel.nodes.virtual import VirtualRanks

if TYPE_CHECKING:
    from cpd.parallel.nodes.real import RealNode, RealRanks

__all__ = [
    "Ranks",
    "RanksDiffer",
    "RealNode",
    "RealRanks",
    "Tensors",
    "VirtualRanks",
    "gather_integers",
    "open_ranks",
]

attach(__name__)


@contextmanager
def open_ranks(transport: str, nodes: int | None, timeout: float) -> Iterator[Ranks]:
    """Yields the nodes of a training, for a `with` block.

    The transport `virtual` makes `nodes` nodes (None: 8) in this process. With `mpi` or `torch`,
    each process is one node, and connects to the other processes. A rank that does not answer
    within `timeout` seconds is lost. Raises ValueError if a variable that torchrun sets is missing,
    RuntimeError if MPI is missing, and cpd.comm.TransportError if the processes do not connect.
    """
    if transport == "virtual":
        yield VirtualRanks(8 if nodes is None else nodes)
        return
    from cpd.parallel.nodes.real import RealRanks, connected

    with connected(transport, timeout) as comm:
        yield RealRanks(comm)
