# SPDX-License-Identifier: Apache-2.0
"""Which group size and exchange to take, by round-off and by modelled time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cpd.comm.communicator import Communicator
from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import ReduceSpec, check_spec
from cpd.study.costs import Largest, Sizes, cost, transfer_time
from cpd.study.reduce import (
    Contributions,
    Measurement,
    Roundoff,
    group_size_of,
    grouped,
    standard_error,
)

_SURE = 2.131  # Student's t of 15 degrees of freedom: 95 % of differences by chance lie within


@dataclass(frozen=True)
class Choice:
    """One group size and exchange: what it loses and what it takes."""

    group_size: int
    roundoff: Roundoff
    steps: int
    bytes_sent: int
    """By rank 0, a master, which has most to send; at most, where `cost` is not exact."""
    seconds: float
    """In the alpha-beta model."""
    exchange: str
    """`hierarchical`, for a group size of W `ring`; or `owner`, which gives the same bits."""
    spread: float | None
    """The standard error of `roundoff.relative_rms`; None where there are fewer than 64 values."""


@dataclass(frozen=True)
class Recommendation:
    """Which group size and exchange to take. No other choice has both less error and less time than
    one that is named here, nor is as good in one of them and better in the other."""

    choices: list[Choice]
    """One for each group size, by `hierarchical` or `ring`; by `owner` where a codec's sums cannot
    travel in its contributions' place."""
    owner: list[Choice]
    """The same group sizes, and sums, by exchange `owner`."""
    draws: int
    """Blocks of the values that the spreads stand on; 0 where there are too few values."""
    most_exact: Choice
    """The fastest of those whose error cannot be told from the least."""
    fastest: Choice
    """The one of the least modelled time."""
    balanced: Choice
    """The fastest of those whose product of error and time cannot be told from the least."""

    @property
    def by_error(self) -> int:
        """The group size of `most_exact`."""
        return self.most_exact.group_size

    @property
    def by_time(self) -> int:
        """The group size of `fastest`."""
        return self.fastest.group_size

    @property
    def compromise(self) -> int:
        """The group size of `balanced`."""
        return self.balanced.group_size

    @property
    def owner_seconds(self) -> float:
        """What exchange `owner` takes in the same model, whatever the group size: the same bits."""
        return self.owner[0].seconds


def recommend(
    per_rank: PerRank,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    alpha: float,
    beta: float,
) -> Recommendation:
    """The group size and exchange to take, by round-off (see `roundoff`) and by modelled time.

    The error is the relative RMS; where results are not finite, fewer of these come first. The time
    is that of exchange `hierarchical`, for a group size of W of `ring`, or of `owner`, with `alpha`
    seconds a step and `beta` seconds a byte (see `transfer_time`). The first two sum in order
    `ring`, so the spec must. Of choices that are equal in both the first is taken.

    How far an error is known, the values themselves say, by the jackknife: each layer is cut into
    `DRAWS` = 16 blocks, and the relative RMS is computed without each block in turn. A standard
    error is the root of 15 / 16 of the sum of squares of what that changes. Two errors, or two
    products of error and time, count as equal where their difference is at most 2.13 of its own
    standard errors (Student's t, 95 %): of the same blocks, so that what is common cancels.

    Raises ValueError for another order, for no group sizes and as `roundoff` does.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> ranks = [[rng.random(500, np.float32)] for _ in range(16)]
    >>> spec = ReduceSpec("e5m2", order="ring", aps=True)
    >>> best = recommend(ranks, spec, [2, 4, 16], alpha=1e-5, beta=1e-9)
    >>> best.by_error, best.by_time, [choice.steps for choice in best.choices]
    (4, 2, [18, 18, 30])
    """
    return _recommended(Contributions(per_rank), spec, group_sizes, alpha, beta)


def recommend_over(
    comm: Communicator,
    layers: Layers,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    alpha: float,
    beta: float,
) -> Recommendation:
    """`recommend` over real ranks, each of which gives its own layers: see `roundoff_over`."""
    return _recommended(Contributions.over(comm, layers), spec, group_sizes, alpha, beta)


