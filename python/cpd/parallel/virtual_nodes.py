# SPDX-License-Identifier: Apache-2.0
"""`VirtualNodes`: emulates the training of a model over many nodes, in one process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpd import _core
from cpd.comm.costs import Cost, cost_of_step
from cpd.comm.schedule import Schedule, ScheduleLike, as_schedule, divided, specs_in_use
from cpd.comm.spec import warn_of_stall
from cpd.comm.virtual import TensorReport
from cpd.compress.states import Owner, States
from cpd.numeric.checked import check_keys, check_module, checked
from cpd.numeric.formats import flag
from cpd.numeric.numbers import at_least, int32, integer, number
from cpd.numeric.shown import byte_size, shown
from cpd.ops.flat import check_layer
from cpd.parallel.nodes.batches import first, split
from cpd.parallel.nodes.folds import Folds
from cpd.parallel.nodes.gradients import (
    Gradients,
    Loss,
    Watch,
    computed,
    named_parameters,
    number_of,
)
from cpd.parallel.nodes.keep import Disk, Keep, Memory, check_room
from cpd.parallel.nodes.state import Buffers, Generators, Randomness, Values, histories
from cpd.parallel.traffic import StepTraffic

KEEPS = ("memory", "disk", "recompute")


@checked
class VirtualNodes:
    """Trains `model` as `nodes` virtual nodes, whose gradients CPD's all-reduce sums.

    Each step computes every node's loss and gradients on its own micro-batch, one node after the
    other. It then sets the parameters' `grad` to the reduced gradients. The gradients equal, bit
    for bit, the gradients of `nodes` ranks of DistributedDataParallel with `cpd.ddp_hook(spec)`,
    and the results of `cpd.simulate_all_reduce`.

    Args:
        model: the model, with dense float32, bfloat16 or float16 parameters, on the CPU or GPUs. If
            all gradients are on one GPU, they are cast and summed on it (on the host for a codec
            without CUDA kernels). Otherwise they are copied to the CPU. The tensors of the
            all-reduce are the parameters that require a gradient, in the order of
            `named_parameters()`. Each tensor has its own scale. A tensor's index selects its random
            numbers, and its name its spec in a `Schedule`. A shared parameter counts once. bfloat16
            and float16 gradients are widened before the sum; the result is rounded to nearest.
        nodes: the number of nodes.
        spec: a `Reduce`, an argument of its constructor such as its text, or a `Schedule`, whose
            steps are counted by `next_step`.
        keep: where to store gradients when the sum must wait for all nodes: with APS, which first
            needs all nodes' exponents, and for the order `ring`. `"memory"` (default) stores
            gradients unchanged in the host's memory, `"disk"` in a temporary file. `"recompute"`
            stores only the exponents: each node computes its loss and gradients once more (twice
            more for APS with `ring`), with the same buffers and random numbers. With other orders,
            memory holds one node's gradients and the sums. `kept_bytes` counts the stored bytes.
        average: whether to divide by the number of nodes; default True. False: `spec` decides.
        divide: when to divide: `"after"` divides the sum, `"before"` divides each contribution, as
            torch's DDP does; see `Reduce`. Default None: `spec` decides.
        broadcast_buffers: with True (default), every node begins a step with the buffers of node 0
            (BatchNorm's running statistics), as in DDP. With False, each node has its own buffers;
            the model has the buffers of node 0. In both cases, the histories of delayed scaling are
            combined by their maximum at the end of each step, also in `no_sync`. (Ranks of DDP
            combine them at each call of the model.)
        generators: one seed for each node. A node then has its own states of torch's generators, as
            a rank after torch.manual_seed(seed). Default None: nodes draw random numbers (dropout)
            one after the other from torch's generators.
        folder: the folder of `keep="disk"`; default None: the system's folder for temporary files.
        seed: the seed of the random bits of casts, codecs and sums; default 0.

    Attributes:
        model: the model.
        world_size: the number of nodes.
        names: the parameters' names, in their order.
        schedule: the spec of each tensor at each step.
        seed: the seed of the random bits.
        next_step: the number of the next step, which selects the random numbers.
        states: the codec's states for all nodes' tensors, such as residuals of error feedback.
        losses: the losses of the nodes in the last step, 1-D.
        report: the `TensorReport` of each tensor in the last step, by name.
        traffic: the bytes that node 0 would have sent in the last step, and the seconds that the
            casts and sums of all nodes took in this process; None before the first step.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.
        MemoryError: if gradients to store do not fit into memory.
        OSError: if gradients to store do not fit on the disk.

    To accumulate gradients in each node before the reduction, as in DDP, let `loss` yield several
    losses, or make steps in `no_sync`.

    A missing gradient counts as zeros, as in DDP with find_unused_parameters. If all nodes lack it,
    `grad` is None. A step that raises leaves gradients, buffers, generators and states unchanged.

    >>> model = torch.nn.Linear(2, 1)
    >>> nodes = VirtualNodes(model, nodes=4, spec="e4m3 aps")
    >>> nodes
    VirtualNodes(4 nodes, 2 tensors of 3 values, 48 bytes of gradients kept in memory)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for images in torch.randn(3, 8, 2):  # three batches, two images for each node
    ...     loss = nodes.step(lambda micro: model(micro).square().mean(), images)
    ...     optimizer.step()
    >>> nodes.next_step, nodes.losses.shape, nodes.report["weight"].overflowed
    (3, torch.Size([4]), 0)
    """

    def __init__(
        self,
        model: nn.Module,
        nodes: int,
        spec: ScheduleLike,
        keep: Literal["memory", "disk", "recompute"] | None = None,
        *,
        average: bool = True,
        divide: Literal["after", "before"] | None = None,
        broadcast_buffers: bool = True,
        generators: Sequence[int] | None = None,
        folder: str | None = None,
        seed: int = 0,
    ) -> None:
        parameters = checked_parameters(model)
        self.model = model
        self.world_size = int32("nodes", nodes)
        at_least(1, "nodes", nodes)
        self.seed = number("seed", seed)
        self.names = list(parameters)
        self.schedule = divided(self._checked(as_schedule(spec)), average, divide)
        for part_spec in specs_in_use(self.schedule):
            warn_of_stall(part_spec, self.world_size)
        if keep is not None and keep not in KEEPS:
            raise ValueError(f"keep must be None or one of {', '.join(KEEPS)}, got {shown(keep)}")
        self._keep = "memory" if keep is None else keep
        self._broadcast_buffers = flag("broadcast_buffers", broadcast_buffers)
        self._folder = folder
        self.next_step = 0
        self.losses = torch.empty(0)
        self.report: dict[str, TensorReport] = {}
        self.traffic: StepTraffic | None = None
        self._costs: dict[bool, Cost] = {}
        self.states = States()
        check_room(self._keep, self.kept_bytes, folder)
        self._generators = None if generators is None else self._seeded(generators)
        self._buffers = None if broadcast_buffers else [Buffers(model).values] * self.world_size
        self._reduces = True
        self._added: Added | None = None

    @property
    def kept_bytes(self) -> int:
        """The largest number of bytes of gradients that a step stores, in memory or on disk."""
        if self._keep == "recompute":
            return 0
        sizes = [p.numel() * p.element_size() for p in named_parameters(self.model).values()]
        return self.world_size * max(
            sum(sizes[number] for number in folds.kept) for folds in self._both_folds()
        )

    def step(
        self,
        loss: Loss,
        batch: Any = None,
        *,
        micro_batches: Iterable[Any] | None = None,
        on_gradients: Watch | None = None,
    ) -> torch.Tensor:
        """Makes one step of all nodes, and sets the parameters' `grad` to the reduced gradients.

        Args:
            loss: a function of a node's micro-batch that returns its loss, a tensor of one value.
                If it yields several losses, their gradients are added in the node before the
                reduction (gradient accumulation).
            batch: a tensor, or a tuple, list or dict of batches. It is cut into equal parts for the
                nodes along each tensor's first dimension, a multiple of the number of nodes.
            micro_batches: instead of `batch`, an iterable of micro-batches of any type, one for
                each node. An iterator is advanced once for each node. With `"recompute"` the step
                keeps references to all of them.
            on_gradients: a function that is called with each node's number and a dict of its
                gradients, before the reduction. It may store the gradients, but must not change
                them. Default None.

        Returns:
            The mean of the nodes' losses, detached.

        Raises:
            ValueError: if the batch cannot be divided, or if there are too few micro-batches.
            TypeError: for an argument of another type.
            RuntimeError: if `"recompute"` computes another loss for a node than before.
        """
        if (batch is None) == (micro_batches is None):
            got = "neither" if batch is None else "both"
            raise TypeError(f"step takes either a batch or micro_batches, got {got}")
        batches = split(batch, self.world_size) if micro_batches is None else micro_batches
        micro_batches = first(batches, self.world_size)
        parameters = self._parameters()
        if not self._reduces:
            self.losses = self._accumulate(loss, micro_batches, parameters)
            return self.losses.mean()
        with self.states._used(Owner(self.world_size, None)) as states:
            folds = self._folds(parameters, self.next_step, states)
            begun = _Step(self, loss, on_gradients, parameters, folds)
            reduced, losses = begun.run(micro_batches)
        self._generators = begun.generators
        self._buffers = None if self._broadcast_buffers else begun.own_buffers
        for parameter, (gradient, _) in zip(parameters.values(), reduced, strict=True):
            parameter.grad = gradient
        self.report = {n: report for n, (_, report) in zip(parameters, reduced, strict=True)}
        self.traffic = self._traffic(begun.seconds)
        self.losses = losses
        self.next_step += 1
        self.drop_accumulated()
        return losses.mean()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which steps accumulate gradients in each node without a reduction.

        It works as DistributedDataParallel's no_sync. The next step outside the context adds its
        gradients and reduces the sums. Until then `grad`, `report` and `next_step` are unchanged.
        All nodes' gradients are stored, on disk with `keep="disk"`, else in memory.

        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> nodes = VirtualNodes(model, 2, "fp32")
        >>> with nodes.no_sync():
        ...     _ = nodes.step(lambda x: model(x).sum(), torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        >>> _ = nodes.step(lambda x: model(x).sum(), torch.ones(2, 2))
        >>> model.weight.grad.tolist()  # the mean over the nodes of their sums
        [[1.5, 2.5]]
        """
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def drop_accumulated(self) -> None:
        """Deletes the gradients that steps in `no_sync` have accumulated."""
        added, self._added = self._added, None
        if added is not None:
            added.gradients.close()

    def _accumulate(
        self, loss: Loss, micro_batches: Iterable[Any], parameters: dict[str, nn.Parameter]
    ) -> torch.Tensor:
        """Computes a step in `no_sync`: adds to the nodes' stored gradients. Returns the losses."""
        needed = self.world_size * sum(p.numel() * p.element_size() for p in parameters.values())
        keep = "disk" if self._keep == "disk" else "memory"
        check_room(keep, needed, self._folder)
        gathered = Disk(self._folder) if keep == "disk" else Memory()
        try:
            begun = _Step(self, loss, None, parameters, None, gathered)
            _, losses = begun.run(micro_batches)
        except BaseException:
            gathered.close()
            raise
        self._generators = begun.generators
        self._buffers = None if self._broadcast_buffers else begun.own_buffers
        self.drop_accumulated()
        self._added = Added(gathered, begun.own_buffers or [])
        return losses

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a continued run needs besides the model and its optimizer.

        The dict has the next step, the seed, the schedule, the nodes' generators and buffers, and
        the codec's states. It does not have accumulated gradients: the method raises RuntimeError
        if some are not reduced yet.
        """
        if self._added is not None:
            raise RuntimeError(
                "the nodes hold gradients of steps in no_sync that are not reduced yet: save after "
                "the step that reduces them, or call drop_accumulated"
            )
        own = self._generators
        return {
            "next_step": self.next_step,
            "seed": self.seed,
            "world_size": self.world_size,
            "schedule": self.schedule,
            "generators": None if own is None else [(state.host, state.gpus) for state in own],
            "buffers": self._buffers,
            "states": self.states.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state_dict`.

        Args:
            state: the result of `state_dict`.

        Raises:
            ValueError: if the numbers of nodes in the state and in this object differ. Also if only
                one of the two has separate random generators or buffers for each node.
        """
        check_keys("state", state, "world_size", "generators", "buffers", "schedule", "next_step")
        if state["world_size"] != self.world_size:
            raise ValueError(f"the state has {state['world_size']} nodes, not {self.world_size}")
        for name, own in (("generators", self._generators), ("buffers", self._buffers)):
            if (state[name] is None) != (own is None):
                raise ValueError(f"the state and these nodes differ in whether nodes have {name}")
        schedule = self._checked(state["schedule"])
        for values in state["buffers"] or ():
            Buffers(self.model).check(values)
        self.states.load_state_dict(state.get("states", {"layers": []}))
        if self._generators is not None:
            self._generators = [Generators(host, gpus) for host, gpus in state["generators"]]
        self.schedule, self.next_step = schedule, state["next_step"]
        self.seed = state.get("seed", self.seed)  # version 0.7 had it in the specs
        self._buffers = state["buffers"]

    def reset(self, name: str | None = None) -> None:
        """Removes the codec's states of a parameter, such as residuals, on all nodes.

        Args:
            name: the parameter's name; default None: all parameters.

        Raises:
            ValueError: if no parameter has that name.
        """
        self.states.reset(None if name is None else number_of(name, self.names))

    def __repr__(self) -> str:
        values = sum(p.numel() for p in named_parameters(self.model).values())
        several = any(folds.sweeps > 1 for folds in self._both_folds())
        storage = "nothing kept"
        if several and self._keep == "recompute":
            storage = "gradients recomputed"
        elif several:
            storage = f"{byte_size(self.kept_bytes)} of gradients kept {_WHERE[self._keep]}"
        layers = f"{len(self.names)} tensor{'s' * (len(self.names) != 1)}"
        nodes = f"{self.world_size} node{'s' * (self.world_size != 1)}"
        return f"VirtualNodes({nodes}, {layers} of {values:,} values, {storage})"

    def _checked(self, schedule: Schedule) -> Schedule:
        schedule._check_names(self.names)
        schedule._check_world(self.world_size)
        return schedule

    def _seeded(self, seeds: Sequence[int]) -> list[Generators]:
        numbers = [integer("generators", seed) for seed in seeds]
        if len(numbers) != self.world_size:
            raise ValueError(f"there are {self.world_size} nodes but {len(numbers)} generators")
        return [Generators.seeded(number, _gpus(self._parameters())) for number in numbers]

    def _traffic(self, seconds: float) -> StepTraffic:
        """Returns the step's traffic. The number of bytes changes only at step `first_steps`."""
        is_first = self.next_step < self.schedule.first_steps
        if is_first not in self._costs:
            shapes = {n: tuple(p.shape) for n, p in named_parameters(self.model).items()}
            computed = cost_of_step(self.schedule, self.world_size, shapes, self.next_step)
            self._costs[is_first] = computed
        cost = self._costs[is_first]
        return StepTraffic(self.next_step, cost.bytes_sent, seconds, cost.exact)

    def _parameters(self) -> dict[str, nn.Parameter]:
        parameters = named_parameters(self.model)
        if list(parameters) != self.names:
            raise RuntimeError(
                "the model's parameters that require a gradient are others than when its "
                "VirtualNodes was made: make a new one, and set its next_step"
            )
        return parameters

    def _both_folds(self) -> list[Folds]:
        """Returns plans (`Folds`) of the sums of steps before `first_steps`, and of later steps."""
        layers = named_parameters(self.model)
        return [self._folds(layers, step) for step in (0, self.schedule.first_steps)]

    def _folds(
        self,
        layers: Mapping[str, torch.Tensor],
        step: int,
        states: _core.CodecStates | None = None,
    ) -> Folds:
        """Returns a step's all-reduce (`Folds`). Without `states`, it is a plan without memory."""
        shapes = {name: tuple(layer.shape) for name, layer in layers.items()}
        planned = states is None
        places = {layer.device for layer in layers.values()}
        device = places.pop() if len(places) == 1 else None
        options: dict[str, Any] = {"planned": planned, "device": device, "seed": self.seed}
        return Folds(self.schedule, shapes, self.world_size, step, states, **options)


class Added(NamedTuple):
    """Each node's gradients and buffers after steps in `no_sync`, for the next step."""

    gradients: Keep
    buffers: list[Values]
    """Each node's buffers. As in DDP, all nodes have node 0's before the first of these steps."""


class _Step:
    """Computes one training step of all nodes: losses, gradients and reduced gradients."""

    generators: list[Generators] | None
    """Each node's random generators after the step; None: the nodes share the program's."""
    own_buffers: list[Values] | None
    """Each node's buffers after the step; None: all nodes use the same buffers."""
    seconds: float
    """The seconds that casts and sums have taken."""

    def __init__(
        self,
        nodes: VirtualNodes,
        loss: Loss,
        watch: Watch | None,
        parameters: dict[str, nn.Parameter],
        folds: Folds | None,
        gathered: Keep | None = None,
    ) -> None:
        """Prepares a step. `folds` sums gradients or, in `no_sync`, `gathered` stores them."""
        self._loss, self._watch = loss, watch
        self._parameters = parameters
        self._folds = folds
        self._gathered = gathered
        self._added = nodes._added
        self._gpus = _gpus(parameters)
        self._buffers = Buffers(nodes.model)
        self.generators = None if nodes._generators is None else list(nodes._generators)
        self.own_buffers = None if nodes._buffers is None else list(nodes._buffers)
        if nodes._broadcast_buffers and self._added is not None:
            self.own_buffers = list(self._added.buffers)
        elif nodes._broadcast_buffers and gathered is not None:
            self.own_buffers = [self._buffers.values] * nodes.world_size
        self._begin_buffers = [self._buffers.values, *(self.own_buffers or ())[1:]]
        self._keep: Keep | None = None
        several = folds is not None and folds.sweeps > 1
        self._recomputes = several and nodes._keep == "recompute"
        if several and not self._recomputes:
            self._keep = Disk(nodes._folder) if nodes._keep == "disk" else Memory()
        self._inputs: list[tuple[Any, Randomness]] = []  # from which nodes are computed again
        self._losses: list[torch.Tensor] = []
        self._again: list[tuple[int, torch.Tensor]] = []
        self._end: Values = {}  # node 0's buffers after the step
        self._unused = list(range(len(parameters)))
        self.seconds = 0.0

    def run(
        self, micro_batches: Iterable[Any]
    ) -> tuple[list[tuple[torch.Tensor | None, TensorReport]], torch.Tensor]:
        """Returns the reduced gradients with their reports, and the losses.

        In `no_sync`, nothing is reduced and the first list is empty. Buffers and generators
        advance. If this method raises, it restores the buffers, the generators and the gradients.
        """
        before = Randomness.now(self._gpus)
        gradients = [parameter.grad for parameter in self._parameters.values()]
        try:
            for node, micro_batch in enumerate(micro_batches):
                self._first(node, micro_batch)
            after = Randomness.now(self._gpus)
            losses = torch.stack(self._losses)
            results = [] if self._folds is None else self._results(self._folds, losses)
        except BaseException:
            self._buffers.put(self._buffers.values)
            before.restore()
            raise
        finally:
            for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
                parameter.grad = gradient
            if self._keep is not None:
                self._keep.close()
        self._buffers.put(self._end)
        for values in self.own_buffers or ():
            values |= histories(self._end)
        after.restore()
        if self.generators is not None:
            before.generators.restore()
        return results, losses

    def _results(
        self, folds: Folds, losses: torch.Tensor
    ) -> list[tuple[torch.Tensor | None, TensorReport]]:
        """Returns the reduced gradients, after passes over the nodes that the sums still need."""
        for node in self._later(folds):
            gradients = self._get(node)
            with self._timed():
                folds.take(node, gradients)
        self._check_losses(losses)
        with self._timed():
            results = folds.results(list(self._parameters.values()))
        folds.commit()
        for unused in self._unused:
            results[unused] = (None, results[unused][1])
        return results

    def _first(self, node: int, micro_batch: Any) -> None:
        """Computes a node's loss and gradients; adds the gradients to the sums or stores them."""
        if self.generators is not None:
            self.generators[node].restore()
        if self._recomputes:
            self._inputs.append((micro_batch, Randomness.now(self._gpus)))
        loss, gradients = self._compute(node, micro_batch)
        self._losses.append(loss)
        if self.generators is not None:
            self.generators[node] = Generators.now(self._gpus)
        self._read_buffers(node)
        if self._gathered is not None:
            self._gathered.put(node, [None if g is None else g.cpu() for g in gradients])
        if self._folds is None:
            return
        if self._watch is not None:
            self._watch(node, dict(zip(self._parameters, gradients, strict=True)))
        self._unused = [number for number in self._unused if gradients[number] is None]
        with self._timed():
            self._folds.take(node, gradients)
        if self._keep is not None:
            stored = self._folds.kept
            chosen = [g if n in stored else None for n, g in enumerate(gradients)]
            self._keep.put(node, [None if g is None else g.cpu() for g in chosen])

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """A context that adds the time of its `with` block to `seconds`."""
        begin = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begin

    def _later(self, folds: Folds) -> Iterator[int]:
        """Yields, for each pass over the nodes after the first, the nodes that the sums need."""
        for _ in range(folds.sweeps - 1):
            for node in range(len(self._losses)):
                if folds.awaits(node):
                    yield node

    def _get(self, node: int) -> Gradients:
        """Returns the node's gradients from the store, or computes them again."""
        if self._keep is not None:
            return self._keep.get(node)
        micro_batch, randomness = self._inputs[node]
        randomness.restore()
        loss, gradients = self._compute(node, micro_batch)
        self._again.append((node, loss))
        return gradients

    def _compute(self, node: int, micro_batch: Any) -> tuple[torch.Tensor, Gradients]:
        """Puts a node's buffers into the model, then computes the node's loss and gradients."""
        own = self.own_buffers is not None
        self._buffers.put(self._begin_buffers[node if own else 0])
        before = None if self._added is None else self._added.gradients.get(node)
        return computed(self._loss, micro_batch, self._parameters, before)

    def _read_buffers(self, node: int) -> None:
        """Stores the model's buffers, such as running statistics, after the node's computation."""
        if node == 0:
            self._end = self._buffers.read()
        else:
            self._buffers.raise_histories(self._end)
        if self.own_buffers is not None:
            self.own_buffers[node] = self._buffers.read()

    def _check_losses(self, losses: torch.Tensor) -> None:
        """Raises RuntimeError if a node's loss differs when the node is computed again."""
        if not self._again:
            return
        again = torch.stack([loss for _, loss in self._again])
        before = losses[[node for node, _ in self._again]]
        differ = (again != before) & ~(again.isnan() & before.isnan())
        if bool(differ.any()):
            place = int(differ.nonzero()[0])
            raise RuntimeError(
                f"node {self._again[place][0]} has the loss {float(before[place])!r}, and "
                f"{float(again[place])!r} when it is computed again: what 'recompute' calls must "
                "give the same each time; keep the gradients in 'memory' or on 'disk'"
            )


_WHERE = {"memory": "in memory", "disk": "on disk"}


def checked_parameters(model: Any) -> dict[str, nn.Parameter]:
    """Returns `named_parameters`; raises ValueError or TypeError for unsupported parameters."""
    check_module("model", model)
    if isinstance(model, DistributedDataParallel):
        raise TypeError("model must be the module itself, not in DistributedDataParallel")
    parameters = named_parameters(model)
    if not parameters:
        raise ValueError("the model has no parameters that require a gradient")
    for name, parameter in parameters.items():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(f"parameter {name} has no shape yet: run the model once before")
        if hasattr(parameter, "to_local"):
            raise TypeError(f"parameter {name} is sharded (a DTensor): nodes have whole models")
        check_layer(f"parameter {name}", parameter, ("cpu", "cuda"))
    return parameters


def _gpus(parameters: Mapping[str, torch.Tensor]) -> list[int]:
    return sorted({p.device.index for p in parameters.values() if p.is_cuda})
