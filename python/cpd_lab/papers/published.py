# SPDX-License-Identifier: Apache-2.0
"""Compares published training speeds with the predictions of `cpd.study.step_time`."""

from __future__ import annotations

import csv
import functools
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpd.comm.spec import Reduce, as_reduce
from cpd.compress.codecs import codec
from cpd.numeric.names import nearest
from cpd.numeric.shown import shown
from cpd.numeric.warned import PrecisionWarning
from cpd.study.machines import Machine
from cpd.study.networks import Network
from cpd.study.throughput import StepTime, messages_of, step_time

_FOLDER = Path(__file__).with_name("tables")
_TABLES = {
    "grubic-10": ("ec2-p2", "owner"),
    "grubic-11": ("ec2-p2-nccl", "ring"),
}
"""The published tables of samples a second: each with its machine and its exchange."""
_OF_TABLES = {
    "grubic-6": ("grubic-10", "epoch"),
    "grubic-7": ("grubic-11", "epoch"),
    "grubic-10": ("grubic-10", "rate"),
    "grubic-11": ("grubic-11", "rate"),
    "grubic-12": ("grubic-10", "scale"),
    "grubic-13": ("grubic-11", "scale"),
}
"""Published figures that are computed from a table of samples a second.

`rate`: the table itself. `epoch`: the seconds of an epoch. `scale`: the rate relative to the rate
of one GPU.
"""
FIGURES = (
    *(f"grubic-{number}" for number in range(6, 17)),
    "qsgd-2",
    "terngrad-5",
)
_NO_CODEC = math.inf
_HOPPING = ("ring", "hierarchical")


@dataclass(frozen=True)
class Cell:
    """A published number and the number that the cost model predicts for it."""

    network: str
    wire: str
    ranks: int
    quantity: str
    """The quantity that the published and the predicted number measure.

    `rate`: samples a second. `epoch`: seconds of an epoch. `scale`: the rate relative to the rate
    of one GPU. `speedup`: the time of a step in fp32 over the time of a step in `wire`. `messages`:
    the speedup of messages and codec alone. `share`: the share of a step's time that messages and
    codec take. `price`: the difference of two trainings' costs in dollars.
    """
    published: float
    predicted: float
    relation: str = "="
    """The form of the published number. `=`: exact; `<` or `>`: a bound; `~`: approximate."""
    source: str = ""

    @property
    def error(self) -> float:
        """The prediction's relative error; 0 if the prediction satisfies a published bound."""
        if (self.relation == "<" and self.predicted <= self.published) or (
            self.relation == ">" and self.predicted >= self.published
        ):
            return 0.0
        return self.predicted / self.published - 1


@dataclass(frozen=True)
class Fit:
    """The constants of a link between GPUs, fitted to published rates of trainings in 32 bits."""

    alpha: float
    """The fixed time of a message, in seconds."""
    beta: float
    """Bytes a second."""
    shared: float
    """The bandwidth, in bytes a second, that the GPUs of a host share; 0 without this constant."""
    error: float
    """The RMS of the relative errors of the rates (samples a second) to which it is fitted."""
    left_out: tuple[tuple[str, int], ...]
    """The (network, number of GPUs) of each published rate that the fit does not use.

    At such a rate, a step takes less time than its computation alone takes at the published rate
    of one GPU.
    """


def check_figure(figure: str) -> None:
    """Raises ValueError for an unknown figure; the message suggests the nearest name."""
    if figure not in FIGURES:
        raise ValueError(f"no figure {shown(figure)}{nearest(figure, FIGURES)}")


def table_of(figure: str) -> str | None:
    """Returns the name of the table of published rates from which a figure is computed, if any."""
    return _OF_TABLES[figure][0] if figure in _OF_TABLES else None


@functools.cache
def table(figure: str) -> tuple[tuple[str, str, int, float], ...]:
    """Returns a published table as tuples: network, format or codec, GPUs, samples a second."""
    head, *rows = _rows(f"{figure}.csv")
    return tuple(
        (name, wire, int(ranks), float(value))
        for name, wire, *values in rows
        for ranks, value in zip(head[2:], values, strict=True)
        if value
    )


def _rows(name: str) -> list[list[str]]:
    with (_FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(line for line in file if not line.startswith("#")))


