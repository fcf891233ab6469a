# SPDX-License-Identifier: Apache-2.0
"""FSDP2 (`torch.distributed.fsdp.fully_shard`): gradients are sharded by CPD's reduce-scatter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from cpd.comm import Communicator
from cpd.comm import torch as torch_communicator
from cpd.comm.schedule import Schedule, as_schedule, averaging
from cpd.comm.schedule import numbered as numbered
from cpd.comm.spec import ReduceSpec
from cpd.compress.states import States
from cpd.numeric.checked import check_keys, checked
from cpd.parallel.traffic import Meter, StepTraffic


@checked
def set_reduce_scatter(
    model: nn.Module,
    spec: ReduceSpec | Schedule,
    comm: Communicator | None = None,
    *,
    divide: Literal["after", "before"] | None = None,
) -> dict[str, ReduceScatter]:
    """Gives every FSDP module of `model`, itself included, a `ReduceScatter` of its own.

    A layer is one FSDP module: FSDP hands over the gradients of all its parameters as one flat
    tensor, so they share one APS exponent. Its number in random streams is its place among the FSDP
    modules of `model.named_modules()`; its name, by which a `Schedule` goes, is the one there
    (`""` for `model` itself). All share one communicator; `spec`, `comm` and
    `divide` as in `ReduceScatter`.

    Returns the reduce-scatter of each module, by name. Raises ValueError where nothing is sharded,
    or where an exempt name of the schedule matches no FSDP module.
    """
    modules = {name: m for name, m in model.named_modules() if isinstance(m, FSDPModule)}
    if not modules:
        raise ValueError("the model has no FSDP module: call fully_shard first")
    schedule = as_schedule(spec)
    schedule.check_names(list(modules))
    made: dict[str, ReduceScatter] = {}
    communicators: dict[dist.ProcessGroup, Communicator] = {}
    for layer, (name, module) in enumerate(modules.items()):
        made[name] = ReduceScatter(schedule, comm, name=name, layer=layer, divide=divide)
        made[name]._communicators = communicators
        cast(Any, module).set_custom_reduce_scatter(made[name])
    return made


@checked
class ReduceScatter:
    """For `FSDPModule.set_custom_reduce_scatter`: every rank keeps its part of the sum.

    The result is, bit for bit, this rank's part of `simulate_all_reduce` of all ranks' flat
    gradients as one layer. It is ready when the call returns.

    Args:
        spec: a `ReduceSpec` with exchange `"owner"`, or a `Schedule` of such. Whether the sum is
            averaged is FSDP's choice (SUM or AVG), not `spec.average`'s.
        comm: a communicator of the ranks among which parameters are sharded, at least as many as a
            group of `spec` has, which nothing else uses; default: one is made in the first backward
            pass.
        name: of the module, for the schedule.
        layer: its number in random streams; each module has its own.
        divide: where an average divides: `"after"` the sum or `"before"` it, each contribution;
            which is better when is said at `ReduceSpec`. None: as the spec says, whose default is
            `"after"`.

    `step` is the number of the next call, of which every backward pass makes one; it enters the
    random streams. `states` is what a codec keeps of this rank's layer. Keep both in checkpoints
    (`state_dict`) where rounding is stochastic or a codec feeds errors back. A codec has the flat
    gradients as one row, or one column.

    Where `set_gradient_divide_factor` is used, call `set_force_sum_reduction_for_comms(True)` too:
    the sum then comes from here and FSDP divides it. On a two-dimensional mesh the further sum,
    over replicas, remains torch's.
    """

    def __init__(
        self,
        spec: ReduceSpec | Schedule,
        comm: Communicator | None = None,
        *,
        name: str = "",
        layer: int = 0,
        divide: Literal["after", "before"] | None = None,
    ) -> None:
        self.schedule = as_schedule(spec)
        if comm is not None:
            self.schedule.check_world(comm.size)
        if divide is not None:
            averaging(self.schedule, divide)  # raises ValueError for another word
        self.divide = divide
        self.name = name
        self.layer = layer
        self.step = self.schedule.spec.step
        self.states = States()
        self._meter = Meter()
        self._comm = comm
        self._communicators: dict[dist.ProcessGroup, Communicator] = {}

    @property
    def traffic(self) -> StepTraffic | None:
        """What this module's reduce-scatter took on this rank in the last backward pass."""
        return self._meter.last

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for FSDP's flat tensors."""
        return torch.empty(tuple(size), dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """output_tensor = this rank's slice of the sum over ranks of input_tensor.

        Raises ValueError for sizes that do not fit, another op than SUM and AVG, or async_op.
        """
        comm = self._communicator(group)
        if async_op:
            raise ValueError("async_op must be False: the result is ready when the call returns")
        if input_tensor.numel() != comm.size * output_tensor.numel():
            raise ValueError(
                f"the input must have {comm.size} (ranks) × {output_tensor.numel()} (output) "
                f"values, got {input_tensor.numel()}"
            )
        chosen = self.schedule.spec_of(self.name, self.step, input_tensor.numel())
        spec = dataclasses.replace(
            chosen, average=_averages(op), divide=self.divide or chosen.divide
        )
        flat = input_tensor.reshape(-1)
        with self._meter.call(comm):
            (part,) = comm.reduce_scatter([flat], spec, numbers=[self.layer], states=self.states)
        self._meter.end(self.step)
        output_tensor.copy_(part.view_as(output_tensor))
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """The step, and what a codec keeps."""
        return {"step": self.step, "states": self.states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict`."""
        check_keys("state", state, "states", "step")
        self.states.load_state_dict(state["states"])
        self.step = state["step"]

    def reset(self) -> None:
        """Forgets what a codec keeps."""
        self.states.reset()

    def _communicator(self, group: dist.ProcessGroup) -> Communicator:
        if self._comm is not None:
            return self._comm
        if group not in self._communicators:
            self._communicators[group] = torch_communicator(group)
        return self._communicators[group]


def _averages(op: Any) -> bool:
    if op == dist.ReduceOp.SUM:
        return False
    if op == dist.ReduceOp.AVG:
        return True
    raise ValueError(
        f"the reduction must be SUM or AVG, got {op} (a gradient divide factor needs "
        "set_force_sum_reduction_for_comms(True))"
    )
