# SPDX-License-Identifier: Apache-2.0
"""Scaled formats on torch tensors.

The operators are torch.ops.cpd.cast_scaled, encode_scaled and decode_scaled, with their fake
kernels, derivatives and batching rules. Documented in `cpd.ops`. cast_scaled_both makes a layer's
casts of its gradient along two axes, stacked.

`scaled` is the format's text, `how` the text of the cast of its elements (`cast.elements`), `dtype`
the result's type, which holds x's values; None: x's own. Scales follow from x in its own type.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cpd._torch.arguments import (
    cast_arguments,
    check,
    check_codes,
    check_out,
    checked_integers,
    describe,
    name_of,
    result_element,
    sizes_of,
    sum_numbers,
    wider_type,
)
from cpd._torch.derivatives import Derivative, run, write
from cpd._torch.library import ops
from cpd._torch.table import operator
from cpd._torch.vmap import BatchedCall, Batching, never, widen_blocks
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Drawing
from cpd.numeric.numbers import Number
from cpd.numeric.scaled import Scaled, named_scaled
from cpd.ops.arguments import (
    LEVELS,
    NARROW_FLOATS,
    Scales,
    ScaleSource,
    Shape,
    check_addend,
    check_cast,
    check_level,
    check_level_type,
    check_scaled_bytes,
    product_shape,
    scale_grids,
    scale_levels,
    shape_of,
    source_levels,
)

_LEVEL_ARGUMENTS = ("scales", "tensor_scales", "amax")
"""The operators' arguments of `LEVELS`."""


def cast_scaled(
    x: Tensor,
    q: Scaled,
    options: Drawing,
    out: Any,
    axis: int,
    source: ScaleSource,
    random: Any,
    dtype: Any,
) -> Tensor:
    arguments = _arguments(x, q, options, axis, source, random)
    element = x.dtype if dtype is None else wider_type(x, dtype, NARROW_FLOATS)
    check_cast(name_of(element), q)
    if out is None:
        return run("cast_scaled", *arguments, element)
    *levels, _, _, integers = arguments[4:]
    inputs = {"x": x, "random": integers, **dict(zip(LEVELS, levels, strict=True))}
    check_out(out, x.shape, x.new_empty(0, dtype=element), inputs)
    write("cast_scaled", *arguments, out=out)
    return out


def encode_scaled(
    x: Tensor, q: Scaled, options: Drawing, axis: int, source: ScaleSource, random: Any
) -> tuple[Tensor, Scales]:
    arguments = _arguments(x, q, options, axis, source, random)
    codes, blocks, tensor = ops.encode_scaled.default(*arguments)
    return codes, blocks if q.tensor_scale is None else (blocks, tensor)


def decode_scaled(
    codes: Tensor, q: Scaled, shape: Shape, dtype: Any, out: Any, axis: int, scales: Any
) -> Tensor:
    compiling = torch.compiler.is_compiling()
    if compiling:
        q = named_scaled(q.text)  # as in `cast`: one program reaches its parts in one way
    sizes = sizes_of(shape)
    blocks, tensor = scale_levels(q, scales)
    parts = {"codes": codes, "scales": blocks}
    if q.tensor_scale is not None:
        parts["tensor scales"] = tensor
    for name, each in parts.items():
        check_codes(name, each, codes)
    element = result_element(dtype, out, NARROW_FLOATS)
    if not compiling:
        counts = [each.numel() for each in parts.values()]
        check_scaled_bytes(q, shape_of("shape", sizes), axis, counts)
    packed, *levels = (each.contiguous() for each in parts.values())
    arguments = packed, q.text, axis, levels[0], levels[1] if len(levels) > 1 else None
    if out is None:
        return ops.decode_scaled.default(*arguments, sizes, element)
    check_out(out, torch.Size(sizes), codes.new_empty(0, dtype=element), parts)
    write("decode_scaled", *arguments, out=out)
    return out


def _arguments(
    x: Tensor, q: Scaled, options: Drawing, axis: int, source: ScaleSource, random: Any
) -> tuple[Any, ...]:
    """The arguments of cast_scaled and encode_scaled, checked."""
    check("x", x, NARROW_FLOATS)
    how, seed, stream = cast_arguments(options, x)
    levels: tuple[Any, ...] = source_levels(q, source)
    if any(level is not None for level in levels):
        compiling = torch.compiler.is_compiling()
        grids = (None,) * 3 if compiling else scale_grids(q, x.shape, axis)
        levels = tuple(map(_checked_level, (q,) * 3, LEVELS, levels, grids, (x,) * 3))
    integers = (
        None if random is None else checked_integers(random, x, x.shape, "x's shape", options)
    )
    return x, q.text, axis, how, *levels, seed, stream, integers


def _checked_level(q: Scaled, name: str, value: Any, grid: Any, x: Tensor) -> Tensor | None:
    """Returns a level of scales, checked.

    It has packed codes, or float32 numbers in the shape of `grid` (None: left to the library).
    """
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = torch.full((), value, dtype=torch.float32, device=x.device)
    element = name_of(value.dtype) if isinstance(value, Tensor) else ""
    check_level_type(name, element, describe(value))
    if value.device != x.device:
        raise ValueError(f"{name} must be on x's device, {x.device}, got {value.device}")
    if grid is not None:
        check_level(q, name, element == "uint8", value.shape, grid)
    return value.detach().contiguous()


