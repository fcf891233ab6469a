# SPDX-License-Identifier: Apache-2.0
"""`roundoff`: measures the round-off of an all-reduce for each group size."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.comm.communicator import Communicator
from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import Reduce, as_reduce, seeded
from cpd.comm.virtual import Source, simulate_all_reduce
from cpd.compress.states import States
from cpd.numeric.checked import checked
from cpd.numeric.numbers import integer
from cpd.numeric.numbers import number as whole_number
from cpd.numeric.warned import PrecisionWarning

DRAWS = 16
"""The number of blocks into which values are divided to estimate the uncertainty of an error."""
ORDERS = 8
"""The number of random orders of the ranks over which `recommend` averages errors."""
STEPS = 16
"""The number of all-reduces of the same tensors whose mean is measured for a codec with error
feedback.
"""
_LEAST_DRAW = 4  # the least number of values in a block, on average


@dataclass(frozen=True)
class Roundoff:
    """The round-off of results l of an all-reduce, compared with binary64 references h.

    Attributes:
        error: the mean of |(h - l) / h| over all h != 0 (Eq. 5 of the APS paper).
        relative_rms: sqrt(sum (h - l)^2 / sum h^2), including references h = 0.
        count: the number of values.
        zero_references: the number of values with the reference 0, which `error` leaves out.
        non_finite: the number of results l that are not finite. `error` and `relative_rms` leave
            them out.

    If no l is finite, `error` and `relative_rms` are infinite.
    """

    error: float
    relative_rms: float
    count: int
    zero_references: int
    non_finite: int


@overload
def roundoff(
    ranks: PerRank | Layers,
    spec: Reduce | str,
    group_sizes: Sequence[int],
    *,
    comm: Communicator | None = None,
    per_tensor: Literal[False] = False,
    seed: int = 0,
) -> dict[int, Roundoff]: ...
@overload
def roundoff(
    ranks: PerRank | Layers,
    spec: Reduce | str,
    group_sizes: Sequence[int],
    *,
    comm: Communicator | None = None,
    per_tensor: Literal[True],
    seed: int = 0,
) -> dict[int, list[Roundoff]]: ...
@checked
def roundoff(
    ranks: PerRank | Layers,
    spec: Reduce | str,
    group_sizes: Sequence[int],
    *,
    comm: Communicator | None = None,
    per_tensor: bool = False,
    seed: int = 0,
) -> dict[int, Roundoff] | dict[int, list[Roundoff]]:
    """Measures the round-off of an all-reduce for each group size.

    The reference is the sum of the ranks' tensors, before cast and scaling, in binary64 and in
    ascending order of ranks. It is divided by the number of ranks if `spec.average`. For a codec
    with error feedback (`one_bit`, `top_k`, `feedback …`), the mean of the sums of 16 steps with
    the same tensors is compared with the reference.

    With `comm`, each rank calls the function with its own tensors; the other arguments must be
    equal. All ranks receive the result that virtual ranks would give. The all-reduce uses
    `spec.exchange`, except that `ring` is replaced by `hierarchical` if there are groups, and
    `hierarchical` by `ring` without groups. For the reference, the tensors are gathered in
    binary32, one at a time.

    Args:
        ranks: the tensors of each rank, as for `cpd.simulate_all_reduce`. If an item is a function,
            it is called again for each group size. With `comm`: the list of this rank's tensors.
        spec: the all-reduce, or its text; its `group_size` is ignored.
        group_sizes: the group sizes, 1…W for W ranks; W means no groups.
        comm: the communicator of the ranks, whose `all_reduce` is measured. Default None: virtual
            ranks and `cpd.simulate_all_reduce`.
        per_tensor: whether to measure each tensor separately; default False: all tensors together.
        seed: the seed of stochastic rounding; default 0.

    Returns:
        A dict from each group size to its `Roundoff`; with `per_tensor=True` to a list with one
        `Roundoff` for each tensor.

    Raises:
        ValueError: for a group size that is not 1…W, and for invalid arguments of the all-reduce.
        TypeError: for an argument of another type.

    >>> ranks = [[np.float32([1.0, 0.0])], [np.float32([0.0625, 0.0])]]
    >>> result = roundoff(ranks, "e4m3", group_sizes=[2])[2]
    >>> round(result.error, 4), result.count, result.zero_references
    (0.0588, 2, 1)
    """
    spec = as_reduce(spec)
    contributions = Contributions(ranks, comm, seed)
    sizes = [group_size_of(size, contributions.world) for size in group_sizes]
    measured = {size: contributions.measure(spec, size) for size in sizes}
    return {  # type: ignore[return-value]
        size: measurement.layers if per_tensor else measurement.total
        for size, measurement in measured.items()
    }


@dataclass(frozen=True)
class Measurement:
    """The result of an all-reduce, compared with its reference.

    Attributes:
        total: the round-off of all layers (tensors) together.
        layers: the round-off of each layer.
        draws: for each of `DRAWS` blocks of the values, sum (h - l)^2 and sum h^2 of results l and
            references h. Every layer is divided evenly among the blocks. Empty for fewer than 64
            values.
        orders: the measurements in `ORDERS` random orders of the ranks; empty if these were not
            measured.
    """

    total: Roundoff
    layers: list[Roundoff]
    draws: list[tuple[float, float]]
    orders: list[Measurement] = dataclasses.field(default_factory=list)

    @property
    def error(self) -> float:
        """The relative RMS over all orders of the ranks that were measured.

        Infinite if no result is finite.
        """
        if all(math.isinf(one.total.relative_rms) for one in self.orders or [self]):
            return math.inf
        errors, references = self.squares()
        return float(np.sqrt(errors.sum() / (len(errors) * references.sum() or 1.0)))

    @property
    def non_finite(self) -> int:
        """The number of results that are not finite, over all measured orders of the ranks."""
        return sum(measurement.total.non_finite for measurement in self.orders or [self])

    def squares(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns the sums of squared errors and of squared references, in blocks of the values.

        An error is h - l, of a reference h and a result l of the all-reduce.

        Returns:
            Two arrays. Element [o, b] of the first array is the sum of (h - l)^2 over block b, for
            measured order o of the ranks. Element [b] of the second array is the sum of h^2 over
            block b. For fewer than 64 values there is one block. Its errors are then divided by the
            references: the first array has squares of relative RMS errors, the second is 1.
        """
        measurements = self.orders or [self]
        if not self.draws:
            errors = [measurement.total.relative_rms for measurement in measurements]
            finite = [error if math.isfinite(error) else 0.0 for error in errors]  # as in blocks
            return np.square(finite)[:, None], np.ones(1)
        squares = np.array([measurement.draws for measurement in measurements])
        return squares[:, :, 0], squares[0, :, 1]

    @classmethod
    def of(cls, reference: list[npt.NDArray[np.float64]], sums: list[Any]) -> Measurement:
        """Compares the results of an all-reduce with their reference.

        Args:
            reference: the reference of each layer, binary64, one-dimensional.
            sums: the reduced layers, of any shape.

        Returns:
            The measurement, with `orders` empty.
        """
        layers = [np.asarray(layer).reshape(-1) for layer in sums]
        enough = sum(layer.size for layer in layers) >= _LEAST_DRAW * DRAWS
        return cls(
            _measure(_joined(reference, np.float64), _joined(layers, np.float32)),
            [_measure(*pair) for pair in zip(reference, layers, strict=True)],
            _draws(reference, layers) if enough else [],
        )

    @property
    def spread(self) -> float | None:
        """The jackknife's standard error of `total.relative_rms`; None if `draws` is empty."""
        return standard_error(self._left_out()) if self.draws else None

    def _left_out(self) -> npt.NDArray[np.float64]:
        """Returns the jackknife's estimates: entry b is the relative RMS error without block b."""
        errors, references = np.array(self.draws).T
        rest = ~np.eye(DRAWS, dtype=bool)
        above, below = (np.array([x[keep].sum() for keep in rest]) for x in (errors, references))
        shares = np.divide(above, below, out=np.zeros(DRAWS), where=below > 0)
        return np.asarray(np.sqrt(shares), np.float64)


