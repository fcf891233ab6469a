# SPDX-License-Identifier: Apache-2.0
"""The layout that a codec of rows or columns needs of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cpd.numeric.numbers import is_torch


class RowLayout(NamedTuple):
    """The layout of one layer for a codec that works on rows: a row's values are contiguous."""

    axis: int | None = None
    """The axis that is moved last; None: no axis is moved."""
    row: int = 0
    """Values of a row after the move; 0: the codec does not work on rows."""

    def move(self, layer: Any) -> Any:
        """The layer in the codec's order, as a view."""
        if self.axis is None:
            return layer
        return (
            layer.movedim(self.axis, -1) if is_torch(layer) else np.moveaxis(layer, self.axis, -1)
        )

    def back(self, layer: Any) -> Any:
        """Undoes `move`; returns a view."""
        if self.axis is None:
            return layer
        return (
            layer.movedim(-1, self.axis) if is_torch(layer) else np.moveaxis(layer, -1, self.axis)
        )

    def restored(self, values: Any, shape: Sequence[int]) -> Any:
        """Values in the codec's order, 1-D, as an array or tensor of the layer's shape."""
        if self.axis is None:
            return values.reshape(shape)
        moved = [size for axis, size in enumerate(shape) if axis != self.axis] + [shape[self.axis]]
        back = self.back(values.reshape(moved))
        return back.contiguous() if is_torch(back) else np.ascontiguousarray(back)
