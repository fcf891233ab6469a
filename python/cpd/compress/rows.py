# SPDX-License-Identifier: Apache-2.0
"""`RowLayout`: the memory layout of a tensor for a codec that encodes rows or columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cpd.numeric.numbers import is_torch


class RowLayout(NamedTuple):
    """The memory layout of a tensor (layer) in which the values of each row are contiguous.

    Attributes:
        axis: the axis that becomes the last axis; default None: no axis is moved.
        row: the number of values of a row after the move; default 0: the codec does not encode
            rows.
    """

    axis: int | None = None
    row: int = 0

    def move(self, layer: Any) -> Any:
        """Moves axis `axis` to the end, into the order in which the codec takes values.

        Args:
            layer: an array or a tensor.

        Returns:
            A view, or `layer` itself if no axis is moved.
        """
        if self.axis is None:
            return layer
        return (
            layer.movedim(self.axis, -1) if is_torch(layer) else np.moveaxis(layer, self.axis, -1)
        )

    def back(self, layer: Any) -> Any:
        """Undoes `move`.

        Args:
            layer: an array or a tensor that `move` returned, or another of the same shape.

        Returns:
            A view, or `layer` itself if no axis is moved.
        """
        if self.axis is None:
            return layer
        return (
            layer.movedim(-1, self.axis) if is_torch(layer) else np.moveaxis(layer, -1, self.axis)
        )

    def restored(self, values: Any, shape: Sequence[int]) -> Any:
        """Returns decoded values in the shape and the axis order that the layer had before `move`.

        Args:
            values: the decoded values, 1-D, in the order of the elements of `move(layer)`.
            shape: the layer's shape before `move`.

        Returns:
            A contiguous array or tensor.
        """
        if self.axis is None:
            return values.reshape(shape)
        moved = [size for axis, size in enumerate(shape) if axis != self.axis] + [shape[self.axis]]
        back = self.back(values.reshape(moved))
        return back.contiguous() if is_torch(back) else np.ascontiguousarray(back)
