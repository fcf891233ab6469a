# SPDX-License-Identifier: Apache-2.0
"""`cpd roundoff`: measures the round-off of an all-reduce for several group sizes."""

import functools
import math
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli import options as opt
from cpd.cli.added import model_gradients
from cpd.cli.errors import UsageError, warn
from cpd.cli.nodes import agreed, checked_alone, connected
from cpd.cli.output import (
    check_readable,
    check_tables,
    counted,
    new_console,
    new_progress,
    write_tables,
)
from cpd.cli.roundoff_output import csv_of, json_of, print_series
from cpd.comm.spec import Reduce

if TYPE_CHECKING:
    from cpd.comm import Communicator
    from cpd.study.gradients import Gradients, NotFinite
    from cpd.study.machines import Machine
    from cpd.study.series import Series


MODEL_DEFAULTS = {"epochs": 10, "batch": 16, "train_nodes": 8, "depth": 6, "width": 64}
"""Default options of the digit classifier, whose gradients `cpd roundoff` uses by default."""
OTHER_DEFAULTS = {"epochs": 2, "batch": 4, "train_nodes": 8}
"""Default options of a model other than the digit classifier. The model itself defines its depth
and width."""
_MACHINE = "alpha=1e-5 beta=1.25e9"
_REDUCE = "e5m2 aps"

_warn = functools.partial(warn, "roundoff")


def register(commands: opt.Commands) -> None:
    """Adds the command `roundoff`."""
    opt.command(commands, "roundoff", _run, Options)


@dataclass
class Sums:
    """Options of the all-reduces to measure."""

    reduce: list[str] | None = opt.reduce(f"'{_REDUCE}'")
    group_sizes: list[int] | None = opt.option(
        "sizes of a group (numbers of ranks); each is measured for every all-reduce whose text "
        "has no group_size",
        absent="4,8,16,32,64,256, up to the number of nodes, and all nodes (no groups)",
        type=opt.integers,
        metavar="K,…",
    )
    baselines: bool = opt.option("leave out the baselines, a ring in bf16 and a sum in fp32", True)
    recommend: bool = opt.option("also model the time, and name the best group sizes", False)
    machine: str | None = opt.machine(f"'{_MACHINE}'")


@dataclass
class Nodes(opt.Ranks):
    """Options of the nodes."""

    nodes: int | None = opt.option(
        "the number of nodes",
        absent="256; with --gradients the file's ranks; with a transport the number of processes, "
        "which --nodes must equal",
    )


@dataclass
class Source(opt.GradientsFile):
    """Options of the source of the gradients."""

    layer: str | None = opt.option(
        "measure only this tensor, or the tensors that match a pattern; with --model also convN or "
        "fcN, the weight of the Nth convolution or linear layer",
        absent="all tensors together",
        metavar="NAME",
    )
    seed: int = opt.seed()


def _of_models(what: str, name: str) -> Any:
    """Returns a command-line option whose default depends on the model of --model."""
    others = OTHER_DEFAULTS.get(name, "their own")
    both = f"{MODEL_DEFAULTS[name]}, for other models {others}"
    return opt.option(what, absent=str(others) if others == MODEL_DEFAULTS[name] else both)


@dataclass
class Model:
    """Options of the model that computes the gradients."""

    model: str | None = opt.option("a model of `cpd train`", absent="mlp", metavar="NAME")
    epochs: int | None = _of_models(
        "number of epochs of training in fp32 before gradients are computed", "epochs"
    )
    batch: int | None = _of_models("number of images for each virtual node", "batch")
    train_nodes: int | None = _of_models("number of emulated nodes of the training", "train_nodes")
    depth: int | None = _of_models("number of hidden layers", "depth")
    width: int | None = _of_models("number of neurons in a hidden layer", "width")


@dataclass
class Results(opt.Tables):
    """Options for the output of results."""

    plot: Path | None = opt.plot_file("the relative RMS by group size")
    per_tensor: bool = opt.option("also show the round-off of each tensor", False)


