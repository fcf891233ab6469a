# SPDX-License-Identifier: Apache-2.0
"""Round-off by group size: `cpd.study.roundoff`, the steps that each group size costs, and which
one to take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cpd
from cpd.comm import Communicator
from cpd.report.results import RoundoffRow

DEFAULT_GROUP_SIZES = (4, 8, 16, 32, 64, 256)


def group_sizes_for(nodes: int) -> list[int]:
    """The default group sizes below `nodes`, and all nodes as one group."""
    return [size for size in DEFAULT_GROUP_SIZES if size < nodes] + [nodes]


def check_group_sizes(sizes: Sequence[int], nodes: int) -> None:
    for size in sizes:
        if not 1 <= size <= nodes:
            raise ValueError(f"group sizes must be 1…{nodes} (the nodes), got {size}")


def hierarchical_steps(nodes: int, group_size: int) -> int:
    """Steps of the hierarchical all-reduce of p nodes in groups of k: 4(k - 1) + 2(p/k - 1).

    A short last group counts as one. k = p means no groups: a ring of all, 2(p - 1).
    """
    if group_size == nodes:
        return 2 * (nodes - 1)
    groups = -(-nodes // group_size)
    return 4 * (group_size - 1) + 2 * (groups - 1)


class Contributions:
    """The layers that all nodes give, in this process; or with `comm` those of this process's node
    alone, and the others are reached through it."""

    def __init__(
        self, per_rank: Sequence[Sequence[torch.Tensor]], comm: Communicator | None = None
    ) -> None:
        self.nodes = len(per_rank)
        self._per_rank = per_rank
        self._comm = comm

    def roundoff(self, spec: cpd.ReduceSpec, sizes: Sequence[int]) -> dict[int, cpd.study.Roundoff]:
        if self._comm is None:
            return cpd.study.roundoff(self._per_rank, spec, group_sizes=sizes)
        own = self._per_rank[self._comm.rank]
        return cpd.study.roundoff_over(self._comm, own, spec, group_sizes=sizes)

    def recommend(
        self, spec: cpd.ReduceSpec, sizes: Sequence[int], alpha: float, beta: float
    ) -> cpd.study.Recommendation:
        if self._comm is None:
            return cpd.study.recommend(self._per_rank, spec, sizes, alpha=alpha, beta=beta)
        own = self._per_rank[self._comm.rank]
        return cpd.study.recommend_over(self._comm, own, spec, sizes, alpha=alpha, beta=beta)


def measure_roundoff(
    per_rank: Sequence[Sequence[torch.Tensor]] | Contributions,
    spec: cpd.ReduceSpec,
    sizes: Sequence[int],
) -> list[RoundoffRow]:
    """One row for each group size, all layers together."""
    given = per_rank if isinstance(per_rank, Contributions) else Contributions(per_rank)
    table = given.roundoff(spec, list(sizes))
    return [_row(size, measured, given.nodes) for size, measured in table.items()]


def _row(size: int, measured: cpd.study.Roundoff, nodes: int) -> RoundoffRow:
    return RoundoffRow(
        group_size=size,
        error=float(measured.error),
        relative_rms=float(measured.relative_rms),
        count=int(measured.count),
        zero_references=int(measured.zero_references),
        non_finite=int(measured.non_finite),
        steps=hierarchical_steps(nodes, size),
    )


@dataclass
class Network:
    """What a network is taken to cost."""

    step_us: float
    """Microseconds a step."""
    gigabits: float
    """Gigabits a second, each way."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.step_us) and self.step_us >= 0):
            raise ValueError(f"alpha must be microseconds, at least 0, got {self.step_us}")
        if not (math.isfinite(self.gigabits) and self.gigabits > 0):
            raise ValueError(f"bandwidth must be Gb/s above 0, got {self.gigabits}")

    @property
    def alpha(self) -> float:
        return self.step_us * 1e-6

    @property
    def beta(self) -> float:
        return 8e-9 / self.gigabits


@dataclass
class Advice:
    """Which group size to take for some gradients on a network."""

    nodes: int
    network: Network
    best: cpd.study.Recommendation

    @classmethod
    def of(
        cls, given: Contributions, spec: cpd.ReduceSpec, sizes: Sequence[int], network: Network
    ) -> "Advice":
        best = given.recommend(spec, list(sizes), network.alpha, network.beta)
        return cls(given.nodes, network, best)

    def rows(self) -> list[RoundoffRow]:
        return [
            _row(choice.group_size, choice.roundoff, self.nodes) for choice in self.best.choices
        ]

    def lines(self) -> list[str]:
        """What is recommended, in words."""
        best = self.best
        return [
            f"by error: {self._named(best.by_error)}",
            f"by modelled time: {self._named(best.by_time)}",
            f"compromise (least error × time): {self._named(best.compromise)}",
            f"exchange owner gives the same bits in {best.owner_seconds * 1e3:.4g} ms for every "
            "group size",
        ]

    def _named(self, size: int) -> str:
        (choice,) = (one for one in self.best.choices if one.group_size == size)
        group = "no groups" if size == self.nodes else f"groups of {size}"
        return f"{group}, error {choice.roundoff.error:.4%}, {choice.seconds * 1e3:.4g} ms"

    def json_rows(self) -> list[dict[str, Any]]:
        return [
            {**row.row(), "bytes_sent": choice.bytes_sent, "seconds": choice.seconds}
            for row, choice in zip(self.rows(), self.best.choices, strict=True)
        ]

    def json(self) -> dict[str, Any]:
        return {
            "by_error": self.best.by_error,
            "by_time": self.best.by_time,
            "compromise": self.best.compromise,
            "owner_seconds": self.best.owner_seconds,
            "alpha_us": self.network.step_us,
            "bandwidth_gbps": self.network.gigabits,
        }
