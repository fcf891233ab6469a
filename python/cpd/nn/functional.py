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
says otherwise. The operands are taken as they are: what they are cast to, the recipe says; for
torch's own kernel they first become autocast's type, as there.

Where a sum is `"native"`, torch's kernel computes it: linear's forward is F.linear of the cast
operands, its gradients are qg @ qw and qg.mT @ qx, that of the bias torch's sum of what is not
yet cast. Under `torch.vmap` torch's kernels see the whole batch, so bits are theirs.

`stream`, an int or a one-element integer tensor, stands in the place of the streams of the recipe's
parts; `delayed` is the state of delayed scaling, a `cpd.nn.delayed.Delayed`, where a recipe has
histories.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch.conv import Windows
from cpd._torch.derivatives import call
from cpd._torch.library import ops
from cpd.nn.arguments import (
    Arguments,
    check_bias,
    check_operand,
    check_places,
    entering,
    finished,
)
from cpd.nn.recipe import Recipe, RecipeLike, recipe
from cpd.numeric.accumulator import AccumulatorLike
from cpd.numeric.options import Number, integer
from cpd.ops.arguments import product_shape

Pair: TypeAlias = int | tuple[int, int]

PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}
"""Torch's names for them: as a layer has them, and as torch.nn.functional.pad does."""

_recipe = recipe  # the parameter of the same name hides it


