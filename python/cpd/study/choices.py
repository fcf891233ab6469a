# SPDX-License-Identifier: Apache-2.0
"""`recommend`: the best group size and exchange of an all-reduce, by round-off and by time."""

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
    """A group size and an exchange, with the round-off and the cost of the all-reduce.

    Attributes:
        group_size: the number of ranks in a group.
        roundoff: the round-off if ranks are summed in the order in which they were passed.
        steps: the number of rounds of messages, as in `Cost`.
        bytes_sent: the bytes that rank 0 sends. As the first rank of a group, rank 0 sends the most
            bytes. The number is an upper bound if `cost` is not exact.
        seconds: the modeled time of the messages, in seconds.
        exchange: `hierarchical`, or `ring` if the group size is the number of ranks; or `owner`,
            which gives the same bits.
        spread: the standard error of `roundoff.relative_rms`; None for fewer than 64 values.
        error: the relative RMS over several random orders of the ranks; infinite if no result is
            finite; default 0.
        non_finite: the number of results, over all these orders, that are not finite; default 0.
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
    """The group sizes and exchanges that `recommend` compares, and the best of them.

    `most_exact`, `fastest` and `balanced` are on the Pareto front: no other choice is better in
    error or time and at least as good in the other.

    Attributes:
        choices: one choice for each group size, with the exchange `hierarchical` or `ring`. For a
            compressor the exchange is `owner`, because its partial sums cannot be sent.
        owner: one choice for each group size, with the exchange `owner`, which gives the same sums.
        draws: the number of blocks of values from which spreads are computed; 0 for fewer than 64
            values.
        most_exact: the choice with the least error, or the fastest choice of a tie, `exact_tie`.
        fastest: the choice with the least modeled time.
        balanced: the choice with the least product of error and time, or the fastest choice of a
            tie, `balanced_tie`.
        exact_tie: the choices that may have the least error, as far as resampling can tell. A
            single choice means that there is no tie.
        balanced_tie: the choices that may have the least product of error and time, as far as
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
        """The modeled seconds of the all-reduce with the exchange `owner`, for any group size."""
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
    """Recommends a group size and an exchange, by round-off and by modeled time.

    The error of a choice is its relative RMS (see `roundoff`). A choice with fewer non-finite
    results is always preferred. The time of the messages on the machine is modeled as in
    `step_time`, without the messages in which ranks agree on scales: these are the same for all
    choices. The exchanges compared are `hierarchical`, `ring` (if all ranks are one group) and
    `owner`. The first two exchanges sum in order `ring`, so `spec` must have that order. Of choices
    with equal error and time, the first is recommended.

    The order of the ranks changes the error of a sum, and ranks have no natural order. So the error
    is the RMS error over 8 random orders of the ranks, which do not depend on the order in `ranks`.
    With `comm`, only the order of the communicator's ranks is used.

    Chance decides between choices of similar error, so they are compared by a bootstrap. Each
    tensor is cut into 16 blocks. 1,000 resamples draw orders and blocks at random, and each
    resample votes for its best choice. A choice with at least 95 % of the votes is recommended.
    Otherwise the choices with the most votes, until 95 % are reached, are a tie, and the fastest of
    them is recommended. `Choice.spread` is the jackknife's standard error, for the order in
    `ranks`.

    Args:
        ranks: the contributions of each rank, as for `cpd.simulate_all_reduce`; with `comm` the
            tensors of this rank.
        spec: the all-reduce, with order `ring`, or its text. Its exchange and group size are
            ignored.
        group_sizes: the group sizes to compare, 1…W for W ranks; W means no groups.
        machine: the machine, or its name or text, such as `"alpha=1e-5 beta=1e9"`.
        comm: the communicator of the ranks. Each rank calls this function with its own tensors.
            Default None: virtual ranks.
        seed: the seed of stochastic rounding; default 0.

    Returns:
        All choices, and the recommended choices.

    Raises:
        ValueError: if the order of `spec` is not `ring`, if `group_sizes` is empty, and for a group
            size that is not 1…W.
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
    """Recommends group sizes and exchanges, from round-off that was already measured.

    `measured` maps at least one group size to its measurement, which `given.measure_orders` made.
    `given` has the ranks' tensors.
    """
    world = given.world

    def choice(size: int, way: Reduce) -> Choice:
        return made(size, measured[size], way, machine, given)

    plain = spec.replace(exchange="owner", group_size=None)
    owner = [choice(size, plain) for size in measured]
    hops = owner
    if spec.format is not None:  # the partial sums of a compressor cannot be sent
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
    """Makes the `Choice` of a group size: `one` is its measurement, `way` the all-reduce's spec."""
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
    """Returns whether `choice` is better than `other` in error or time, and worse in neither."""
    mine, yours = (((x.non_finite, x.error), x.seconds) for x in (choice, other))
    return mine[0] <= yours[0] and mine[1] <= yours[1] and mine != yours


def _tied(
    front: Sequence[Choice],
    measured: Mapping[int, Measurement],
    weight: Callable[[Choice], float],
) -> list[Choice]:
    """Returns the choices that may have the least product of error and `weight`, fastest first.

    Several choices are a tie: none of them is the best in enough resamples of the measurement.
    """
    fewest = min(choice.non_finite for choice in front)
    sound = [choice for choice in front if choice.non_finite == fewest]
    sound.sort(key=lambda choice: (choice.seconds, choice.error))
    squares = [measured[choice.group_size].squares() for choice in sound]
    errors = np.array([above for above, _ in squares])
    weights = np.array([weight(choice) for choice in sound])
    shares = shares_of_wins(errors, squares[0][1], weights)
    return [sound[i] for i in sorted(undecided(shares))]
