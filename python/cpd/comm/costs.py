# SPDX-License-Identifier: Apache-2.0
"""Counts what ranks send in an all-reduce, without values: `counted`, `cost_of_step`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cpd import _core
from cpd.comm.layers import row_layouts
from cpd.comm.schedule import Schedule
from cpd.comm.spec import Reduce
from cpd.numeric.numbers import int32, int64

DEFAULT_CHUNK = 1 << 20
"""The default number of values that a communicator processes at once."""

Sizes: TypeAlias = "Sequence[int | Sequence[int]]"
"""Each layer's shape, or the number of values of a vector."""
Largest: TypeAlias = "float | Sequence[float] | None"
"""The largest magnitude in all layers of all ranks, or in each layer; None: not known."""


@dataclass(frozen=True)
class Cost:
    """The traffic of one rank in an all-reduce, as a communicator counts it.

    Attributes:
        steps: the rounds of messages, of the rank with most: 2 (W - 1) for `owner` and `ring`, W -
            1 for `gather`, 4 (k - 1) + 2 (ceil(W / k) - 1) for `hierarchical` with groups of k; 0
            without values.
        bytes_sent: the bytes of encoded values sent; an upper bound if `exact` is false.
        bytes_received: the bytes of encoded values received; an upper bound if `exact` is false.
        exact: whether the bytes are the same for all values, as far as these are known; default
            True. If not, `cpd.study.cost(…, ranks=…)` counts the bytes of actual values.
    """

    steps: int
    bytes_sent: int
    bytes_received: int
    exact: bool = True


def counted(
    spec: Reduce,
    world: int,
    layers: tuple[list[int], list[int]],
    numbers: list[int],
    rank: int = 0,
    chunk: int = DEFAULT_CHUNK,
    largest: Largest = None,
) -> Cost:
    """Counts what a rank sends and receives (`cpd.study.cost`).

    `layers`: as `values_and_rows` returns them. `numbers`: the layers' numbers in the model; none:
    0, 1, …
    """
    values, rows = layers
    native = _core.cost(
        spec._held,
        int32("world", world),
        int32("rank", rank),
        values,
        int64("chunk", chunk),
        rows,
        largest_of(largest, len(values)),
        numbers,
    )
    return Cost(native.steps, native.bytes_sent, native.bytes_received, native.exact)


def cost_of_step(
    schedule: Schedule, world: int, layers: Mapping[str, Sequence[int]], step: int
) -> Cost:
    """Counts what rank 0 sends and receives in one step of a schedule.

    `layers` are the shapes by name. The cost is the sum of the step's all-reduces, exact if all of
    them are.
    """
    shapes = list(layers.values())
    parts = schedule._parts(list(layers), step, [math.prod(shape) for shape in shapes])
    costs = [
        counted(spec, world, values_and_rows(spec, [shapes[n] for n in numbers]), numbers)
        for spec, numbers in parts
    ]
    return Cost(
        sum(cost.steps for cost in costs),
        sum(cost.bytes_sent for cost in costs),
        sum(cost.bytes_received for cost in costs),
        all(cost.exact for cost in costs),
    )


def values_and_rows(spec: Reduce, sizes: Sizes) -> tuple[list[int], list[int]]:
    """Returns each layer's number of values, and its row length if the codec works on rows."""
    shapes = [_shape(size) for size in sizes]
    layouts = row_layouts(spec._compressor, shapes, range(len(shapes)))
    return [math.prod(shape) for shape in shapes], [layout.row for layout in layouts]


def _shape(size: Any) -> tuple[int, ...]:
    if not isinstance(size, (tuple, list)):
        return (int64("a size in shapes", size),)
    shape = tuple(int64("a size in shapes", length) for length in size)
    if any(length < 0 for length in shape):
        raise ValueError(f"a size in shapes must be at least 0, got {shape}")
    return shape


def largest_of(largest: Largest, layers: int) -> list[float]:
    """Returns the largest magnitude of each layer; empty if it is not known."""
    if largest is None:
        return []
    if isinstance(largest, (tuple, list)):
        return [float(value) for value in largest]
    return [float(largest)] * layers  # type: ignore[arg-type]
