# SPDX-License-Identifier: Apache-2.0
"""The training loop. Each step, every emulated node computes the gradients of its own micro-batch;
all nodes' gradients, layer by layer, go through `cpd.simulate_all_reduce`; one optimizer step uses
the sum. A layer is one parameter tensor."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import cpd
from cpd.training.data import Digits, epoch_order, load_digits
from cpd.training.model import digit_classifier, weights_hash
from cpd.training.options import TrainOptions


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


@contextmanager
def deterministic() -> Iterator[None]:
    """One torch thread and deterministic algorithms; the caller's settings come back after."""
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
        torch.set_num_threads(threads)


def train(
    options: TrainOptions,
    *,
    digits: Digits | None = None,
    on_epoch: Callable[[int, float], None] | None = None,
    histogram_epochs: tuple[int, ...] = (),
) -> TrainResult:
    """Trains by `options`; on_epoch(epoch, held-out accuracy) is called after each epoch.

    Raises ValueError where one step needs more images than there are.
    """
    data = load_digits() if digits is None else digits
    options.check_data(len(data.train_x))
    with deterministic():
        return _Run(options, data).train(on_epoch, histogram_epochs)


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

    def __init__(self, options: TrainOptions, digits: Digits) -> None:
        self.options = options
        self.digits = digits
        self.model = digit_classifier(options.depth, options.width, options.seed)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=options.lr, momentum=options.momentum)
        self.layers = [LayerCounts(name) for name, _ in self.model.named_parameters()]
        self.step = 0
        self.last_gradients: list[list[torch.Tensor]] = []

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
        per_step = self.options.nodes * self.options.batch
        return TrainResult(
            options=self.options,
            accuracy=curve[-1],
            curve=curve,
            loss=losses,
            weights=weights_hash(self.model),
            diverged_at=diverged_at,
            steps_per_epoch=len(self.digits.train_x) // per_step,
            left_out=len(self.digits.train_x) % per_step,
            held_out=len(self.digits.test_x),
            layers=self.layers,
            model=self.model,
            last_gradients=self.last_gradients,
        )

    def _epoch(self, epoch: int, histogram: bool) -> float:
        options = self.options
        order = epoch_order(
            options.seed, epoch, len(self.digits.train_x), options.nodes, options.batch
        )
        losses = []
        for micro_batches in torch.from_numpy(order):
            results = [
                node_gradients(
                    self.model, self.digits.train_x[rows], self.digits.train_y[rows], options.nodes
                )
                for rows in micro_batches
            ]
            losses += [loss for loss, _ in results]
            self._update([gradients for _, gradients in results])
            if histogram:
                self._count_exponents(epoch)
        return float(np.mean(losses))

    def _update(self, per_rank: list[list[torch.Tensor]]) -> None:
        """One all-reduce and one optimizer step."""
        self.last_gradients = per_rank
        layers, reports = self._all_reduce(per_rank)
        for index, (parameter, gradient) in enumerate(zip(self.parameters, layers, strict=True)):
            parameter.grad = gradient
            counts, report = self.layers[index], reports[index]
            counts.values += len(per_rank) * gradient.numel()
            counts.nonzero += sum(int(torch.count_nonzero(rank[index])) for rank in per_rank)
            counts.underflowed += report.underflowed
            counts.overflowed += report.overflowed
            counts.non_finite += report.non_finite
        self.optimizer.step()
        self.step += 1

    def _all_reduce(
        self, per_rank: list[list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor], list[cpd.LayerReport]]:
        spec = self.options.spec(self.step)
        if not self.options.last_layer_fp32:
            return cpd.simulate_all_reduce(per_rank, spec, report=True)
        last = 2  # the output layer's weight and bias
        layers, reports = cpd.simulate_all_reduce(
            [rank[:-last] for rank in per_rank], spec, report=True
        )
        more, more_reports = cpd.simulate_all_reduce(
            [rank[-last:] for rank in per_rank],
            self.options.last_layer_spec(self.step),
            report=True,
        )
        return layers + more, reports + more_reports

    def _count_exponents(self, epoch: int) -> None:
        for index, counts in enumerate(self.layers):
            values = torch.cat([rank[index].flatten() for rank in self.last_gradients])
            values = values[(values != 0) & torch.isfinite(values)].double().abs()
            if len(values) == 0:
                continue
            exponents = torch.frexp(values).exponent - 1
            scale = math.frexp(float(values.max()) * self.options.nodes)
            aps_exponent = scale[1] - 1 if scale[0] == 0.5 else scale[1]
            _add_counts(counts.exponents.setdefault(epoch, {}), exponents)
            _add_counts(counts.relative.setdefault(epoch, {}), exponents - aps_exponent)


def _add_counts(histogram: dict[int, int], exponents: torch.Tensor) -> None:
    found, numbers = np.unique(exponents.numpy(), return_counts=True)
    for exponent, number in zip(found.tolist(), numbers.tolist(), strict=True):
        histogram[exponent] = histogram.get(exponent, 0) + number
