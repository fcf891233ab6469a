# SPDX-License-Identifier: Apache-2.0
"""The command `cpd` (also `python -m cpd`).

What a command finds goes to standard output, progress to standard error. A mistake of the user's
gives one line and exit status 2.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import numpy as np
from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import cpd
import cpd.comm
from cpd.cli_options import LISTED_BITS, MODEL_DEFAULTS, NETWORK_DEFAULTS, build_parser

if TYPE_CHECKING:
    from cpd.gradients import Gradients
    from cpd.report.results import Demo, RoundoffRow, Run
    from cpd.report.roundoff import Advice, Contributions, Network
    from cpd.training import Digits, Ranks, TrainOptions, TrainResult

T = TypeVar("T")

_COMMON = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1", "e8m0")


class UsageError(Exception):
    """A mistake of the user's: its text is all that is shown."""


class RunError(Exception):
    """A failure between ranks: its text is all that is shown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    options = _build_parser().parse_args(arguments)
    try:
        with _stalls_told(options.command):
            status: int = options.run(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"cpd {options.command}: error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"cpd {options.command}: error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "cpd":
            raise
        print(
            f"cpd {options.command}: error: needs the Python package '{error.name}' "
            "(pip install 'cpd[torch,study]' brings all of them)",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print(f"cpd {options.command}: interrupted", file=sys.stderr)
        return 130


def _build_parser() -> argparse.ArgumentParser:
    return build_parser(
        {
            "format": _format,
            "train": _train,
            "roundoff": _roundoff,
            "demo": _demo,
            "report": _report,
        }
    )


@contextmanager
def _stalls_told(command: str) -> Iterator[None]:
    """That a sum may stall is told once, in one line, by rank 0 of a training. The other commands
    measure what a sum loses."""
    with warnings.catch_warnings():
        warnings.simplefilter("once" if command == "train" else "ignore", cpd.StallWarning)
        show = warnings.showwarning

        def showwarning(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category is cpd.StallWarning:
                print(f"cpd {command}: warning: {message}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = showwarning
        yield


@contextmanager
def _users_mistakes() -> Iterator[None]:
    """What CPD and the file system refuse while options are read is the user's mistake."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        raise UsageError(f"{where}{error.strerror or error}") from error
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error


# ---- cpd format -------------------------------------------------------------------------------


def _format(options: argparse.Namespace) -> int:
    with _users_mistakes():
        formats = [cpd.format(name) for name in options.names or _COMMON]
    if options.values:
        for wire in formats:
            if wire.bits > LISTED_BITS:
                raise UsageError(
                    f"--values lists formats of up to {LISTED_BITS} bits, {wire} has {wire.bits}"
                )
    if options.json:
        rows = [_describe(wire, options.values) for wire in formats]
        print(json.dumps(rows, indent=2, allow_nan=False))
        return 0
    console = _console()
    console.print(_format_table(formats))
    if options.values:
        for wire in formats:
            _print_values(console, wire)
    return 0


def _describe(wire: cpd.Format, values: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": str(wire),
        "exp": wire.exp,
        "man": wire.man,
        "bias": wire.bias,
        "encoding": wire.encoding,
        "signed": wire.signed,
        "subnormals": wire.subnormals,
        "bits": wire.bits,
        "max": wire.max,
        "min_normal": wire.min_normal,
        "min_subnormal": wire.min_subnormal,
        "epsilon": wire.epsilon,
        "num_values": wire.num_values,
    }
    if values:
        described["values"] = [
            {"code": code, "value": value if math.isfinite(value) else str(value)}
            for code, value in enumerate(_code_values(wire))
        ]
    return described


def _format_table(formats: list[cpd.Format]) -> Table:
    table = _table(
        "Format", "Bits", "e,m,bias", "Max", "Min\nnormal", "Min\nsubn.", "Eps", "Values"
    )
    for wire in formats:
        table.add_row(
            str(wire),
            str(wire.bits),
            f"{wire.exp},{wire.man},{wire.bias}",
            _number(wire.max),
            _number(wire.min_normal),
            _number(wire.min_subnormal) if wire.subnormals else "none",
            _number(wire.epsilon),
            f"{wire.num_values}",
        )
    return table