@dataclass
class Options:
    """Measure the round-off of an all-reduce by group size.

    Measures the round-off of an all-reduce by group size, compared with the binary64 sum h of the
    contributions before cast and scaling. The all-reduce gives l. The relative RMS is sqrt(sum (h -
    l)^2 / sum h^2). The Eq. 5 error (of the APS paper) is the mean of |(h - l) / h| over the
    references h that are not zero; a few tiny references can decide it. 'Not finite' is the number
    of NaN and infinite results, which both errors leave out. If no result is finite, both errors
    are – (in CSV inf, in JSON null). Steps are the communication steps of the hierarchical
    all-reduce: 4(k - 1) + 2(p/k - 1) for p nodes in groups of k, or 2(p - 1) without groups.
    Compressors (qsgd, top_k …) cannot send partial sums from node to node. Their steps are 2(p -
    1), of the exchange `owner` (reduce-scatter and all-gather).

    Codecs with error feedback (one_bit, top_k, feedback …) are measured on the mean of 16 sums of
    the same gradients. A line below the table names these codecs.

    The first rows are baselines, without scaling or groups: a ring in bf16, which rounds partial
    sums at each hop as NCCL does, and a sum in fp32, in which one rank sums each slice.

    With --transport each process contributes its own gradients, and the processes sum them. The
    table is the same as for this number of virtual nodes.

    --recommend measures in order ring and models the time of two exchanges: hierarchical (without
    groups a ring) and owner. For codecs, only owner is modeled. The time is steps × alpha + bytes /
    beta, where each step takes as long as its longest message on --machine. The model assumes one
    link for each rank. For a named machine, choose one rank per host, as in --machine 'ethernet-10g
    gpus=1'. The command names the choices with the least relative RMS, the least time and the least
    product of both. The errors of choices are measured over 8 random orders of the ranks, so that
    the order of the file does not matter. The rows of the table use the order of the file. The
    command reports a tie, and names the fastest choice, if more than 5 % of 1,000 resamples (of the
    orders, and of 16 blocks of the values) would change the choice. With --transport, only one
    order is measured. MB are the bytes that the first rank of a group sends. For codecs of variable
    size, MB is an upper bound.

    Without --gradients, the command trains a --model of `cpd train`, by default its digit
    classifier, in fp32 for --epochs. Then each virtual node computes gradients on --batch training
    images that it draws at random. For a small version of table 9 of the APS paper, use --model
    resnet18 --layer conv1. A file is .npz, .safetensors, .pt or .pth with an array for each tensor,
    whose leading dimension is the rank, or with arrays named rank{r}/NAME (in a .pt also a list
    with a dict for each rank). A .npy file is one tensor with a leading dimension for the rank.
    Nothing in a file is executed.
    """

    sums: Sums = opt.group(Sums, "the sums")
    nodes: Nodes = opt.group(Nodes, "the nodes")
    source: Source = opt.group(Source, "the gradients")
    model: Model = opt.group(Model, "the model's gradients (without --gradients)")
    results: Results = opt.group(Results, "the results")


@dataclass
class _Study:
    """The all-reduces that `cpd roundoff` measures, and the settings of the measurement."""

    series: "list[Series]"
    gradients: "Gradients"
    network: "Machine | None"


def _run(options: Options) -> int:
    checked_alone(options.nodes, lambda: _check(options))
    with connected(options.nodes, nodes=1) as ranks:
        comm = getattr(ranks, "comm", None)
        study = agreed(
            ranks, options, lambda: _study(options, None if comm is None else ranks.world)
        )
        if study is not None:
            _measure_and_print(study, comm, options, prints=0 in ranks.mine)
    return 0


def _check(options: Options) -> None:
    """Raises an error for invalid options before gradients are computed."""
    from cpd.study.series import check_group_sizes

    _specs(options)
    check_tables(options.results)
    nodes = _nodes(options.nodes.nodes, None)
    _check_source(options)
    if options.source.gradients is None:
        check_group_sizes(options.sums.group_sizes or [], nodes or 256)
        model_gradients().check(opt.flat(options))


