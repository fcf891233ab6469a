# SPDX-License-Identifier: Apache-2.0
"""Trains DavidNet and ResNet-18 on CIFAR-10 over 8 emulated nodes, with gradients in few bits.

The settings come from table 4 of the APS paper (Han, Demmel, You, 2020, section 4.1): a ring of
8 nodes, momentum 0.9, and
    DavidNet   Nesterov, weight decay 0.256, rate from 0 to 0.4 in 5 epochs and to 0 in 20 more
    ResNet-18  weight decay 0.0001, rate from 0.1 to 1.6 in 5 epochs, a tenth of it from epoch 40
               on, and a hundredth from epoch 80 on
DavidNet's loss is the sum over a node's 512 images, and the rate is divided by 512, as in the code
of David Page, the author of DavidNet. The paper does not state this, but its weight decay, 512 *
0.0005, implies it. So DavidNet's gradients are large and overflow (4,3), but ResNet-18's gradients
are small and underflow.

By default the models are narrow, with few images and a short schedule, and take minutes on a CPU.
`--full` has the sizes of the paper, for a GPU: 64 channels, 50,000 images, 512 a node, 25 epochs
for DavidNet and 100 for ResNet-18 (100 is not in the paper).

Run: python examples/11_cifar10.py --model davidnet
     python examples/11_cifar10.py --model resnet18 --wires "e4m3" "e4m3 aps" --seeds 3
     python examples/11_cifar10.py --full --device cuda
Data: CIFAR-10 in $CPD_DATA (default ../shared/data); a message says what to do if it is missing.
"""

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cpd
from cpd_lab.train import Data, Step, TrainOptions, train
from cpd_lab.train.images import data_folder, load_cifar10

WIRES = ("fp32", "e5m2", "e5m2 aps", "e4m3", "e4m3 aps", "(3,0)", "(3,0) aps")
PAPER_BATCH = 512
SHORT_EPOCHS = 8


@dataclass(frozen=True)
class Model:
    """The training settings of a network, and the paper's accuracies by wire format."""

    epochs: int
    rate: float
    schedule: str  # of the learning rate; numbers are fractions of all epochs
    weight_decay: float
    optimizer: str
    loss_sum: float  # the mean loss is multiplied, and the rate divided, by this
    short: float  # factor of the learning rate in the small version
    paper: tuple[float, ...]


MODELS = {
    "davidnet": Model(
        epochs=25,
        rate=0.4,
        schedule="warmup 0.2 linear",
        weight_decay=0.256,
        optimizer="nesterov",
        loss_sum=PAPER_BATCH,
        short=1 / 4,
        paper=(88.2, 88.3, 88.4, 10.0, 88.6, 10.0, 81.3),
    ),
    "resnet18": Model(
        epochs=100,
        rate=1.6,
        schedule="warmup 0.05 from 0.0625 steps 0.4 0.8",
        weight_decay=1e-4,
        optimizer="sgd",
        loss_sum=1,
        short=1 / 16,
        paper=(91.4, 90.1, 91.4, 90.4, 91.6, 10.0, 86.7),
    ),
}


@dataclass(frozen=True)
class Result:
    accuracy: float
    lost: float  # fraction of the nodes' gradients that become zero in the wire's format
    diverged: int = 0  # the first step with a non-finite loss; 0: none


def run(options: argparse.Namespace, name: str, wire: str, seed: int, images: Data) -> Result:
    settings = MODELS[name]
    chosen = TrainOptions(
        model=name,
        width=options.width,
        seed=seed,
        nodes=options.nodes,
        batch=options.batch,
        epochs=options.epochs or (settings.epochs if options.full else SHORT_EPOCHS),
        lr=settings.rate * (options.rate or (1.0 if options.full else settings.short)),
        schedule=settings.schedule,
        optimizer=settings.optimizer,
        weight_decay=settings.weight_decay,
        loss_sum=settings.loss_sum,
        augment="shift",
        divide="after",
        reduce=f"{wire} order=ring",
        recipe=options.recipe,
        device=options.device,
    )
    diverged = 0

    def ends(step: Step) -> bool:
        nonlocal diverged
        diverged = 0 if math.isfinite(step.loss) else step.number
        return bool(diverged)

    result = train(chosen, data=images, on_step=ends, keep_gradients=False)
    lost = result.total("underflowed") / result.total("values")
    return Result(0.1, lost, diverged) if diverged else Result(result.accuracy, lost)


def row(name: str, wire: str, results: list[Result]) -> str:
    """Returns a line of a table in Markdown."""
    percents = [100 * result.accuracy for result in results]
    spread = f"{min(percents):.1f} … {max(percents):.1f}"
    lost = 100 * statistics.mean(result.lost for result in results)
    paper = MODELS[name].paper[WIRES.index(wire)] if wire in WIRES else ""
    steps = sorted({result.diverged for result in results if result.diverged})
    end = f"diverged in step {', '.join(map(str, steps))}" if steps else ""
    mean = f"{statistics.mean(percents):.1f}"
    return f"| {name} | {wire} | {mean} | {spread} | {lost:.1f} | {paper} | {end} |"


def parsed(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Data]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, help="default: both networks")
    parser.add_argument(
        "--wires", nargs="+", default=WIRES, help="texts of cpd.Reduce, as 'e4m3 aps'"
    )
    parser.add_argument("--recipe", help="recipe of cpd.convert for the layers' products")
    parser.add_argument("--full", action="store_true", help="the paper's sizes; needs a GPU")
    parser.add_argument("--seeds", type=int, default=1, help="runs per row")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of CIFAR-10")
    sizes = {
        "width": (8, 64, "channels of the first layers"),
        "images": (2048, 50_000, "of the training part"),
        "tests": (2000, 10_000, "images of the test part"),
        "batch": (16, PAPER_BATCH, "images a node and step"),
    }
    for name, (short, full, text) in sizes.items():
        parser.add_argument(f"--{name}", type=int, help=f"{text}; {short}, with --full {full}")
    parser.add_argument("--epochs", type=int, help="default 8; with --full 25 or 100")
    parser.add_argument(
        "--rate", type=float, help="factor of learning rates; default 1/4 or 1/16, with --full 1"
    )
    options = parser.parse_args(arguments)
    for name, (short, full, _) in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, full if options.full else short)
    if options.nodes * options.batch > options.images:
        parser.error(f"{options.nodes} nodes take more than {options.images} images a step")
    try:
        for wire in options.wires:
            cpd.Reduce(wire)
        if options.recipe:
            cpd.Recipe(options.recipe)
        return options, load_cifar10(options.data, options.images, options.tests)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None) -> None:
    warnings.simplefilter("ignore", cpd.PrecisionWarning)  # sums have low precision on purpose
    options, images = parsed(arguments)
    print(f"{images.source}, {options.images} images, {options.nodes} nodes × {options.batch}\n")
    print("| model | wire | accuracy, % | least … most | lost to zero, % | paper | |")
    print("|---|---|---|---|---|---|---|")
    start = time.perf_counter()
    for name in [options.model] if options.model else MODELS:
        for wire in options.wires:
            seeds = range(options.seeds)
            results = [run(options, name, wire, seed, images) for seed in seeds]
            print(row(name, wire, results), flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
