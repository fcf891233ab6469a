# SPDX-License-Identifier: Apache-2.0
"""The training loop. Each step, every node computes the gradients of its own micro-batch; these go,
layer by layer, through one all-reduce; one optimizer step uses the sum. A layer is one parameter
tensor. Nodes are virtual (`cpd.VirtualNodes`) or processes; nothing else depends on which."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cpd.comm.schedule import Schedule
from cpd.demo.training.data import Digits, epoch_order, load_digits
from cpd.demo.training.model import digit_classifier, weights_hash
from cpd.demo.training.options import TrainOptions
from cpd.nn.convert import convert, set_step
from cpd.nn.ready import recipe
from cpd.nn.recipe import Recipe
from cpd.optim.recipe import from_recipe
from cpd.parallel.nodes import Ranks, RealNode, RealRanks, VirtualRanks, gather_integers
from cpd.parallel.virtual_nodes import VirtualNodes


@dataclass
class LayerCounts:
    """What the all-reduce did to one layer, over all steps and nodes."""

    name: str
    values: int = 0
    nonzero: int = 0
    underflowed: int = 0  # nonzero contributions that the cast turned into zero
    overflowed: int = 0  # sums that are not finite though every contribution was
    non_finite: int = 0  # NaN and Inf among the contributions
    # For epochs asked for: how many contributions have a given floor(log2|g|), and the same
    # relative to the step's APS exponent ceil(log2(max|g| · nodes)), which APS moves to emax.
    exponents: dict[int, dict[int, int]] = field(default_factory=dict)
    relative: dict[int, dict[int, int]] = field(default_factory=dict)


@dataclass
class TrainResult:
    """A finished run."""

    options: TrainOptions
    accuracy: float
    curve: list[float]  # held-out accuracy after every epoch that ran
    loss: list[float]  # mean training loss of every epoch that ran
    weights: str
    diverged_at: int | None  # the epoch after which a weight was NaN or Inf; training stops there
    steps_per_epoch: int
    left_out: int  # images that each epoch's shuffle leaves over
    held_out: int
    layers: list[LayerCounts]
    model: nn.Sequential
    last_gradients: list[list[torch.Tensor]]  # [rank][layer], of the last step

    @property
    def state(self) -> str:
        return "finished" if self.diverged_at is None else f"diverged at epoch {self.diverged_at}"

    def total(self, name: str) -> int:
        """The sum of one of LayerCounts' counts over all layers."""
        return sum(getattr(layer, name) for layer in self.layers)


class RanksDiffer(RuntimeError):  # noqa: N818
    """Processes that should have the same weights do not."""


@contextmanager
def deterministic() -> Iterator[None]:
    """One torch thread and deterministic algorithms; the caller's settings come back after."""
    threads = torch.get_num_threads()
    mode = torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    # As torch.use_deterministic_algorithms(True), which imports torch's compiler besides: a second.
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_num_threads(threads)


def train(
    options: TrainOptions,
    *,
    digits: Digits | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
    histogram_epochs: tuple[int, ...] = (),
    ranks: Ranks | None = None,
) -> TrainResult:
    """Trains by `options`; on_epoch(epoch, held-out accuracy) is called after each epoch.

    `ranks` are the nodes, `options.nodes` of them; default: virtual ones. Where they are processes
    every one of them makes this call and gets the same result.

    Raises ValueError where one step needs more images than there are, RanksDiffer where processes
    end with different weights.
    """
    data = load_digits() if digits is None else digits
    options.check_data(len(data.train_x))
    if ranks is None:
        ranks = VirtualRanks(options.nodes)
    if ranks.world != options.nodes:
        raise ValueError(f"nodes must be the number of ranks, {ranks.world}, got {options.nodes}")
    with deterministic():
        return _Run(options, data, ranks).train(on_epoch, histogram_epochs)


def node_gradients(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, nodes: int
) -> tuple[float, list[torch.Tensor]]:
    """One node's loss, and the gradients of that loss divided by the number of nodes."""
    loss = cross_entropy(model(images), labels)
    gradients = torch.autograd.grad(loss / nodes, list(model.parameters()))
    return float(loss.detach()), list(gradients)


def sampled_gradients(
    model: nn.Module, digits: Digits, nodes: int, batch: int, seed: int
) -> list[list[torch.Tensor]]:
    """[rank][layer]: every node's gradients on `batch` training images of its own drawing.

    A node draws without replacement; different nodes may draw the same image.
    """
    count = len(digits.train_x)
    if batch > count:
        raise ValueError(f"batch must be at most {count} (the training images), got {batch}")
    per_rank = []
    with deterministic():
        for node in range(nodes):
            chosen = np.random.RandomState([seed, nodes, node]).permutation(count)[:batch]
            images, labels = digits.train_x[chosen], digits.train_y[chosen]
            per_rank.append(node_gradients(model, images, labels, nodes)[1])
    return per_rank


def held_out_accuracy(model: nn.Module, digits: Digits) -> float:
    """The share of the held-out images that the model names right; NaN outputs count as class 0."""
    with torch.no_grad():
        right = model(digits.test_x).nan_to_num(nan=0.0).argmax(dim=1) == digits.test_y
    return int(right.sum()) / len(digits.test_y)