def _print_values(console: Console, wire: cpd.Format) -> None:
    digits = -(-wire.bits // 4)
    cells = [f"{code:0{digits}x}  {_exact(value)}" for code, value in enumerate(_code_values(wire))]
    console.print(f"{wire}: codes (hexadecimal) and values")
    console.print(Columns(cells, equal=True, column_first=True, padding=(0, 3)))


def _code_values(wire: cpd.Format) -> list[float]:
    """The value of every code, ascending by code."""
    codes = np.arange(2**wire.bits, dtype=np.uint8)
    return [float(cpd.decode(codes[i : i + 1], wire, (1,))[0]) for i in range(len(codes))]


def _number(value: float | None) -> str:
    """A power of two far from 1 as 2^k, any other value in up to six digits."""
    if value is None:
        return "none"
    mantissa, exponent = math.frexp(abs(value))
    if mantissa == 0.5 and not -4 < exponent < 12:
        return f"{'-' if value < 0 else ''}2^{exponent - 1}"
    return f"{value:.6g}"


def _exact(value: float) -> str:
    """The value without rounding: in decimal where that is short, else as m·2^k."""
    decimal = f"{value:.12g}"
    if not math.isfinite(value) or (float(decimal) == value and len(decimal) <= 12):
        return decimal
    numerator, denominator = value.as_integer_ratio()
    twos = (numerator & -numerator).bit_length() - 1
    odd = numerator >> twos
    power = f"2^{twos - (denominator.bit_length() - 1)}"
    return power if odd == 1 else f"-{power}" if odd == -1 else f"{odd}·{power}"


# ---- cpd train --------------------------------------------------------------------------------


def _train(options: argparse.Namespace) -> int:
    from cpd.training import load_digits

    with _connected(options, options.nodes) as ranks:
        digits = load_digits()
        chosen = _agreed_options(ranks, options, len(digits.train_x))
        if chosen is not None:
            _train_and_tell(ranks, chosen, digits, options)
    return 0


@contextmanager
def _connected(options: argparse.Namespace, nodes: int | None) -> Iterator["Ranks"]:
    """The nodes of `--transport`. What goes wrong between processes is told in one line."""
    from cpd.training import open_ranks

    with ExitStack() as stack:
        try:
            with _users_mistakes():
                opened = open_ranks(options.transport, nodes, options.timeout)
                ranks = stack.enter_context(opened)
        except cpd.comm.TransportError as error:
            raise RunError(str(error)) from error
        with _failures_between(ranks):
            yield ranks


@contextmanager
def _failures_between(ranks: "Ranks") -> Iterator[None]:
    """What goes wrong between processes names the one that tells it."""
    from cpd.comm import Corrupt, Mismatch, RankLost, TransportError
    from cpd.training import RanksDiffer

    try:
        yield
    except (RankLost, Mismatch, Corrupt, TransportError, RanksDiffer) as error:
        raise RunError(f"rank {ranks.mine[0]}: {error}") from error
    except Exception as error:
        if len(ranks.mine) < ranks.world:
            error.add_note(f"on rank {ranks.mine[0]} of {ranks.world}")
        raise


def _train_and_tell(
    ranks: "Ranks", chosen: "TrainOptions", digits: "Digits", options: argparse.Namespace
) -> None:
    """Trains this process's nodes; the process of node 0 tells what comes of it."""
    from cpd.gradients import save_gradients
    from cpd.report.results import Run, write_json
    from cpd.training import train

    tells = 0 in ranks.mine
    if not tells:
        warnings.simplefilter("ignore", cpd.StallWarning)
    console = _console(quiet=not tells)
    left_out = len(digits.train_x) % (chosen.nodes * chosen.batch)
    console.print(
        f"{chosen.label()}: {chosen.nodes} nodes × {chosen.batch} images, {chosen.epochs} epochs, "
        f"{chosen.depth} hidden layers of {chosen.width}",
        soft_wrap=True,
    )
    console.print(
        f"digits: {len(digits.train_x)} training images ({left_out} left over in each epoch), "
        f"{len(digits.test_x)} held out"
    )
    with _progress(quiet=not tells) as progress:
        bar = progress.add_task("training", total=chosen.epochs, note="")

        def on_epoch(epoch: int, accuracy: float) -> None:
            progress.update(bar, completed=epoch, note=f"accuracy {accuracy:.3f}")

        result = train(chosen, digits=digits, on_epoch=on_epoch, ranks=ranks)
    _print_result(console, result)
    if tells and options.json is not None:
        run = Run.of(result)
        write_json(options.json, {**run.row(), "curve": run.curve, "loss": run.loss})
    if tells and options.save_gradients is not None:
        names = [layer.name for layer in result.layers]
        save_gradients(options.save_gradients, names, result.last_gradients)


def _agreed_options(
    ranks: "Ranks", options: argparse.Namespace, images: int
) -> "TrainOptions | None":
    """The options of all processes, as `_agreed`."""

    def read() -> "TrainOptions":
        chosen = _train_options(options, ranks.world)
        chosen.check_data(images)
        if 0 in ranks.mine:
            _check_results(options)
        return chosen

    return _agreed(ranks, options, read)


def _agreed(ranks: "Ranks", options: argparse.Namespace, make: Callable[[], T]) -> T | None:
    """What `make` gives if no process finds a user's mistake in it, which else the first of these
    tells, and if all have the same options.

    Raises UsageError in that process and returns None in the others, which end without an error so
    that no launcher stops the one that has something to say.
    """
    from cpd.training import gather_integers

    made, mistake = None, None
    try:
        with _users_mistakes():
            made = make()
    except UsageError as error:
        mistake = error
    own = [int(mistake is not None), _digest(options)]
    found = gather_integers(ranks, [own for _ in ranks.mine])
    mistaken = [rank for rank, (flag, _) in enumerate(found) if flag]
    if mistake is not None and mistaken[0] in ranks.mine:
        raise mistake if mistaken[0] == 0 else UsageError(f"rank {mistaken[0]}: {mistake}")
    others = [rank for rank, (_, digest) in enumerate(found) if digest != found[0][1]]
    if others and not mistaken and 0 in ranks.mine:
        raise UsageError(f"rank {others[0]} was started with other options than rank 0")
    return None if mistaken or others else made


def _digest(options: argparse.Namespace) -> int:
    """64 bits of the options that decide a result."""
    apart = ("run", "json", "save_gradients", "gradients")
    deciding = sorted((name, value) for name, value in vars(options).items() if name not in apart)
    return int.from_bytes(hashlib.sha256(repr(deciding).encode()).digest()[:8])


def _train_options(options: argparse.Namespace, nodes: int) -> "TrainOptions":
    from dataclasses import fields

    from cpd.training import TrainOptions

    if options.nodes not in (None, nodes):
        raise ValueError(f"nodes must be the number of ranks, {nodes}, got {options.nodes}")
    values = {field.name: getattr(options, field.name) for field in fields(TrainOptions)}
    return TrainOptions(**{**values, "nodes": nodes, "exempt": tuple(options.exempt)})


def _check_results(options: argparse.Namespace) -> None:
    """Finds out before the work whether its results can be written."""
    from cpd.gradients import check_path

    for path in (options.json, options.save_gradients):
        _check_writable(path)
    if options.save_gradients is not None:
        check_path(options.save_gradients)


def _check_writable(path: Path | None) -> None:
    """Finds out before the work whether its result can be written."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: not a file in an existing folder")


def _print_result(console: Console, result: "TrainResult") -> None:
    from cpd.report.figures import percent

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


# ---- cpd roundoff -----------------------------------------------------------------------------


@dataclass
class _Study:
    """What `cpd roundoff` was asked, and about what."""

    spec: cpd.ReduceSpec
    sizes: list[int]
    gradients: "Gradients"
    network: "Network | None"


def _roundoff(options: argparse.Namespace) -> int:
    from cpd.report.roundoff import Contributions

    with _connected(options, nodes=1) as ranks:
        comm = getattr(ranks, "comm", None)
        study = _agreed(
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
    _check_writable(options.json)
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

    console = _console(quiet=not tells)
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
        console.print(_roundoff_table(rows))
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
    table = _table("Group size", "Eq. 5 error", "Relative RMS", "Not finite", "Steps", "MB", "ms")
    for row, choice in zip(advice.rows(), advice.best.choices, strict=True):
        table.add_row(
            str(row.group_size),
            _percent(row.error),
            _percent(row.relative_rms),
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
    with _progress(quiet=options.transport != "virtual") as progress:
        bar = progress.add_task("training in fp32", total=chosen.epochs, note="")
        result = train(
            chosen,
            digits=digits,
            on_epoch=lambda epoch, _: progress.update(bar, completed=epoch),
        )
        per_rank = sampled_gradients(result.model, digits, nodes or 256, chosen.batch, chosen.seed)
    return Gradients([layer.name for layer in result.layers], per_rank)


def _percent(value: float) -> str:
    """A share in per cent: two decimals, or three digits where those would show nothing."""
    return f"{value:.2%}" if value == 0 or not abs(value) < 1e-4 else f"{value * 100:.2e}%"


def _roundoff_table(rows: "list[RoundoffRow]") -> Table:
    table = _table("Group size", "Eq. 5 error", "Relative RMS", "Zero refs", "Not finite", "Steps")
    for row in rows:
        table.add_row(
            str(row.group_size),
            _percent(row.error),
            _percent(row.relative_rms),
            str(row.zero_references),
            str(row.non_finite),
            str(row.steps),
        )
    return table


# ---- cpd demo, cpd report ---------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    from cpd.report.demo import DemoOptions, base_options, measure, total_epochs
    from cpd.report.page import write_report

    with _users_mistakes():
        chosen = DemoOptions(seed=options.seed, epochs=options.epochs)
        base_options(chosen)
        if options.jobs is not None and options.jobs < 1:
            raise UsageError(f"jobs must be at least 1, got {options.jobs}")
        options.out.mkdir(parents=True, exist_ok=True)
    console = _console()
    with _progress() as progress:
        demo = measure(chosen, _DemoProgress(progress, total_epochs(chosen)), options.jobs)
    demo.save(options.out)
    page = write_report(demo, options.out)
    _print_demo(console, demo)
    console.print(f"\nreport  {page}\nresults {options.out / 'results.json'}", soft_wrap=True)
    return 0


class _DemoProgress:
    """The demo's progress: one bar over all epochs, one line for each finished run."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._bar = progress.add_task("training", total=total, note="")

    def epoch(self, count: int) -> None:
        self._progress.advance(self._bar, count)

    def done(self, run: "Run") -> None:
        depth = f"{run.depth} hidden layers"
        self._progress.console.print(
            f"  {run.label:<14} {depth}  accuracy {run.accuracy:.3f}  {run.seconds:4.1f} s  "
            f"{'' if run.state == 'finished' else run.state}".rstrip()
        )


def _print_demo(console: Console, demo: "Demo") -> None:
    from cpd.report.figures import percent

    table = _table("Gradients", "Bits", "Accuracy", "Lost to zero", "State", "Weights")
    for run in demo.table:
        table.add_row(
            run.label,
            str(cpd.format(run.format).bits),
            f"{run.accuracy:.3f}",
            percent(run.underflow),
            run.state,
            run.weights,
        )
    table.title = "Held-out accuracy, 8 nodes" if demo.settings["nodes"] == 8 else None
    console.print(table)
    shallow = ", ".join(f"{run.label} {run.accuracy:.3f}" for run in demo.shallow)
    console.print(f"With {demo.shallow[0].depth} hidden layers instead: {shallow}\n")
    rounded = _roundoff_table(demo.roundoff.series[0].rows)
    wire = cpd.format(demo.roundoff.format)
    rounded.title = (
        f"Round-off of ({wire.exp},{wire.man}) + APS, {demo.roundoff.nodes} nodes, "
        "ring across groups"
    )
    console.print(rounded)


def _report(options: argparse.Namespace) -> int:
    from cpd.report.page import write_report
    from cpd.report.results import Demo

    with _users_mistakes():
        demo = Demo.load(options.folder)
        page = write_report(demo, options.folder)
    _console().print(f"report {page}", soft_wrap=True)
    return 0


# ---- output -----------------------------------------------------------------------------------


def _console(stderr: bool = False, quiet: bool = False) -> Console:
    return Console(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)


def _progress(quiet: bool = False) -> Progress:
    """A bar on standard error where that is a terminal; otherwise only what is printed on it."""
    console = _console(stderr=True, quiet=quiet)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, name in enumerate(columns):
        left = index == 0 or name in ("State", "Weights")
        # Words may be broken where the window is narrow, numbers not.
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not left)
    return table
