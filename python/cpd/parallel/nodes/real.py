# SPDX-License-Identifier: Apache-2.0
"""Nodes that are each a process of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from cpd.comm import Communicator, TransportError, mpi
from cpd.comm import torch as torch_communicator
from cpd.comm.schedule import Schedule
from cpd.comm.virtual import LayerReport
from cpd.parallel.nodes.ranks import Tensors


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

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        return self.comm.all_gather_bytes(data[0])


@contextmanager
def connected(transport: str, timeout: float) -> Iterator[Communicator]:
    """This process's place among those of `mpi` or `torch`."""
    if transport == "mpi":
        with mpi(timeout=timeout) as comm:
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
        raise TransportError(f"torch.distributed did not start: {error}") from error
    try:
        with torch_communicator(timeout=timeout) as comm:
            yield comm
    finally:
        dist.destroy_process_group()


_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
