# SPDX-License-Identifier: Apache-2.0
"""Trains the digits network with (4,3) multiplications and three accumulators, side by side.

Every GEMM, forward and backward, takes operands cast to (4,3), without scales. Each sum starts from
the bias. Weights, biases and the optimizer's state are stored in fp32. (4,3) needs a loss scale
here: nearly all gradients of a batch are below the least (4,3) number, 2^-9, and would become
zero. So the loss is multiplied by 2^10, and the weights' gradients are divided by 2^10. Sums in
(4,3) saturate at 240. They also stall if the sum is 16 times as large as a term. This stalling
costs accuracy.

Run: python examples/07_accumulators.py
"""

import torch
from torch.nn.functional import cross_entropy

import cpd
from cpd_lab.train import Data, digit_classifier, epoch_order, load_digits

DEPTH, WIDTH = 2, 512
BATCH = 128
EPOCHS = (1, 2, 4, 8, 12)  # the accuracy is printed after these epochs
LOSS_SCALE = 2.0**10
OPERANDS = cpd.Cast("e4m3", overflow="saturate")
ACCUMULATORS = {
    "(4,3) sequential": cpd.Accumulator("e4m3", overflow="saturate"),
    "(6,9) chunked by 64": cpd.Accumulator("e6m9 chunked"),
    "h100-fp8": cpd.Accumulator("h100-fp8"),
}


def network(accumulator: cpd.Accumulator | None) -> torch.nn.Sequential:
    """Returns the classifier with this accumulator in all layers; None means plain fp32."""
    model = digit_classifier(DEPTH, WIDTH, seed=0)
    if accumulator is None:
        return model
    operands = {"activation": OPERANDS, "weight": OPERANDS, "gradient": OPERANDS}
    cpd.convert(model, cpd.Recipe(sums=accumulator, **operands))
    return model


def accuracy(model: torch.nn.Module, digits: Data) -> float:
    with torch.no_grad():
        right = model(digits.test_x).argmax(dim=1) == digits.test_y
    return right.double().mean().item()


def train(accumulator: cpd.Accumulator | None, digits: Data) -> list[float]:
    """Returns the held-out accuracy after each of the EPOCHS epochs."""
    model = network(accumulator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shown = []
    for epoch in range(1, max(EPOCHS) + 1):
        steps = epoch_order(0, epoch, len(digits.train_x), nodes=1, batch=BATCH)
        for rows in torch.from_numpy(steps[:, 0]):
            loss = cross_entropy(model(digits.train_x[rows]), digits.train_y[rows])
            optimizer.zero_grad()
            (loss * LOSS_SCALE).backward()
            for parameter in model.parameters():
                parameter.grad /= LOSS_SCALE
            optimizer.step()
        if epoch in EPOCHS:
            shown.append(accuracy(model, digits))
    return shown


def main() -> None:
    digits = load_digits()
    print(f"{'accuracy after epochs':24}" + "".join(f"{epoch:8}" for epoch in EPOCHS))
    for name, accumulator in {"fp32": None, **ACCUMULATORS}.items():
        shown = train(accumulator, digits)
        print(f"{name:24}" + "".join(f"{value:8.1%}" for value in shown), flush=True)


if __name__ == "__main__":
    main()
