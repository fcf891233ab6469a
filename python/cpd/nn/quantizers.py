# SPDX-License-Identifier: Apache-2.0
"""Tensors rounded anywhere in a model, and the gradients that come back to them.

`quantizer` is a function, `Quantizer` a module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from cpd._torch.rounding import rounded
from cpd.nn.clock import SHIFT, recomputes_or_transforms
from cpd.numeric.cast import Cast, CastLike, as_cast
from cpd.numeric.checked import checked
from cpd.numeric.numbers import Number, integer
from cpd.numeric.streams import MAX_LAYERS

Axes: TypeAlias = "int | tuple[int, int]"
"""The axis of the blocks of scaled formats: one for values and gradients, or one for each."""


@dataclass(frozen=True)
class _Rounding:
    """The function of a tensor that `quantizer` returns."""

    forward: Cast | None
    backward: Cast | None
    axes: tuple[int, int] = (-1, -1)
    layer: int = 0

    def __call__(self, x: Tensor, *, stream: Number | None = None) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        first, second = self.axes
        if first == second:
            both = self.forward, self.backward
            return rounded(x, *both, axis=first, stream=stream, layer=self.layer)
        y = rounded(x, self.forward, None, axis=first, stream=stream, layer=self.layer)
        return rounded(y, None, self.backward, axis=second, stream=stream, layer=self.layer)

    def __str__(self) -> str:
        parts = [
            f"{name}={str(spec)!r}"
            for name, spec in (("forward", self.forward), ("backward", self.backward))
            if spec is not None
        ]
        if self.axes != (-1, -1):
            first, second = self.axes
            parts.append(f"axis={first if first == second else self.axes}")
        if self.layer:
            parts.append(f"layer={self.layer}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"cpd.quantizer({self})"


@checked
def quantizer(
    forward: CastLike | None = None,
    backward: CastLike | None = None,
    *,
    axis: Axes = -1,
    layer: int = 0,
) -> Callable[..., Tensor]:
    """Returns a function that rounds a tensor, and the gradient that comes back to it.

    The function takes a tensor (float32, bfloat16 or float16, which must hold the formats; float64
    for formats without scales). Its `stream=`, an int or a one-element integer tensor, replaces the
    streams of the casts in stochastic rounding. Without it each call uses the same random bits; a
    `Quantizer` counts its calls. Both casts are straight through, in tangents too. The function may
    be pickled, and called in `torch.compile`, `torch.func` and `torch.vmap`. It raises TypeError
    for anything but a tensor, and ValueError if the tensor's type does not hold a format.

    Args:
        forward: what values are rounded to: a format, scaled or not, a `Cast`,
            or a text; default None: values are not rounded.
        backward: what gradients are rounded to; default None: gradients are not rounded.
        axis: the axis that blocks of scaled formats run along; default -1. A pair has the axis of
            values and the axis of gradients.
        layer: a number, 0…2^16 - 1: quantizers with different numbers use different random bits of
            one stream; default 0.

    Returns:
        The function.

    Raises:
        ValueError: for an invalid format or an option out of range.
        TypeError: for an argument of another type.

    >>> q = quantizer(forward="e4m3fn", backward="e5m2")
    >>> q
    cpd.quantizer(forward='e4m3fn', backward='e5m2')
    >>> x = torch.tensor([0.3, 500.0], requires_grad=True)
    >>> y = q(x)
    >>> y.tolist()
    [0.3125, nan]
    >>> y.backward(torch.tensor([0.3, 1.0]))
    >>> x.grad.tolist()
    [0.3125, 1.0]
    """
    number = integer("layer", layer)
    if not 0 <= number < MAX_LAYERS:
        raise ValueError(f"layer must be 0…2^16 - 1, got {number}")
    return _Rounding(_spec(forward), _spec(backward), _axes(axis), number)


@checked
class Quantizer(nn.Module):
    """`quantizer` as a module.

    If a cast is stochastic, the buffer `step` (int64, part of the state_dict) counts the calls in
    training mode, and each call uses stream step << 36. A resumed run continues with its own bits.
    A copy counts by itself, and so does a CUDA graph's replay. Within a backward pass it does not
    count, so that activation checkpointing repeats the bits of the last call; a quantizer that is
    called several times a step must not be in a checkpoint. Within a transform of torch.func it
    does not count either.

    Args:
        forward: the cast of the tensor, as in `quantizer`; default None: no cast.
        backward: the cast of the gradient, as in `quantizer`; default None: no cast.
        axis: the axis that blocks run along, as in `quantizer`; default -1.
        layer: the number, 0…2^16 - 1, by which quantizers of one cast use different random bits;
            default 0.

    Raises:
        ValueError: as `quantizer`.
        TypeError: as `quantizer`.

    >>> layer = Quantizer("e4m3fn", "e5m2 rounding=stochastic")
    >>> layer
    Quantizer(forward='e4m3fn', backward='e5m2 rounding=stochastic')
    >>> layer(torch.tensor([0.3])), layer.step
    (tensor([0.3125]), tensor(1))
    """

    step: Tensor | None

    def __init__(
        self,
        forward: CastLike | None = None,
        backward: CastLike | None = None,
        *,
        axis: Axes = -1,
        layer: int = 0,
    ) -> None:
        super().__init__()
        self.quantize = quantizer(forward, backward, axis=axis, layer=layer)
        casts = _spec(forward), _spec(backward)
        stochastic = any(spec is not None and spec.rounding == "stochastic" for spec in casts)
        clock = torch.zeros((), dtype=torch.int64) if stochastic else None
        self.register_buffer("step", clock)

    def forward(self, x: Tensor) -> Tensor:
        """Returns `x`, cast; its gradient will be cast.

        Args:
            x: a tensor, as for the function that `quantizer` returns.

        Returns:
            A tensor of x's shape and type.
        """
        if self.step is None:
            return self.quantize(x)
        if self.training and not recomputes_or_transforms():
            self.step.add_(1)
        return self.quantize(x, stream=self.step << SHIFT)

    def extra_repr(self) -> str:
        """Returns the arguments, as `repr` shows them."""
        return str(self.quantize)


def _spec(cast: CastLike | None) -> Cast | None:
    return None if cast is None else as_cast(cast)


def _axes(axis: Axes) -> tuple[int, int]:
    both = axis if isinstance(axis, tuple) else (axis, axis)
    if len(both) != 2:
        raise ValueError(f"axis must be an int, or one for values and one for gradients: {axis!r}")
    return integer("axis", both[0]), integer("axis", both[1])
