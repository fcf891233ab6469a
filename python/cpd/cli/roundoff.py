# SPDX-License-Identifier: Apache-2.0
"""`cpd roundoff`: the round-off of an all-reduce by group size."""

import argparse
import shlex
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cpd._files import STDOUT, write_json, write_text
from cpd.cli.added import model_gradients
from cpd.cli.errors import UsageError
from cpd.cli.nodes import agreed, checked_alone, connected
from cpd.cli.options import (
    Commands,
    add_command,
    gradients_arguments,
    integer,
    integers,
    machine_argument,
    nodes_arguments,
    reduce_argument,
    seed_argument,
    table_arguments,
)
from cpd.cli.output import check_readable, check_tables, counted, new_console, new_progress
from cpd.cli.roundoff_output import csv_text, json_of, print_series
from cpd.comm.spec import Reduce, as_reduce

if TYPE_CHECKING:
    from cpd.comm import Communicator
    from cpd.study.gradients import Gradients, NotFinite
    from cpd.study.machines import Machine
    from cpd.study.series import Series

_TEXT = """\
Round-off of an all-reduce by group size, against the binary64 sum of the
contributions before cast and scaling: the relative RMS, sqrt(sum (h - l)^2 /
sum h^2), and the mean of |(h - l) / h| over the references h that are not zero
(Eq. 5 of the APS paper), which a few tiny references can decide. 'Not finite'
counts results that are NaN or infinite; they are left out of both. Steps are
those of the hierarchical all-reduce, 4(k - 1) + 2(p/k - 1) for p nodes in groups
of k; without groups 2(p - 1).

Codecs that feed errors back (one_bit, top_k, feedback …) are measured over 16 steps
with the same gradients: the mean of their sums.

The first rows are what today's stacks do, without scaling or groups: a ring in
bf16, whose partial sums are rounded at each hop as NCCL's are, and fp32, each
slice summed by its owner.

With --transport each process contributes its own gradients, and they are summed
between processes; the table is that of as many virtual nodes.

--recommend measures in order ring, models the time of the hierarchical exchange
(without groups: of a ring; codecs have neither) and of exchange owner as
steps × alpha + bytes / beta, each step as long as its longest message on --machine,
whose ranks all have one link each, and names what to take for the least relative RMS,
the least time and the least product of both: never what another beats in both. Its
errors are those over 8 random orders of the ranks together, so that the order in which
they are given does not matter; the rows are of that order. A choice that more than 5 % of 1,000
resamples (of the orders, and of 16 blocks of the values) would change is a tie,
of which the fastest is named. Between processes the ranks have one order. MB are
those that a master sends: at most, where a codec's sizes depend on the values.

Without --gradients, a --model of `cpd train`, its digit classifier by default, is
trained in fp32 for --epochs, then each of the virtual nodes computes gradients on
--batch training images of its own drawing. The paper's table 9, at a small size:
--model resnet18 --layer conv1. A file is .npz, .safetensors, .pt or .pth and holds
either one array for each layer, whose leading dimension is the rank, or arrays
named rank{r}/layer (in a .pt: a list with a dict for each rank); or it is .npy,
one such layer. Nothing in a file is executed.
"""

MODEL_DEFAULTS = {"epochs": 10, "batch": 16, "train_nodes": 8, "depth": 6, "width": 64}
"""Options of the digit classifier, whose gradients `cpd roundoff` takes."""
OTHER_DEFAULTS = {"epochs": 2, "batch": 4, "train_nodes": 8}
"""Options of another model; depth and width are then the model's own."""
_MACHINE = "alpha=1e-5 beta=1.25e9"
_REDUCE = "e5m2 aps"