def _recommended(
    given: Contributions, spec: ReduceSpec, group_sizes: Sequence[int], alpha: float, beta: float
) -> Recommendation:
    check_recommended(spec, group_sizes)
    sizes = [group_size_of(size, given.world) for size in group_sizes]
    found = {size: given.measure(spec, size) for size in sizes}
    return choose(
        found, spec, given.world, given.shapes, alpha=alpha, beta=beta, largest=given.largest
    )


def check_recommended(spec: ReduceSpec, group_sizes: Sequence[int]) -> None:
    """Raises TypeError or ValueError for what `recommend` does not take."""
    check_spec(spec)
    if spec.order != "ring":
        raise ValueError(
            "the exchanges ring and hierarchical, whose time is modelled, sum in order 'ring': "
            f"the spec's order must be that, got {spec.order!r}"
        )
    if len(group_sizes) == 0:
        raise ValueError("at least one group size is needed, got none")


def choose(
    measured: Mapping[int, Measurement],
    spec: ReduceSpec,
    world: int,
    sizes: Sizes,
    *,
    alpha: float,
    beta: float,
    largest: Largest = None,
) -> Recommendation:
    """What `recommend` says of measurements by group size; `sizes` and `largest`: as in `cost`."""

    def choice(size: int, way: ReduceSpec) -> Choice:
        took = cost(way, world, sizes, largest=largest)
        seconds = transfer_time(way, world, sizes, alpha=alpha, beta=beta, largest=largest)
        one = measured[size]
        return Choice(
            size, one.total, took.steps, took.bytes_sent, seconds, way.exchange, one.spread
        )

    def named(figure: Callable[[Choice], float]) -> Choice:
        return _least(front, measured, figure)

    plain = dataclasses.replace(spec, exchange="owner", group_size=None)
    owner = [choice(size, plain) for size in measured]
    may_hop = spec.wire is None
    hops = [choice(size, _moved(spec, size, world)) for size in measured] if may_hop else owner
    front = [one for one in hops + owner if not any(_beats(other, one) for other in hops + owner)]
    draws = min(len(one.draws) for one in measured.values())
    return Recommendation(
        hops,
        owner,
        draws,
        most_exact=named(lambda one: 1.0),
        fastest=min(front, key=lambda one: one.seconds),
        balanced=named(lambda one: one.seconds),
    )


def _beats(one: Choice, other: Choice) -> bool:
    """Whether `one` is nowhere worse, and somewhere better."""
    mine, yours = (
        ((x.roundoff.non_finite, x.roundoff.relative_rms), x.seconds) for x in (one, other)
    )
    return mine[0] <= yours[0] and mine[1] <= yours[1] and mine != yours


def _least(
    front: Sequence[Choice],
    measured: Mapping[int, Measurement],
    weight: Callable[[Choice], float],
) -> Choice:
    """The fastest of those whose relative RMS times `weight` cannot be told from the least."""
    fewest = min(one.roundoff.non_finite for one in front)
    sound = [one for one in front if one.roundoff.non_finite == fewest]
    best = min(sound, key=lambda one: one.roundoff.relative_rms * weight(one))

    def as_good(one: Choice) -> bool:
        if one is best:
            return True
        mine, least = weight(one), weight(best)
        more = one.roundoff.relative_rms * mine - best.roundoff.relative_rms * least
        a, b = measured[one.group_size], measured[best.group_size]
        if more == 0 or not (a.draws and b.draws):
            return more == 0
        return more <= _SURE * standard_error(a._left_out() * mine - b._left_out() * least)

    return min(filter(as_good, sound), key=lambda one: one.seconds)


def _moved(spec: ReduceSpec, size: int, world: int) -> ReduceSpec:
    """The spec whose messages hop: around one ring of all ranks, or around one of masters."""
    moved = grouped(dataclasses.replace(spec, exchange="owner"), size, world)
    exchange = "ring" if size == world else "hierarchical"
    return dataclasses.replace(moved, exchange=exchange)
