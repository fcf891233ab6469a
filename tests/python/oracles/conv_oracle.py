# SPDX-License-Identifier: Apache-2.0
"""Convolutions for tests, and an oracle that computes them by cpd.gemm on unfolded images.

Functions here also cast operands as a recipe says, by cpd.cast.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from operand_cases import by_hand  # noqa: E402
from tensors import normal as values  # noqa: E402

SHORT = {"activation": "e4m3fn block=3", "weight": "e4m3fn block=3", "gradient": "e5m2 block=3"}
PLAIN = cpd.Recipe("native", activation="e4m3fn", weight="e4m3fn", gradient="e5m2")


class Case(NamedTuple):
    """A convolution: the shapes of input and weight, stride, padding, dilation and groups."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    transposed: bool = False
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    more: tuple[int, ...] = (0, 0, 0)
    groups: int = 1

    @property
    def rank(self):
        return len(self.x) - 2

    @property
    def name(self):
        return f"conv{'_transpose' * self.transposed}{self.rank}d"

    @property
    def outputs(self):
        return self.w[1] * self.groups if self.transposed else self.w[0]

    @property
    def moves(self):
        """The arguments of aten::convolution after its operands."""
        each = self.stride, self.padding, self.dilation, self.more
        stride, padding, dilation, more = ([*n[: self.rank]] for n in each)
        return stride, padding, dilation, self.transposed, more, self.groups

    @property
    def named(self):
        """The keyword arguments of the convolution in torch.nn.functional."""
        stride, padding, dilation, _, more, groups = self.moves
        given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return given | ({"output_padding": more} if self.transposed else {})

    def torchs(self, *operands):
        return getattr(F, self.name)(*operands, **self.named)

    def ours(self, *operands, **how):
        return getattr(cpd.functional, self.name)(*operands, **self.named, **how)


CASES = {
    "1d": Case((2, 4, 7), (6, 4, 3)),
    "1d moved": Case((2, 4, 9), (6, 2, 3), False, (2,), (2,), (2,), groups=2),
    "2d": Case((2, 4, 6, 5), (3, 4, 3, 2)),
    "2d moved": Case((2, 4, 7, 6), (6, 2, 3, 2), False, (2, 1), (1, 2), (1, 2), groups=2),
    "2d depthwise": Case((2, 4, 5, 5), (8, 1, 3, 3), False, padding=(1, 1), groups=4),
    "2d pointwise": Case((3, 5, 4, 3), (7, 5, 1, 1)),
    "3d": Case((2, 3, 4, 5, 3), (4, 3, 2, 3, 2)),
    "3d moved": Case(
        (2, 4, 5, 4, 6), (4, 2, 2, 2, 3), False, (2, 1, 2), (1, 0, 1), (1, 2, 1), groups=2
    ),
    "1d transposed": Case((2, 4, 7), (4, 5, 3), True),
    "1d transposed, moved": Case((2, 4, 5), (4, 3, 3), True, (3,), (2,), (2,), (1,), 2),
    "2d transposed": Case((2, 4, 4, 5), (4, 3, 3, 2), True),
    "2d transposed, moved": Case(
        (2, 4, 3, 4), (4, 3, 3, 2), True, (2, 1), (1, 2), (1, 3), (1, 0), 2
    ),
    "2d transposed, wide padding": Case((2, 3, 4, 4), (3, 2, 1, 2), True, (2, 2), (1, 2)),
    "3d transposed": Case((2, 3, 3, 2, 3), (3, 4, 2, 3, 2), True),
    "3d transposed, moved": Case(
        (2, 4, 2, 3, 2), (4, 2, 2, 2, 3), True, (2, 1, 2), (1, 0, 1), (1, 2, 1), (1, 0, 1), 2
    ),
}


def operands(case, dtype=torch.float32):
    shapes = case.x, case.w, (case.outputs,)
    return tuple(values(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes))


def leaves_of(case, dtype=torch.float32):
    return [t.requires_grad_() for t in operands(case, dtype)]


def ranges(sizes):
    return itertools.product(*map(range, sizes))


