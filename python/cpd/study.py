# SPDX-License-Identifier: Apache-2.0
"""Measures what a reduction loses, and counts what it costs: round-off, messages and modelled time
by group size."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from cpd import _core, tensors
from cpd.reduce import (
    Layers,
    PerRank,
    ReduceSpec,
    Source,
    StallWarning,
    check_spec,
    simulate_all_reduce,
)

if TYPE_CHECKING:
    from cpd.comm import Communicator

DEFAULT_CHUNK = 1 << 20
"""Values in work at once in a communicator that was not told otherwise."""
DRAWS = 16
"""Blocks of the values whose differences say how far an error is known."""
_LEAST_DRAW = 4  # values in a block
_SURE = 2.131  # Student's t of 15 degrees of freedom: 95 % of differences by chance lie within


@dataclass(frozen=True)
class Roundoff:
    """Round-off of a reduced value l against its binary64 reference h."""

    error: float
    """Eq. 5 of the APS paper: the mean of |(h - l) / h| over h != 0."""
    relative_rms: float
    """sqrt(sum (h - l)^2 / sum h^2), zero references included."""
    count: int
    """Values."""
    zero_references: int
    """Values whose reference is 0; they are not in `error`."""
    non_finite: int
    """Values where l is not finite: left out of both means."""


@overload
def roundoff(
    per_rank: PerRank,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    per_layer: Literal[False] = False,
) -> dict[int, Roundoff]: ...
@overload
def roundoff(
    per_rank: PerRank, spec: ReduceSpec, group_sizes: Sequence[int], *, per_layer: Literal[True]
) -> dict[int, list[Roundoff]]: ...
def roundoff(
    per_rank: PerRank, spec: ReduceSpec, group_sizes: Sequence[int], *, per_layer: bool = False
) -> dict[int, Roundoff] | dict[int, list[Roundoff]]:
    """The round-off of `simulate_all_reduce(per_rank, spec)` for each group size.

    The reference is the sum, in binary64 and rank ascending, of the contributions before cast and
    scaling (divided by W where `spec.average`). A group size of W = len(per_rank) means no groups;
    `spec.group_size` is not used. Over all layers together, or with `per_layer=True` a list with
    one `Roundoff` per layer. A rank given as a function is called anew for each group size.

    Raises ValueError for a group size that is not 1…W.

    >>> ranks = [[np.float32([1.0, 0.0])], [np.float32([0.0625, 0.0])]]
    >>> result = roundoff(ranks, ReduceSpec("e4m3"), group_sizes=[2])[2]
    >>> round(result.error, 4), result.count, result.zero_references
    (0.0588, 2, 1)
    """
    return _table(Contributions(per_rank), spec, group_sizes, per_layer)


@overload
def roundoff_over(
    comm: Communicator,
    layers: Layers,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    per_layer: Literal[False] = False,
) -> dict[int, Roundoff]: ...
@overload
def roundoff_over(
    comm: Communicator,
    layers: Layers,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    per_layer: Literal[True],
) -> dict[int, list[Roundoff]]: ...
def roundoff_over(
    comm: Communicator,
    layers: Layers,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    per_layer: bool = False,
) -> dict[int, Roundoff] | dict[int, list[Roundoff]]:
    """`roundoff` of `comm.all_reduce` over real ranks, each of which gives its own layers.

    All ranks call it with the same arguments but `layers`, and get the same table: that of
    `roundoff`. The sums move by `spec.exchange` (`ring` stands for `hierarchical` where there are
    no groups, and the other way round); the contributions, for the reference, by an all-gather in
    binary32, one layer at a time.
    """
    return _table(Contributions.over(comm, layers), spec, group_sizes, per_layer)


@dataclass(frozen=True)
class Measurement:
    """One all-reduce held against its reference."""

    total: Roundoff
    """Of all layers together."""
    layers: list[Roundoff]
    """Of each layer."""
    draws: list[tuple[float, float]]
    """sum (h - l)^2 and sum h^2 over each of `DRAWS` blocks of the values: block b is the b-th part
    of every layer. Empty where there are fewer than 64 values."""

    @classmethod
    def of(cls, reference: list[npt.NDArray[np.float64]], sums: list[Any]) -> Measurement:
        """Of a reference and of what was reduced, layer by layer."""
        layers = [np.asarray(layer).reshape(-1) for layer in sums]
        draws = []
        if sum(layer.size for layer in layers) >= _LEAST_DRAW * DRAWS:
            parts = [
                (np.array_split(h, DRAWS), np.array_split(low, DRAWS))
                for h, low in zip(reference, layers, strict=True)
            ]
            for b in range(DRAWS):
                native = _core.roundoff(
                    _joined([h[b] for h, _ in parts], np.float64),
                    _joined([low[b] for _, low in parts], np.float32),
                )
                draws.append((native.error_squares, native.reference_squares))
        return cls(
            _measure(_joined(reference, np.float64), _joined(layers, np.float32)),
            [_measure(*pair) for pair in zip(reference, layers, strict=True)],
            draws,
        )

    @property
    def spread(self) -> float | None:
        """The standard error of `total.relative_rms` (see `recommend`); None without draws."""
        return _standard_error(self._left_out()) if self.draws else None

    def _left_out(self) -> npt.NDArray[np.float64]:
        """The relative RMS without each of the draws in turn."""
        errors, references = np.array(self.draws).T
        rest = ~np.eye(DRAWS, dtype=bool)
        above, below = (np.array([x[keep].sum() for keep in rest]) for x in (errors, references))
        shares = np.divide(above, below, out=np.zeros(DRAWS), where=below > 0)
        return np.asarray(np.sqrt(shares), np.float64)


class Contributions:
    """What all ranks give to an all-reduce, to be measured with any number of specs: the reference
    is summed once.

    >>> given = Contributions([[np.float32([1.0])], [np.float32([0.0625])]])
    >>> given.measure(ReduceSpec("e4m3"), 2).total.count
    1
    """

    def __init__(self, per_rank: PerRank) -> None:
        """`per_rank`: as for `simulate_all_reduce`."""
        source = Source(per_rank)
        self.world = source.world
        self.sizes = source.sizes
        self._sum: Callable[[], list[npt.NDArray[np.float64]]] = lambda: _reference(per_rank)
        self._reduce: Callable[[ReduceSpec], list[Any]] = lambda spec: simulate_all_reduce(
            per_rank, spec
        )
        self._references: dict[bool, list[npt.NDArray[np.float64]]] = {}

    @classmethod
    def over(cls, comm: Communicator, layers: Layers) -> Contributions:
        """The layers of this rank and of all others, which measure with the same arguments."""
        given = cls([layers])
        values: list[npt.NDArray[np.float32]] = []
        Source([layers]).visit(0, lambda _, layer: values.append(layer))
        given.world = comm.size
        given._sum = lambda: _gathered_reference(comm, values)
        given._reduce = lambda spec: comm.all_reduce(values, spec)
        return given

    def measure(self, spec: ReduceSpec, group_size: int) -> Measurement:
        """What the all-reduce of `spec` loses with that group size; W stands for no groups.

        Raises ValueError for a group size that is not 1…W, TypeError for another spec.
        """
        check_spec(spec)
        grouped = _grouped(spec, _group_size(group_size, self.world), self.world)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StallWarning)  # what stalls is what is measured
            return Measurement.of(self._reference(spec.average), self._reduce(grouped))

    def _reference(self, average: bool) -> list[npt.NDArray[np.float64]]:
        if average not in self._references:
            sums = self._references[False] if average and self._references else self._sum()
            self._references[average] = [self._mean(layer) for layer in sums] if average else sums
        return self._references[average]

    def _mean(self, total: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        mean = total.copy()
        _core.divide_reference(mean, self.world)
        return mean


def _table(
    given: Contributions, spec: ReduceSpec, group_sizes: Sequence[int], per_layer: bool
) -> dict[int, Any]:
    check_spec(spec)
    sizes = [_group_size(size, given.world) for size in group_sizes]
    found = {size: given.measure(spec, size) for size in sizes}
    return {size: one.layers if per_layer else one.total for size, one in found.items()}


# ---- what it costs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one rank moves in an all-reduce: what a communicator counts as its traffic."""

    steps: int
    """Rounds of messages, on the rank that has most: 2 (W - 1) for `owner` and `ring`, W - 1 for
    `gather`, 4 (k - 1) + 2 (ceil(W / k) - 1) for `hierarchical` with groups of k; 0 where there are
    no values."""
    bytes_sent: int
    """Of packed values."""
    bytes_received: int


