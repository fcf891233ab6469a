# SPDX-License-Identifier: Apache-2.0
"""Measures a tensor's range, and the losses of a cast: underflow, overflow, saturation, error.

All results stay on the tensor's device: `measure` and `judge` return float64 vectors. After one
transfer, `Measured.total` and `Judged.total` combine the vectors of several calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd import ops
from cpd._torch.arguments import call_numbers
from cpd._torch.operands import cast_delayed, whole_transforms
from cpd.numeric.cast import Cast, element_of, elements, rounding_of
from cpd.numeric.formats import Format
from cpd.numeric.hadamard import transform_of
from cpd.numeric.scaled import Scaled, untransformed

NOISE = 2.0**-22
"""The relative error, three roundings, by which a format's max times a binary32 scale may differ
from the largest value that the scale was made for."""


class Measured(NamedTuple):
    """The range of tensors; NaN and infinities are counted and left out."""

    values: float
    zeros: float
    nonfinite: float
    least: float
    most: float
    amax: float
    smallest: float
    """The smallest magnitude other than 0; inf where all are 0."""
    squares: float
    """The sum of squares."""

    @classmethod
    def total(cls, parts: Iterable[Sequence[float]]) -> Measured:
        """Returns the measurements of several tensors together."""
        values, zeros, nonfinite, least, most, amax, smallest, squares = zip(*parts, strict=True)
        return cls(
            sum(values),
            sum(zeros),
            sum(nonfinite),
            min(least),
            max(most),
            max(amax),
            min(smallest),
            math.fsum(squares),
        )


class Judged(NamedTuple):
    """The losses of a cast: counts of values, with NaN and infinities left out."""

    values: float
    """The number of values; a transform may have appended zeros."""
    underflows: float
    """Values that became 0."""
    overflows: float
    """Magnitudes above the format's max times the scale."""
    saturated: float
    """Values that became the max (times the scale), or an infinity."""
    errors: float
    """The sum of squared errors; inf where a finite value became infinite or NaN."""
    scale_min: float
    """The least scale of values that are not 0; inf if there are none."""
    scale_max: float
    """The largest scale of values that are not 0; -inf if there are none."""

    @classmethod
    def total(cls, parts: Iterable[Sequence[float]]) -> Judged:
        """Returns the losses of several tensors together."""
        values, underflows, overflows, saturated, errors, low, high = zip(*parts, strict=True)
        counts = sum(values), sum(underflows), sum(overflows), sum(saturated)
        return cls(*counts, sum(errors), min(low), max(high))


class FiniteValues(NamedTuple):
    """A tensor with 0 in the place of NaN and infinities, and its range, which counts those."""

    x: Tensor
    measured: Tensor


def measure(x: Tensor) -> FiniteValues:
    """Returns the range of a tensor that is not empty."""
    if x.dtype == torch.float64:
        x = x.float()
    unknown = ~x.isfinite()
    nonfinite = unknown.count_nonzero()
    x = x.masked_fill(unknown, 0)
    magnitudes = x.float().abs()
    zeros = x.numel() - magnitudes.count_nonzero() - nonfinite
    numbers = (
        nonfinite.new_full((), x.numel()),
        zeros,
        nonfinite,
        x.masked_fill(unknown, math.inf).amin(),
        x.masked_fill(unknown, -math.inf).amax(),
        magnitudes.amax(),
        magnitudes.masked_fill(magnitudes == 0, math.inf).amin(),
        _squares(magnitudes),
    )
    return FiniteValues(x, _vector(numbers))


def judge(x: Tensor, spec: Cast, axis: int, multiplier: Tensor | None = None) -> Tensor:
    """Measures the losses of a cast of `x`, which is finite, to `spec`, with blocks along `axis`.

    `multiplier`: the scale of delayed scaling; None: the scale follows from the tensor.
    A spec with a transform is judged by the transformed values. The cast's result is float32, like
    the operands that layers multiply: 16-bit types cannot hold elements times scales.
    """
    results, values, factor, scales = _cast(x, spec, axis, multiplier)
    magnitudes, of_results = values.abs(), results.abs()
    most = element_of(spec).max
    limit = magnitudes.new_full((), most) if scales is None else most * scales
    above = magnitudes > limit if scales is None else _exceeds(magnitudes * factor, limit)
    error = (results if factor == 1 else results / factor) - values
    nonzeros = of_results.count_nonzero()
    numbers = (
        nonzeros.new_full((), values.numel()),
        magnitudes.count_nonzero() - nonzeros,
        above.count_nonzero(),
        ((of_results >= limit * (1 - NOISE)) & (of_results != 0)).count_nonzero(),
        _squares(error).nan_to_num(math.inf, math.inf),
        *_range(scales, magnitudes),
    )
    return _vector(numbers)