@functools.cache
def fit(figure: str, shared: bool = False) -> Fit:
    """Fits a link's constants to published times in 32 bits, by least squared relative error.

    The constants are the time of a message, the bandwidth and, if `shared` is set, the bandwidth
    that the GPUs of a host share. No constant is negative. The fit leaves out steps that are
    published as faster than their computation alone, because no link explains them.
    """
    name, exchange = _TABLES[figure]
    left_out, columns, targets, cells = [], [], [], []
    for net, wire, ranks, value in table(figure):
        if wire != "fp32" or ranks == 1:
            continue
        whole = Network(net).samples(ranks) / value
        computed = _step(net, Machine(name), ranks, wire, exchange).computation
        if whole <= computed:
            left_out.append((net, ranks))
            continue
        rounds, _ = messages_of(
            all_reduce_of(wire, exchange), ranks, Network(net), Machine(name).gpus
        )
        terms = [
            sum(round_.steps for round_ in rounds),
            sum(round_.steps * round_.bytes for round_ in rounds),
            sum(round_.steps * round_.bytes * round_.within for round_ in rounds),
        ]
        columns.append([term / whole for term in terms[: 2 + shared]])
        targets.append(1 - computed / whole)
        cells.append(computed / whole)
    alpha, *inverse = _least_squares(np.array(columns), np.array(targets))
    rates = [1 / inverse_rate if inverse_rate > 0 else 0.0 for inverse_rate in inverse]
    beta, shared_rate = rates[0] or 1e15, rates[1] if shared else 0.0
    times = np.array(columns) @ np.array([alpha, *inverse]) + np.array(cells)
    error = math.sqrt(np.mean((1 / times - 1) ** 2))
    return Fit(alpha, beta, shared_rate, error, tuple(left_out))


def _least_squares(columns: np.ndarray, targets: np.ndarray) -> list[float]:
    """Solves least squares with unknowns that are at least 0, by trying which unknowns are 0."""
    count = columns.shape[1]
    best, coefficients = math.inf, np.zeros(count)
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part, *_ = np.linalg.lstsq(columns[:, chosen], targets, rcond=None)
            if (part < 0).any():
                continue
            left = float(np.square(columns[:, chosen] @ part - targets).sum())
            if left < best:
                best, coefficients = left, np.zeros(count)
                coefficients[list(chosen)] = part
    return [float(coefficient) for coefficient in coefficients]


def compared(figure: str, codec_gbps: float | None = None, shared: bool = False) -> list[Cell]:
    """Returns every published number of a figure with the number that the cost model predicts.

    For a figure of rates, `fit` gives the constants of the links; for other figures,
    `machines.toml` has them. No paper publishes the time that a codec takes on its GPUs; that time
    is 0 unless it is given. Raises ValueError for an unknown figure.
    """
    check_figure(figure)
    rate = _NO_CODEC if codec_gbps is None else codec_gbps
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", PrecisionWarning
        )  # of 1bitSGD by columns, as the paper says
        cells = _of_table(figure, rate, shared) if figure in _OF_TABLES else []
        cells += [_claimed(row, rate) for row in _claims(figure)]
    return cells + (_prices(rate) if figure == "grubic-16" else [])


def _of_table(figure: str, rate: float, shared: bool) -> list[Cell]:
    source, quantity = _OF_TABLES[figure]
    name, exchange = _TABLES[source]
    constants = fit(source, shared)
    on = Machine(name, alpha=constants.alpha, beta=constants.beta, shared=constants.shared)
    cells = []
    for net, wire, ranks, value in table(source):
        if ranks == 1:
            continue
        step = _step(net, on, ranks, wire, exchange, rate=rate)
        cells.append(
            Cell(
                net,
                wire,
                ranks,
                quantity,
                _in(quantity, net, value),
                _in(quantity, net, step.samples_a_second),
            )
        )
    return cells


def _in(quantity: str, net: str, rate: float) -> float:
    """Converts a rate in samples a second to the quantity that a figure shows.

    `quantity` is epoch, scale or rate, as `Cell.quantity` describes them.
    """
    of = Network(net)
    if quantity == "epoch":
        return (of.examples or 0) / rate
    return rate / (of.rate or math.nan) if quantity == "scale" else rate


def _step(
    net: str,
    on: Machine,
    ranks: int,
    wire: str,
    exchange: str,
    *,
    rate: float = _NO_CODEC,
    group_size: int | None = None,
    bits: float | None = None,
    batch: int | None = None,
    compute: float | None = None,
) -> StepTime:
    """Returns the predicted time of a training step.

    If a codec cannot use `exchange`, the result is for a binary32 all-reduce that sends as many
    bytes as the codec would.
    """
    spec = all_reduce_of(wire, exchange, group_size)
    if spec.exchange != exchange:
        bits = bits or _bits(wire)
        spec = all_reduce_of("fp32", exchange, group_size)
    return step_time(
        Network(net),
        on,
        ranks,
        spec,
        compute=compute,
        batch=batch,
        codec_gbps=rate,
        bits=bits,
    )


