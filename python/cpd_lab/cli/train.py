# SPDX-License-Identifier: Apache-2.0
"""`cpd train`: trains a model over several emulated or real nodes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd.cli import options as opt
from cpd.cli.errors import UsageError
from cpd.cli.nodes import agreed, checked_alone, connected
from cpd.cli.output import (
    check_writable,
    counted,
    is_stdout,
    new_console,
    new_progress,
    new_table,
)
from cpd.comm.spec import as_reduce
from cpd.numeric.warned import PrecisionWarning
from cpd_lab.shares import percent

if TYPE_CHECKING:
    import argparse

    from rich.progress import Progress
    from rich.table import Table

    from cpd_lab.train import Data, Ranks, TrainOptions, TrainResult
    from cpd_lab.train.result import Step


def register(commands: opt.Commands) -> None:
    """Adds the command `train` to the parser of `cpd`."""
    opt.command(commands, "train", _run, Options)


def _of_model(help: str, mlp: str, **settings: Any) -> Any:
    """Returns an option whose default value depends on the model.

    The argument `mlp` is the default value, as a text, for the model named "mlp". The help of the
    option shows this text.
    """
    return opt.option(help, absent=f"{mlp} (mlp)", **settings)


def _exempt(layers: str, metavar: str) -> Any:
    """Returns an option, which may be repeated, that names layers to be summed in fp32."""
    return opt.option(
        f"sum layers {layers}, in fp32, without scaling; may be given several times",
        action="append",
        metavar=metavar,
    )


@dataclass
class Sums:
    """Options of the all-reduce of gradients."""

    reduce: str | None = opt.reduce("the recipe's, or fp32", several=False)
    last_layer_fp32: bool = opt.option("sum the output layer in fp32, without scaling", False)
    exempt: list[str] | None = _exempt("of these names, such as '*.bias'", "PATTERN")
    exempt_types: list[str] | None = _exempt(
        "of modules of this class of torch, such as BatchNorm2d", "CLASS"
    )
    min_size: int | None = opt.option("sum layers of fewer values in fp32")
    quantized_share: float | None = opt.option(
        "choose --min-size: the largest that leaves this share of the parameters (such as 0.99) to "
        "the format or codec",
        absent="as --min-size",
    )
    fp32_epochs: int = opt.option("sum all layers in fp32 in the first N epochs", 0)
    divide: str = opt.option(
        "divide by the number of nodes: the sum (after), each node's loss (before) or nothing "
        "(none)",
        "after",
        metavar="WHERE",
    )


@dataclass
class Training:
    """Options of the training."""

    batch: int | None = _of_model("images for each node and step", "16")
    epochs: int | None = _of_model("passes over the training images", "40")
    recipe: str | None = opt.option(
        "how layers compute, weights are updated and gradients travel: a recipe's name (cpd show "
        "--recipes), its .toml or .json file, or its text (\"native sums='e6m9 chunked' "
        'activation=e4m3fn"); a format alone casts the operands of all three GEMMs',
        absent="as torch does",
        metavar="NAME|FILE|TEXT",
    )
    optimizer: str | None = _of_model("sgd, nesterov, adam or lars", "sgd", metavar="NAME")
    lr: float | None = _of_model("the learning rate", "0.05")
    momentum: float | None = _of_model("the momentum, or Adam's first beta", "0.9")
    schedule: str | None = _of_model(
        "the learning rate's schedule: 'constant', 'steps 40 80', 'linear' or 'polynomial', with "
        "'warmup 5' in front of any; numbers are epochs, below 1 fractions of the training",
        "constant",
        metavar="NAME",
    )
    weight_decay: float | None = _of_model(
        "the share of the weights that is added to their gradients", "0"
    )
    loss_sum: float | None = _of_model("the factor of the loss, by which the rate is divided", "1")
    ema: float = opt.option(
        "evaluate a moving average of the weights with this decay, or with 0 the weights", 0.0
    )
    seed: int = opt.seed()


@dataclass
class Model:
    """Options of the model and its data."""

    model: str = opt.option("one of the models above", "mlp", metavar="NAME")
    data: str | None = _of_model("the data", "digits", metavar="NAME")
    images: int | None = _of_model("images of the training part; of a text its runs", "1438")
    tests: int | None = _of_model("images of the held-out part", "359")
    length: int | None = _of_model("characters in a run of a text", "64")
    augment: str | None = _of_model(
        "how images of cifar10 are changed: none, shift, cutout or crop24", "none", metavar="NAME"
    )
    depth: int | None = _of_model("hidden layers", "6")
    width: int | None = _of_model("units in a hidden layer, or channels", "64")
    dropout: float | None = _of_model("the probability of dropout", "0")
    device: str = opt.option("where the model computes: cpu, cuda or cuda:N", "cpu", metavar="NAME")


@dataclass
class Nodes(opt.Ranks):
    """Options of the nodes."""

    nodes: int | None = opt.option(
        "the number of nodes",
        absent="8, or with a transport the processes (and no others)",
    )


@dataclass
class Results:
    """Options of the results."""

    json: Path | None = opt.json_file()
    save_gradients: Path | None = opt.option(
        "write every node's gradients of the last step (.npz or .safetensors)",
        absent="not written",
    )
    tensorboard: Path | None = opt.option(
        "write each step's loss, and of each layer what the all-reduce and its codec made of it, "
        "for TensorBoard",
        absent="not written",
        metavar="DIR",
    )
    baseline: bool = opt.option("do not train in fp32 first, to compare with", True)


@dataclass
class Options:
    """Train over emulated nodes.

    Trains a model over several nodes; by default a digit classifier. Its data are scikit-learn's
    1797 digits. A fifth (359 images, the same for all options) is held out. Each node computes the
    gradients of its own micro-batch. One CPD all-reduce (--reduce) then sums the gradients layer by
    layer, in fp32 too; a layer is one parameter tensor. The sum is divided by the number of nodes
    (--divide). Each epoch shuffles the 1438 training images, and each step takes the next nodes ×
    batch images. Images that do not fill a step are left out of the epoch. Training ends early if a
    weight becomes NaN or infinite. Unless --no-baseline is given, the same model is trained in fp32
    first, for comparison.

    Models (--model), the data on which each can be trained (--data, by default
    the first), a description, and the further options of each:
      mlp        digits, cifar10  hidden layers  --depth --width --dropout
      lenet      digits, cifar10  LeNet-5        --width --dropout
      cifarnet   cifar10          TensorFlow's   --width --dropout
      resnet18   cifar10          He et al.      --width
      resnet110  cifar10          He et al.      --width
      davidnet   cifar10          David Page's   --width
      fcn        shapes           segmentation   --width
      text_lstm  text             an LSTM        --depth --width --dropout
      gpt        text             a decoder      --depth --width --dropout
    cifar10 is read from $CPD_DATA (default ../shared/data), shapes are generated,
    and text is Python's language reference. Each model has defaults of its own for
    --batch, --epochs, --lr, --optimizer, --schedule and so on.

    Nodes are emulated in one process, or they are the processes that mpirun (--transport mpi) or
    torchrun (--transport torch) has started. Each process then computes only the gradients of its
    own micro-batch, and rank 0 prints the same lines as a run over as many emulated nodes.
    cpd/comm/LAUNCH.md shows how to start them.

    The final 'weights' line is a hash of the final weights. On one type of CPU, the hash is the
    same for each repeat, for every transport and for any CPD_NUM_THREADS, because torch runs in one
    thread with deterministic algorithms. PyTorch's own kernels differ between types of CPU, and the
    hash with them.
    """

    sums: Sums = opt.group(Sums, "the all-reduce of gradients")
    training: Training = opt.group(Training, "the training")
    model: Model = opt.group(Model, "the model and its data")
    nodes: Nodes = opt.group(Nodes, "the nodes")
    results: Results = opt.group(Results, "the results")


def _run(options: Options) -> int:
    checked_alone(options.nodes, lambda: _check(options))
    with connected(options.nodes, options.nodes.nodes) as ranks:
        chosen = _agreed_options(ranks, options)
        if chosen is not None:
            _train_and_print(ranks, *chosen, options.results)
    return 0


def _train_and_print(ranks: Ranks, chosen: TrainOptions, data: Data, results: Results) -> None:
    """Trains the nodes of this process. Only the process that has node 0 prints the result."""
    from cpd._files import write_json
    from cpd.study.gradients import save_gradients
    from cpd_lab.train import train

    prints = 0 in ranks.mine
    if not prints:
        warnings.simplefilter("ignore", PrecisionWarning)
    console = new_console(stderr=is_stdout(results.json), quiet=not prints)
    for line in headlines(chosen, data):
        console.print(line, soft_wrap=True)
    plain = chosen.in_fp32() if results.baseline else None
    baseline = None
    with new_progress(quiet=not prints) as progress:
        if plain is not None:
            told = _epochs_told(progress, "in fp32", plain, data)
            baseline = train(plain, data=data, on_epoch=told, ranks=ranks, keep_gradients=False)
        told = _epochs_told(progress, "training", chosen, data)
        with _step_writer(results.tensorboard if prints else None) as on_step:
            result = train(chosen, data=data, on_epoch=told, on_step=on_step, ranks=ranks)
    console.print(epochs_table(result, baseline))
    for line in result_lines(result, baseline):
        console.print(line, soft_wrap=True)
    if prints and results.json is not None:
        write_json(results.json, json_of(result, baseline))
    if prints and results.save_gradients is not None:
        names = [layer.name for layer in result.layers]
        save_gradients(results.save_gradients, names, result.last_gradients)


def _epochs_told(
    progress: Progress, what: str, chosen: TrainOptions, data: Data
) -> Callable[[int, float], None]:
    """Returns a callback that shows each epoch on a progress bar.

    Without a terminal, the callback prints up to ten lines instead.
    """
    bar = progress.add_task(what, total=chosen.epochs, note="")
    name = _METRICS[data.kind]

    def on_epoch(epoch: int, value: float) -> None:
        progress.update(bar, completed=epoch, note=f"{name} {value:.3f}")
        if progress.disable and epoch * 10 // chosen.epochs > (epoch - 1) * 10 // chosen.epochs:
            progress.console.print(
                f"{what}: epoch {epoch} of {chosen.epochs}, {name} {value:.3f}", soft_wrap=True
            )

    return on_epoch


def epochs_table(result: TrainResult, baseline: TrainResult | None) -> Table:
    """Returns a table of the metric after up to eight epochs, with a row for the fp32 training."""
    last = result.options.epochs
    some = [n * 10**k for k in range(len(str(last))) for n in (1, 2, 5) if n * 10**k < last]
    shown = [*some[-_MOST_EPOCHS + 1 :], last]
    metric = result.metric.replace("mean_iou", "mean IoU")
    table = new_table(f"{metric} after epoch", *map(str, shown))
    for name, training in ((result.options.label(), result), ("FP32", baseline)):
        if training is not None:
            curve = training.curve
            table.add_row(name, *(f"{curve[n - 1]:.3f}" if n <= len(curve) else "–" for n in shown))
    return table


_MOST_EPOCHS = 8


@contextmanager
def _step_writer(folder: Path | None) -> Iterator[Callable[[Step], bool | None] | None]:
    """Yields a callback that writes each training step for TensorBoard; None if `folder` is None.

    Raises UsageError if the package tensorboard is not installed.
    """
    if folder is None:
        yield None
        return
    from cpd_lab.train.scalars import write_scalars

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "--tensorboard needs the package tensorboard: pip install tensorboard"
        ) from None
    writer: Any = SummaryWriter(folder)
    try:
        yield lambda step: write_scalars(writer, step)
    finally:
        writer.close()


_METRICS = {"classes": "accuracy", "pixels": "mean IoU", "text": "loss"}
_INPUTS = {"classes": "image", "pixels": "image", "text": "run"}


def _agreed_options(ranks: Ranks, options: Options) -> tuple[TrainOptions, Data] | None:
    """Returns the options that all processes agree on, and the data as this process loaded them.

    Returns None if another process reports that the options are invalid or differ.
    """

    def read() -> tuple[TrainOptions, Data]:
        if 0 in ranks.mine:
            _check_results(options.results)
        chosen = train_options(opt.flat(options), ranks.world)
        data = chosen.load_data()
        chosen.check_data(len(data.train_x))
        return chosen, data

    return agreed(ranks, options, read)


def _check(options: Options) -> None:
    """Raises an error for invalid options before a model is made or data are loaded."""
    from cpd_lab.train.options import check_data
    from cpd_lab.train.table import defaults_of

    _check_results(options.results)
    usual = defaults_of(options.model.model, options.model.data)
    nodes = 8 if options.nodes.nodes is None else options.nodes.nodes
    check_data(
        nodes, options.training.batch or usual["batch"], options.model.images or usual["images"]
    )
    train_options(opt.flat(options), nodes)


def train_options(parsed: argparse.Namespace, nodes: int) -> TrainOptions:
    """Returns the options of the training, from the command's options that argparse has parsed."""
    from dataclasses import fields

    from cpd_lab.train import TrainOptions
    from cpd_lab.train.wire import reduce_text

    if parsed.nodes not in (None, nodes):
        raise ValueError(f"nodes must be the number of ranks, {nodes}, got {parsed.nodes}")
    names = [field.name for field in fields(TrainOptions)]
    values = {name: getattr(parsed, name) for name in names if hasattr(parsed, name)}
    if parsed.reduce is not None:
        values["reduce"] = reduce_text(as_reduce(parsed.reduce))
    lists = {name: tuple(values[name] or ()) for name in ("exempt", "exempt_types")}
    return TrainOptions(**{**values, **lists, "nodes": nodes})