def matmul(
    a: Tensor,
    b: Tensor,
    acc: RecipeLike,
    *,
    backward: AccumulatorLike | None = None,
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
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
        check_operand(name, x, like="a")
        if x.dim() == 0:
            raise ValueError(f"{name} must have at least one dimension, got none")
    x = a.unsqueeze(0) if a.dim() == 1 else a
    y = b.unsqueeze(1) if b.dim() == 1 else b
    product_shape(x.shape, y.shape)
    check_places(a, b=b)
    given = Arguments.of(how, a, b, dtype, stream, delayed)
    x, y = entering(given, x, y)
    in_one = y.dim() == 2
    out = call(
        ops.matmul, None, x.flatten(0, -2) if in_one else x, y, None, False, *given.of_operator()
    )
    out = finished(given, out, a)
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
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """input · weightᵀ + bias: input … × in, weight out × in, bias out.

    `recipe`: a `cpd.Recipe`, or one accumulator for all three GEMMs. The sums over all rows of the
    input that give the weight's gradient run in row-major order.

    >>> x, w = torch.ones(2, 40), torch.ones(3, 40, requires_grad=True)
    >>> linear(x, w, torch.full((3,), 0.5), recipe="e4m3")[0].tolist()
    [16.0, 16.0, 16.0]
    """
    how = _recipe(recipe)
    check_operand("input", input, like="input")
    check_operand("weight", weight, like="input")
    if weight.dim() != 2 or input.dim() == 0 or input.shape[-1] != weight.shape[1]:
        raise ValueError(
            "input must be … × in and weight out × in, "
            f"got shapes {tuple(input.shape)}, {tuple(weight.shape)}"
        )
    if bias is not None:
        check_operand("bias", bias, like="input")
        check_bias(bias, weight)
    check_places(input, weight=weight, bias=bias)
    given = Arguments.of(how, input, weight, dtype, stream, delayed)
    x, w = entering(given, input, weight)
    x = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    y = finished(given, call(ops.matmul, None, x, w, bias, True, *given.of_operator()), input)
    return y.reshape((*input.shape[:-1], weight.shape[0]))


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    recipe: RecipeLike,
    padding_mode: str = "zeros",
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """The convolution of torch.nn.functional.conv2d: input N × C × H × W (or C × H × W), weight out
    × C/groups × kernel rows × kernel columns, bias out.

    `padding` may be "same" (stride 1) or "valid"; `padding_mode` is that of torch.nn.Conv2d. The
    padding is written out: the sums take its products like any others.

    Each sum runs over (channel, kernel row, kernel column), row-major; that of the weight's
    gradient over (image, output row, output column). The input's gradient is a convolution too, of
    the output's gradient spread by the stride with zeros between, by the kernel turned by 180°: its
    sums run over (output channel, row, column) of that, wholly in the accumulator. It has no
    gradients of its gradients.

    Images are unfolded, up to 256 MiB of them at a time; all at once where the bits depend on it:
    with stochastic rounding, and for the weight's gradient with schemes other than `sequential` and
    `chunked`. Only the input is kept for the backward pass.

    >>> x, w = torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3)
    >>> conv2d(x, w, padding=1, recipe="e4m3")[0, 0, 1].tolist()    # 12 and 18 products of 1
    [12.0, 16.0, 16.0, 12.0]
    """
    how = _recipe(recipe)
    _check_images(input, weight, bias)
    moves = _pair("stride", stride, 1), _pair("dilation", dilation, 1)
    number = integer("groups", groups)
    outputs, per_group, *kernel = weight.shape
    if number < 1 or input.shape[-3] != per_group * number or outputs % number:
        raise ValueError(
            f"groups must be at least 1, divide weight's {outputs} outputs, and times weight's "
            f"{per_group} channels give input's: got {number} with {input.shape[-3]} channels in "
            f"input, weight {tuple(weight.shape)}"
        )
    edges = _edges(padding, kernel, *moves)
    if padding_mode not in PADDING_MODES:
        allowed = ", ".join(PADDING_MODES)
        raise ValueError(f"padding_mode must be one of {allowed}, got {padding_mode!r}")
    padded = input.shape[-2] + edges[2] + edges[3], input.shape[-1] + edges[0] + edges[1]
    windows = Windows(kernel, *moves, number)
    if any(n < 1 for n in kernel) or any(n < 1 for n in windows.places(padded)):
        raise ValueError(
            f"the kernel must be at least 1 × 1 and, dilated by {moves[1]}, fit into the padded "
            f"input, {padded}; got {tuple(kernel)}"
        )
    given = Arguments.of(how, input, weight, dtype, stream, delayed)
    x, w = entering(given, input, weight)
    x = _pad(x, edges, padding_mode)
    images = x if x.dim() == 4 else x.unsqueeze(0)
    y = call(ops.conv2d, None, images, w, bias, *moves, number, *given.of_operator())
    y = finished(given, y, input)
    return y if x.dim() == 4 else y.squeeze(0)


# ---- convolution ---------------------------------------------------------------------------------


def _check_images(input: Any, weight: Any, bias: Any) -> None:
    for name, x in (("input", input), ("weight", weight), ("bias", bias)):
        if name == "bias" and bias is None:
            continue
        check_operand(name, x, like="input")
    check_places(input, weight=weight, bias=bias)
    if input.dim() not in (3, 4):
        raise ValueError(f"input must be (N ×) C × H × W, got shape {tuple(input.shape)}")
    if weight.dim() != 4:
        raise ValueError(
            "weight must be out × in/groups × kernel rows × columns, "
            f"got shape {tuple(weight.shape)}"
        )
    if bias is not None:
        check_bias(bias, weight)


def _pair(name: str, value: Any, least: int) -> tuple[int, int]:
    """A number for both directions, or one for each."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) == 1:
        both = both * 2
    if len(both) != 2:
        raise ValueError(f"{name} must be one number or two, got {value!r}")
    down, across = integer(name, both[0]), integer(name, both[1])
    if down < least or across < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return down, across


def _edges(
    padding: Any, kernel: list[int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Padding on the left, right, top and bottom, as torch.nn.functional.pad takes it."""
    if not isinstance(padding, str):
        down, across = _pair("padding", padding, 0)
        return across, across, down, down
    if padding not in ("same", "valid"):
        raise ValueError(f"padding must be numbers, 'same' or 'valid', got {padding!r}")
    if padding == "valid":
        return 0, 0, 0, 0
    if stride != (1, 1):
        raise ValueError(f"padding='same' needs stride 1, got {stride}")
    down, across = (dilation[d] * (kernel[d] - 1) for d in (0, 1))
    return across // 2, across - across // 2, down // 2, down - down // 2


def _pad(x: Tensor, edges: tuple[int, int, int, int], mode: str) -> Tensor:
    return F.pad(x, edges, PADDING_MODES[mode]) if any(edges) else x
