# SPDX-License-Identifier: Apache-2.0
"""The results of the demo, and the two files that store them.

results.json holds the figures (one row for each run and group size), details.json what the report
needs besides: curves, counts for each layer, the settings. Either is plain JSON; a figure that is
not finite is null.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpd._files import write_json
from cpd.comm.spec import may_stall
from cpd.numeric import formats
from cpd.study.series import RoundoffRow
from cpd_lab.demo.report.checked import read_as

if TYPE_CHECKING:
    from cpd_lab.train import TrainResult

RESULTS = "results.json"
DETAILS = "details.json"
REPORT = "report.html"
ACCURACY = "accuracy.svg"

Json = dict[str, Any]


@dataclass
class Layer:
    """The all-reduce's counts for one layer over a whole run (see cpd_lab.train.LayerCounts)."""

    name: str
    values: int
    nonzero: int
    underflowed: int
    overflowed: int
    non_finite: int
    exponents: dict[str, dict[str, int]] = field(default_factory=dict)
    relative: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass
class Run:
    """One training run, without its tensors."""

    label: str
    format: str
    aps: bool | str
    loss_scale: float
    depth: int
    epochs: int
    accuracy: float
    state: str
    weights: str
    options: str
    curve: list[float]
    loss: list[float | None]  # None: not a number, after a divergence
    layers: list[Layer]
    seconds: float = 0.0
    may_stall: bool = False  # its sums have more terms than their precision counts
    seed: int = 0
    wire: str = ""  # the codec; empty: a format
    bytes: int = 0  # of a node's contribution to the last step, encoded
    values: int = 0  # in it

    @classmethod
    def of(cls, result: "TrainResult", seconds: float = 0.0) -> "Run":
        """Returns the run of a training's result."""
        options, spec = result.options, result.options.spec
        return cls(
            label=options.label(),
            format=str(spec.format or "fp32"),
            aps=spec.aps,
            loss_scale=spec.loss_scale,
            depth=options.depth or 0,
            epochs=options.epochs,
            accuracy=result.accuracy,
            state=result.state,
            weights=result.weights,
            options=options.arguments(),
            curve=result.curve,
            loss=list(result.loss),
            layers=[
                Layer(
                    name=layer.name,
                    values=layer.values,
                    nonzero=layer.nonzero,
                    underflowed=layer.underflowed,
                    overflowed=layer.overflowed,
                    non_finite=layer.non_finite,
                    exponents=_json_keys(layer.exponents),
                    relative=_json_keys(layer.relative),
                )
                for layer in result.layers
            ],
            seconds=seconds,
            may_stall=may_stall(spec, options.nodes),
            seed=options.seed,
            wire="" if spec.format is not None else spec.codec.text,
            bytes=_bytes(result),
            values=sum(gradient.numel() for gradient in result.last_gradients[0]),
        )

    @property
    def bits_a_value(self) -> float:
        """The mean number of bits that a value takes on the wire."""
        return 8 * self.bytes / self.values if self.values else 0.0

    def total(self, name: str) -> int:
        """Returns the sum of a count over all layers."""
        return sum(getattr(layer, name) for layer in self.layers)

    @property
    def underflow(self) -> float:
        """The share of nonzero gradient values that the cast turned into zero."""
        nonzero = self.total("nonzero")
        return self.total("underflowed") / nonzero if nonzero else 0.0

    @property
    def diverged(self) -> bool:
        """True if the training diverged."""
        return self.state != "finished"

    def row(self) -> Json:
        """The run's row in results.json."""
        return {
            "format": self.format,
            "aps": self.aps,
            "loss_scale": _plain(self.loss_scale),
            "accuracy": self.accuracy,
            "options": self.options,
            "weights": self.weights,
            "state": self.state,
            "depth": self.depth,
            "underflow": self.underflow,
            "overflowed": self.total("overflowed"),
            "non_finite": self.total("non_finite"),
            "wire": self.wire,
            "bytes": self.bytes,
            "bits_a_value": self.bits_a_value,
        }


@dataclass
class RoundoffSeries:
    """Round-off by group size for one way to sum."""

    label: str
    rows: list[RoundoffRow]


@dataclass
class Roundoff:
    """The demo's round-off study; the first series is the main one."""

    format: str
    nodes: int
    options: str
    series: list[RoundoffSeries]


