# SPDX-License-Identifier: Apache-2.0
"""A result rounded on its way forward, and the gradient that returns to it on its way back.

The operator `round_both` takes the texts of the two casts (empty: as it is), the axis along which
blocks of scaled formats lie, and `numbers`: their seeds and streams, int64, 2 x 2; None where
nothing is stochastic. Both casts are straight-through; a tangent passes as it is.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpd._torch.arguments import name_of, random_numbers
from cpd._torch.derivatives import Tangents, call, differentiable
from cpd._torch.gemm import CAST_GRADIENT, CAST_OUTPUT, define, tagged
from cpd._torch.library import ops
from cpd._torch.vmap import Call, batched, cast_draws
from cpd.numeric.cast import CastSpec
from cpd.numeric.options import Number
from cpd.ops.arguments import check_carrier

RESULT, RETURNING = CAST_OUTPUT, CAST_GRADIENT
"""What the random streams of the two casts are for."""


def rounded(
    x: Tensor,
    forward: CastSpec | None,
    backward: CastSpec | None,
    *,
    axis: int = -1,
    stream: Number | None = None,
    layer: int = 0,
) -> Tensor:
    """`x` rounded by `forward`, the gradient that returns to it by `backward`; None: as it is.

    Stochastic casts draw from their seeds, and from their streams or from `stream`, which is
    tagged: as the cast of an output and of a gradient in that layer (`cpd.Recipe`). Raises
    ValueError where x's type does not hold a format.
    """
    if forward is None and backward is None:
        return x
    both = forward, backward
    for spec in both:
        if spec is not None:
            check_carrier(name_of(x.dtype), spec.format.name)
    numbers = _numbers(both, x, stream, layer)
    first, second = ("" if spec is None else spec.text for spec in both)
    return call(ops.round_both, None, x, first, second, axis, numbers)


def _numbers(
    both: tuple[CastSpec | None, CastSpec | None], x: Tensor, stream: Number | None, layer: int
) -> Tensor | None:
    """Seeds and streams as the operator takes them; None where nothing is stochastic."""
    pairs = []
    for spec, purpose in zip(both, (RESULT, RETURNING), strict=True):
        if spec is None or spec.rounding != "stochastic":
            pairs.append((None, None))
            continue
        options = spec.options if stream is None else spec.options._replace(stream=stream)
        seed, own = random_numbers(options, x)
        pairs.append((seed, None if own is None else tagged(own, purpose, layer)))
    given = [number for pair in pairs for number in pair if number is not None]
    if not given:
        return None
    on_cpu = all(number.device.type == "cpu" for number in given)
    place = given[0].device if on_cpu else x.device
    zero = torch.zeros((), dtype=torch.int64, device=place)
    flat = [zero if number is None else number.to(place) for pair in pairs for number in pair]
    return torch.stack(flat).view(2, 2)


# ---- the operator --------------------------------------------------------------------------------


def _cast(x: Tensor, text: str, axis: int, numbers: Tensor | None, which: int) -> Tensor:
    """One of the two casts."""
    pair = (None, None) if numbers is None else (numbers[which, 0], numbers[which, 1])
    return ops.cast(x, text, *pair, None) if text else x.clone()


def _run(x: Tensor, forward: str, backward: str, axis: int, numbers: Tensor | None) -> Tensor:
    return _cast(x, forward, axis, numbers, 0)


def _fake(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    _, _, ctx.backward, ctx.axis, numbers = inputs
    ctx.save_for_backward(numbers)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    (numbers,) = ctx.saved_tensors
    return (_cast(grad, ctx.backward, ctx.axis, numbers, 1) if ctx.backward else grad,)


def _tangent(ctx: Any, tangents: Tangents) -> Tensor:
    return tangents[0]


def _draws(given: dict[str, Any]) -> bool:
    return any(cast_draws(given[way]) for way in ("forward", "backward") if given[way])


def _widen(call: Call) -> None:
    call.widen("x")


define(
    "round_both(Tensor x, str forward, str backward, int axis, Tensor? numbers) -> Tensor",
    _run,
    _fake,
)
differentiable("round_both", _setup, _backward, _tangent)
batched("round_both", _widen, _draws)
