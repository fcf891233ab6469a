# SPDX-License-Identifier: Apache-2.0
"""torch's convolutions and transposed convolutions, computed as a recipe says.

`cpd.functional` documents types, gradients and random bits of all products. `conv2d` documents the
sums and memory of convolutions, and the blocks of their scaled operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch.convolution import cast_images, cast_kernels, has_tiles
from cpd._torch.derivatives import run
from cpd._torch.operands import cast_operand
from cpd.nn.arguments import (
    Arguments,
    check_bias,
    entering,
    finished,
    pair_of,
    recipe_of,
)
from cpd.nn.convolution_geometry import (
    PADDING_MODES,
    Geometry,
    check_images,
    check_size,
    moves_of,
)
from cpd.nn.recipe import RecipeLike, Sums
from cpd.numeric.cast import Cast
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number
from cpd.numeric.purposes import Purpose

Single: TypeAlias = int | tuple[int]
Pair: TypeAlias = int | tuple[int, int]
Triple: TypeAlias = int | tuple[int, int, int]

_refused_by_torch = functools.partial(refused_by_torch, own=("input", "weight", "bias"))


@_refused_by_torch
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Single = 1,
    padding: Single | str = 0,
    dilation: Single = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv1d by a recipe, like `conv2d`.

    Args:
        input: N × C × L (or C × L).
        weight: out × C/groups × kernel.
        bias: `out` values; default None: no bias.
        stride: as in torch; default 1.
        padding: as torch's: a number, one number for each dimension, "same" (stride 1) or "valid";
            default 0. The sums include the products of the padding.
        dilation: as in torch; default 1.
        groups: as in torch; default 1.
        padding_mode: as in torch.nn.Conv2d: "zeros" (default), "reflect", "replicate" or
            "circular".
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
        The convolution.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 8, 4), torch.ones(1, 8, 3)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv1d(x, w, padding=1, recipe=how)[0, 0].tolist()    # 16 and 24 products of 1
    [16.0, 16.0, 16.0, 16.0]
    """
    geometry = Geometry(stride, padding, dilation, groups, padding_mode)
    return _convolve(1, input, weight, bias, geometry, (recipe, sums, seed, stream, dtype, delayed))


