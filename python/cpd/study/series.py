# SPDX-License-Identifier: Apache-2.0
"""Makes tables of an all-reduce's round-off and message steps by group size, with advice."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cpd.comm.spec import Reduce
from cpd.numeric.shown import percent
from cpd.study.choices import Choice, Recommendation, choose, made
from cpd.study.machines import Machine
from cpd.study.reduce import Contributions, Measurement, Roundoff, roundoff

if TYPE_CHECKING:
    import torch

DEFAULT_GROUP_SIZES = (4, 8, 16, 32, 64, 256)


def group_sizes_for(nodes: int) -> list[int]:
    """Returns the default group sizes below `nodes`, and then `nodes`, which means no groups."""
    return [size for size in DEFAULT_GROUP_SIZES if size < nodes] + [nodes]


def check_group_sizes(sizes: Sequence[int], nodes: int) -> None:
    """Raises ValueError unless each group size is 1…nodes."""
    for size in sizes:
        if not 1 <= size <= nodes:
            raise ValueError(f"group sizes must be 1…{nodes} (the nodes), got {size}")


def hierarchical_steps(nodes: int, group_size: int) -> int:
    """Returns the number of message steps of a hierarchical all-reduce over p nodes in groups of k.

    The number is 4 (k - 1) + 2 (ceil(p / k) - 1). k = p means no groups: a ring of all nodes, with
    2 (p - 1) steps.
    """
    if group_size == nodes:
        return 2 * (nodes - 1)
    groups = -(-nodes // group_size)
    return 4 * (group_size - 1) + 2 * (groups - 1)


def steps_of(spec: Reduce, nodes: int, group_size: int) -> int:
    """Returns the number of message steps of an all-reduce.

    Without a compressor, the all-reduce is hierarchical. With a compressor, nodes cannot send
    partial sums on, so the exchange (`owner` or `gather`) determines the steps.
    """
    if spec.format is None:
        return (nodes - 1) * (1 if spec.exchange == "gather" else 2)
    return hierarchical_steps(nodes, group_size)


@dataclass
class RoundoffRow:
    """The round-off of an all-reduce with one group size."""

    group_size: int
    error: float
    relative_rms: float
    count: int
    zero_references: int
    non_finite: int
    steps: int

    def row(self) -> dict[str, Any]:
        """Returns the row for JSON."""
        return asdict(self)


def measure_roundoff(
    per_rank: "Sequence[Sequence[torch.Tensor]]", spec: Reduce, sizes: Sequence[int]
) -> list[RoundoffRow]:
    """Returns the round-off of all layers together: one `RoundoffRow` for each group size."""
    table = roundoff(per_rank, spec, group_sizes=list(sizes))
    return [_row(spec, size, measured, len(per_rank)) for size, measured in table.items()]


def _row(spec: Reduce, size: int, measured: Roundoff, nodes: int) -> RoundoffRow:
    return RoundoffRow(group_size=size, **asdict(measured), steps=steps_of(spec, nodes, size))


@dataclass
class Line:
    """One line of a table: an all-reduce with one group size, over all layers or for one layer."""

    row: RoundoffRow
    layer: str | None = None
    choice: Choice | None = None
    """The modeled cost of the all-reduce; None if no machine is given."""

    def json(self) -> dict[str, Any]:
        """Returns the line's numbers for JSON, with the modeled cost if a machine is given."""
        data = self.row.row()
        if self.choice is not None:
            data |= {
                "spread": self.choice.spread,
                "bytes_sent": self.choice.bytes_sent,
                "seconds": self.choice.seconds,
            }
        return data


@dataclass
class Series:
    """The round-off of one all-reduce spec for several group sizes."""

    label: str
    spec: Reduce
    sizes: list[int]
    baseline: bool = False
    """True for an all-reduce that is common today, shown for comparison and without advice."""
    lines: list[Line] = field(default_factory=list)
    """The lines of the printed table of all layers together: one line for each group size."""
    layers: list[Line] = field(default_factory=list)
    """The lines of the printed table of single layers: for each group size, one line a layer."""
    advice: "Advice | None" = None

    def setting(self) -> dict[str, Any]:
        """Returns the options of the all-reduce, for JSON."""
        return {
            "format" if self.spec.format is not None else "wire": str(self.spec.codec),
            "accumulator": str(self.spec.accumulator),
            "result": str(self.spec.result),
            "order": self.spec.order,
            "aps": self.spec.aps,
            "loss_scale": self.spec.loss_scale,
            "rounding": self.spec.rounding,
            "overflow": self.spec.overflow,
        }


