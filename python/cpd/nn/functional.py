# SPDX-License-Identifier: Apache-2.0
"""torch's products, computed as a recipe says: matmul, linear, bilinear.

Each product is a GEMM with two backward GEMMs. A `cpd.Recipe` defines the casts of operands and the
sums of all three GEMMs.

**Types.** Tensors are float32, bfloat16 or float16, on the CPU or a CUDA device. Outside of
`torch.autocast`, operands must have one type, or `dtype` must be given; else ValueError is raised.
The result has the operands' type, or `dtype`. That type must represent every value of the forward
accumulator's format, or of the recipe's `output` if given; with `output`, sums are stored in
float32 first. A gradient has its operand's type. If that type cannot represent the sums, they are
stored in float32 and then rounded once, to nearest-even. The sums start from the bias (c of
`cpd.gemm`), so the bias is first rounded into the accumulator's format. The bias may be of another
type.

**Transforms.** All functions work under autograd, `torch.func` (grad, vjp, jvp, jacrev, jacfwd,
vmap, functional_call), `torch.compile(fullgraph=True)` and activation checkpointing. In forward
mode, the result's tangent is the float32 sum of three terms. Two are products of an operand's
tangent with the other operand after its cast, summed by the forward accumulator. The third is the
bias's tangent. Tangents pass through casts unchanged. Under `torch.vmap` each sample has the same
bits as in a call of its own. If a rounding is stochastic, also in the backward pass, `torch.vmap`
needs `randomness="same"`, and the samples are computed one by one. With `randomness="different"`, a
sample's random bits depend on its index in the whole batch.

**Autocast.** Under `torch.autocast` the result has autocast's type, like results of torch's layers,
unless `dtype` is given. The recipe's casts are applied to the operands in their original types; a
weight is not first rounded to autocast's type. With native sums, operands without a cast and the
bias are converted to autocast's type. A gradient is rounded to autocast's type, and then to its
operand's type.

**Native sums.** If a sum is `"native"`, torch's kernel computes it. For example, the result of
`linear` is F.linear of the cast operands qx and qw. The gradients are qg @ qw and qg.mT @ qx, where
qg is the cast gradient. The bias's gradient is torch's sum of the uncast gradient. Products are
exact products of the operands' values, summed in float32. Scales are applied in float32, the bias
is added, and the result is rounded once to its type. Under `torch.vmap` torch's kernels compute the
whole batch at once; bits may differ from single calls.

**Random bits.** All random bits of a call follow from `seed` and `stream`, ints or one-element
integer tensors on any device. Each rounding uses the stream XOR purpose << 60 (`cpd.Recipe` lists
the purposes). So the roundings of a call never share random bits while streams are below 2^60.
`delayed` is the state of delayed scaling, a `cpd.nn.delayed.Delayed`, for recipes with histories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

import torch
from torch import Tensor

from cpd._torch.derivatives import run
from cpd.nn.arguments import (
    Arguments,
    check_bias,
    check_operand,
    check_places,
    entering,
    finished,
    recipe_of,
)
from cpd.nn.convolution import conv1d as conv1d
from cpd.nn.convolution import conv2d as conv2d
from cpd.nn.convolution import conv3d as conv3d
from cpd.nn.convolution import conv_transpose1d as conv_transpose1d
from cpd.nn.convolution import conv_transpose2d as conv_transpose2d
from cpd.nn.convolution import conv_transpose3d as conv_transpose3d
from cpd.nn.delayed import at as delayed_at
from cpd.nn.recipe import Recipe, RecipeLike, Sums
from cpd.nn.streams import Bits
from cpd.numeric.numbers import Number
from cpd.numeric.renamed import refuse, refuses_old
from cpd.ops.arguments import product_shape


@refuses_old
def matmul(
    a: Tensor,
    b: Tensor,
    *_old: Never,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
    **_renamed: Never,
) -> Tensor:
    """Returns the matrix product of two tensors, with shapes as in torch.matmul.

    Operands are vectors, matrices, or batches that broadcast. The gradient of a broadcast operand
    is one sum over the broadcast dimensions and the matrix's summed dimension, in row-major order.

    Args:
        a: the first operand, which the recipe's `activation` casts.
        b: the second operand, which the recipe's `weight` casts.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands; default None:
            operands are not cast, and `sums` must be given.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default None: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: a's.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; required by recipes that
            delay scales. Default None.

    Returns:
        The product.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the sums' format.
        TypeError: for an argument of another type.

    >>> x, w = torch.full((3, 64), 0.5), torch.ones(64)
    >>> matmul(x, w, sums="e4m3").tolist()
    [8.0, 8.0, 8.0]
    >>> matmul(x, w, sums="e4m3 kahan").tolist()
    [32.0, 32.0, 32.0]
    """
    if _old or _renamed:
        _refuse_sums(_old, _renamed)
    return _product(a, b, recipe_of(recipe, sums), dtype, seed, stream, delayed)


def _refuse_sums(positional: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for a third operand or an unknown keyword.

    In version 0.7, the third operand was the accumulators.
    """
    if positional or "acc" in keywords or "backward" in keywords:
        raise TypeError(
            "matmul takes two operands: give accumulators by sums=, three for the forward "
            "product and its two backward ones, or a recipe by recipe="
        )
    refuse("matmul", keywords)


