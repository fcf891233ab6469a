# SPDX-License-Identifier: Apache-2.0
"""Measures the round-off of a reduction, by group size."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.comm.communicator import Communicator
from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import ReduceSpec, StallWarning, check_spec
from cpd.comm.virtual import Source, simulate_all_reduce
from cpd.compress.states import States
from cpd.numeric.checked import checked
from cpd.numeric.numbers import integer

DRAWS = 16
"""Blocks of values from whose differences an error's uncertainty is estimated."""
ORDERS = 8
"""Random orders of the ranks over which a recommendation takes errors."""
STEPS = 16
"""All-reduces of the same layers over which codecs with error feedback are measured."""
_LEAST_DRAW = 4  # values in a block


@dataclass(frozen=True)
class Roundoff:
    """Round-off of a reduced value l against its binary64 reference h."""

    error: float
    """Eq. 5 of the APS paper: the mean of |(h - l) / h| over h != 0."""
    relative_rms: float
    """sqrt(sum (h - l)^2 / sum h^2), zero references included."""
    count: int
    """The number of values."""
    zero_references: int
    """Values whose reference is 0; they are not in `error`."""
    non_finite: int
    """Values where l is not finite, which both means leave out."""


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
@checked
def roundoff(
    per_rank: PerRank, spec: ReduceSpec, group_sizes: Sequence[int], *, per_layer: bool = False
) -> dict[int, Roundoff] | dict[int, list[Roundoff]]:
    """The round-off of `simulate_all_reduce(per_rank, spec)` for each group size.

    The reference is the sum, in binary64 and rank ascending, of the contributions before cast and
    scaling (divided by W where `spec.average`). A group size of W = len(per_rank) means no groups;
    `spec.group_size` is not used. The result is over all layers together, or with `per_layer=True`
    a list with one `Roundoff` per layer. For a codec that feeds errors back (`one_bit`, `top_k`,
    `feedback …`) it is that of the mean of `STEPS` = 16 steps with the same layers. A function for
    a rank is called again for each group size.

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
@checked
def roundoff_over(
    comm: Communicator,
    layers: Layers,
    spec: ReduceSpec,
    group_sizes: Sequence[int],
    *,
    per_layer: bool = False,
) -> dict[int, Roundoff] | dict[int, list[Roundoff]]:
    """`roundoff` of `comm.all_reduce` over real ranks, each with its own layers.

    All ranks call it with the same arguments but `layers`, and get the same table, that of
    `roundoff`. The sums are exchanged by `spec.exchange` (`ring` means `hierarchical` where there
    are groups, and `hierarchical` `ring` where there are none); the contributions, for the
    reference, by an all-gather in binary32, one layer at a time.
    """
    return _table(Contributions.over(comm, layers), spec, group_sizes, per_layer)


@dataclass(frozen=True)
class Measurement:
    """One all-reduce compared with its reference."""

    total: Roundoff
    """The round-off of all layers together."""
    layers: list[Roundoff]
    """The round-off of each layer."""
    draws: list[tuple[float, float]]
    """sum (h - l)^2 and sum h^2 over each of `DRAWS` blocks of the values, among which every layer
    is divided as evenly as possible. Empty where there are fewer than 64 values."""
    orders: list[Measurement] = dataclasses.field(default_factory=list)
    """The measurements in `ORDERS` random orders of the ranks, where these were made."""

    @property
    def error(self) -> float:
        """The relative RMS, over all orders that were measured."""
        errors, references = self.squares()
        return float(np.sqrt(errors.sum() / (len(errors) * references.sum() or 1.0)))

    @property
    def non_finite(self) -> int:
        """The number of results that are not finite, over all orders that were measured."""
        return sum(one.total.non_finite for one in self.orders or [self])

    def squares(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """sum (h - l)^2, [order, block], and sum h^2, [block]; one block where there are no
        draws."""
        each = self.orders or [self]
        if not self.draws:
            errors = np.array([[one.total.relative_rms**2] for one in each])
            return errors, np.ones(1)
        squares = np.array([one.draws for one in each])
        return squares[:, :, 0], squares[0, :, 1]

    @classmethod
    def of(cls, reference: list[npt.NDArray[np.float64]], sums: list[Any]) -> Measurement:
        """The measurement of reduced layers against their reference."""
        layers = [np.asarray(layer).reshape(-1) for layer in sums]
        enough = sum(layer.size for layer in layers) >= _LEAST_DRAW * DRAWS
        return cls(
            _measure(_joined(reference, np.float64), _joined(layers, np.float32)),
            [_measure(*pair) for pair in zip(reference, layers, strict=True)],
            _draws(reference, layers) if enough else [],
        )

    @property
    def spread(self) -> float | None:
        """The standard error of `total.relative_rms` (see `recommend`); None without draws."""
        return standard_error(self._left_out()) if self.draws else None

    def _left_out(self) -> npt.NDArray[np.float64]:
        """The relative RMS without each of the draws in turn."""
        errors, references = np.array(self.draws).T
        rest = ~np.eye(DRAWS, dtype=bool)
        above, below = (np.array([x[keep].sum() for keep in rest]) for x in (errors, references))
        shares = np.divide(above, below, out=np.zeros(DRAWS), where=below > 0)
        return np.asarray(np.sqrt(shares), np.float64)


@checked
class Contributions:
    """All ranks' contributions to an all-reduce, to be measured with any number of specs: the
    reference is summed once. `world` is the number of ranks W, `shapes` are the layers' shapes,
    `sizes` their numbers of values, `largest` their largest magnitudes, of all ranks.

    >>> given = Contributions([[np.float32([1.0])], [np.float32([0.0625])]])
    >>> given.measure(ReduceSpec("e4m3"), 2).total.count
    1
    """

    def __init__(self, per_rank: PerRank) -> None:
        """`per_rank`: as for `simulate_all_reduce`."""
        source = Source(per_rank)
        self._per_rank: PerRank | None = per_rank
        self.world = source.world
        self.sizes = source.sizes
        self.shapes = source.shapes
        self._largest: Callable[[], list[float]] = lambda: _largest_of(per_rank)
        self._sum: Callable[[ReduceSpec], list[npt.NDArray[np.float64]]] = lambda spec: _reference(
            per_rank, spec
        )
        self._reduce: Callable[[ReduceSpec, States], list[Any]] = lambda spec, states: (
            simulate_all_reduce(per_rank, spec, states=states)
        )
        self._known_largest: list[float] | None = None
        self._references: dict[bool, list[npt.NDArray[np.float64]]] = {}

    @classmethod
    def over(cls, comm: Communicator, layers: Layers) -> Contributions:
        """The contributions of this rank and of all others, which call the methods with the same
        arguments."""
        given = cls([layers])
        values: list[npt.NDArray[np.float32]] = []
        Source([layers]).visit(0, lambda _, layer: values.append(layer))
        given.world = comm.size
        given._per_rank = None
        shaped = [value.reshape(shape) for value, shape in zip(values, given.shapes, strict=True)]
        given._largest = lambda: _largest_over(comm, layers)
        given._sum = lambda spec: _gathered_reference(comm, values, spec)
        given._reduce = lambda spec, states: comm.all_reduce(shaped, spec, states=states)
        return given

    @property
    def largest(self) -> list[float]:
        """The largest magnitude in each layer, of all ranks; NaN where one is. Between ranks all
        must read it, as the first time they reduce."""
        # No cached_property: Python 3.11 lets one thread at a time compute those of a class, and
        # ranks that are threads wait for each other here.
        if self._known_largest is None:
            self._known_largest = self._largest()
        return self._known_largest

    def measure(self, spec: ReduceSpec, group_size: int) -> Measurement:
        """The round-off of the all-reduce of `spec` with that group size; W means no groups.

        Raises ValueError for a group size that is not 1…W, TypeError for other objects.
        """
        check_spec(spec)
        chosen = grouped(spec, group_size_of(group_size, self.world), self.world)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StallWarning)  # stalling sums are measured too
            return Measurement.of(self._reference(spec), self._sums(chosen))

    def measure_orders(self, spec: ReduceSpec, group_size: int) -> Measurement:
        """`measure`, also in `ORDERS` random orders of the ranks, which do not depend on the
        argument's order; between processes the ranks have one order."""
        one = self.measure(spec, group_size)
        each = [given.measure(spec, group_size) for given in self._in_orders]
        return dataclasses.replace(one, orders=each)

    @functools.cached_property
    def _in_orders(self) -> list[Contributions]:
        if self._per_rank is None:
            return []
        digests = [_digest(self._per_rank, rank) for rank in range(self.world)]
        ranks = sorted(range(self.world), key=digests.__getitem__)
        rng = np.random.default_rng(0)
        return [
            Contributions([self._per_rank[ranks[i]] for i in rng.permutation(self.world)])
            for _ in range(ORDERS)
        ]

    def _sums(self, spec: ReduceSpec) -> list[Any]:
        """The reduced layers; for a codec that feeds errors back the mean of `STEPS` steps with the
        same layers, since the next steps send what one step leaves out."""
        states = States()
        if not _feeds_back(spec):
            return self._reduce(spec, states)
        total = [np.zeros(size) for size in self.sizes]
        for step in range(spec.step, spec.step + STEPS):
            layers = self._reduce(dataclasses.replace(spec, step=step), states)
            for one, layer in zip(total, layers, strict=True):
                one += np.asarray(layer).reshape(-1)
        return [(one / STEPS).astype(np.float32) for one in total]

    def _reference(self, spec: ReduceSpec) -> list[npt.NDArray[np.float64]]:
        if spec.average not in self._references:
            self._references[spec.average] = self._sum(spec)
        return self._references[spec.average]