class Contributions:
    """All ranks' tensors, on which the round-off of one or more all-reduces is measured.

    The binary64 reference sum is computed once for all of them. `world` is the number of ranks W,
    `shapes` are the tensors' shapes, and `sizes` their numbers of values.

    Args:
        ranks: the tensors of each rank, as for `cpd.simulate_all_reduce`; with `comm` the list of
            this rank's tensors.
        comm: the communicator of the ranks. All ranks must call the same methods with the same
            arguments. Default None: virtual ranks.
        seed: the seed of stochastic rounding; default 0.

    >>> given = Contributions([[np.float32([1.0])], [np.float32([0.0625])]])
    >>> given.measure(Reduce("e4m3"), 2).total.count
    1
    """

    def __init__(
        self, ranks: PerRank | Layers, comm: Communicator | None = None, seed: int = 0
    ) -> None:
        self._comm, self._seed = comm, whole_number("seed", seed)
        ranks_or_layers: Any = ranks
        self._ranks = ranks_or_layers if comm is None else [ranks_or_layers]
        source = Source(self._ranks)
        self.world = source.world if comm is None else comm.size
        self.sizes = source.sizes
        self.shapes = source.shapes
        self._known_largest: list[float] | None = None
        self._references: dict[bool, list[npt.NDArray[np.float64]]] = {}
        if comm is not None:
            self._values: list[npt.NDArray[np.float32]] = []
            source.visit(0, lambda _, tensor: self._values.append(tensor))

    @property
    def largest(self) -> list[float]:
        """The largest magnitude in each tensor, over all ranks; NaN if a magnitude is NaN.

        With `comm`, all ranks must read this property, because its first read sends messages.
        """
        # This is not a cached_property: in Python 3.11 its lock lets only one thread compute the
        # property of a class. Ranks that are threads would then wait for each other for ever.
        if self._known_largest is None:
            largest = _largest_of(self._ranks)
            if self._comm is not None:
                of_ranks = self._comm.all_gather([np.array(largest, np.float32)], "fp32")
                largest = np.stack([magnitudes for (magnitudes,) in of_ranks]).max(axis=0)
            self._known_largest = [float(magnitude) for magnitude in largest]
        return self._known_largest

    def measure(self, spec: Reduce, group_size: int) -> Measurement:
        """Measures the all-reduce of `spec` with a group size, 1…W, where W means no groups.

        The `group_size` of `spec` is ignored. Raises ValueError unless `group_size` is 1…W.
        """
        chosen = grouped(spec, group_size_of(group_size, self.world), self.world)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)  # sums that stall are measured, too
            return Measurement.of(self._reference(spec.average), self._sums(chosen))

    def measure_orders(self, spec: Reduce, group_size: int) -> Measurement:
        """Measures as `measure` does, and also in `ORDERS` random orders of the ranks.

        The random orders depend on the ranks' tensors, not on the order of `ranks` in the
        constructor. With `comm`, only the order of the communicator's ranks is measured.
        """
        measurement = self.measure(spec, group_size)
        orders = [contributions.measure(spec, group_size) for contributions in self._in_orders]
        return dataclasses.replace(measurement, orders=orders)

    @functools.cached_property
    def _in_orders(self) -> list[Contributions]:
        if self._comm is not None:
            return []
        digests = [_digest(self._ranks, rank) for rank in range(self.world)]
        ranks = sorted(range(self.world), key=digests.__getitem__)
        rng = np.random.default_rng(0)
        return [
            Contributions(
                [self._ranks[ranks[i]] for i in rng.permutation(self.world)], None, self._seed
            )
            for _ in range(ORDERS)
        ]

    def _reduce(self, spec: Reduce, states: States, step: int = 0) -> list[Any]:
        if self._comm is None:
            return simulate_all_reduce(self._ranks, spec, seed=self._seed, step=step, states=states)
        shaped = [x.reshape(shape) for x, shape in zip(self._values, self.shapes, strict=True)]
        return self._comm.all_reduce(shaped, seeded(spec, self._seed), step=step, states=states)

    def _sums(self, spec: Reduce) -> list[Any]:
        """Returns the reduced tensors.

        For a codec with error feedback, returns the mean of `STEPS` steps with the same tensors:
        later steps send the errors of earlier steps.
        """
        states = States()
        if not feeds_back(spec):
            return self._reduce(spec, states)
        total = [np.zeros(size) for size in self.sizes]
        for step in range(STEPS):
            layers = self._reduce(spec, states, step)
            for layer_sum, layer in zip(total, layers, strict=True):
                layer_sum += np.asarray(layer).reshape(-1)
        return [(layer_sum / STEPS).astype(np.float32) for layer_sum in total]

    def _reference(self, average: bool) -> list[npt.NDArray[np.float64]]:
        if average not in self._references:
            totals = [np.zeros(size) for size in self.sizes]
            self._add_up(totals)
            for total in totals if average else ():
                _core.divide_reference(total, self.world)
            self._references[average] = totals
        return self._references[average]

    def _add_up(self, totals: list[npt.NDArray[np.float64]]) -> None:
        """Adds all ranks' tensors to `totals`, one total a tensor, in ascending order of ranks."""
        if self._comm is None:
            source = Source(self._ranks)
            for rank in range(self.world):
                source.visit(rank, lambda i, tensor: _core.add_to_reference(tensor, totals[i]))
            return
        for total, values in zip(totals, self._values, strict=True):
            for (contribution,) in self._comm.all_gather([values], "fp32"):
                _core.add_to_reference(contribution, total)


