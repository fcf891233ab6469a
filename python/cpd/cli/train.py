# SPDX-License-Identifier: Apache-2.0
"""`cpd train`: trains a digit classifier over several nodes."""

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cpd.cli.nodes import agreed, connected
from cpd.cli.options import Commands, add_command, integer, nodes_arguments, reduce_arguments
from cpd.cli.output import check_writable, counted, is_stdout, new_console, new_progress
from cpd.comm.spec import EXCHANGES, StallWarning

if TYPE_CHECKING:
    from cpd.demo.training import Digits, Ranks, TrainOptions, TrainResult

_TEXT = """\
Trains a digit classifier over several nodes. The data are scikit-learn's 1797
digits, of which a fifth (359 images, the same for all options) is held out.
Each node computes the gradients of its own micro-batch, of its loss divided by
the number of nodes; all gradients then go through one CPD all-reduce, layer by
layer (a layer is one parameter tensor), in fp32 as well. Each epoch shuffles
the 1438 training images and takes nodes × batch of them a step; those left over
at its end are dropped for that epoch. Training ends early where a weight
becomes NaN or infinite.

Nodes are emulated in one process, or are the processes that mpirun (--transport
mpi) or torchrun (--transport torch) has started: each then computes the
gradients of its own micro-batch alone, and rank 0 prints what a run over as
many emulated nodes prints. cpd/comm/LAUNCH.md shows how to start them.

The final 'weights' line is a hash of the final weights. It is the same for any
CPD_NUM_THREADS, for every transport, and for each repeat on one type of CPU:
torch runs in one thread with deterministic algorithms. PyTorch's own kernels
differ between types of CPU, and with them the hash.
"""


_OF_WIRE = ("format", "aps", "loss_scale", "kahan", "order", "rounding", "exchange")
"""Options that are None where they are not given: then a recipe's wire decides, or the default."""


def register(commands: Commands) -> None:
    parser = add_command(commands, "train", _run, "train over emulated nodes", _TEXT)
    reduce_arguments(parser, "fp32", "off")
    group = parser.add_argument_group("the training")
    integer(group, "group-size", None, "sum in groups of that many nodes first; default: none")
    group.add_argument(
        "--last-layer-fp32",
        action="store_true",
        help="sum the output layer's gradients in fp32, without scaling",
    )
    group.add_argument(
        "--exempt",
        action="append",
        default=[],
        metavar="PATTERN",
        help="sum the layers of that name (such as '*.bias') in fp32, without scaling; "
        "may be given several times",
    )
    integer(
        group,
        "min-size",
        None,
        "sum layers of fewer values in fp32, without scaling; default: none",
    )
    integer(group, "fp32-epochs", 0, "sum all layers of the first epochs in fp32")
    integer(group, "nodes", None, "default 8, or with a transport the processes (and no others)")
    integer(group, "batch", 16, "images for each node and step")
    integer(group, "epochs", 40)
    integer(group, "depth", 6, "hidden layers")
    integer(group, "width", 64, "units in a hidden layer")
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help="how layers compute, weights are updated and gradients travel (its wire, which "
        "--format or --wire replaces; --aps, --loss-scale, --group-size, --order and --exchange "
        "change it): a recipe's name (such as mxfp8; cpd.named_recipes() has them), a .toml or "
        ".json file, or an accumulator; default: as torch does",
    )
    group.add_argument("--lr", type=float, default=0.05, metavar="X", help="default 0.05")
    group.add_argument("--momentum", type=float, default=0.9, metavar="X", help="default 0.9")
    integer(group, "seed", 0, "of the first weights, the shuffles and stochastic rounding")
    group = nodes_arguments(parser)
    group.add_argument(
        "--exchange",
        choices=EXCHANGES,
        default="owner",
        help="which messages a transport moves; the result is the same; default owner",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the result as JSON; '-': to standard output, and the text to standard error",
    )
    parser.add_argument(
        "--save-gradients",
        type=Path,
        metavar="FILE",
        help="write every node's gradients of the last step (.npz or .safetensors)",
    )
    parser.set_defaults(**dict.fromkeys(_OF_WIRE))


