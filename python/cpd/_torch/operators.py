# SPDX-License-Identifier: Apache-2.0
"""Adds the elementwise operators and the sums to the table of torch.ops.cpd.*.

The kernels are in libcpd_torch. Importing this module registers all operators that `cpd.ops` needs,
by adding them to the table in `cpd._torch.table`.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from cpd._torch import gemm as gemm_rows  # noqa: F401  # adds its rows
from cpd._torch import kept as kept  # adds its rows
from cpd._torch import rounding as rounding  # adds its row
from cpd._torch import scaled as scaled  # adds its rows
from cpd._torch.derivatives import Derivative, Tangents, saved, total
from cpd._torch.library import ops as _ops
from cpd._torch.on_torch import check_float as check_float
from cpd._torch.on_torch import name_of as name_of
from cpd._torch.on_torch import result_type as result_type
from cpd._torch.table import operator
from cpd._torch.vmap import (
    Batching,
    never,
    sum_draws,
    widen_elements,
    widen_hadamard,
    widen_sum,
)
from cpd.numeric.cast import element_of, named_cast
from cpd.numeric.hadamard import linear_text

# ---- derivatives: those of the exact operation; a cast's is straight through --------------------


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    """Saves no tensors: derivatives of a linear operator do not depend on the operands' values."""


def _keep_factors(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    ctx.save_for_backward(*inputs[:2])
    if forward:
        ctx.save_for_forward(*inputs[:2])


def _keep_dim(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    ctx.dim, ctx.shape = inputs[1], inputs[0].shape


def _mul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    for_x, for_y = ctx.needs_input_grad[:2]
    return grad * y if for_x else None, grad * x if for_y else None


def _mul_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    x, y = saved(ctx)
    of_x, of_y = tangents[:2]
    return total(None if of_x is None else of_x * y, None if of_y is None else x * of_y)


def _fma_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    of_product = _mul_tangent(ctx, tangents) if tangents[:2] != (None, None) else None
    return total(of_product, tangents[2])


def _div_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    for_x, for_y = ctx.needs_input_grad[:2]
    return grad / y if for_x else None, -grad * x / (y * y) if for_y else None


def _div_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    x, y = saved(ctx)
    of_x, of_y = tangents[:2]
    return total(None if of_x is None else of_x / y, None if of_y is None else -of_y * x / (y * y))


def _keep_x(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    ctx.save_for_backward(inputs[0])
    if forward:
        ctx.save_for_forward(inputs[0])


def _keep_transform(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    _, text, ctx.axis, ctx.inverse = inputs
    ctx.text = linear_text(text)


# ---- the rows: the fake kernels give types and shapes as the kernels do --------------------------


def _like(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x)


def _contiguous(x: Tensor, *args: Any) -> Tensor:
    return x.new_empty(x.shape)


def _sum(x: Tensor, dim: int, *args: Any, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(x.shape[:dim] + x.shape[dim + 1 :], dtype=dtype)


def _packed(x: Tensor, text: str, *args: Any) -> Tensor:
    bits = element_of(named_cast(text)).bits
    return x.new_empty((x.numel() * bits + 7) // 8, dtype=torch.uint8)


_ELEMENTS, _SUM = Batching(widen_elements), Batching(widen_sum, sum_draws)


def _rounded(name: str, setup: Any, backward: Any, tangent: Any, fake: Any = _contiguous) -> None:
    """Adds an elementwise operator, whose results are rounded once, to the operator table."""
    operator(name, fake, Derivative(setup, backward, tangent), _ELEMENTS, has_out=True)


_rounded("cast", _keep_nothing, lambda ctx, grad: (grad,), lambda ctx, t: t[0], _like)
_rounded("add", _keep_nothing, lambda ctx, grad: (grad, grad), lambda ctx, t: total(*t[:2]))
_rounded("mul", _keep_factors, _mul_backward, _mul_tangent)
_rounded("fma", _keep_factors, lambda ctx, grad: (*_mul_backward(ctx, grad), grad), _fma_tangent)
_rounded("div", _keep_factors, _div_backward, _div_tangent)
_rounded(
    "sqrt",
    _keep_x,
    lambda ctx, grad: (grad / (2 * ctx.saved_tensors[0].sqrt()),),
    lambda ctx, tangents: tangents[0] / (2 * saved(ctx)[0].sqrt()),
)
operator("flags", lambda x, *args: x.new_empty(x.shape, dtype=torch.uint8), batching=_ELEMENTS)
operator(
    "sum",
    _sum,
    Derivative(
        _keep_dim,
        lambda ctx, grad: (grad.unsqueeze(ctx.dim).expand(ctx.shape),),
        lambda ctx, tangents: tangents[0].sum(ctx.dim),
    ),
    _SUM,
)
operator("sum_flags", functools.partial(_sum, dtype=torch.uint8), batching=_SUM)
operator(
    "hadamard",
    _like,
    Derivative(
        _keep_transform,
        lambda ctx, grad: (_ops.hadamard(grad, ctx.text, ctx.axis, not ctx.inverse),),
        lambda ctx, tangents: _ops.hadamard(tangents[0], ctx.text, ctx.axis, ctx.inverse),
    ),
    Batching(widen_hadamard, never),
    has_out=True,
)
operator("encode", _packed, batching=Batching(None))
operator(
    "decode",
    lambda codes, f, shape, dtype: codes.new_empty(shape, dtype=dtype),
    batching=Batching(None, never),
    has_out=True,
)
