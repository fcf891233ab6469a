# SPDX-License-Identifier: Apache-2.0
"""The nodes of a training: all in this process, or each a separate process.

Their classes are loaded when they are first used, with torch.
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
    """Opens `virtual` nodes (8 if None), or this process's rank under `mpi` or `torch`.

    `timeout`: seconds until a silent rank is lost. Raises ValueError if MPI, or a variable of
    torch's launcher, is missing; cpd.comm.TransportError if the processes do not connect.
    """
    if transport == "virtual":
        yield VirtualRanks(8 if nodes is None else nodes)
        return
    from cpd.parallel.nodes.real import RealRanks, connected

    with connected(transport, timeout) as comm:
        yield RealRanks(comm)
