# SPDX-License-Identifier: Apache-2.0
"""The options of the command `cpd`: what can be asked, in which words."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import cpd

LISTED_BITS = 8  # the widest format whose values `cpd format --values` lists

_TRAIN_TEXT = """\
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

_ROUNDOFF_TEXT = """\
Round-off of an all-reduce by group size, against the binary64 sum of the
contributions before cast and scaling: the mean of |(h - l) / h| over the
references h that are not zero (Eq. 5 of the APS paper), and the relative RMS,
sqrt(sum (h - l)^2 / sum h^2). Steps are those of the hierarchical all-reduce,
4(k - 1) + 2(p/k - 1) for p nodes in groups of k; without groups 2(p - 1).

With --transport each process contributes its own gradients, and they are summed
between processes; the table is that of as many virtual nodes.

--recommend measures in order ring, models the time of the hierarchical exchange
(without groups: of a ring) as steps × alpha + bytes / bandwidth, each step as
long as its longest message, and names the group sizes of the least error, of the
least time and of the least product of both. MB are those that a master sends.

Without --gradients, the digit classifier of `cpd train` is trained in fp32 for
--epochs, then each of the virtual nodes computes gradients on --batch training
images of its own drawing. A file is .npz or .safetensors and holds either one
array for each layer, whose leading dimension is the rank, or arrays named
rank{r}/layer.
"""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def build_parser(run: dict[str, Callable[[argparse.Namespace], int]]) -> argparse.ArgumentParser:
    """The parser of `cpd`; `run` gives what each command calls."""
    parser = _Parser(
        prog="cpd", description="Customized-precision floating point: see and measure it."
    )
    parser.add_argument("--version", action="version", version=f"cpd {cpd.__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )

    def command(name: str, help: str, text: str = "") -> _Parser:
        made: _Parser = commands.add_parser(
            name,
            help=help,
            description=text or help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(run=run[name])
        return made

    _format_arguments(command("format", "what numbers a format holds"))
    _train_arguments(command("train", "train over emulated nodes", _TRAIN_TEXT))
    _roundoff_arguments(command("roundoff", "round-off by group size", _ROUNDOFF_TEXT))
    _demo_arguments(command("demo", "accuracy without and with APS, round-off, and an HTML report"))
    _report_arguments(command("report", "make report.html anew from what `cpd demo` stored"))
    return parser


def _format_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="e4m3, e4m3fn, e5m2fnuz, e6m9:bias=40, bf16, binary8p4se …; default: common ones",
    )
    parser.add_argument(
        "--values",
        action="store_true",
        help=f"list every code and its value (formats of up to {LISTED_BITS} bits)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _reduce_arguments(parser: argparse.ArgumentParser, format: str, aps: str) -> None:
    group = parser.add_argument_group("the all-reduce")
    group.add_argument("--format", default=format, metavar="NAME", help=f"default {format}")
    group.add_argument(
        "--aps",
        nargs="?",
        const="on",
        default=aps,
        choices=("off", "on", "paper"),
        help="scale each layer by its own power of two; 'paper' never leaves one exponent free "
        f"for rounding outward; default {aps}",
    )
    group.add_argument("--no-aps", dest="aps", action="store_const", const="off")
    group.add_argument(
        "--loss-scale",
        type=_loss_scale,
        default=1.0,
        metavar="S",
        help="a constant power of two for all layers, as 4096 or 2^12; default 1",
    )
    group.add_argument(
        "--kahan", action="store_true", help="Kahan summation, each operation rounded"
    )
    group.add_argument(
        "--order",
        choices=cpd.reduce.ORDERS,
        default="sequential",
        help="of the sum over nodes (over groups, where there are some); default sequential",
    )
    group.add_argument("--rounding", default="nearest_even", choices=_roundings(), metavar="MODE")
    group.add_argument("--overflow", default="ieee", choices=("ieee", "saturate"))


def _roundings() -> tuple[str, ...]:
    return (
        "nearest_even",
        "nearest_away",
        "toward_zero",
        "up",
        "down",
        "to_odd",
        "stochastic",
    )


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    _reduce_arguments(parser, "fp32", "off")
    group = parser.add_argument_group("the training")
    _integer(group, "group-size", None, "sum in groups of that many nodes first; default: none")
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
    _integer(group, "fp32-epochs", 0, "sum all layers of the first epochs in fp32")
    _integer(group, "nodes", None, "default 8, or with a transport the processes (and no others)")
    _integer(group, "batch", 16, "images for each node and step")
    _integer(group, "epochs", 40)
    _integer(group, "depth", 6, "hidden layers")
    _integer(group, "width", 64, "units in a hidden layer")
    group.add_argument("--lr", type=float, default=0.05, metavar="X", help="default 0.05")
    group.add_argument("--momentum", type=float, default=0.9, metavar="X", help="default 0.9")
    _integer(group, "seed", 0, "of the first weights, the shuffles and stochastic rounding")
    group = _nodes_arguments(parser)
    group.add_argument(
        "--exchange",
        choices=cpd.reduce.EXCHANGES,
        default="owner",
        help="which messages a transport moves; the result is the same; default owner",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument(
        "--save-gradients",
        type=Path,
        metavar="FILE",
        help="write every node's gradients of the last step (.npz or .safetensors)",
    )


def _nodes_arguments(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    group = parser.add_argument_group("the nodes")
    group.add_argument(
        "--transport",
        choices=("virtual", "mpi", "torch"),
        default="virtual",
        help="how nodes reach each other: all in this process, by MPI, or by torch.distributed "
        "with gloo; default virtual",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds until a silent rank of a transport is lost; default 300",
    )
    return group


MODEL_DEFAULTS = {"epochs": 10, "batch": 16, "train_nodes": 8, "depth": 6, "width": 64}
"""Of the model whose gradients `cpd roundoff` takes."""
NETWORK_DEFAULTS = {"alpha": 10.0, "bandwidth": 10.0}
"""Microseconds a step and Gb/s."""


def _roundoff_arguments(parser: argparse.ArgumentParser) -> None:
    _reduce_arguments(parser, "e5m2", "on")
    parser.set_defaults(order=None)  # sequential; ring to recommend
    parser.add_argument(
        "--group-sizes",
        type=_integers,
        metavar="K,K,…",
        help="default 4,8,16,32,64,256 as far as there are nodes, and all nodes (no groups)",
    )
    _integer(
        parser,
        "nodes",
        None,
        "default 256, or the file's ranks, or with a transport the processes (and no others)",
    )
    parser.add_argument("--layer", metavar="NAME", help="that layer alone; default: all together")
    parser.add_argument("--gradients", type=Path, metavar="FILE", help="per-rank gradients")
    _integer(parser, "seed", 0, "of the model and of stochastic rounding")
    _nodes_arguments(parser)
    group = parser.add_argument_group("which group size to take")
    group.add_argument(
        "--recommend", action="store_true", help="model the time too and name the best group sizes"
    )
    for name, unit, what in (
        ("alpha", "US", "microseconds that each step takes"),
        ("bandwidth", "GBPS", "of each rank's link, each way, in Gb/s"),
    ):
        group.add_argument(
            f"--{name}",
            type=float,
            metavar=unit,
            help=f"{what}; default {NETWORK_DEFAULTS[name]:g}",
        )
    group = parser.add_argument_group("the model's gradients (without --gradients)")
    for name, what in (
        ("epochs", "training in fp32 before the gradients are taken; "),
        ("batch", "images for each virtual node; "),
        ("train_nodes", "emulated nodes of the training; "),
        ("depth", "hidden layers; "),
        ("width", "units in a hidden layer; "),
    ):
        default = f"default {MODEL_DEFAULTS[name]}"
        _integer(group, name.replace("_", "-"), None, what + default)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="default out/demo"
    )
    _integer(parser, "seed", 0)
    _integer(parser, "epochs", 40, "of every training run")
    _integer(parser, "jobs", None, "training runs at once; default: one for each core, at most 8")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the demo's --out folder")


def _integer(
    parser: "argparse.ArgumentParser | argparse._ArgumentGroup",
    name: str,
    default: int | None,
    help: str = "",
) -> None:
    if default is not None:
        help = f"{help}; default {default}" if help else f"default {default}"
    parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=help)


def _integers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers like 4,8,16, got {text!r}") from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text!r}")
    return value


def _loss_scale(text: str) -> float:
    base, caret, exponent = text.partition("^")
    try:
        value = math.ldexp(1.0, int(exponent)) if caret and base == "2" else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5):
        raise argparse.ArgumentTypeError(f"must be a power of two like 4096 or 2^12, got {text!r}")
    return value