@_refused_by_torch
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv2d by a recipe.

    Args:
        input: N × C × H × W (or C × H × W).
        weight: out × C/groups × kernel rows × kernel columns.
        bias: `out` values; default None: no bias.
        stride: as in torch; default 1.
        padding: as torch's: a number, one number for each dimension, "same" (stride 1) or "valid";
            default 0. The sums include the products of the padding.
        dilation: as in torch; default 1.
        groups: as in torch; default 1.
        padding_mode: as in torch.nn.Conv2d: "zeros" (default), "reflect", "replicate" or
            "circular".
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
        The convolution.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    Each sum runs over (channel, kernel row, kernel column), row-major; each sum of the weight's
    gradient over (image, output row, output column). The input's gradient is a convolution too. The
    output's gradient, with stride - 1 zeros between its elements, is convolved with the kernel
    rotated by 180°. The accumulator adds all terms of a sum, over (output channel, row, column).
    Gradients of gradients are not supported; forward mode over gradients (torch.func.jvp) is.

    On the CPU, products read images in place: images are not unfolded or padded in memory. Zeros
    between a gradient's elements are multiplied only if that changes a bit. On a GPU, images are
    unfolded in batches of up to 256 MiB. They are unfolded all at once if the bits depend on it:
    with stochastic rounding, and for the weight's gradient with schemes other than `sequential` and
    `chunked`. Only the input is stored for the backward pass.

    With `sums="native"`, torch computes: the result is torch.nn.functional.conv2d of the cast
    operands. torch.ops.aten.convolution_backward computes the gradients, and the bias's gradient is
    torch's sum of the uncast gradient. Gradients of gradients are supported, and are torch's too.

    Blocks of scaled formats run along the summed dimension. For the result and the input's
    gradient, an image's blocks run along the channels of a group at each pixel. A weight's blocks
    run along its input channels for the result, and along its output channels for the input's
    gradient. For the weight's gradient, blocks run along the batch. The last block may be shorter.
    Blocks of R × C elements divide the out × in matrix of a weight at each index of the kernel; in
    an image, the R rows run along the last dimension. Each operand is multiplied by its scales
    before the product.

    >>> import cpd
    >>> x, w = torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv2d(x, w, padding=1, recipe=how)[0, 0, 1].tolist()    # 12 and 18 products of 1
    [12.0, 16.0, 16.0, 12.0]
    """
    geometry = Geometry(stride, padding, dilation, groups, padding_mode)
    return _convolve(2, input, weight, bias, geometry, (recipe, sums, seed, stream, dtype, delayed))


@_refused_by_torch
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Triple = 1,
    padding: Triple | str = 0,
    dilation: Triple = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv3d by a recipe, like `conv2d`.

    Args:
        input: N × C × D × H × W (or C × D × H × W).
        weight: out × C/groups × the kernel's three dimensions.
        bias: `out` values; default None: no bias.
        stride: as in torch; default 1.
        padding: as torch's: a number, one number for each dimension, "same" (stride 1) or "valid";
            default 0. The sums include the products of the padding.
        dilation: as in torch; default 1.
        groups: as in torch; default 1.
        padding_mode: as in torch.nn.Conv2d: "zeros" (default), "reflect", "replicate" or
            "circular".
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
        The convolution.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 1, 3, 3, 3), torch.ones(2, 1, 3, 3, 3)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv3d(x, w, padding=1, recipe=how)[0, 0, 1, 1].tolist()    # 18, 27, 18 products of 1
    [16.0, 16.0, 16.0]
    """
    geometry = Geometry(stride, padding, dilation, groups, padding_mode)
    return _convolve(3, input, weight, bias, geometry, (recipe, sums, seed, stream, dtype, delayed))


@_refused_by_torch
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Single = 1,
    padding: Single = 0,
    output_padding: Single = 0,
    groups: int = 1,
    dilation: Single = 1,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose1d by a recipe, like `conv_transpose2d`.

    Args:
        input: N × C × L (or C × L).
        weight: C × out/groups × kernel.
        bias: `out` values; default None: no bias.
        stride: as in torch; default 1.
        padding: as in torch; default 0.
        output_padding: as in torch; default 0.
        groups: as in torch; default 1.
        dilation: as in torch; default 1.
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
        The transposed convolution.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 20, 2), torch.ones(20, 1, 2)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv_transpose1d(x, w, recipe=how)[0, 0].tolist()    # 20, 40 and 20 products of 1
    [16.0, 16.0, 16.0]
    """
    geometry = Geometry(stride, padding, dilation, groups, output_padding=output_padding)
    return _convolve(1, input, weight, bias, geometry, (recipe, sums, seed, stream, dtype, delayed))


@_refused_by_torch
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose2d by a recipe.

    Args:
        input: N × C × H × W (or C × H × W).
        weight: C × out/groups × kernel rows × kernel columns.
        bias: `out` values; default None: no bias.
        stride: as in torch; default 1.
        padding: as in torch; default 0.
        output_padding: as in torch; default 0.
        groups: as in torch; default 1.
        dilation: as in torch; default 1.
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
        The transposed convolution.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    The result is the same as the input's gradient of a `conv2d` with this weight. stride - 1 zeros
    are put between the elements of the input. Each sum runs over (input channel, row, column) of
    this extended input, with the kernel rotated by 180°. The input's gradient is a convolution. The
    weight's gradient sums over (image, input row, input column). The padding is cut off the result.
    With stochastic sums, the cut-off elements use random bits too. A weight's blocks run along its
    first dimension for the result, and along its second dimension for the input's gradient. Other
    blocks are as in `conv2d`.

    >>> import cpd
    >>> x, w = torch.ones(1, 1, 2, 2), torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv_transpose2d(x, w, stride=2, recipe=how)[0, 0, :2].tolist()
    [[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0]]
    """
    geometry = Geometry(stride, padding, dilation, groups, output_padding=output_padding)
    return _convolve(2, input, weight, bias, geometry, (recipe, sums, seed, stream, dtype, delayed))