def _check_results(results: Results) -> None:
    """Raises an error, before the training starts, if the result files cannot be written."""
    for path in (results.json, results.save_gradients):
        check_writable(path)
    if results.save_gradients is not None:
        from cpd.study.gradients import check_path

        check_path(results.save_gradients)


def headlines(chosen: TrainOptions, data: Data) -> list[str]:
    """Returns the lines about the model and the data that are printed before the training."""
    kind = _INPUTS[data.kind]
    what = f"{counted(chosen.depth or 0, 'hidden layer')} of {chosen.width}"
    if chosen.model != "mlp":
        depth = f"{counted(chosen.depth, 'layer')}, " if chosen.depth else ""
        what = f"{chosen.model} ({depth}width {chosen.width})"
    left_out = len(data.train_x) % (chosen.nodes * chosen.batch)
    inputs = "runs of " + counted(chosen.length, "character") if data.kind == "text" else "images"
    lines = [
        f"{chosen.label()}: {counted(chosen.nodes, 'node')} × {counted(chosen.batch, kind)}, "
        f"{counted(chosen.epochs, 'epoch')}, {what}",
        f"{data.source}: {len(data.train_x)} training {inputs} ({left_out} left over in each "
        f"epoch), {len(data.test_x)} held out",
    ]
    if chosen.of_one_value:
        lines.append(f"in fp32, as layers of one value: {', '.join(chosen.of_one_value)}")
    if chosen.quantized_share is not None:
        lines.append(
            f"quantized {100 * chosen.share:.2f} % of the parameters (min size "
            f"{chosen.chosen_min_size})"
        )
    return lines