def standard_error(left_out: npt.NDArray[np.float64]) -> float:
    """Returns the jackknife's standard error; `left_out[b]` is the statistic without block b."""
    return float(np.sqrt((DRAWS - 1) / DRAWS * np.square(left_out - left_out.mean()).sum()))


# ---- helpers -------------------------------------------------------------------------------------


def grouped(spec: Reduce, size: int, world: int) -> Reduce:
    """Returns the spec with a group size; `world` means no groups.

    The exchanges `ring` and `hierarchical` replace each other as needed: `ring` works only without
    groups, `hierarchical` only with groups.
    """
    exchange = spec.exchange
    if exchange in ("ring", "hierarchical"):
        exchange = "ring" if size == world else "hierarchical"
    return spec.replace(group_size=None if size == world else size, exchange=exchange)


def _draws(
    reference: list[npt.NDArray[np.float64]], layers: list[npt.NDArray[np.float32]]
) -> list[tuple[float, float]]:
    high: list[list[Any]] = [[] for _ in range(DRAWS)]
    low: list[list[Any]] = [[] for _ in range(DRAWS)]
    first = 0  # the block that receives the next layer's first extra value
    for h, layer in zip(reference, layers, strict=True):
        parts = zip(np.array_split(h, DRAWS), np.array_split(layer, DRAWS), strict=True)
        for b, (above, below) in enumerate(parts):
            high[(first + b) % DRAWS].append(above)
            low[(first + b) % DRAWS].append(below)
        first = (first + layer.size) % DRAWS
    roundoffs = [
        _core.roundoff(_joined(h, np.float64), _joined(layer, np.float32))
        for h, layer in zip(high, low, strict=True)
    ]
    return [(native.error_squares, native.reference_squares) for native in roundoffs]


