# SPDX-License-Identifier: Apache-2.0
"""How a layer lies before a codec that goes by its rows or columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cpd.numeric.options import is_torch

if TYPE_CHECKING:
    from cpd.compress.codec import Codec


class Lie(NamedTuple):
    """Of one layer."""

    axis: int | None = None
    """The axis that is moved last; None: the layer stays as it is."""
    row: int = 0
    """Values of a row, after that; 0: the codec does not go by rows."""

    def move(self, layer: Any) -> Any:
        """The layer as the codec takes it: a view."""
        if self.axis is None:
            return layer
        return (
            layer.movedim(self.axis, -1) if is_torch(layer) else np.moveaxis(layer, self.axis, -1)
        )

    def back(self, layer: Any) -> Any:
        """Undoes `move`: a view."""
        if self.axis is None:
            return layer
        return (
            layer.movedim(-1, self.axis) if is_torch(layer) else np.moveaxis(layer, -1, self.axis)
        )

    def restored(self, values: npt.NDArray[np.float32], shape: Sequence[int]) -> Any:
        """Values in the codec's order, as an array of the layer's shape."""
        if self.axis is None:
            return values.reshape(shape)
        moved = [size for axis, size in enumerate(shape) if axis != self.axis] + [shape[self.axis]]
        return np.ascontiguousarray(self.back(values.reshape(moved)))


def lie_of(codec: Codec, shape: Sequence[int]) -> Lie:
    """How a layer of this shape lies for a codec.

    A row is what one index of the first dimension has; a vector is one row. The columns of one_bit
    are the values along the first dimension of two, along the last of three and more (as matrices
    of outputs × inputs and kernels of convolutions have them), or along `axis`; a vector is one
    column. Raises ValueError for an axis that the shape does not have.
    """
    if not codec.by_rows:
        return Lie()
    size, dimensions = math.prod(shape), len(shape)
    if dimensions < 2:
        return Lie(None, max(1, size))
    words = codec.name.split()
    if "one_bit" not in words:
        return Lie(None, max(1, size // max(1, shape[0])))
    given = [int(word.removeprefix("axis=")) for word in words if word.startswith("axis=")]
    axis = given[0] if given else 0 if dimensions == 2 else dimensions - 1
    if not -dimensions <= axis < dimensions:
        raise ValueError(
            f"axis must be {-dimensions}…{dimensions - 1} for a layer of shape {tuple(shape)}, "
            f"got {axis}, in {codec.name!r}"
        )
    axis %= dimensions
    return Lie(None if axis == dimensions - 1 else axis, max(1, shape[axis]))


def _moved(layer: Any, source: int, to: int) -> Any:
    return layer.movedim(source, to) if is_torch(layer) else np.moveaxis(layer, source, to)
