# SPDX-License-Identifier: Apache-2.0
"""Convolution on torch tensors: the operator conv2d, unfolded GEMMs forward and backward.
Documented in `cpd.functional`; what it takes of a recipe, in `cpd._torch.gemm`."""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch.derivatives import Tangents, differentiable, saved, total
from cpd._torch.gemm import (
    RECIPE,
    TANGENT_A,
    TANGENT_B,
    Ints,
    Operand,
    Strings,
    Sum,
    addend_gradient,
    backward_sums,
    define,
    keep,
    product,
    tagged,
    taken,
)
from cpd._torch.library import ops
from cpd._torch.operands import Operands
from cpd._torch.vmap import Call, batched, sum_draws
from cpd._torch.vmap import text_of_recipe as text_of_recipe
from cpd.numeric.accumulator import parsed

_COLUMN_BYTES = 1 << 28
"""Of images unfolded at a time, where the result does not depend on it."""


class Windows(NamedTuple):
    """How a convolution moves over an image (padded already)."""

    kernel: Ints
    stride: Ints
    dilation: Ints
    groups: int

    def places(self, image: Ints) -> tuple[int, int]:
        """How many windows an image has, down and across."""
        down, across = (
            (image[d] - self.dilation[d] * (self.kernel[d] - 1) - 1) // self.stride[d] + 1
            for d in (0, 1)
        )
        return down, across

    def columns(self, x: Tensor) -> Tensor:
        """images x groups x (channel, kernel row, kernel column) x windows, row-major."""
        images, _, *image = x.shape
        return self._view(x).reshape(
            images, self.groups, self.terms(x), math.prod(self.places(image))
        )

    def gathered(self, x: Tensor) -> Tensor:
        """groups x (image, window) x (channel, kernel row, kernel column)."""
        images, _, *image = x.shape
        ordered = self._view(x).permute(1, 2, 3, 4, 0, 5, 6)
        return ordered.reshape(
            self.groups, self.terms(x), images * math.prod(self.places(image))
        ).mT

    def terms(self, x: Tensor) -> int:
        """How many products each sum of a group takes."""
        return x.shape[1] // self.groups * math.prod(self.kernel)

    def bytes(self, x: Tensor) -> int:
        """Of the columns of one image."""
        places = math.prod(self.places(x.shape[2:]))
        return self.groups * self.terms(x) * places * x.element_size()

    def _view(self, x: Tensor) -> Tensor:
        """images x groups x channels x kernel rows x kernel columns x windows down x across."""
        images, channels, *image = x.shape
        n, c, h, w = x.stride()
        channels //= self.groups
        return x.as_strided(
            (images, self.groups, channels, *self.kernel, *self.places(image)),
            (
                n,
                c * channels,
                c,
                h * self.dilation[0],
                w * self.dilation[1],
                h * self.stride[0],
                w * self.stride[1],
            ),
            x.storage_offset(),
        )


