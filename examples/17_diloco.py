# SPDX-License-Identifier: Apache-2.0
"""Trains with DiLoCo: workers train alone and exchange outer gradients every N steps, in 4 bits.

Each worker takes `--inner` steps of AdamW on its own images. Then one all-reduce averages the
changes of the workers' weights, and Nesterov's momentum computes from the average the weights with
which all workers continue (Streaming DiLoCo, arXiv 2501.18512; sums are in FP32). The program also
trains with data parallelism, which sums gradients at each step. Workers are models in this process;
`cpd.optim.DiLoCo(model, comm, …)` gives real ranks the same weights, bit for bit.

Run: python examples/17_diloco.py
"""

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import cross_entropy

import cpd
from cpd_lab.train import (
    Data,
    deterministic,
    digit_classifier,
    epoch_order,
    held_out_accuracy,
    load_digits,
)

BATCH = 16  # images per worker and step
FP32 = cpd.Reduce("fp32", exchange="gather")
OUTER = {
    "FP32": FP32,
    "(3,0) + APS": cpd.Reduce(
        "e3m0", accumulator="fp32", aps=True, result="fp32", exchange="gather"
    ),
    "(3,0) + APS, sums in (4,3)": cpd.Reduce("e3m0", accumulator="fp32", aps=True, result="e4m3"),
    "mxfp4, sums in bf16": cpd.Reduce("mxfp4", result="bf16"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="DiLoCo on the digits.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--inner", type=int, default=20, help="steps between two exchanges")
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args(arguments)
    with deterministic():
        run(load_digits(), options.workers, options.inner, options.epochs)


def run(digits: Data, workers: int, inner: int, epochs: int) -> None:
    steps = list(batches(digits, workers, epochs))
    print(f"{workers} workers × {BATCH} images, {len(steps)} steps, exchanges every {inner}")
    print("what is exchanged                            bytes a worker   accuracy")
    model = digit_classifier(3, 64, seed=0)
    every_step(cpd.VirtualNodes(model, workers, FP32), model, steps)
    show("gradients, FP32", digits, model, FP32, workers, len(steps))
    for name, spec in OUTER.items():
        models = [digit_classifier(3, 64, seed=0) for _ in range(workers)]
        outer = cpd.optim.DiLoCo(models, None, spec, inner)
        diloco(outer, models, steps)
        show(f"outer gradients, {name}", digits, models[0], spec, workers, len(steps) // inner)


Step = list[tuple[torch.Tensor, torch.Tensor]]
"""The training data of one step: a batch of images and a batch of labels for each worker."""


def batches(digits: Data, workers: int, epochs: int) -> Iterator[Step]:
    for epoch in range(1, epochs + 1):
        for rows in epoch_order(0, epoch, len(digits.train_x), workers, BATCH):
            yield [(digits.train_x[indices], digits.train_y[indices]) for indices in rows]


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.002)


def every_step(nodes: cpd.VirtualNodes, model: torch.nn.Module, steps: Sequence[Step]) -> None:
    """Trains with data parallelism, which sums gradients at each step."""
    optimizer = adam(model)
    for step in steps:
        nodes.step(lambda part: cross_entropy(model(part[0]), part[1]), micro_batches=step)
        optimizer.step()


def diloco(
    outer: cpd.optim.DiLoCo, models: Sequence[torch.nn.Module], steps: Sequence[Step]
) -> None:
    optimizers = [adam(model) for model in models]
    for step in steps:
        for model, optimizer, (images, labels) in zip(models, optimizers, step, strict=True):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        outer.step()


def show(
    name: str,
    digits: Data,
    model: torch.nn.Module,
    spec: cpd.Reduce,
    workers: int,
    exchanges: int,
) -> None:
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    sent = exchanges * cpd.study.cost(spec, workers, shapes).bytes_sent
    print(f"{name:44}{sent:15,}   {held_out_accuracy(model, digits):8.3f}", flush=True)


if __name__ == "__main__":
    main()
