# SPDX-License-Identifier: Apache-2.0
"""Adds the operators of scaled formats to the table of torch.ops.cpd.* (`cpd._torch.table`).

`cpd.ops` documents the arithmetic of cast_scaled, encode_scaled and decode_scaled. cast_scaled_both
casts a layer's gradient along each of two axes and stacks the two results. The argument `scaled` is
the text of the scaled format. `how` is the text of the cast of the elements (`cast.elements`).
`dtype` is the dtype of the result, which must represent the values of x; None means the dtype of x.
Scales are computed from x in the dtype of x.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cpd._torch.derivatives import Derivative
from cpd._torch.table import operator
from cpd._torch.vmap import BatchedCall, Batching, never, widen_blocks
from cpd.numeric.scaled import named_scaled
from cpd.ops.arguments import product_shape

_LEVEL_ARGUMENTS = ("scales", "tensor_scales", "amax")
"""The operators' arguments for block scales, outer scales and largest magnitudes, in this order."""


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
    """Returns the number of blocks along each dimension of a tensor, like `Scaled.scales_shape`.

    Sizes may be symbolic ints of torch.
    """
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
    """Saves the dtypes of x and of the result for the derivatives. x's gradient has x's dtype."""
    ctx.dtype = inputs[0].dtype
    ctx.to = inputs[-1] or ctx.dtype


# ---- batching rules ------------------------------------------------------------------------------


def _covers(call: BatchedCall) -> bool:
    """Returns whether one scale covers a whole example of torch.vmap."""
    q = named_scaled(call.arguments["scaled"])
    return q.block == "tensor" or (q.tensor_scale is not None and q.outer == "tensor")


def _needs_calls(call: BatchedCall) -> bool:
    """Returns whether each example of torch.vmap needs a separate call.

    A separate call is needed if one scale covers a whole example, or if scales are packed codes,
    because each example has its own bytes.
    """
    levels = [call.arguments[name] for name in _LEVEL_ARGUMENTS if call.arguments[name] is not None]
    return _covers(call) or any(level.dtype == torch.uint8 for level in levels)


def _widen_both(call: BatchedCall) -> Callable[[Tensor], Tensor]:
    """Puts the batch of torch.vmap before the dimensions of x, for one call of cast_scaled_both.

    The result stacks two casts, so the batch is its second dimension. The returned function moves
    the batch to the front.
    """
    rank = call.rank("x")
    axes = call.arguments["axes"]
    call.arguments["axes"] = [axis if axis < 0 else axis - rank for axis in axes]
    call.widen("x")
    return lambda y: y.movedim(1, 0)


def _widen(call: BatchedCall) -> Callable[[Tensor], Tensor] | None:
    """Puts the batch of torch.vmap before the dimensions of x, of random integers and of scales."""
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
