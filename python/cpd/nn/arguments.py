# SPDX-License-Identifier: Apache-2.0
"""What the functional forms share: checks of operands, a recipe as the operators take it, and the
casts before and after a product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch import operators
from cpd._torch.arguments import stacked_numbers, stream_number
from cpd._torch.derivatives import run
from cpd._torch.operands import cast_operand
from cpd._torch.sums import tagged
from cpd.nn.recipe import Recipe, is_native
from cpd.numeric.cast import CastSpec
from cpd.numeric.numbers import Number
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled_cast import OperandSpec, ScaledCast
from cpd.ops.arguments import check_storage, holds


def check_operand(name: str, x: Any, like: str) -> None:
    """Raises unless `x` is a tensor that products take."""
    operators.check_float(name, x, like)


def check_places(first: Tensor, **others: Tensor | None) -> None:
    """Raises unless all are on one device."""
    for name, x in others.items():
        if x is not None and x.device != first.device:
            raise ValueError(
                f"{name} must be on the first operand's device, {first.device}, got {x.device}"
            )


def check_bias(bias: Tensor, weight: Tensor) -> None:
    """Raises unless `bias` has one value for each output."""
    if tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}")


def asked(x: Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """The result's type that the caller or torch.autocast asks for; None: x's own."""
    place = x.device.type
    if dtype is not None or not torch.amp.is_autocast_available(place):
        return dtype
    return torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None


watchers: list[Callable[[Recipe], None]] = []
"""Called with the recipe of each call of an operator, just before it (`cpd.nn.coverage`)."""


class Arguments(NamedTuple):
    """A call's recipe: what is cast before the operator, and what the operator takes."""

    how: Recipe
    activation: OperandSpec | None
    """The cast before the operator, one for both GEMMs; None: within the operator, or no cast."""
    weight: OperandSpec | None
    dtype: torch.dtype | None
    """The type that is asked for the result."""
    element: torch.dtype
    """The type of the sums."""
    stream: Number | None
    delayed: Any
    numbers: Tensor | None

    @classmethod
    def of(
        cls,
        how: Recipe,
        x: Tensor,
        w: Tensor,
        dtype: torch.dtype | None,
        stream: Number | None = None,
        delayed: Any = None,
    ) -> Arguments:
        """The arguments of a call with operands `x` and `w`. Raises where a type does not hold a
        format that the recipe puts into it, or the state of delayed scaling is missing."""
        dtype = asked(x, dtype)
        element = _element(how, x, w, dtype)
        if how.delays and delayed is None:
            raise ValueError(
                "the recipe's scales follow from former steps: cpd.convert keeps that state, or "
                "give delayed= a cpd.nn.delayed.Delayed of the recipe"
            )
        numbers = _numbers(how, x, stream)
        return cls(how, *how.cast_before, dtype, element, stream, delayed, numbers)

    def of_operator(self) -> tuple[Any, ...]:
        """The operator's recipe, numbers, multipliers and dtype (`cpd._torch.recipe`)."""
        for watch in watchers:
            watch(self.how)
        multipliers = self.delayed.multipliers() if self.how.delays else None
        return self.how.gemms, self.numbers, multipliers, self.element


def entering(arguments: Arguments, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Input and weight as they enter the operator."""
    if is_native(arguments.how.forward) and x.dtype != w.dtype:
        common = (
            torch.promote_types(x.dtype, w.dtype) if arguments.dtype is None else arguments.dtype
        )
        x, w = x.to(common), w.to(common)
    elif is_native(arguments.how.forward) and arguments.dtype is not None:
        x, w = x.to(arguments.dtype), w.to(arguments.dtype)
    if arguments.how.delays:
        _note_delayed(arguments, x, w)
    return (
        cast_before(arguments, x, arguments.activation, Purpose.cast_activation),
        cast_before(arguments, w, arguments.weight, Purpose.cast_weight),
    )


def _note_delayed(arguments: Arguments, x: Tensor, w: Tensor) -> None:
    """Records the largest magnitudes of operands that the operator casts by a delayed scale."""
    for name, operand, before in (
        ("activation", x, arguments.activation),
        ("weight", w, arguments.weight),
    ):
        cast = getattr(arguments.how, name)
        if before is None and isinstance(cast, ScaledCast) and cast.history:
            arguments.delayed.note(name, operand)


def finished(arguments: Arguments, y: Tensor, x: Tensor) -> Tensor:
    """The layer's result: the sums, cast to the recipe's `output`. `x`: the first operand."""
    how = arguments.how
    if how.delays:
        y = arguments.delayed.watch(y)
    if how.output is None:
        return y
    y = cast_before(arguments, y, how.output, Purpose.cast_output)
    return y.to(operators.result_type(x, arguments.dtype))


def cast_before(
    arguments: Arguments, x: Tensor, spec: OperandSpec | None, purpose: Purpose
) -> Tensor:
    """`x` cast straight through; its scales, if any, cover it whole or in square blocks."""
    if spec is None:
        return x
    numbers = pair_of(spec, purpose, arguments.how, x, arguments.stream)
    if isinstance(spec, ScaledCast) and spec.history:
        which = "weight" if purpose == Purpose.cast_weight else "activation"
        delayed: Tensor = arguments.delayed.quantize(which, x, *numbers)
        return delayed
    if isinstance(spec, CastSpec):
        y: Tensor = run("cast", x, spec.text, *numbers, None)
        return y
    return cast_operand(x, spec.text, -1, numbers)


def pair_of(
    spec: Any, purpose: Purpose, how: Recipe, x: Tensor, stream: Number | None
) -> tuple[Tensor | None, Tensor | None]:
    """Seed and stream of a sum or a cast, for one purpose in one layer; None: it draws nothing."""
    if spec is None or is_native(spec) or spec.rounding != "stochastic":
        return None, None
    drawing = spec if not isinstance(spec, ScaledCast) else spec.cast
    seed, own = operators.random_numbers(drawing, x)
    if stream is not None:
        own = stream_number(stream, x)
    if own is None:
        return None, None
    return seed, tagged(own, purpose, how.layer)


def _element(how: Recipe, x: Tensor, w: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The type of the sums."""
    element = operators.result_type(x, dtype)
    casts = (x.dtype, how.activation), (w.dtype, how.weight), (element, how.output)
    for held_by, spec in casts:
        if isinstance(spec, CastSpec):
            check_storage(operators.name_of(held_by), spec.format.name)
    if is_native(how.forward):
        return element
    if not holds(operators.name_of(element), how.forward.format.name):  # type: ignore[union-attr]
        if how.output is None:
            raise ValueError(
                f"the result's type, {operators.name_of(element)}, does not hold "
                f"{how.forward.format}: give the recipe an output= that it holds, or dtype= a type "
                "that does, such as float32, or another accumulator"
            )
        return torch.float32
    return element


def _numbers(how: Recipe, x: Tensor, stream: Number | None) -> Tensor | None:
    """Seeds and streams as the operators take them, a row for each purpose; None: nothing draws."""
    if not how.drawing:
        return None
    drawn = {purpose: pair_of(spec, purpose, how, x, stream) for purpose, spec in how.drawing}
    return stacked_numbers([drawn.get(purpose, (None, None)) for purpose in Purpose], x)
