# SPDX-License-Identifier: Apache-2.0
"""Matrix products on torch tensors: derivatives of torch.ops.cpd.gemm, and the operator matmul,
which carries the accumulators of its backward GEMMs with it, as conv2d does (`cpd._torch.conv`).
Documented in `cpd.ops`, `cpd.functional` and `cpd.Recipe`. What the operators take of a recipe:

`sums`: the texts of four accumulators: forward, grad_input, grad_weight, grad_bias. `gradient`: how
the gradient of the output is cast before the backward GEMMs, as the text that torch.ops.cpd.cast
takes (`Options.text`); empty: not at all. `numbers`: their seeds and streams, int64, 5 x 2: of the
four sums and of the cast; None where nothing is stochastic.
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
from cpd.numeric.accumulator import parsed
from cpd.numeric.cast import parsed_cast
from cpd.numeric.compiling import constant
from cpd.numeric.streams import stream_tag
from cpd.ops.arguments import holds, product_shape

GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS = "grad_input", "grad_weight", "grad_bias"
CAST_ACTIVATION, CAST_WEIGHT = "cast_activation", "cast_weight"
CAST_GRADIENT, CAST_OUTPUT = "cast_gradient", "cast_output"
TANGENT_A, TANGENT_B = "tangent_input", "tangent_weight"
"""What a random stream is for, by its name in the table of streams (`cpd.numeric.streams`)."""

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
        return dtype if holds(_name(dtype), parsed(self.text).format.name) else torch.float32

    def is_stochastic(self) -> bool:
        return parsed(self.text).rounding == "stochastic"

    def drawing(self, purpose: str) -> Sum:
        """With the random bits of another purpose."""
        if self.stream is None:
            return self
        return self._replace(stream=tagged(self.stream, purpose))

    def swapped(self) -> Sum:
        """For the product's transpose, whose operands have changed places."""
        return self._replace(text=_swapped(self.text))

    def of_terms(self) -> Sum:
        """For terms that are no products: they are rounded only as they are added."""
        return self._replace(text=_of_terms(self.text))


@constant
def _of_terms(text: str) -> str:
    return _core.Accumulator(text).of_terms().text


@constant
def _swapped(text: str) -> str:
    return _core.Accumulator(text).swapped().text


def product(
    a: Tensor, b: Tensor, c: Tensor | None, how: Sum, dtype: torch.dtype, blas: bool = False
) -> Tensor:
    """gemm, rounded once more to nearest-even where `dtype` does not hold its sums."""
    y = ops.gemm(a, b, c, how.text, how.seed, how.stream, how.into(dtype), blas, None)
    return y.to(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def taken(sums: Strings, numbers: Tensor | None, which: int) -> Sum:
    """One of a recipe's sums."""
    return Sum(sums[which], *_pair(numbers, which))


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
    ctx: Any, a: Tensor, b: Tensor, g: Tensor, cast: Tensor, sums: Products, blas: bool
) -> tuple[Tensor | None, ...]:
    """Of a, b and c in c + a b. `cast`: the gradient as it enters the GEMMs."""
    like_a, like_b, like_c = ctx.like
    needs = ctx.needs_input_grad
    batch = g.shape[:-2]
    return (
        contract(cast, b.mT, batch, like_a, sums.grad_input, blas) if needs[0] else None,
        contract(a.mT, cast, batch, like_b, sums.grad_weight, blas) if needs[1] else None,
        addend_gradient(g, like_c, sums.grad_bias) if needs[2] else None,
    )


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
    return _product_gradients(ctx, a, b, g, g, sums, ctx.blas)


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


def cast_gradient(g: Tensor, gradient: str, numbers: Tensor | None) -> Tensor:
    """The gradient of an output as it enters the backward GEMMs."""
    if not gradient:
        return g
    if not holds(_name(g.dtype), parsed_cast(gradient).format.name):
        g = g.float()
    return ops.cast(g, gradient, *_pair(numbers, 4), None)


def backward_sums(ctx: Any, numbers: Tensor | None) -> Products:
    """A recipe's sums but for the first."""
    return Products(*(taken(ctx.sums, numbers, which) for which in (1, 2, 3)))


RECIPE = "str[] sums, str gradient, Tensor? numbers, ScalarType dtype"
"""What an operator takes of a recipe, in its schema."""


def _matmul(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    sums: Strings,
    gradient: str,
    numbers: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return product(a, b, c, taken(sums, numbers, 0), dtype)


def _fake_matmul(
    a: Tensor, b: Tensor, c: Any, sums: Any, gradient: Any, numbers: Any, dtype: Any
) -> Tensor:
    return a.new_empty(product_shape(a.shape, b.shape), dtype=dtype)


def _setup_matmul(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    a, b, c, ctx.sums, ctx.gradient, numbers, ctx.dtype = inputs
    keep(ctx, a, b, c, numbers, forward=forward)


def _matmul_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    a, b, numbers = ctx.saved_tensors
    cast = cast_gradient(g, ctx.gradient, numbers)
    return _product_gradients(ctx, a, b, g, cast, backward_sums(ctx, numbers), False)


def _matmul_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    a, b, numbers = saved(ctx)
    return product_tangent(tangents, a, b, taken(ctx.sums, numbers, 0), ctx.dtype)


define(f"matmul(Tensor a, Tensor b, Tensor? c, {RECIPE}) -> Tensor", _matmul, _fake_matmul)
differentiable("matmul", _setup_matmul, _matmul_backward, _matmul_tangent)
