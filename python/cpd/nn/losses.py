# SPDX-License-Identifier: Apache-2.0
"""Measures a tensor's range, and what a cast loses: underflow, overflow, saturation, error.

`measure` and `judge` return float64 vectors on the tensor's device. The caller copies the vectors
of several calls to the CPU at once; `Measured.total` and `Judged.total` combine them.
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
"""The largest relative error of a scale that is not counted as an overflow.

A block's scale is computed from the block's largest magnitude with three binary32 roundings. So
this magnitude may exceed the format's max times the scale by up to this relative error.
"""


class Measured(NamedTuple):
    """The range of tensors.

    NaN and infinities are counted in `nonfinite`, and otherwise ignored.
    """

    values: float
    zeros: float
    nonfinite: float
    least: float
    most: float
    amax: float
    smallest: float
    """The smallest nonzero magnitude of the values; inf if all values are 0."""
    squares: float
    """The sum of the values' squares."""

    @classmethod
    def total(cls, parts: Iterable[Sequence[float]]) -> Measured:
        """Combines the measurements of several tensors to one measurement."""
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
    """The losses of a cast, mostly as counts of values. NaN and infinities are not counted."""

    values: float
    """The number of values, including zeros that a transform may have appended."""
    underflows: float
    """The number of nonzero values that became 0."""
    overflows: float
    """The number of magnitudes above the format's max times the scale."""
    saturated: float
    """The number of values that became the format's max times the scale, or an infinity."""
    errors: float
    """The sum of squared errors; inf if a finite value became infinite or NaN."""
    scale_min: float
    """The smallest of the nonzero scales of nonzero values; inf if there are no such scales."""
    scale_max: float
    """The largest of the nonzero scales of nonzero values; -inf if there are no such scales."""

    @classmethod
    def total(cls, parts: Iterable[Sequence[float]]) -> Judged:
        """Combines the losses of several tensors to one result."""
        values, underflows, overflows, saturated, errors, low, high = zip(*parts, strict=True)
        counts = sum(values), sum(underflows), sum(overflows), sum(saturated)
        return cls(*counts, sum(errors), min(low), max(high))


class FiniteValues(NamedTuple):
    """A tensor with NaN and infinities replaced by 0, and the original tensor's range."""

    x: Tensor
    measured: Tensor


def measure(x: Tensor) -> FiniteValues:
    """Measures the range of a tensor, which must not be empty."""
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
    """Measures what a cast of the finite tensor `x` to `spec` loses, with blocks along `axis`.

    `multiplier`: the scale of delayed scaling; None: the scale follows from the tensor. If the spec
    has a transform, the losses of the transformed values are measured. The cast's result is
    float32, like the operands of layers: 16-bit types cannot represent an element times its scale.
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
    """Returns the sum of squares in binary64: squares of gradients may underflow in binary32."""
    flat = x.flatten().double()
    return flat.dot(flat)


# ---- casts and their scales ----------------------------------------------------------------------


def _exceeds(magnitudes: Tensor, limit: Tensor) -> Tensor:
    """Returns True for each magnitude that exceeds the format's max times the scale.

    Differences within the rounding error of the scale are ignored. With a scale of 0, values become
    0; that is not an overflow.
    """
    return (magnitudes > limit * (1 + NOISE)) & (limit > 0)


def _range(scales: Tensor | None, magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the smallest and the largest scale of nonzero values; inf and -inf without scales."""
    if scales is None:
        return magnitudes.new_full((), math.inf), magnitudes.new_full((), -math.inf)
    unused = (magnitudes == 0) | (scales == 0)
    return scales.masked_fill(unused, math.inf).amin(), scales.masked_fill(unused, -math.inf).amax()


def _cast(
    x: Tensor, spec: Cast, axis: int, multiplier: Tensor | None
) -> tuple[Tensor, Tensor, float, Tensor | None]:
    """Casts `x`. Returns four things: results, values, the factor and scales.

    `values` is x in float32, after the spec's transform if it has one. `results`, also float32, are
    the rounded products of values and factor. `scales` has the scale of each element's block; None
    for formats without scales.
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
    """Returns `x` rounded to the format `to`, with the rounding options of the cast `cast`."""
    y: Tensor = ops.cast(x, Cast(to, **rounding_of(cast)), **where)
    return y


def _decoded(codes: Any, q: Scaled, shape: Sequence[int], axis: int) -> Tensor:
    """Returns the scale of each element, decoded from the scales that `ops.encode` packed."""
    blocks, outer = (codes, codes) if q.tensor_scale is None else codes
    scale: Tensor = ops.decode(blocks, q.scale, q.scales_shape(shape, axis))
    of_elements = _spread(scale, q.block, shape, axis)
    if q.tensor_scale is None:
        return of_elements
    over: Tensor = ops.decode(outer, q.tensor_scale, q.tensor_scales_shape(shape, axis))
    return of_elements * _spread(over, q.outer, shape, axis)


def _spread(scales: Tensor, block: str, shape: Sequence[int], axis: int) -> Tensor:
    """Repeats the scale of each block for the block's elements, in a tensor of shape `shape`."""
    if block in ("tensor", "row") or not shape:
        return scales.expand(shape)
    rows, columns = map(int, block.split("x")) if "x" in block else (1, int(block))
    along = axis % len(shape)
    other = len(shape) - 2 if along == len(shape) - 1 else len(shape) - 1
    spread = scales.repeat_interleave(columns, along).narrow(along, 0, shape[along])
    if rows > 1 and other >= 0:
        spread = spread.repeat_interleave(rows, other).narrow(other, 0, shape[other])
    return spread
