# SPDX-License-Identifier: Apache-2.0
"""Matrix products on torch tensors: derivatives of torch.ops.cpd.gemm, and the operator matmul,
which carries the accumulators of its backward GEMMs with it, as conv2d does (`cpd._torch.conv`).
Documented in `cpd.ops`, `cpd.functional` and `cpd.Recipe`. What the operators take of a recipe:

`sums`: the texts of four accumulators: forward, grad_input, grad_weight, grad_bias; `native` is
torch's own kernel; and, where scales are not applied to each operand, a fifth, `block` or
`epilogue`. `operands`: how the operands of the three GEMMs are cast there (`OperandSpec`'s
texts, in the order of `Recipe.operands`); empty: they come as they are. `numbers`: their seeds and
streams, int64, 10 x 2; None where nothing is stochastic. `multipliers`: of activation, weight
and gradient, where scaling is delayed.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd import _core
from cpd._torch.derivatives import Tangents, differentiable, saved, total
from cpd._torch.library import ops
from cpd._torch.operands import (
    FORWARD_ACTIVATION,
    FORWARD_WEIGHT,
    INPUT_GRADIENT,
    INPUT_WEIGHT,
    WEIGHT_ACTIVATION,
    WEIGHT_GRADIENT,
    Operands,
)
from cpd._torch.scaled_products import encoded, scaled_product
from cpd._torch.scaled_products import turned as turned_operand
from cpd.numeric.accumulator import parsed
from cpd.numeric.compiling import constant
from cpd.numeric.streams import stream_tag
from cpd.ops.arguments import holds, product_shape
from cpd.ops.slow import warn_if_slow

GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS = "grad_input", "grad_weight", "grad_bias"
CAST_ACTIVATION, CAST_WEIGHT = "cast_activation", "cast_weight"
CAST_GRADIENT, CAST_OUTPUT = "cast_gradient", "cast_output"
RECAST_ACTIVATION, RECAST_WEIGHT = "recast_activation", "recast_weight"
RECAST_GRADIENT = "recast_gradient"
TANGENT_A, TANGENT_B = "tangent_input", "tangent_weight"
"""What a random stream is for, by its name in the table of streams (`cpd.numeric.streams`)."""

NATIVE = "native"
"""The text of the sum of torch's own kernel."""

Strings = Sequence[str]
Ints = Sequence[int]


def tagged(stream: Tensor, purpose: str, layer: int = 0) -> Tensor:
    """The stream for a purpose in a layer, from the one that was given."""
    return stream ^ stream_tag(purpose, layer)


class Sum(NamedTuple):
    """An accumulator, by its text, and the tensors of its random bits."""

    text: str
    seed: Tensor | None
    stream: Tensor | None

    def into(self, dtype: torch.dtype) -> torch.dtype:
        """`dtype` where it holds the sums, else float32."""
        if self.is_native():
            return dtype
        return dtype if holds(_name(dtype), parsed(self.text).format.name) else torch.float32

    def is_native(self) -> bool:
        """Whether torch's own kernel forms them."""
        return self.text == NATIVE

    def is_stochastic(self) -> bool:
        return not self.is_native() and parsed(self.text).rounding == "stochastic"

    def drawing(self, purpose: str) -> Sum:
        """With the random bits of another purpose."""
        if self.stream is None:
            return self
        return self._replace(stream=tagged(self.stream, purpose))

    def swapped(self) -> Sum:
        """For the product's transpose, whose operands have changed places."""
        return self if self.is_native() else self._replace(text=_swapped(self.text))

    def of_terms(self) -> Sum:
        """For terms that are no products: they are rounded only as they are added."""
        return self if self.is_native() else self._replace(text=_of_terms(self.text))


@constant
def _of_terms(text: str) -> str:
    return _core.Accumulator(text).of_terms().text


@constant
def _swapped(text: str) -> str:
    return _core.Accumulator(text).swapped().text


def product(
    a: Tensor, b: Tensor, c: Tensor | None, how: Sum, dtype: torch.dtype, blas: bool = False
) -> Tensor:
    """gemm, rounded once more to nearest-even where `dtype` does not hold its sums; or torch's."""
    if how.is_native():
        return native_product(a, b, c, dtype)
    if a.device.type == "cpu":
        warn_if_slow(parsed(how.text), a.shape, b.shape, 2)
    y = ops.gemm(a, b, c, how.text, how.seed, how.stream, how.into(dtype), blas, None)
    return y.to(dtype)