def _table(
    given: Contributions, spec: ReduceSpec, group_sizes: Sequence[int], per_layer: bool
) -> dict[int, Any]:
    check_spec(spec)
    sizes = [group_size_of(size, given.world) for size in group_sizes]
    found = {size: given.measure(spec, size) for size in sizes}
    return {size: one.layers if per_layer else one.total for size, one in found.items()}


def standard_error(left_out: npt.NDArray[np.float64]) -> float:
    """The jackknife's standard error of a number that is `left_out[b]` without block b."""
    return float(np.sqrt((DRAWS - 1) / DRAWS * np.square(left_out - left_out.mean()).sum()))


# ---- helpers -------------------------------------------------------------------------------------


def grouped(spec: ReduceSpec, size: int, world: int) -> ReduceSpec:
    """The spec with that group size; W means no groups. What hops around a ring keeps doing so."""
    exchange = spec.exchange
    if exchange in ("ring", "hierarchical"):
        exchange = "ring" if size == world else "hierarchical"
    return dataclasses.replace(spec, group_size=None if size == world else size, exchange=exchange)


def _draws(
    reference: list[npt.NDArray[np.float64]], layers: list[npt.NDArray[np.float32]]
) -> list[tuple[float, float]]:
    high: list[list[Any]] = [[] for _ in range(DRAWS)]
    low: list[list[Any]] = [[] for _ in range(DRAWS)]
    first = 0  # the block after the last one that got a value too many
    for h, layer in zip(reference, layers, strict=True):
        parts = zip(np.array_split(h, DRAWS), np.array_split(layer, DRAWS), strict=True)
        for b, (above, below) in enumerate(parts):
            high[(first + b) % DRAWS].append(above)
            low[(first + b) % DRAWS].append(below)
        first = (first + layer.size) % DRAWS
    found = [
        _core.roundoff(_joined(h, np.float64), _joined(layer, np.float32))
        for h, layer in zip(high, low, strict=True)
    ]
    return [(native.error_squares, native.reference_squares) for native in found]


