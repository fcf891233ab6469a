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
from cpd.comm.spec import Reduce, check_spec
from cpd.comm.virtual import world_of
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32, int64


@dataclass(frozen=True)
class MeasuredCost:
    """What ranks sent and received in an all-reduce of actual layers: means over the ranks.

    Attributes:
        steps: the rounds of messages, of the rank that has most, as in `Cost`.
        bytes_sent: the bytes that a rank sent.
        bytes_received: the bytes that a rank received.
        most_sent: the bytes of the rank that sent most.

    >>> MeasuredCost(steps=2, bytes_sent=10.5, bytes_received=10.5, most_sent=11).most_sent
    11
    """

    steps: int
    bytes_sent: float
    bytes_received: float
    most_sent: int


class Round(NamedTuple):
    """Steps of an all-reduce that are alike.

    Attributes:
        steps: the number of steps.
        bytes: the bytes of the longest message of each step; an upper bound if `cost` gives one.
        across: the most messages of a step that leave one host, or reach it.
        within: the most messages of a step that stay in one host.
    """

    steps: int
    bytes: float
    across: int
    within: int


@checked
def measured_cost(per_rank: PerRank, spec: Reduce, *, chunk: int = DEFAULT_CHUNK) -> MeasuredCost:
    """Counts what ranks send and receive in the all-reduce of actual layers.

    Runs a first call between threads of this process. Equal to `cost` if that is exact.

    Args:
        per_rank: the contributions of each rank, as for `cpd.simulate_all_reduce`.
        spec: the all-reduce.
        chunk: the values that a rank works on at once, as in `cpd.comm.local`; default 2^20.

    Returns:
        Means over the ranks.

    Raises:
        ValueError: as `cpd.simulate_all_reduce`.
        TypeError: as `cpd.simulate_all_reduce`.

    >>> import numpy as np
    >>> ranks = [[np.float32([0, 0, 0, rank])] for rank in range(4)]
    >>> measured_cost(ranks, Reduce("e4m3")).bytes_sent
    6.0
    """
    check_spec(spec)

    def moved(comm: Communicator) -> Any:
        given = per_rank[comm.rank]
        layers = given() if callable(given) else given
        return comm.all_reduce(layers, spec, step=0, report=True)[1].traffic

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
    spec: Reduce,
    world: int,
    sizes: Sizes,
    *,
    alpha: float,
    beta: float,
    largest: Largest = None,
) -> float:
    """Models the seconds that the messages of an all-reduce take, by alpha and beta.

    The steps follow one after the other, all ranks at once. Each step takes `alpha` seconds and
    `beta` seconds per byte of its longest message. The time is an upper bound if `cost` gives one.
    Casts and ordered sums are assumed to be hidden.

    Args:
        spec: the all-reduce.
        world: the number of ranks.
        sizes: each layer's shape, or the number of values of a vector, as in `cost`.
        alpha: seconds per step.
        beta: seconds per byte.
        largest: the largest magnitude in all layers or in each, as in `cost`; default None: not
            known.

    Returns:
        Seconds.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.

    >>> spec = Reduce("e4m3")
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
    spec: Reduce,
    world: int,
    sizes: Sizes,
    *,
    per_host: int,
    largest: Largest = None,
) -> list[Round]:
    """Returns the steps of an all-reduce that `transfer_time` adds up, and between whom.

    Rank r is in host r // per_host. Steps that are alike are one `Round`.

    Args:
        spec: the all-reduce.
        world: the number of ranks.
        sizes: each layer's shape, or the number of values of a vector, as in `cost`.
        per_host: the number of ranks of a host.
        largest: the largest magnitude in all layers or in each, as in `cost`; default None: not
            known.

    Returns:
        The rounds, in order.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.

    >>> rounds(Reduce("fp32"), 4, [1000], per_host=2)
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


def agreement(spec: Reduce, world: int, sizes: Sizes, *, per_host: int) -> list[Round]:
    """Returns the steps ahead of `rounds` in which the ranks agree on what scales need.

    With APS, and for formats without a code for NaN, ranks agree on each layer's largest magnitude:
    4 bytes a layer and 4 more. For a codec whose scale the ranks share they send 4 bytes a layer.
    In ceil(log2(world)) steps each rank sends all of these to the rank 1, 2, 4, … after it. There
    are no steps if nothing is needed. `cost` and `transfer_time` do not include these steps.

    Args:
        spec: the all-reduce.
        world: the number of ranks.
        sizes: each layer's shape, or the number of values of a vector, as in `cost`.
        per_host: the number of ranks of a host.

    Returns:
        The rounds, in order.

    >>> agreement(Reduce("e4m3", aps=True), 4, [1000], per_host=2)
    [Round(steps=1, bytes=8, across=1, within=1), Round(steps=1, bytes=8, across=2, within=0)]
    >>> agreement(Reduce("e4m3"), 4, [1000], per_host=2)
    []
    """
    check_spec(spec)
    values, rows = values_and_rows(spec, sizes)
    native = spec._native(), int32("world", world), values, int64("per_host", per_host), rows
    return [Round(*one) for one in _core.agreement(*native)]
