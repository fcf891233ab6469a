# SPDX-License-Identifier: Apache-2.0
"""`cpd roundoff`: the round-off of an all-reduce by group size."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import cpd
from cpd.cli.errors import UsageError
from cpd.cli.nodes import agreed, connected
from cpd.cli.options import (
    Commands,
    add_command,
    integer,
    integers,
    nodes_arguments,
    reduce_arguments,
)
from cpd.cli.output import check_writable, new_console, new_progress, new_table, percent

if TYPE_CHECKING:
    from cpd.gradients import Gradients
    from cpd.report.results import RoundoffRow
    from cpd.report.roundoff import Advice, Contributions, Network

_TEXT = """\
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

MODEL_DEFAULTS = {"epochs": 10, "batch": 16, "train_nodes": 8, "depth": 6, "width": 64}
"""Of the model whose gradients `cpd roundoff` takes."""
NETWORK_DEFAULTS = {"alpha": 10.0, "bandwidth": 10.0}
"""Microseconds a step and Gb/s."""


def register(commands: Commands) -> None:
    parser = add_command(commands, "roundoff", _run, "round-off by group size", _TEXT)
    reduce_arguments(parser, "e5m2", "on")
    parser.set_defaults(order=None)  # sequential; ring to recommend
    parser.add_argument(
        "--group-sizes",
        type=integers,
        metavar="K,K,…",
        help="default 4,8,16,32,64,256 as far as there are nodes, and all nodes (no groups)",
    )
    integer(
        parser,
        "nodes",
        None,
        "default 256, or the file's ranks, or with a transport the processes (and no others)",
    )
    parser.add_argument("--layer", metavar="NAME", help="that layer alone; default: all together")
    parser.add_argument("--gradients", type=Path, metavar="FILE", help="per-rank gradients")
    integer(parser, "seed", 0, "of the model and of stochastic rounding")
    nodes_arguments(parser)
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
        integer(group, name.replace("_", "-"), None, what + default)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON")


@dataclass
class _Study:
    """What `cpd roundoff` was asked, and about what."""

    spec: cpd.ReduceSpec
    sizes: list[int]
    gradients: "Gradients"
    network: "Network | None"


def _run(options: argparse.Namespace) -> int:
    from cpd.report.roundoff import Contributions

    with connected(options, nodes=1) as ranks:
        comm = getattr(ranks, "comm", None)
        study = agreed(
            ranks, options, lambda: _study(options, None if comm is None else ranks.world)
        )
        if study is not None:
            given = Contributions(study.gradients.per_rank, comm)
            _measure_and_tell(study, given, options, tells=0 in ranks.mine)
    return 0


def _study(options: argparse.Namespace, world: int | None) -> _Study:
    """`world`: the number of processes that are the nodes."""
    from cpd.report.roundoff import check_group_sizes, group_sizes_for
    from cpd.training.options import reduce_spec

    network = _network(options)
    order = options.order or ("sequential" if network is None else "ring")
    spec = reduce_spec(
        format=options.format,
        aps=options.aps,
        loss_scale=options.loss_scale,
        kahan=options.kahan,
        order=order,
        rounding=options.rounding,
        overflow=options.overflow,
        seed=options.seed,
    )
    if network is not None and order != "ring":
        raise UsageError(
            f"--recommend models the time of exchanges that sum in order ring, not in order {order}"
        )
    check_writable(options.json)
    nodes = _nodes(options, world)
    if options.gradients is None:
        check_group_sizes(options.group_sizes or [], nodes or 256)
    gradients = _gradients(options, nodes)
    if options.layer is not None:
        gradients = gradients.layer(options.layer)
    sizes = options.group_sizes or group_sizes_for(gradients.ranks)
    check_group_sizes(sizes, gradients.ranks)
    return _Study(spec, sizes, gradients, network)


def _nodes(options: argparse.Namespace, world: int | None) -> int | None:
    """How many nodes were asked for, by number or as processes."""
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"nodes must be at least 1, got {options.nodes}")
    if world is not None and options.nodes not in (None, world):
        raise UsageError(f"nodes must be the number of ranks, {world}, got {options.nodes}")
    return world or options.nodes


