# SPDX-License-Identifier: Apache-2.0
"""Measures what a reduction loses, and counts what it costs: round-off, messages and modelled time
by group size."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
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
    world = len(per_rank)
    sizes = [_group_size(size, world) for size in group_sizes]
    reference = _reference(per_rank, spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StallWarning)  # what stalls is what is measured
        return {
            size: _compared(
                reference, simulate_all_reduce(per_rank, _grouped(spec, size, world)), per_layer
            )
            for size in sizes
        }


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
    sizes = [_group_size(size, comm.size) for size in group_sizes]
    own = Source([layers])
    values: list[npt.NDArray[np.float32]] = []
    own.visit(0, lambda _, layer: values.append(layer))
    reference = []
    for layer in values:
        total = np.zeros(layer.size)
        for (contribution,) in comm.all_gather([layer], "fp32"):
            _core.add_to_reference(contribution, total)
        if spec.average:
            _core.divide_reference(total, comm.size)
        reference.append(total)
    return {
        size: _compared(
            reference, comm.all_reduce(values, _grouped(spec, size, comm.size)), per_layer
        )
        for size in sizes
    }


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
    """One group size: what it loses and what it takes."""

    group_size: int
    roundoff: Roundoff
    steps: int
    bytes_sent: int
    """By rank 0, a master, which has most to send."""
    seconds: float
    """In the alpha-beta model."""


@dataclass(frozen=True)
class Recommendation:
    """Which group size to take."""

    choices: list[Choice]
    by_error: int
    """The group size of the least error (fewest results that are not finite, then Eq. 5)."""
    by_time: int
    """The group size of the least modelled time."""
    compromise: int
    """The group size of the least product of error and time, among those with as few results that
    are not finite as any: nothing else is better in one by a larger factor than it is worse in the
    other."""
    owner_seconds: float
    """What exchange `owner` takes in the same model, whatever the group size: the same bits."""


def recommend(
    per_rank: PerRank,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    alpha: float,
    beta: float,
) -> Recommendation:
    """The group size to take, by round-off (see `roundoff`) and by modelled time.

    The time is that of exchange `hierarchical`, for a group size of W of `ring`, with `alpha`
    seconds a step and `beta` seconds a byte (see `transfer_time`). These sum in order `ring`, so
    the spec must. Of group sizes that are equal in what counts the first is taken.

    Raises ValueError for another order, for no group sizes and as `roundoff` does.

    >>> rng = np.random.default_rng(0)
    >>> ranks = [[rng.random(500, np.float32)] for _ in range(16)]
    >>> spec = ReduceSpec("e5m2", order="ring", aps=True)
    >>> best = recommend(ranks, spec, [2, 4, 16], alpha=1e-5, beta=1e-9)
    >>> best.by_error, best.by_time, [choice.steps for choice in best.choices]
    (4, 2, [18, 18, 30])
    """
    _check_order(spec, group_sizes)
    table = roundoff(per_rank, spec, group_sizes)
    return _recommendation(table, spec, len(per_rank), Source(per_rank).sizes, alpha, beta)


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
    _check_order(spec, group_sizes)
    table = roundoff_over(comm, layers, spec, group_sizes)
    return _recommendation(table, spec, comm.size, Source([layers]).sizes, alpha, beta)


def _check_order(spec: ReduceSpec, group_sizes: Sequence[int]) -> None:
    check_spec(spec)
    if spec.order != "ring":
        raise ValueError(
            "the exchanges ring and hierarchical, whose time is modelled, sum in order 'ring': "
            f"the spec's order must be that, got {spec.order!r}"
        )
    if len(group_sizes) == 0:
        raise ValueError("at least one group size is needed, got none")


def _recommendation(
    table: dict[int, Roundoff],
    spec: ReduceSpec,
    world: int,
    sizes: Sequence[int],
    alpha: float,
    beta: float,
) -> Recommendation:
    choices = []
    for size, lost in table.items():
        way = _moved(spec, size, world)
        took = cost(way, world, sizes)
        seconds = transfer_time(way, world, sizes, alpha=alpha, beta=beta)
        choices.append(Choice(size, lost, took.steps, took.bytes_sent, seconds))
    fewest = min(choice.roundoff.non_finite for choice in choices)
    sound = [choice for choice in choices if choice.roundoff.non_finite == fewest]
    owner = dataclasses.replace(spec, exchange="owner", group_size=None)
    return Recommendation(
        choices,
        by_error=min(sound, key=lambda choice: choice.roundoff.error).group_size,
        by_time=min(choices, key=lambda choice: choice.seconds).group_size,
        compromise=min(sound, key=lambda choice: choice.roundoff.error * choice.seconds).group_size,
        owner_seconds=transfer_time(owner, world, sizes, alpha=alpha, beta=beta),
    )


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


def _compared(reference: list[npt.NDArray[np.float64]], sums: list[Any], per_layer: bool) -> Any:
    layers = [np.asarray(layer).reshape(-1) for layer in sums]
    if per_layer:
        return [_measure(*pair) for pair in zip(reference, layers, strict=True)]
    return _measure(_joined(reference, np.float64), _joined(layers, np.float32))


def _joined(parts: list[Any], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _group_size(size: Any, world: int) -> int:
    number = tensors.integer("group size", size)
    if not 1 <= number <= world:
        raise ValueError(f"a group size must be 1…{world} (the number of ranks), got {number}")
    return number


def _reference(per_rank: PerRank, spec: ReduceSpec) -> list[npt.NDArray[np.float64]]:
    source = Source(per_rank)
    sums = [np.zeros(size) for size in source.sizes]

    def add(index: int, layer: npt.NDArray[np.float32]) -> None:
        _core.add_to_reference(layer, sums[index])

    for rank in range(source.world):
        source.visit(rank, add)
    if spec.average:
        for total in sums:
            _core.divide_reference(total, source.world)
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
