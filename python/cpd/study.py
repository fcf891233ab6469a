# SPDX-License-Identifier: Apache-2.0
"""Measures what a reduction loses: round-off by group size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from cpd import _core, tensors
from cpd.reduce import PerRank, ReduceSpec, Source, simulate_all_reduce


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
    table: dict[int, Any] = {}
    for size in sizes:
        grouped = dataclasses.replace(spec, group_size=None if size == world else size)
        sums = simulate_all_reduce(per_rank, grouped)
        layers = [np.asarray(layer).reshape(-1) for layer in sums]
        if per_layer:
            table[size] = [_measure(*pair) for pair in zip(reference, layers, strict=True)]
        else:
            table[size] = _measure(_joined(reference, np.float64), _joined(layers, np.float32))
    return table


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
        sums[index] += layer

    for rank in range(source.world):
        source.visit(rank, add)
    if spec.average:
        for total in sums:
            total /= source.world
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