def _vector(numbers: Sequence[Tensor]) -> Tensor:
    return torch.stack([number.double() for number in numbers])


def _squares(x: Tensor) -> Tensor:
    """Returns the sum of squares in binary64: gradients' squares are below binary32's range."""
    flat = x.flatten().double()
    return flat.dot(flat)


# ---- casts and their scales ----------------------------------------------------------------------


def _exceeds(magnitudes: Tensor, limit: Tensor) -> Tensor:
    """Returns where a magnitude exceeds the format's max times the scale.

    The excess must be more than the scale's rounding. With a scale of 0 values become 0, which is
    not an overflow.
    """
    return (magnitudes > limit * (1 + NOISE)) & (limit > 0)


def _range(scales: Tensor | None, magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the least and the largest scale of values that are not 0."""
    if scales is None:
        return magnitudes.new_full((), math.inf), magnitudes.new_full((), -math.inf)
    unused = (magnitudes == 0) | (scales == 0)
    return scales.masked_fill(unused, math.inf).amin(), scales.masked_fill(unused, -math.inf).amax()


def _cast(
    x: Tensor, spec: Cast, axis: int, multiplier: Tensor | None
) -> tuple[Tensor, Tensor, float, Tensor | None]:
    """Returns the cast of `x` in float32, and `x` in float32, or transformed.

    Also the factor that the first has more than the second, and the scale that decodes each
    element, or None.
    """
    values = x.float()
    q = spec.format
    if isinstance(q, Format):
        return _rounded(values, spec, q), values, 1.0, None
    if spec.history and multiplier is not None:
        y = cast_delayed(values, elements(spec), multiplier, call_numbers(spec, 0, 0, x))
        return y, values, 1.0, multiplier.reciprocal().expand(x.shape)
    if q.transform is not None:
        whole = whole_transforms(values, axis, transform_of(q.transform).size)
        x = values = ops.hadamard(whole, q.transform, axis=axis)
        q = untransformed(q.text)
    codes = ops.encode(x, q, axis=axis)[1]
    scales = _decoded(codes, q, x.shape, axis)
    if spec.factor == 1:
        y = _rounded(x, spec, q, axis=axis, dtype=torch.float32)
        return y, values, 1.0, scales
    y = _rounded(values * spec.factor, spec, q, axis=axis, scales=codes)
    return y, values, spec.factor, scales


def _rounded(x: Tensor, cast: Cast, to: Format | Scaled, **where: Any) -> Tensor:
    """`x` rounded as `cast` says, to another format."""
    y: Tensor = ops.cast(x, Cast(to, **rounding_of(cast)), **where)
    return y


def _decoded(codes: Any, q: Scaled, shape: Sequence[int], axis: int) -> Tensor:
    """Returns the scale of each element, from packed codes as `ops.encode` gives them."""
    blocks, outer = (codes, codes) if q.tensor_scale is None else codes
    scale: Tensor = ops.decode(blocks, q.scale, q.scales_shape(shape, axis))
    of_elements = _spread(scale, q.block, shape, axis)
    if q.tensor_scale is None:
        return of_elements
    over: Tensor = ops.decode(outer, q.tensor_scale, q.tensor_scales_shape(shape, axis))
    return of_elements * _spread(over, q.outer, shape, axis)


def _spread(scales: Tensor, block: str, shape: Sequence[int], axis: int) -> Tensor:
    """Returns the scale of each element of a tensor of that shape, from the grid of its blocks."""
    if block in ("tensor", "row") or not shape:
        return scales.expand(shape)
    rows, columns = map(int, block.split("x")) if "x" in block else (1, int(block))
    along = axis % len(shape)
    other = len(shape) - 2 if along == len(shape) - 1 else len(shape) - 1
    spread = scales.repeat_interleave(columns, along).narrow(along, 0, shape[along])
    if rows > 1 and other >= 0:
        spread = spread.repeat_interleave(rows, other).narrow(other, 0, shape[other])
    return spread
