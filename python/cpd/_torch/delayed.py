# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling on torch tensors; `cpd.nn.delayed` documents it.

The operators torch.ops.cpd.cast_delayed, record_amax and update_delayed are opaque to
torch.compile, so that eager and compiled programs give the same bits. `history` is float32, steps x
columns. `scale` is float32, one number for each column. Column c belongs to operand c % 3 of
product c // 3. `most` and `margin` have three numbers, one for each operand: the format's largest
value, and the power of two by which the scale is divided.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator,arg-type"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from cpd._torch.derivatives import Derivative, makes_nothing
from cpd._torch.operands import cast_delayed
from cpd._torch.steps import CLOCKS
from cpd._torch.table import operator

_LARGEST = torch.finfo(torch.float32).max


def _cast(x: Tensor, how: str, scale: Tensor, seed: Tensor | None, stream: Tensor | None) -> Tensor:
    """Casts `x` with a delayed scale. The text `how` describes the cast of the scaled elements."""
    return cast_delayed(x, how, scale, (seed, stream))


def _record(history: Tensor, x: Tensor, which: int, clock: int = -1) -> None:
    """Updates history[0, which], the present step's largest magnitude of an operand, by max |x|.

    The entry becomes the larger of itself and max |x|, or NaN if x has a NaN.

    For a layer in training mode, `clock` is -1. For a layer in eval mode, `clock` is the number of
    the model's clock in `CLOCKS`. In eval mode, the function records only if the backward pass of
    the previous step reached layers in eval mode.
    """
    if x.numel() == 0 or (clock >= 0 and not CLOCKS[clock].trains_in_eval):
        return
    low, high = torch.aminmax(x)
    slot = history[0, which]
    torch.maximum(slot, torch.maximum(-low, high).to(torch.float32).abs(), out=slot)


def _update(
    history: Tensor,
    scale: Tensor,
    most: Sequence[float],
    margin: Sequence[float],
    most_recent: bool,
) -> None:
    """Updates scales from the history, then advances the history by one step.

    The arithmetic is the same as in TransformerEngine's Python code. That code divides the format's
    largest value, `most`, by `amax` in two steps: the reciprocal of `amax`, then times `most`.
    """
    amax = history[0] if most_recent else history.amax(0)
    by_column = (_repeated(tuple(x), len(scale), scale.device) for x in (most, margin))
    new = amax.reciprocal().mul_(next(by_column)).div_(next(by_column))
    new = torch.where(torch.isinf(new), _LARGEST, new)
    scale.copy_(torch.where((amax > 0) & torch.isfinite(amax), new, scale))
    history.copy_(torch.roll(history, -1, 0))
    history[0] = 0


@functools.lru_cache(64)
def _repeated(numbers: tuple[float, ...], columns: int, device: torch.device) -> Tensor:
    """Returns a float32 tensor of length `columns` that repeats the tuple `numbers`.

    The tensor is cached.
    """
    with torch.inference_mode(False):
        row = torch.tensor(numbers, dtype=torch.float32, device=device)
        return row.repeat(columns // len(numbers))


def refuse_vmap(*args: Any) -> NoReturn:
    raise ValueError(
        "delayed scaling is not supported under torch.vmap, as all samples share one history: use "
        "a recipe without history, such as te-current"
    )


operator(
    "cast_delayed(Tensor x, str how, Tensor scale, Tensor? seed, Tensor? stream) -> Tensor",
    lambda x, *rest: torch.empty_like(x),
    Derivative(lambda *args: None, lambda ctx, grad: (grad,), lambda ctx, t: t[0]),
    refuse_vmap,
    _cast,
)
operator(
    "record_amax(Tensor(a!) history, Tensor x, int which, int clock=-1) -> ()",
    makes_nothing,
    batching=refuse_vmap,
    computes=_record,
)
operator(
    "update_delayed(Tensor(a!) history, Tensor(b!) scale, float[] most, float[] margin, "
    "bool most_recent) -> ()",
    makes_nothing,
    batching=refuse_vmap,
    computes=_update,
)