def _specs(options: Options) -> "tuple[Machine | None, dict[str, Reduce]]":
    """Returns the network for --recommend, and a dict from each text of --reduce to its spec."""
    network = _network(options)
    return network, {text: _spec(text, options) for text in options.sums.reduce or [_REDUCE]}


def _spec(text: str, options: Options) -> Reduce:
    """Parses the text of an all-reduce. With --recommend, sets the order of the sum to `ring`.

    Raises UsageError if the text has another order.
    """
    spec = opt.reduce_of(text)
    if options.sums.recommend and spec.order != "ring":
        if any(word.startswith("order=") for word in shlex.split(text)):
            raise UsageError(
                "--recommend models the time of exchanges that sum in order ring, not in order "
                f"{spec.order}"
            )
        spec = spec.replace(order="ring")
    return spec


def _study(options: Options, world: int | None) -> _Study:
    """Checks the options and gets the gradients. Returns the all-reduces to measure.

    `world` is the number of processes if each process is one node, else None.
    """
    from cpd.study.series import Series, baselines, check_group_sizes, group_sizes_for

    _check(options)
    network, specs = _specs(options)
    nodes = _nodes(options.nodes.nodes, world)
    gradients = _gradients(options, nodes)
    usual = options.sums.group_sizes or group_sizes_for(gradients.ranks)
    series = baselines(gradients.ranks) if options.sums.baselines else []
    for text, spec in specs.items():
        sizes = usual if spec.group_size is None else [spec.group_size]
        check_group_sizes(sizes, gradients.ranks)
        series.append(Series(text, spec, sizes))
    return _Study(series, gradients, network)


def _nodes(nodes: int | None, world: int | None) -> int | None:
    """Returns the number of nodes: the value of --nodes, or the number of processes."""
    if nodes is not None and nodes < 1:
        raise UsageError(f"nodes must be at least 1, got {nodes}")
    if world is not None and nodes not in (None, world):
        raise UsageError(f"nodes must be the number of ranks, {world}, got {nodes}")
    return world or nodes


def _measure_and_print(
    study: _Study, comm: "Communicator | None", options: Options, prints: bool
) -> None:
    """Measures the round-off, together with the processes of `comm`, and prints the results.

    Only the process of node 0 prints. In this process, `prints` is True.
    """
    gradients = study.gradients
    not_finite = gradients.not_finite()
    if prints:
        _warn_of(not_finite, options)
    _measure(study, comm, options.source.seed, quiet=not prints)
    if not prints:
        return
    console = new_console(quiet=options.results.to_stdout)
    console.print(_headline(study, options), soft_wrap=True)
    print_series(console, study.series, options.results.per_tensor)
    _warn_of_what_is_lost(study, inputs_are_finite=not not_finite)
    setting = {
        "nodes": gradients.ranks,
        "layers": gradients.names,
        "not_finite": [asdict(values) for values in not_finite],
    }
    per_tensor = options.results.per_tensor
    write_tables(
        options.results,
        lambda: csv_of(study.series, per_tensor),
        lambda: {**setting, **json_of(study.series, per_tensor)},
    )
    if options.results.plot is not None:
        from cpd.study.plot import draw

        draw(options.results.plot, study.series, gradients.ranks)


def _measure(study: _Study, comm: "Communicator | None", seed: int, quiet: bool) -> None:
    from cpd.study.reduce import Contributions
    from cpd.study.series import measure_series

    per_rank = study.gradients.per_rank
    mine = per_rank if comm is None else per_rank[comm.rank]
    contributions = Contributions(mine, comm, seed)
    total = sum(len(entry.sizes) for entry in study.series)
    with new_progress(quiet=quiet, unit="sums") as progress:
        bar = progress.add_task("measuring", total=total, note="")
        for entry in study.series:
            progress.update(bar, note=entry.label)
            measure_series(
                contributions,
                entry,
                study.gradients.names,
                study.network,
                lambda: progress.advance(bar),
            )


