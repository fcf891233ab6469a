# SPDX-License-Identifier: Apache-2.0
"""Counts the cost of a reduction: messages, and modelled time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from cpd import _core
from cpd.comm import local
from cpd.comm.communicator import Communicator
from cpd.comm.costs import DEFAULT_CHUNK as DEFAULT_CHUNK
from cpd.comm.costs import Cost as Cost
from cpd.comm.costs import Largest as Largest
from cpd.comm.costs import Sizes as Sizes
from cpd.comm.costs import cost as cost
from cpd.comm.costs import largest_of, values_and_rows
from cpd.comm.layers import PerRank
from cpd.comm.spec import ReduceSpec, check_spec
from cpd.comm.virtual import world_of
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32, int64


@dataclass(frozen=True)
class MeasuredCost:
    """What ranks sent and received in an all-reduce of actual layers: means over the ranks.

    >>> MeasuredCost(steps=2, bytes_sent=10.5, bytes_received=10.5, most_sent=11).most_sent
    11
    """

    steps: int
    """As in `Cost`."""
    bytes_sent: float
    bytes_received: float
    most_sent: int
    """The bytes of the rank that sent most."""


class Round(NamedTuple):
    """Steps of an all-reduce that are alike."""

    steps: int
    bytes: float
    """Of the longest message of each step; an upper bound where `cost` gives one."""
    across: int
    """The most messages of a step that leave one host, or reach it."""
    within: int
    """The most messages of a step that stay in one host."""


@checked
def measured_cost(
    per_rank: PerRank, spec: ReduceSpec, *, chunk: int = DEFAULT_CHUNK
) -> MeasuredCost:
    """What the ranks send and receive in the all-reduce of these layers, as a first call: runs it
    between threads of this process and counts. Equal to `cost` where that is exact.

    Raises ValueError or TypeError as `cpd.simulate_all_reduce`.

    >>> import numpy as np
    >>> ranks = [[np.float32([0, 0, 0, rank])] for rank in range(4)]
    >>> measured_cost(ranks, ReduceSpec("e4m3")).bytes_sent
    6.0
    """
    check_spec(spec)

    def moved(comm: Communicator) -> Any:
        given = per_rank[comm.rank]
        layers = given() if callable(given) else given
        return comm.all_reduce(layers, spec, report=True)[1].traffic

    with local(world_of(per_rank), chunk=chunk) as group:
        ranks = group.run(moved)
    return MeasuredCost(
        max(one.steps for one in ranks),
        sum(one.bytes_sent for one in ranks) / len(ranks),
        sum(one.bytes_received for one in ranks) / len(ranks),
        max(one.bytes_sent for one in ranks),
    )


@checked
def transfer_time(
    spec: ReduceSpec,
    world: int,
    sizes: Sizes,
    *,
    alpha: float,
    beta: float,
    largest: Largest = None,
) -> float:
    """Seconds that the messages of an all-reduce take in the alpha-beta model: its steps one after
    the other, all ranks at once, each `alpha` seconds and `beta` seconds per byte of its longest
    message; an upper bound where `cost` gives one. Casts and folds are assumed to be hidden.
    `sizes` and `largest` as in `cost`.

    >>> spec = ReduceSpec("e4m3")
    >>> round(1e6 * transfer_time(spec, 4, [1000], alpha=1e-6, beta=1e-9), 2)  # us
    7.5
    """
    check_spec(spec)
    values, rows = values_and_rows(spec, sizes)
    return _core.time(
        spec._native(),
        int32("world", world),
        values,
        float(alpha),
        float(beta),
        rows,
        largest_of(largest, len(values)),
    )


@checked
def rounds(
    spec: ReduceSpec,
    world: int,
    sizes: Sizes,
    *,
    per_host: int,
    largest: Largest = None,
) -> list[Round]:
    """The steps of an all-reduce where rank r is in host r // per_host, steps that are alike
    together: what `transfer_time` adds up, and between whom. `sizes` and `largest` as in `cost`.

    >>> rounds(ReduceSpec("fp32"), 4, [1000], per_host=2)
    [Round(steps=4, bytes=1000, across=1, within=1), Round(steps=2, bytes=1000, across=2, within=0)]
    """
    check_spec(spec)
    values, rows = values_and_rows(spec, sizes)
    found = _core.rounds(
        spec._native(),
        int32("world", world),
        values,
        int64("per_host", per_host),
        rows,
        largest_of(largest, len(values)),
    )
    return [Round(*one) for one in found]


def agreement(spec: ReduceSpec, world: int, sizes: Sizes, *, per_host: int) -> list[Round]:
    """The steps ahead of `rounds` in which the ranks agree on what scales need.

    With APS, and for formats without a code for NaN, that is each layer's largest magnitude, 4
    bytes a layer and 4 more; for a codec whose scale the ranks share, 4 bytes a layer. In
    ceil(log2(world)) steps each rank sends all of them to the rank 1, 2, 4, … places on. No steps
    where nothing is needed. `cost` and `transfer_time` do not include them.

    >>> agreement(ReduceSpec("e4m3", aps=True), 4, [1000], per_host=2)
    [Round(steps=1, bytes=8, across=1, within=1), Round(steps=1, bytes=8, across=2, within=0)]
    >>> agreement(ReduceSpec("e4m3"), 4, [1000], per_host=2)
    []
    """
    check_spec(spec)
    values, rows = values_and_rows(spec, sizes)
    native = spec._native(), int32("world", world), values, int64("per_host", per_host), rows
    return [Round(*one) for one in _core.agreement(*native)]
