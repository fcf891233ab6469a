# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT in three recipes with three accumulators each, and draws the loss curves.

The recipes te-delayed, mxfp8 and nvfp4 give the operands' formats. The accumulators are
    native    fp32, in torch's own products
    (6,9)     e6m9 in chunks of 64 terms, as in IBM's FP8 training of 2018
    h100-fp8  the sums of an H100's tensor core
The H100's FP8 unit has no scales for its operands. A single scale for a tensor can be applied to
the finished sum (`scales_at="epilogue"`), as TransformerEngine does on an H100, so te-delayed can
use this unit. In mxfp8 the scale changes within a sum, every 32 terms, and in nvfp4, whose elements
have 4 bits, every 16 terms. No instruction of an H100 supports this.

The training text is Python's language reference, which the module `pydoc_data.topics` contains.
These recipes leave attention's two products in fp32.

Run: python examples/12_gpt.py
     python examples/12_gpt.py --seeds 3 --only nvfp4
     python examples/12_gpt.py --width 256 --depth 6 --context 256 --steps 5000 --device cuda
Draws: out/gpt.png
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import cpd
from cpd_lab.train.models import Gpt
from cpd_lab.train.text import Text, load_text

CHUNKED = "e6m9 chunked chunk=64"
COLOURS = {"fp32": "black", "te-delayed": "C0", "mxfp8": "C2", "nvfp4": "C1"}
LINES = {"native": "-", "(6,9)": "--", "h100-fp8": ":"}


def cases() -> dict[str, cpd.Recipe | None]:
    """Returns the recipes by name. In "mxfp8, (6,9)", mxfp8 is CPD's recipe for the operands and
    (6,9) the accumulator. None trains without CPD."""
    h100 = cpd.Recipe(
        forward="h100-fp8", grad_input="h100-fp8 a=e5m2", grad_weight="h100-fp8 b=e5m2"
    )
    recipes: dict[str, cpd.Recipe | None] = {"fp32, native": None}
    for name in ("te-delayed", "mxfp8", "nvfp4"):
        recipes[f"{name}, native"] = cpd.Recipe(name)
        recipes[f"{name}, (6,9)"] = cpd.Recipe(name, sums=CHUNKED)
    recipes["te-delayed, h100-fp8"] = cpd.Recipe("te-delayed", sums=h100).replace(
        scales_at="epilogue"
    )
    return recipes


def loss_of(model: nn.Module, runs: Tensor) -> Tensor:
    return cross_entropy(model(runs[:, :-1]).flatten(0, 1), runs[:, 1:].flatten())


def train(
    recipe: cpd.Recipe | None, options: argparse.Namespace, seed: int, text: Text
) -> tuple[list[float], float]:
    """Returns the training loss of each step, and the test loss after the last step."""
    torch.manual_seed(seed)
    model = Gpt(len(text.characters), options.width, options.heads, options.depth, options.context)
    model.to(options.device)
    if recipe is not None:
        cpd.convert(model, recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    warm = max(1, options.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / warm))
    losses = []
    for runs in text.batches(options.steps, options.batch, options.context, seed):
        loss = loss_of(model, runs.to(options.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        tests = text.tests(64, options.context).to(options.device)
        return losses, loss_of(model, tests).item()


def smooth(losses: list[float]) -> list[float]:
    """Returns a moving average: the mean of each loss and of up to 19 losses before it."""
    return [statistics.mean(losses[max(0, end - 20) : end]) for end in range(1, len(losses) + 1)]


def draw(curves: dict[str, list[float]], picture: Path) -> None:
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, losses in curves.items():
        operands, sums = name.split(", ")
        axes.plot(smooth(losses), LINES[sums], color=COLOURS[operands], lw=1.2, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a character")
    axes.set_title("A small GPT in scaled formats")
    figure.legend(loc="outside right upper")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=160, metadata={"Software": None})


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="only cases with this text in their names, and fp32"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs per case; the picture shows the first"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8, help="texts per training step")
    parser.add_argument("--context", type=int, default=64, help="characters of a text")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--picture", type=Path, default=Path(__file__).parents[1] / "out/gpt.png")
    options = parser.parse_args(arguments)
    if options.width % options.heads:
        parser.error(f"{options.heads} heads do not divide the width {options.width}")
    if not any(options.only in name for name in cases()):
        parser.error(f"no case contains {options.only!r}; there are: {'; '.join(cases())}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options, text = parsed(arguments), load_text()
    print("| operands, sums | test loss | least … most | ms a step |")
    print("|---|---|---|---|")
    curves = {}
    for name, recipe in cases().items():
        if recipe is not None and options.only not in name:
            continue
        start = time.perf_counter()
        runs = [train(recipe, options, seed, text) for seed in range(options.seeds)]
        step = 1e3 * (time.perf_counter() - start) / (options.steps * options.seeds)
        tests = [test for _, test in runs]
        curves[name] = runs[0][0]
        spread = f"{min(tests):.3f} … {max(tests):.3f}"
        print(f"| {name} | {statistics.mean(tests):.3f} | {spread} | {step:.0f} |", flush=True)
    draw(curves, options.picture)
    print(f"\nthe picture: {options.picture}")


if __name__ == "__main__":
    main()
