# SPDX-License-Identifier: Apache-2.0
"""The training loop.

In each step, every node computes the gradients of its own micro-batch. One all-reduce sums the
gradients layer by layer; a layer is one parameter tensor. Then the optimizer takes one step with
the sum. Nodes are virtual (`cpd.VirtualNodes`) or processes. The results do not depend on which.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import nn

from cpd.comm.schedule import Schedule
from cpd.nn.convert import convert, set_step
from cpd.nn.coverage import coverage_of
from cpd.nn.recipe import Recipe, as_recipe
from cpd.optim.recipe import from_recipe
from cpd.parallel.nodes import (
    Ranks,
    RanksDiffer,
    RealNode,
    RealRanks,
    VirtualRanks,
    gather_integers,
)
from cpd.parallel.virtual_nodes import VirtualNodes
from cpd_lab.train.batches import Batches, Micro
from cpd_lab.train.data import Data
from cpd_lab.train.metrics import METRICS, evaluated, loss_of
from cpd_lab.train.models import seeded
from cpd_lab.train.optimizers import optimizer
from cpd_lab.train.options import TrainOptions
from cpd_lab.train.result import LayerCounts, Step, TrainResult
from cpd_lab.train.weights import MovingAverage, weights_hash

Keep = Literal["memory", "disk", "recompute"]
OnEpoch = Callable[[int, float], None]
OnStep = Callable[[Step], bool | None]


@contextmanager
def deterministic(device: str = "cpu") -> Iterator[None]:
    """Runs a `with` block with one torch thread and deterministic algorithms.

    The thread count and torch's mode are restored after the block. An operation without a
    deterministic algorithm raises RuntimeError on the CPU and warns on a GPU.
    """
    threads = torch.get_num_threads()
    mode = torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # torch.use_deterministic_algorithms(True) would do the same, but it also imports torch's
    # compiler, which takes a second.
    torch.set_deterministic_debug_mode("error" if device == "cpu" else "warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_num_threads(threads)


def train(
    options: TrainOptions,
    *,
    data: Data | None = None,
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    histogram_epochs: tuple[int, ...] = (),
    ranks: Ranks | None = None,
    keep: Keep | None = None,
    keep_gradients: bool = True,
) -> TrainResult:
    """Trains a model and returns the result.

    Args:
        options: the model, the data and all settings of the training.
        data: the data for training and measuring; default: the data that `options` names.
        on_epoch: is called after each epoch with the epoch and the main metric.
        on_step: is called with each `Step` before the optimizer uses the step. It may store the
            tensors but must not change them. If it returns True, the training ends with this step;
            all processes must then return True.
        histogram_epochs: the epochs in which the result counts exponents of gradients, by layer.
        ranks: the nodes, `options.nodes` of them; default: virtual nodes. If nodes are processes,
            every process must make this call and gets the same result.
        keep: where virtual nodes store gradients, as in `cpd.VirtualNodes`.
        keep_gradients: whether the result has the last step's gradients of all nodes; default True.
            They take `options.nodes` times the memory of the model.

    Returns:
        The result of the training.

    Raises:
        ValueError: if one step needs more images than the data have, if `ranks` are not
            `options.nodes` nodes, or if processes are to train on a GPU.
        RanksDiffer: if processes end with different weights.
    """
    data = options.load_data() if data is None else data
    options.check_data(len(data.train_x))
    if ranks is None:
        ranks = VirtualRanks(options.nodes)
    if ranks.world != options.nodes:
        raise ValueError(f"nodes must be the number of ranks, {ranks.world}, got {options.nodes}")
    if isinstance(ranks, RealRanks) and options.device != "cpu":
        raise ValueError(
            f"device must be cpu where nodes are processes, got {options.device!r}: virtual nodes "
            "train on a GPU"
        )
    with deterministic(options.device), torch.random.fork_rng(devices=[]):
        run = _Run(options, data.to(options.device), ranks, keep, keep_gradients)
        return run.train(on_epoch, on_step, histogram_epochs)


def node_gradients(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, nodes: int
) -> tuple[float, list[torch.Tensor]]:
    """Returns a node's loss, and the gradients of that loss divided by the number of nodes."""
    loss = loss_of(model(images), labels)
    gradients = torch.autograd.grad(loss / nodes, list(model.parameters()))
    return float(loss.detach()), list(gradients)


