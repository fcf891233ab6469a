# SPDX-License-Identifier: Apache-2.0
"""Defines `Moves`: the stride, padding, dilation and groups of a convolution."""

from __future__ import annotations

from typing import NamedTuple

from cpd._torch.sums import Ints


class Moves(NamedTuple):
    """The arguments of torch.ops.aten.convolution after its operands, in the same order."""

    stride: Ints
    padding: Ints
    dilation: Ints
    transposed: bool
    output_padding: Ints
    groups: int

    def reach(self, kernel: Ints) -> list[int]:
        """Returns the distance from a dilated kernel's first element to its last, by dimension."""
        return [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]

    def padded(self, image: Ints) -> list[int]:
        return [n + 2 * p for n, p in zip(image, self.padding, strict=True)]

    def places(self, image: Ints, kernel: Ints) -> tuple[int, ...]:
        """Returns the number of windows of a padded image along each dimension."""
        along = zip(image, self.reach(kernel), self.stride, strict=True)
        return tuple((n - reach - 1) // s + 1 for n, reach, s in along)

    def size(self, x: Ints, w: Ints) -> tuple[int, ...]:
        """Returns the shape of the convolution's result. x and w are the shapes of its operands."""
        images, _, *image = x
        kernel = w[2:]
        if not self.transposed:
            return (images, w[0], *self.places(self.padded(image), kernel))
        along = zip(
            image, self.stride, self.padding, self.reach(kernel), self.output_padding, strict=True
        )
        places = [(n - 1) * s - 2 * p + reach + 1 + more for n, s, p, reach, more in along]
        return (images, w[1] * self.groups, *places)
