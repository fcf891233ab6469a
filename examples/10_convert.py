# SPDX-License-Identifier: Apache-2.0
"""Converts a model to a number format, prints the report, trains, and restores the model.

    report = cpd.convert(model, "te-delayed")
    print(report)
    train(model)
    cpd.restore(model)

The model here classifies the digits of scikit-learn. `convert` changes its layers in place;
parameters, optimizer and state_dict are unchanged. `convert` ignores a recipe's keys for the weight
update and loss scaling; `cpd.optim.from_recipe` applies them to an optimizer.

Run: python examples/10_convert.py --recipe nvfp4
     python examples/10_convert.py --recipe ibm-fp8-2018 --keep output
     python examples/10_convert.py --recipe te-current --sums "e6m9 chunked chunk=64"
     python examples/10_convert.py --list
"""

import argparse
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import cpd
from cpd_lab.train import Data, digit_classifier, epoch_order, load_digits

BATCH = 64


def train(model: nn.Module, recipe: cpd.Recipe | None, epochs: int, digits: Data) -> None:
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = cpd.optim.LossScaler(1.0, dynamic=False)
    if recipe is not None:
        optimizer, scaler = cpd.optim.from_recipe(optimizer, recipe)
    for epoch in range(epochs):
        steps = epoch_order(0, epoch, len(digits.train_x), nodes=1, batch=BATCH)
        for rows in torch.from_numpy(steps[:, 0]):
            loss = cross_entropy(model(digits.train_x[rows]), digits.train_y[rows])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def accuracy(model: nn.Module, digits: Data) -> float:
    model.eval()
    with torch.no_grad():
        right = model(digits.test_x).argmax(dim=1) == digits.test_y
    model.train()
    return right.double().mean().item()


def parsed(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, cpd.Recipe]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipe",
        default="te-delayed",
        help="a name (see --list), a recipe file or an accumulator",
    )
    parser.add_argument("--sums", help="an accumulator that replaces torch's own sums")
    parser.add_argument(
        "--keep", nargs="*", default=[], help="patterns of layers to leave in torch"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=128, help="width of the hidden layers")
    parser.add_argument("--depth", type=int, default=3, help="number of hidden layers")
    parser.add_argument("--list", action="store_true", help="list the named recipes")
    options = parser.parse_args(arguments)
    if options.list:
        for name, about in cpd.Recipe.named().items():
            print(f"{name:13} {about['source']}")
        parser.exit()
    try:
        return options, cpd.Recipe(options.recipe, sums=options.sums)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> None:
    options, recipe = parsed(arguments)
    digits = load_digits()
    model = digit_classifier(options.depth, options.width, seed=0)
    try:
        report = cpd.convert(model, recipe, rules=[(layer, None) for layer in options.keep])
    except ValueError as error:
        raise SystemExit(f"--keep: {error}") from None
    print(report)
    train(model, recipe, options.epochs, digits)

    plain = digit_classifier(options.depth, options.width, seed=0)
    train(plain, None, options.epochs, digits)
    print(f"\naccuracy {accuracy(model, digits):.1%}, in fp32 {accuracy(plain, digits):.1%}")
    cpd.restore(model)
    print(f"restored: {accuracy(model, digits):.1%}, the trained weights in torch's own layers")


if __name__ == "__main__":
    main()
