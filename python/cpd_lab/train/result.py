# SPDX-License-Identifier: Apache-2.0
"""`TrainResult`, the result of a training, and `Step`, one step of a training that runs."""

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
    """The counts that the all-reduce reported for one layer, over all steps and nodes."""

    name: str
    values: int = 0
    nonzero: int = 0
    underflowed: int = 0  # nonzero contributions that the cast turned into zero
    overflowed: int = 0  # sums that are not finite though every contribution was
    non_finite: int = 0  # NaN and Inf among the contributions
    zeros: int = 0  # contributions that are zero after the cast
    bytes: int = 0  # of the encoded contributions
    # Maps a number of bits for each value (N of `uniform`) to how often a codec chose it, over
    # steps and nodes.
    bits: dict[int, int] = field(default_factory=dict)
    # `exponents` and `relative` map an epoch of `histogram_epochs` to a histogram of the
    # contributions g. `exponents` counts by floor(log2|g|). `relative` counts by floor(log2|g|)
    # minus the step's APS exponent, ceil(log2(max|g| · nodes)). APS scales contributions so that
    # the APS exponent becomes the format's largest exponent.
    exponents: dict[int, dict[int, int]] = field(default_factory=dict)
    relative: dict[int, dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step of a training, before the optimizer uses it.

    Attributes:
        number: the number of the step, from 1, over all epochs.
        epoch: the epoch, from 1.
        rate: the learning rate of the optimizer.
        loss: the mean loss of this process's nodes. Virtual nodes are all in one process.
        nodes: the gradients of each of this process's nodes, by layer, as they enter the
            all-reduce. With `divide="before"` they are divided by the number of nodes. A recipe's
            loss scale is included.
        gradients: the result of the all-reduce, by layer.
        report: the counts of the all-reduce on all nodes, by layer.
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
        """Returns the mean of the nodes' gradients (`nodes`), by layer, in fp32.

        Without rounding, the all-reduce's result (`gradients`) would be this mean times a constant.
        """
        names = self.nodes[0]
        return {name: torch.stack([n[name] for n in self.nodes]).mean(0) for name in names}


@dataclass
class TrainResult:
    """The result of a training.

    Attributes:
        options: the options of the training.
        curves: maps a metric to its values on the held-out part after every epoch that ran. All
            trainings have `accuracy`, the share of inputs, pixels or characters that are right.
            Segmentation also has `mean_iou` and `mean_accuracy`; text also has `loss` (nats a
            character).
        metric: the main metric: `accuracy`, `mean_iou` or `loss`.
        loss: the mean training loss of every epoch that ran.
        weights: the hash of the weights at the end.
        diverged_at: the epoch after which a weight was NaN or infinite and the training stopped;
            None if the training did not diverge.
        steps_per_epoch: the number of steps in an epoch.
        left_out: the number of inputs that each epoch leaves out.
        held_out: the number of inputs in the held-out part.
        source: the name of the data, which results quote.
        layers: the counts of each layer.
        model: the trained model.
        coverage: the share of the first step that ran by the recipe; None without a recipe.
        last_gradients: by [node][layer], the gradients of the last step; empty if `keep_gradients`
            was False.
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
        """The values of the main metric after every epoch that ran."""
        return self.curves[self.metric]

    @property
    def accuracy(self) -> float:
        """The final share of held-out inputs, pixels or characters that are classified right."""
        return self.curves["accuracy"][-1]

    @property
    def state(self) -> str:
        """The text "finished", or "diverged at epoch N"."""
        return "finished" if self.diverged_at is None else f"diverged at epoch {self.diverged_at}"

    @property
    def min_size(self) -> int:
        """The `min_size` in use: the option's value, or the value that `quantized_share` chose."""
        return self.options.chosen_min_size

    @property
    def share(self) -> float:
        """The share of the parameters that the format or codec summed, after the first epochs."""
        return self.options.share

    @cached_property
    def cost(self) -> Cost:
        """The bytes that node 0 sends and receives in a step after `fp32_epochs`, over all layers.

        `cpd.study.cost` counts them. The counts are exact or an upper bound.
        """
        options = self.options
        layers = {layer.name: layer.shape for layer in options.layers}
        return cost_of_step(options.reduction(1), options.nodes, layers, options.fp32_epochs)

    def total(self, name: str) -> int:
        """Returns the field `name` of `LayerCounts`, summed over all layers."""
        return sum(getattr(layer, name) for layer in self.layers)
