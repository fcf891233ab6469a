# SPDX-License-Identifier: Apache-2.0
"""Studies: round-off, costs and times of all-reduces, and sweeps over formats."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from cpd import _ReduceLike
from cpd.comm import Communicator
from cpd.hardware import Gates

_Ranks: TypeAlias = Sequence[Sequence[Any]]
_Shapes: TypeAlias = Sequence[int | Sequence[int]]

def roundoff(
    ranks: _Ranks | Sequence[Any],
    spec: _ReduceLike,
    group_sizes: Sequence[int],
    *,
    comm: Communicator | None = None,
    per_tensor: bool = False,
    seed: int = 0,
) -> dict[int, Roundoff] | dict[int, list[Roundoff]]:
    """Returns the round-off of an all-reduce for each group size, against float64."""

class Roundoff:
    """The round-off of reduced values against their float64 references."""

    error: float
    relative_rms: float
    count: int
    zero_references: int
    non_finite: int

def recommend(
    ranks: _Ranks | Sequence[Any],
    spec: _ReduceLike,
    group_sizes: Sequence[int],
    machine: Machine | str,
    *,
    comm: Communicator | None = None,
    seed: int = 0,
) -> Recommendation:
    """Returns the group sizes and exchanges to use, by round-off and by modeled time."""

class Choice:
    """One group size and exchange: its round-off and its cost."""

    group_size: int
    roundoff: Roundoff
    steps: int
    bytes_sent: int
    seconds: float
    exchange: str
    spread: float | None
    error: float
    non_finite: int

class Recommendation:
    """The choices, and the most exact, the fastest and a balanced one of them."""

    choices: list[Choice]
    owner: list[Choice]
    draws: int
    most_exact: Choice
    fastest: Choice
    balanced: Choice
    exact_tie: list[Choice]
    balanced_tie: list[Choice]

    @property
    def by_error(self) -> int:
        """The group size of the most exact choice."""

    @property
    def by_time(self) -> int:
        """The group size of the fastest choice."""

    @property
    def compromise(self) -> int:
        """The group size of the balanced choice."""

    @property
    def owner_seconds(self) -> float:
        """The time of the fastest choice with the exchange `owner`."""

def cost(
    spec: _ReduceLike,
    world: int,
    shapes: _Shapes,
    rank: int = 0,
    *,
    ranks: _Ranks | None = None,
    chunk: int = 1048576,
    largest: Any = None,
) -> Cost:
    """Returns what a rank sends and receives in an all-reduce of tensors of these shapes."""

class Cost:
    """The messages and bytes of a rank in an all-reduce."""

    steps: int
    bytes_sent: int
    bytes_received: int
    exact: bool

def step_time(
    network: Network | str,
    machine: Machine | str,
    ranks: int,
    spec: _ReduceLike = "fp32",
    *,
    compute: float | None = None,
    batch: int | None = None,
    codec_gbps: float | tuple[float, float] | Literal["measured"] | None = None,
    bits: float | None = None,
    largest: Any = None,
) -> StepTime:
    """Returns the modeled time of a training step: computation, codec and all-reduce."""

class StepTime:
    """The modeled time of a training step."""

    ranks: int
    samples: int
    computation: float
    codec: float
    messages: float
    bytes_sent: float
    steps: int
    exact: bool
    dollars_an_hour: float
    exchange: str
    codec_source: str

    @property
    def apart(self) -> float:
        """Seconds of a step whose messages begin after its computation."""

    @property
    def overlapped(self) -> float:
        """Seconds of a step whose messages overlap its computation."""

    @property
    def samples_a_second(self) -> float:
        """Samples a second of all ranks."""

    def dollars(self, steps: int = 1000) -> float:
        """Returns the price of this many steps."""

class Machine:
    """A machine: links within and between hosts, GPUs of a host, and prices."""

    name: str
    alpha: float
    beta: float
    shared: float
    gpus: int
    alpha_between: float
    beta_between: float
    port: float
    speed: float | None
    tflops: float | None
    dollars: float
    codec_gbps: float | None
    summary: str
    sources: Mapping[str, str]

    def __init__(
        self,
        machine: str | Path | None = None,
        /,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        shared: float | None = None,
        gpus: int | None = None,
        alpha_between: float | None = None,
        beta_between: float | None = None,
        port: float | None = None,
        speed: float | None = None,
        tflops: float | None = None,
        dollars: float | None = None,
        codec_gbps: float | None = None,
    ) -> None: ...
    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the named machines with their `summary` and `source`."""

    def hosts(self, ranks: int) -> int:
        """Returns the number of hosts of this many ranks."""

    def hourly(self, ranks: int) -> float:
        """Returns the dollars an hour of this many ranks."""