def gemm_scaled(
    a: Tensor,
    a_scales: Tensor | None,
    a_block: int,
    a_lines: int,
    a_factor: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    b_block: int,
    b_lines: int,
    b_factor: Tensor | None,
    acc: Accumulator,
    epilogue: bool,
    c: Any,
    seed: Number,
    stream: Number,
    random: Any,
) -> Tensor:
    """The operands are those of `products.Operand`, decoded."""
    if c is not None:
        check("c", c, NARROW_FLOATS, "a")
        check_addend(c.shape, product_shape(a.shape, b.shape))
        c = c.detach()
    of_a = a, a_scales, a_block, a_lines, a_factor
    of_b = b, b_scales, b_block, b_lines, b_factor
    numbers = sum_numbers(acc, seed, stream, a)
    return ops.gemm_scaled.default(*of_a, *of_b, c, acc.text, epilogue, *numbers, random)


# ---- fake kernels ------------------------------------------------------------------------------


def _apart(x: Tensor, scaled: str, axis: int, *args: Any) -> tuple[Tensor, Tensor]:
    q = named_scaled(scaled)
    grid = _grid(q.block if q.tensor_scale is None else q.outer, x.shape, axis)
    return x.new_empty(x.shape, dtype=args[-1]), x.new_empty(grid, dtype=torch.float32)


def _encoded(x: Tensor, scaled: str, axis: int, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    q = named_scaled(scaled)
    codes = _packed(x, x.shape, q.element.bits)
    blocks = _packed(x, _grid(q.block, x.shape, axis), q.scale.bits)
    if q.tensor_scale is None:
        return codes, blocks, x.new_empty(0, dtype=torch.uint8)
    return codes, blocks, _packed(x, _grid(q.outer, x.shape, axis), q.tensor_scale.bits)


def _packed(x: Tensor, shape: Sequence[Any], bits: int) -> Tensor:
    return x.new_empty((math.prod(shape) * bits + 7) // 8, dtype=torch.uint8)


def _grid(block: str, shape: Sequence[Any], axis: int) -> Sequence[Any]:
    """`Scaled.scales_shape` for sizes that may be symbolic."""
    rank = len(shape)
    if rank == 0 or block == "tensor":
        return ()
    if not -rank <= axis < rank:
        raise ValueError(f"axis must be {-rank}…{rank - 1}, got {axis}")
    grid, along = list(shape), axis % rank
    if block == "row":
        grid[along] = 0 if grid[along] == 0 else 1
        return grid
    rows, columns = map(int, block.split("x")) if "x" in block else (1, int(block))
    grid[along] = (grid[along] + columns - 1) // columns
    other = rank - 2 if along == rank - 1 else rank - 1
    if other >= 0:
        grid[other] = (grid[other] + rows - 1) // rows
    return grid


# ---- derivatives: straight through x; scales have none -------------------------------------------


def _keep_types(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    """The derivative is that of x."""
    ctx.dtype = inputs[0].dtype
    ctx.to = inputs[-1] or ctx.dtype


# ---- batching rules ------------------------------------------------------------------------------


def _covers(call: BatchedCall) -> bool:
    """Returns whether one scale covers a whole example."""
    q = named_scaled(call.arguments["scaled"])
    return q.block == "tensor" or (q.tensor_scale is not None and q.outer == "tensor")


def _needs_calls(call: BatchedCall) -> bool:
    """Returns whether each example needs a separate call.

    It does if one scale covers all of it, or its scales are packed codes, whose bytes belong to one
    example.
    """
    levels = [call.arguments[name] for name in _LEVEL_ARGUMENTS if call.arguments[name] is not None]
    return _covers(call) or any(each.dtype == torch.uint8 for each in levels)


def _widen_both(call: BatchedCall) -> Callable[[Tensor], Tensor]:
    """Puts the batch before x; it comes after the two in the result."""
    rank = call.rank("x")
    axes = call.arguments["axes"]
    call.arguments["axes"] = [axis if axis < 0 else axis - rank for axis in axes]
    call.widen("x")
    return lambda y: y.movedim(1, 0)


def _widen(call: BatchedCall) -> Callable[[Tensor], Tensor] | None:
    """Puts the batch in front, of the levels of scales, too."""
    without_added = widen_blocks(call, "x", "random")
    for name in _LEVEL_ARGUMENTS:
        if call.arguments[name] is not None:
            call.widen(name)
            call.arguments[name] = call.arguments[name].contiguous()
    return without_added


# ---- the rows ------------------------------------------------------------------------------------

operator(
    "cast_scaled",
    lambda x, *args: torch.empty_like(x, dtype=args[-1]),
    Derivative(
        _keep_types,
        lambda ctx, grad: (grad.to(ctx.dtype),),
        lambda ctx, t: t[0].to(ctx.to),
    ),
    Batching(_widen, alone=_needs_calls),
    has_out=True,
)
operator(
    "cast_scaled_both",
    lambda x, *args: x.new_empty((2, *x.shape), dtype=args[-1]),
    Derivative(
        _keep_types,
        lambda ctx, grad: ((grad[0] + grad[1]).to(ctx.dtype),),
        lambda ctx, t: t[0].to(ctx.to).expand(2, *t[0].shape),
    ),
    Batching(_widen_both, alone=lambda call: call.rank("x") < 2 or _covers(call)),
)
operator("cast_scaled_apart", _apart)
operator("cast_scaled_narrow", None)
operator("encode_scaled", _encoded, batching=Batching(None))
operator(
    "decode_scaled",
    lambda codes, *args: codes.new_empty(args[-2], dtype=args[-1]),
    batching=Batching(None, never),
    has_out=True,
)
operator(
    "gemm_scaled",
    lambda a, *args: a.new_empty(product_shape(a.shape, args[4].shape), dtype=torch.float32),
)
