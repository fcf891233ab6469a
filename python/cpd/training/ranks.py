# SPDX-License-Identifier: Apache-2.0
"""Where the nodes of a training are: all in this process, or each a process of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

import cpd.comm
from cpd.comm import Communicator
from cpd.reduce import LayerReport
from cpd.schedule import Schedule

Tensors = list[torch.Tensor]

_LIMB = 1 << 24  # integers below it are exact in fp32
_LIMBS = 3


class Ranks(Protocol):
    """The nodes of a training: `world` in all, of which this process computes `mine`."""

    @property
    def world(self) -> int: ...
    @property
    def mine(self) -> range: ...

    def all_reduce(
        self, schedule: Schedule, names: Sequence[str], gradients: list[Tensors], step: int
    ) -> tuple[Tensors, list[LayerReport]]:
        """The sums over all nodes of [my node][layer], and what happened to all nodes' values."""
        ...

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """[node][tensor] of all nodes, from [my node][tensor]; fp32."""
        ...


class VirtualRanks:
    """All nodes in this process."""

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        self.world = nodes
        self.mine = range(nodes)

    def all_reduce(
        self, schedule: Schedule, names: Sequence[str], gradients: list[Tensors], step: int
    ) -> tuple[Tensors, list[LayerReport]]:
        return schedule.simulate_all_reduce(names, gradients, step=step, report=True)

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        return tensors


class RealRanks:
    """This process is one of the nodes; the others are reached through `comm`."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.world = comm.size
        self.mine = range(comm.rank, comm.rank + 1)

    def all_reduce(
        self, schedule: Schedule, names: Sequence[str], gradients: list[Tensors], step: int
    ) -> tuple[Tensors, list[LayerReport]]:
        sums, report = schedule.all_reduce(self.comm, names, gradients[0], step=step, report=True)
        return sums, report.layers

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        everyone: list[Tensors] = self.comm.all_gather(tensors[0], "fp32")
        return everyone


def gather_integers(ranks: Ranks, numbers: list[list[int]]) -> list[list[int]]:
    """[node][i] of all nodes, from [my node][i]: integers from 0 to 2^72 - 1."""
    limbs = [
        [torch.tensor([float(n >> 24 * i & _LIMB - 1) for i in range(_LIMBS) for n in row])]
        for row in numbers
    ]
    return [
        [sum(int(limb) << 24 * i for i, limb in enumerate(split)) for split in whole.tolist()]
        for whole in (row[0].reshape(_LIMBS, -1).T for row in ranks.gather(limbs))
    ]


@contextmanager
def open_ranks(transport: str, nodes: int | None, timeout: float) -> Iterator[Ranks]:
    """`virtual` nodes (8 if None), or this process's place among those of `mpi` or `torch`.

    `timeout`: seconds until a silent rank is lost. Raises ValueError where MPI, or what torch's
    launcher sets, is missing; cpd.comm.TransportError where the processes do not connect.
    """
    if transport == "virtual":
        yield VirtualRanks(8 if nodes is None else nodes)
        return
    with _communicator(transport, timeout) as comm:
        yield RealRanks(comm)


@contextmanager
def _communicator(transport: str, timeout: float) -> Iterator[Communicator]:
    if transport == "mpi":
        with cpd.comm.mpi(timeout=timeout) as comm:
            yield comm
        return
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    if missing:
        raise ValueError(
            f"transport torch needs {', '.join(_ENVIRONMENT)} in the environment, as torchrun sets "
            f"them; there is no {', '.join(missing)}"
        )
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    except dist.DistError as error:
        raise cpd.comm.TransportError(f"torch.distributed did not start: {error}") from error
    try:
        with cpd.comm.torch(timeout=timeout) as comm:
            yield comm
    finally:
        dist.destroy_process_group()


_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