class Network:
    """A network whose gradients are summed: shapes, published rates, and batches."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    rate: float | None
    batches: Mapping[int, int]
    batch: int | None
    epochs: int | None
    examples: int | None
    summary: str
    published: str
    source: str

    def __init__(
        self,
        network: str | None = None,
        /,
        *,
        shapes: Sequence[Sequence[int]] | None = None,
        rate: float | None = None,
        batches: Mapping[int, int] | None = None,
        batch: int | None = None,
        epochs: int | None = None,
        examples: int | None = None,
    ) -> None: ...
    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the named networks with their `summary` and `source`."""

    @property
    def values(self) -> int:
        """The number of parameters."""

    def samples(self, ranks: int, batch: int | None = None) -> int:
        """Returns the samples of a step."""

def sweep(
    tensors: Any,
    formats: Any,
    accumulators: Any = "fp32",
    *,
    rounding: Any = "nearest_even",
    scales: Any = "none",
    bits: int | None = None,
    overflow: str = "saturate",
    seed: int = 0,
    length: int = 1024,
    dots: bool = True,
    sample: int | None = None,
    accuracy: Callable[..., float] | None = None,
    folder: str | Path | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    cluster_options: dict[str, Any] | None = None,
    done: Callable[..., None] | None = None,
    tell: Callable[..., None] | None = None,
) -> Sweep:
    """Measures the errors of every combination of formats and accumulators on tensors."""

class SweepRow:
    """One combination of a sweep: its errors, its accuracy and its cost."""

    operand: str
    accumulator: str
    rounding: str
    overflow: str
    seed: int
    accuracy: float | None
    bits: float
    cost: Gates
    relative_rms: float
    sqnr: float
    mean_error: float
    worst: float
    underflow: float
    dot_error: float | None

    def value(self, name: str) -> float:
        """Returns an error or a cost by its name."""

    def json(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the row as plain data."""

class Sweep:
    """The rows of a sweep. Printable as a table."""

    rows: tuple[SweepRow, ...]
    tensors: tuple[Any, ...]
    length: int
    sample: int | None
    reused: int
    left_out: tuple[str, ...]

    @property
    def values(self) -> int:
        """The number of measured values."""

    @property
    def error(self) -> str:
        """The name of the error by which rows are compared."""

    def front(self, error: str | None = None, cost: str = "gates") -> list[SweepRow]:
        """Returns the rows that no other row beats in both error and cost."""

    def best(self, error: str | None = None, within: float = ..., cost: str = "gates") -> SweepRow:
        """Returns the cheapest row whose error is within a limit."""

    def table(self, error: str | None = None, cost: str = "gates") -> tuple[list[str], list[Any]]:
        """Returns the head and the lines of the printed table."""

    def json(self) -> dict[str, Any]:
        """Returns the sweep as plain data."""

    def to_json(self, path: str | Path) -> None:
        """Writes the sweep as JSON."""

    def to_csv(self, path: str | Path, error: str | None = None, cost: str = "gates") -> None:
        """Writes the rows as CSV."""

    def plot(self, path: str | Path, error: str | None = None, cost: str = "gates") -> None:
        """Draws error over cost."""

    def report(self, path: str | Path) -> None:
        """Writes a page with the table and the plot."""

def capture(
    model: nn.Module,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    *,
    layers: str = "*",
    roles: Sequence[str] = ("activation", "weight", "gradient"),
) -> dict[str, torch.Tensor]:
    """Returns the operands of the products of a model's layers in one step."""