def native_product(a: Tensor, b: Tensor, c: Tensor | None, dtype: torch.dtype) -> Tensor:
    """c + a b as torch.nn.functional.linear computes it, in the wider of the operands' types."""
    common = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(common), b.to(common)
    if c is None:
        return (a @ b).to(dtype)
    c = c.to(common)
    y = torch.addmm(c, a, b) if a.dim() == b.dim() == 2 else a @ b + c
    return y.to(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def taken(sums: Strings, numbers: Tensor | None, which: int) -> Sum:
    """One of a recipe's sums."""
    return Sum(sums[which], *_pair(numbers, which))


def scales_at(sums: Strings) -> str:
    """Where scales are applied: to each `operand`, to sums over a `block`, or at the end."""
    return sums[4] if len(sums) > 4 else "operand"


def _pair(numbers: Tensor | None, which: int) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if numbers is None else (numbers[which, 0], numbers[which, 1])


# ---- gradients of products ---------------------------------------------------------------------


class Operand(NamedTuple):
    """What a gradient must be like."""

    shape: Ints
    dtype: torch.dtype


def _like(x: Tensor | None) -> Operand | None:
    return None if x is None else Operand(x.shape, x.dtype)


def contract(x: Tensor, y: Tensor, batch: Ints, like: Operand, how: Sum, blas: bool) -> Tensor:
    """x times y, summed over the dimensions of `batch` along which `like` was broadcast as well,
    before the matrices' own: k is row-major in them."""
    missing = len(batch) - (len(like.shape) - 2)
    folded = [
        d for d, n in enumerate(batch) if n != 1 and (d < missing or like.shape[d - missing] == 1)
    ]
    if folded:
        kept = [d for d in range(len(batch)) if d not in folded]
        row = len(batch)
        x = x.expand(*batch, *x.shape[-2:]).permute(*kept, row, *folded, row + 1)
        y = y.expand(*batch, *y.shape[-2:]).permute(*kept, *folded, row, row + 1)
        x = x.flatten(len(kept) + 1)
        y = y.flatten(len(kept), -2)
    return product(x, y, None, how, like.dtype, blas).reshape(like.shape)


def addend_gradient(g: Tensor, like: Operand, how: Sum) -> Tensor:
    """`g`, summed in row-major order over the dimensions along which `like` was broadcast."""
    missing = g.dim() - len(like.shape)
    folded = [
        d for d, n in enumerate(g.shape) if n != 1 and (d < missing or like.shape[d - missing] == 1)
    ]
    if not folded:
        return g.reshape(like.shape).to(like.dtype)
    if how.is_native():
        return ops.native_sum(g, folded).reshape(like.shape).to(like.dtype)
    kept = [d for d in range(g.dim()) if d not in folded]
    terms = g.permute(*folded, *kept).flatten(0, len(folded) - 1)
    terms = terms.flatten(1) if kept else terms.unsqueeze(1)
    ones = g.new_ones(()).expand(1, terms.shape[0])
    return product(ones, terms, None, how.of_terms(), like.dtype).reshape(like.shape)


class Products(NamedTuple):
    """The three sums of a backward pass."""

    grad_input: Sum
    grad_weight: Sum
    grad_bias: Sum


def _product_gradients(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    operands: Operands,
    sums: Products,
    blas: bool,
    turned: bool = False,
    scales_at: str = "operand",
) -> tuple[Tensor | None, ...]:
    """Of a, b and c in c + a b; `turned`: b is the transpose."""
    like_a, like_b, like_c = ctx.like
    for_a, for_b, for_c = ctx.needs_input_grad[:3]
    of_c = addend_gradient(g, like_c, sums.grad_bias) if for_c else None
    if scales_at != "operand":
        of_a, of_b = _scaled_gradients(ctx, a, b, g, operands, sums, turned, scales_at)
        return of_a, of_b, of_c
    batch = g.shape[:-2]
    to_input, to_weight = operands.gradients(g, (for_a, for_b), (-1, -2))
    of_a = of_b = None
    if for_a:
        weight = operands.cast(INPUT_WEIGHT, b, -2 if turned else -1)
        weight = weight if turned else weight.mT
        of_a = contract(to_input, weight, batch, like_a, sums.grad_input, blas)
        of_a = operands.unfactored(of_a, INPUT_GRADIENT, INPUT_WEIGHT)
    if for_b:
        activation = operands.cast(WEIGHT_ACTIVATION, a, -2)
        of_b = _weight_gradient(
            activation, to_weight, batch, like_b, sums.grad_weight, blas, turned
        )
        of_b = operands.unfactored(of_b, WEIGHT_ACTIVATION, WEIGHT_GRADIENT)
    return of_a, of_b, of_c


def _scaled_gradients(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    casts: Operands,
    sums: Products,
    is_turned: bool,
    at: str,
) -> tuple[Tensor | None, Tensor | None]:
    """Of a and b, whose scales are applied to sums."""
    like_a, like_b, _ = ctx.like
    of_a = of_b = None
    if ctx.needs_input_grad[0]:
        weight = encoded(casts, INPUT_WEIGHT, b, -2 if is_turned else -1)
        gradient = encoded(casts, INPUT_GRADIENT, g, -1)
        weight = weight if is_turned else turned_operand(weight)
        of_a = scaled_product(gradient, weight, None, sums.grad_input, at, like_a.dtype)
    if ctx.needs_input_grad[1]:
        activation = turned_operand(encoded(casts, WEIGHT_ACTIVATION, a, -2))
        gradient = encoded(casts, WEIGHT_GRADIENT, g, -2)
        of_b = scaled_product(activation, gradient, None, sums.grad_weight, at, like_b.dtype)
        of_b = of_b.mT if is_turned else of_b
    return of_a, of_b


def _weight_gradient(
    a: Tensor, g: Tensor, batch: Ints, like: Operand, how: Sum, blas: bool, turned: bool
) -> Tensor:
    """The transpose of a, by g; torch's own kernel forms the transpose of that where b was."""
    if not turned:
        return contract(a.mT, g, batch, like, how, blas)
    if how.is_native():
        return contract(g.mT, a, batch, like, how, blas)
    *rest, outputs, inputs = like.shape
    like = like._replace(shape=(*rest, inputs, outputs))
    return contract(a.mT, g, batch, like, how, blas).mT


def keep(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    *numbers: Tensor | None,
    forward: bool = False,
) -> None:
    """Saves each factor only where the other one's gradient is asked for. `forward`: for tangents
    too."""
    ctx.like = _like(a), _like(b), _like(c)
    for_a, for_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if for_b else None, b if for_a else None, *numbers)
    if forward:
        ctx.save_for_forward(a, b, *numbers)