def baselines(nodes: int) -> list[Series]:
    """Returns the two all-reduces that are common today, without scaling or groups.

    The first is a ring in bf16: each hop rounds the partial sum to bf16, as in NCCL. The second is
    in fp32, and one rank sums each slice.
    """
    ring = Reduce("bf16", order="ring", exchange="ring")
    return [
        Series("bf16 ring", ring, [nodes], baseline=True),
        Series("fp32 owner", Reduce("fp32"), [nodes], baseline=True),
    ]


def measure_series(
    given: Contributions,
    series: Series,
    names: Sequence[str],
    machine: Machine | None,
    done: Callable[[], None],
) -> None:
    """Measures an all-reduce for each group size of `series`, and stores the results in `series`.

    If a machine is given, also stores the recommended group size in `series.advice`. `names` are
    the names of the layers. The function `done` is called after each group size.
    """
    measured: dict[int, Measurement] = {}
    for size in series.sizes:
        wants_orders = machine is not None and not series.baseline
        measure = given.measure_orders if wants_orders else given.measure
        measured[size] = measure(series.spec, size)
        done()
    choices = (
        [None] * len(measured) if machine is None else _choices(given, series, measured, machine)
    )
    for (size, measurement), choice in zip(measured.items(), choices, strict=True):
        row = _row(series.spec, size, measurement.total, given.world)
        series.lines.append(Line(row, choice=choice))
        for name, layer in zip(names, measurement.layers, strict=True):
            series.layers.append(Line(_row(series.spec, size, layer, given.world), name))


def _choices(
    contributions: Contributions,
    series: Series,
    measured: Mapping[int, Measurement],
    machine: Machine,
) -> Sequence[Choice]:
    """Returns a `Choice` for each group size, with its round-off and modeled cost.

    Also stores the recommended choice in `series.advice`. A baseline, an all-reduce shown only for
    comparison, gets no advice.
    """
    if not series.baseline:
        best = choose(measured, series.spec, machine, contributions)
        series.advice = Advice(contributions.world, machine, best)
        return best.choices
    return [
        made(size, measurement, series.spec, machine, contributions)
        for size, measurement in measured.items()
    ]


@dataclass
class Advice:
    """The recommended group size and exchange for some gradients on a machine."""

    nodes: int
    machine: Machine
    best: Recommendation

    def lines(self) -> list[str]:
        """Returns the recommendation as lines of text."""
        best = self.best
        if math.isinf(best.most_exact.error):
            return ["no advice: no group size has a finite sum"]
        if len({self._measured(choice) for choice in [*best.choices, *best.owner]}) == 1:
            return [f"groups change nothing: {self._measured(best.fastest)}"]
        return [
            f"by error: {self._tied(best.exact_tie)}{self._named(best.most_exact)}",
            f"by modeled time: {self._named(best.fastest)}",
            f"compromise (least error × time): {self._tied(best.balanced_tie)}"
            f"{self._named(best.balanced)}",
            f"exchange owner gives the same bits in {best.owner_seconds * 1e3:.4g} ms for every "
            "group size",
        ]

    def _tied(self, choices: Sequence[Choice]) -> str:
        """Returns the text that lists `choices` if they are a tie; "" for a single choice."""
        if len(choices) == 1:
            return ""
        ways = dict.fromkeys(f"{self._group(choice)} ({choice.exchange})" for choice in choices)
        return f"a tie of {', '.join(ways)}; the fastest: "

    def _group(self, choice: Choice) -> str:
        return "no groups" if choice.group_size == self.nodes else f"groups of {choice.group_size}"

    def _named(self, choice: Choice) -> str:
        return f"{self._group(choice)}, {self._measured(choice)}"

    def _measured(self, choice: Choice) -> str:
        spread = "" if choice.spread is None else f" ± {percent(choice.spread, 1)}"
        finite = ", not all sums finite" if choice.non_finite else ""
        return (
            f"exchange {choice.exchange}, relative RMS "
            f"{percent(choice.error, 1)}{spread}{finite}, {choice.seconds * 1e3:.4g} ms"
        )

    def json(self) -> dict[str, Any]:
        """Returns the recommendation for JSON."""
        best = self.best
        return {
            "by_error": best.by_error,
            "by_time": best.by_time,
            "compromise": best.compromise,
            "by_error_tie": [choice.group_size for choice in best.exact_tie],
            "compromise_tie": [choice.group_size for choice in best.balanced_tie],
            "by_error_exchange": best.most_exact.exchange,
            "by_time_exchange": best.fastest.exchange,
            "compromise_exchange": best.balanced.exchange,
            "owner_seconds": best.owner_seconds,
            "draws": best.draws,
            "alpha_us": self.machine.alpha * 1e6,
            "bandwidth_gbps": self.machine.beta * 8e-9,
        }
