# SPDX-License-Identifier: Apache-2.0
"""Checks arguments and shapes of convolutions; converts them for torch.ops.cpd.convolution."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch.moves import Moves
from cpd.nn.arguments import check_operand, check_places
from cpd.numeric.names import checked_name
from cpd.numeric.numbers import integer
from cpd.numeric.shown import shown

PADDING_MODES = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}
"""Maps the padding modes of torch's layers to the modes of torch.nn.functional.pad."""


class Geometry(NamedTuple):
    """The arguments of a convolution after its operands.

    `output_padding`: None unless transposed.
    """

    stride: Any
    padding: Any
    dilation: Any
    groups: Any
    padding_mode: Any = "zeros"
    output_padding: Any = None


_COUNTS = {1: "one number", 2: "one number or two", 3: "one number or three"}
_IMAGES = {1: "C × L", 2: "C × H × W", 3: "C × D × H × W"}
_KERNELS = {1: "kernel", 2: "kernel rows × columns", 3: "kernel planes × rows × columns"}


def check_images(rank: int, transposed: bool, input: Any, weight: Any, bias: Any) -> None:
    """Raises an error unless operands are images, kernels and bias of `rank` spatial dimensions."""
    for name, x in (("input", input), ("weight", weight), ("bias", bias)):
        if name == "bias" and bias is None:
            continue
        check_operand(name, x, like="input")
    check_places("input", input, weight=weight, bias=bias)
    if input.dim() not in (rank + 1, rank + 2):
        raise ValueError(f"input must be (N ×) {_IMAGES[rank]}, got shape {tuple(input.shape)}")
    if weight.dim() != rank + 2:
        channels = "in × out/groups" if transposed else "out × in/groups"
        raise ValueError(
            f"weight must be {channels} × {_KERNELS[rank]}, got shape {tuple(weight.shape)}"
        )


def moves_of(
    rank: int, geometry: Geometry, input: Tensor, weight: Tensor
) -> tuple[Moves, tuple[int, ...]]:
    """Returns arguments of torch.ops.cpd.convolution, and the padding to apply before its call.

    The operator itself pads with zeros, equally on both sides. All other padding is applied before
    its call, by torch.nn.functional.pad with the second result as the argument `pad`.
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
    mode = checked_name("padding_mode", geometry.padding_mode, PADDING_MODES)
    padding = tuple(min(pair) for pair in sides) if mode == "zeros" else nothing
    edges = [n - p for pair, p in zip(sides, padding, strict=True) for n in reversed(pair)]
    return Moves(stride, padding, dilation, False, nothing, groups), tuple(reversed(edges))


def _check_groups(groups: Any, channels: int, weight: torch.Size, transposed: bool) -> int:
    """Returns `groups` as an int.

    Raises ValueError if it does not divide the channels as needed.
    """
    number = integer("groups", groups)
    first, second = weight[:2]
    if transposed:
        if number < 1 or channels != first or channels % number:
            raise ValueError(
                f"input's {channels} channels must be weight's first dimension and a multiple of "
                f"groups, got groups={number} and weight of shape {tuple(weight)}"
            )
    elif number < 1 or channels != second * number or first % number:
        raise ValueError(
            f"input's {channels} channels must be groups × weight's {second} channels, and "
            f"weight's {first} outputs a multiple of groups, got groups={number} and weight of "
            f"shape {tuple(weight)}"
        )
    return number


def check_size(moves: Moves, edges: tuple[int, ...], input: Tensor, weight: Tensor) -> None:
    """Raises ValueError if the kernel or the result would be empty."""
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
        f"the kernel must be at least {ones} and fit into the padded input, {padded}, got {kernel} "
        f"with dilation {moves.dilation}"
    )


def _numbers(rank: int, name: str, value: Any, least: int) -> tuple[int, ...]:
    """Returns `value`, one number or one for each dimension, as `rank` ints of at least `least`."""
    all_of_them = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(all_of_them) == 1:
        all_of_them *= rank
    if len(all_of_them) != rank:
        raise ValueError(f"{name} must be {_COUNTS[rank]}, got {shown(value)}")
    numbers = tuple(integer(name, number) for number in all_of_them)
    if any(n < least for n in numbers):
        raise ValueError(f"{name} must be at least {least}, got {shown(value)}")
    return numbers


def _sides(
    rank: int, padding: Any, kernel: torch.Size, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Returns for each dimension the padding before and after the input."""
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
