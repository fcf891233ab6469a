# SPDX-License-Identifier: Apache-2.0
"""Torch's convolutions, also transposed ones, in a customized precision.

They have one, two or three dimensions. `cpd.functional` documents what holds for all products,
`conv2d` the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch.convolution import cast_images, cast_kernels, has_tiles
from cpd._torch.derivatives import run
from cpd._torch.moves import Moves
from cpd._torch.operands import cast_operand
from cpd.nn.arguments import (
    Arguments,
    check_operand,
    check_places,
    entering,
    finished,
    pair_of,
)
from cpd.nn.recipe import RecipeLike, as_recipe
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number, integer
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled_cast import OperandSpec
from cpd.numeric.shown import shown

Single: TypeAlias = int | tuple[int]
Pair: TypeAlias = int | tuple[int, int]
Triple: TypeAlias = int | tuple[int, int, int]

PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}
"""Torch's names of padding modes in a layer, and in torch.nn.functional.pad."""


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
    recipe: RecipeLike,
    padding_mode: str = "zeros",
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv1d by a recipe; the rest is as `conv2d`.

    Args:
        input: N × C × L (or C × L).
        weight: out × C/groups × kernel.
        bias: out; default None: none.
        stride: as torch's; default 1.
        padding: as torch's: a number, one for each dimension, "same" (stride 1) or "valid"; default
            0. The sums take the padding's products like any others.
        dilation: as torch's; default 1.
        groups: as torch's; default 1.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands.
        padding_mode: as torch.nn.Conv2d's: "zeros" (default), "reflect", "replicate" or "circular".
        dtype: the result's type; default None: the input's.
        stream: an int, or a one-element integer tensor on any device, in place of the streams of
            the recipe's parts; default None: theirs.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; default None: none.

    Returns:
        The convolution.

    Raises:
        ValueError: for shapes that do not fit, an invalid option, or a type that does not hold the
            format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 8, 4), torch.ones(1, 8, 3)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv1d(x, w, padding=1, recipe=how)[0, 0].tolist()    # 16 and 24 products of 1
    [16.0, 16.0, 16.0, 16.0]
    """
    geometry = _Geometry(stride, padding, dilation, groups, padding_mode)
    return _convolve(1, input, weight, bias, geometry, (recipe, dtype, stream, delayed))


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
    recipe: RecipeLike,
    padding_mode: str = "zeros",
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv2d by a recipe.

    Args:
        input: N × C × H × W (or C × H × W).
        weight: out × C/groups × kernel rows × kernel columns.
        bias: out; default None: none.
        stride: as torch's; default 1.
        padding: as torch's: a number, one for each dimension, "same" (stride 1) or "valid"; default
            0. The sums take the padding's products like any others.
        dilation: as torch's; default 1.
        groups: as torch's; default 1.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands.
        padding_mode: as torch.nn.Conv2d's: "zeros" (default), "reflect", "replicate" or "circular".
        dtype: the result's type; default None: the input's.
        stream: an int, or a one-element integer tensor on any device, in place of the streams of
            the recipe's parts; default None: theirs.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; default None: none.

    Returns:
        The convolution.

    Raises:
        ValueError: for shapes that do not fit, an invalid option, or a type that does not hold the
            format.
        TypeError: for an argument of another type.

    Each sum runs over (channel, kernel row, kernel column), row-major; the sum of the weight's
    gradient over (image, output row, output column). The input's gradient is a convolution too. It
    convolves the output's gradient, spread by the stride with zeros between, with the kernel turned
    by 180°. Its sums run over (output channel, row, column), wholly in the accumulator. It has no
    gradients of its gradients.

    On the CPU products read images in place: nothing is unfolded, padded or spread in memory. Zeros
    between a spread gradient's elements are multiplied only where they change a bit. On a GPU
    images are unfolded, up to 256 MiB of them at a time. They are unfolded all at once where the
    bits depend on it: with stochastic rounding, and for the weight's gradient with schemes other
    than `sequential` and `chunked`. Only the input is stored for the backward pass.

    Sums `"native"` unfold nothing: the result is torch.nn.functional.conv2d's of the cast operands,
    gradients are torch.ops.aten.convolution_backward's, the bias's is torch's sum of the uncast
    gradient; gradients of gradients are torch's too.

    Blocks of scaled operands run along channels at each pixel, within a group, for the result and
    the input's gradient; a weight's run along its input channels and along its outputs. For the
    weight's gradient blocks run along the batch. A last block may be short. Tiles R × C of a weight
    divide its out × in matrices, one for each index in the kernel; an image's have R along the last
    dimension. Scales are applied to each operand.

    >>> import cpd
    >>> x, w = torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv2d(x, w, padding=1, recipe=how)[0, 0, 1].tolist()    # 12 and 18 products of 1
    [12.0, 16.0, 16.0, 12.0]
    """
    geometry = _Geometry(stride, padding, dilation, groups, padding_mode)
    return _convolve(2, input, weight, bias, geometry, (recipe, dtype, stream, delayed))


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
    recipe: RecipeLike,
    padding_mode: str = "zeros",
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv3d by a recipe; the rest is as `conv2d`.

    Args:
        input: N × C × D × H × W (or C × D × H × W).
        weight: out × C/groups × the kernel's three dimensions.
        bias: out; default None: none.
        stride: as torch's; default 1.
        padding: as torch's: a number, one for each dimension, "same" (stride 1) or "valid"; default
            0. The sums take the padding's products like any others.
        dilation: as torch's; default 1.
        groups: as torch's; default 1.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands.
        padding_mode: as torch.nn.Conv2d's: "zeros" (default), "reflect", "replicate" or "circular".
        dtype: the result's type; default None: the input's.
        stream: an int, or a one-element integer tensor on any device, in place of the streams of
            the recipe's parts; default None: theirs.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; default None: none.

    Returns:
        The convolution.

    Raises:
        ValueError: for shapes that do not fit, an invalid option, or a type that does not hold the
            format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 1, 3, 3, 3), torch.ones(2, 1, 3, 3, 3)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv3d(x, w, padding=1, recipe=how)[0, 0, 1, 1].tolist()    # 18, 27, 18 products of 1
    [16.0, 16.0, 16.0]
    """
    geometry = _Geometry(stride, padding, dilation, groups, padding_mode)
    return _convolve(3, input, weight, bias, geometry, (recipe, dtype, stream, delayed))


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
    recipe: RecipeLike,
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose1d by a recipe, as `conv_transpose2d`.

    Args:
        input: N × C × L (or C × L).
        weight: C × out/groups × kernel.
        bias: out; default None: none.
        stride: as torch's; default 1.
        padding: as torch's; default 0.
        output_padding: as torch's; default 0.
        groups: as torch's; default 1.
        dilation: as torch's; default 1.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands.
        dtype: the result's type; default None: the input's.
        stream: an int, or a one-element integer tensor on any device, in place of the streams of
            the recipe's parts; default None: theirs.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; default None: none.

    Returns:
        The transposed convolution.

    Raises:
        ValueError: for shapes that do not fit, an invalid option, or a type that does not hold the
            format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 20, 2), torch.ones(20, 1, 2)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv_transpose1d(x, w, recipe=how)[0, 0].tolist()    # 20, 40 and 20 products of 1
    [16.0, 16.0, 16.0]
    """
    geometry = _Geometry(stride, padding, dilation, groups, output_padding=output_padding)
    return _convolve(1, input, weight, bias, geometry, (recipe, dtype, stream, delayed))


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
    recipe: RecipeLike,
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose2d by a recipe.

    Args:
        input: N × C × H × W (or C × H × W).
        weight: C × out/groups × kernel rows × kernel columns.
        bias: out; default None: none.
        stride: as torch's; default 1.
        padding: as torch's; default 0.
        output_padding: as torch's; default 0.
        groups: as torch's; default 1.
        dilation: as torch's; default 1.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands.
        dtype: the result's type; default None: the input's.
        stream: an int, or a one-element integer tensor on any device, in place of the streams of
            the recipe's parts; default None: theirs.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; default None: none.

    Returns:
        The transposed convolution.

    Raises:
        ValueError: for shapes that do not fit, an invalid option, or a type that does not hold the
            format.
        TypeError: for an argument of another type.

    It computes what the input's gradient of `conv2d` with this weight does. The input is spread by
    the stride with zeros between. Each sum runs over (input channel, row, column) of the spread
    input, by the turned kernel. Its input's gradient is a convolution; its weight's gradient sums
    over (image, input row, input column). The padding is cut off the result; with stochastic sums,
    random bits are used for the padding too. Blocks of a weight run along its first dimension for
    the result, along its second for the input's gradient; otherwise operands are as in `conv2d`.

    >>> import cpd
    >>> x, w = torch.ones(1, 1, 2, 2), torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv_transpose2d(x, w, stride=2, recipe=how)[0, 0, :2].tolist()
    [[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0]]
    """
    geometry = _Geometry(stride, padding, dilation, groups, output_padding=output_padding)
    return _convolve(2, input, weight, bias, geometry, (recipe, dtype, stream, delayed))


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
    recipe: RecipeLike,
    dtype: torch.dtype | None = None,
    stream: Number | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.conv_transpose3d by a recipe, as `conv_transpose2d`.

    Args:
        input: N × C × D × H × W (or C × D × H × W).
        weight: C × out/groups × the kernel's three dimensions.
        bias: out; default None: none.
        stride: as torch's; default 1.
        padding: as torch's; default 0.
        output_padding: as torch's; default 0.
        groups: as torch's; default 1.
        dilation: as torch's; default 1.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands.
        dtype: the result's type; default None: the input's.
        stream: an int, or a one-element integer tensor on any device, in place of the streams of
            the recipe's parts; default None: theirs.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed`; default None: none.

    Returns:
        The transposed convolution.

    Raises:
        ValueError: for shapes that do not fit, an invalid option, or a type that does not hold the
            format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(1, 20, 1, 1, 1), torch.ones(20, 1, 1, 1, 2)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> conv_transpose3d(x, w, recipe=how).flatten().tolist()    # 20 products of 1 each
    [16.0, 16.0]
    """
    geometry = _Geometry(stride, padding, dilation, groups, output_padding=output_padding)
    return _convolve(3, input, weight, bias, geometry, (recipe, dtype, stream, delayed))


