# SPDX-License-Identifier: Apache-2.0
"""Torch's products in a customized precision: matmul, linear and conv2d, each a GEMM whose sums,
and those of its two backward GEMMs, are kept as a `cpd.Recipe` says.

Tensors are float32, bfloat16 or float16, on the CPU or a CUDA device. The result has the first
operand's type unless `dtype` says otherwise; it must hold the forward accumulator's format, or the
recipe's `output` (the sums are then formed in float32). A gradient has its operand's type; where
that does not hold the sums they are formed in float32 and rounded once into it, to nearest-even.
The bias is what the sums start from (c of `cpd.gemm`), so it is rounded into the accumulator's
format first; it may be of another type.

All of it works under autograd, `torch.func` (grad, vjp, jvp, jacrev, jacfwd, vmap,
functional_call), `torch.compile(fullgraph=True)` and activation checkpointing. A tangent is the
sum, in float32, of two products with the forward accumulator, that of each operand's tangent by the
other operand as cast, and of the bias's tangent; casts pass tangents straight through. Under
`torch.vmap` each sample has the bits that it has alone. Where a rounding is stochastic, also one of
the backward pass, `randomness="same"` says so, and the samples are computed one by one; with
"different" a sample draws by its place in the whole batch.

Under `torch.autocast` the result has autocast's type, as torch's layers have there, unless `dtype`
says otherwise. The operands are taken as they are: what they are cast to, the recipe says.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from cpd._torch import operators
from cpd._torch.derivatives import call
from cpd._torch.gemm import (
    CAST_ACTIVATION,
    CAST_GRADIENT,
    CAST_OUTPUT,
    CAST_WEIGHT,
    GRAD_BIAS,
    GRAD_INPUT,
    GRAD_WEIGHT,
    tagged,
)
from cpd._torch.library import ops
from cpd.nn.recipe import CastSpec, Recipe, RecipeLike, recipe
from cpd.numeric.accumulator import AccumulatorLike
from cpd.numeric.options import integer
from cpd.ops.arguments import check_carrier, holds, product_shape

_recipe = recipe  # the parameter of the same name hides it


def matmul(
    a: Tensor,
    b: Tensor,
    acc: RecipeLike,
    *,
    backward: AccumulatorLike | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The matrix product by torch.matmul's rules: vectors, matrices, batches that broadcast.

    `acc`: a `cpd.Recipe`, of which a is the activation and b the weight, or one accumulator.
    `backward`: the accumulator of both backward GEMMs, where it is not `acc`; not with a recipe.

    Where an operand was broadcast, its gradient sums over the dimensions that were, too, in the
    same sum: k is row-major in them and the matrix's own dimension.

    >>> x, w = torch.full((3, 64), 0.5), torch.ones(64)
    >>> matmul(x, w, "e4m3").tolist()
    [8.0, 8.0, 8.0]
    >>> matmul(x, w, "e4m3 kahan").tolist()
    [32.0, 32.0, 32.0]
    """
    if backward is not None:
        if isinstance(acc, Recipe):
            raise ValueError("backward goes with an accumulator; a recipe has its own")
        acc = Recipe(acc, backward, backward)
    how = _recipe(acc)
    for name, x in (("a", a), ("b", b)):
        _check_operand(name, x, like="a")
        if x.dim() == 0:
            raise ValueError(f"{name} must have at least one dimension, got none")
    x = a.unsqueeze(0) if a.dim() == 1 else a
    y = b.unsqueeze(1) if b.dim() == 1 else b
    product_shape(x.shape, y.shape)
    _check_places(a, b=b)
    dtype = _asked(a, dtype)
    arguments = _recipe_arguments(how, a, b, dtype)
    x = _cast(x, how.activation, CAST_ACTIVATION, how)
    y = _cast(y, how.weight, CAST_WEIGHT, how)
    in_one = y.dim() == 2
    out = call(ops.matmul, None, x.flatten(0, -2) if in_one else x, y, None, *arguments)
    out = _result(out, how, a, dtype)
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
    recipe: RecipeLike,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """input · weightᵀ + bias: input … × in, weight out × in, bias out.

    `recipe`: a `cpd.Recipe`, or one accumulator for all three GEMMs. The sums over all rows of the
    input that give the weight's gradient run in row-major order.

    >>> x, w = torch.ones(2, 40), torch.ones(3, 40, requires_grad=True)
    >>> linear(x, w, torch.full((3,), 0.5), recipe="e4m3")[0].tolist()
    [16.0, 16.0, 16.0]
    """
    how = _recipe(recipe)
    _check_operand("input", input, like="input")
    _check_operand("weight", weight, like="input")
    if weight.dim() != 2 or input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            "input must be … × in and weight out × in, "
            f"got shapes {tuple(input.shape)}, {tuple(weight.shape)}"
        )
    if bias is not None:
        _check_operand("bias", bias, like="input")
        _check_bias(bias, weight)
    _check_places(input, weight=weight, bias=bias)
    dtype = _asked(input, dtype)
    arguments = _recipe_arguments(how, input, weight, dtype)
    x = _cast(input, how.activation, CAST_ACTIVATION, how)
    w = _cast(weight, how.weight, CAST_WEIGHT, how)
    x = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    y = _result(call(ops.matmul, None, x, w.t(), bias, *arguments), how, input, dtype)
    return y.reshape((*input.shape[:-1], weight.shape[0]))