def all_reduce_of(wire: str, exchange: str | None = None, group_size: int | None = None) -> Reduce:
    """Returns the all-reduce of the text `wire`, with another exchange and group size.

    If `wire` is a compressor, the exchanges `ring` and `hierarchical` are ignored: they pass on
    partial sums, which a compressor cannot encode. Raises ValueError in the same cases as
    `cpd.Reduce`.
    """
    spec = as_reduce(wire)
    if exchange is not None and not (spec.format is None and exchange in _HOPPING):
        order = "ring" if exchange in _HOPPING else spec.order
        spec = spec.replace(
            order=order,
            exchange=exchange,
            group_size=group_size if exchange == "hierarchical" else spec.group_size,
        )
    if group_size is not None and spec.exchange != "ring":
        spec = spec.replace(group_size=group_size)
    return spec


@functools.cache
def _bits(wire: str) -> float:
    return codec(wire).encode(np.zeros(1 << 16, np.float32)).bits_a_value


def _claims(figure: str) -> list[dict[str, str]]:
    head, *rows = _rows("claims.csv")
    return [dict(zip(head, row, strict=True)) for row in rows if row[0] == figure]


def _claimed(row: dict[str, str], rate: float) -> Cell:
    on = Machine(row["machine"])
    ranks = int(row["ranks"])
    group = int(row["group_size"]) if row["group_size"] else None
    batch = int(row["batch"]) if row["batch"] else None
    compute = float(row["compute"]) if row["compute"] else None

    def step(wire: str, bits: float | None) -> StepTime:
        return _step(
            row["network"],
            on,
            ranks,
            wire,
            row["exchange"],
            rate=rate,
            group_size=group,
            bits=bits,
            batch=batch,
            compute=compute,
        )

    mine = step(row["wire"], float(row["bits"]) if row["bits"] else None)
    predicted = {
        "speedup": lambda: step("fp32", None).apart / mine.apart,
        "messages": lambda: step("fp32", None).messages / (mine.messages + mine.codec),
        "share": lambda: (mine.messages + mine.codec) / mine.apart,
        "scale": lambda: (
            mine.samples_a_second / (on.speed or 1) / (Network(row["network"]).rate or math.nan)
        ),
    }[row["quantity"]]()
    wire = row["wire"] if not row["bits"] else f"{float(row['bits']):g} bits"
    return Cell(
        row["network"],
        wire,
        ranks,
        row["quantity"],
        float(row["value"]),
        predicted,
        row["relation"],
        row["source"],
    )


_PRICES = (("alexnet", "resnet50", 600.0), ("resnet50", "resnet152", 1500.0))
"""Pairs of networks, each with the published difference of their training costs in dollars.

A tuple has the cheaper network, the costlier network, and the difference.
"""


def _prices(rate: float) -> list[Cell]:
    """Returns by how much two networks' trainings differ in price, for each pair in `_PRICES`.

    Gradients are sent in 8 bits by NCCL. Each training uses its cheapest number of GPUs.
    """
    on = Machine("ec2-p2-nccl")

    def price(net: str) -> tuple[float, int]:
        of = Network(net)
        return min(
            (
                on.hourly(ranks)
                / 3600
                * (of.epochs or 0)
                * (of.examples or 0)
                / _step(net, on, ranks, "fp32", "ring", rate=rate, bits=8.0625).samples_a_second,
                ranks,
            )
            for ranks in (1, 2, 4, 8)
        )

    return [
        Cell(
            f"{more} - {less}",
            "8.0625 bits",
            price(more)[1],
            "price",
            dollars,
            price(more)[0] - price(less)[0],
            "~",
            "section 5.4: what the larger network costs more",
        )
        for less, more, dollars in _PRICES
    ]


def by_ratio(multiples: Sequence[float], bits: float = 8.0625) -> list[tuple[float, float]]:
    """Returns how much faster `bits` bits make a training step of AlexNet than 32, on 8 GPUs.

    NCCL sends the gradients. AlexNet's number of gradients is multiplied by each of `multiples`,
    but not its computation (Grubic et al. 2018, Fig. 16 right). The result has pairs: the megabytes
    of gradients a GFLOP, and the speed-up, which is below 32 / bits.
    """
    on, of = Machine("ec2-p2-nccl"), Network("alexnet")
    gflops = 3 * 2 * 0.72  # forward and backward, of 0.72e9 multiply-adds (62M parameters)
    samples = of.samples(8) / 8
    points = []
    for times in multiples:
        large = Network("alexnet", shapes=[(round(of.values * times),)])
        spec = Reduce("fp32", order="ring", exchange="ring")
        whole, less = (
            step_time(large, on, 8, spec, codec_gbps=_NO_CODEC, bits=width).apart
            for width in (32.0, bits)
        )
        points.append((4e-6 * large.values / (gflops * samples), whole / less))
    return points


def rms(cells: Sequence[Cell]) -> float:
    """Returns the RMS of the relative errors of the predictions; 0 for an empty list."""
    return math.sqrt(sum(cell.error**2 for cell in cells) / len(cells)) if cells else 0.0
