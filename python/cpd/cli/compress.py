# SPDX-License-Identifier: Apache-2.0
"""`cpd compress`: measures what codecs lose and save on the tensors of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd._files import write_npz
from cpd.cli import options as opt
from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.output import (
    check_readable,
    check_writable,
    counted,
    is_stdout,
    json_written,
    new_console,
    new_progress,
    new_table,
)

if TYPE_CHECKING:
    from cpd.study.compression import Figures, Values


_ZSTD = "zstd"


def register(commands: opt.Commands) -> None:
    """Adds the command `compress`."""
    opt.command(commands, "compress", _run, Options)


@dataclass
class Results:
    """Options for the output of results."""

    per_tensor: bool = opt.option("also show the figures of each tensor", False)
    json: Path | None = opt.json_file()
    out: Path | None = opt.option("write the encoded tensors (.npz)", absent="not written")


@dataclass
class Options:
    """Measure what codecs lose and save on a file's tensors.

    Encodes the floating-point tensors of a file with codecs and measures their size, error and
    speed. The file is .npy, .npz, .safetensors, .pt or .pth, such as a model's checkpoint or
    per-rank gradients. Nothing in it is executed. Values are rounded to binary32 first.

    Each tensor is encoded separately, from a new state. An array named rank{r}/NAME is the tensor
    NAME of rank r, and is encoded separately from the other ranks' tensors. An array with the rank
    as its first dimension is one tensor: top_k then selects the largest values of all ranks
    together. (`cpd roundoff` encodes such an array rank by rank.) Bytes are the size of an encoded
    message. The ratio is the size in binary32 divided by the size of the message. The relative RMS
    is sqrt(sum (q - x)^2 / sum x^2) over finite values x and decoded values q. For codecs with
    random bits, the variance is sum Var(q) / sum x^2, estimated from --seeds encodings. A value
    that a codec cannot encode is an error.

    The row `zstd` is the lossless compression of the binary32 values. It needs the Python package
    zstandard.

    --out stores the encoded tensors as .npz. NAME.data has the bytes of a tensor, for
    cpd.compress.Packet.from_bytes, and NAME.shape its shape.
    """

    file: Path = opt.argument("a file of tensors")
    codec: list[str] = opt.option(
        "codecs (cpd show --codecs) or formats, such as 'qsgd bits=4 bucket=512' or mxfp8; a list, "
        "or the option again",
        required=True,
        action="extend",
        type=opt.texts,
        metavar="TEXT,…",
    )
    seed: int = opt.seed()
    seeds: int = opt.option(
        "number of encodings that estimate the variance, each with its own seed", 4
    )
    results: Results = opt.group(Results, "the results")


def _run(options: Options) -> int:
    names = _codecs(options)
    with users_mistakes():
        check_readable(options.file)
    from cpd.study.compression import by_zstd, measured, total

    tensors = _tensors(options.file)
    seeds = range(options.seed, options.seed + options.seeds)
    quiet = is_stdout(options.results.json)
    layers: dict[str, dict[str, Figures]] = {name: {} for name in names}
    arrays: dict[str, Any] = {}
    with new_progress(quiet=quiet, unit="tensors") as progress:
        bar = progress.add_task("encoding", total=len(tensors) * len(names), note="")
        for name in names:
            progress.update(bar, note=name)
            for tensor, x in tensors.items():
                try:
                    layers[name][tensor], data = measured(name, seeds, x)
                except ValueError as error:
                    raise UsageError(f"{options.file}: '{tensor}' by {name}: {error}") from error
                if options.results.out is not None:
                    arrays[f"{tensor}.data"] = np.frombuffer(data, np.uint8)
                    arrays[f"{tensor}.shape"] = np.asarray(x.shape, np.int64)
                progress.advance(bar)
    lossless = {
        tensor: figures for tensor, x in tensors.items() if (figures := by_zstd(x)) is not None
    }
    if lossless:
        layers[_ZSTD] = lossless
    whole = {name: total(by_tensor.values()) for name, by_tensor in layers.items()}
    if options.results.out is not None:
        write_npz(options.results.out, arrays)
    if not json_written(options.results.json, lambda: _json(options, whole, layers)):
        _show(options, whole, layers)
    return 0


def _codecs(options: Options) -> list[str]:
    """Checks all options. Returns the canonical texts of the codecs."""
    from cpd.compress.codecs import Codec

    if options.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {options.seeds}")
    for path in (options.results.json, options.results.out):
        check_writable(path)
    if options.results.out is not None and (
        options.results.out.suffix != ".npz" or len(options.codec) > 1
    ):
        raise UsageError("--out takes one codec's tensors, into a file that ends in .npz")
    with users_mistakes():
        return list(dict.fromkeys(Codec(text).text for text in options.codec))


def _tensors(path: Path) -> "dict[str, Values]":
    """Returns the floating-point tensors of a file, rounded to binary32."""
    from cpd.study.gradient_files import read_arrays, shown

    with users_mistakes():
        arrays = read_arrays(path, leaves_out=True)
    with np.errstate(over="ignore"):
        tensors = {shown(name): np.asarray(x, np.float32, order="C") for name, x in arrays.items()}
    if not tensors:
        raise UsageError(f"{path} holds no floating-point tensors")
    return tensors


_COLUMNS = ("Bytes", "Bits a value", "Ratio", "Relative RMS", "Variance", "Encode ms", "Decode ms")


def _cells(figures: "Figures") -> list[str]:
    variance = figures.variance
    return [
        f"{figures.bytes:,}",
        f"{figures.bits_a_value:.3f}",
        f"{figures.ratio:.2f}",
        f"{figures.relative_rms:.3e}",
        "–" if variance is None else f"{variance:.3e}",
        f"{1e3 * figures.encode:.2f}",
        f"{1e3 * figures.decode:.2f}",
    ]


def _show(
    options: Options,
    whole: "dict[str, Figures]",
    layers: "dict[str, dict[str, Figures]]",
) -> None:
    first = next(iter(layers.values()))
    values = sum(figures.values for figures in first.values())
    console = new_console()
    console.print(
        f"{options.file}: {counted(len(first), 'tensor')}, {values:,} values, {4 * values:,} bytes "
        "in binary32",
        soft_wrap=True,
    )
    table = new_table("Codec", *_COLUMNS)
    for name, figures in whole.items():
        table.add_row(name, *_cells(figures))
    console.print(table)
    for name, by_tensor in layers.items() if options.results.per_tensor else ():
        table = new_table("Tensor", "Values", *_COLUMNS, title=name)
        for tensor, figures in by_tensor.items():
            table.add_row(tensor, f"{figures.values:,}", *_cells(figures))
        console.print(table)


def _json(
    options: Options,
    whole: "dict[str, Figures]",
    layers: "dict[str, dict[str, Figures]]",
) -> dict[str, Any]:
    return {
        "file": str(options.file),
        "seeds": [options.seed, options.seeds],
        "codecs": [
            {
                "codec": name,
                **figures.json(),
                "tensors": {
                    tensor: tensor_figures.json() for tensor, tensor_figures in layers[name].items()
                },
            }
            for name, figures in whole.items()
        ],
    }
