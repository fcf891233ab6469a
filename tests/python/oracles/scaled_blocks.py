# SPDX-License-Identifier: Apache-2.0
"""An oracle for blocks: finds the elements of an array that share a scale, by the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Block = str | int | tuple[int, int]


def extents(shape: Sequence[int], block: Block, axis: int) -> tuple[int, ...]:
    """Returns the extent of a block along each dimension.

    A block `R x C` has C elements along the axis, and R along one other dimension: the last one, or
    the last but one if the axis is the last.
    """
    if block == "tensor":
        return tuple(max(1, n) for n in shape)
    axis %= len(shape)
    result = [1] * len(shape)
    rows, columns = block if isinstance(block, tuple) else (1, block)
    result[axis] = max(1, shape[axis]) if columns == "row" else int(columns)
    other = len(shape) - (2 if axis == len(shape) - 1 else 1)
    if other >= 0:
        result[other] = rows if other != axis else result[other]
    return tuple(result)


def grid_shape(shape: Sequence[int], block: Block, axis: int) -> tuple[int, ...]:
    spans = extents(shape, block, axis)
    return tuple(-(-n // c) for n, c in zip(shape, spans, strict=True))


def block_indices(shape: Sequence[int], block: Block, axis: int) -> Array:
    """Returns the number of each element's block; blocks are numbered in row-major order."""
    spans = extents(shape, block, axis)
    grid = grid_shape(shape, block, axis)
    result = np.zeros(tuple(shape), np.int64)
    for at, span, count in zip(np.indices(tuple(shape)), spans, grid, strict=True):
        result = result * count + at // span
    return result


def members(block_of: Array, grid: Sequence[int]) -> list[list[int]]:
    """Returns the flat indices of each block's elements, in ascending order."""
    result: list[list[int]] = [[] for _ in range(math.prod(grid))]
    for i, b in enumerate(block_of.reshape(-1)):
        result[int(b)].append(i)
    return result


def rows_of(group: Sequence[int], shape: Sequence[int], axis: int) -> list[list[int]]:
    """Splits a block's elements into rows. The elements of a row differ only in the index along
    the axis."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for i in group:
        at = [int(k) for k in np.unravel_index(i, shape)]
        del at[axis]
        rows.setdefault(tuple(at), []).append(i)
    return list(rows.values())