def unfolded(x, kernel, stride, dilation, places, groups):
    """Returns the unfolded image: images x groups x (channel, kernel position) x windows."""
    windows = []
    for place in ranges(places):
        where = [
            slice(i * s, i * s + d * (k - 1) + 1, d)
            for i, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        ]
        windows.append(x[(slice(None), slice(None), *where)].flatten(1))
    columns = torch.stack(windows, -1) if windows else x.new_zeros(*x.shape[:1], 0, 0)
    return columns.view(x.shape[0], groups, columns.shape[1] // groups, len(windows))


def padded(x, padding):
    return F.pad(x, [p for p in reversed(padding) for _ in (0, 1)])


def places_of(image, kernel, moves):
    stride, padding, dilation, *_ = moves
    return [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(image, kernel, stride, padding, dilation, strict=True)
    ]


def slide(x, w, c, moves, gemm):
    """Returns a convolution. `gemm` multiplies the weight by the columns of the unfolded image, and
    adds c."""
    stride, padding, dilation, _, _, groups = moves
    places = places_of(x.shape[2:], w.shape[2:], moves)
    columns = unfolded(padded(x, padding), w.shape[2:], stride, dilation, places, groups)
    matrices = w.reshape(groups, w.shape[0] // groups, -1)
    addend = None if c is None else c.view(groups, -1, 1)
    return gemm(matrices, columns, addend).reshape(x.shape[0], w.shape[0], *places)


def spread(g, w, size, c, moves, gemm):
    """Returns the transposed convolution of `g`, an image of shape `size`.

    Puts zeros between and around the elements of `g`, and convolves the result with the reversed
    kernel.
    """
    stride, padding, dilation, _, _, groups = moves
    kernel = w.shape[2:]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    whole = [n + 2 * p for n, p in zip(size[2:], padding, strict=True)]
    wide = g.new_zeros(*g.shape[:2], *(n + r for n, r in zip(whole, reach, strict=True)))
    for place in ranges(g.shape[2:]):
        to = [r + i * s for r, i, s in zip(reach, place, stride, strict=True)]
        wide[(slice(None), slice(None), *to)] = g[(slice(None), slice(None), *place)]
    columns = unfolded(wide, kernel, [1] * len(kernel), dilation, whole, groups)
    turned = w.flip(*range(2, w.dim())).unflatten(0, (groups, -1)).transpose(1, 2)
    matrices = turned.reshape(groups, w.shape[1], -1)
    addend = None if c is None else c.view(groups, -1, 1)
    y = gemm(matrices, columns, addend).reshape(g.shape[0], size[1], *whole)
    inner = [slice(p, p + n) for p, n in zip(padding, size[2:], strict=True)]
    return y[(slice(None), slice(None), *inner)]


def correlate(g, x, size, moves, gemm):
    """Returns the gradient of a convolution's weight, from the result's gradient and the image."""
    stride, padding, dilation, _, _, groups = moves
    columns = unfolded(padded(x, padding), size[2:], stride, dilation, g.shape[2:], groups)
    gathered = columns.permute(1, 2, 0, 3).reshape(groups, columns.shape[2], -1)
    rows = g.reshape(g.shape[0], groups, g.shape[1] // groups, math.prod(g.shape[2:]))
    rows = rows.permute(1, 2, 0, 3).reshape(groups, rows.shape[2], -1)
    return gemm(rows, gathered.mT, None).reshape(size)


def result_size(case, x, w):
    """Returns the size of a transposed convolution's result, by torch's formula."""
    stride, padding, dilation, _, more, groups = case.moves
    return (
        x.shape[0],
        w.shape[1] * groups,
        *(
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, k, s, p, d, e in zip(
                x.shape[2:], w.shape[2:], stride, padding, dilation, more, strict=True
            )
        ),
    )


def forward(case, x, w, c, gemm):
    if not case.transposed:
        return slide(x, w, c, case.moves, gemm)
    return spread(x, w, result_size(case, x, w), c, case.moves, gemm)


def of_input(case, g, w, size, gemm):
    if case.transposed:
        return slide(g, w, None, case.moves, gemm)
    return spread(g, w, size, None, case.moves, gemm)


def of_weight(case, g, x, size, gemm):
    first, second = (x, g) if case.transposed else (g, x)
    return correlate(first, second, size, case.moves, gemm)


# ---- operands ------------------------------------------------------------------------------------


def images_cast(recipe, name, x, groups, **how):
    """Casts images with blocks along the channels of a group, separately at each pixel."""
    cast, factor = by_hand(recipe, name, x.unflatten(1, (groups, -1)), 2, **how)
    return cast.flatten(1, 2), factor


def batch_cast(recipe, name, x, groups, **how):
    """Casts images with blocks along the batch."""
    cast, factor = by_hand(recipe, name, x.unflatten(1, (groups, -1)), 0, **how)
    return cast.flatten(1, 2), factor


def weight_cast(recipe, name, w, axis, groups, **how):
    """Casts the weight of each group with blocks along dimension `axis`, 0 or 1.

    Two-dimensional blocks cover dimensions 0 and 1.
    """
    parts = w.unflatten(0, (groups, -1))
    spec = recipe._operand(name)
    if isinstance(getattr(spec, "format", None), cpd.Scaled) and "x" in spec.format.block:
        last = parts.movedim((1, 2), (-2, -1))
        cast, factor = by_hand(recipe, name, last, axis - 2, **how)
        return cast.movedim((-2, -1), (1, 2)).flatten(0, 1).contiguous(), factor
    cast, factor = by_hand(recipe, name, parts, axis + 1, **how)
    return cast.flatten(0, 1), factor
