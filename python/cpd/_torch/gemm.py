# SPDX-License-Identifier: Apache-2.0
"""Matrix products on torch tensors: derivatives of torch.ops.cpd.gemm, and the operator matmul.

The operators matmul and convolution (`cpd._torch.convolution`) take the text of a recipe
(`cpd._torch.recipe`), which has accumulators for the backward GEMMs. `cpd.ops`, `cpd.functional`
and `cpd.Recipe` document the arithmetic.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch.derivatives import Derivative, Tangents, run, saved, total
from cpd._torch.library import ops
from cpd._torch.native import HALVES, Factor, as_factor
from cpd._torch.recipe import SCHEMA, RecipeCall, recipe_draws, resolved, scales_apart
from cpd._torch.scaled_products import encoded, scaled_product
from cpd._torch.scaled_products import turned as turned_operand
from cpd._torch.sums import NATIVE, Ints, Sum, of_type, product
from cpd._torch.table import operator
from cpd._torch.vmap import Batching, sum_draws, widen_product
from cpd.numeric.purposes import Purpose
from cpd.ops.arguments import product_shape

# ---- gradients of products ---------------------------------------------------------------------


class Operand(NamedTuple):
    """The shape and dtype of an operand, which its gradient must have, too."""

    shape: Ints
    dtype: torch.dtype


def _like(x: Tensor | None) -> Operand | None:
    return None if x is None else Operand(x.shape, x.dtype)


def contract(
    x: Tensor | Factor,
    y: Tensor | Factor,
    batch: Ints,
    like: Operand,
    summation: Sum,
    blas: bool,
    left_out: float = 1,
    rounded: torch.dtype | None = None,
) -> Tensor:
    """Computes the gradient of the operand `like`: x times y, summed where `like` was broadcast.

    `batch` has the sizes of all batch dimensions. The summed index k runs over the batch dimensions
    along which `like` was broadcast, then over x's columns, in row-major order. The sums are
    divided by `left_out`, the product of the factors of the operands' casts. The result is rounded
    to the dtype `rounded`, if it is not None, then to the dtype of `like`.
    """
    missing = len(batch) - (len(like.shape) - 2)
    folded = [
        d for d, n in enumerate(batch) if n != 1 and (d < missing or like.shape[d - missing] == 1)
    ]
    if folded:
        x, y = as_factor(x), as_factor(y)  # scales cover whole tensors where there are batches
        scaled = x.scale, y.scale
        short = x.short, y.short
        x, y = x.values, y.values
        remaining = [d for d in range(len(batch)) if d not in folded]
        row = len(batch)
        x = x.expand(*batch, *x.shape[-2:]).permute(*remaining, row, *folded, row + 1)
        y = y.expand(*batch, *y.shape[-2:]).permute(*remaining, *folded, row, row + 1)
        x = x.flatten(len(remaining) + 1)
        y = y.flatten(len(remaining), -2)
        x, y = (Factor(v, s, b) for v, s, b in zip((x, y), scaled, short, strict=True))
    first = like.dtype if rounded is None else rounded
    z = scaled_back(lambda dtype: product(x, y, None, summation, dtype, blas), left_out, first)
    return of_type(z, like.dtype).reshape(like.shape)


def scaled_back(
    compute: Callable[[torch.dtype], Tensor], left_out: float, dtype: torch.dtype
) -> Tensor:
    """Returns a product divided by `left_out`, in `dtype`.

    `compute` returns the product in a given dtype. `left_out` is the product of the factors of the
    operands' casts. Unless `left_out` is 1, the float32 product is multiplied by 1 / `left_out`,
    then converted to `dtype`.
    """
    if left_out == 1:
        return compute(dtype)
    return of_type(compute(torch.float32) * (1 / left_out), dtype)


def addend_gradient(g: Tensor, like: Operand, summation: Sum) -> Tensor:
    """Returns `g` summed over the dimensions along which `like` was broadcast.

    The sums are in row-major order.
    """
    missing = g.dim() - len(like.shape)
    folded = [
        d for d, n in enumerate(g.shape) if n != 1 and (d < missing or like.shape[d - missing] == 1)
    ]
    if not folded:
        return g.reshape(like.shape).to(like.dtype)
    if summation.is_native():
        return run("native_sum", g, folded).reshape(like.shape).to(like.dtype)
    remaining = [d for d in range(g.dim()) if d not in folded]
    terms = g.permute(*folded, *remaining).flatten(0, len(folded) - 1)
    terms = terms.flatten(1) if remaining else terms.unsqueeze(1)
    ones = g.new_ones(()).expand(1, terms.shape[0])
    return product(ones, terms, None, summation.of_terms(), like.dtype).reshape(like.shape)


class Products(NamedTuple):
    """The sums of a layer's backward pass: for the gradients of input, weight and bias."""

    grad_input: Sum
    grad_weight: Sum
    grad_bias: Sum

    @classmethod
    def of(cls, call: RecipeCall) -> Products:
        """Returns the accumulators of the backward GEMMs, with the seeds and streams of a call."""
        return cls(
            call.sum(Purpose.grad_input), call.sum(Purpose.grad_weight), call.sum(Purpose.grad_bias)
        )


