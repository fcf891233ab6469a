# SPDX-License-Identifier: Apache-2.0
"""The function `weights`, which trains workers that average their weights after each epoch."""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot

from cpd.optim import WeightAverage
from cpd_lab.train.digits import load_digits
from cpd_lab.train.loop import deterministic

_CLASSES = 10
_SIZES = (64, 392, 50, _CLASSES)
"""The number of inputs of Øland and Raj's network, which is for MNIST."""


def weights(
    wire: str,
    workers: int,
    epochs: int,
    seed: int,
    *,
    lr: float,
    decay: float,
    l1: float,
    batch: int,
    images: int = 1438,
) -> dict[str, Any]:
    """Trains a network of tanh units on scikit-learn's digits, as Øland and Raj do.

    Each worker trains for an epoch on its own share of the images. Then every worker continues from
    the average of all workers' weights, which are sent in `wire`.

    Args:
        wire: the codec or the format in which workers send weights.
        workers: the number of workers.
        epochs: the number of epochs.
        seed: the seed of the first weights and of the shuffles.
        lr: the learning rate of plain SGD.
        decay: the factor by which the rate is multiplied after each epoch.
        l1: the factor of the L1 norm of the weights in the loss.
        batch: the number of images of a step.
        images: the number of training images of all workers together.

    Returns:
        A dict. `accuracy` has the held-out accuracy by epoch. The other entries are by layer and
        epoch: `bits`, the bits that the codec chose (the mean over workers); `bits_a_value`, the
        bits sent for each value; `rms` of worker 0's gradient in the last step; `entropy` in bits
        of worker 0's weights before averaging, in 16 bins between the least and the greatest
        weight.
    """
    data = load_digits().first(images, 359)
    with deterministic(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nets = [_net()]
        nets += [copy.deepcopy(nets[0]) for _ in range(workers - 1)]
        outer = WeightAverage(nets, None, wire, period=1)
        names = [name for name, _ in nets[0].named_parameters()]
        curves: dict[str, Any] = {"accuracy": []}
        for key in ("bits", "bits_a_value", "rms", "entropy"):
            curves[key] = {name: [] for name in names}
        for epoch in range(epochs):
            rate = lr * decay**epoch
            for worker, net in enumerate(nets):
                rows = np.random.RandomState([seed, epoch, worker]).permutation(
                    np.arange(worker, len(data.train_x), workers)
                )
                _epoch(net, data.train_x, data.train_y, torch.from_numpy(rows), rate, l1, batch)
            _note_before(curves, nets[0])
            outer.step()
            _note_after(curves, outer)
            curves["accuracy"].append(_accuracy(nets[0], data.test_x, data.test_y))
    return curves


def _net() -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(pairwise(_SIZES), 1):
        layers[f"layer{number}"] = nn.Linear(inputs, outputs)
        layers[f"tanh{number}"] = nn.Tanh()
    return nn.Sequential(layers)


def _epoch(
    net: nn.Module, x: Tensor, y: Tensor, rows: Tensor, rate: float, l1: float, batch: int
) -> None:
    for begin in range(0, len(rows), batch):
        chosen = rows[begin:][:batch]
        net.zero_grad()
        target = one_hot(y[chosen], _CLASSES).float()
        penalty = l1 * torch.stack([p.abs().sum() for p in net.parameters()]).sum()
        loss = mse_loss(net(x[chosen]), target) + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.sub_(rate * parameter.grad)


def _note_before(curves: dict[str, Any], net: nn.Module) -> None:
    for name, parameter in net.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        curves["rms"][name].append(float(gradient.double().square().mean().sqrt()))
        curves["entropy"][name].append(entropy(parameter.detach().numpy()))


def _note_after(curves: dict[str, Any], outer: WeightAverage) -> None:
    for name, report in outer.report.items():
        bits = float(np.mean(report.bits)) if report.bits else None
        curves["bits"][name].append(bits)
        curves["bits_a_value"][name].append(report.bits_a_value)


def entropy(values: Any, bins: int = 16) -> float:
    """Returns the entropy, in bits, of the values' distribution over bins of equal width."""
    counts = np.histogram(values, bins)[0]
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return int((net(x).argmax(dim=1) == y).sum()) / len(y)
