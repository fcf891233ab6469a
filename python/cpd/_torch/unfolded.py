# SPDX-License-Identifier: Apache-2.0
"""Computes convolutions on a GPU, for `cpd._torch.conv`: multiplies unfolded images (im2col)."""

# Relaxes mypy's checks: many methods of torch's tensors have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch.moves import Moves
from cpd._torch.sums import Ints, Part, Sum, product_part
from cpd.numeric.accumulator import parsed

_COLUMN_BYTES = 1 << 28
"""The largest number of bytes of the images that are unfolded at a time. A single larger
image is unfolded, too. Some orders of sums require that all images are unfolded at a time."""


class Windows(NamedTuple):
    """The windows of a convolution's kernel over a padded image."""

    kernel: Ints
    stride: Ints
    dilation: Ints
    groups: int

    def places(self, image: Ints) -> tuple[int, ...]:
        """Returns the number of windows along each dimension of an image."""
        return tuple(
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(image, self.kernel, self.stride, self.dilation, strict=True)
        )

    def columns(self, x: Tensor) -> Tensor:
        """Unfolds images to the shape images x groups x (channel, kernel index) x windows."""
        images, _, *image = x.shape
        return self._view(x).reshape(
            images, self.groups, self.terms(x), math.prod(self.places(image))
        )

    def gathered(self, x: Tensor) -> Tensor:
        """Unfolds images to the shape groups x (image, window) x (channel, index in the kernel)."""
        images, _, *image = x.shape
        first = 3 + len(image)
        ordered = self._view(x).permute(*range(1, first), 0, *range(first, first + len(image)))
        return ordered.reshape(
            self.groups, self.terms(x), images * math.prod(self.places(image))
        ).mT

    def terms(self, x: Tensor) -> int:
        """Returns the number of products of each sum: a group's channels times the kernel size."""
        return x.shape[1] // self.groups * math.prod(self.kernel)

    def bytes(self, x: Tensor) -> int:
        """Returns the number of bytes of one unfolded image."""
        places = math.prod(self.places(x.shape[2:]))
        return self.groups * self.terms(x) * places * x.element_size()

    def _view(self, x: Tensor) -> Tensor:
        """Returns a view of all windows of images, which does not copy values.

        Its dimensions are images, groups, channels, the kernel's dimensions, and the dimensions
        along which windows are numbered.
        """
        images, channels, *image = x.shape
        n, c, *steps = x.stride()
        channels //= self.groups
        within = [a * d for a, d in zip(steps, self.dilation, strict=True)]
        between = [a * s for a, s in zip(steps, self.stride, strict=True)]
        return x.as_strided(
            (images, self.groups, channels, *self.kernel, *self.places(image)),
            (n, c * channels, c, *within, *between),
            x.storage_offset(),
        )


def last(*ranges: slice) -> tuple[Any, ...]:
    """Returns an index that slices the last dimensions of a tensor by `ranges`."""
    return (..., *ranges)


def _windows(moves: Moves, kernel: Ints) -> Windows:
    return Windows(kernel, moves.stride, moves.dilation, moves.groups)


