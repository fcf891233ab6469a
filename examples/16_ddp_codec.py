# SPDX-License-Identifier: Apache-2.0
"""Trains with DistributedDataParallel and seven codecs; prints bytes sent and accuracy.

The program starts its ranks itself (torchrun, gloo). Each rank trains the same model on its own
images, and `cpd.ddp_hook` reduces DDP's buckets with the codec. The hook stores the codec's state
between steps, such as the residuals of error feedback. The last two columns are hashes of the
weights: of this training, and of the same training over virtual nodes in one process. The two
hashes are equal.

Run: python examples/16_ddp_codec.py
  or torchrun --nproc-per-node 4 examples/16_ddp_codec.py
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import cpd
from cpd_lab.train import (
    deterministic,
    digit_classifier,
    epoch_order,
    held_out_accuracy,
    load_digits,
    weights_hash,
)

BATCH = 16  # images per rank and step
WIRES = (
    "fp32",
    "e4m3 aps",
    "qsgd bits=4 bucket=512",
    "terngrad",
    "one_bit",
    "top_k 0.01",
    "int8_rows",
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="DDP with a codec.")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks to start")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--wires", nargs="+", default=WIRES, help="codecs or formats to compare")
    options = parser.parse_args(arguments)
    if "LOCAL_RANK" not in os.environ:
        words = sys.argv[1:] if arguments is None else list(arguments)
        launch = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={options.ranks}",
        ]
        settings = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, __file__, *words], env=settings, check=True)
        return
    dist.init_process_group("gloo")
    with deterministic(), cpd.comm.distributed() as comm:
        if comm.rank == 0:
            print(f"{comm.size} ranks × {BATCH} images, {options.epochs} epochs")
            print(f"{'wire':28}bytes a step   accuracy   weights            virtual nodes")
        for wire in options.wires:
            row(comm, wire, options.epochs)
    dist.destroy_process_group()


def row(comm: cpd.comm.Communicator, wire: str, epochs: int) -> None:
    """Trains with one codec and prints one row of results."""
    spec = spec_of(wire)
    model = digit_classifier(3, 64, seed=0)
    counting = Counting(comm)
    ddp = DistributedDataParallel(model)
    state, hook = cpd.ddp_hook(spec, counting, model=ddp)  # type: ignore[arg-type]
    ddp.register_comm_hook(state, hook)
    optimizer = sgd(model)
    steps = 0
    for images, labels in batches(comm.size, epochs):
        optimizer.zero_grad()
        cross_entropy(ddp(images[comm.rank]), labels[comm.rank]).backward()
        optimizer.step()
        steps += 1
    state.close()
    if comm.rank == 0:
        alone = virtual(spec, comm.size, epochs)
        accuracy = held_out_accuracy(model, load_digits())
        sent = counting.sent // steps
        print(
            f"{wire:28}{sent:12,}   {accuracy:8.3f}   {weights_hash(model)}   {alone}", flush=True
        )


def spec_of(wire: str) -> cpd.Reduce:
    name = wire.removesuffix(" aps")
    return cpd.Reduce(name, aps=name != wire)


class Counting:
    """A communicator that counts the bytes that this rank sends."""

    def __init__(self, comm: cpd.comm.Communicator) -> None:
        self._comm = comm
        self.sent = 0

    def all_reduce(self, layers: Any, spec: cpd.Reduce, **options: Any) -> Any:
        sums, report = self._comm.all_reduce(layers, spec, report=True, **options)
        self.sent += report.traffic.bytes_sent
        return sums


def batches(ranks: int, epochs: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the images and labels of each step, indexed by [rank, image]."""
    digits = load_digits()
    for epoch in range(1, epochs + 1):
        for rows in epoch_order(0, epoch, len(digits.train_x), ranks, BATCH):
            yield digits.train_x[rows], digits.train_y[rows]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def virtual(spec: cpd.Reduce, ranks: int, epochs: int) -> str:
    """Trains on the same batches over virtual nodes in one process. Returns the hash of the
    weights."""
    model = digit_classifier(3, 64, seed=0)
    nodes, optimizer = cpd.VirtualNodes(model, ranks, spec), sgd(model)
    for images, labels in batches(ranks, epochs):
        parts = zip(images, labels, strict=True)
        nodes.step(lambda part: cross_entropy(model(part[0]), part[1]), micro_batches=parts)
        optimizer.step()
    return weights_hash(model)


if __name__ == "__main__":
    main()