@_refused_by_torch
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Triple = 1,
    padding: Triple = 0,
    output_padding: Triple = 0,
    groups: int = 1,
    dilation: Triple = 1,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose3d by a recipe, like `conv_transpose2d`.

    Args:
        input: N × C × D × H × W (or C × D × H × W).
        weight: C × out/groups × the kernel's three dimensions.
        bias: `out` values; default None: no bias.
        stride: as in torch; default 1.
        padding: as in torch; default 0.
        output_padding: as in torch; default 0.
        groups: as in torch; default 1.
        dilation: as in torch; default 1.
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
        The transposed convolution.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 20, 1, 1, 1), torch.ones(20, 1, 1, 1, 2)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv_transpose3d(x, w, recipe=how).flatten().tolist()    # 20 products of 1 each
    [16.0, 16.0]
    """
    geometry = Geometry(stride, padding, dilation, groups, output_padding=output_padding)
    return _convolve(3, input, weight, bias, geometry, (recipe, sums, seed, stream, dtype, delayed))


# ---- of any dimensions -----------------------------------------------------------------------


def _convolve(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    options: tuple[Any, ...],
) -> Tensor:
    """Returns a convolution over `rank` dimensions.

    `options` are recipe, sums, seed, stream, dtype and delayed.
    """
    recipe, sums, seed, stream, dtype, delayed = options
    call_recipe = recipe_of(recipe, sums)
    transposed = geometry.output_padding is not None
    check_images(rank, transposed, input, weight, bias)
    moves, edges = moves_of(rank, geometry, input, weight)
    check_size(moves, edges, input, weight)
    if bias is not None:
        check_bias(bias, weight.shape[1] * moves.groups if transposed else weight.shape[0])
    if call_recipe.scales_at != "operand":
        raise ValueError(
            "convolutions apply scales to each operand, got "
            f"scales_at={call_recipe.scales_at!r}, which linear and matmul take"
        )
    arguments = Arguments.of(call_recipe, input, weight, dtype, seed, stream, delayed)
    alone = input.dim() == rank + 1
    x, w = _entering(arguments, input.unsqueeze(0) if alone else input, weight, moves.groups)
    x = F.pad(x, edges, PADDING_MODES[geometry.padding_mode]) if any(edges) else x
    y = run("convolution", x, w, bias, *moves, *arguments.of_operator())
    y = finished(arguments, y, input)
    return y.squeeze(0) if alone else y


def _entering(arguments: Arguments, x: Tensor, w: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Returns input and weight after the casts that precede the operator convolution.

    Two-dimensional blocks cover the same elements as in operands that the operator itself casts.
    """
    of_x, of_w = _tiled(arguments.activation), _tiled(arguments.weight)
    if of_x is None and of_w is None:
        return entering(arguments, x, w)
    others = arguments._replace(
        activation=arguments.activation if of_x is None else None,
        weight=arguments.weight if of_w is None else None,
    )
    x, w = entering(others, x, w)
    if of_x is not None:
        x = cast_images(_cast(arguments, of_x, Purpose.cast_activation, x), x, groups)
    if of_w is not None:
        w = cast_kernels(_cast(arguments, of_w, Purpose.cast_weight, w), w, 1, groups, True)
    return x, w


def _tiled(spec: Cast | None) -> Cast | None:
    """Returns the cast `spec` if its scales have two-dimensional blocks (R x C), else None."""
    return spec if spec is not None and has_tiles(spec.text) else None


def _cast(
    arguments: Arguments, spec: Cast, purpose: Purpose, x: Tensor
) -> Callable[[Tensor, int], Tensor]:
    numbers = pair_of(spec, purpose, x, arguments.seed, arguments.stream)
    return lambda x, axis: cast_operand(x, spec.text, axis, numbers)