def _images(x: Tensor, windows: Windows) -> int:
    """How many images to unfold at a time."""
    return max(1, _COLUMN_BYTES // max(1, windows.bytes(x)))


def _convolve(
    x: Tensor, w: Tensor, c: Tensor | None, windows: Windows, how: Sum, dtype: torch.dtype
) -> Tensor:
    """Matrices w (groups x outputs x terms) by the columns of x: images x groups x outputs x
    windows. Random bits hang on places in the whole result, which is then computed at once."""
    step = max(1, x.shape[0]) if how.is_stochastic() else _images(x, windows)
    parts = [product(w, windows.columns(part), c, how, dtype) for part in x.split(step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _matrices(w: Tensor, groups: int) -> Tensor:
    outputs, inputs, *kernel = w.shape
    return w.reshape(groups, outputs // groups, inputs * math.prod(kernel))


def _conv2d_shape(x: Ints, w: Ints, windows: Windows) -> tuple[int, ...]:
    return (x[0], w[0], *windows.places(x[2:]))


def _conv2d(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Ints,
    dilation: Ints,
    groups: int,
    sums: Strings,
    operands: Strings,
    numbers: Tensor | None,
    multipliers: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    windows = Windows(w.shape[2:], stride, dilation, groups)
    c = None if bias is None else bias.reshape(groups, w.shape[0] // groups, 1)
    how = taken(sums, numbers, 0).swapped()
    y = _convolve(x, _matrices(w, groups), c, windows, how, dtype)
    return y.view(_conv2d_shape(x.shape, w.shape, windows))


def _fake_conv2d(
    x: Tensor, w: Tensor, bias: Any, stride: Ints, dilation: Ints, groups: int, *rest: Any
) -> Tensor:
    windows = Windows(w.shape[2:], stride, dilation, groups)
    return x.new_empty(_conv2d_shape(x.shape, w.shape, windows), dtype=rest[-1])


def _conv2d_input(
    g: Tensor,
    w: Tensor,
    size: Ints,
    stride: Ints,
    dilation: Ints,
    groups: int,
    text: str,
    seed: Tensor | None,
    stream: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the input: the windows of g, spread by the stride amid zeros, by the turned
    kernel. k runs over (output channel, kernel row, kernel column) of g's windows, wholly within
    one sum."""
    outputs, inputs, *kernel = w.shape
    edge = [dilation[d] * (kernel[d] - 1) for d in (0, 1)]
    if any(edge) or tuple(g.shape[2:]) != tuple(size[2:]):
        spread = g.new_zeros(size[0], outputs, size[2] + edge[0], size[3] + edge[1])
        down, across = g.shape[2:]
        inner = spread[:, :, edge[0] :: stride[0], edge[1] :: stride[1]]
        inner[:, :, :down, :across] = g
        g = spread
    turned = w.flip(2, 3).reshape(groups, outputs // groups, inputs, *kernel).transpose(1, 2)
    matrices = turned.reshape(groups, inputs, outputs // groups * math.prod(kernel))
    windows = Windows(kernel, (1, 1), dilation, groups)
    how = Sum(text, seed, stream).swapped()
    return _convolve(g, matrices, None, windows, how, dtype).view(size)


def _conv2d_weight(
    g: Tensor,
    x: Tensor,
    size: Ints,
    stride: Ints,
    dilation: Ints,
    groups: int,
    text: str,
    seed: Tensor | None,
    stream: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the weight: k runs over (image, window), row-major."""
    windows = Windows(size[2:], stride, dilation, groups)
    how = Sum(text, seed, stream).swapped()
    step = _chained_images(x, windows, how)
    total: Tensor | None = None
    for of_g, of_x in zip(g.split(step), x.split(step), strict=True):
        images, outputs, *places = of_g.shape
        rows = of_g.reshape(images, groups, outputs // groups, math.prod(places))
        rows = rows.permute(1, 2, 0, 3).flatten(2)
        total = product(rows, windows.gathered(of_x), total, how, torch.float32)
    assert total is not None  # split gives at least one part
    return total.view(size).to(dtype)


def _chained_images(x: Tensor, windows: Windows, how: Sum) -> int:
    """How many images to sum over at a time: a sum that goes on from what is there gives the same
    bits only if it is in order, and cut between chunks."""
    acc = parsed(how.text)
    if how.is_stochastic() or acc.scheme not in ("sequential", "chunked"):
        return max(1, x.shape[0])
    places = math.prod(windows.places(x.shape[2:]))
    unit = acc.chunk // math.gcd(acc.chunk, places) if acc.scheme == "chunked" else 1
    return math.ceil(_images(x, windows) / unit) * unit


def _fake_conv2d_gradient(x: Tensor, y: Tensor, size: Ints, *rest: Any) -> Tensor:
    return x.new_empty(size, dtype=rest[-1])


def _setup_conv2d(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    x, w, bias, ctx.stride, ctx.dilation, ctx.groups, *recipe = inputs
    ctx.sums, ctx.operands, numbers, multipliers, ctx.dtype = recipe
    keep(ctx, x, w, bias, numbers, multipliers, forward=forward)


def _conv2d_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, w, numbers, multipliers = ctx.saved_tensors
    like_x, like_w, like_bias = ctx.like
    needs = ctx.needs_input_grad
    casts = Operands(ctx.operands, numbers, multipliers)
    cast, _ = casts.gradients(g, needs[:2], (1, 0))
    moves = ctx.stride, ctx.dilation, ctx.groups
    sums = backward_sums(ctx, numbers)
    of_input = of_weight = of_bias = None
    if needs[0]:
        of_input = ops.conv2d_input(cast, w, like_x.shape, *moves, *sums.grad_input, like_x.dtype)
    if needs[1]:
        of_weight = ops.conv2d_weight(
            cast, x, like_w.shape, *moves, *sums.grad_weight, like_w.dtype
        )
    if needs[2]:
        along = Operand((1, *like_bias.shape, 1, 1), like_bias.dtype)
        of_bias = addend_gradient(g, along, sums.grad_bias).view(like_bias.shape)
    return of_input, of_weight, of_bias


_MOVES = "int[] stride, int[] dilation, int groups"
_OF_SUM = "str text, Tensor? seed, Tensor? stream, ScalarType dtype"
define(
    f"conv2d(Tensor x, Tensor w, Tensor? bias, {_MOVES}, {RECIPE}) -> Tensor",
    _conv2d,
    _fake_conv2d,
)
define(
    f"conv2d_input(Tensor g, Tensor w, SymInt[] size, {_MOVES}, {_OF_SUM}) -> Tensor",
    _conv2d_input,
    _fake_conv2d_gradient,
)
define(
    f"conv2d_weight(Tensor g, Tensor x, SymInt[] size, {_MOVES}, {_OF_SUM}) -> Tensor",
    _conv2d_weight,
    _fake_conv2d_gradient,
)


# ---- derivatives ---------------------------------------------------------------------------------


def _redrawn(numbers: Tensor | None, purpose: str) -> Tensor | None:
    """A recipe's numbers with other random bits for the forward sums."""
    if numbers is None:
        return None
    seed, stream = numbers[0]
    first = torch.stack([seed, tagged(stream, purpose)])
    return torch.cat([first.unsqueeze(0), numbers[1:]])


def _conv2d_tangent(ctx: Any, tangents: Tangents) -> Tensor:
    """As that of a matrix product: see `cpd._torch.gemm.product_tangent`."""
    x, w, numbers, multipliers = saved(ctx)
    of_x, of_w, of_bias = tangents[:3]

    def convolve(x: Tensor, w: Tensor, purpose: str) -> Tensor:
        how = ctx.sums, ctx.operands, _redrawn(numbers, purpose), multipliers, torch.float32
        return ops.conv2d(x, w, None, ctx.stride, ctx.dilation, ctx.groups, *how)

    shape = _conv2d_shape(
        x.shape, w.shape, Windows(w.shape[2:], ctx.stride, ctx.dilation, ctx.groups)
    )
    terms = (
        None if of_x is None else convolve(of_x, w, TANGENT_A),
        None if of_w is None else convolve(x, of_w, TANGENT_B),
        None if of_bias is None else of_bias.float().view(-1, 1, 1).expand(shape),
    )
    return total(*terms).to(ctx.dtype)


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    first, second, *ctx.moves, ctx.text, seed, stream, ctx.dtype = inputs
    keep(ctx, first, second, None, seed, stream, forward=forward)


def _tangent_of_gradient(operator: Any) -> Callable[[Any, Tangents], Tensor]:
    """Of conv2d_input or conv2d_weight, which are products of their two operands as well."""

    def tangent(ctx: Any, tangents: Tangents) -> Tensor:
        first, second, seed, stream = saved(ctx)
        of_first, of_second = tangents[:2]

        def term(x: Tensor, y: Tensor, purpose: str) -> Tensor:
            how = Sum(ctx.text, seed, stream).drawing(purpose)
            return operator(x, y, *ctx.moves, *how, torch.float32)

        terms = (
            None if of_first is None else term(of_first, second, TANGENT_A),
            None if of_second is None else term(first, of_second, TANGENT_B),
        )
        return total(*terms).to(ctx.dtype)

    return tangent


def _no_second_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    raise RuntimeError(
        "cpd's conv2d has no gradients of its gradients; forward mode over them there is "
        "(torch.func.jvp, jacfwd)"
    )


differentiable("conv2d", _setup_conv2d, _conv2d_backward, _conv2d_tangent)
for _name, _operator in (("conv2d_input", ops.conv2d_input), ("conv2d_weight", ops.conv2d_weight)):
    differentiable(_name, _setup_gradient, _no_second_gradient, _tangent_of_gradient(_operator))


# ---- torch.vmap ----------------------------------------------------------------------------------
# Each example's sums are those of groups of its own; where all share the weight, those of images of
# its own.

_Parted = Callable[[Tensor], Tensor]


def _in_images(call: Call, *names: str) -> _Parted:
    """Puts the examples of these operands among the images."""
    for name in names:
        call.widen(name)
        call.given[name] = call.given[name].flatten(0, 1)
    return lambda y: y.unflatten(0, (call.size, -1))


def _in_channels(call: Call, *names: str) -> _Parted:
    """Puts the examples of these operands of images among the channels, in groups of their own."""
    for name in names:
        call.widen(name)
        call.given[name] = call.given[name].movedim(0, 1).flatten(1, 2)
    call.given["groups"] *= call.size
    return lambda y: y.unflatten(1, (call.size, -1)).movedim(1, 0)


def _in_outputs(call: Call, *names: str) -> None:
    """Puts the examples of weights and biases among the outputs."""
    for name in names:
        if call.given[name] is not None:
            call.widen(name)
            call.given[name] = call.given[name].flatten(0, 1)


def _widen_conv2d(call: Call) -> _Parted:
    if not {"w", "bias"} & set(call.along):
        return _in_images(call, "x")
    _in_outputs(call, "w", "bias")
    return _in_channels(call, "x")


def _widen_input(call: Call) -> _Parted:
    images, channels, *image = call.given["size"]
    if "w" not in call.along:
        call.given["size"] = [images * call.size, channels, *image]
        return _in_images(call, "g")
    call.given["size"] = [images, channels * call.size, *image]
    _in_outputs(call, "w")
    return _in_channels(call, "g")


def _widen_weight(call: Call) -> _Parted:
    outputs, *kernel = call.given["size"]
    call.given["size"] = [outputs * call.size, *kernel]
    _in_channels(call, "g", "x")
    return lambda y: y.unflatten(0, (call.size, outputs))


batched("conv2d", _widen_conv2d, text_of_recipe)
batched("conv2d_input", _widen_input, lambda given: sum_draws(given["text"]))
batched("conv2d_weight", _widen_weight, lambda given: sum_draws(given["text"]))
