# SPDX-License-Identifier: Apache-2.0
"""Models and training steps for the tests of virtual nodes, and the same steps written by hand."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import cpd

BATCH = 4  # images of a node


def classifier() -> nn.Module:
    """Returns a small classifier with a convolution, BatchNorm and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64, 5),
    ).to(memory_format=torch.channels_last)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def gradients_of(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.random())


def batch_of(step: int, world: int, node: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the images and labels of a step: the whole batch of all nodes, or the part of one
    node."""
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(world * BATCH, 1, 6, 6, generator=generator)
    labels = torch.randint(5, (world * BATCH,), generator=generator)
    rows = slice(None) if node is None else slice(node * BATCH, (node + 1) * BATCH)
    return images[rows], labels[rows]


def parts_of(
    batch: tuple[torch.Tensor, torch.Tensor], count: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Splits a node's images and labels into `count` equal parts."""
    return list(zip(*(each.chunk(count) for each in batch), strict=True))


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def state_hash(model: nn.Module) -> str:
    """Returns a hash of all weights and buffers except the histories of delayed scaling. The ranks
    of DDP record different magnitudes for the present step in their histories."""
    digest = hashlib.sha256()
    kept = {n: v for n, v in model.state_dict().items() if not n.endswith("amax_history")}
    for name, value in kept.items():
        digest.update(name.encode() + value.detach().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@dataclass
class Trained:
    """The result of a training run: a hash of the state, the losses and the reports."""

    hash: str
    losses: list[list[float]] = field(default_factory=list)
    reports: list[list[cpd.comm.TensorReport]] = field(default_factory=list)


def by_hand(
    spec: cpd.Reduce | cpd.Schedule,
    world: int,
    *,
    steps: int = 3,
    broadcast_buffers: bool = True,
    average: bool = True,
    seed: int = 0,
) -> Trained:
    """Trains with a separate model for each node, and sums the gradients by
    `cpd.simulate_all_reduce`. Node n's random generator starts with seed n."""
    schedule = spec if isinstance(spec, cpd.Schedule) else cpd.Schedule(spec)
    if average:
        names = ("spec", "exempt_spec", "first_spec")
        schedule = replace(
            schedule, **{n: getattr(schedule, n).replace(average=True) for n in names}
        )
    models = [classifier() for _ in range(world)]
    optimizers = [optimizer_of(model) for model in models]
    names = [name for name, _ in models[0].named_parameters()]
    generators = []
    for node in range(world):
        torch.manual_seed(node)
        generators.append(torch.get_rng_state())
    trained = Trained("")
    for step in range(steps):
        losses, gradients = [], []
        if broadcast_buffers:
            held = [copy.deepcopy(buffer) for buffer in models[0].buffers()]
            for model in models:
                for buffer, value in zip(model.buffers(), held, strict=True):
                    buffer.copy_(value)
        for node, model in enumerate(models):
            torch.set_rng_state(generators[node])
            loss = loss_of(model, batch_of(step, world, node))
            gradients.append(list(torch.autograd.grad(loss, list(model.parameters()))))
            generators[node] = torch.get_rng_state()
            losses.append(float(loss.detach()))
        sums, report = cpd.simulate_all_reduce(
            gradients, schedule, names=names, seed=seed, step=step, report=True
        )
        for model, optimizer in zip(models, optimizers, strict=True):
            for parameter, gradient in zip(model.parameters(), sums, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        trained.losses.append(losses)
        trained.reports.append(report)
    trained.hash = state_hash(models[0])
    return trained


def by_nodes(
    spec: cpd.Reduce | cpd.Schedule,
    world: int,
    *,
    steps: int = 3,
    keep: Any = None,
    **options: Any,
) -> Trained:
    """Trains like `by_hand`, but with one model and `cpd.VirtualNodes`."""
    model = classifier()
    optimizer = optimizer_of(model)
    nodes = cpd.VirtualNodes(model, world, spec, keep, generators=range(world), **options)
    trained = Trained("")
    for step in range(steps):
        nodes.step(lambda micro: loss_of(model, micro), batch_of(step, world))
        optimizer.step()
        trained.losses.append(nodes.losses.tolist())
        trained.reports.append(list(nodes.report.values()))
    trained.hash = state_hash(model)
    return trained


# ---- the same as ranks of DistributedDataParallel (node_ranks.py) ------------------------------

KAHAN = cpd.Accumulator("e4m3 kahan")
STOCHASTIC = cpd.Recipe("native", gradient="e5m2 rounding=stochastic random_bits=8")
DDP_CASES: dict[str, dict[str, Any]] = {
    "one pass": {"spec": cpd.Reduce("e4m3", accumulator=KAHAN, rounding="stochastic")},
    "groups": {"spec": cpd.Reduce("e5m2", group_size=2)},
    "aps": {"spec": cpd.Reduce("e4m3", aps=True, rounding="stochastic")},
    "ring": {"spec": cpd.Reduce("e4m3", aps=True, order="ring"), "keep": "recompute"},
    "schedule": {
        "spec": cpd.Schedule(cpd.Reduce("e3m0", aps=True), exempt=["5.*"], first_steps=1),
        "keep": "disk",
    },
    "scaled": {"spec": cpd.Reduce("mxfp8", result="bf16")},
    "codec": {"spec": cpd.Reduce("qsgd bits=3 bucket=64")},
    "shared scale": {"spec": cpd.Reduce("terngrad"), "keep": "recompute"},
    "codec by rows": {"spec": cpd.Reduce("fp8_rows", exchange="gather")},
    "exempt from a codec": {
        "spec": cpd.Schedule(
            cpd.Reduce("int4 stochastic", order="ring"), exempt=["5.*"], min_size=8
        ),
    },
    "1-bit columns": {"spec": cpd.Reduce("one_bit")},
    "1-bit buckets": {
        "spec": cpd.Reduce("one_bit bucket=64", order="ring"),
        "keep": "recompute",
    },
    "largest values": {"spec": cpd.Reduce("top_k 0.1 qsgd bits=4", group_size=2)},
    "errors fed back": {"spec": cpd.Reduce("feedback qsgd bits=2 bucket=128")},
    "buffers of their own": {"spec": cpd.Reduce("e4m3"), "broadcast_buffers": False},
    "delayed scaling": {
        "spec": cpd.Reduce("e4m3", aps=True),
        "recipe": cpd.Recipe("te-delayed"),
    },
    "stochastic layers": {"spec": cpd.Reduce("e4m3"), "recipe": STOCHASTIC},
    "unused": {"spec": cpd.Reduce("e4m3"), "unused": True},
    "accumulated": {"spec": cpd.Reduce("e4m3", aps=True), "accumulated": True},
    "accumulated by calls": {
        "spec": cpd.Reduce("e4m3", accumulator=KAHAN, rounding="stochastic"),
        "calls": 4,
    },
    "accumulated by calls, recomputed": {
        "spec": cpd.Reduce("e4m3", aps=True),
        "keep": "recompute",
        "calls": 2,
    },
    "accumulated by calls, buffers of their own": {
        "spec": cpd.Reduce("e5m2", order="ring"),
        "keep": "disk",
        "broadcast_buffers": False,
        "calls": 2,
    },
    "accumulated by calls, delayed scaling": {
        "spec": cpd.Reduce("e4m3", aps=True),
        "recipe": cpd.Recipe("te-delayed"),
        "calls": 4,
    },
    "accumulated by calls, errors fed back": {
        "spec": cpd.Reduce("feedback qsgd bits=2 bucket=128"),
        "calls": 2,
    },
}
WORLD = 3
STEPS = 3


class TwoHeads(nn.Module):
    """A model in which some parameters get no gradient. Of its three heads, even nodes use the
    first, odd nodes the second, and no node the third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.Linear(36, 5) for _ in range(3))

    def forward(self, images: torch.Tensor, second: bool) -> torch.Tensor:
        return self.heads[int(second)](images.flatten(1))


def model_of(case: dict[str, Any]) -> nn.Module:
    model = TwoHeads() if case.get("unused", False) else classifier()
    if "recipe" in case:
        cpd.convert(model, case["recipe"], [(nn.Conv2d, None)])
    return model


def nodes_hash(case: dict[str, Any]) -> str:
    """Trains a case of DDP_CASES for some steps by `cpd.VirtualNodes`, and returns a hash of the
    weights and buffers."""
    unused, accumulated = case.get("unused", False), case.get("accumulated", False)
    model = model_of(case)
    optimizer = optimizer_of(model)
    nodes = cpd.VirtualNodes(
        model,
        WORLD,
        case["spec"],
        case.get("keep"),
        broadcast_buffers=case.get("broadcast_buffers", True),
        generators=range(WORLD),
    )

    def loss(micro: Any) -> Any:
        node, (images, labels) = micro
        if unused:
            return nn.functional.cross_entropy(model(images, node % 2 == 1), labels)
        if accumulated:
            return (loss_of(model, (images[i : i + 2], labels[i : i + 2])) for i in (0, 2))
        return loss_of(model, (images, labels))

    calls = case.get("calls", 1)
    for step in range(STEPS):
        parts = [parts_of(batch_of(step, WORLD, n), calls) for n in range(WORLD)]
        for call in range(calls):
            with nodes.no_sync() if call < calls - 1 else contextlib.nullcontext():
                nodes.step(loss, micro_batches=[(n, parts[n][call]) for n in range(WORLD)])
        optimizer.step()
    return state_hash(model)