def _images(x: Tensor, windows: Windows) -> int:
    """Returns the number of images to unfold at a time, at least one."""
    return max(1, _COLUMN_BYTES // max(1, windows.bytes(x)))


def _convolve(
    x: Tensor, w: Tensor, c: Tensor | None, windows: Windows, summation: Sum, dtype: torch.dtype
) -> Tensor:
    """Multiplies matrices w (groups x outputs x terms) by the unfolded images x.

    The result has the shape images x groups x outputs x windows.
    """
    parts: list[Tensor] = []
    element = 0
    for images in x.split(_images(x, windows)):
        part = Part(element)
        parts.append(product_part(w, windows.columns(images), c, summation, dtype, part))
        element += parts[-1].numel()
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _padded(x: Tensor, moves: Moves, kernel: Ints, places: Ints) -> Tensor:
    """Pads the image and cuts off the end that no window of the convolution covers.

    `places` is the number of windows along each dimension.
    """
    edges = [p for p in reversed(moves.padding) for _ in (0, 1)]
    x = F.pad(x, edges) if any(edges) else x
    reach = moves.reach(kernel)
    ends = [(n - 1) * s + r + 1 for n, s, r in zip(places, moves.stride, reach, strict=True)]
    return x[last(*(slice(end) for end in ends))]


def slide_unfolded(
    x: Tensor,
    w: Tensor,
    size: Ints,
    c: Tensor | None,
    moves: Moves,
    summation: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Computes a convolution, like `conv.slide`, by products of the kernel with unfolded images.

    The shape of w is groups x outputs x channels x kernel.
    """
    groups, outputs, inputs, *kernel = w.shape
    matrices = w.reshape(groups, outputs, inputs * math.prod(kernel))
    x = _padded(x, moves, kernel, size[2:])
    return _convolve(x, matrices, c, _windows(moves, kernel), summation, dtype).view(size)


def spread_unfolded(
    g: Tensor,
    w: Tensor,
    size: Ints,
    c: Tensor | None,
    moves: Moves,
    summation: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Computes a transposed convolution, like `conv.spread`, by products with unfolded images.

    With stochastic rounding, the padding of the result is computed too, because elements of the
    padding use random bits. The shape of w is groups x outputs x channels x reversed kernel.
    """
    groups, outputs, inputs, *kernel = w.shape
    reach, image = moves.reach(kernel), moves.padded(size[2:])
    if any(reach) or list(g.shape[2:]) != image:
        dilated = g.new_zeros(*g.shape[:2], *(n + r for n, r in zip(image, reach, strict=True)))
        steps = (slice(r, None, s) for r, s in zip(reach, moves.stride, strict=True))
        dilated[last(*steps)][last(*map(slice, g.shape[2:]))] = g
        g = dilated
    if not summation.is_stochastic():
        ends = zip(moves.padding, g.shape[2:], strict=True)
        g = g[last(*(slice(p, n - p) for p, n in ends))]
        image = list(size[2:])
    matrices = w.reshape(groups, outputs, inputs * math.prod(kernel))
    windows = Windows(kernel, (1,) * len(kernel), moves.dilation, groups)
    return _convolve(g, matrices, c, windows, summation, dtype).view(*size[:2], *image)


def correlate_unfolded(g: Tensor, x: Tensor, size: Ints, moves: Moves, summation: Sum) -> Tensor:
    """Computes the weight's gradient in float32 like `conv.correlate`, but unfolds the images x."""
    kernel, groups = size[2:], moves.groups
    windows = _windows(moves, kernel)
    x = _padded(x, moves, kernel, g.shape[2:])
    step = _chained_images(x, windows, summation)
    total: Tensor | None = None
    done = 0
    for of_g, of_x in zip(g.split(step), x.split(step), strict=True):
        images, outputs, *places = of_g.shape
        rows = of_g.reshape(images, groups, outputs // groups, math.prod(places))
        rows = rows.permute(1, 2, 0, 3).flatten(2)
        part = Part(product=done)
        total = product_part(rows, windows.gathered(of_x), total, summation, torch.float32, part)
        done += rows.shape[-1]
    assert total is not None  # split gives at least one part
    return total.view(size)


def _chained_images(x: Tensor, windows: Windows, summation: Sum) -> int:
    """Returns the number of images to sum over at a time.

    The sum over the next images starts from the total so far. This gives the same bits only for the
    sequential scheme, and for the chunked scheme if sums are split between chunks. For other
    schemes, all images are summed at a time.
    """
    acc = parsed(summation.text)
    if acc.scheme not in ("sequential", "chunked"):
        return max(1, x.shape[0])
    places = math.prod(windows.places(x.shape[2:]))
    chunk = acc.chunk if acc.scheme == "chunked" and acc.chunk else 1
    unit = chunk // math.gcd(chunk, places)
    return math.ceil(_images(x, windows) / unit) * unit