def _joined(parts: list[Any], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def group_size_of(size: Any, world: int) -> int:
    number = integer("group size", size)
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


def _feeds_back(spec: ReduceSpec) -> bool:
    """Whether the codec adds its errors to the next call's values."""
    words = [] if spec.wire is None else spec.wire.name.split()
    return bool(words) and (
        words[0] in ("one_bit", "feedback") or (words[0] == "top_k" and "feedback=off" not in words)
    )


def _digest(per_rank: PerRank, rank: int) -> bytes:
    """The SHA-256 of a rank's layers."""
    digest = hashlib.sha256()
    Source([per_rank[rank]]).visit(0, lambda _, layer: digest.update(layer.tobytes()))
    return digest.digest()


def _largest_of(per_rank: PerRank) -> list[float]:
    source = Source(per_rank)
    largest = np.zeros(len(source.sizes), np.float32)

    def take(index: int, layer: npt.NDArray[np.float32]) -> None:
        largest[index] = np.maximum(largest[index], np.abs(layer).max(initial=0))

    for rank in range(source.world):
        source.visit(rank, take)
    return [float(one) for one in largest]


def _largest_over(comm: Communicator, layers: Layers) -> list[float]:
    own = np.array(_largest_of([layers]), np.float32)
    of_ranks = np.stack([ranks[0] for ranks in comm.all_gather([own], "fp32")])
    return [float(one) for one in of_ranks.max(axis=0)]


def _gathered_reference(
    comm: Communicator, values: list[npt.NDArray[np.float32]], spec: ReduceSpec
) -> list[npt.NDArray[np.float64]]:
    reference = []
    for layer in values:
        total = np.zeros(layer.size)
        for (contribution,) in comm.all_gather([layer], "fp32"):
            _core.add_to_reference(contribution, total)
        if spec.average:
            _core.divide_reference(total, comm.size)
        reference.append(total)
    return reference


def _measure(reference: npt.NDArray[np.float64], value: npt.NDArray[np.float32]) -> Roundoff:
    native = _core.roundoff(reference, value)
    return Roundoff(
        native.error,
        native.relative_rms,
        native.count,
        native.zero_references,
        native.non_finite,
    )
