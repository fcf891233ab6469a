# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `model/virtual-nodes-…`: a step of `cpd.VirtualNodes`, compared to the same
number of plain micro-batches (forward, backward, gradients added) of the same model, alternately.
For four nodes, checks that the gradients have the bits that `cpd.simulate_all_reduce` gives."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from timing import Row, seconds
from torch import nn

import cpd
from cpd_lab.train import models

NODES = 256
ONE_PASS, TWICE = 1.15, 2.2  # most times the plain micro-batches' time
THREADS = 2


def perceptron() -> nn.Module:
    """Returns the perceptron of `cpd train` with six hidden layers of width 64."""
    hidden = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


@dataclass(frozen=True)
class Model:
    """A model, the shape of the batch that one virtual node takes, and the number of nodes."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    nodes: int = NODES


MODELS = (
    Model("resnet18", models.resnet18, (4, 3, 32, 32)),
    Model("gpt-block", models.GptBlock, (2, 256, 512)),
    Model("perceptron", perceptron, (16, 64)),
)


@dataclass(frozen=True)
class Case:
    """A setting of virtual nodes: how gradients are reduced, for which models, and the longest time
    that a step may take, as a multiple of the time without CPD."""

    name: str
    spec: cpd.Reduce
    keep: Any = None
    most: float | None = None  # times the plain time; None: for information
    models: tuple[str, ...] = ("resnet18", "gpt-block")


E4M3 = cpd.Reduce("e4m3")
APS = cpd.Reduce("e4m3", aps=True)
KAHAN = cpd.Reduce("e4m3", accumulator="e4m3 kahan", group_size=16)
CASES = (
    Case("one-pass", E4M3, most=ONE_PASS),
    Case("one-pass/kahan-groups", KAHAN, most=ONE_PASS, models=("gpt-block",)),
    Case("recompute", APS, "recompute", most=TWICE),
    # A micro-batch of the perceptron takes less than half a millisecond, so the time includes much
    # overhead of Python. Therefore the row has no bar.
    Case("one-pass", E4M3, models=("perceptron",)),
    Case("memory", APS, "memory", models=("perceptron",)),
    Case("recompute", APS, "recompute", models=("perceptron",)),
)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def plain(model: nn.Module, batch: torch.Tensor, nodes: int) -> None:
    """Adds the gradients of all micro-batches in a plain loop: the baseline, without CPD."""
    model.zero_grad()
    for micro in batch.chunk(nodes):
        loss_of(model, micro).backward()


def is_right(model: nn.Module, batch: torch.Tensor, case: Case) -> bool:
    """Returns whether VirtualNodes with four nodes gives the same gradients as
    `cpd.simulate_all_reduce` of the four micro-batches' gradients."""
    micro = batch.chunk(4)
    if case.spec.group_size is not None:
        case = replace(case, spec=case.spec.replace(group_size=2))
    cpd.VirtualNodes(model, 4, case.spec, case.keep).step(lambda x: loss_of(model, x), batch)
    parameters = list(model.parameters())
    per_rank = [torch.autograd.grad(loss_of(model, x), parameters) for x in micro]
    expected = cpd.simulate_all_reduce(per_rank, case.spec.replace(average=True))
    return all(torch.equal(p.grad, w) for p, w in zip(parameters, expected, strict=True))


def row(model: Model, case: Case, options: Namespace) -> Row:
    name = f"model/virtual-nodes-{model.name}/{case.name}"
    torch.manual_seed(options.seed)
    module = model.make()
    if not is_right(module, torch.randn(4 * model.shape[0], *model.shape[1:]), case):
        return {"name": name, "wrong": "the gradients are not the all-reduce's"}
    batch = torch.randn(model.nodes * model.shape[0], *model.shape[1:])
    nodes = cpd.VirtualNodes(module, model.nodes, case.spec, case.keep)

    def step() -> None:
        nodes.step(lambda x: loss_of(module, x), batch)

    times, baselines = [], []
    for _ in range(max(1, min(3, options.repeats))):
        baselines.append(seconds(lambda: plain(module, batch, model.nodes)))
        times.append(seconds(step))
    ratios = [b / t for t, b in zip(times, baselines, strict=True)]
    fields = {
        "name": name,
        "value": round(median(times) * 1e3, 3),
        "unit": "ms a step",
        "against": f"{model.nodes} plain micro-batches",
        "baseline": round(median(baselines) * 1e3, 3),
        "ratio": round(median(ratios), 4),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
        "best": round(min(times) * 1e3, 3),
    }
    if case.keep == "recompute":  # which goes forward and backward twice
        fields |= {"bound": 2 * fields["baseline"], "bound_is": "peer"}
    return fields if case.most is None else fields | {"bar": round(1 / case.most, 4)}


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, measured on two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cpd.PrecisionWarning)
            for model in MODELS:
                for case in CASES:
                    name = f"model/virtual-nodes-{model.name}/{case.name}"
                    if model.name in case.models and options.selection.wants(name):
                        yield row(model, case, options)
    finally:
        torch.set_num_threads(threads)