@dataclass
class Settings:
    """The options and the machine of the demo."""

    base: str
    depth: int
    width: int
    nodes: int
    batch: int
    epochs: int
    seed: int
    lr: float
    momentum: float
    search_exponents: list[int]
    roundoff_epochs: int
    seconds: float
    versions: dict[str, str]
    torch_cpu_capability: str
    machine: str
    seeds: int = 1


@dataclass
class Demo:
    """All that the demo measured."""

    table: list[Run]
    shallow: list[Run]
    search: list[Run]
    roundoff: Roundoff
    settings: Settings
    repeats: list[Run] = field(default_factory=list)
    """The table's rows with the other seeds."""
    codecs: list[Run] = field(default_factory=list)
    """With compressors on the wire."""

    def of_all_seeds(self, run: Run) -> list[Run]:
        """A row of the table, and the same with the other seeds."""
        return [run, *(other for other in self.repeats if other.label == run.label)]

    @property
    def runs(self) -> list[Run]:
        """Every training run, each once."""
        searched = {id(run) for run in self.search}
        table = [run for run in self.table if id(run) not in searched]
        return [*table, *self.search, *self.shallow, *self.repeats, *self.codecs]

    def save(self, folder: Path) -> None:
        """Writes the results to files in `folder`."""
        results = {
            "accuracy": [
                {**run.row(), "accuracies": {one.seed: one.accuracy for one in every}}
                for run, every in ((run, self.of_all_seeds(run)) for run in self.table)
            ],
            "roundoff": [row.row() for row in self.roundoff.series[0].rows],
            "roundoff_options": self.roundoff.options,
            "shallow": [run.row() for run in self.shallow],
            "loss_scale_search": [run.row() for run in self.search],
            "codecs": [run.row() for run in self.codecs],
        }
        write_json(folder / RESULTS, results)
        write_json(folder / DETAILS, asdict(self), indent=None)

    @classmethod
    def load(cls, folder: Path) -> "Demo":
        """Reads what save() wrote. Raises ValueError where the files do not fit together."""
        results, details = _read_json(folder / RESULTS), _read_json(folder / DETAILS)
        try:
            demo = read_as(cls, details, DETAILS)
            demo.check()
            rows = read_as(_Rows, {"accuracy": results.get("accuracy")}, RESULTS).accuracy
        except ValueError as error:
            raise ValueError(f"{folder}: not what `cpd demo` writes: {error}") from None
        if [row.get("weights") for row in rows] != [run.weights for run in demo.table]:
            raise ValueError(f"{folder}: {RESULTS} and {DETAILS} are of different runs")
        return demo

    def check(self) -> None:
        """Raises ValueError where a part is missing that every demo has."""
        for name, least in (("table", 1), ("shallow", 2), ("search", 1)):
            if len(getattr(self, name)) < least:
                raise ValueError(
                    f"{name} must have at least {least}, got {len(getattr(self, name))}"
                )
        if not self.roundoff.series or not all(one.rows for one in self.roundoff.series):
            raise ValueError("roundoff must have series with rows")
        for run in self.runs:
            formats.as_format(run.format)


@dataclass
class _Rows:
    """The part of results.json that is read."""

    accuracy: list[Json]


def accuracy_range(runs: Sequence[Run]) -> str:
    """'0.955', or of several seeds '0.948–0.961'."""
    low, high = (f"{pick(run.accuracy for run in runs):.3f}" for pick in (min, max))
    return low if low == high else f"{low}–{high}"


def state_of(runs: Sequence[Run]) -> str:
    """The state of a run, or of several seeds."""
    diverged = sum(run.diverged for run in runs)
    if len(runs) == 1 or diverged == 0:
        return runs[0].state
    return f"{diverged} of {len(runs)} diverged"


def _read_json(path: Path) -> Json:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must hold an object")
    return data


def _bytes(result: "TrainResult") -> int:
    """Node 0's contribution to the last step, encoded layer by layer."""
    options = result.options
    schedule = options.reduction(steps_per_epoch=1)
    total = 0
    for layer, gradient in zip(result.layers, result.last_gradients[0], strict=True):
        spec = schedule.spec_of(layer.name, options.fp32_epochs, gradient.numel())
        wire = spec.codec
        total += wire.encode(gradient).bytes
    return total


def _json_keys(histograms: dict[int, dict[int, int]]) -> dict[str, dict[str, int]]:
    return {
        str(epoch): {str(exponent): count for exponent, count in sorted(counts.items())}
        for epoch, counts in histograms.items()
    }


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value
