# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling on torch tensors: the operators torch.ops.cpd.cast_delayed, record_amax and
update_delayed, opaque to torch.compile, so that eager and compiled programs give the same bits.
Documented in `cpd.nn.delayed`.

`history` is float32, steps x operands; `scale`, `most` and `margin` are float32, one an operand.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator,arg-type"

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from cpd._torch.derivatives import define, differentiable
from cpd._torch.operands import cast_delayed

_LARGEST = torch.finfo(torch.float32).max


def _cast(x: Tensor, how: str, scale: Tensor, seed: Tensor | None, stream: Tensor | None) -> Tensor:
    """`x` cast by a delayed scale, straight through; `how` is the text of the elements' cast."""
    return cast_delayed(x, how, scale, (seed, stream))


def _record(history: Tensor, x: Tensor, which: int) -> None:
    """history[0, which] = max(it, |x|), NaN where x has one."""
    if x.numel() == 0:
        return
    low, high = torch.aminmax(x)
    slot = history[0, which]
    torch.maximum(slot, torch.maximum(-low, high).to(torch.float32).abs(), out=slot)


def _update(
    history: Tensor, scale: Tensor, most: Tensor, margin: Tensor, most_recent: bool
) -> None:
    """TransformerEngine's update in its Python form, in which `most / amax` is amax's reciprocal
    times `most`; then the history advances by a step."""
    amax = history[0] if most_recent else history.amax(0)
    new = amax.reciprocal().mul_(most).div_(margin)
    new = torch.where(torch.isinf(new), _LARGEST, new)
    scale.copy_(torch.where((amax > 0) & torch.isfinite(amax), new, scale))
    history.copy_(torch.roll(history, -1, 0))
    history[0] = 0


def _none(*args: Any) -> None:
    """The fake kernel of operators that only write."""


def refuse_vmap(*args: Any) -> NoReturn:
    raise ValueError(
        "delayed scaling keeps one history for all samples, so it does not go under torch.vmap: "
        "take a recipe whose scales follow from each tensor itself"
    )


define(
    "cast_delayed(Tensor x, str how, Tensor scale, Tensor? seed, Tensor? stream) -> Tensor",
    _cast,
    lambda x, *rest: torch.empty_like(x),
)
differentiable("cast_delayed", lambda *args: None, lambda ctx, grad: (grad,), lambda ctx, t: t[0])
define("record_amax(Tensor(a!) history, Tensor x, int which) -> ()", _record, _none)
define(
    "update_delayed(Tensor(a!) history, Tensor(b!) scale, Tensor most, Tensor margin, "
    "bool most_recent) -> ()",
    _update,
    _none,
)
for _name in ("cast_delayed", "record_amax", "update_delayed"):
    torch.library.register_vmap(f"cpd::{_name}", refuse_vmap)
