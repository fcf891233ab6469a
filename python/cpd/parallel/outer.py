# SPDX-License-Identifier: Apache-2.0
"""Workers that train separately and are combined every N steps by CPD's all-reduce.

The all-reduce averages outer gradients (`DiLoCo`) or weights (`WeightAverage`).

A worker is a model with its own optimizer, the inner optimizer. Either each rank has one worker:
`DiLoCo(model, comm, spec, …)`. Or this process has all workers: `DiLoCo([model_0, …], None, spec,
…)`. Both ways give the same bits. The inner optimizers and the models' buffers (BatchNorm's running
statistics) are not combined.
"""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from cpd.comm import Communicator
from cpd.comm.schedule import ScheduleLike, as_schedule, averaging, specs_in_use
from cpd.comm.spec import Reduce, seeded, warn_of_stall
from cpd.comm.virtual import TensorReport, simulate_all_reduce
from cpd.compress.states import States
from cpd.numeric.checked import check_keys, checked
from cpd.numeric.formats import flag
from cpd.numeric.numbers import at_least
from cpd.numeric.numbers import number as whole_number
from cpd.parallel.nodes.gradients import number_of
from cpd.parallel.virtual_nodes import checked_parameters

__all__ = ["DiLoCo", "WeightAverage"]


class _Workers(abc.ABC):
    """The base of `DiLoCo` and `WeightAverage`: an all-reduce combines workers every few steps.

    This process has one worker (with `comm`) or all workers. The tensors (layers) of the all-reduce
    are the parameters that require a gradient, in the order of `named_parameters()`.
    """

    names: list[str]
    """The names of the parameters that require a gradient."""
    steps: int
    """The number of steps that each worker has made so far."""
    report: dict[str, TensorReport]
    """The report of each tensor that was combined by the last all-reduce, by name."""
    states: States
    """The codec's states for the tensors of this process's workers."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        comm: Communicator | None,
        spec: ScheduleLike,
        period: int,
        fragments: int = 1,
        seed: int = 0,
    ) -> None:
        self.seed = whole_number("seed", seed)
        self.models = _models(model, comm)
        self.comm = comm
        self.names = list(checked_parameters(self.models[0]))
        self.period = at_least(1, "period", period)
        schedule = as_schedule(spec)
        schedule._check_names(self.names)
        schedule._check_world(self.world_size)
        self.schedule = averaging(schedule)
        for part_spec in specs_in_use(self.schedule):
            warn_of_stall(part_spec, self.world_size)
        self.steps = 0
        self.report = {}
        self.states = States()
        self._check_beginning()
        self._fragments = _fragments(self._sizes(), fragments)

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return len(self.models) if self.comm is None else self.comm.size

    def step(self) -> bool:
        """Counts a step of the inner optimizers; every `period` steps it combines the workers.

        Call this method after each step of the inner optimizer. If this process has all workers,
        call it once, after all workers have made the step.

        Returns:
            True if parameters were combined in this step. All models then have the same weights for
            these parameters.

        Raises:
            FloatingPointError: if a contribution or an average is not finite. Models and states are
                then unchanged.
            RuntimeError: if a rank is lost (`RankLost`), or the transport fails (`TransportError`).
        """
        step = self.steps + 1
        numbers = self._due(step)
        if numbers:
            self._meet(numbers, (step - 1) // self.period)
        self.steps = step
        return bool(numbers)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a continued run needs besides models and optimizers, as a dict."""
        return {
            "steps": self.steps,
            "seed": self.seed,
            "world_size": self.world_size,
            "states": self.states.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state_dict`.

        Args:
            state: the result of `state_dict`; it is not changed.

        Raises:
            ValueError: if the state has another number of workers.
        """
        check_keys("state", state, "world_size", "steps")
        if state["world_size"] != self.world_size:
            raise ValueError(f"the state has {state['world_size']} workers, not {self.world_size}")
        self.states.load_state_dict(state.get("states", {"layers": []}))
        self.steps, self.seed = state["steps"], state.get("seed", self.seed)

    def reset(self, name: str | None = None) -> None:
        """Removes the codec's states of a parameter, such as its residual.

        Args:
            name: the parameter's name; default None: all parameters.

        Raises:
            ValueError: if no parameter has that name.
        """
        self.states.reset(None if name is None else number_of(name, self.names))

    def __repr__(self) -> str:
        workers = f"{self.world_size} worker{'s' * (self.world_size != 1)}"
        layers = f"{len(self.names)} tensor{'s' * (len(self.names) != 1)}"
        values = f"{sum(self._sizes()):,} values"
        return f"{type(self).__name__}({workers}, {layers} of {values}, every {self.period} steps)"

    @abc.abstractmethod
    def _contribution(self, number: int, local: torch.Tensor) -> torch.Tensor:
        """Returns a worker's float32 contribution to the all-reduce, from its weights `local`."""

    @abc.abstractmethod
    def _take(self, number: int, average: torch.Tensor) -> torch.Tensor:
        """Returns the layer's next weights, float32, from the average of contributions."""

    def _parameters(self, worker: int) -> list[nn.Parameter]:
        parameters = checked_parameters(self.models[worker])
        if list(parameters) != self.names:
            raise RuntimeError(
                "a model's parameters that require a gradient are others than when its "
                f"{type(self).__name__} was made"
            )
        return list(parameters.values())

    def _sizes(self) -> list[int]:
        return [parameter.numel() for parameter in self._parameters(0)]

    def _due(self, step: int) -> list[int]:
        """Returns the numbers of the layers that the all-reduce combines after step `step`."""
        count = len(self._fragments)
        offsets = [(f + 1) * self.period // count for f in range(count)]
        return [
            number
            for offset, fragment in zip(offsets, self._fragments, strict=True)
            if step % self.period == offset % self.period
            for number in fragment
        ]

    @torch.no_grad()
    def _meet(self, numbers: list[int], number_of_meeting: int) -> None:
        saved = self.states.state_dict()
        averages = dict(self._averages(numbers, number_of_meeting))
        try:
            self._check_finite(averages)
        except FloatingPointError:
            self.states.load_state_dict(saved)
            raise
        self.report = {self.names[n]: averages[n][1] for n in numbers}
        weights = {n: self._take(n, averages[n][0]) for n in numbers}
        for worker in range(len(self.models)):
            parameters = self._parameters(worker)
            for n in numbers:
                parameters[n].copy_(weights[n])

    def _averages(
        self, numbers: list[int], step: int
    ) -> Iterator[tuple[int, tuple[torch.Tensor, TensorReport]]]:
        """Averages tensors over workers; `numbers` are the tensors' indices.

        Yields each tensor's index, average and report.
        """
        for spec, part in self.schedule._parts(self.names, step, self._sizes()):
            chosen = [n for n in part if n in numbers]
            if chosen:
                if spec.format is None and spec.codec._needs_gradient:
                    self._set_gradients(chosen)
                averages, reports = self._all_reduce(chosen, spec, step)
                yield from zip(chosen, zip(averages, reports, strict=True), strict=True)

    def _all_reduce(
        self, numbers: list[int], spec: Reduce, step: int
    ) -> tuple[list[torch.Tensor], list[TensorReport]]:
        if self.comm is not None:
            mine = self._contributions(0, numbers)
            sums, report = self.comm.all_reduce(
                mine,
                seeded(spec, self.seed),
                step=step,
                numbers=numbers,
                states=self.states,
                report=True,
            )
            return sums, report.tensors
        workers = range(len(self.models))
        there = self._contributions if self._on_one_gpu() else self._on_host
        asked = [functools.partial(there, worker, numbers) for worker in workers]
        return simulate_all_reduce(
            asked, spec, seed=self.seed, step=step, numbers=numbers, states=self.states, report=True
        )

    def _set_gradients(self, numbers: list[int]) -> None:
        """Passes the root mean squares of gradients to the codec's states.

        The codec `uniform bits=gradient` computes its number of bits from the root mean square.
        """
        with nullcontext() if self.comm is None else self.comm._telling():
            for worker in range(len(self.models)):
                rank = worker if self.comm is None else None
                for n, parameter in enumerate(self._parameters(worker)):
                    if n in numbers and parameter.grad is not None:
                        self.states.set_gradient(n, _rms(parameter.grad), rank)

    def _on_one_gpu(self) -> bool:
        """Returns whether all workers' parameters are on one GPU, which then sums them."""
        workers = range(len(self.models))
        places = {p.device for worker in workers for p in self._parameters(worker)}
        return len(places) == 1 and places.pop().type == "cuda"

    def _on_host(self, worker: int, numbers: list[int]) -> list[torch.Tensor]:
        return [layer.cpu() for layer in self._contributions(worker, numbers)]

    @torch.no_grad()
    def _contributions(self, worker: int, numbers: list[int]) -> list[torch.Tensor]:
        parameters = self._parameters(worker)
        return [self._contribution(n, parameters[n].detach()) for n in numbers]

    def _check_finite(self, averages: Mapping[int, tuple[torch.Tensor, TensorReport]]) -> None:
        for number, (average, report) in averages.items():
            if report.non_finite:
                raise FloatingPointError(
                    f"{report.non_finite} values of tensor {self.names[number]} are not finite, of "
                    f"all {self.world_size} workers together; nothing was changed"
                )
            if not bool(average.isfinite().all()):
                raise FloatingPointError(
                    f"the average of tensor {self.names[number]} overflowed: aps=True, or a format "
                    "with a wider range, holds it; nothing was changed"
                )

    def _check_beginning(self) -> None:
        """Raises ValueError unless all workers have equal parameter names, weights and options."""
        digests = [self._digest(worker) for worker in range(len(self.models))]
        if self.comm is not None:
            digests = self.comm.all_gather_bytes(digests[0])
        for worker, digest in enumerate(digests):
            if digest != digests[0]:
                raise ValueError(
                    f"worker {worker} begins with other parameters or options than worker 0: "
                    "give all the same weights (torch.manual_seed, copy.deepcopy)"
                )

    def _digest(self, worker: int) -> bytes:
        digest = hashlib.sha256(repr(self._options()).encode())
        for name, parameter in checked_parameters(self.models[worker]).items():
            digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
            values = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(values.numpy().tobytes())
        return digest.digest()

    def _options(self) -> tuple[Any, ...]:
        """Returns the options that must be equal on all workers but that no all-reduce checks."""
        return type(self).__name__, self.period


@checked
class DiLoCo(_Workers):
    """Trains workers separately, and combines them every `period` steps by an outer optimizer.

    Each worker trains with any inner optimizer. Call `step()` after each step of the inner
    optimizer. Source: Douillard et al., DiLoCo, 2023; Streaming DiLoCo, 2025.

    A meeting is a step after which workers are combined. θ_start are the common weights after the
    last meeting, θ_local a worker's weights. A worker's outer gradient is θ_start − θ_local, in
    binary32. The all-reduce `spec` computes their average g. The outer optimizer is SGD with
    momentum: v ← momentum · v + g. The next start is θ_start − outer_lr · (g + momentum · v), or
    without `nesterov` θ_start − outer_lr · v. Each operation is rounded to binary32. All workers
    continue from the next start.

    Args:
        model: this rank's worker; or a list of all workers, each a separate model, with
            `comm=None`. Parameters are dense, float32, bfloat16 or float16, on the CPU or GPUs.
            Parameters that require a gradient are the tensors of the all-reduce. The common start
            is stored in float32. All workers must begin with the same weights.
        comm: a communicator of the ranks, one rank for each worker, which no other thread may use
            at the same time; None if `model` is a list.
        spec: a `Reduce`, its text, or a `Schedule`, in which one step is one meeting. Outer
            gradients are small: formats of narrow range need `aps=True` or scales. Example for
            four-bit outer gradients that are summed in fp32: `Reduce("e3m0", accumulator="fp32",
            aps=True, result="fp32")`.
        period: the number of steps from one meeting of a parameter to the next.
        outer_lr: the outer optimizer's learning rate; default 0.7. It may be changed between steps.
        momentum: the outer optimizer's momentum; default 0.9.
        nesterov: whether the outer optimizer uses Nesterov's momentum; default True.
        fragments: for Streaming DiLoCo: the number F of fragments into which parameters are
            divided; default 1. Fragments have about the same number of values. Of each `period`
            steps, fragment f is combined after step ⌊(f + 1) period / F⌋.
        seed: the seed of the random bits of casts, codecs and sums, the same on all ranks; default
            0.

    Raises:
        ValueError: for an invalid argument, or if workers begin with different parameters or
            options.
        TypeError: for an argument of another type.

    >>> models = [torch.nn.Linear(2, 1) for _ in range(2)]
    >>> _ = models[1].load_state_dict(models[0].state_dict())
    >>> optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    >>> spec = Reduce("e3m0", accumulator="fp32", aps=True, result="fp32")
    >>> outer = DiLoCo(models, None, spec, period=3)
    >>> outer
    DiLoCo(2 workers, 2 tensors of 3 values, every 3 steps)
    >>> def train():
    ...     for model, optimizer in zip(models, optimizers):
    ...         optimizer.zero_grad()
    ...         model(torch.randn(4, 2)).square().mean().backward()
    ...         optimizer.step()
    ...     return outer.step()
    >>> [train() for _ in range(6)]
    [False, False, True, False, False, True]
    >>> torch.equal(models[0].weight, models[1].weight), outer.report["bias"].overflowed
    (True, 0)
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        comm: Communicator | None,
        spec: ScheduleLike,
        period: int,
        *,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        fragments: int = 1,
        seed: int = 0,
    ) -> None:
        self.outer_lr = _number("outer_lr", outer_lr)
        self.momentum = _number("momentum", momentum)
        self.nesterov = flag("nesterov", nesterov)
        super().__init__(model, comm, spec, period, fragments, seed)
        self._start = [p.detach().float().clone() for p in self._parameters(0)]
        self._velocity = [torch.zeros_like(start) for start in self._start]

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a continued run needs besides models and optimizers, as a dict.

        The dict has the number of steps, the seed, the codec's states, and the start and the
        momentum of each parameter.
        """
        return super().state_dict() | {
            name: {n: x.clone() for n, x in zip(self.names, held, strict=True)}
            for name, held in self._held().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state_dict`.

        Args:
            state: the result of `state_dict`; it is not changed.

        Raises:
            ValueError: if the state has other parameters or another number of workers.
        """
        check_keys("state", state, "world_size", "steps", *self._held())
        for name, held in self._held().items():
            shapes = {n: x.shape for n, x in zip(self.names, held, strict=True)}
            if {n: x.shape for n, x in state[name].items()} != shapes:
                raise ValueError(f"the state's {name} is of other tensors than the model's")
        super().load_state_dict(state)
        for name, held in self._held().items():
            for n, x in zip(self.names, held, strict=True):
                x.copy_(state[name][n])

    def _held(self) -> dict[str, list[torch.Tensor]]:
        return {"start": self._start, "momentum": self._velocity}

    def _contribution(self, number: int, local: torch.Tensor) -> torch.Tensor:
        start = self._start[number]
        return start - local.to(start.device)

    def _take(self, number: int, average: torch.Tensor) -> torch.Tensor:
        start, velocity = self._start[number], self._velocity[number]
        average = average.to(start.device)
        velocity.mul_(self.momentum).add_(average)
        # `velocity * self.momentum` is a separate product, which is rounded. add_ with `alpha` may
        # fuse product and sum, and round only once.
        step = average + velocity * self.momentum if self.nesterov else velocity
        return start.sub_(step * self.outer_lr)

    def _options(self) -> tuple[Any, ...]:
        sgd = self.outer_lr, self.momentum, self.nesterov
        return *super()._options(), *sgd


@checked
class WeightAverage(_Workers):
    """Trains workers separately, and averages their weights every `period` steps.

    Source: Øland and Raj, Reducing communication overhead in distributed learning by an order of
    magnitude (almost), 2015. The all-reduce `spec` computes the average. Call `step()` after each
    step of the inner optimizer.

    Args:
        model: this rank's worker; or a list of all workers, each a separate model, with
            `comm=None`. Parameters are dense, float32, bfloat16 or float16. Those that require a
            gradient are averaged. All workers must begin with the same weights.
        comm: a communicator of the ranks, one rank for each worker, which no other thread may use
            at the same time; None if `model` is a list.
        spec: the all-reduce of the weights: a `Reduce` or its text, or a `Schedule`, in which one
            step is one averaging of weights.
        period: the number of steps from one averaging of weights to the next.
        seed: the seed of the random bits of casts, codecs and sums, the same on all ranks; default
            0.

    Raises:
        ValueError: for an invalid argument, or if workers begin with different parameters or
            options.
        TypeError: for an argument of another type.

    The codec `uniform bits=gradient` (§ 3.2 of the paper) computes its number of bits from
    gradients. At each averaging, each worker uses the root mean square of each parameter's `grad`.
    For a parameter without `grad` it uses the value that `states.set_gradient` has set, and raises
    ValueError if that value is missing.

    >>> models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    >>> for model in models:
    ...     _ = torch.nn.init.zeros_(model.weight)
    >>> outer = WeightAverage(models, None, "bf16", period=2)
    >>> for weight, model in enumerate(models):
    ...     _ = torch.nn.init.constant_(model.weight, weight)
    >>> [(outer.step(), models[0].weight.item()) for _ in range(2)]
    [(False, 0.0), (True, 0.5)]
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        comm: Communicator | None,
        spec: ScheduleLike,
        period: int,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(model, comm, spec, period, seed=seed)

    def _contribution(self, number: int, local: torch.Tensor) -> torch.Tensor:
        return local.float()

    def _take(self, number: int, average: torch.Tensor) -> torch.Tensor:
        return average


def _models(model: Any, comm: Any) -> list[nn.Module]:
    """Returns the models of this process's workers: one model, or a list if `comm` is None.

    Raises TypeError or ValueError for an invalid `model` or `comm`.
    """
    if comm is None:
        if isinstance(model, nn.Module) or not isinstance(model, Sequence):
            raise TypeError(
                "without a communicator, model must be a list of all workers' models, got "
                f"{type(model).__name__}"
            )
        if not model:
            raise ValueError("there must be at least one worker, got no models")
        if len({id(replica) for replica in model}) != len(model):
            raise ValueError("each worker needs a model of its own (copy.deepcopy)")
        return list(model)
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm must be a cpd.comm.Communicator, got {type(comm).__name__}")
    return [model]


def _fragments(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divides layers into `count` fragments, which are combined one after another in a period.

    Returns the layers' numbers for each fragment. All values, in order, are cut into equal parts.
    A layer belongs to the fragment in whose part the middle of the layer lies.
    """
    count = at_least(1, "fragments", count)
    if count > len(sizes):
        raise ValueError(
            f"fragments must be at most the number of tensors, {len(sizes)}, got {count}"
        )
    total = max(1, sum(sizes))
    before = itertools.accumulate(sizes, initial=0)
    places = [
        min(count - 1, count * (2 * begin + size) // (2 * total))
        for begin, size in zip(before, sizes, strict=False)
    ]
    return [[n for n, place in enumerate(places) if place == f] for f in range(count)]


def _rms(gradient: torch.Tensor) -> float:
    """Returns the root mean square of a gradient, computed in binary64; 0 if it has no values."""
    squares = gradient.detach().double().square()
    return math.sqrt(squares.mean().item()) if squares.numel() else 0.0


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be finite and at least 0, got {value}")
    return float(value)
