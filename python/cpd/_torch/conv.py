# SPDX-License-Identifier: Apache-2.0
"""Sums of convolutions, of their input's and of their weight's gradients, as GEMMs of images, of
any number of dimensions: on the CPU read where they lie, on a GPU unfolded. The operators are in
`cpd._torch.convolution`."""

# torch's tensors are partly untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch.gemm import Ints, Sum, product
from cpd._torch.library import ops
from cpd.numeric.accumulator import parsed

_COLUMN_BYTES = 1 << 28
"""Of images unfolded at a time, where the result does not depend on it."""


class Windows(NamedTuple):
    """How the kernel of a convolution moves over an image (padded already)."""

    kernel: Ints
    stride: Ints
    dilation: Ints
    groups: int

    def places(self, image: Ints) -> tuple[int, ...]:
        """How many windows an image has along each of its dimensions."""
        return tuple(
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(image, self.kernel, self.stride, self.dilation, strict=True)
        )

    def columns(self, x: Tensor) -> Tensor:
        """images x groups x (channel, place in the kernel) x windows, row-major."""
        images, _, *image = x.shape
        return self._view(x).reshape(
            images, self.groups, self.terms(x), math.prod(self.places(image))
        )

    def gathered(self, x: Tensor) -> Tensor:
        """groups x (image, window) x (channel, place in the kernel)."""
        images, _, *image = x.shape
        first = 3 + len(image)
        ordered = self._view(x).permute(*range(1, first), 0, *range(first, first + len(image)))
        return ordered.reshape(
            self.groups, self.terms(x), images * math.prod(self.places(image))
        ).mT

    def terms(self, x: Tensor) -> int:
        """How many products each sum of a group takes."""
        return x.shape[1] // self.groups * math.prod(self.kernel)

    def bytes(self, x: Tensor) -> int:
        """Of the columns of one image."""
        places = math.prod(self.places(x.shape[2:]))
        return self.groups * self.terms(x) * places * x.element_size()

    def _view(self, x: Tensor) -> Tensor:
        """images x groups x channels x the kernel's dimensions x the windows'."""
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


class Moves(NamedTuple):
    """What torch.ops.aten.convolution takes beside its operands, in its order."""

    stride: Ints
    padding: Ints
    dilation: Ints
    transposed: bool
    output_padding: Ints
    groups: int

    def windows(self, kernel: Ints) -> Windows:
        return Windows(kernel, self.stride, self.dilation, self.groups)

    def reach(self, kernel: Ints) -> list[int]:
        """How far the last element of a kernel is from its first."""
        return [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]

    def padded(self, image: Ints) -> list[int]:
        return [n + 2 * p for n, p in zip(image, self.padding, strict=True)]

    def size(self, x: Ints, w: Ints) -> tuple[int, ...]:
        """The shape of the result, from those of the operands."""
        images, _, *image = x
        kernel = w[2:]
        if not self.transposed:
            return (images, w[0], *self.windows(kernel).places(self.padded(image)))
        along = zip(
            image, self.stride, self.padding, self.reach(kernel), self.output_padding, strict=True
        )
        places = [(n - 1) * s - 2 * p + reach + 1 + more for n, s, p, reach, more in along]
        return (images, w[1] * self.groups, *places)


_TYPES = torch.float32, torch.bfloat16, torch.float16


def reads_images(*operands: Tensor) -> bool:
    """Whether products read images of these operands where they lie."""
    return all(t.device.type == "cpu" and t.dtype in _TYPES for t in operands)


