# SPDX-License-Identifier: Apache-2.0
"""FSDP2 (`torch.distributed.fsdp.fully_shard`): gradients are sharded by CPD's reduce-scatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from cpd._lazy import attach
from cpd.comm import Communicator, distributed
from cpd.comm.schedule import Schedule, ScheduleLike, as_schedule, averaging
from cpd.comm.spec import seeded
from cpd.compress.states import States
from cpd.numeric.checked import check_keys, checked
from cpd.numeric.numbers import number as whole_number
from cpd.parallel.traffic import Meter, StepTraffic


@checked
def fsdp_hook(
    model: nn.Module,
    spec: ScheduleLike,
    comm: Communicator | None = None,
    *,
    divide: Literal["after", "before"] | None = None,
    seed: int = 0,
) -> dict[str, ReduceScatter]:
    """Gives every FSDP module of `model`, itself included, its own `ReduceScatter`.

    A tensor of the reduction is one FSDP module. FSDP passes the gradients of all its parameters as
    one flat tensor, so they share one APS exponent. The tensor's number in random streams is its
    index among the FSDP modules of `model.named_modules()`. A `Schedule` uses its name there (`""`
    for `model` itself).

    Args:
        model: a model with FSDP modules.
        spec: as in `ReduceScatter`.
        comm: one communicator for all modules, as in `ReduceScatter`; default None.
        divide: as in `ReduceScatter`; default None.
        seed: as in `ReduceScatter`; default 0.

    Returns:
        The reduce-scatter of each module, by name.

    Raises:
        ValueError: if nothing is sharded, or an exempt name of the schedule matches no FSDP module.
    """
    modules = {name: m for name, m in model.named_modules() if isinstance(m, FSDPModule)}
    if not modules:
        raise ValueError("the model has no FSDP module: call fully_shard first")
    schedule = as_schedule(spec)
    schedule._check_names(list(modules))
    hooks: dict[str, ReduceScatter] = {}
    communicators: dict[dist.ProcessGroup, Communicator] = {}
    for index, (name, module) in enumerate(modules.items()):
        hooks[name] = ReduceScatter(
            schedule, comm, name=name, number=index, divide=divide, seed=seed
        )
        hooks[name]._communicators = communicators
        cast(Any, module).set_custom_reduce_scatter(hooks[name])
    return hooks


@checked
class ReduceScatter:
    """For `FSDPModule.set_custom_reduce_scatter`: every rank receives its slice of the sum.

    The result is, bit for bit, this rank's slice of `simulate_all_reduce` of all ranks' flat
    gradients as one tensor. It is ready when the call returns.

    Args:
        spec: a `Reduce` with exchange `"owner"`, or a `Schedule` of such. FSDP chooses whether
            the sum is averaged (SUM or AVG), not `spec.average`.
        comm: a communicator of the ranks among which parameters are sharded, which nothing else
            uses. It has at least as many ranks as a group of `spec`. Default: one is made in the
            first backward pass.
        name: the module's name, for the schedule. Default: none.
        number: the module's number in random streams; each module has its own. Default 0.
        divide: when an average divides: `"after"` divides the sum, `"before"` each contribution;
            see `Reduce`. None: the spec's choice, by default `"after"`.
        seed: the seed of the random bits of casts, codecs and sums, the same on all ranks; default
            0.

    `step` is the number of the next call; every backward pass makes one call. The number enters the
    random streams. `states` is the codec's state for this rank's tensor. Save both in checkpoints
    (`state_dict`) if rounding is stochastic or a codec feeds errors back. A codec treats the flat
    gradients as one row, or one column.

    With `set_gradient_divide_factor`, also call `set_force_sum_reduction_for_comms(True)`: the
    reduce-scatter then returns the sum, and FSDP divides it. On a two-dimensional mesh, torch
    computes the further sum over replicas.
    """

    schedule: Schedule
    """The spec or schedule of the reduction."""
    seed: int
    """The seed of the random bits of casts, codecs and sums."""
    step: int
    """The number of the next call; enters the random streams."""
    name: str
    """The module's name."""
    states: States
    """The state that a codec stores for this rank's tensor."""

    def __init__(
        self,
        spec: ScheduleLike,
        comm: Communicator | None = None,
        *,
        name: str = "",
        number: int = 0,
        divide: Literal["after", "before"] | None = None,
        seed: int = 0,
    ) -> None:
        self.schedule = as_schedule(spec)
        if comm is not None:
            self.schedule._check_world(comm.size)
        if divide is not None:
            averaging(self.schedule, divide)  # raises ValueError for another word
        self._divide = divide
        self.seed = whole_number("seed", seed)
        self.name = name
        self.number = number
        self.step = 0
        self.states = States()
        self._meter = Meter()
        self._comm = comm
        self._communicators: dict[dist.ProcessGroup, Communicator] = {}

    @property
    def traffic(self) -> StepTraffic | None:
        """The reductions of the last ended backward pass on this rank, as `HookState.traffic`."""
        return self._meter.last

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Returns memory for FSDP's flat tensors.

        Args:
            size: the shape.
            dtype: the type.
            device: the device.

        Returns:
            An uninitialized tensor.
        """
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
        spec = chosen.replace(average=_averages(op), divide=self._divide or chosen.divide)
        flat = input_tensor.reshape(-1)
        with self._meter.call(comm):
            (part,) = comm.reduce_scatter(
                [flat],
                seeded(spec, self.seed),
                step=self.step,
                numbers=[self.number],
                states=self.states,
            )
        self._meter.end(self.step)
        output_tensor.copy_(part.view_as(output_tensor))
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the step, and the state that a codec stores."""
        return {"step": self.step, "seed": self.seed, "states": self.states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`.

        Args:
            state: the state.
        """
        check_keys("state", state, "states", "step")
        self.states.load_state_dict(state["states"])
        self.step, self.seed = state["step"], state.get("seed", self.seed)

    def reset(self) -> None:
        """Forgets the state that a codec stores."""
        self.states.reset()

    def _communicator(self, group: dist.ProcessGroup) -> Communicator:
        if self._comm is not None:
            return self._comm
        if group not in self._communicators:
            self._communicators[group] = distributed(group)
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


attach(__name__)