def matmul_in_float32(
    a: Tensor,
    b: Tensor,
    recipe: Recipe,
    *,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes `matmul` with a float32 result, which the caller rounds to the result's type."""
    return _product(a, b, recipe, None, seed, stream, delayed, in_float32=True)


def _product(
    a: Tensor,
    b: Tensor,
    recipe: Recipe,
    dtype: torch.dtype | None,
    seed: Number,
    stream: Number,
    delayed: Any,
    in_float32: bool = False,
) -> Tensor:
    for name, x in (("a", a), ("b", b)):
        check_operand(name, x, like="a")
        if x.dim() == 0:
            raise ValueError(f"{name} must have at least one dimension, got none")
    x = a.unsqueeze(0) if a.dim() == 1 else a
    y = b.unsqueeze(1) if b.dim() == 1 else b
    product_shape(x.shape, y.shape)
    check_places("a", a, b=b)
    arguments = Arguments.of(recipe, a, b, dtype, seed, stream, delayed)
    if in_float32:
        arguments = arguments._replace(element=torch.float32)
    x, y = entering(arguments, x, y)
    in_one = y.dim() == 2
    out = run(
        "matmul",
        x.flatten(0, -2) if in_one else x,
        y,
        None,
        False,
        *arguments.of_operator(),
    )
    out = finished(arguments, out, a)
    if in_one:
        out = out.reshape((*x.shape[:-1], y.shape[1]))
    if b.dim() == 1:
        out = out.squeeze(-1)
    return out.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else out


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Returns input · weightᵀ + bias.

    The weight's gradient sums over all rows of the input, in row-major order.

    Args:
        input: … × in.
        weight: out × in.
        bias: `out` values; default None: no bias.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands; default None:
            operands are not cast, and `sums` must be given.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default None: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the input's.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; required by recipes that
            delay scales. Default None.

    Returns:
        The result, … × out.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the sums' format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(2, 40), torch.ones(3, 40, requires_grad=True)
    >>> linear(x, w, torch.full((3,), 0.5), recipe=cpd.Recipe(sums="e4m3"))[0].tolist()
    [16.0, 16.0, 16.0]
    """
    call_recipe = recipe_of(recipe, sums)
    check_operand("input", input, like="input")
    check_operand("weight", weight, like="input")
    if weight.dim() != 2 or input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            "input must be … × in and weight out × in, "
            f"got shapes {tuple(input.shape)}, {tuple(weight.shape)}"
        )
    if bias is not None:
        check_operand("bias", bias, like="input")
        check_bias(bias, weight.shape[0])
    check_places("input", input, weight=weight, bias=bias)
    arguments = Arguments.of(call_recipe, input, weight, dtype, seed, stream, delayed)
    x, w = entering(arguments, input, weight)
    x = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    y = finished(arguments, run("matmul", x, w, bias, True, *arguments.of_operator()), input)
    return _shaped(y, (*input.shape[:-1], weight.shape[0]))


def bilinear(
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.bilinear by a recipe.

    The recipe applies to two products. The first, input1 · weight, sums over I for each output and
    each index in J. The second, the first's result · input2, sums over J; its random stream is
    `stream` XOR 1. Then torch adds the bias.

    Args:
        input1: … × I.
        input2: … × J.
        weight: out × I × J.
        bias: `out` values; default None: no bias.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands; default None:
            operands are not cast, and `sums` must be given.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default None: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed` of two products; required
            by recipes that delay scales. Default None.

    Returns:
        The result, … × out.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the sums' format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 4), torch.ones(1, 4, 40)
    >>> bilinear(x, torch.ones(1, 40), w, recipe=cpd.Recipe(sums="e4m3")).tolist()
    [[64.0]]
    """
    call_recipe = recipe_of(recipe, sums)
    for name, x in (("input1", input1), ("input2", input2), ("weight", weight)):
        check_operand(name, x, like="input1")
    if weight.dim() != 3 or (input1.shape[-1:], input2.shape[-1:]) != (
        weight.shape[1:2],
        weight.shape[2:],
    ):
        raise ValueError(
            "input1 must be … × I, input2 … × J and weight out × I × J, got shapes "
            f"{tuple(input1.shape)}, {tuple(input2.shape)}, {tuple(weight.shape)}"
        )
    bits = Bits.of(call_recipe, seed, stream)
    outputs, rows, columns = weight.shape
    matrix = weight.transpose(0, 1).reshape(rows, outputs * columns)
    inner = matmul(input1, matrix, recipe=call_recipe, delayed=delayed, **bits.at(0))
    inner = inner.reshape(*inner.shape[:-1], outputs, columns)
    second = {"recipe": call_recipe, "delayed": delayed_at(delayed, 1), **bits.at(1)}
    y = matmul(inner, input2.unsqueeze(-1), **second).squeeze(-1)
    return y if bias is None else y + bias


def _shaped(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns `y` in another shape, but not as a view of `y` for autograd.

    Hooks of FSDP2, and code that changes results in place, require results that are not views.
    torch's own functions return such results.
    """
    if y.dim() == len(shape):
        return y
    shaped: Tensor = torch.ops.aten._unsafe_view.default(y, shape)
    return shaped