def result_lines(result: TrainResult, baseline: TrainResult | None = None) -> list[str]:
    """Returns the lines that are printed after a training.

    They have the state, the gradients that the cast turned into zero, the metrics and the hash.
    """
    nonzero = result.total("nonzero")
    share = result.total("underflowed") / nonzero if nonzero else 0.0
    lines = [
        f"state {result.state}",
        f"gradients {percent(share)} of the nonzero values cast to zero, "
        f"{result.total('overflowed')} sums overflowed, "
        f"{result.total('non_finite')} contributions NaN or infinite",
    ]
    if result.options.model != "mlp":
        cost = result.cost
        most = "" if cost.exact else "at most "
        lines.append(f"wire {most}{cost.bytes_sent:,} bytes sent by node 0 in a step")
    lines += _codec_lines(result)
    if result.coverage is not None:
        lines += str(result.coverage).splitlines()
    curves = {name: values[-1] for name, values in result.curves.items()}
    if result.metric == "accuracy":
        right = round(result.accuracy * result.held_out)
        summary = f"accuracy {result.accuracy:.4f} ({right} of {result.held_out} held-out images)"
    elif result.metric == "mean_iou":
        summary = f"mean IoU {curves['mean_iou']:.4f}, mean accuracy {curves['mean_accuracy']:.4f}"
    else:
        summary = (
            f"loss {curves['loss']:.4f} a held-out character, accuracy {curves['accuracy']:.4f}"
        )
    against = "" if baseline is None else f"; in fp32 {baseline.curve[-1]:.4f}"
    return [*lines, summary + against, f"weights {result.weights}"]


