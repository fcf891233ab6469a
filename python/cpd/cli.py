# SPDX-License-Identifier: Apache-2.0
"""The command `cpd` (also `python -m cpd`).

What a command finds goes to standard output, progress to standard error. A mistake of the user's
gives one line and exit status 2.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import cpd

if TYPE_CHECKING:
    from cpd.gradients import Gradients
    from cpd.report.results import Demo, RoundoffRow, Run
    from cpd.training import TrainOptions, TrainResult

_LISTED_BITS = 8  # the widest format whose values `cpd format --values` lists
_COMMON = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1", "e8m0")

_TRAIN_TEXT = """\
Trains a digit classifier over emulated nodes. The data are scikit-learn's 1797
digits, of which a fifth (359 images, the same for all options) is held out.
Each node computes the gradients of its own micro-batch, of its loss divided by
the number of nodes; all gradients then go through one CPD all-reduce, layer by
layer (a layer is one parameter tensor), in fp32 as well. Each epoch shuffles
the 1438 training images and takes nodes × batch of them a step; those left over
at its end are dropped for that epoch. Training ends early where a weight
becomes NaN or infinite.

The final 'weights' line is a hash of the final weights. It is the same for any
CPD_NUM_THREADS and for each repeat on one type of CPU: torch runs in one thread
with deterministic algorithms. PyTorch's own kernels differ between types of
CPU, and with them the hash.
"""

_ROUNDOFF_TEXT = """\
Round-off of an all-reduce by group size, against the binary64 sum of the
contributions before cast and scaling: the mean of |(h - l) / h| over the
references h that are not zero (Eq. 5 of the APS paper), and the relative RMS,
sqrt(sum (h - l)^2 / sum h^2). Steps are those of the hierarchical all-reduce,
4(k - 1) + 2(p/k - 1) for p nodes in groups of k; without groups 2(p - 1).

Without --gradients, the digit classifier of `cpd train` is trained in fp32 for
--epochs, then each of the virtual nodes computes gradients on --batch training
images of its own drawing. A file is .npz or .safetensors and holds either one
array for each layer, whose leading dimension is the rank, or arrays named
rank{r}/layer.
"""


class UsageError(Exception):
    """A mistake of the user's: its text is all that is shown."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    parser = _build_parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"cpd {options.command}: error: {error}", file=sys.stderr)
        return 2
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


# ---- options ----------------------------------------------------------------------------------


