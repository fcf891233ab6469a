# SPDX-License-Identifier: Apache-2.0
"""Computes the bytes of an all-reduce from the shapes of its tensors: `counted`, `cost_of_step`."""

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
"""The default number of values in a chunk: a communicator sends and sums data by chunks."""

Sizes: TypeAlias = "Sequence[int | Sequence[int]]"
"""The shape of each tensor. An integer n stands for the shape (n,)."""
Largest: TypeAlias = "float | Sequence[float] | None"
"""The largest magnitude over all ranks: one number for all tensors, or a list with a number for
each tensor. None: not known."""


@dataclass(frozen=True)
class Cost:
    """The message rounds and bytes of one rank in an all-reduce, without message headers.

    Attributes:
        steps: the largest number of rounds of messages of any of the W ranks: 2 (W - 1) for the
            exchanges `owner` and `ring`, W - 1 for `gather`, 4 (k - 1) + 2 (ceil(W / k) - 1) for
            `hierarchical` with groups of k ranks; 0 if there are no values.
        bytes_sent: the bytes of encoded values sent; an upper bound if `exact` is false.
        bytes_received: the bytes of encoded values received; an upper bound if `exact` is false.
        exact: True (default) if the byte counts hold for all values of the tensors; False if they
            depend on the values. `cpd.study.cost(…, ranks=…)` then counts the bytes of actual
            values.
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
    """Returns the cost of an all-reduce: the bytes that the rank `rank` sends and receives.

    `layers` is the result of `values_and_rows`. `numbers` are the tensors' numbers in the model;
    empty means 0, 1, …
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
    """Returns the number of bytes that rank 0 sends and receives in one step of a schedule.

    `layers` maps the tensors' names to their shapes. The cost is the sum over the step's
    all-reduces. It is exact if the cost of each all-reduce is exact.
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
    """Returns each tensor's number of values, and each tensor's row length.

    The second list is empty if `spec` has no codec that encodes rows.
    """
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
    """Returns the largest magnitude of each tensor as a list; an empty list if it is not known."""
    if largest is None:
        return []
    if isinstance(largest, (tuple, list)):
        return [float(value) for value in largest]
    return [float(largest)] * layers  # type: ignore[arg-type]