def sampled_gradients(
    model: nn.Module, data: Data, nodes: int, batch: int, seed: int
) -> list[list[torch.Tensor]]:
    """Returns, by [node][layer], each node's gradients on `batch` random training images.

    A node chooses its images without replacement. Different nodes may choose the same image. Raises
    ValueError if `batch` exceeds the number of training images.
    """
    count = len(data.train_x)
    if batch > count:
        raise ValueError(f"batch must be at most {count} (the training images), got {batch}")
    per_rank = []
    with deterministic():
        for node in range(nodes):
            chosen = np.random.RandomState([seed, nodes, node]).permutation(count)[:batch]
            images, labels = data.train_x[chosen], data.train_y[chosen]
            per_rank.append(node_gradients(model, images, labels, nodes)[1])
    return per_rank


def _in_steps(recipe: Recipe, steps: int) -> Recipe | None:
    """Returns the recipe with all its schedules counted in training steps; None without schedules.

    The returned schedules use the unit "epoch", and the loop passes each training step's number to
    `set_step` as the epoch. With the unit "step", the model would count every node's forward pass
    as a step. `steps` is the number of steps in an epoch.
    """

    def counted(part: Recipe | None) -> Recipe | None:
        if part is None or not part.schedule:
            return part
        factors = {"step": 1, "epoch": steps}
        phases = [("epoch", start * factors[unit], then) for unit, start, then in part.schedule]
        return part.replace(schedule=phases)

    if not any(
        part is not None and part.schedule for part in (recipe, *(r for _, r in recipe.rules))
    ):
        return None
    phased = counted(recipe)
    assert phased is not None
    return phased.replace(rules=[(selector, counted(part)) for selector, part in recipe.rules])


