# SPDX-License-Identifier: Apache-2.0
"""`quantizer`: makes a module that rounds tensors and their gradients anywhere in a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from cpd._torch.rounding import rounded
from cpd.nn.clock import SHIFT, recomputes_or_transforms
from cpd.numeric.cast import Cast, CastLike, as_cast
from cpd.numeric.checked import checked
from cpd.numeric.numbers import Number, check_number, integer

Axes: TypeAlias = "int | tuple[int, int]"
"""The axis of blocks of scaled formats: one axis, or a pair (axis of values, axis of gradients)."""


@dataclass(frozen=True)
class _Rounding:
    """The casts of a `Quantizer`: a function that rounds a tensor and its gradient."""

    forward: Cast | None
    backward: Cast | None
    axes: tuple[int, int] = (-1, -1)
    seed: Number = 0

    def __call__(self, x: Tensor, stream: Number = 0) -> Tensor:
        first, second = self.axes
        numbers: dict[str, Any] = {"seed": self.seed, "stream": stream}
        if first == second:
            return rounded(x, self.forward, self.backward, axis=first, **numbers)
        y = rounded(x, self.forward, None, axis=first, **numbers)
        return rounded(y, None, self.backward, axis=second, **numbers)

    def __str__(self) -> str:
        parts = [
            f"{name}={str(spec)!r}"
            for name, spec in (("forward", self.forward), ("backward", self.backward))
            if spec is not None
        ]
        if self.axes != (-1, -1):
            first, second = self.axes
            parts.append(f"axis={first if first == second else self.axes}")
        if isinstance(self.seed, Tensor) or self.seed:
            parts.append(f"seed={self.seed}")
        return ", ".join(parts)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("layer", 0):
            raise ValueError(
                "this quantizer of 0.7 has a layer number, which is gone: make it anew by "
                "cpd.quantizer(…, seed=…), where another seed gives other random bits"
            )
        vars(self).update(state)


@checked
def quantizer(
    forward: CastLike | None = None,
    backward: CastLike | None = None,
    *,
    axis: Axes = -1,
    seed: Number = 0,
) -> nn.Module:
    """Returns a module that rounds a tensor in the forward pass and its gradient in the backward.

    The module takes a float32, bfloat16 or float16 tensor; for formats without scales also float64.
    The tensor's type must represent the formats. Gradients and tangents pass through each cast
    unchanged. The module may be copied, pickled, and called in `torch.compile`, `torch.func` and
    `torch.vmap`. A call raises TypeError if its argument is not a tensor, and ValueError if the
    tensor's type cannot represent a format.

    If a cast is stochastic, the module's buffer `step` (int64, part of the state_dict) counts the
    calls in training mode. Each call uses the stream step << 36. A call with `stream=`, an int or a
    one-element integer tensor, uses that stream and is not counted. A run that resumes from a
    state_dict continues with the same bits. A copy of the module has its own count, and replays of
    a CUDA graph are counted. Calls within a backward pass are not counted, so that activation
    checkpointing repeats the bits of the last call. So a module that is called several times in a
    step must not be in a checkpoint. Calls within a transform of torch.func are not counted either.

    Args:
        forward: the cast of values: a format, scaled or not, a `Cast`, or its text; default None:
            values are not rounded.
        backward: the cast of gradients, as `forward`; default None: gradients are not rounded.
        axis: the axis that blocks of scaled formats run along; default -1. A pair has the axis of
            values and the axis of gradients.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
            Modules with different seeds use different random bits.

    Returns:
        A module with one argument, the tensor, and the keyword `stream`.

    Raises:
        ValueError: for an invalid format or an option out of range.
        TypeError: for an argument of another type.

    >>> q = quantizer(forward="e4m3fn", backward="e5m2")
    >>> q
    Quantizer(forward='e4m3fn', backward='e5m2')
    >>> x = torch.tensor([0.3, 500.0], requires_grad=True)
    >>> y = q(x)
    >>> y.tolist()
    [0.3125, nan]
    >>> y.backward(torch.tensor([0.3, 1.0]))
    >>> x.grad.tolist()
    [0.3125, 1.0]
    >>> q = quantizer(backward="e5m2 rounding=stochastic")
    >>> q(x).shape, q.step
    (torch.Size([2]), tensor(1))
    """
    check_number("seed", seed)
    return Quantizer(_Rounding(_spec(forward), _spec(backward), _axes(axis), seed))


class Quantizer(nn.Module):
    """The module that `quantizer` returns."""

    step: Tensor | None

    def __init__(self, quantize: _Rounding) -> None:
        super().__init__()
        self.quantize = quantize
        casts = [spec for spec in (quantize.forward, quantize.backward) if spec is not None]
        stochastic = any(spec.rounding == "stochastic" for spec in casts)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64) if stochastic else None)

    def forward(self, x: Tensor, *, stream: Number | None = None) -> Tensor:
        """Returns `x` rounded. In the backward pass, rounds the gradient.

        Args:
            x: a tensor.
            stream: the stream of the call's random bits; default None: the stream of the counted
                step.

        Returns:
            The cast tensor, of x's shape and type.

        Raises:
            TypeError: if x is not a torch tensor.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        step = self._buffers["step"]
        if stream is None and step is not None:
            if self.training and not recomputes_or_transforms():
                step.add_(1)
            stream = step << SHIFT
        return self.quantize(x, 0 if stream is None else stream)

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
