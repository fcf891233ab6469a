# SPDX-License-Identifier: Apache-2.0
"""Computes convolutions, and the gradients of their inputs and weights, as GEMMs of images.

Images have any number of dimensions. On the CPU, products read images in place. On a GPU, images
are first unfolded into matrices of windows (im2col). The operators are in `cpd._torch.convolution`.
"""

# Relaxes mypy's checks: many methods of torch's tensors have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import torch
from torch import Tensor

from cpd._torch import unfolded
from cpd._torch.library import ops
from cpd._torch.moves import Moves
from cpd._torch.sums import Ints, Sum

_TYPES = torch.float32, torch.bfloat16, torch.float16


def reads_images(*operands: Tensor) -> bool:
    """Returns whether matrix products can read images in place, without unfolding (im2col)."""
    return all(t.device.type == "cpu" and t.dtype in _TYPES for t in operands)


def _convolve(
    x: Tensor,
    w: Tensor,
    turned: bool,
    c: Tensor | None,
    places: Ints,
    along: tuple[Ints, ...],
    summation: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Multiplies the weights w by each window of the images x. Reverses the kernel if `turned`.

    `places` is the number of windows along each dimension. `along` has four numbers for each
    dimension: the step between windows, the dilation of the kernel, the padding before the image,
    and the distance between elements of the image (`cpd/backend/cpu/image_operand.h`).
    """
    c = None if c is None else c.squeeze(-1)
    sums = summation.text, summation.seed, summation.stream, summation.into(dtype)
    y = ops.convolve(x, w, turned, c, *along, places, *sums)
    return y.to(dtype)


def slide(
    x: Tensor,
    w: Tensor,
    size: Ints,
    c: Tensor | None,
    moves: Moves,
    summation: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Computes a convolution: the product of the kernel and each window of the padded image.

    Each result is one sum over the pairs (channel, index in the kernel). c is the bias or None. The
    bias has the shape (groups, output channels per group, 1).
    """
    outputs, inputs, *kernel = w.shape
    summation, w = (
        summation.swapped(),
        w.reshape(moves.groups, outputs // moves.groups, inputs, *kernel),
    )
    if not reads_images(x, w):
        return unfolded.slide_unfolded(x, w, size, c, moves, summation, dtype)
    along = moves.stride, moves.dilation, moves.padding, (1,) * len(kernel)
    return _convolve(x, w, False, c, size[2:], along, summation, dtype)


def spread(
    g: Tensor,
    w: Tensor,
    size: Ints,
    c: Tensor | None,
    moves: Moves,
    summation: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Computes a transposed convolution: products of the reversed kernel and windows of images g.

    g is first dilated by the stride: zeros are put between its values. Each result is one sum over
    the pairs (channel, index in the kernel) of a window. Random bits depend on the index in the
    padded result. With stochastic rounding, the whole padded result is therefore computed and
    then cropped.
    """
    outputs, inputs, *kernel = w.shape
    w = w.reshape(moves.groups, outputs // moves.groups, inputs, *kernel).transpose(1, 2)
    summation, padding = summation.swapped(), moves.padding
    whole = summation.is_stochastic()
    if reads_images(g, w):
        reach = moves.reach(kernel)
        before = reach if whole else [r - p for r, p in zip(reach, padding, strict=True)]
        along = (1,) * len(kernel), moves.dilation, before, moves.stride
        places = moves.padded(size[2:]) if whole else size[2:]
        y = _convolve(g, w, True, c, places, along, summation, dtype)
    else:
        turned = w.flip(*range(3, w.dim()))
        y = unfolded.spread_unfolded(g, turned, size, c, moves, summation, dtype)
    if not whole:
        return y
    cuts = (slice(p, n - p) for p, n in zip(padding, y.shape[2:], strict=True))
    return y[unfolded.last(*cuts)].contiguous()


def correlate(
    g: Tensor, x: Tensor, size: Ints, moves: Moves, summation: Sum, dtype: torch.dtype
) -> Tensor:
    """Computes the gradient of a convolution's weight. g is the result's gradient, x the images.

    For each index of the kernel, the gradient is a sum of products. A product has two factors: an
    element of g, and the element of x at this index of the window from which the element of g was
    computed. The summed index k runs over (image, window) in row-major order.
    """
    if not reads_images(g, x):
        return unfolded.correlate_unfolded(g, x, size, moves, summation).to(dtype)
    along = size[2:], moves.stride, moves.dilation, moves.padding
    y = ops.correlate(
        g, x, moves.groups, *along, summation.text, summation.seed, summation.stream, torch.float32
    )
    return y.to(dtype)
