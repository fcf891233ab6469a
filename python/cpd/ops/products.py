# SPDX-License-Identifier: Apache-2.0
"""Products of encoded operands: decodes `Encoded` into what the library multiplies."""

from __future__ import annotations

from typing import Any, NamedTuple

from cpd.numeric.accumulator import Accumulator
from cpd.numeric.formats import Format
from cpd.numeric.numbers import Number, int32
from cpd.numeric.scaled import Scaled, format_or_scaled
from cpd.numeric.shown import shown
from cpd.ops.arguments import scale_levels, shape_of
from cpd.ops.encoded import Encoded

SCALES_AT = ("operand", "block", "epilogue")


class Operand(NamedTuple):
    """The elements of an encoded matrix and their scales: OperandScales in ops/gemm.h."""

    elements: Any
    scales: Any
    block: int
    lines: int
    factor: Any


def gemm_encoded(
    front_end: Any,
    a: Encoded,
    b: Encoded,
    acc: Accumulator,
    c: Any,
    numbers: tuple[Number, Number],
    dtype: Any,
    at: Any,
    random: Any,
) -> Any:
    """`cpd.gemm` of encoded operands; `front_end`: the module that works on their arrays."""
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, Encoded):
            raise TypeError(f"a and b must both be cpd.Encoded, got {name}: {_type(operand)}")
    at = "operand" if at is None else at
    if at not in SCALES_AT:
        raise ValueError(f"scales_at must be one of {', '.join(SCALES_AT)}, got {shown(at)}")
    _check_axis("a", a, -1)
    _check_axis("b", b, -2)
    if at == "operand":
        return front_end.gemm(
            _values(front_end, a), _values(front_end, b), acc, c, *numbers, dtype, False, random
        )
    if dtype is not None and str(dtype).rpartition(".")[2].rstrip("'>") != "float32":
        raise ValueError(f"products of scaled elements are float32, got dtype={dtype}")
    operands = (*encoded_operand(front_end, a), *encoded_operand(front_end, b))
    return front_end.gemm_scaled(*operands, acc, at == "epilogue", c, *numbers, random)


def _values(front_end: Any, x: Encoded) -> Any:
    """The values in float32, as from `cpd.decode`."""
    q = format_or_scaled(x.format)
    if isinstance(q, Scaled):
        return front_end.decode_scaled(x.codes, q, x.shape, None, None, x.axis, x.scales)
    return front_end.decode(x.codes, q, x.shape, None, None)


def encoded_operand(front_end: Any, x: Encoded) -> Operand:
    """The operand as the library multiplies it; `front_end` decodes its codes."""
    q = format_or_scaled(x.format)
    shape = shape_of("shape", x.shape)
    if isinstance(q, Format):
        return Operand(front_end.decode(x.codes, q, shape, None, None), None, 0, 1, None)
    blocks, tensor = scale_levels(q, x.scales)
    elements = front_end.decode(x.codes, q.element, shape, None, None)
    scales = front_end.decode(blocks, q.scale, _matrix(q.scales_shape(shape, x.axis)), None, None)
    factor = None
    if q.tensor_scale is not None:
        outer = _matrix(q.tensor_scales_shape(shape, x.axis))
        factor = front_end.decode(tensor, q.tensor_scale, outer, None, None)
    return Operand(elements, scales, *_extents(q), factor)


def _extents(q: Scaled) -> tuple[int, int]:
    """The numbers of values of k and of lines that share a scale; 0: all."""
    if q.block == "tensor":
        return 0, 0
    if q.block == "row":
        return 0, 1
    lines, _, block = q.block.rpartition("x")
    return int(block), int(lines or 1)


def _matrix(grid: tuple[int, ...]) -> tuple[int, ...]:
    """The grid with two dimensions where it has none, as that of a tensor's single scale."""
    return grid or (1, 1)


def _check_axis(name: str, x: Encoded, wanted: int) -> None:
    rank, axis = len(shape_of("shape", x.shape)), int32("axis", x.axis)
    if rank < 2:
        raise ValueError(f"{name} must have at least two dimensions, got shape {x.shape}")
    q = format_or_scaled(x.format)
    if isinstance(q, Scaled) and q.block != "tensor" and axis % rank != rank + wanted:
        raise ValueError(
            f"{name}'s blocks must lie along k, axis {wanted}, got axis {axis} of shape {x.shape}"
        )


def _type(x: object) -> str:
    return type(x).__name__