def register(commands: Commands) -> None:
    """Adds the command `roundoff`."""
    parser = add_command(commands, "roundoff", _run, "round-off by group size", _TEXT)
    group = parser.add_argument_group("the sums")
    reduce_argument(group, f"'{_REDUCE}'", several=True)
    group.add_argument(
        "--group-sizes",
        type=integers,
        metavar="K,…",
        help="ranks of a group, each measured for every sum whose text has no group_size; default "
        "4,8,16,32,64,256 as far as there are nodes, and all nodes (no groups)",
    )
    group.add_argument(
        "--no-baselines",
        dest="baselines",
        action="store_false",
        help="leave out the rows of today's stacks",
    )
    group.add_argument(
        "--recommend", action="store_true", help="model the time too and name the best group sizes"
    )
    machine_argument(group, f"'{_MACHINE}'")
    group = parser.add_argument_group("the nodes")
    integer(
        group,
        "nodes",
        None,
        "the number of nodes; default 256, or the file's ranks, or with a transport the processes "
        "(and no others)",
    )
    nodes_arguments(group)
    group = parser.add_argument_group("the gradients")
    gradients_arguments(group)
    group.add_argument(
        "--layer",
        metavar="NAME",
        help="that layer alone, or those of a pattern; of a --model also convN and fcN, the weight "
        "of its Nth convolution or linear layer; default: all together",
    )
    seed_argument(group)
    group = parser.add_argument_group("the model's gradients (without --gradients)")
    group.add_argument("--model", metavar="NAME", help="as `cpd train --model`; default mlp")
    for name, what in (
        ("epochs", "training in fp32 before the gradients are taken; "),
        ("batch", "images for each virtual node; "),
        ("train_nodes", "emulated nodes of the training; "),
        ("depth", "hidden layers; "),
        ("width", "units in a hidden layer; "),
    ):
        other = f", of other models {OTHER_DEFAULTS.get(name, 'their own')}"
        default = f"default {MODEL_DEFAULTS[name]}{'' if name == 'train_nodes' else other}"
        integer(group, name.replace("_", "-"), None, what + default)
    group = parser.add_argument_group("the results")
    group.add_argument("--per-tensor", action="store_true", help="show each tensor by itself, too")
    table_arguments(group, "relative RMS by group size")


@dataclass
class _Study:
    """The options of `cpd roundoff`, and its gradients."""

    series: "list[Series]"
    gradients: "Gradients"
    network: "Machine | None"