def _headline(study: _Study, options: Options) -> str:
    gradients = study.gradients
    chosen = [entry for entry in study.series if not entry.baseline]
    from cpd.study.gradient_files import shown

    layers = len(gradients.names)
    which = f"all {layers} layers" if layers > 1 else shown(gradients.names[0])
    values = sum(layer.size for layer in gradients.per_rank[0])
    nodes = counted(gradients.ranks, "node")
    sums = ", ".join(entry.label for entry in chosen)
    order = ["order ring"] if options.sums.recommend else []
    parts = [sums, *order, nodes, f"{which} ({counted(values, 'value')})"]
    zeros = chosen[0].lines[0].row.zero_references
    return f"{', '.join(parts)}; {counted(zeros, 'reference')} {'is' if zeros == 1 else 'are'} zero"


def _warn_of(not_finite: "list[NotFinite]", options: Options) -> None:
    """Warns of layers with NaN or Inf in the input, because no format can give a finite sum."""
    source = (
        "the model's gradients" if options.source.gradients is None else options.source.gradients
    )
    most = 5
    for layer in not_finite[:most]:
        _warn(f"{source}: {layer}; no sum with it is finite")
    if len(not_finite) > most:
        more = counted(len(not_finite) - most, "more layer")
        _warn(f"{source}: {more} with NaN or Inf")


def _warn_of_what_is_lost(study: _Study, inputs_are_finite: bool) -> None:
    """Warns of all-reduces whose sums are all 0 or all not finite. Suggests a remedy."""
    for entry in study.series:
        rows = [line.row for line in entry.lines]
        if all(row.count > row.zero_references and row.relative_rms == 1 for row in rows):
            _warn(f"{entry.label}: everything is lost, every sum is 0; {_remedy(entry.spec)}")
        elif all(math.isinf(row.relative_rms) for row in rows):
            remedy = f"; {_remedy(entry.spec)}" if inputs_are_finite else ""
            _warn(f"{entry.label}: everything is lost, no sum is finite{remedy}")


def _remedy(spec: "Reduce") -> str:
    if not spec.aps:
        return "scale the values (aps)"
    return "take more exponent bits, or a format with a scale of its own (block=tensor scale=e8m0)"


def _network(options: Options) -> "Machine | None":
    """Returns the network whose times --recommend estimates, or None without --recommend."""
    from cpd.study.machines import Machine

    if not options.sums.recommend:
        if options.sums.machine is not None:
            raise UsageError("--machine needs --recommend")
        return None
    on = Machine(options.sums.machine or _MACHINE)
    if on.gpus > 1:
        raise UsageError(
            f"--recommend models ranks that all have one link each, {on.name} has GPUs that share "
            f"a host: write --machine '{on.name} gpus=1' for one rank a host"
        )
    return Machine(alpha=on.alpha_between, beta=min(on.beta_between, on.port or math.inf))


def _check_source(options: Options) -> None:
    """Raises an error for a bad file, or for options that do not apply to the source of gradients.

    Some options apply only to gradients from a file, others only to gradients of a model.
    """
    if options.source.gradients is None:
        if options.source.round:
            raise UsageError("--round needs --gradients")
        return
    for flag in opt.changed(options.model).values():
        raise UsageError(f"{flag} is the model's, --gradients takes no model")
    check_readable(options.source.gradients)


def _gradients(options: Options, nodes: int | None) -> "Gradients":
    """Returns the gradients of a file or a model; with --layer, the gradients of this layer."""
    from cpd.study.gradients import load_gradients

    file, layer = options.source.gradients, options.source.layer
    if file is None:
        parsed = opt.flat(options)
        loaded: Gradients = model_gradients().gradients(parsed, nodes)
        layer = parsed.layer
    else:
        loaded = load_gradients(file, options.source.round)
        if nodes not in (None, loaded.ranks):
            raise UsageError(f"{file} holds {counted(loaded.ranks, 'rank')}, not {nodes}")
    return loaded if layer is None else loaded.layer(layer)