class _Run:
    """The state of one training run, from its first step to its result."""

    def __init__(
        self,
        options: TrainOptions,
        data: Data,
        ranks: Ranks,
        keep: Keep | None,
        keep_gradients: bool,
    ) -> None:
        self.options = options
        self.ranks = ranks
        self.keep_gradients = keep_gradients
        self.model = seeded(options.seed, options.make_model)
        self.batches = Batches(options, data, ranks.mine)
        recipe = Recipe("native") if options.recipe is None else as_recipe(options.recipe)
        self.has_phases = False
        if options.recipe is not None:
            phased = _in_steps(recipe, self.batches.steps)
            emulated = convert(
                self.model, recipe if phased is None else phased, coverage=0
            ).emulated
            self.has_phases = bool(emulated) and phased is not None
        self.model.to(options.device)
        self.parameters = list(self.model.parameters())
        own = optimizer(
            options.optimizer,
            self.parameters,
            lr=options.lr / options.loss_sum,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        self.optimizer, self.scaler = from_recipe(own, recipe, seed=options.seed)
        self.average = MovingAverage(self.model, options.ema)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.layers = [LayerCounts(name) for name in self.names]
        self.nonzero = [[0] * len(self.names) for _ in ranks.mine]
        self.data = self.batches.tested(data)
        self.nodes = self._nodes(options.reduction(self.batches.steps), keep)
        self.curves: dict[str, list[float]] = {}
        self.gradients: list[dict[str, torch.Tensor]] = []  # [my node], of the last step
        self.losses: list[list[float]] = []  # [my node][step], of an epoch

    def _nodes(self, schedule: Schedule, keep: Keep | None) -> VirtualNodes | RealNode:
        """Makes the nodes that train: virtual nodes, or this process's node of several.

        With dropout, each node gets a random generator of its own.
        """
        seeds = None
        if self.options.dropout:
            draws = [np.random.RandomState([self.options.seed, n]) for n in range(self.ranks.world)]
            seeds = [int(draw.randint(2**31)) for draw in draws]
        if isinstance(self.ranks, RealRanks):
            if seeds is not None:
                torch.manual_seed(seeds[self.ranks.mine[0]])
            self.ranks.comm.seed = self.options.seed
            return RealNode(self.model, self.ranks.comm, schedule)
        return VirtualNodes(
            self.model,
            self.ranks.world,
            schedule,
            average=False,
            keep=keep,
            generators=seeds,
            seed=self.options.seed,
        )

    def train(
        self, on_epoch: OnEpoch | None, on_step: OnStep | None, histogram_epochs: tuple[int, ...]
    ) -> TrainResult:
        losses: list[float] = []
        metric = METRICS[self.data.kind]
        diverged_at = None
        for epoch in range(1, self.options.epochs + 1):
            ended = self._epoch(epoch, on_step, epoch in histogram_epochs)
            losses.append(self._mean_loss())
            self._evaluate()
            if on_epoch is not None:
                on_epoch(epoch, self.curves[metric][-1])
            if not all(bool(torch.isfinite(p).all()) for p in self.parameters):
                diverged_at = epoch
                break
            if ended:
                break
        return self._result(losses, diverged_at, metric)

    def _result(self, losses: list[float], diverged_at: int | None, metric: str) -> TrainResult:
        for counts in gather_integers(self.ranks, self.nonzero):
            for layer, nonzero in zip(self.layers, counts, strict=True):
                layer.nonzero += nonzero
        last = [[g.cpu() for g in node.values()] for node in self.gradients]
        return TrainResult(
            options=self.options,
            curves=self.curves,
            metric=metric,
            loss=losses,
            weights=self._equal_weights(),
            diverged_at=diverged_at,
            steps_per_epoch=self.batches.steps,
            left_out=self.batches.left_out,
            held_out=len(self.data.test_x),
            source=self.data.source,
            layers=self.layers,
            model=self.model,
            coverage=coverage_of(self.model),
            last_gradients=self.ranks.gather(last) if self.keep_gradients else [],
        )

    def _epoch(self, epoch: int, on_step: OnStep | None, histogram: bool) -> bool:
        """Trains for one epoch. Returns True if `on_step` ended the training."""
        self.losses = [[] for _ in self.ranks.mine]
        for number, micro_batches in enumerate(self.batches.epoch(epoch)):
            self._set_step(epoch, number)
            is_last = number == self.batches.steps - 1 and self.keep_gradients
            keeps = is_last or histogram or on_step is not None
            self._step(micro_batches, keeps)
            ends = on_step is not None and bool(on_step(self._seen(epoch, number)))
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.average.update()
            if histogram:
                self._count_exponents(epoch)
            if ends:
                return True
        return False

    def _step(self, micro_batches: list[Micro], keeps: bool) -> None:
        """Computes the nodes' gradients, and stores their sum in the parameters' `grad`."""
        options = self.options
        for losses in self.losses:
            losses.append(math.nan)
        self.gradients = []

        def loss(micro: tuple[int, Micro]) -> torch.Tensor:
            place, (x, y) = micro
            own = loss_of(self.model(x), y)
            self.losses[place][-1] = float(own.detach())
            if options.loss_sum != 1:
                own = own * options.loss_sum
            return self.scaler.scale(own / options.nodes if options.divide == "before" else own)

        def note(node: int, gradients: dict[str, torch.Tensor | None]) -> None:
            self._note(node, gradients, keeps)

        self.nodes.step(loss, micro_batches=enumerate(micro_batches), on_gradients=note)
        self._count()

    def _set_step(self, epoch: int, number: int) -> None:
        """Sets the learning rate, and the current step in the recipe's schedule.

        The recipe's schedule counts steps and epochs from 0.
        """
        if self.options.schedule != "constant":
            progress = epoch - 1 + number / self.batches.steps
            rate = self.options.lr * self.options.rates.at(progress, self.options.epochs)
            for group in self.optimizer.param_groups:
                group["lr"] = rate / self.options.loss_sum
        if self.has_phases:
            set_step(self.model, epoch=(epoch - 1) * self.batches.steps + number)

    def _seen(self, epoch: int, number: int) -> Step:
        reduced = zip(self.names, self.parameters, strict=True)
        return Step(
            number=(epoch - 1) * self.batches.steps + number + 1,
            epoch=epoch,
            rate=float(self.optimizer.param_groups[0]["lr"]),
            loss=float(np.mean([losses[-1] for losses in self.losses])),
            nodes=self.gradients,
            gradients={n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in reduced},
            report=self.nodes.report,
        )

    def _note(self, node: int, gradients: dict[str, torch.Tensor | None], keeps: bool) -> None:
        """Counts nonzero values of a node's gradients. Stores the gradients if `keeps` is True."""
        parameters = zip(gradients.items(), self.parameters, strict=True)
        present = {n: torch.zeros_like(p) if g is None else g for (n, g), p in parameters}
        if keeps:
            self.gradients.append(present)
        nonzero = self.nonzero[self.ranks.mine.index(node)]
        for index, gradient in enumerate(present.values()):
            nonzero[index] += int(torch.count_nonzero(gradient))

    def _count(self) -> None:
        """Adds the overflows, bytes, … of the last all-reduce to the counts of each layer."""
        for counts, parameter in zip(self.layers, self.parameters, strict=True):
            report = self.nodes.report[counts.name]
            counts.values += self.ranks.world * parameter.numel()
            counts.underflowed += report.underflowed
            counts.overflowed += report.overflowed
            counts.non_finite += report.non_finite
            counts.zeros += report.zeros
            counts.bytes += report.bytes
            for bits in report.bits:
                counts.bits[bits] = counts.bits.get(bits, 0) + 1

    def _mean_loss(self) -> float:
        everyone = self.ranks.gather([[torch.tensor(losses)] for losses in self.losses])
        return float(np.mean([node[0].double().numpy() for node in everyone]))

    def _evaluate(self) -> None:
        """Measures the model on the held-out part and appends the metrics to the curves.

        If nodes are processes, each first copies node 0's running statistics (of batch norms),
        because virtual nodes use these statistics too.
        """
        if isinstance(self.ranks, RealRanks):
            names = ("running_mean", "running_var")
            own = [b for name, b in self.model.named_buffers() if name.endswith(names)]
            if own:
                for buffer, first in zip(own, self.ranks.gather([own])[0], strict=True):
                    buffer.copy_(first)
        with self.average.in_use():
            for name, value in evaluated(self.model, self.data).items():
                self.curves.setdefault(name, []).append(value)

    def _equal_weights(self) -> str:
        """Returns the hash of the weights.

        Raises RanksDiffer if the weights of another process have another hash.
        """
        weights = weights_hash(self.model)
        numbers = gather_integers(self.ranks, [[int(weights, 16)] for _ in self.ranks.mine])
        for rank, (number,) in enumerate(numbers):
            if number != int(weights, 16):
                raise RanksDiffer(
                    f"its weights are {weights}, those of rank {rank} are {number:016x}: their "
                    "processors or versions of torch differ"
                )
        return weights

    def _count_exponents(self, epoch: int) -> None:
        everyone = self.ranks.gather([list(node.values()) for node in self.gradients])
        for index, counts in enumerate(self.layers):
            values = torch.cat([node[index].flatten() for node in everyone])
            values = values[(values != 0) & torch.isfinite(values)].double().abs().cpu()
            if len(values) == 0:
                continue
            exponents = torch.frexp(values).exponent - 1
            scale = math.frexp(float(values.max()) * self.options.nodes)
            aps_exponent = scale[1] - 1 if scale[0] == 0.5 else scale[1]
            _add_counts(counts.exponents.setdefault(epoch, {}), exponents)
            _add_counts(counts.relative.setdefault(epoch, {}), exponents - aps_exponent)


def _add_counts(histogram: dict[int, int], exponents: torch.Tensor) -> None:
    distinct, numbers = np.unique(exponents.numpy(), return_counts=True)
    for exponent, number in zip(distinct.tolist(), numbers.tolist(), strict=True):
        histogram[exponent] = histogram.get(exponent, 0) + number
