# SPDX-License-Identifier: Apache-2.0
"""Measures the rate of a function and of the baseline that it is compared to, alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

Row = dict[str, Any]
Work = Callable[[], object]

# A turn calls the function, or its baseline, for at least SHORTEST seconds. The measurement of a
# row ends after LONGEST seconds, but not before the function and the baseline each had LEAST_TURNS
# turns.
SHORTEST = 0.01
LONGEST = 6.0
LEAST_TURNS = 3


@dataclass(frozen=True)
class Side:
    """A function to time, and the amount of work of one call (bytes, MACs or lines of text). A
    benchmark row's rate is this amount divided by the time."""

    work: Work
    amount: float


def seconds(work: Work, calls: int = 1) -> float:
    """Returns the seconds of one call: the mean over `calls` calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - begin) / calls


class Spent(NamedTuple):
    """The time of one call in seconds, measured by three clocks: the wall clock, the processor time
    of the calling thread, and the processor time of all threads."""

    clock: float
    thread: float
    process: float

    @classmethod
    def of(cls, work: Work, calls: int) -> Spent:
        """Measures `calls` calls of `work` and returns the mean."""
        clocks = (time.perf_counter, time.thread_time, time.process_time)
        begin = [clock() for clock in clocks]
        for _ in range(calls):
            work()
        return cls(*((clock() - b) / calls for clock, b in zip(clocks, begin, strict=True)))


def least(turns: Sequence[Spent]) -> float:
    """Returns the seconds of the fastest turn, without the time that the processor gave to other
    processes. For work on several threads, returns the seconds by the wall clock."""
    if sum(turn.process for turn in turns) > 1.05 * sum(turn.thread for turn in turns):
        return min(turn.clock for turn in turns)
    return min(turn.thread for turn in turns)


def calls_in_a_turn(work: Work) -> int:
    """Returns the number of calls for which a turn lasts at least SHORTEST seconds. Runs one
    untimed call first to warm up."""
    work()
    return max(1, round(SHORTEST / max(seconds(work), 1e-6)))


def timed(name: str, unit: str, side: Side, against: str, baseline: Side, repeats: int) -> Row:
    """Returns a row: the median rates of the function and of its baseline (in 10⁹ a second), the
    median and the range of the turns' ratios, and the row's best rate. The best rate excludes the
    time of other processes."""
    calls = calls_in_a_turn(side.work), calls_in_a_turn(baseline.work)
    turns: list[Spent] = []
    rates, baselines, ratios = [], [], []
    begin = time.perf_counter()
    for turn in range(repeats):
        if turn >= LEAST_TURNS and time.perf_counter() - begin > LONGEST:
            break
        baselines.append(baseline.amount / seconds(baseline.work, calls[1]) * 1e-9)
        turns.append(Spent.of(side.work, calls[0]))
        rates.append(side.amount / turns[-1].clock * 1e-9)
        ratios.append(rates[-1] / baselines[-1])
    return {
        "name": name,
        "value": round(median(rates), 3),
        "unit": unit,
        "against": against,
        "baseline": round(median(baselines), 3),
        "ratio": round(median(ratios), 4),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
        "best": round(side.amount / least(turns) * 1e-9, 3),
    }