# ---- of any dimensions -----------------------------------------------------------------------


class _Geometry(NamedTuple):
    """A call's arguments after its operands; `output_padding`: None but in transposed ones."""

    stride: Any
    padding: Any
    dilation: Any
    groups: Any
    padding_mode: Any = "zeros"
    output_padding: Any = None


def _convolve(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: _Geometry,
    how: tuple[RecipeLike, torch.dtype | None, Number | None, Any],
) -> Tensor:
    """A convolution over `rank` dimensions. `how`: recipe, dtype, stream and delayed."""
    recipe, dtype, stream, delayed = how
    made = as_recipe(recipe)
    transposed = geometry.output_padding is not None
    _check_images(rank, transposed, input, weight, bias)
    moves, edges = _moves(rank, geometry, input, weight)
    _check_size(moves, edges, input, weight)
    if bias is not None:
        _check_bias(bias, weight.shape[1] * moves.groups if transposed else weight.shape[0])
    if made.scales_at != "operand":
        raise ValueError(
            f"convolutions apply scales to each operand, got scales_at={made.scales_at!r}, which "
            "linear and matmul take"
        )
    arguments = Arguments.of(made, input, weight, dtype, stream, delayed)
    alone = input.dim() == rank + 1
    x, w = _entering(arguments, input.unsqueeze(0) if alone else input, weight, moves.groups)
    x = F.pad(x, edges, PADDING_MODES[geometry.padding_mode]) if any(edges) else x
    y = run("convolution", x, w, bias, *moves, *arguments.of_operator())
    y = finished(arguments, y, input)
    return y.squeeze(0) if alone else y


