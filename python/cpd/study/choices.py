# SPDX-License-Identifier: Apache-2.0
"""Recommends a group size and an exchange, by round-off and by modeled time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpd.comm.communicator import Communicator
from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import Reduce, as_reduce
from cpd.numeric.checked import checked
from cpd.study.costs import cost, transfer_seconds
from cpd.study.machines import Machine, as_machine
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
    """One group size and exchange: its round-off and its cost.

    Attributes:
        group_size: the number of ranks of a group.
        roundoff: the round-off in the order of the argument's ranks.
        steps: the rounds of messages, as in `Cost`.
        bytes_sent: the bytes that rank 0 sends. Rank 0 is a master, which sends most. An upper
            bound if `cost` is not exact.
        seconds: the time in the alpha-beta model.
        exchange: `hierarchical`, or `ring` for a group size of W; or `owner`, which gives the same
            bits.
        spread: the standard error of `roundoff.relative_rms`; None for fewer than 64 values.
        error: the relative RMS over random orders of the ranks, infinite if no result is finite;
            default 0.
            default 0.
        non_finite: the number of results that are not finite, over all those orders; default 0.
    """

    group_size: int
    roundoff: Roundoff
    steps: int
    bytes_sent: int
    seconds: float
    exchange: str
    spread: float | None
    error: float = 0.0
    non_finite: int = 0


@dataclass(frozen=True)
class Recommendation:
    """The group sizes and exchanges to use.

    The named choices are on the Pareto front: no other choice is better in error or time and no
    worse in the other.

    Attributes:
        choices: one for each group size, by exchange `hierarchical` or `ring`; by `owner` for a
            codec, whose partial sums cannot be sent.
        owner: one for each group size, by exchange `owner`, which gives the same sums.
        draws: the number of blocks of values from which spreads are computed; 0 for too few values.
        most_exact: the fastest of `exact_tie`.
        fastest: the choice of least modeled time.
        balanced: the fastest of `balanced_tie`.
        exact_tie: the choices whose error may be the least, as far as resampling can tell. A single
            one means no tie.
        balanced_tie: the choices whose product of error and time may be the least, as far as
            resampling can tell.
    """

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
        """The modeled time of exchange `owner`, for any group size; it gives the same bits."""
        return self.owner[0].seconds


@checked
def recommend(
    ranks: PerRank | Layers,
    spec: Reduce | str,
    group_sizes: Sequence[int],
    machine: Machine | str,
    *,
    comm: Communicator | None = None,
    seed: int = 0,
) -> Recommendation:
    """Recommends group sizes and exchanges, by round-off and by modeled time.

    The error is the relative RMS (see `roundoff`). Choices with fewer results that are not finite
    come first. The time of the messages on the machine is modeled as in `step_time`. It leaves out
    the messages in which ranks agree on scales, since all choices share them. The modeled exchanges
    are `hierarchical`, `ring` (for a group size of W), and `owner`. The first two sum in order
    `ring`, so the spec must have that order. If choices are equal in error and time, the first is
    used.

    The order of a sum changes its error, and no rank has a fixed place. So errors are taken over
    `ORDERS` = 8 random orders of the ranks together, whatever the order of the argument. With
    `comm` the ranks have one order.

    Each tensor is cut into `DRAWS` = 16 blocks. Each of 1,000 resamples of the orders and blocks
    votes for the choice that is best in it. A choice with more than 95 % of the votes is named.
    Otherwise the choices with most votes, 95 % together, are a tie, and the fastest of them is
    named. `spread` is the jackknife's standard error, in the argument's order.

    Args:
        ranks: the contributions of each rank, as for `cpd.simulate_all_reduce`; with `comm` the
            tensors of this rank.
        spec: the all-reduce, of order `ring`, or its text; its exchange and group size are
            replaced.
        group_sizes: the group sizes to compare, 1…W; W, the number of ranks, means no groups.
        machine: the machine, or its name or text, such as `"alpha=1e-5 beta=1e9"`.
        comm: the ranks, each of which calls this with its own tensors; default None: virtual ranks.
        seed: the seed of stochastic rounding; default 0.

    Returns:
        The choices for each group size, and the named ones.

    Raises:
        ValueError: for a spec of another order, no group sizes, and a group size that is not 1…W.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> ranks = [[rng.random(500, np.float32)] for _ in range(16)]
    >>> best = recommend(ranks, "e5m2 order=ring aps", [2, 4, 16], "alpha=1e-5 beta=1e9")
    >>> best.by_error, best.by_time, [choice.steps for choice in best.choices]
    (4, 2, [18, 18, 30])
    """
    spec, machine = as_reduce(spec), as_machine(machine)
    if spec.order != "ring":
        raise ValueError(
            "recommend compares exchanges that sum in order ring: spec must have order=ring, got "
            f"order={spec.order}"
        )
    if len(group_sizes) == 0:
        raise ValueError("at least one group size is needed, got none")
    contributions = Contributions(ranks, comm, seed)
    sizes = [group_size_of(size, contributions.world) for size in group_sizes]
    measured = {size: contributions.measure_orders(spec, size) for size in sizes}
    return choose(measured, spec, machine, contributions)


def choose(
    measured: Mapping[int, Measurement], spec: Reduce, machine: Machine, given: Contributions
) -> Recommendation:
    """Recommends group sizes and exchanges from the measurements of contributions.

    `measured`: group size → its measurement, at least one, as from `given.measure_orders`.
    """
    world = given.world

    def choice(size: int, way: Reduce) -> Choice:
        return made(size, measured[size], way, machine, given)

    plain = spec.replace(exchange="owner", group_size=None)
    owner = [choice(size, plain) for size in measured]
    hops = owner
    if spec.format is not None:  # partial sums of a codec cannot be sent on
        hopping = spec.replace(exchange="ring", group_size=None)
        hops = [choice(size, grouped(hopping, size, world)) for size in measured]
    front = [
        candidate
        for candidate in hops + owner
        if not any(_beats(other, candidate) for other in hops + owner)
    ]
    draws = min(len(measurement.draws) for measurement in measured.values())
    exact = _tied(front, measured, lambda candidate: 1.0)
    balanced = _tied(front, measured, lambda candidate: candidate.seconds)
    return Recommendation(
        hops,
        owner,
        draws,
        most_exact=exact[0],
        fastest=min(front, key=lambda candidate: candidate.seconds),
        balanced=balanced[0],
        exact_tie=exact,
        balanced_tie=balanced,
    )


def made(
    size: int, one: Measurement, way: Reduce, machine: Machine, given: Contributions
) -> Choice:
    """Returns the choice of a group size that was measured, exchanged in this way."""
    took = cost(way, given.world, given.shapes, largest=given.largest)
    return Choice(
        size,
        one.total,
        took.steps,
        took.bytes_sent,
        transfer_seconds(way, machine, given.world, given.shapes, given.largest),
        way.exchange,
        one.spread,
        one.error,
        one.non_finite,
    )


def _beats(choice: Choice, other: Choice) -> bool:
    """Returns whether `choice` is nowhere worse than `other`, and somewhere better."""
    mine, yours = (((x.non_finite, x.error), x.seconds) for x in (choice, other))
    return mine[0] <= yours[0] and mine[1] <= yours[1] and mine != yours


def _tied(
    front: Sequence[Choice],
    measured: Mapping[int, Measurement],
    weight: Callable[[Choice], float],
) -> list[Choice]:
    """Returns the choices that are tied, within chance, for the least error times `weight`.

    The fastest is first.
    """
    fewest = min(choice.non_finite for choice in front)
    sound = [choice for choice in front if choice.non_finite == fewest]
    sound.sort(key=lambda choice: (choice.seconds, choice.error))
    squares = [measured[choice.group_size].squares() for choice in sound]
    errors = np.array([above for above, _ in squares])
    weights = np.array([weight(choice) for choice in sound])
    shares = shares_of_wins(errors, squares[0][1], weights)
    return [sound[i] for i in sorted(undecided(shares))]