def _convolved(
    x: Tensor,
    w: Tensor,
    c: Tensor | None,
    places: Ints,
    along: tuple[Ints, ...],
    how: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Weights w (groups x outputs x channels x the kernel) by windows at so many places. `along`:
    step, dilation, before and spread of windows (`cpd/ops/image_operand.h`)."""
    c = None if c is None else c.squeeze(-1)
    y = ops.convolve(x, w, c, *along, places, how.text, how.seed, how.stream, how.into(dtype))
    return y.to(dtype)


def _last(*ranges: slice) -> tuple[Any, ...]:
    """Indices of the last dimensions."""
    return (..., *ranges)


def _images(x: Tensor, windows: Windows) -> int:
    """How many images to unfold at a time."""
    return max(1, _COLUMN_BYTES // max(1, windows.bytes(x)))


def _convolve(
    x: Tensor, w: Tensor, c: Tensor | None, windows: Windows, how: Sum, dtype: torch.dtype
) -> Tensor:
    """Matrices w (groups x outputs x terms) by the columns of x: images x groups x outputs x
    windows. Random bits hang on places in the whole result, which is then computed at once."""
    step = max(1, x.shape[0]) if how.is_stochastic() else _images(x, windows)
    parts = [product(w, windows.columns(part), c, how, dtype) for part in x.split(step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _padded(x: Tensor, moves: Moves, kernel: Ints, places: Ints) -> Tensor:
    """The image within its padding, as far as the windows of these places reach."""
    edges = [p for p in reversed(moves.padding) for _ in (0, 1)]
    x = F.pad(x, edges) if any(edges) else x
    reach = moves.reach(kernel)
    ends = [(n - 1) * s + r + 1 for n, s, r in zip(places, moves.stride, reach, strict=True)]
    return x[_last(*(slice(end) for end in ends))]


def slide(
    x: Tensor, w: Tensor, size: Ints, c: Tensor | None, moves: Moves, how: Sum, dtype: torch.dtype
) -> Tensor:
    """The kernel at each place of the padded image: k runs over (channel, place in the kernel)."""
    outputs, inputs, *kernel = w.shape
    groups = moves.groups
    if reads_images(x, w):
        weights = w.reshape(groups, outputs // groups, inputs, *kernel)
        along = moves.stride, moves.dilation, moves.padding, (1,) * len(kernel)
        return _convolved(x, weights, c, size[2:], along, how.swapped(), dtype)
    matrices = w.reshape(groups, outputs // groups, inputs * math.prod(kernel))
    x = _padded(x, moves, kernel, size[2:])
    return _convolve(x, matrices, c, moves.windows(kernel), how.swapped(), dtype).view(size)


def spread(
    g: Tensor, w: Tensor, size: Ints, c: Tensor | None, moves: Moves, how: Sum, dtype: torch.dtype
) -> Tensor:
    """The transpose of `slide`: the windows of g, spread by the stride amid zeros, by the turned
    kernel. k runs over (channel, place in the kernel) of g's windows, wholly within one sum. Random
    bits hang on places in the padded result, which is then computed whole before it is cut."""
    outputs, inputs, *kernel = w.shape
    groups = moves.groups
    reach, image = moves.reach(kernel), moves.padded(size[2:])
    late = how.is_stochastic()
    cuts = _last(*(slice(p, n - p) for p, n in zip(moves.padding, image, strict=True)))
    turned = w.flip(*range(2, w.dim())).reshape(groups, outputs // groups, inputs, *kernel)
    turned = turned.transpose(1, 2)
    if reads_images(g, w):
        before = [r - (0 if late else p) for r, p in zip(reach, moves.padding, strict=True)]
        along = (1,) * len(kernel), moves.dilation, before, moves.stride
        places = image if late else size[2:]
        y = _convolved(g, turned, c, places, along, how.swapped(), dtype)
        return y[cuts].contiguous() if late else y
    if any(reach) or list(g.shape[2:]) != image:
        wide = g.new_zeros(*g.shape[:2], *(n + r for n, r in zip(image, reach, strict=True)))
        steps = (slice(r, None, s) for r, s in zip(reach, moves.stride, strict=True))
        wide[_last(*steps)][_last(*map(slice, g.shape[2:]))] = g
        g = wide
    if not late:
        ends = zip(moves.padding, g.shape[2:], strict=True)
        g = g[_last(*(slice(p, n - p) for p, n in ends))]
    matrices = turned.reshape(groups, inputs, outputs // groups * math.prod(kernel))
    windows = Windows(kernel, (1,) * len(kernel), moves.dilation, groups)
    y = _convolve(g, matrices, c, windows, how.swapped(), dtype)
    if not late:
        return y.view(size)
    return y.view(*size[:2], *image)[cuts].contiguous()


def correlate(
    g: Tensor, x: Tensor, size: Ints, moves: Moves, how: Sum, dtype: torch.dtype
) -> Tensor:
    """g at each place in the kernel, by the image under it: k runs over (image, window),
    row-major."""
    kernel, groups = size[2:], moves.groups
    if reads_images(g, x):
        along = kernel, moves.stride, moves.dilation, moves.padding
        y = ops.correlate(g, x, groups, *along, how.text, how.seed, how.stream, torch.float32)
        return y.to(dtype)
    windows = moves.windows(kernel)
    x = _padded(x, moves, kernel, g.shape[2:])
    step = _chained_images(x, windows, how)
    total: Tensor | None = None
    for of_g, of_x in zip(g.split(step), x.split(step), strict=True):
        images, outputs, *places = of_g.shape
        rows = of_g.reshape(images, groups, outputs // groups, math.prod(places))
        rows = rows.permute(1, 2, 0, 3).flatten(2)
        total = product(rows, windows.gathered(of_x), total, how, torch.float32)
    assert total is not None  # split gives at least one part
    return total.view(size).to(dtype)


def _chained_images(x: Tensor, windows: Windows, how: Sum) -> int:
    """How many images to sum over at a time: a sum that goes on from what is there gives the same
    bits only if it is in order, and cut between chunks."""
    acc = parsed(how.text)
    if how.is_stochastic() or acc.scheme not in ("sequential", "chunked"):
        return max(1, x.shape[0])
    places = math.prod(windows.places(x.shape[2:]))
    unit = acc.chunk // math.gcd(acc.chunk, places) if acc.scheme == "chunked" else 1
    return math.ceil(_images(x, windows) / unit) * unit