def _entering(arguments: Arguments, x: Tensor, w: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Input and weight as they enter the operator; tiles are laid out as in casts within it."""
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


def _tiled(spec: OperandSpec | None) -> OperandSpec | None:
    """`spec` where its blocks have two dimensions, else None."""
    return spec if spec is not None and has_tiles(spec.text) else None


def _cast(
    arguments: Arguments, spec: OperandSpec, purpose: Purpose, x: Tensor
) -> Callable[[Tensor, int], Tensor]:
    numbers = pair_of(spec, purpose, arguments.how, x, arguments.stream)
    return lambda x, axis: cast_operand(x, spec.text, axis, numbers)


_COUNTS = {1: "one number", 2: "one number or two", 3: "one number or three"}
_IMAGES = {1: "C × L", 2: "C × H × W", 3: "C × D × H × W"}
_KERNELS = {1: "kernel", 2: "kernel rows × columns", 3: "kernel planes × rows × columns"}


def _check_images(rank: int, transposed: bool, input: Any, weight: Any, bias: Any) -> None:
    for name, x in (("input", input), ("weight", weight), ("bias", bias)):
        if name == "bias" and bias is None:
            continue
        check_operand(name, x, like="input")
    check_places(input, weight=weight, bias=bias)
    if input.dim() not in (rank + 1, rank + 2):
        raise ValueError(f"input must be (N ×) {_IMAGES[rank]}, got shape {tuple(input.shape)}")
    if weight.dim() != rank + 2:
        channels = "in × out/groups" if transposed else "out × in/groups"
        raise ValueError(
            f"weight must be {channels} × {_KERNELS[rank]}, got shape {tuple(weight.shape)}"
        )


def _check_bias(bias: Tensor, outputs: int) -> None:
    if tuple(bias.shape) != (outputs,):
        raise ValueError(f"bias must have shape ({outputs},), got {tuple(bias.shape)}")


def _moves(
    rank: int, geometry: _Geometry, input: Tensor, weight: Tensor
) -> tuple[Moves, tuple[int, ...]]:
    """Returns the kernel's moves, and the padding of the input beforehand.

    The padding is as torch.nn.functional.pad takes it: all of it, except zeros as far as both sides
    have them.
    """
    transposed = geometry.output_padding is not None
    stride = _numbers(rank, "stride", geometry.stride, 1)
    dilation = _numbers(rank, "dilation", geometry.dilation, 1)
    groups = _check_groups(geometry.groups, input.shape[-rank - 1], weight.shape, transposed)
    nothing = (0,) * rank
    if transposed:
        padding = _numbers(rank, "padding", geometry.padding, 0)
        more = _numbers(rank, "output_padding", geometry.output_padding, 0)
        if any(n >= max(s, d) for n, s, d in zip(more, stride, dilation, strict=True)):
            raise ValueError(
                "output_padding must be smaller than stride or dilation, "
                f"got {more} with stride {stride}, dilation {dilation}"
            )
        return Moves(stride, padding, dilation, True, more, groups), nothing * 2
    sides = _sides(rank, geometry.padding, weight.shape[2:], stride, dilation)
    mode = geometry.padding_mode
    if mode not in PADDING_MODES:
        allowed = ", ".join(PADDING_MODES)
        raise ValueError(f"padding_mode must be one of {allowed}, got {shown(mode)}")
    padding = tuple(min(pair) for pair in sides) if mode == "zeros" else nothing
    edges = [n - p for pair, p in zip(sides, padding, strict=True) for n in reversed(pair)]
    return Moves(stride, padding, dilation, False, nothing, groups), tuple(reversed(edges))


def _check_groups(groups: Any, channels: int, weight: torch.Size, transposed: bool) -> int:
    """`groups` as an int. Raises ValueError unless it fits the channels of input and weight."""
    number = integer("groups", groups)
    first, second = weight[:2]
    if transposed:
        if number < 1 or channels != first or channels % number:
            raise ValueError(
                f"groups must be at least 1 and divide the channels of input, which are weight's "
                f"first dimension: got {number} with {channels} channels in input, weight "
                f"{tuple(weight)}"
            )
    elif number < 1 or channels != second * number or first % number:
        raise ValueError(
            f"groups must be at least 1, divide weight's {first} outputs, and times weight's "
            f"{second} channels give input's: got {number} with {channels} channels in "
            f"input, weight {tuple(weight)}"
        )
    return number


def _check_size(moves: Moves, edges: tuple[int, ...], input: Tensor, weight: Tensor) -> None:
    """Raises ValueError where the kernel or the result would be empty."""
    kernel = tuple(weight.shape[2:])
    rank = len(kernel)
    ones = " × ".join("1" * rank)
    image = list(input.shape[-rank:])
    for d in range(rank):
        before, after = edges[2 * (rank - 1 - d) : 2 * (rank - d)]
        image[d] += before + after
    size = moves.size((1, input.shape[-rank - 1], *image), weight.shape)
    if all(n >= 1 for n in (*kernel, *size[2:])):
        return
    if moves.transposed:
        raise ValueError(
            f"the kernel must be at least {ones}, and the result of an input {tuple(image)} too; "
            f"got kernel {kernel}, result {size[2:]}"
        )
    padded = tuple(moves.padded(image))
    raise ValueError(
        f"the kernel must be at least {ones} and, dilated by {moves.dilation}, fit into the padded "
        f"input, {padded}; got {kernel}"
    )


def _numbers(rank: int, name: str, value: Any, least: int) -> tuple[int, ...]:
    """`value`, a number or one for each dimension, as `rank` ints of at least `least`."""
    all_of_them = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(all_of_them) == 1:
        all_of_them *= rank
    if len(all_of_them) != rank:
        raise ValueError(f"{name} must be {_COUNTS[rank]}, got {shown(value)}")
    numbers = tuple(integer(name, one) for one in all_of_them)
    if any(n < least for n in numbers):
        raise ValueError(f"{name} must be at least {least}, got {shown(value)}")
    return numbers


def _sides(
    rank: int, padding: Any, kernel: torch.Size, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> list[tuple[int, int]]:
    """The padding before and after each dimension."""
    if not isinstance(padding, str):
        return [(n, n) for n in _numbers(rank, "padding", padding, 0)]
    if padding not in ("same", "valid"):
        raise ValueError(f"padding must be numbers, 'same' or 'valid', got {shown(padding)}")
    if padding == "valid":
        return [(0, 0)] * rank
    if any(n != 1 for n in stride):
        raise ValueError(f"padding='same' needs stride 1, got {stride}")
    whole = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    return [(n // 2, n - n // 2) for n in whole]
