# SPDX-License-Identifier: Apache-2.0
"""Rounds a result in the forward pass, and its gradient in the backward pass.

The operator `round_both` takes the texts of the two casts (empty: no cast) and the axis along which
blocks of scaled formats run. Its argument `numbers` has the seeds and streams of both casts: int64,
2 x 2, or None if no cast is stochastic. The derivative of both casts is 1 (straight-through), and a
tangent passes unchanged.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpd._torch.arguments import call_numbers, name_of, stacked_numbers
from cpd._torch.derivatives import Derivative, Tangents, run
from cpd._torch.operands import Pair, cast_operand, parts
from cpd._torch.sums import tagged
from cpd._torch.table import operator
from cpd._torch.vmap import BatchedCall, Batching, widen_blocks
from cpd.numeric.cast import Cast
from cpd.numeric.formats import Format
from cpd.numeric.numbers import Number
from cpd.numeric.purposes import Purpose
from cpd.ops.arguments import FLOATS, check_storage, check_type, check_whole, holds_scaled

RESULT, RETURNING = Purpose.cast_output, Purpose.cast_gradient
"""The purposes of the forward and the backward cast, which give them different random streams."""
_TYPES = frozenset(getattr(torch, name) for name in FLOATS)


def rounded(
    x: Tensor,
    forward: Cast | None,
    backward: Cast | None,
    *,
    axis: int = -1,
    seed: Number = 0,
    stream: Number = 0,
) -> Tensor:
    """Returns `x` cast by `forward`. Its gradient is cast by `backward` in the backward pass.

    None means no cast. Blocks of scaled formats run along `axis`. Stochastic casts use `seed`. The
    two casts get different random bits: `stream` XOR the tag of an output's or a gradient's cast
    (`cpd.Recipe`). Raises ValueError if x's dtype does not represent every value of a format. Also
    raises it for transforms, factors and histories, which are only for operands of products.
    """
    if forward is None and backward is None:
        return x
    check_whole("x", x)
    if x.dtype not in _TYPES:
        check_type("x", name_of(x.dtype), FLOATS, x.dtype)
    draws = False
    for spec in (forward, backward):
        if spec is not None:
            _check(spec, x)
            draws = draws or spec.rounding == "stochastic"
    numbers = None
    if draws:
        ways = ((forward, RESULT), (backward, RETURNING))
        pairs = [_numbers_of(spec, purpose, x, (seed, stream)) for spec, purpose in ways]
        numbers = stacked_numbers(pairs, x)
    first = "" if forward is None else forward.text
    second = "" if backward is None else backward.text
    return run("round_both", x, first, second, axis, numbers)


def _check(spec: Cast, x: Tensor) -> None:
    q = spec.format
    if isinstance(q, Format):
        check_storage(name_of(x.dtype), q.name)
        return
    if q.transform is not None or spec.factor != 1 or spec.history:
        raise ValueError(
            "transform=, factor= and history= are for the operands of products, not for results, "
            f"got {spec}"
        )
    if not holds_scaled(name_of(x.dtype), q.text):
        raise ValueError(
            f"{name_of(x.dtype)} cannot represent every value of {spec}: give x in float32, or a "
            "format whose scales are powers of two"
        )


def _numbers_of(
    spec: Cast | None, purpose: Purpose, x: Tensor, numbers: tuple[Number, Number]
) -> Pair:
    """Returns the seed and the stream of a cast, or None for both if it uses no random bits."""
    if spec is None:
        return None, None
    seed, stream = call_numbers(spec, *numbers, x)
    return seed, None if stream is None else tagged(stream, purpose)


# ---- the operator --------------------------------------------------------------------------------


def _cast(x: Tensor, text: str, axis: int, numbers: Tensor | None, which: int) -> Tensor:
    """Casts `x` by `text`: the forward cast (`which` is 0) or the backward cast (`which` is 1)."""
    if numbers is None or not parts(text).draws:
        return cast_operand(x, text, axis)
    return cast_operand(x, text, axis, (numbers[which, 0], numbers[which, 1]))


def _run(x: Tensor, forward: str, backward: str, axis: int, numbers: Tensor | None) -> Tensor:
    return _cast(x, forward, axis, numbers, 0) if forward else x.clone()


def _fake(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    _, _, ctx.backward, ctx.axis, numbers = inputs
    ctx.save_for_backward(numbers)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    (numbers,) = ctx.saved_tensors
    return (_cast(grad, ctx.backward, ctx.axis, numbers, 1),)


def _tangent(ctx: Any, tangents: Tangents) -> Tensor:
    return tangents[0]


def _draws(arguments: dict[str, Any]) -> bool:
    return any(parts(arguments[way]).draws for way in ("forward", "backward"))


def _covers(call: BatchedCall) -> bool:
    """Returns whether a scale covers a whole tensor: torch.vmap then needs a call per example."""
    return any(parts(call.arguments[way]).covers_a_tensor for way in ("forward", "backward"))


operator(
    "round_both(Tensor x, str forward, str backward, int axis, Tensor? numbers) -> Tensor",
    _fake,
    Derivative(_setup, _backward, _tangent),
    Batching(lambda call: widen_blocks(call, "x"), _draws, _covers),
    _run,
)