def _run(options: argparse.Namespace) -> int:
    checked_alone(options, lambda: _check(options))
    with connected(options, nodes=1) as ranks:
        comm = getattr(ranks, "comm", None)
        study = agreed(
            ranks, options, lambda: _study(options, None if comm is None else ranks.world)
        )
        if study is not None:
            _measure_and_print(study, comm, options, prints=0 in ranks.mine)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuses what can be refused before there are gradients."""
    from cpd.study.series import check_group_sizes

    _specs(options)
    check_tables(options)
    nodes = _nodes(options, None)
    _check_source(options)
    if options.gradients is None:
        check_group_sizes(options.group_sizes or [], nodes or 256)
        model_gradients().check(options)


def _specs(options: argparse.Namespace) -> "tuple[Machine | None, dict[str, Reduce]]":
    """The network that --recommend models, and the sums that are measured, by their texts."""
    network = _network(options)
    return network, {text: _spec(text, options) for text in options.reduce or [_REDUCE]}


def _spec(text: str, options: argparse.Namespace) -> Reduce:
    """The all-reduce of a text; of --recommend in order ring."""
    spec = as_reduce(text)
    if options.recommend and spec.order != "ring":
        if any(word.startswith("order=") for word in shlex.split(text)):
            raise UsageError(
                "--recommend models the time of exchanges that sum in order ring, not in order "
                f"{spec.order}"
            )
        spec = spec.replace(order="ring")
    return spec


def _study(options: argparse.Namespace, world: int | None) -> _Study:
    """`world`: the number of processes that are the nodes."""
    from cpd.study.series import Series, baselines, check_group_sizes, group_sizes_for

    _check(options)
    network, specs = _specs(options)
    nodes = _nodes(options, world)
    gradients = _gradients(options, nodes)
    if options.layer is not None:
        gradients = gradients.layer(options.layer)
    usual = options.group_sizes or group_sizes_for(gradients.ranks)
    series = baselines(gradients.ranks) if options.baselines else []
    for text, spec in specs.items():
        sizes = usual if spec.group_size is None else [spec.group_size]
        check_group_sizes(sizes, gradients.ranks)
        series.append(Series(text, spec, sizes))
    return _Study(series, gradients, network)


def _nodes(options: argparse.Namespace, world: int | None) -> int | None:
    """Returns the number of nodes asked for, by number or as processes."""
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"nodes must be at least 1, got {options.nodes}")
    if world is not None and options.nodes not in (None, world):
        raise UsageError(f"nodes must be the number of ranks, {world}, got {options.nodes}")
    return world or options.nodes


def _measure_and_print(
    study: _Study, comm: "Communicator | None", options: argparse.Namespace, prints: bool
) -> None:
    """Measures with the other processes, where there are some; that of node 0 prints."""
    gradients = study.gradients
    not_finite = gradients.not_finite()
    if prints:
        _warn_of(not_finite, options)
    _measure(study, comm, options.seed, quiet=not prints)
    if not prints:
        return
    console = new_console(quiet=STDOUT in (options.csv, options.json))
    console.print(_headline(study, options), soft_wrap=True)
    print_series(console, study.series, options.per_tensor)
    _warn_of_what_is_lost(study)
    if options.csv is not None:
        write_text(options.csv, csv_text(study.series, options.per_tensor))
    if options.json is not None:
        setting = {
            "nodes": gradients.ranks,
            "layers": gradients.names,
            "not_finite": [asdict(one) for one in not_finite],
        }
        write_json(options.json, {**setting, **json_of(study.series, options.per_tensor)})
    if options.plot is not None:
        from cpd.study.plot import draw

        draw(options.plot, study.series, gradients.ranks)


def _measure(study: _Study, comm: "Communicator | None", seed: int, quiet: bool) -> None:
    from cpd.study.reduce import Contributions
    from cpd.study.series import measure_series

    per_rank = study.gradients.per_rank
    mine = per_rank if comm is None else per_rank[comm.rank]
    contributions = Contributions(mine, comm, seed)
    total = sum(len(one.sizes) for one in study.series)
    with new_progress(quiet=quiet, unit="sums") as progress:
        bar = progress.add_task("measuring", total=total, note="")
        for one in study.series:
            progress.update(bar, note=one.label)
            measure_series(
                contributions,
                one,
                study.gradients.names,
                study.network,
                lambda: progress.advance(bar),
            )


def _headline(study: _Study, options: argparse.Namespace) -> str:
    gradients = study.gradients
    chosen = [one for one in study.series if not one.baseline]
    from cpd.study.gradient_files import shown

    layers = len(gradients.names)
    which = f"all {layers} layers" if layers > 1 else shown(gradients.names[0])
    values = sum(layer.size for layer in gradients.per_rank[0])
    nodes = counted(gradients.ranks, "node")
    sums = ", ".join(one.label for one in chosen)
    order = ["order ring"] if options.recommend else []
    parts = [sums, *order, nodes, f"{which} ({counted(values, 'value')})"]
    zeros = chosen[0].lines[0].row.zero_references
    return f"{', '.join(parts)}; {counted(zeros, 'reference')} {'is' if zeros == 1 else 'are'} zero"


def _warn_of(not_finite: "list[NotFinite]", options: argparse.Namespace) -> None:
    """Names inputs that are not finite, so that the format is not blamed."""
    source = "the model's gradients" if options.gradients is None else options.gradients
    most = 5
    for one in not_finite[:most]:
        _warn(f"{source}: {one}; no sum with it is finite")
    if len(not_finite) > most:
        more = counted(len(not_finite) - most, "more layer")
        _warn(f"{source}: {more} with NaN or Inf")


def _warn_of_what_is_lost(study: _Study) -> None:
    """Names the sums of which nothing is left."""
    for one in study.series:
        rows = [line.row for line in one.lines]
        if all(row.count > row.zero_references and row.relative_rms == 1 for row in rows):
            _warn(f"{one.label}: everything is lost, every sum is 0; {_remedy(one.spec)}")
        elif all(0 < row.count == row.non_finite for row in rows):
            _warn(f"{one.label}: everything is lost, no sum is finite; {_remedy(one.spec)}")


def _remedy(spec: "Reduce") -> str:
    if not spec.aps:
        return "scale the values (aps)"
    return "take more exponent bits, or a format with a scale of its own (block=tensor scale=e8m0)"


def _warn(text: str) -> None:
    print(f"cpd roundoff: warning: {text}", file=sys.stderr)


def _network(options: argparse.Namespace) -> "Machine | None":
    """Returns the network that --recommend is asked about; None without it."""
    from cpd.study.machines import Machine

    if not options.recommend:
        if options.machine is not None:
            raise UsageError("--machine needs --recommend")
        return None
    on = Machine(options.machine or _MACHINE)
    if on.gpus > 1:
        raise UsageError(
            f"--recommend models ranks that all have one link each, {on.name} has GPUs that share "
            "a host"
        )
    return Machine(alpha=on.alpha_between, beta=on.beta_between)


def _check_source(options: argparse.Namespace) -> None:
    """Refuses options that do not fit the source of gradients, and files that cannot be read.

    Options of a file's gradients need a file, options of a model's gradients need a model.
    """
    if options.gradients is None:
        if options.round:
            raise UsageError("--round needs --gradients")
        return
    for name in ("model", *MODEL_DEFAULTS):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} is the model's, --gradients takes no model"
            )
    check_readable(options.gradients)


def _gradients(options: argparse.Namespace, nodes: int | None) -> "Gradients":
    from cpd.study.gradients import load_gradients

    if options.gradients is None:
        trained: Gradients = model_gradients().gradients(options, nodes)
        return trained
    loaded = load_gradients(options.gradients, options.round)
    if nodes not in (None, loaded.ranks):
        raise UsageError(f"{options.gradients} holds {counted(loaded.ranks, 'rank')}, not {nodes}")
    return loaded
