# SPDX-License-Identifier: Apache-2.0
"""Nodes that are separate processes: `RealRanks`, `RealNode` and `connected`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cpd.comm import Communicator, TransportError, distributed, mpi
from cpd.comm.schedule import Schedule
from cpd.comm.virtual import TensorReport
from cpd.compress.states import States
from cpd.parallel.launch import check_launched
from cpd.parallel.nodes.gradients import Loss, Watch, computed, named_parameters
from cpd.parallel.nodes.ranks import Tensors
from cpd.parallel.nodes.state import histories


class RealRanks:
    """The nodes of a training, one in each process, that exchange data through `comm`."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.world = comm.size
        self.mine = range(comm.rank, comm.rank + 1)

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """Gathers the tensors of all nodes through the communicator."""
        everyone: list[Tensors] = self.comm.all_gather(tensors[0], "fp32")
        return everyone

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        """Gathers the bytes of all nodes through the communicator."""
        return self.comm.all_gather_bytes(data[0])


class RealNode:
    """This process's node of a training in which every process has a copy of the model.

    Its `step` sums gradients over the processes. `cpd.VirtualNodes` does the same for nodes that
    are all in one process.
    """

    report: dict[str, TensorReport]
    """The report of each tensor in the last step, counted over all nodes."""
    states: States
    """The codec's states for this node's tensors."""

    def __init__(self, model: nn.Module, comm: Communicator, schedule: Schedule) -> None:
        self._model = model
        self._parameters = named_parameters(model)
        self._comm = comm
        self._schedule = schedule
        self.next_step = 0
        self.states = States()

    def step(self, loss: Loss, *, micro_batches: Iterable[Any], on_gradients: Watch) -> None:
        """Sets the parameters' `grad` to the sums of all nodes' gradients.

        `micro_batches` has one item: the micro-batch of this node.
        """
        names = list(self._parameters)
        for micro_batch in micro_batches:
            _, own = computed(loss, micro_batch, self._parameters)
            on_gradients(self._comm.rank, dict(zip(names, own, strict=True)))
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._all()]
        sums, report = self._comm.all_reduce(
            gradients,
            self._schedule,
            names=names,
            step=self.next_step,
            states=self.states,
            report=True,
        )
        for parameter, gradient in zip(self._all(), sums, strict=True):
            parameter.grad = gradient
        self.report = dict(zip(names, report.tensors, strict=True))
        self._join_histories()
        self.next_step += 1

    def _join_histories(self) -> None:
        """Sets each history of delayed scaling to the maximum over all nodes."""
        mine = [h for h in histories(dict(self._model.named_buffers())).values() if h is not None]
        if mine:
            nodes = self._comm.all_gather(mine, "fp32")
            for own, all_of in zip(mine, zip(*nodes, strict=True), strict=True):
                own.copy_(torch.stack(all_of).amax(0))

    def _all(self) -> Iterable[nn.Parameter]:
        return self._parameters.values()


@contextmanager
def connected(transport: str, timeout: float) -> Iterator[Communicator]:
    """Yields this process's communicator with the ranks that `mpirun` or `torchrun` started."""
    if transport == "mpi":
        with mpi(timeout=timeout) as comm:
            yield comm
        return
    check_launched()
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    except dist.DistError as error:
        raise TransportError(f"torch.distributed did not start: {error}") from error
    try:
        with distributed(timeout=timeout) as comm:
            yield comm
    finally:
        dist.destroy_process_group()