def _codec_lines(result: TrainResult) -> list[str]:
    """Returns lines on a codec: its zeros, its bits for each value, and the bits it chose.

    The list is empty if the training sends gradients in a format instead of a codec.
    """
    if result.options.spec.format is not None or not result.total("values"):
        return []
    zeros = result.total("zeros") / result.total("values")
    bits = 8 * result.total("bytes") / result.total("values")
    lines = [
        f"codec {percent(zeros)} of the values sent are zero, {bits:.2f} bits a value; of "
        f"{percent(result.share)} of the parameters"
    ]
    chosen = [
        f"{layer.name} {min(layer.bits)}…{max(layer.bits)}" for layer in result.layers if layer.bits
    ]
    if chosen:
        more = f", … of {len(chosen)} layers" if len(chosen) > _MOST_LAYERS else ""
        lines.append(f"bits chosen: {', '.join(chosen[:_MOST_LAYERS])}{more}")
    return lines


_MOST_LAYERS = 8


def json_of(result: TrainResult, baseline: TrainResult | None = None) -> dict[str, object]:
    """Returns the result as the dictionary that `--json` writes."""
    from cpd_lab.train.runs import Run

    run = Run.of(result)
    return {
        **run.row(),
        "curve": run.curve,
        "loss": run.loss,
        "metric": result.metric,
        "curves": result.curves,
        "baseline": None if baseline is None else baseline.curves,
        "min_size": result.min_size,
        "quantized_share": result.share,
        "bytes_sent": result.cost.bytes_sent,
        "coverage": None if result.coverage is None else result.coverage.to_dict(),
        "bytes_sent_exact": result.cost.exact,
        "codec": {
            layer.name: {
                "values": layer.values,
                "zeros": layer.zeros,
                "bytes": layer.bytes,
                "bits": layer.bits,
            }
            for layer in result.layers
        },
        "key": result.options.key(),
    }
