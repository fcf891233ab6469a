# SPDX-License-Identifier: Apache-2.0
"""Trains with top-k, which sends only the largest gradients of a layer, with and without feedback.

A third variant also quantizes the sent values to 4 bits. With error feedback, a node adds what it
did not send to the next step's gradient of the same layer, so every gradient arrives, though late.
Without error feedback, small gradients never arrive.

Run: python examples/18_top_k.py
"""

import argparse
from collections.abc import Sequence

import cpd
from cpd_lab.train import TrainOptions, train


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Top-k with and without error feedback.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--depth", type=int, default=3, help="number of hidden layers")
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.1, 0.01, 0.002])
    options = parser.parse_args(arguments)
    base = TrainOptions(depth=options.depth, epochs=options.epochs)
    print(f"{base.nodes} nodes, {options.epochs} epochs")
    print(f"{'codec':46}bits a value   accuracy")
    print(f"{'fp32':46}{32:12.2f}   {train(base).accuracy:8.3f}", flush=True)
    for fraction in options.fractions:
        for codec in (
            cpd.Codec(f"top_k {fraction}", feedback=False),
            cpd.Codec(f"top_k {fraction}"),
            cpd.Codec(f"top_k {fraction} qsgd bits=4 bucket=512"),
        ):
            training = TrainOptions(depth=options.depth, epochs=options.epochs, wire=codec.text)
            result = train(training)
            gradients = result.last_gradients[0]
            sent = sum(codec.encode(gradient).bytes for gradient in gradients)
            values = sum(gradient.numel() for gradient in gradients)
            row = f"{codec.text:46}{8 * sent / values:12.2f}   {result.accuracy:8.3f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
