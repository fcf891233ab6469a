# SPDX-License-Identifier: Apache-2.0
"""Trains a character-level LSTM language model with several recipes.

`convert` emulates the products of `torch.nn.LSTM` with input and state, for each gate and time
step. The cell's additions, sigmoid and tanh remain in fp32. The training text is Python's language
reference, which the module `pydoc_data.topics` contains.

Run: python examples/13_lstm.py
     python examples/13_lstm.py --recipes bf16 nvfp4 --seeds 3
     python examples/13_lstm.py --recipes "e6m9 chunked chunk=64"
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import cpd
from cpd_lab.train.models import TextLstm
from cpd_lab.train.text import Text, load_text

RECIPES = ("bf16", "te-current", "mxfp8")


def loss_of(model: nn.Module, runs: Tensor) -> Tensor:
    return cross_entropy(model(runs[:, :-1]).flatten(0, 1), runs[:, 1:].flatten())


def train(
    recipe: cpd.Recipe | None, options: argparse.Namespace, seed: int, text: Text, show: bool
) -> float:
    """Trains the model and returns its loss on the test text."""
    torch.manual_seed(seed)
    model = TextLstm(len(text.characters), options.width, options.layers)
    if recipe is not None:
        report = cpd.convert(model, recipe)
        if show:
            print(report, end="\n\n")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    for runs in text.batches(options.steps, options.batch, options.context, seed):
        optimizer.zero_grad()
        loss_of(model, runs).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return loss_of(model, text.tests(64, options.context)).item()


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--recipes", nargs="+", default=RECIPES, help="names, files or accumulators"
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs per recipe")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="texts per training step")
    parser.add_argument("--context", type=int, default=32, help="characters of a text")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=5e-3)
    options = parser.parse_args(arguments)
    try:
        options.recipes = {name: cpd.Recipe(name) for name in options.recipes}
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options, text = parsed(arguments), load_text()
    rows = []
    for number, (name, recipe) in enumerate({"fp32": None, **options.recipes}.items()):
        start = time.perf_counter()
        seeds = range(options.seeds)
        tests = [
            train(recipe, options, seed, text, show=number == 1 and not seed) for seed in seeds
        ]
        step = 1e3 * (time.perf_counter() - start) / (options.steps * options.seeds)
        spread = f"{min(tests):.3f} … {max(tests):.3f}"
        rows.append(f"| {name} | {statistics.mean(tests):.3f} | {spread} | {step:.0f} |")
    print("| recipe | test loss | least … most | ms a step |")
    print("|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
