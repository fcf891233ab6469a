# SPDX-License-Identifier: Apache-2.0
"""Matrix products of `Encoded` operands: decodes them into operands for the C++ library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cpd.numeric.accumulator import Accumulator
from cpd.numeric.formats import Format
from cpd.numeric.names import checked_name
from cpd.numeric.numbers import Number, int32
from cpd.numeric.scaled import Scaled, format_or_scaled
from cpd.ops.arguments import (
    NARROW_FLOATS,
    check_addend,
    product_shape,
    scale_levels,
    shape_of,
)
from cpd.ops.encoded import Encoded, decoded, decoded_scaled
from cpd.ops.front_ends import front_end_of

SCALES_AT = ("operand", "block", "epilogue")


class Operand(NamedTuple):
    """A decoded matrix, whose scales are not yet applied, and its scales.

    The fields after `elements` are the fields of C++'s OperandScales (cpd/ops/gemm.h).
    """

    elements: Any
    scales: Any
    block: int
    lines: int
    factor: Any


def check_encoded(a: Any, b: Any, at: Any) -> str:
    """Checks the operands of a product with at least one `Encoded`.

    Returns the checked `scales_at`.
    """
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, Encoded):
            raise TypeError(f"a and b must both be cpd.Encoded, got {name}: {_type(operand)}")
    name = "operand" if at is None else checked_name("scales_at", at, SCALES_AT)
    _check_axis("a", a, -1)
    _check_axis("b", b, -2)
    return name


def gemm_scaled(
    a: Encoded,
    b: Encoded,
    acc: Accumulator,
    c: Any,
    numbers: tuple[Number, Number],
    dtype: Any,
    at: str,
    random: Any,
) -> Any:
    """Computes `cpd.gemm` of encoded operands with scales_at `block` or `epilogue`."""
    if dtype is not None and str(dtype).rpartition(".")[2].rstrip("'>") != "float32":
        raise ValueError(f"products of scaled elements are float32, got dtype={dtype}")
    left, right = encoded_operand(a), encoded_operand(b)
    kind = front_end_of(left.elements)
    kind.array("b", right.elements, NARROW_FLOATS, "a", left.elements)
    if c is not None:
        c = kind.array("c", c, NARROW_FLOATS, "a")
        check_addend(c.shape, product_shape(left.elements.shape, right.elements.shape))
    return kind.gemm_scaled(*left, *right, c, acc, at == "epilogue", *numbers, random)


def values_of(x: Encoded) -> Any:
    """Returns the values of an `Encoded` in float32, as `cpd.decode` does."""
    q = format_or_scaled(x.format)
    if isinstance(q, Scaled):
        return decoded_scaled(x.codes, q, x.shape, None, None, x.axis, x.scales)
    return decoded(x.codes, q, x.shape)


def encoded_operand(
    x: Encoded, decode: Callable[[Any, Format, tuple[int, ...]], Any] = decoded
) -> Operand:
    """Returns an `Encoded` as an operand of the C++ library.

    `decode` is the function that returns the float32 values of codes.
    """
    q = format_or_scaled(x.format)
    shape = shape_of("shape", x.shape)
    if isinstance(q, Format):
        return Operand(decode(x.codes, q, shape), None, 0, 1, None)
    blocks, tensor = scale_levels(q, x.scales)
    elements = decode(x.codes, q.element, shape)
    scales = decode(blocks, q.scale, _matrix(q.scales_shape(shape, x.axis)))
    factor = None
    if q.tensor_scale is not None:
        outer = _matrix(q.tensor_scales_shape(shape, x.axis))
        factor = decode(tensor, q.tensor_scale, outer)
    return Operand(elements, scales, *_extents(q), factor)


def _extents(q: Scaled) -> tuple[int, int]:
    """Returns the size of a block of values that share a scale.

    The first number is the size along the summed axis k. The second is the size along the rows of
    a or the columns of b. The number 0 stands for the whole axis.
    """
    if q.block == "tensor":
        return 0, 0
    if q.block == "row":
        return 0, 1
    lines, _, block = q.block.rpartition("x")
    return int(block), int(lines or 1)


def _matrix(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a grid of scales. The shape () of a single scale becomes (1, 1)."""
    return grid or (1, 1)


def _check_axis(name: str, x: Encoded, expected: int) -> None:
    rank, axis = len(shape_of("shape", x.shape)), int32("axis", x.axis)
    if rank < 2:
        raise ValueError(f"{name} must have at least two dimensions, got shape {x.shape}")
    q = format_or_scaled(x.format)
    if isinstance(q, Scaled) and q.block != "tensor" and axis % rank != rank + expected:
        raise ValueError(
            f"{name}'s blocks must lie along k, axis {expected}, got axis {axis} of shape {x.shape}"
        )


def _type(x: object) -> str:
    return type(x).__name__