def _run(options: argparse.Namespace) -> int:
    from cpd.demo.training import load_digits

    with connected(options, options.nodes) as ranks:
        digits = load_digits()
        chosen = _agreed_options(ranks, options, len(digits.train_x))
        if chosen is not None:
            _train_and_print(ranks, chosen, digits, options)
    return 0


def _train_and_print(
    ranks: "Ranks", chosen: "TrainOptions", digits: "Digits", options: argparse.Namespace
) -> None:
    """Trains this process's nodes; the process of node 0 prints the result."""
    from cpd._files import write_json
    from cpd.demo.report.results import Run
    from cpd.demo.training import train
    from cpd.study.gradients import save_gradients

    prints = 0 in ranks.mine
    if not prints:
        warnings.simplefilter("ignore", StallWarning)
    console = new_console(stderr=is_stdout(options.json), quiet=not prints)
    left_out = len(digits.train_x) % (chosen.nodes * chosen.batch)
    console.print(
        f"{chosen.label()}: {counted(chosen.nodes, 'node')} × {counted(chosen.batch, 'image')}, "
        f"{counted(chosen.epochs, 'epoch')}, {counted(chosen.depth, 'hidden layer')} of "
        f"{chosen.width}",
        soft_wrap=True,
    )
    console.print(
        f"digits: {len(digits.train_x)} training images ({left_out} left over in each epoch), "
        f"{len(digits.test_x)} held out"
    )
    with new_progress(quiet=not prints) as progress:
        bar = progress.add_task("training", total=chosen.epochs, note="")

        def on_epoch(epoch: int, accuracy: float) -> None:
            progress.update(bar, completed=epoch, note=f"accuracy {accuracy:.3f}")

        result = train(chosen, digits=digits, on_epoch=on_epoch, ranks=ranks)
    _print_result(console, result)
    if prints and options.json is not None:
        run = Run.of(result)
        write_json(options.json, {**run.row(), "curve": run.curve, "loss": run.loss})
    if prints and options.save_gradients is not None:
        names = [layer.name for layer in result.layers]
        save_gradients(options.save_gradients, names, result.last_gradients)


def _agreed_options(
    ranks: "Ranks", options: argparse.Namespace, images: int
) -> "TrainOptions | None":
    """The options of all processes, as `agreed`."""

    def read() -> "TrainOptions":
        chosen = train_options(options, ranks.world)
        chosen.check_data(images)
        if 0 in ranks.mine:
            _check_results(options)
        return chosen

    return agreed(ranks, options, read)


def train_options(options: argparse.Namespace, nodes: int) -> "TrainOptions":
    from dataclasses import fields

    from cpd.demo.training import TrainOptions

    if options.nodes not in (None, nodes):
        raise ValueError(f"nodes must be the number of ranks, {nodes}, got {options.nodes}")
    values = {field.name: getattr(options, field.name) for field in fields(TrainOptions)}
    return TrainOptions(**{**values, "nodes": nodes, "exempt": tuple(options.exempt)})


def _check_results(options: argparse.Namespace) -> None:
    """Finds out before the work whether its results can be written."""
    from cpd.study.gradients import check_path

    for path in (options.json, options.save_gradients):
        check_writable(path)
    if options.save_gradients is not None:
        check_path(options.save_gradients)


def _print_result(console: Console, result: "TrainResult") -> None:
    from cpd.demo.shares import percent

    nonzero = result.total("nonzero")
    share = result.total("underflowed") / nonzero if nonzero else 0.0
    right = round(result.accuracy * result.held_out)
    console.print(f"state {result.state}")
    console.print(
        f"gradients {percent(share)} of the nonzero values cast to zero, "
        f"{result.total('overflowed')} sums overflowed, "
        f"{result.total('non_finite')} contributions NaN or infinite",
        soft_wrap=True,
    )
    console.print(f"accuracy {result.accuracy:.4f} ({right} of {result.held_out} held-out images)")
    console.print(f"weights {result.weights}")
