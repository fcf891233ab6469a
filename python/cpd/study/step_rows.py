# SPDX-License-Identifier: Apache-2.0
"""Rows of `cpd cost`: a training step's time for each wire and number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpd.comm.costs import Largest
from cpd.comm.spec import as_reduce
from cpd.study.machines import Machine
from cpd.study.networks import Network
from cpd.study.throughput import CodecGbps, StepTime, step_time


@dataclass
class StepRow:
    """The time of a step for one wire (the text of an all-reduce) and one number of ranks."""

    wire: str
    step: StepTime
    speedup: float
    """The steps per second, relative to fp32 with the same number of ranks, without overlap."""
    overlapped_speedup: float
    """The steps per second, relative to fp32 with the same number of ranks, if encoding overlaps
    with messages in both cases."""
    roundoff: float | None = None
    """The relative RMS error of the summed gradients; infinite if a sum is not finite; None if it
    was not measured."""
    front: bool = False

    @property
    def price(self) -> float:
        """The price of a sample in dollars, or in GPU seconds if the price of GPUs is not known."""
        hourly = self.step.dollars_an_hour or self.step.ranks * 3600.0
        return hourly / 3600 / self.step.samples_a_second

    def json(self) -> dict[str, Any]:
        """Returns the row for JSON."""
        step = asdict(self.step)
        return {
            "wire": self.wire,
            **step,
            "step_seconds": self.step.apart,
            "overlapped_seconds": self.step.overlapped,
            "samples_a_second": self.step.samples_a_second,
            "speedup": self.speedup,
            "overlapped_speedup": self.overlapped_speedup,
            "dollars_1000_steps": self.step.dollars() if self.step.dollars_an_hour else None,
            "roundoff": self.roundoff,
            "front": self.front,
        }


def step_rows(
    network: Network,
    machine: Machine,
    ranks: Sequence[int],
    wires: Sequence[str],
    *,
    compute: float | None = None,
    batch: int | None = None,
    codec_gbps: CodecGbps = None,
    bits: float | None = None,
    largest: Largest = None,
    roundoffs: Mapping[str, float] | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[StepRow]:
    """Returns one row for each wire (the text of an all-reduce) and number of ranks, wire by wire.

    `bits` is used only for codecs with encoded sizes that depend on values. `roundoffs` maps wires
    to relative RMS errors. The function `done` is called after each row. Other arguments are as in
    `step_time`.
    """
    rows = []
    plain: dict[int, StepTime] = {}

    def step(wire: str, world: int) -> StepTime:
        spec = as_reduce(wire)
        varies = spec.format is None and not spec.codec._is_fixed
        return step_time(
            network,
            machine,
            world,
            spec,
            compute=compute,
            batch=batch,
            codec_gbps=codec_gbps,
            bits=bits if varies else None,
            largest=largest,
        )

    for wire in wires:
        for world in ranks:
            if world not in plain:
                plain[world] = step("fp32", world)
            times = step(wire, world)
            base = plain[world]
            rows.append(
                StepRow(
                    wire,
                    times,
                    _ratio(base.apart, times.apart),
                    _ratio(base.overlapped, times.overlapped),
                    (roundoffs or {}).get(wire),
                )
            )
            done()
    mark_front(rows)
    return rows


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan if a else 1.0


def mark_front(rows: Sequence[StepRow]) -> None:
    """Marks the rows of the Pareto front of samples a second, price of a sample and round-off.

    For a row on the front, no other row is at least as good in all three and better in one. A
    round-off that was not measured counts as infinite. A row is not on the front if its measured
    round-off is infinite.
    """

    def goals(row: StepRow) -> tuple[float, ...]:
        error = math.inf if row.roundoff is None else row.roundoff
        return (-row.step.samples_a_second, row.price, error)

    for row in rows:
        mine = goals(row)
        row.front = row.roundoff != math.inf and not any(
            goals(other) != mine and all(a <= b for a, b in zip(goals(other), mine, strict=True))
            for other in rows
        )
