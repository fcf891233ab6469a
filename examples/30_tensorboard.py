# SPDX-License-Identifier: Apache-2.0
"""Writes to TensorBoard what a training over 8 emulated nodes measures.

Gradients are summed in (4,3) with APS. The program writes the bytes and seconds of each all-reduce,
its error in each layer, the share of the model that ran emulated, and the ranges of its tensors.

Run: python examples/30_tensorboard.py     (needs `pip install tensorboard`)
Then: tensorboard --logdir out/tensorboard
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import cpd
from cpd_lab.train import digit_classifier, epoch_order, load_digits

ROOT = Path(__file__).parents[1]
NODES, BATCH = 8, 16


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="TensorBoard with cpd.track.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "tensorboard")
    options = parser.parse_args(arguments)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(f"{error}: pip install tensorboard")
        return 0
    digits = load_digits()
    model = digit_classifier(3, 64, seed=0)
    cpd.convert(model, "mxfp8")
    nodes = cpd.VirtualNodes(model, NODES, cpd.Reduce("e4m3", aps=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with (
        SummaryWriter(options.out) as writer,
        cpd.track.Tracker(model, writer, every=80, what_if=["nvfp4"], reducer=nodes) as track,
    ):
        metrics: dict[str, float] = {}
        for epoch in range(options.epochs):
            for rows in torch.from_numpy(epoch_order(0, epoch, 1438, NODES, BATCH)):
                parts = [(digits.train_x[indices], digits.train_y[indices]) for indices in rows]
                nodes.step(lambda part: cross_entropy(model(part[0]), part[1]), micro_batches=parts)
                optimizer.step()
                metrics |= track.step()
    print(
        f"coverage {metrics['coverage/share']:.1%}, of which mxfp8 {metrics['coverage/mxfp8']:.1%}"
    )
    took = metrics["reduce/bytes"], metrics["reduce/seconds"]
    print(f"all-reduce of a step: {took[0]:,.0f} bytes a node, {took[1]:.4f} s for all {NODES}")
    print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