def cost(
    spec: ReduceSpec,
    world: int,
    sizes: Sequence[int],
    rank: int = 0,
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Cost:
    """What rank `rank` of `world` moves in the all-reduce of layers of so many values each.

    Exact for the values alone: headers, the handshake and the exponents of APS come on top. Every
    piece of a layer in a message starts at a byte, so that formats whose codes are no whole bytes
    cost up to a byte more at each cut; `chunk` is the communicator's.

    Raises ValueError or TypeError.

    >>> cost(ReduceSpec("e4m3"), 4, [1000])
    Cost(steps=6, bytes_sent=1500, bytes_received=1500)
    >>> spec = ReduceSpec("e4m3", order="ring", exchange="hierarchical", group_size=16)
    >>> cost(spec, 256, [1000]).steps
    90
    """
    check_spec(spec)
    native = _core.cost(
        spec._native(),
        tensors.integer("world", world),
        tensors.integer("rank", rank),
        [tensors.integer("size", size) for size in sizes],
        tensors.integer("chunk", chunk),
    )
    return Cost(native.steps, native.bytes_sent, native.bytes_received)


def transfer_time(
    spec: ReduceSpec, world: int, sizes: Sequence[int], *, alpha: float, beta: float
) -> float:
    """Seconds that the messages of an all-reduce take in the alpha-beta model: its steps one after
    the other, all ranks at once, each `alpha` seconds and `beta` seconds a byte of its longest
    message. Casts and folds are taken to be hidden.

    >>> spec = ReduceSpec("e4m3")
    >>> round(1e6 * transfer_time(spec, 4, [1000], alpha=1e-6, beta=1e-9), 2)  # us
    7.5
    """
    check_spec(spec)
    return _core.time(
        spec._native(),
        tensors.integer("world", world),
        [tensors.integer("size", size) for size in sizes],
        float(alpha),
        float(beta),
    )


@dataclass(frozen=True)
class Choice:
    """One group size and exchange: what it loses and what it takes."""

    group_size: int
    roundoff: Roundoff
    steps: int
    bytes_sent: int
    """By rank 0, a master, which has most to send."""
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
    """One for each group size, by `hierarchical` or `ring`."""
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
    sizes = [_group_size(size, given.world) for size in group_sizes]
    found = {size: given.measure(spec, size) for size in sizes}
    return choose(found, spec, given.world, given.sizes, alpha=alpha, beta=beta)


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
    sizes: Sequence[int],
    *,
    alpha: float,
    beta: float,
) -> Recommendation:
    """What `recommend` says of measurements by group size; `sizes`: values in each layer."""

    def choice(size: int, way: ReduceSpec) -> Choice:
        took = cost(way, world, sizes)
        seconds = transfer_time(way, world, sizes, alpha=alpha, beta=beta)
        one = measured[size]
        return Choice(
            size, one.total, took.steps, took.bytes_sent, seconds, way.exchange, one.spread
        )

    def named(figure: Callable[[Choice], float]) -> Choice:
        return _least(front, measured, figure)

    hops = [choice(size, _moved(spec, size, world)) for size in measured]
    plain = dataclasses.replace(spec, exchange="owner", group_size=None)
    owner = [choice(size, plain) for size in measured]
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
        return more <= _SURE * _standard_error(a._left_out() * mine - b._left_out() * least)

    return min(filter(as_good, sound), key=lambda one: one.seconds)