def _check_operand(name: str, x: Any, like: str) -> None:
    """Raises unless `x` is a tensor that products take."""
    if isinstance(x, Tensor) and x.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got a nested one (torch.nn.TransformerEncoder makes "
            "them of padded batches: give it enable_nested_tensor=False)"
        )
    operators.check_float(name, x, like)


def _asked(x: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """The result's type as the caller asks for it, or torch.autocast; None: x's own."""
    place = x.device.type
    if dtype is not None or not torch.amp.is_autocast_available(place):
        return dtype
    return torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None


def _check_bias(bias: Tensor, weight: Tensor) -> None:
    if tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}")


def _check_places(first: Tensor, **others: Tensor | None) -> None:
    """Raises unless all are on one device."""
    for name, x in others.items():
        if x is not None and x.device != first.device:
            raise ValueError(
                f"{name} must be on the first operand's device, {first.device}, got {x.device}"
            )


# ---- what a recipe asks for ----------------------------------------------------------------------


def _recipe_arguments(
    how: Recipe, x: Tensor, w: Tensor, dtype: torch.dtype | None
) -> tuple[list[str], str, Tensor | None, torch.dtype]:
    """What the operators take: sums, gradient, numbers, dtype (see `cpd._torch.gemm`). Checks that
    types hold what the recipe puts into them."""
    element = operators.result_type(x, dtype)
    casts = (x.dtype, how.activation), (w.dtype, how.weight), (element, how.output)
    for held_by, spec in casts:
        if spec is not None:
            check_carrier(operators.name_of(held_by), spec.format.name)
    if not holds(operators.name_of(element), how.forward.format.name):
        if how.output is None:
            raise ValueError(
                f"the result's type, {operators.name_of(element)}, does not hold "
                f"{how.forward.format}: give the recipe an output= that it holds, or dtype= a type "
                "that does, such as float32, or another accumulator"
            )
        element = torch.float32
    sums = [how.forward.text, how.grad_input.text, how.grad_weight.text, how.grad_bias.text]
    return sums, "" if how.gradient is None else how.gradient.text, _numbers(how, x), element


def _result(y: Tensor, how: Recipe, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """What leaves the layer: the sums, cast if the recipe says so."""
    if how.output is None:
        return y
    return _cast(y, how.output, CAST_OUTPUT, how).to(operators.result_type(x, dtype))


def _numbers(how: Recipe, x: Tensor) -> Tensor | None:
    """Seeds and streams as the operators take them; None where nothing is stochastic."""
    drawing = (
        (how.forward, "given"),
        (how.grad_input, GRAD_INPUT),
        (how.grad_weight, GRAD_WEIGHT),
        (how.grad_bias, GRAD_BIAS),
        (how.gradient, CAST_GRADIENT),
    )
    pairs = [(None, None) if s is None else _pair_of(s, purpose, how, x) for s, purpose in drawing]
    given = [number for pair in pairs for number in pair if number is not None]
    if not given:
        return None
    on_cpu = all(number.device.type == "cpu" for number in given)
    place = given[0].device if on_cpu else x.device
    zero = torch.zeros((), dtype=torch.int64, device=place)
    flat = [zero if number is None else number.to(place) for pair in pairs for number in pair]
    return torch.stack(flat).view(len(drawing), 2)


def _pair_of(
    spec: Any, purpose: str, how: Recipe, x: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Seed and stream of an accumulator or cast, for one purpose in one layer."""
    seed, stream = operators.random_numbers(spec, x)
    if stream is None:
        return None, None
    return seed, tagged(stream, purpose, how.layer)


def _cast(x: Tensor, spec: CastSpec | None, purpose: str, how: Recipe) -> Tensor:
    """`x` as it enters a GEMM."""
    if spec is None:
        return x
    seed, stream = _pair_of(spec, purpose, how, x)
    y: Tensor = call(ops.cast, ops.cast_plain, x, spec.text, seed, stream, None)
    return y


from cpd.nn.convolution import PADDING_MODES, Pair, conv2d  # noqa