def _measure_and_tell(
    study: _Study, given: "Contributions", options: argparse.Namespace, tells: bool
) -> None:
    """Measures with the other processes, where there are some; the one of node 0 tells."""
    from cpd.report.results import write_json
    from cpd.report.roundoff import Advice, measure_roundoff

    console = new_console(quiet=not tells)
    gradients, order = study.gradients, study.spec.order
    scaling = {"off": "", "on": " + APS", "paper": " + APS (paper)"}[options.aps]
    values = sum(layer.numel() for layer in gradients.per_rank[0])
    console.print(
        f"{study.spec.format}{scaling}{', Kahan' if options.kahan else ''}, "
        f"{gradients.ranks} nodes, {order} across groups, "
        f"{options.layer or f'all {len(gradients.names)} layers'} ({values} values)",
        soft_wrap=True,
    )
    found: dict[str, Any]
    if study.network is None:
        rows = measure_roundoff(given, study.spec, study.sizes)
        console.print(roundoff_table(rows))
        found = {"roundoff": [row.row() for row in rows]}
    else:
        advice = Advice.of(given, study.spec, study.sizes, study.network)
        console.print(_advice_table(advice))
        for line in advice.lines():
            console.print(line, soft_wrap=True)
        found = {"roundoff": advice.json_rows(), "recommend": advice.json()}
    if tells and options.json is not None:
        setting = {
            "format": str(study.spec.format),
            "aps": {"off": False, "on": True}.get(options.aps, options.aps),
            "kahan": options.kahan,
            "order": order,
            "nodes": gradients.ranks,
            "layers": gradients.names,
        }
        write_json(options.json, {**setting, **found})


def _network(options: argparse.Namespace) -> "Network | None":
    """What --recommend is asked about; None without it."""
    from cpd.report.roundoff import Network

    given = {name: getattr(options, name) for name in NETWORK_DEFAULTS}
    if options.recommend:
        chosen = {
            name: default if given[name] is None else given[name]
            for name, default in NETWORK_DEFAULTS.items()
        }
        return Network(chosen["alpha"], chosen["bandwidth"])
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name} needs --recommend")
    return None


def _advice_table(advice: "Advice") -> Table:
    table = new_table(
        "Group size", "Eq. 5 error", "Relative RMS", "Not finite", "Steps", "MB", "ms"
    )
    for row, choice in zip(advice.rows(), advice.best.choices, strict=True):
        table.add_row(
            str(row.group_size),
            percent(row.error),
            percent(row.relative_rms),
            str(row.non_finite),
            str(choice.steps),
            f"{choice.bytes_sent / 1e6:.4g}",
            f"{choice.seconds * 1e3:.4g}",
        )
    return table


def _gradients(options: argparse.Namespace, nodes: int | None) -> "Gradients":
    from cpd.gradients import Gradients, load_gradients
    from cpd.training import TrainOptions, load_digits, sampled_gradients, train

    model = {name: getattr(options, name) for name in MODEL_DEFAULTS}
    if options.gradients is not None:
        for name, value in model.items():
            if value is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is the model's, --gradients takes no model"
                )
        loaded = load_gradients(options.gradients)
        if nodes not in (None, loaded.ranks):
            raise UsageError(f"{options.gradients} holds {loaded.ranks} ranks, not {nodes}")
        return loaded
    for name, default in MODEL_DEFAULTS.items():
        model[name] = default if model[name] is None else model[name]
    chosen = TrainOptions(nodes=model.pop("train_nodes"), seed=options.seed, **model)
    digits = load_digits()
    chosen.check_data(len(digits.train_x))
    with new_progress(quiet=options.transport != "virtual") as progress:
        bar = progress.add_task("training in fp32", total=chosen.epochs, note="")
        result = train(
            chosen,
            digits=digits,
            on_epoch=lambda epoch, _: progress.update(bar, completed=epoch),
        )
        per_rank = sampled_gradients(result.model, digits, nodes or 256, chosen.batch, chosen.seed)
    return Gradients([layer.name for layer in result.layers], per_rank)


def roundoff_table(rows: "list[RoundoffRow]") -> Table:
    table = new_table(
        "Group size", "Eq. 5 error", "Relative RMS", "Zero refs", "Not finite", "Steps"
    )
    for row in rows:
        table.add_row(
            str(row.group_size),
            percent(row.error),
            percent(row.relative_rms),
            str(row.zero_references),
            str(row.non_finite),
            str(row.steps),
        )
    return table
