# SPDX-License-Identifier: Apache-2.0
"""Convolution on torch tensors: the operator convolution, and the operators of its gradients.

The operator convolution has the arguments of torch.ops.aten.convolution and a recipe. The
convolution and the gradients of its input and weight are computed by GEMMs (`cpd._torch.conv`) or
by torch's own kernels. `cpd.functional` documents the arithmetic, and `cpd._torch.recipe` the
arguments for a recipe.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cpd._torch.conv import correlate, slide, spread
from cpd._torch.derivatives import Derivative, Tangents, saved, total
from cpd._torch.gemm import Operand, Products, addend_gradient, keep, scaled_back
from cpd._torch.library import ops
from cpd._torch.moves import Moves
from cpd._torch.native import HALVES, Factor, scaled, summed_in_float32
from cpd._torch.recipe import SCHEMA, RecipeCall, recipe_draws, resolved, scales_apart
from cpd._torch.sums import NATIVE, Ints, Sum, tagged
from cpd._torch.table import operator
from cpd._torch.vmap import BatchedCall, Batching, text_draws
from cpd.numeric.cast import as_cast, scaled_of
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose


def _convolution(x: Tensor, w: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    moves, (recipe, *of_call, dtype) = _parted(rest)
    call = RecipeCall(resolved(recipe), *of_call)
    summation, size = call.sum(Purpose.given), moves.size(x.shape, w.shape)
    with torch.no_grad():
        left, right = _entering_forward(call, x, w, moves, dtype)
    bias = None if bias is None else call.narrowed(bias, Purpose.given)
    if not call.leaves_factors():
        return _product(left, right, bias, size, moves, summation, dtype)
    left_out = call.left_out(Purpose.cast_activation, Purpose.cast_weight)
    y = _product(left, right, None, size, moves, summation, torch.float32) * (1 / left_out)
    return (y if bias is None else y + _along_channels(bias.float(), y.dim())).to(dtype)


def _product(
    x: Factor,
    w: Factor,
    bias: Tensor | None,
    size: Ints,
    moves: Moves,
    summation: Sum,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the convolution of operands that are already cast."""
    if summation.is_native():
        return _of_torch(x, w, bias, moves, dtype)
    c = None if bias is None else bias.reshape(moves.groups, size[1] // moves.groups, 1)
    kernel = spread if moves.transposed else slide
    return kernel(x.values, w.values, size, c, moves, summation, dtype)


def _along_channels(bias: Tensor, rank: int) -> Tensor:
    return bias.view(-1, *(1,) * (rank - 2))


def _convolution_input(g: Tensor, w: Tensor, size: Ints, like: Tensor | None, *rest: Any) -> Tensor:
    """Returns the gradient of a convolution's input.

    The gradient of a convolution's input is a transposed convolution of g. The gradient of a
    transposed convolution's input is a convolution of g.

    `like` is the input or None. torch's own kernels take the layout of the gradient from `like`;
    the values of `like` do not matter.
    """
    moves, (text, seed, stream, dtype) = _parted(rest)
    if text == NATIVE:
        return _input_of_torch(g, w, size, like, moves, dtype)
    kernel = slide if moves.transposed else spread
    return kernel(g, w, size, None, moves, Sum(text, seed, stream), dtype)


def _convolution_weight(
    g: Tensor, x: Tensor, size: Ints, like: Tensor | None, *rest: Any
) -> Tensor:
    """Returns the gradient of the weight.

    For a transposed convolution, g and x are exchanged. `like` is the weight or None. torch's own
    kernels take the layout of the gradient from `like`.
    """
    moves, (text, seed, stream, dtype) = _parted(rest)
    if text == NATIVE:
        return _weight_of_torch(g, x, size, like, moves, dtype)
    summation = Sum(text, seed, stream)
    if moves.transposed:
        return correlate(x, g, size, moves, summation, dtype)
    return correlate(g, x, size, moves, summation.swapped(), dtype)


def _parted(rest: tuple[Any, ...]) -> tuple[Moves, tuple[Any, ...]]:
    """Splits the arguments that follow an operator's operands into two parts.

    The first part has six arguments: stride, padding and so on (`Moves`). The second part has all
    others, such as the recipe's text.
    """
    return Moves(*rest[:6]), rest[6:]


def _fake_convolution(x: Tensor, w: Tensor, bias: Any, *rest: Any) -> Tensor:
    moves, (recipe, *_, dtype) = _parted(rest)
    if resolved(recipe).roundings[Purpose.given] == NATIVE:
        return _of_torch(Factor(x), Factor(w), bias, moves, dtype)
    return x.new_empty(moves.size(x.shape, w.shape), dtype=dtype)


def _fake_gradient(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fake(g: Tensor, other: Tensor, size: Ints, like: Any, *rest: Any) -> Tensor:
        _, (text, *_, dtype) = _parted(rest)
        if text == NATIVE:
            return run(g, other, size, like, *rest)
        return g.new_empty(size, dtype=dtype)

    return fake


# ---- sums of torch's own kernels: in float32, rounded once into the result's type ---------------


def _of_torch(
    x: Factor, w: Factor, bias: Tensor | None, moves: Moves, dtype: torch.dtype
) -> Tensor:
    scales = [f.scale for f in (x, w) if f.scale is not None]
    if not scales:

        def convolve(x: Tensor, w: Tensor) -> Tensor:
            c = None if bias is None else bias.to(x.dtype)
            return torch.convolution(x, w, c, *moves)

        fits = bias is None or bias.dtype == dtype
        return summed_in_float32(convolve, x.values, w.values, dtype if fits else torch.float32).to(
            dtype
        )
    y = scaled(_of_torch(Factor(x.values), Factor(w.values), None, moves, torch.float32), scales)
    return (y if bias is None else y + _along_channels(bias.float(), y.dim())).to(dtype)


def _input_of_torch(
    g: Tensor, w: Tensor, size: Ints, like: Tensor | None, moves: Moves, dtype: torch.dtype
) -> Tensor:
    def compute(g: Tensor, w: Tensor) -> Tensor:
        x = _template(g, size, like)
        return _backward_of_torch(g, x, w, moves, [True, False, False])[0]

    return summed_in_float32(compute, g, w, dtype)


def _weight_of_torch(
    g: Tensor, x: Tensor, size: Ints, like: Tensor | None, moves: Moves, dtype: torch.dtype
) -> Tensor:
    def compute(g: Tensor, x: Tensor) -> Tensor:
        w = _template(g, size, like)
        return _backward_of_torch(g, x, w, moves, [False, True, False])[1]

    return summed_in_float32(compute, g, x, dtype)


def _backward_of_torch(
    g: Tensor, x: Tensor, w: Tensor, moves: Moves, asked: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(g, x, w, None, *moves, asked)


def _template(g: Tensor, size: Ints, like: Tensor | None) -> Tensor:
    """Returns an operand for torch's convolution_backward, which reads only its size and layout.

    The operand is `like` if its dtype is g's, else a new tensor with the memory format of g.
    """
    if like is not None and like.dtype == g.dtype:
        return like
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(size))
    if last is None or g.is_contiguous() or not g.is_contiguous(memory_format=last):
        return g.new_empty(size)
    return torch.empty(size, dtype=g.dtype, device=g.device, memory_format=last)


# ---- operands ------------------------------------------------------------------------------------
# Blocks of scaled formats do not cross groups of a convolution. For the forward product and the
# input's gradient, blocks run along the group's channels at each pixel. For the weight's gradient,
# blocks run along the batch. A weight consists of one matrix, outputs x channels, for each index of
# the kernel, and R x C blocks divide these matrices. In images, an R x C block has R elements along
# the last dimension.


@constant
def has_tiles(text: str) -> bool:
    """Returns whether the cast is to a scaled format with two-dimensional blocks (R x C)."""
    q = scaled_of(as_cast(text)) if text else None
    return q is not None and "x" in q.block


AlongAxis: TypeAlias = Callable[[Tensor, int], Tensor]
"""A function that casts a tensor with blocks along an axis."""


def cast_images(cast: AlongAxis, x: Tensor, groups: int) -> Tensor:
    """Casts images by `cast(x, axis)`, with blocks along the channels of each group."""
    if groups == 1:
        return cast(x, 1)
    return cast(x.unflatten(1, (groups, -1)), 2).flatten(1, 2)


def cast_kernels(cast: AlongAxis, w: Tensor, axis: int, groups: int, tiles: bool) -> Tensor:
    """Casts a weight by `cast(w, axis)`, with blocks along dimension `axis`, 0 or 1."""
    if not tiles and (axis == 1 or groups == 1):
        return cast(w, axis)
    parts = w.unflatten(0, (groups, -1))
    if not tiles:
        return cast(parts, axis + 1).flatten(0, 1)
    y = cast(parts.movedim((1, 2), (-2, -1)), axis - 2)
    return y.movedim((-2, -1), (1, 2)).flatten(0, 1).contiguous()


def _factor(
    call: RecipeCall, which: Purpose, dtype: torch.dtype, arrange: Callable[[AlongAxis], Tensor]
) -> Factor:
    """Returns an operand of a product after its cast.

    `arrange(cast)` reshapes the operand, casts it by `cast(x, axis)` and returns the result. If the
    cast separates the scale from the values, the values are float32. torch's kernels multiply them
    in float32.
    """
    factor = Factor(torch.empty(()))

    def cast(x: Tensor, axis: int) -> Tensor:
        nonlocal factor
        factor = call.factor(which, x, axis, dtype, narrow=False)
        return factor.values

    return Factor(arrange(cast), factor.scale)


def _entering_forward(
    call: RecipeCall, x: Tensor, w: Tensor, moves: Moves, dtype: torch.dtype
) -> tuple[Factor, Factor]:
    first = 0 if moves.transposed else 1
    return (
        _cast_image(call, Purpose.cast_activation, x, moves.groups, dtype),
        _cast_weight(call, Purpose.cast_weight, w, first, moves.groups, dtype),
    )


def _cast_image(
    call: RecipeCall, which: Purpose, x: Tensor, groups: int, dtype: torch.dtype
) -> Factor:
    return _factor(call, which, dtype, lambda cast: cast_images(cast, x, groups))


def _cast_weight(
    call: RecipeCall, which: Purpose, w: Tensor, axis: int, groups: int, dtype: torch.dtype
) -> Factor:
    tiles = has_tiles(call.rounding(which))
    return _factor(call, which, dtype, lambda cast: cast_kernels(cast, w, axis, groups, tiles))


def _cast_gradients(
    call: RecipeCall, g: Tensor, needs: Sequence[bool], groups: int, dtype: torch.dtype
) -> tuple[Factor, Factor]:
    """Returns two casts of g, the gradient of a convolution's result.

    The first is an operand of the input's gradient, the second of the weight's gradient.
    """
    axes = (1, 0) if groups == 1 else (2, 0)
    parts = g if groups == 1 else g.unflatten(1, (groups, -1))
    gradients = call.gradients(parts, needs, axes, dtype, narrow=False)
    first, second = (
        Factor(values if groups == 1 else values.flatten(1, 2), scale)
        for values, scale, _ in gradients
    )
    return first, second


def _setup_convolution(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    x, w, bias, *rest = inputs
    ctx.moves, (ctx.recipe, *tensors, ctx.narrow, ctx.dtype) = _parted(tuple(rest))
    keep(ctx, x, w, bias, *tensors, forward=forward)


def _convolution_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, w, numbers, multipliers = ctx.saved_tensors
    like_x, like_w, like_bias = ctx.like
    for_input, for_weight, for_bias = ctx.needs_input_grad[:3]
    moves, call = ctx.moves, RecipeCall(resolved(ctx.recipe), numbers, multipliers, ctx.narrow)
    type_x = call.gradient_type(like_x.dtype, Purpose.grad_input)
    type_w = call.gradient_type(like_w.dtype, Purpose.grad_weight)
    narrowest = type_x if type_x in HALVES else type_w
    needs = for_input, for_weight
    to_input, to_weight = _cast_gradients(call, g, needs, moves.groups, narrowest)
    sums = Products.of(call)
    of_input = of_weight = of_bias = None
    detached_x, detached_w = (None if t is None else t.detach() for t in (x, w))
    if for_input:
        first = 1 if moves.transposed else 0
        y = _cast_weight(call, Purpose.recast_weight, w, first, moves.groups, type_x)
        left_out = call.left_out(Purpose.cast_gradient, Purpose.recast_weight)

        def of_x(g: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
            return ops.convolution_input(
                g, w, like_x.shape, detached_x, *moves, *sums.grad_input, dtype
            )

        of_input = _gradient(of_x, to_input, y, left_out, type_x).to(like_x.dtype)
    if for_weight:
        y = _factor(call, Purpose.recast_activation, type_w, lambda cast: cast(x, 0))
        left_out = call.left_out(Purpose.recast_activation, Purpose.recast_gradient)

        def of_w(g: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
            return ops.convolution_weight(
                g, x, like_w.shape, detached_w, *moves, *sums.grad_weight, dtype
            )

        of_weight = _gradient(of_w, to_weight, y, left_out, type_w).to(like_w.dtype)
    if for_bias:
        along = Operand((1, *like_bias.shape, *(1,) * (g.dim() - 2)), like_bias.dtype)
        of_bias = addend_gradient(g, along, sums.grad_bias).view(like_bias.shape)
    return of_input, of_weight, of_bias


def _gradient(
    compute: Callable[[Tensor, Tensor, torch.dtype], Tensor],
    g: Factor,
    other: Factor,
    left_out: float,
    dtype: torch.dtype,
) -> Tensor:
    """Returns compute(g, other) times the scales of both operands, divided by `left_out`.

    `compute` computes a gradient. `left_out` is the product of the factors of the operands' casts.
    """
    scales = [f.scale for f in (g, other) if f.scale is not None]
    if not scales:
        return scaled_back(lambda dtype: compute(g.values, other.values, dtype), left_out, dtype)
    y = scaled(compute(g.values, other.values, torch.float32), scales)
    return scaled_back(lambda _: y, left_out, dtype)


# ---- derivatives ---------------------------------------------------------------------------------


def _redrawn(numbers: Tensor | None, purpose: Purpose) -> Tensor | None:
    """Returns a copy of a recipe's seeds and streams, in which the forward sum has another stream.

    The new stream is the old stream XOR the tag of `purpose`. Returns None for None.
    """
    if numbers is None:
        return None
    changed = numbers.clone()
    changed[Purpose.given, 1] = tagged(numbers[Purpose.given, 1], purpose)
    return changed


def _convolution_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    """Returns the tangent of a convolution with a recipe, in forward mode.

    The tangent is the sum of two convolutions (x's tangent with w, and x with w's tangent) and of
    the bias's tangent. `cpd._torch.gemm.product_tangent` computes the sum.
    """
    x, w, numbers, multipliers = saved(ctx)
    of_x, of_w, of_bias = tangents[:3]
    moves, call = ctx.moves, RecipeCall(resolved(ctx.recipe), numbers, multipliers, ctx.narrow)
    shape = moves.size(x.shape, w.shape)
    x, w = (f.values for f in _entering_forward(call, x, w, moves, torch.float32))

    def convolve(x: Tensor, w: Tensor, purpose: Purpose) -> Tensor:
        cast = call.of_cast()
        numbers = _redrawn(call.numbers, purpose)
        recipe = cast.recipe.text, numbers, cast.multipliers, cast.narrow
        return ops.convolution(x, w, None, *moves, *recipe, torch.float32)

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


def _tangent_of_gradient(name: str) -> Callable[[Any, Tangents], Tensor]:
    """Returns the function for the tangent of convolution_input or convolution_weight.

    Both operators are bilinear, so their tangents are sums of two products.
    """

    def tangent(ctx: Any, tangents: Tangents) -> Tensor:
        first, second, seed, stream = saved(ctx)
        of_first, of_second = tangents[:2]

        def term(x: Tensor, y: Tensor, purpose: Purpose) -> Tensor:
            summation = Sum(ctx.text, seed, stream).drawing(purpose)
            arguments = x, y, ctx.size, None, *ctx.moves, *summation, torch.float32
            return getattr(ops, name)(*arguments)

        terms = (
            None if of_first is None else term(of_first, second, Purpose.tangent_input),
            None if of_second is None else term(first, of_second, Purpose.tangent_weight),
        )
        return total(*terms).to(ctx.dtype)

    return tangent


def _second_gradients(name: str) -> Callable[[Any, Tensor], tuple[Any, ...]]:
    """Returns the function for the gradients of the operator convolution_input or _weight.

    The operator's first operand is the gradient g of a convolution's result. Each gradient of the
    operator is itself a convolution, convolution_input or convolution_weight. With emulated sums,
    the function raises RuntimeError.
    """

    def backward(ctx: Any, h: Tensor) -> tuple[Any, ...]:
        if ctx.text != NATIVE:
            raise RuntimeError(_no_second_gradients(ctx.moves))
        g, other, *_ = ctx.saved_tensors
        like_g, like_other, _ = ctx.like
        needs = ctx.needs_input_grad
        of_input = name == "convolution_input"
        pair = (h, other) if of_input else (other, h)
        of_g = of_other = None
        if needs[0]:
            native_arguments = NATIVE, None, None, None, like_g.dtype
            of_g = ops.convolution(*pair, None, *ctx.moves, *native_arguments)
        if needs[1]:
            of_that = ops.convolution_weight if of_input else ops.convolution_input
            of_other = of_that(
                g, h, like_other.shape, None, *ctx.moves, NATIVE, None, None, like_other.dtype
            )
        return of_g, of_other

    return backward


def _no_second_gradients(moves: Moves) -> str:
    name = f"conv{'_transpose' * moves.transposed}{len(moves.stride)}d"
    return (
        f"cpd's {name} has no gradients of its gradients; forward mode over them there is "
        "(torch.func.jvp, jacfwd), and with sums 'native' both"
    )


# ---- torch.vmap ----------------------------------------------------------------------------------
# torch.vmap's examples are computed by one call. Examples with separate weights become separate
# groups of the convolution. If all examples share the weight, examples become further images.

_Parted = Callable[[Tensor], Tensor]


def _in_images(call: BatchedCall, *names: str) -> _Parted:
    """Merges the dimension of torch.vmap's examples with the image dimension of the operands.

    Returns a function that restores the dimension of the examples in the result.
    """
    for name in names:
        call.widen(name)
        call.arguments[name] = call.arguments[name].flatten(0, 1)
    return lambda y: y.unflatten(0, (call.size, -1))


def _in_channels(call: BatchedCall, *names: str) -> _Parted:
    """Makes each of torch.vmap's examples a separate group of channels in the operands.

    Returns a function that restores the dimension of the examples in the result.
    """
    for name in names:
        call.widen(name)
        call.arguments[name] = call.arguments[name].movedim(0, 1).flatten(1, 2)
    call.arguments["groups"] *= call.size
    return lambda y: y.unflatten(1, (call.size, -1)).movedim(1, 0)


def _in_outputs(call: BatchedCall, *names: str) -> None:
    """Merges the dimension of torch.vmap's examples with the output channels of weight and bias."""
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
    return arguments["text"] != NATIVE and text_draws(arguments["text"])


# ---- the rows ------------------------------------------------------------------------------------

_MOVES = (
    "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
)
_LIKE = "SymInt[] size, Tensor? like"
_OF_SUM = "str text, Tensor? seed, Tensor? stream, ScalarType dtype"
operator(
    f"convolution(Tensor x, Tensor w, Tensor? bias, {_MOVES}, {SCHEMA}) -> Tensor",
    _fake_convolution,
    Derivative(_setup_convolution, _convolution_backward, _convolution_tangent),
    Batching(_widen_convolution, recipe_draws, scales_apart),
    _convolution,
)
for _name, _operands, _computes, _widen in (
    ("convolution_input", "Tensor g, Tensor w", _convolution_input, _widen_input),
    ("convolution_weight", "Tensor g, Tensor x", _convolution_weight, _widen_weight),
):
    operator(
        f"{_name}({_operands}, {_LIKE}, {_MOVES}, {_OF_SUM}) -> Tensor",
        _fake_gradient(_computes),
        Derivative(_setup_gradient, _second_gradients(_name), _tangent_of_gradient(_name)),
        Batching(_widen, _draws),
        _computes,
    )
for _name in ("convolve", "correlate"):
    operator(_name, None)