def _standard_error(left_out: npt.NDArray[np.float64]) -> float:
    """The jackknife's, of a figure that is `left_out[b]` without block b."""
    return float(np.sqrt((DRAWS - 1) / DRAWS * np.square(left_out - left_out.mean()).sum()))


# ---- helpers -------------------------------------------------------------------------------------


def _grouped(spec: ReduceSpec, size: int, world: int) -> ReduceSpec:
    """The spec with that group size; W means no groups. What hops around a ring stays what does."""
    exchange = spec.exchange
    if exchange in ("ring", "hierarchical"):
        exchange = "ring" if size == world else "hierarchical"
    return dataclasses.replace(spec, group_size=None if size == world else size, exchange=exchange)


def _moved(spec: ReduceSpec, size: int, world: int) -> ReduceSpec:
    """The spec whose messages hop: around one ring of all ranks, or around one of masters."""
    grouped = _grouped(dataclasses.replace(spec, exchange="owner"), size, world)
    exchange = "ring" if size == world else "hierarchical"
    return dataclasses.replace(grouped, exchange=exchange)


def _joined(parts: list[Any], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _group_size(size: Any, world: int) -> int:
    number = tensors.integer("group size", size)
    if not 1 <= number <= world:
        raise ValueError(f"a group size must be 1…{world} (the number of ranks), got {number}")
    return number


def _reference(per_rank: PerRank) -> list[npt.NDArray[np.float64]]:
    source = Source(per_rank)
    sums = [np.zeros(size) for size in source.sizes]

    def add(index: int, layer: npt.NDArray[np.float32]) -> None:
        _core.add_to_reference(layer, sums[index])

    for rank in range(source.world):
        source.visit(rank, add)
    return sums


def _gathered_reference(
    comm: Communicator, layers: list[npt.NDArray[np.float32]]
) -> list[npt.NDArray[np.float64]]:
    sums = []
    for layer in layers:
        total = np.zeros(layer.size)
        for (contribution,) in comm.all_gather([layer], "fp32"):
            _core.add_to_reference(contribution, total)
        sums.append(total)
    return sums


def _measure(reference: npt.NDArray[np.float64], value: npt.NDArray[np.float32]) -> Roundoff:
    native = _core.roundoff(reference, value)
    return Roundoff(
        native.error,
        native.relative_rms,
        native.count,
        native.zero_references,
        native.non_finite,
    )
