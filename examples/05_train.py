# SPDX-License-Identifier: Apache-2.0
"""Trains a digit classifier over 8 emulated nodes: (4,3) gradients without and with APS.

Each node's loss is divided by the number of nodes, as the APS paper's authors do for ResNet. The
gradients are then 8 times smaller, and without APS most of them underflow.

Run: python examples/05_train.py
"""

from cpd_lab.train import TrainOptions, train


def main() -> None:
    for aps in ("off", "on"):
        options = TrainOptions(format="e4m3", aps=aps, epochs=20, divide="before")
        result = train(options)
        lost = result.total("underflowed") / result.total("nonzero")
        print(
            f"{options.label():12} accuracy {result.accuracy:.3f}, "
            f"{lost:.1%} of the gradients lost to zero, weights {result.weights}"
        )


if __name__ == "__main__":
    main()
