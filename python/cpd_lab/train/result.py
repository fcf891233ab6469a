# SPDX-License-Identifier: Apache-2.0
"""The result of a training: `TrainResult`, and while it runs `Step`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from cpd.comm.costs import Cost, cost_of_step
from cpd.comm.virtual import TensorReport
from cpd.nn.coverage import Coverage
from cpd_lab.train.options import TrainOptions


@dataclass
class LayerCounts:
    """The all-reduce's counts for one layer, over all steps and nodes."""

    name: str
    values: int = 0
    nonzero: int = 0
    underflowed: int = 0  # nonzero contributions that the cast turned into zero
    overflowed: int = 0  # sums that are not finite though every contribution was
    non_finite: int = 0  # NaN and Inf among the contributions
    zeros: int = 0  # contributions that are zero after the cast
    bytes: int = 0  # of the encoded contributions
    # The number of times that a codec chose each number of bits a value (N of `uniform`), over
    # steps and nodes.
    bits: dict[int, int] = field(default_factory=dict)
    # For epochs asked for: how many contributions have a given floor(log2|g|), and the same
    # relative to the step's APS exponent ceil(log2(max|g| · nodes)), which APS moves to emax.
    exponents: dict[int, dict[int, int]] = field(default_factory=dict)
    relative: dict[int, dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step of a training, before the optimizer uses it.

    Attributes:
        number: from 1 on, over all epochs; `epoch` from 1 on.
        rate: of the optimizer.
        loss: the mean of this process's nodes' losses; all nodes' where they are virtual.
        nodes: this process's nodes' gradients by layer, as they enter the all-reduce: divided by
            the number of nodes with `divide="before"`, and times a recipe's loss scale.
        gradients: what the all-reduce made of them, by layer.
        report: what happened to each layer, by layer, on all nodes.
    """

    number: int
    epoch: int
    rate: float
    loss: float
    nodes: list[dict[str, torch.Tensor]]
    gradients: dict[str, torch.Tensor]
    report: Mapping[str, TensorReport]

    @property
    def mean(self) -> dict[str, torch.Tensor]:
        """Returns the mean of `nodes`, by layer, in fp32.

        The sum would be equal without rounding of the contributions, but for its factor.
        """
        names = self.nodes[0]
        return {name: torch.stack([n[name] for n in self.nodes]).mean(0) for name in names}


@dataclass
class TrainResult:
    """A finished run.

    Attributes:
        curves: by the name of a metric, its value on the held-out part after every epoch that ran:
            `accuracy`; for segmentation `mean_iou`, `mean_accuracy` and `accuracy` (of pixels); for
            text `loss` (nats a character) and `accuracy` (of characters).
        metric: the one of them that counts: `accuracy`, `mean_iou` or `loss`.
        loss: the mean training loss of every epoch that ran.
        weights: the hash of the weights at the end.
        diverged_at: the epoch after which a weight was NaN or Inf; training stops there.
        steps_per_epoch, left_out: the steps, and the inputs that each epoch's shuffle leaves over.
        held_out: inputs of the held-out part.
        source: what results are quoted with.
        layers: counts of each layer.
        coverage: what of the first step ran by the recipe; None without one.
        last_gradients: [node][layer], of the last step; empty where `keep_gradients` was False.
    """

    options: TrainOptions
    curves: dict[str, list[float]]
    metric: str
    loss: list[float]
    weights: str
    diverged_at: int | None
    steps_per_epoch: int
    left_out: int
    held_out: int
    source: str
    layers: list[LayerCounts]
    model: nn.Module
    coverage: Coverage | None
    last_gradients: list[list[torch.Tensor]]

    @property
    def curve(self) -> list[float]:
        """The metric that counts, after every epoch that ran."""
        return self.curves[self.metric]

    @property
    def accuracy(self) -> float:
        """The share of held-out inputs, pixels or characters whose class was right at the end."""
        return self.curves["accuracy"][-1]

    @property
    def state(self) -> str:
        """The word "finished", or the epoch in which the training diverged."""
        return "finished" if self.diverged_at is None else f"diverged at epoch {self.diverged_at}"

    @property
    def min_size(self) -> int:
        """The `min_size` in use, given or chosen by `quantized_share`."""
        return self.options.chosen_min_size

    @property
    def share(self) -> float:
        """The share of the parameters that the format or codec summed, after the first epochs."""
        return self.options.share

    @cached_property
    def cost(self) -> Cost:
        """Returns what one node, the first, sends and receives in a step after the first epochs.

        It is counted as `cpd.study.cost` does, of all layers: exact, or an upper bound.
        """
        options = self.options
        layers = {layer.name: layer.shape for layer in options.layers}
        return cost_of_step(options.reduction(1), options.nodes, layers, options.fp32_epochs)

    def total(self, name: str) -> int:
        """Returns the sum of one of LayerCounts' counts over all layers."""
        return sum(getattr(layer, name) for layer in self.layers)
