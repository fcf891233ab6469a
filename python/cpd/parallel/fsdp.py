# SPDX-License-Identifier: Apache-2.0
"""Hooks for FSDP2 (`torch.distributed.fsdp.fully_shard`): CPD reduces and scatters gradients."""

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
    """Sets a `ReduceScatter` in every FSDP module of `model`, and in `model` itself.

    FSDP passes the gradients of all parameters of an FSDP module as one flat tensor. This tensor is
    one tensor of the reduction, so the module's parameters share one APS scale. The module's index
    among the FSDP modules in `model.named_modules()` selects its random numbers. A `Schedule` uses
    the module's name in `named_modules()` (`""` for `model` itself).

    Args:
        model: a model to which `fully_shard` was applied.
        spec: a `Reduce` with the exchange `"owner"`, or a `Schedule` of such specs.
        comm: one communicator for all modules, of the ranks among which FSDP shards the parameters.
            The program must not use it for anything else. Default None: the first backward pass
            makes communicators.
        divide: when an average divides: `"after"` divides the sum, `"before"` each contribution.
            Default None: `spec` decides.
        seed: the seed of the random bits, the same on all ranks; default 0.

    Returns:
        A dict from the name of each FSDP module to its `ReduceScatter`.

    Raises:
        ValueError: if the model has no FSDP module, or if a pattern in `exempt` of the schedule
            matches no FSDP module.
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
    """A reduce-scatter of gradients for torch's `FSDPModule.set_custom_reduce_scatter`.

    Every rank receives its slice of the sum. The slice equals, bit for bit, this slice of
    `simulate_all_reduce` over all ranks' flat gradients, taken as one tensor. The result is ready
    when the call returns.

    Args:
        spec: a `Reduce` with the exchange `"owner"`, or a `Schedule` of such specs. FSDP's argument
            SUM or AVG decides whether the sum is averaged; `spec.average` is ignored.
        comm: a communicator of the ranks among which FSDP shards the parameters. The program must
            not use it for anything else. It must have at least `group_size` ranks. Default None:
            the first backward pass makes a communicator.
        name: the module's name, which a schedule uses; default "".
        number: the module's number, which selects its random numbers and must differ between
            modules; default 0.
        divide: when an average divides: `"after"` divides the sum, `"before"` divides each
            contribution; see `Reduce`. Default None: `spec` decides.
        seed: the seed of the random bits of casts, codecs and sums, the same on all ranks; default
            0.

    The attribute `step` is the number of the next call; every backward pass makes one call. The
    number selects the random numbers. The attribute `states` has the codec's state for this rank's
    tensor. If rounding is stochastic or a codec uses error feedback, store `state_dict()` in
    checkpoints. A codec that encodes rows or columns treats the flat gradients as a single row or
    column.

    If you call FSDP's `set_gradient_divide_factor`, also call
    `set_force_sum_reduction_for_comms(True)`. The reduce-scatter then returns the sum, and FSDP
    divides the sum by the factor. On a two-dimensional device mesh, torch (not CPD) sums over the
    replicas.
    """

    schedule: Schedule
    """The schedule of the reduction: the spec at each step."""
    seed: int
    """The seed of the random bits of casts, codecs and sums."""
    step: int
    """The number of the next call, which selects the random numbers."""
    name: str
    """The module's name."""
    states: States
    """The codec's state for this rank's tensor."""

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
            averaging(self.schedule, divide)  # raises ValueError for an invalid word
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
        """Bytes and time of this rank's last reduce-scatter; None before the first one."""
        return self._meter.last

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocates a flat tensor for FSDP.

        Args:
            size: the shape of the tensor.
            dtype: the tensor's dtype.
            device: the tensor's device.

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
        """Sets `output_tensor` to this rank's slice of the sum of all ranks' `input_tensor`.

        Raises ValueError if `input_tensor` has not W times as many values as `output_tensor` for W
        ranks, if `op` is neither SUM nor AVG, or if `async_op` is True.
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
        """Returns the step, the seed and the codec's state, as a dict of plain data."""
        return {"step": self.step, "seed": self.seed, "states": self.states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the step, the seed and the codec's state from a `state_dict`.

        Args:
            state: the result of `state_dict`.
        """
        check_keys("state", state, "states", "step")
        self.states.load_state_dict(state["states"])
        self.step, self.seed = state["step"], state.get("seed", self.seed)

    def reset(self) -> None:
        """Removes the codec's state, such as the residual."""
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