def _product_gradients(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    sums: Products,
    call: RecipeCall,
    blas: bool = False,
    turned: bool = False,
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of a, b and c in a @ b + c, or None for gradients not needed.

    `call` has the casts of the operands. If `turned`, b is stored transposed.
    """
    like_a, like_b, like_c = ctx.like
    for_a, for_b, for_c = ctx.needs_input_grad[:3]
    of_c = addend_gradient(g, like_c, sums.grad_bias) if for_c else None
    if call.scales_at != "operand":
        of_a, of_b = _scaled_gradients(ctx, a, b, g, sums, call, turned)
        return of_a, of_b, of_c
    batch = g.shape[:-2]
    type_a = call.gradient_type(like_a.dtype, Purpose.grad_input)
    type_b = call.gradient_type(like_b.dtype, Purpose.grad_weight)
    narrowest = type_a if type_a in HALVES else type_b
    to_input, to_weight = call.gradients(g, (for_a, for_b), (-1, -2), narrowest)
    of_a = of_b = None
    if for_a:
        weight = call.factor(Purpose.recast_weight, b, -2 if turned else -1, type_a)
        weight = weight if turned else weight.mT
        left_out = call.left_out(Purpose.cast_gradient, Purpose.recast_weight)
        of_a = contract(to_input, weight, batch, like_a, sums.grad_input, blas, left_out, type_a)
    if for_b:
        activation = call.factor(Purpose.recast_activation, a, -2, type_b)
        left_out = call.left_out(Purpose.recast_activation, Purpose.recast_gradient)
        rest = batch, like_b, sums.grad_weight, blas, turned, left_out, type_b
        of_b = _weight_gradient(activation, to_weight, *rest)
    return of_a, of_b, of_c


def _scaled_gradients(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    sums: Products,
    call: RecipeCall,
    is_turned: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of a and b for a recipe that applies scales to sums, not operands."""
    like_a, like_b, _ = ctx.like
    at = call.scales_at
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        weight = encoded(call, Purpose.recast_weight, b, -2 if is_turned else -1)
        gradient = encoded(call, Purpose.cast_gradient, g, -1)
        weight = weight if is_turned else turned_operand(weight)
        of_a = scaled_product(gradient, weight, None, sums.grad_input, at, like_a.dtype)
    if ctx.needs_input_grad[1]:
        activation = turned_operand(encoded(call, Purpose.recast_activation, a, -2))
        gradient = encoded(call, Purpose.recast_gradient, g, -2)
        of_b = scaled_product(activation, gradient, None, sums.grad_weight, at, like_b.dtype)
        of_b = of_b.mT if is_turned else of_b
    return of_a, of_b


def _weight_gradient(
    a: Factor,
    g: Factor,
    batch: Ints,
    like: Operand,
    summation: Sum,
    blas: bool,
    turned: bool,
    left_out: float,
    rounded: torch.dtype,
) -> Tensor:
    """Returns aᵀ g, or its transpose gᵀ a if `turned`.

    Both products have the same values, but gᵀ a is stored as a layer's weight is. If sums round
    stochastically, the random bits depend on the index in aᵀ g, also if `turned`.
    """
    if not turned:
        return contract(a.mT, g, batch, like, summation, blas, left_out, rounded)
    if not summation.is_stochastic():
        return contract(g.mT, a, batch, like, summation.swapped(), blas, left_out, rounded)
    *rest, outputs, inputs = like.shape
    like = like._replace(shape=(*rest, inputs, outputs))
    return contract(a.mT, g, batch, like, summation, blas, left_out, rounded).mT


def keep(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    *numbers: Tensor | None,
    forward: bool = False,
) -> None:
    """Saves a if b's gradient is needed, and b if a's gradient is needed.

    If `forward`, saves both for tangents, too. Always saves `numbers`: further tensors, such as the
    seed.
    """
    ctx.like = _like(a), _like(b), _like(c)
    for_a, for_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if for_b else None, b if for_a else None, *numbers)
    if forward:
        ctx.save_for_forward(a, b, *numbers)