def _build_parser() -> _Parser:
    parser = _Parser(
        prog="cpd", description="Customized-precision floating point: see and measure it."
    )
    parser.add_argument("--version", action="version", version=f"cpd {cpd.__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )

    def command(name: str, run: Callable[..., int], help: str, text: str = "") -> _Parser:
        made: _Parser = commands.add_parser(
            name,
            help=help,
            description=text or help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(run=run)
        return made

    _format_arguments(command("format", _format, "what numbers a format holds"))
    _train_arguments(command("train", _train, "train over emulated nodes", _TRAIN_TEXT))
    _roundoff_arguments(command("roundoff", _roundoff, "round-off by group size", _ROUNDOFF_TEXT))
    _demo_arguments(
        command("demo", _demo, "accuracy without and with APS, round-off, and an HTML report")
    )
    _report_arguments(
        command("report", _report, "make report.html anew from what `cpd demo` stored")
    )
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
        help=f"list every code and its value (formats of up to {_LISTED_BITS} bits)",
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
    group.add_argument("--order", choices=("sequential", "ring"), default="sequential")
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
    _integer(group, "nodes", 8, "emulated nodes")
    _integer(group, "batch", 16, "images for each node and step")
    _integer(group, "epochs", 40)
    _integer(group, "depth", 6, "hidden layers")
    _integer(group, "width", 64, "units in a hidden layer")
    group.add_argument("--lr", type=float, default=0.05, metavar="X", help="default 0.05")
    group.add_argument("--momentum", type=float, default=0.9, metavar="X", help="default 0.9")
    _integer(group, "seed", 0, "of the first weights, the shuffles and stochastic rounding")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument(
        "--save-gradients",
        type=Path,
        metavar="FILE",
        help="write every node's gradients of the last step (.npz or .safetensors)",
    )


def _roundoff_arguments(parser: argparse.ArgumentParser) -> None:
    _reduce_arguments(parser, "e5m2", "on")
    parser.add_argument(
        "--group-sizes",
        type=_integers,
        metavar="K,K,…",
        help="default 4,8,16,32,64,256 as far as there are nodes, and all nodes (no groups)",
    )
    _integer(parser, "nodes", None, "virtual nodes; default 256, or the file's ranks")
    parser.add_argument("--layer", metavar="NAME", help="that layer alone; default: all together")
    parser.add_argument("--gradients", type=Path, metavar="FILE", help="per-rank gradients")
    group = parser.add_argument_group("the model's gradients (without --gradients)")
    _integer(group, "epochs", 10, "training in fp32 before the gradients are taken")
    _integer(group, "batch", 16, "images for each virtual node")
    _integer(group, "train-nodes", 8, "emulated nodes of the training")
    _integer(group, "depth", 6, "hidden layers")
    _integer(group, "width", 64, "units in a hidden layer")
    _integer(group, "seed", 0)
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


def _loss_scale(text: str) -> float:
    base, caret, exponent = text.partition("^")
    try:
        value = math.ldexp(1.0, int(exponent)) if caret and base == "2" else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5):
        raise argparse.ArgumentTypeError(f"must be a power of two like 4096 or 2^12, got {text!r}")
    return value


# ---- cpd format -------------------------------------------------------------------------------


def _format(options: argparse.Namespace) -> int:
    with _users_mistakes():
        formats = [cpd.format(name) for name in options.names or _COMMON]
    if options.values:
        for wire in formats:
            if wire.bits > _LISTED_BITS:
                raise UsageError(
                    f"--values lists formats of up to {_LISTED_BITS} bits, {wire} has {wire.bits}"
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
    from cpd.gradients import check_path, save_gradients
    from cpd.report.results import Run, write_json
    from cpd.training import load_digits, train

    with _users_mistakes():
        chosen = _train_options(options)
        digits = load_digits()
        chosen.check_data(len(digits.train_x))
        for path in (options.json, options.save_gradients):
            _check_writable(path)
        if options.save_gradients is not None:
            check_path(options.save_gradients)
    console = _console()
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
    with _progress() as progress:
        bar = progress.add_task("training", total=chosen.epochs, note="")

        def on_epoch(epoch: int, accuracy: float) -> None:
            progress.update(bar, completed=epoch, note=f"accuracy {accuracy:.3f}")

        result = train(chosen, digits=digits, on_epoch=on_epoch)
    _print_result(console, result)
    if options.json is not None:
        run = Run.of(result)
        write_json(options.json, {**run.row(), "curve": run.curve, "loss": run.loss})
    if options.save_gradients is not None:
        names = [layer.name for layer in result.layers]
        save_gradients(options.save_gradients, names, result.last_gradients)
    return 0


def _train_options(options: argparse.Namespace) -> "TrainOptions":
    from dataclasses import fields

    from cpd.training import TrainOptions

    return TrainOptions(**{f.name: getattr(options, f.name) for f in fields(TrainOptions)})


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


def _roundoff(options: argparse.Namespace) -> int:
    from cpd.report.results import write_json
    from cpd.report.roundoff import check_group_sizes, group_sizes_for, measure_roundoff
    from cpd.training.options import reduce_spec

    with _users_mistakes():
        spec = reduce_spec(
            format=options.format,
            aps=options.aps,
            loss_scale=options.loss_scale,
            kahan=options.kahan,
            order=options.order,
            rounding=options.rounding,
            overflow=options.overflow,
            seed=options.seed,
        )
        _check_writable(options.json)
        if options.gradients is None:
            if options.nodes is not None and options.nodes < 1:
                raise UsageError(f"nodes must be at least 1, got {options.nodes}")
            check_group_sizes(options.group_sizes or [], options.nodes or 256)
        gradients = _gradients(options)
        if options.layer is not None:
            gradients = gradients.layer(options.layer)
        sizes = options.group_sizes or group_sizes_for(gradients.ranks)
        check_group_sizes(sizes, gradients.ranks)
    rows = measure_roundoff(gradients.per_rank, spec, sizes)
    console = _console()
    scaling = {"off": "", "on": " + APS", "paper": " + APS (paper)"}[options.aps]
    console.print(
        f"{spec.format}{scaling}{', Kahan' if options.kahan else ''}, {gradients.ranks} nodes, "
        f"{options.order} across groups, "
        f"{options.layer or f'all {len(gradients.names)} layers'} ({rows[0].count} values)",
        soft_wrap=True,
    )
    console.print(_roundoff_table(rows))
    if options.json is not None:
        setting = {
            "format": str(spec.format),
            "aps": {"off": False, "on": True}.get(options.aps, options.aps),
            "kahan": options.kahan,
            "order": options.order,
            "nodes": gradients.ranks,
            "layers": gradients.names,
        }
        write_json(options.json, {**setting, "roundoff": [row.row() for row in rows]})
    return 0


def _gradients(options: argparse.Namespace) -> "Gradients":
    from cpd.gradients import Gradients, load_gradients
    from cpd.training import TrainOptions, load_digits, sampled_gradients, train

    if options.gradients is not None:
        loaded = load_gradients(options.gradients)
        if options.nodes not in (None, loaded.ranks):
            raise UsageError(f"{options.gradients} holds {loaded.ranks} ranks, not {options.nodes}")
        return loaded
    chosen = TrainOptions(
        nodes=options.train_nodes,
        epochs=options.epochs,
        batch=options.batch,
        depth=options.depth,
        width=options.width,
        seed=options.seed,
    )
    digits = load_digits()
    chosen.check_data(len(digits.train_x))
    nodes = options.nodes or 256
    with _progress() as progress:
        bar = progress.add_task("training in fp32", total=chosen.epochs, note="")
        result = train(
            chosen,
            digits=digits,
            on_epoch=lambda epoch, _: progress.update(bar, completed=epoch),
        )
        per_rank = sampled_gradients(result.model, digits, nodes, chosen.batch, chosen.seed)
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


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _progress() -> Progress:
    """A bar on standard error where that is a terminal; otherwise only what is printed on it."""
    console = _console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
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