def _joined(parts: list[Any], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def group_size_of(size: Any, world: int) -> int:
    """Returns the group size as an int; raises ValueError unless it is 1…world."""
    number = integer("group size", size)
    if not 1 <= number <= world:
        raise ValueError(f"a group size must be 1…{world} (the number of ranks), got {number}")
    return number


def feeds_back(spec: Reduce) -> bool:
    """Returns whether the codec has error feedback: it adds its errors to the next call's values.

    The round-off of such a codec is measured on the mean of `STEPS` sums.
    """
    words = [] if spec.format is not None else spec.codec.text.split()
    return bool(words) and (
        words[0] in ("one_bit", "feedback") or (words[0] == "top_k" and "feedback=off" not in words)
    )


def _digest(ranks: Any, rank: int) -> bytes:
    """Returns the SHA-256 of a rank's tensors."""
    digest = hashlib.sha256()
    Source([ranks[rank]]).visit(0, lambda _, tensor: digest.update(tensor.tobytes()))
    return digest.digest()


def _largest_of(ranks: Any) -> npt.NDArray[np.float32]:
    """Returns the largest magnitude in each tensor, over all ranks."""
    source = Source(ranks)
    largest = np.zeros(len(source.sizes), np.float32)

    def take(index: int, tensor: npt.NDArray[np.float32]) -> None:
        largest[index] = np.maximum(largest[index], np.abs(tensor).max(initial=0))

    for rank in range(source.world):
        source.visit(rank, take)
    return largest


def _measure(reference: npt.NDArray[np.float64], value: npt.NDArray[np.float32]) -> Roundoff:
    native = _core.roundoff(reference, value)
    nothing_is_left = 0 < native.count == native.non_finite
    return Roundoff(
        math.inf if nothing_is_left else native.error,
        math.inf if nothing_is_left else native.relative_rms,
        native.count,
        native.zero_references,
        native.non_finite,
    )