class _Run:
    """The state of one training run."""

    def __init__(self, options: TrainOptions, digits: Digits, ranks: Ranks) -> None:
        self.options = options
        self.digits = digits
        self.ranks = ranks
        self.model = digit_classifier(options.depth, options.width, options.seed)
        how = Recipe("native") if options.recipe is None else recipe(options.recipe)
        emulated = options.recipe is not None and convert(self.model, how).emulated
        self.has_phases = bool(emulated) and any(
            each is not None and each.schedule for each in (how, *(rule for _, rule in how.rules))
        )
        self.parameters = list(self.model.parameters())
        sgd = torch.optim.SGD(self.parameters, lr=options.lr, momentum=options.momentum)
        self.optimizer, self.scaler = from_recipe(sgd, how, seed=options.seed)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.layers = [LayerCounts(name) for name in self.names]
        self.nonzero = [[0] * len(self.names) for _ in ranks.mine]
        per_step = options.nodes * options.batch
        self.steps_per_epoch, self.left_out = divmod(len(digits.train_x), per_step)
        self.nodes = _nodes(self.model, ranks, options.schedule(self.steps_per_epoch))
        self.my_gradients: list[list[torch.Tensor]] = []  # [my node][layer], of the last step

    def train(
        self, on_epoch: Callable[[int, float], None] | None, histogram_epochs: tuple[int, ...]
    ) -> TrainResult:
        curve: list[float] = []
        losses: list[float] = []
        diverged_at = None
        for epoch in range(1, self.options.epochs + 1):
            losses.append(self._epoch(epoch, epoch in histogram_epochs))
            curve.append(held_out_accuracy(self.model, self.digits))
            if on_epoch is not None:
                on_epoch(epoch, curve[-1])
            if not all(bool(torch.isfinite(p).all()) for p in self.parameters):
                diverged_at = epoch
                break
        for counts in gather_integers(self.ranks, self.nonzero):
            for layer, nonzero in zip(self.layers, counts, strict=True):
                layer.nonzero += nonzero
        return TrainResult(
            options=self.options,
            accuracy=curve[-1],
            curve=curve,
            loss=losses,
            weights=self._equal_weights(),
            diverged_at=diverged_at,
            steps_per_epoch=self.steps_per_epoch,
            left_out=self.left_out,
            held_out=len(self.digits.test_x),
            layers=self.layers,
            model=self.model,
            last_gradients=self.ranks.gather(self.my_gradients),
        )

    def _epoch(self, epoch: int, histogram: bool) -> float:
        options = self.options
        order = epoch_order(
            options.seed, epoch, len(self.digits.train_x), options.nodes, options.batch
        )
        mine: list[list[float]] = [[] for _ in self.ranks.mine]  # losses, [my node][step]

        def loss(micro: tuple[list[float], torch.Tensor]) -> torch.Tensor:
            losses, rows = micro
            images, labels = self.digits.train_x[rows], self.digits.train_y[rows]
            own = cross_entropy(self.model(images), labels)
            losses.append(float(own.detach()))
            return self.scaler.scale(own / options.nodes)

        for number, step in enumerate(torch.from_numpy(order)):
            self._set_step(epoch, number)
            self.my_gradients = []
            rows = (step[node] for node in self.ranks.mine)
            micro_batches = zip(mine, rows, strict=True)
            self.nodes.step(loss, micro_batches=micro_batches, on_gradients=self._note)
            self._count()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if histogram:
                self._count_exponents(epoch)
        everyone = self.ranks.gather([[torch.tensor(losses)] for losses in mine])
        return float(np.mean([node[0].double().numpy() for node in everyone]))

    def _set_step(self, epoch: int, number: int) -> None:
        """Has the recipe's schedule follow; it counts steps and epochs from 0 on."""
        if self.has_phases:
            step = (epoch - 1) * self.steps_per_epoch + number
            set_step(self.model, step=step, epoch=epoch - 1)

    def _note(self, node: int, gradients: dict[str, torch.Tensor | None]) -> None:
        """Keeps one of my nodes' gradients, and counts what is not zero among them."""
        present = [gradient for gradient in gradients.values() if gradient is not None]
        self.my_gradients.append(present)
        nonzero = self.nonzero[self.ranks.mine.index(node)]
        for index, gradient in enumerate(present):
            nonzero[index] += int(torch.count_nonzero(gradient))

    def _count(self) -> None:
        """Adds what the last all-reduce reported of each layer."""
        for counts, parameter in zip(self.layers, self.parameters, strict=True):
            report = self.nodes.report[counts.name]
            counts.values += self.ranks.world * parameter.numel()
            counts.underflowed += report.underflowed
            counts.overflowed += report.overflowed
            counts.non_finite += report.non_finite

    def _equal_weights(self) -> str:
        """The hash of the weights, which is every process's."""
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
        everyone = self.ranks.gather(self.my_gradients)
        for index, counts in enumerate(self.layers):
            values = torch.cat([node[index].flatten() for node in everyone])
            values = values[(values != 0) & torch.isfinite(values)].double().abs()
            if len(values) == 0:
                continue
            exponents = torch.frexp(values).exponent - 1
            scale = math.frexp(float(values.max()) * self.options.nodes)
            aps_exponent = scale[1] - 1 if scale[0] == 0.5 else scale[1]
            _add_counts(counts.exponents.setdefault(epoch, {}), exponents)
            _add_counts(counts.relative.setdefault(epoch, {}), exponents - aps_exponent)


def _nodes(model: nn.Module, ranks: Ranks, schedule: Schedule) -> VirtualNodes | RealNode:
    if isinstance(ranks, RealRanks):
        return RealNode(model, ranks.comm, schedule)
    return VirtualNodes(model, ranks.world, schedule, average=False)


def _add_counts(histogram: dict[int, int], exponents: torch.Tensor) -> None:
    found, numbers = np.unique(exponents.numpy(), return_counts=True)
    for exponent, number in zip(found.tolist(), numbers.tolist(), strict=True):
        histogram[exponent] = histogram.get(exponent, 0) + number
