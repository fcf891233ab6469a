# SPDX-License-Identifier: Apache-2.0
"""Recommends a group size and an exchange, by round-off and by modelled time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpd.comm.communicator import Communicator
from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import ReduceSpec, check_spec
from cpd.numeric.checked import checked
from cpd.study.costs import Largest, Sizes, cost, transfer_time
from cpd.study.reduce import (
    Contributions,
    Measurement,
    Roundoff,
    group_size_of,
    grouped,
)
from cpd.study.resamples import shares_of_wins, undecided


@dataclass(frozen=True)
class Choice:
    """One group size and exchange: its round-off and its cost."""

    group_size: int
    roundoff: Roundoff
    steps: int
    bytes_sent: int
    """By rank 0, a master, which sends most; an upper bound where `cost` is not exact."""
    seconds: float
    """The time in the alpha-beta model."""
    exchange: str
    """`hierarchical`, or `ring` for a group size of W; or `owner`, which gives the same bits."""
    spread: float | None
    """The standard error of `roundoff.relative_rms`; None where there are fewer than 64 values."""
    error: float = 0.0
    """The relative RMS over random orders of the ranks."""
    non_finite: int = 0
    """The number of results that are not finite, over all those orders."""


@dataclass(frozen=True)
class Recommendation:
    """The group sizes and exchanges to use. No other choice has both less error and less time than
    one that is named here, nor is as good in one of them and better in the other."""

    choices: list[Choice]
    """One for each group size, by `hierarchical` or `ring`; by `owner` where a codec's sums cannot
    be sent in place of its contributions."""
    owner: list[Choice]
    """The same group sizes, and sums, by exchange `owner`."""
    draws: int
    """The number of blocks of values from which spreads are computed; 0 for too few values."""
    most_exact: Choice
    """The fastest of `exact_tie`."""
    fastest: Choice
    """The choice of least modelled time."""
    balanced: Choice
    """The fastest of `balanced_tie`."""
    exact_tie: list[Choice]
    """The choices between whose errors chance decides which is least; a single one: no tie."""
    balanced_tie: list[Choice]
    """The choices between which chance decides the least product of error and time."""

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
        """The modelled time of exchange `owner`, for any group size; it gives the same bits."""
        return self.owner[0].seconds


@checked
def recommend(
    per_rank: PerRank,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    alpha: float,
    beta: float,
) -> Recommendation:
    """The group sizes and exchanges to use, by round-off (see `roundoff`) and by modelled time.

    The error is the relative RMS; where results are not finite, fewer of these come first. The time
    is that of exchange `hierarchical`, of `ring` for a group size of W, or of `owner`, with `alpha`
    seconds per step and `beta` seconds per byte (see `transfer_time`). The first two sum in order
    `ring`, so the spec must. Of choices that are equal in both the first is used.

    Errors are those over `ORDERS` = 8 random orders of the ranks together, which do not depend on
    the order of the argument: the order of a sum changes its error, and no rank has a fixed place.
    Each layer is cut into `DRAWS` = 16 blocks; each of 1,000 resamples of the orders and blocks
    votes for what is best by it. What more than 95 % of them vote for is the choice; else those
    with most votes, 95 % together, are a tie, and the fastest of these is named. `spread` is the
    jackknife's standard error, of the argument's order.

    Raises ValueError for a spec of another order, for no group sizes and as `roundoff` does.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> ranks = [[rng.random(500, np.float32)] for _ in range(16)]
    >>> spec = ReduceSpec("e5m2", order="ring", aps=True)
    >>> best = recommend(ranks, spec, [2, 4, 16], alpha=1e-5, beta=1e-9)
    >>> best.by_error, best.by_time, [choice.steps for choice in best.choices]
    (4, 2, [18, 18, 30])
    """
    return _recommended(Contributions(per_rank), spec, group_sizes, alpha, beta)


@checked
def recommend_over(
    comm: Communicator,
    layers: Layers,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    alpha: float,
    beta: float,
) -> Recommendation:
    """`recommend` over real ranks, each with its own layers: see `roundoff_over`."""
    return _recommended(Contributions.over(comm, layers), spec, group_sizes, alpha, beta)


def _recommended(
    given: Contributions, spec: ReduceSpec, group_sizes: Sequence[int], alpha: float, beta: float
) -> Recommendation:
    check_recommended(spec, group_sizes)
    sizes = [group_size_of(size, given.world) for size in group_sizes]
    found = {size: given.measure_orders(spec, size) for size in sizes}
    return choose(
        found, spec, given.world, given.shapes, alpha=alpha, beta=beta, largest=given.largest
    )


@checked
def check_recommended(spec: ReduceSpec, group_sizes: Sequence[int]) -> None:
    """Raises TypeError or ValueError for arguments that `recommend` does not accept."""
    check_spec(spec)
    if spec.order != "ring":
        raise ValueError(
            "the exchanges ring and hierarchical, whose time is modelled, sum in order 'ring': "
            f"the spec's order must be that, got {spec.order!r}"
        )
    if len(group_sizes) == 0:
        raise ValueError("at least one group size is needed, got none")


@checked
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
    """The recommendation from measurements by group size; `sizes` and `largest`: as in `cost`."""
    if not measured:
        raise ValueError("at least one measurement is needed, got none")
    for size, one in measured.items():
        if not isinstance(one, Measurement):
            raise TypeError(f"measured[{size!r}] must be a Measurement, got {type(one).__name__}")

    def choice(size: int, way: ReduceSpec) -> Choice:
        took = cost(way, world, sizes, largest=largest)
        seconds = transfer_time(way, world, sizes, alpha=alpha, beta=beta, largest=largest)
        one = measured[size]
        return Choice(
            size,
            one.total,
            took.steps,
            took.bytes_sent,
            seconds,
            way.exchange,
            one.spread,
            one.error,
            one.non_finite,
        )

    plain = dataclasses.replace(spec, exchange="owner", group_size=None)
    owner = [choice(size, plain) for size in measured]
    may_hop = spec.wire is None
    hops = [choice(size, _moved(spec, size, world)) for size in measured] if may_hop else owner
    front = [one for one in hops + owner if not any(_beats(other, one) for other in hops + owner)]
    draws = min(len(one.draws) for one in measured.values())
    exact = _tied(front, measured, lambda one: 1.0)
    balanced = _tied(front, measured, lambda one: one.seconds)
    return Recommendation(
        hops,
        owner,
        draws,
        most_exact=exact[0],
        fastest=min(front, key=lambda one: one.seconds),
        balanced=balanced[0],
        exact_tie=exact,
        balanced_tie=balanced,
    )


def _beats(one: Choice, other: Choice) -> bool:
    """Whether `one` is nowhere worse, and somewhere better."""
    mine, yours = (((x.non_finite, x.error), x.seconds) for x in (one, other))
    return mine[0] <= yours[0] and mine[1] <= yours[1] and mine != yours


def _tied(
    front: Sequence[Choice],
    measured: Mapping[int, Measurement],
    weight: Callable[[Choice], float],
) -> list[Choice]:
    """The choices between which chance decides the least error times `weight`, fastest first."""
    fewest = min(one.non_finite for one in front)
    sound = [one for one in front if one.non_finite == fewest]
    sound.sort(key=lambda one: (one.seconds, one.error))
    squares = [measured[one.group_size].squares() for one in sound]
    errors = np.array([above for above, _ in squares])
    weights = np.array([weight(one) for one in sound])
    shares = shares_of_wins(errors, squares[0][1], weights)
    return [sound[i] for i in sorted(undecided(shares))]


def _moved(spec: ReduceSpec, size: int, world: int) -> ReduceSpec:
    """The spec with an exchange whose messages hop: a ring of all ranks, or of masters."""
    moved = grouped(dataclasses.replace(spec, exchange="owner"), size, world)
    exchange = "ring" if size == world else "hierarchical"
    return dataclasses.replace(moved, exchange=exchange)
