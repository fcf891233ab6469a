# SPDX-License-Identifier: Apache-2.0
"""Convolution on torch tensors: the operator convolution, modelled on torch.ops.aten.convolution,
and those of its input's and its weight's gradients, by GEMMs (`cpd._torch.conv`) or torch's own
kernels. Documented in `cpd.functional`; what it takes of a recipe, in `cpd._torch.recipe`."""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cpd._torch.conv import correlate, slide, spread
from cpd._torch.derivatives import Tangents, define, differentiable, saved, total
from cpd._torch.gemm import Operand, Products, addend_gradient, keep
from cpd._torch.library import ops
from cpd._torch.moves import Moves
from cpd._torch.recipe import SCHEMA, RecipeCall
from cpd._torch.sums import NATIVE, Ints, Sum, tagged
from cpd._torch.vmap import BatchedCall, batched, recipe_draws, scales_apart, sum_draws
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled_cast import ScaledCast, operand_spec


def _convolution(x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    moves, (*of_recipe, dtype) = _parted(rest)
    call = RecipeCall(*of_recipe)
    how, size = call.sum(Purpose.given), moves.size(x.shape, w.shape)
    x, w = _entering_forward(call, x, w, moves)
    if not call.leaves_factors():
        return _product(x, w, bias, size, moves, how, dtype)
    y = _product(x, w, None, size, moves, how, dtype)
    y = call.unfactored(y, Purpose.cast_activation, Purpose.cast_weight)
    return y if bias is None else y + _along_channels(bias.to(dtype), y.dim())


def _product(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    size: Ints,
    moves: Moves,
    how: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """A convolution of operands as cast."""
    if how.is_native():
        return _of_torch(x, w, bias, moves, dtype)
    c = None if bias is None else bias.reshape(moves.groups, size[1] // moves.groups, 1)
    kernel = spread if moves.transposed else slide
    return kernel(x, w, size, c, moves, how, dtype)


def _along_channels(bias: Tensor, rank: int) -> Tensor:
    return bias.view(-1, *(1,) * (rank - 2))


def _convolution_input(g: Tensor, w: Tensor, size: Ints, like: Tensor | None, *rest: Any) -> Tensor:
    """The gradient of the input: a transposed convolution for a convolution, and vice versa.
    `like`: the input, or None, for the layout of torch's own gradient; its values do not matter."""
    moves, (text, seed, stream, dtype) = _parted(rest)
    if text == NATIVE:
        return _input_of_torch(g, w, size, like, moves).to(dtype)
    kernel = slide if moves.transposed else spread
    return kernel(g, w, size, None, moves, Sum(text, seed, stream), dtype)


def _convolution_weight(
    g: Tensor, x: Tensor, size: Ints, like: Tensor | None, *rest: Any
) -> Tensor:
    """The gradient of the weight; in a transposed convolution g and x change places. `like`: the
    weight, or None."""
    moves, (text, seed, stream, dtype) = _parted(rest)
    if text == NATIVE:
        return _weight_of_torch(g, x, size, like, moves).to(dtype)
    how = Sum(text, seed, stream)
    if moves.transposed:
        return correlate(x, g, size, moves, how, dtype)
    return correlate(g, x, size, moves, how.swapped(), dtype)


def _parted(rest: tuple[Any, ...]) -> tuple[Moves, tuple[Any, ...]]:
    """The arguments after the operands as two parts: the moves, and those of the recipe."""
    return Moves(*rest[:6]), rest[6:]


def _fake_convolution(x: Tensor, w: Tensor, bias: Any, *rest: Any) -> Tensor:
    moves, (*of_recipe, dtype) = _parted(rest)
    if RecipeCall(*of_recipe).rounding(Purpose.given) == NATIVE:
        return _of_torch(x, w, bias, moves, dtype)
    return x.new_empty(moves.size(x.shape, w.shape), dtype=dtype)


def _fake_gradient(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fake(g: Tensor, other: Tensor, size: Ints, like: Any, *rest: Any) -> Tensor:
        _, (text, *_, dtype) = _parted(rest)
        if text == NATIVE:
            return run(g, other, size, like, *rest)
        return g.new_empty(size, dtype=dtype)

    return fake


# ---- sums of torch's own kernels, in the wider of the operands' types ----------------------------


def _of_torch(
    x: Tensor, w: Tensor, bias: Tensor | None, moves: Moves, dtype: torch.dtype
) -> Tensor:
    common = torch.promote_types(x.dtype, w.dtype)
    c = None if bias is None else bias.to(common)
    with torch._C._DisableAutocast():
        return torch.convolution(x.to(common), w.to(common), c, *moves).to(dtype)


def _input_of_torch(g: Tensor, w: Tensor, size: Ints, like: Tensor | None, moves: Moves) -> Tensor:
    common = torch.promote_types(g.dtype, w.dtype)
    g, w = g.to(common), w.to(common)
    x = _template(g, size, like)
    return _backward_of_torch(g, x, w, moves, [True, False, False])[0]


def _weight_of_torch(g: Tensor, x: Tensor, size: Ints, like: Tensor | None, moves: Moves) -> Tensor:
    common = torch.promote_types(g.dtype, x.dtype)
    g, x = g.to(common), x.to(common)
    w = _template(g, size, like)
    return _backward_of_torch(g, x, w, moves, [False, True, False])[1]


def _backward_of_torch(
    g: Tensor, x: Tensor, w: Tensor, moves: Moves, asked: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    with torch._C._DisableAutocast():
        return torch.ops.aten.convolution_backward(g, x, w, None, *moves, asked)


def _template(g: Tensor, size: Ints, like: Tensor | None) -> Tensor:
    """The operand of which torch takes only size and layout: `like`, or a new one laid out as g."""
    if like is not None and like.dtype == g.dtype:
        return like
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(size))
    if last is None or g.is_contiguous() or not g.is_contiguous(memory_format=last):
        return g.new_empty(size)
    return torch.empty(size, dtype=g.dtype, device=g.device, memory_format=last)


# ---- operands ------------------------------------------------------------------------------------
# Blocks run within a group: along its channels at each pixel for forward and the input's gradient,
# along the batch for the weight's. Tiles of a weight, R x C, divide its matrices of channels, one
# for each place in the kernel; those of images have R along the last dimension.


@constant
def has_tiles(text: str) -> bool:
    """Whether the blocks of the cast of that text have two dimensions."""
    spec = operand_spec(text) if text else None
    return isinstance(spec, ScaledCast) and "x" in spec.scaled.block


def cast_images(cast: Callable[[Tensor, int], Tensor], x: Tensor, groups: int) -> Tensor:
    """`cast(x, axis)` along the channels of a group."""
    if groups == 1:
        return cast(x, 1)
    return cast(x.unflatten(1, (groups, -1)), 2).flatten(1, 2)


def cast_kernels(
    cast: Callable[[Tensor, int], Tensor], w: Tensor, axis: int, groups: int, tiles: bool
) -> Tensor:
    """`cast(w, axis)` along the weight's first dimension or its second."""
    if not tiles and (axis == 1 or groups == 1):
        return cast(w, axis)
    parts = w.unflatten(0, (groups, -1))
    if not tiles:
        return cast(parts, axis + 1).flatten(0, 1)
    y = cast(parts.movedim((1, 2), (-2, -1)), axis - 2)
    return y.movedim((-2, -1), (1, 2)).flatten(0, 1).contiguous()


def _entering_forward(
    call: RecipeCall, x: Tensor, w: Tensor, moves: Moves
) -> tuple[Tensor, Tensor]:
    if call.rounding(Purpose.cast_activation):
        x = cast_images(lambda x, d: call.cast(Purpose.cast_activation, x, d), x, moves.groups)
    if call.rounding(Purpose.cast_weight):
        w = _cast_weight(call, Purpose.cast_weight, w, 0 if moves.transposed else 1, moves.groups)
    return x, w


def _cast_weight(call: RecipeCall, which: Purpose, w: Tensor, axis: int, groups: int) -> Tensor:
    tiles = has_tiles(call.rounding(which))
    return cast_kernels(lambda w, d: call.cast(which, w, d), w, axis, groups, tiles)


def _cast_gradients(
    call: RecipeCall, g: Tensor, needs: Sequence[bool], groups: int
) -> tuple[Tensor, Tensor]:
    """The gradient as it enters the products of the input's gradient and of the weight's."""
    if groups == 1:
        return call.gradients(g, needs, (1, 0))
    parts = g.unflatten(1, (groups, -1))
    of_input, of_weight = call.gradients(parts, needs, (2, 0))
    return of_input.flatten(1, 2), of_weight.flatten(1, 2)


def _setup_convolution(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    x, w, bias, *rest = inputs
    ctx.moves, (ctx.recipe, *tensors, ctx.dtype) = _parted(tuple(rest))
    keep(ctx, x, w, bias, *tensors, forward=forward)


def _convolution_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, w, *tensors = ctx.saved_tensors
    like_x, like_w, like_bias = ctx.like
    for_input, for_weight, for_bias = ctx.needs_input_grad[:3]
    moves, call = ctx.moves, RecipeCall(ctx.recipe, *tensors)
    to_input, to_weight = _cast_gradients(call, g, (for_input, for_weight), moves.groups)
    sums = Products.of(call)
    of_input = of_weight = of_bias = None
    detached_x, detached_w = (None if t is None else t.detach() for t in (x, w))
    if for_input:
        w = _cast_weight(call, Purpose.recast_weight, w, 1 if moves.transposed else 0, moves.groups)
        of_input = ops.convolution_input(
            to_input, w, like_x.shape, detached_x, *moves, *sums.grad_input, like_x.dtype
        )
        of_input = call.unfactored(of_input, Purpose.cast_gradient, Purpose.recast_weight)
    if for_weight:
        x = call.cast(Purpose.recast_activation, x, 0)
        of_weight = ops.convolution_weight(
            to_weight, x, like_w.shape, detached_w, *moves, *sums.grad_weight, like_w.dtype
        )
        of_weight = call.unfactored(of_weight, Purpose.recast_activation, Purpose.recast_gradient)
    if for_bias:
        along = Operand((1, *like_bias.shape, *(1,) * (g.dim() - 2)), like_bias.dtype)
        of_bias = addend_gradient(g, along, sums.grad_bias).view(like_bias.shape)
    return of_input, of_weight, of_bias


_MOVES = (
    "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
)
_LIKE = "SymInt[] size, Tensor? like"
_OF_SUM = "str text, Tensor? seed, Tensor? stream, ScalarType dtype"
define(
    f"convolution(Tensor x, Tensor w, Tensor? bias, {_MOVES}, {SCHEMA}) -> Tensor",
    _convolution,
    _fake_convolution,
)
define(
    f"convolution_input(Tensor g, Tensor w, {_LIKE}, {_MOVES}, {_OF_SUM}) -> Tensor",
    _convolution_input,
    _fake_gradient(_convolution_input),
)
define(
    f"convolution_weight(Tensor g, Tensor x, {_LIKE}, {_MOVES}, {_OF_SUM}) -> Tensor",
    _convolution_weight,
    _fake_gradient(_convolution_weight),
)


# ---- derivatives ---------------------------------------------------------------------------------


def _redrawn(numbers: Tensor | None, purpose: Purpose) -> Tensor | None:
    """A recipe's numbers with other random bits for the forward sums."""
    if numbers is None:
        return None
    changed = numbers.clone()
    changed[Purpose.given, 1] = tagged(numbers[Purpose.given, 1], purpose)
    return changed


def _convolution_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    """The tangent, formed as a matrix product's is: see `cpd._torch.gemm.product_tangent`."""
    x, w, *tensors = saved(ctx)
    of_x, of_w, of_bias = tangents[:3]
    moves, call = ctx.moves, RecipeCall(ctx.recipe, *tensors)
    shape = moves.size(x.shape, w.shape)
    x, w = _entering_forward(call, x, w, moves)

    def convolve(x: Tensor, w: Tensor, purpose: Purpose) -> Tensor:
        how = call.of_cast()._replace(numbers=_redrawn(call.numbers, purpose))
        return ops.convolution(x, w, None, *moves, *how, torch.float32)

    terms = (
        None if of_x is None else convolve(of_x, w, Purpose.tangent_input),
        None if of_w is None else convolve(x, of_w, Purpose.tangent_weight),
        None if of_bias is None else _along_channels(of_bias.float(), len(shape)).expand(shape),
    )
    return total(*terms).to(ctx.dtype)


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    first, second, ctx.size, _, *rest = inputs
    ctx.moves, (ctx.text, seed, stream, ctx.dtype) = _parted(tuple(rest))
    keep(ctx, first, second, None, seed, stream, forward=forward)


def _tangent_of_gradient(operator: Any) -> Callable[[Any, Tangents], Tensor]:
    """The tangent of convolution_input or convolution_weight, which are products as well."""

    def tangent(ctx: Any, tangents: Tangents) -> Tensor:
        first, second, seed, stream = saved(ctx)
        of_first, of_second = tangents[:2]

        def term(x: Tensor, y: Tensor, purpose: Purpose) -> Tensor:
            how = Sum(ctx.text, seed, stream).drawing(purpose)
            return operator(x, y, ctx.size, None, *ctx.moves, *how, torch.float32)

        terms = (
            None if of_first is None else term(of_first, second, Purpose.tangent_input),
            None if of_second is None else term(first, of_second, Purpose.tangent_weight),
        )
        return total(*terms).to(ctx.dtype)

    return tangent


def _second_gradients(operator: Any) -> Callable[[Any, Tensor], tuple[Any, ...]]:
    """The gradients of `operator`'s operands, of which the first is the gradient g of a
    convolution's result. Convolution, its input's gradient and its weight's are one another's
    derivatives. With emulated sums that is a RuntimeError."""

    def backward(ctx: Any, h: Tensor) -> tuple[Any, ...]:
        if ctx.text != NATIVE:
            raise RuntimeError(_no_second_gradients(ctx.moves))
        g, other, *_ = ctx.saved_tensors
        like_g, like_other, _ = ctx.like
        needs = ctx.needs_input_grad
        of_input = operator is ops.convolution_input
        pair = (h, other) if of_input else (other, h)
        of_g = of_other = None
        if needs[0]:
            how = NATIVE, None, None, like_g.dtype
            of_g = ops.convolution(*pair, None, *ctx.moves, *how)
        if needs[1]:
            of_that = ops.convolution_weight if of_input else ops.convolution_input
            how = NATIVE, None, None, like_other.dtype
            of_other = of_that(g, h, like_other.shape, None, *ctx.moves, *how)
        return of_g, of_other

    return backward


def _no_second_gradients(moves: Moves) -> str:
    name = f"conv{'_transpose' * moves.transposed}{len(moves.stride)}d"
    return (
        f"cpd's {name} has no gradients of its gradients; forward mode over them there is "
        "(torch.func.jvp, jacfwd), and with sums 'native' both"
    )


differentiable("convolution", _setup_convolution, _convolution_backward, _convolution_tangent)
for _name, _operator in (
    ("convolution_input", ops.convolution_input),
    ("convolution_weight", ops.convolution_weight),
):
    differentiable(
        _name, _setup_gradient, _second_gradients(_operator), _tangent_of_gradient(_operator)
    )


# ---- torch.vmap ----------------------------------------------------------------------------------
# Each example becomes groups of one call, or images of it where all examples share the weight.

_Parted = Callable[[Tensor], Tensor]


def _in_images(call: BatchedCall, *names: str) -> _Parted:
    """Puts the examples of these operands among the images."""
    for name in names:
        call.widen(name)
        call.arguments[name] = call.arguments[name].flatten(0, 1)
    return lambda y: y.unflatten(0, (call.size, -1))


def _in_channels(call: BatchedCall, *names: str) -> _Parted:
    """Puts the examples of these operands of images among the channels, in groups of their own."""
    for name in names:
        call.widen(name)
        call.arguments[name] = call.arguments[name].movedim(0, 1).flatten(1, 2)
    call.arguments["groups"] *= call.size
    return lambda y: y.unflatten(1, (call.size, -1)).movedim(1, 0)


def _in_outputs(call: BatchedCall, *names: str) -> None:
    """Puts the examples of weights and biases among the outputs."""
    for name in names:
        if call.arguments[name] is not None:
            call.widen(name)
            call.arguments[name] = call.arguments[name].flatten(0, 1)


def _widen_convolution(call: BatchedCall) -> _Parted:
    if not {"w", "bias"} & set(call.along):
        return _in_images(call, "x")
    _in_outputs(call, "w", "bias")
    return _in_channels(call, "x")


def _widen_input(call: BatchedCall) -> _Parted:
    call.arguments["like"] = None
    images, channels, *image = call.arguments["size"]
    if "w" not in call.along:
        call.arguments["size"] = [images * call.size, channels, *image]
        return _in_images(call, "g")
    call.arguments["size"] = [images, channels * call.size, *image]
    _in_outputs(call, "w")
    return _in_channels(call, "g")


def _widen_weight(call: BatchedCall) -> _Parted:
    call.arguments["like"] = None
    outputs, *kernel = call.arguments["size"]
    call.arguments["size"] = [outputs * call.size, *kernel]
    _in_channels(call, "g", "x")
    return lambda y: y.unflatten(0, (call.size, outputs))


def _draws(arguments: dict[str, Any]) -> bool:
    return arguments["text"] != NATIVE and sum_draws(arguments["text"])


batched("convolution", _widen_convolution, recipe_draws, scales_apart)
batched("convolution_input", _widen_input, _draws)
batched("convolution_weight", _widen_weight, _draws)