def product_tangent(
    tangents: Tangents, a: Tensor, b: Tensor, how: Sum, dtype: torch.dtype, blas: bool = False
) -> Tensor:
    """The tangent of c + a b: two products with the accumulator of the forward one, each with its
    own random bits, and c's tangent; they are added in float32."""
    of_a, of_b, of_c = tangents[:3]
    shape = product_shape(a.shape, b.shape)
    terms = (
        None
        if of_a is None
        else product(of_a, b, None, how.drawing(TANGENT_A), torch.float32, blas),
        None
        if of_b is None
        else product(a, of_b, None, how.drawing(TANGENT_B), torch.float32, blas),
        None if of_c is None else of_c.float().expand(shape),
    )
    return total(*terms).to(dtype)


_AS_GIVEN = Operands(("",) * 6, None, None)


def _setup_gemm(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    a, b, c, ctx.text, seed, stream, ctx.dtype, ctx.blas, _ = inputs
    keep(ctx, a, b, c, seed, stream, forward=forward)


def _gemm_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    a, b, seed, stream = saved(ctx)
    return product_tangent(tangents, a, b, Sum(ctx.text, seed, stream), ctx.dtype, ctx.blas)


def _gemm_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    a, b, seed, stream = ctx.saved_tensors
    how = Sum(ctx.text, seed, stream)
    sums = Products(
        how.drawing(GRAD_INPUT),
        how.drawing(GRAD_WEIGHT),
        how._replace(text="fp32 sequential").drawing(GRAD_BIAS),
    )
    return _product_gradients(ctx, a, b, g, _AS_GIVEN, sums, ctx.blas)


@torch.library.register_fake("cpd::gemm")
@torch.library.register_fake("cpd::gemm_plain")
def _(
    a: Tensor,
    b: Tensor,
    c: Any,
    text: str,
    seed: Any,
    stream: Any,
    dtype: Any,
    blas: bool,
    random: Any,
) -> Tensor:
    return a.new_empty(product_shape(a.shape, b.shape), dtype=dtype)


differentiable("gemm", _setup_gemm, _gemm_backward, _gemm_tangent)


# ---- operators made of gemm ----------------------------------------------------------------------

_library = torch.library.Library("cpd", "FRAGMENT")


def define(schema: str, run: Callable[..., Tensor], fake: Callable[..., Tensor]) -> str:
    """An operator of that schema; gives its name."""
    name = schema[: schema.index("(")]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cpd::{name}")(fake)
    return f"cpd::{name}"


def _native_sum(x: Tensor, dims: Ints) -> Tensor:
    """Torch's sum, which a compiler would form in another order."""
    return x.sum(list(dims), keepdim=True)


def _setup_native_sum(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    x, ctx.dims = inputs
    ctx.shape = x.shape


def _native_sum_of_samples(info: Any, along: Any, x: Tensor, dims: Ints) -> tuple[Tensor, int]:
    return ops.native_sum(x.movedim(along[0], 0), [d + 1 for d in dims]), 0


define("native_sum(Tensor x, int[] dims) -> Tensor", _native_sum, _native_sum)
differentiable(
    "native_sum",
    _setup_native_sum,
    lambda ctx, g: (g.expand(ctx.shape), None),
    lambda ctx, tangents: ops.native_sum(tangents[0], ctx.dims),
)
torch.library.register_vmap("cpd::native_sum", _native_sum_of_samples)


def backward_sums(ctx: Any, numbers: Tensor | None) -> Products:
    """A recipe's sums but for the first."""
    return Products(*(taken(ctx.sums, numbers, which) for which in (1, 2, 3)))


RECIPE = "str[] sums, str[] operands, Tensor? numbers, Tensor? multipliers, ScalarType dtype"
"""What an operator takes of a recipe, in its schema."""


def _matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    turned: bool,
    sums: Strings,
    operands: Strings,
    numbers: Tensor | None,
    multipliers: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    casts = Operands(operands, numbers, multipliers)
    how = taken(sums, numbers, 0)
    if scales_at(sums) != "operand":
        left = encoded(casts, FORWARD_ACTIVATION, a, -1)
        right = encoded(casts, FORWARD_WEIGHT, b, -1 if turned else -2)
        right = turned_operand(right) if turned else right
        return scaled_product(left, right, c, how, scales_at(sums), dtype)
    a, b = _factors(a, b, turned, casts)
    if casts.leave_factors():
        y = casts.unfactored(product(a, b, None, how, dtype), FORWARD_ACTIVATION, FORWARD_WEIGHT)
        return y if c is None else y + c.to(dtype)
    return product(a, b, c, how, dtype)


def _factors(a: Tensor, b: Tensor, turned: bool, casts: Operands) -> tuple[Tensor, Tensor]:
    """The matrices of the forward product, as cast."""
    a = casts.cast(FORWARD_ACTIVATION, a, -1)
    b = casts.cast(FORWARD_WEIGHT, b, -1 if turned else -2)
    return a, b.mT if turned else b


def _fake_matmul(a: Tensor, b: Tensor, c: Any, turned: bool, *args: Any) -> Tensor:
    shape = product_shape(a.shape, b.mT.shape if turned else b.shape)
    return a.new_empty(shape, dtype=args[-1])


def _setup_matmul(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    a, b, c, ctx.turned, ctx.sums, ctx.operands, numbers, multipliers, ctx.dtype = inputs
    keep(ctx, a, b, c, numbers, multipliers, forward=forward)


def _matmul_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    a, b, numbers, multipliers = ctx.saved_tensors
    casts = Operands(ctx.operands, numbers, multipliers)
    sums = backward_sums(ctx, numbers)
    at = scales_at(ctx.sums)
    return _product_gradients(ctx, a, b, g, casts, sums, False, ctx.turned, at)


def _matmul_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    a, b, numbers, multipliers = saved(ctx)
    a, b = _factors(a, b, ctx.turned, Operands(ctx.operands, numbers, multipliers))
    of_a, of_b, *rest = tangents
    if of_b is not None and ctx.turned:
        of_b = of_b.mT
    return product_tangent((of_a, of_b, *rest), a, b, taken(ctx.sums, numbers, 0), ctx.dtype)


define(
    f"matmul(Tensor a, Tensor b, Tensor? c, bool turned, {RECIPE}) -> Tensor",
    _matmul,
    _fake_matmul,
)
"""c + a b; `turned`: b is given as its transpose, as a layer's weight is."""
differentiable("matmul", _setup_matmul, _matmul_backward, _matmul_tangent)