def product_tangent(
    tangents: Tangents, a: Tensor, b: Tensor, summation: Sum, dtype: torch.dtype, blas: bool = False
) -> Tensor:
    """Returns the tangent (forward-mode derivative) of the matrix product of a and b, plus c.

    The tangent is the float32 sum of three terms: a's tangent times b, a times b's tangent, and c's
    tangent. Both products use the forward product's accumulator, each with its own random bits.
    """
    of_a, of_b, of_c = tangents[:3]
    shape = product_shape(a.shape, b.shape)
    terms = (
        None
        if of_a is None
        else product(of_a, b, None, summation.drawing(Purpose.tangent_input), torch.float32, blas),
        None
        if of_b is None
        else product(a, of_b, None, summation.drawing(Purpose.tangent_weight), torch.float32, blas),
        None if of_c is None else of_c.float().expand(shape),
    )
    return total(*terms).to(dtype)


_UNCAST = RecipeCall(resolved(NATIVE))
"""The `RecipeCall` of a product whose operands are not cast."""


def _setup_gemm(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    a, b, c, ctx.text, seed, stream, ctx.dtype, ctx.blas, _ = inputs
    keep(ctx, a, b, c, seed, stream, forward=forward)


def _gemm_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    a, b, seed, stream = saved(ctx)
    return product_tangent(tangents, a, b, Sum(ctx.text, seed, stream), ctx.dtype, ctx.blas)


def _gemm_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    a, b, seed, stream = ctx.saved_tensors
    summation = Sum(ctx.text, seed, stream)
    sums = Products(
        summation.drawing(Purpose.grad_input),
        summation.drawing(Purpose.grad_weight),
        summation._replace(text="fp32 sequential").drawing(Purpose.grad_bias),
    )
    return _product_gradients(ctx, a, b, g, sums, _UNCAST, ctx.blas)


def _fake_product(
    a: Tensor, b: Tensor, c: Any, text: str, seed: Any, stream: Any, dtype: Any, *rest: Any
) -> Tensor:
    return a.new_empty(product_shape(a.shape, b.shape), dtype=dtype)


_PRODUCT = Batching(widen_product, sum_draws)
operator("gemm", _fake_product, Derivative(_setup_gemm, _gemm_backward, _gemm_tangent), _PRODUCT)
operator(
    "gemm_flags",
    lambda a, b, *args: a.new_empty(product_shape(a.shape, b.shape), dtype=torch.uint8),
    batching=_PRODUCT,
)
operator("gemm_part", _fake_product)
operator("product_of_bf16", None)


# ---- operators made of gemm ----------------------------------------------------------------------


def _native_sum(x: Tensor, dims: Ints) -> Tensor:
    """Sums `x` by torch's own kernel.

    An operator hides this sum from compilers, which would generate code with another order of sums.
    """
    return x.sum(list(dims), keepdim=True)


def _setup_native_sum(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    x, ctx.dims = inputs
    ctx.shape = x.shape


def _native_sum_of_samples(info: Any, along: Any, x: Tensor, dims: Ints) -> tuple[Tensor, int]:
    return ops.native_sum(x.movedim(along[0], 0), [d + 1 for d in dims]), 0


operator(
    "native_sum(Tensor x, int[] dims) -> Tensor",
    _native_sum,
    Derivative(
        _setup_native_sum,
        lambda ctx, g: (g.expand(ctx.shape), None),
        lambda ctx, tangents: run("native_sum", tangents[0], ctx.dims),
    ),
    _native_sum_of_samples,
    _native_sum,
)


def _matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    turned: bool,
    recipe: str,
    numbers: Tensor | None,
    multipliers: Tensor | None,
    narrow: torch.dtype | None,
    dtype: torch.dtype,
) -> Tensor:
    call = RecipeCall(resolved(recipe), numbers, multipliers, narrow)
    summation = call.sum(Purpose.given)
    if call.scales_at != "operand":
        left = encoded(call, Purpose.cast_activation, a, -1)
        right = encoded(call, Purpose.cast_weight, b, -1 if turned else -2)
        right = turned_operand(right) if turned else right
        return scaled_product(left, right, c, summation, call.scales_at, dtype)
    with torch.no_grad():
        x = call.factor(Purpose.cast_activation, a, -1, dtype)
        y = call.factor(Purpose.cast_weight, b, -1 if turned else -2, dtype)
    y = y.mT if turned else y
    c = None if c is None else call.narrowed(c, Purpose.given)
    if call.leaves_factors():
        left_out = call.left_out(Purpose.cast_activation, Purpose.cast_weight)
        z = product(x, y, None, summation, torch.float32) * (1 / left_out)
        return of_type(z if c is None else z + c.float(), dtype)
    return product(x, y, c, summation, dtype)


def _factors(a: Tensor, b: Tensor, turned: bool, call: RecipeCall) -> tuple[Tensor, Tensor]:
    """Returns the cast matrices of the forward product."""
    a = call.cast(Purpose.cast_activation, a, -1)
    b = call.cast(Purpose.cast_weight, b, -1 if turned else -2)
    return a, b.mT if turned else b


def _fake_matmul(a: Tensor, b: Tensor, c: Any, turned: bool, *args: Any) -> Tensor:
    shape = product_shape(a.shape, b.mT.shape if turned else b.shape)
    return a.new_empty(shape, dtype=args[-1])


def _setup_matmul(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    a, b, c, ctx.turned, ctx.recipe, numbers, multipliers, ctx.narrow, ctx.dtype = inputs
    keep(ctx, a, b, c, numbers, multipliers, forward=forward)


def _matmul_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    a, b, numbers, multipliers = ctx.saved_tensors
    call = RecipeCall(resolved(ctx.recipe), numbers, multipliers, ctx.narrow)
    return _product_gradients(ctx, a, b, g, Products.of(call), call, turned=ctx.turned)


def _matmul_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    a, b, numbers, multipliers = saved(ctx)
    call = RecipeCall(resolved(ctx.recipe), numbers, multipliers, ctx.narrow)
    a, b = _factors(a, b, ctx.turned, call)
    of_a, of_b, *rest = tangents
    if of_b is not None and ctx.turned:
        of_b = of_b.mT
    return product_tangent((of_a, of_b, *rest), a, b, call.sum(Purpose.given), ctx.dtype)


operator(
    f"matmul(Tensor a, Tensor b, Tensor? c, bool turned, {SCHEMA}) -> Tensor",
    _fake_matmul,
    Derivative(_setup_matmul, _matmul_backward, _matmul_tangent),
    Batching(widen_product, recipe_draws, scales_apart),
    _matmul,
)
"""Computes the product of a and b, plus c. If `turned`, b is stored transposed, like a weight."""
