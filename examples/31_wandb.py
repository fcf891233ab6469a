# SPDX-License-Identifier: Apache-2.0
"""Trains a model in MXFP8 and logs to Weights & Biases the errors that NVFP4 would cause.

The log of each step is written offline, so no account is needed. `wandb sync` sends the log in
out/wandb to the server.

Run: python examples/31_wandb.py     (needs `pip install wandb`)
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Weights & Biases with cpd.track.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    options = parser.parse_args(arguments)
    try:
        import wandb
    except ImportError as error:
        print(f"{error}: pip install wandb")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    model = digit_classifier(3, 64, seed=0)
    cpd.convert(model, "mxfp8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with (
        wandb.init(
            project="cpd", mode="offline", dir=options.out, settings=wandb.Settings(silent=True)
        ) as run,
        cpd.track.Tracker(model, run, every=20, what_if=["nvfp4"]) as track,
    ):
        for epoch in range(options.epochs):
            for rows in torch.from_numpy(epoch_order(0, epoch, 1438, 1, 64)[:, 0]):
                optimizer.zero_grad()
                loss = cross_entropy(model(digits.train_x[rows]), digits.train_y[rows])
                loss.backward()
                optimizer.step()
                run.log({"loss": loss.item()})
                track.step()
        for tag in ("hidden2/gradient/own/sqnr", "hidden2/gradient/nvfp4/sqnr"):
            print(f"{tag} {run.summary[f'cpd/{tag}']:.1f} dB")
        print(f"written: {run.dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
