# SPDX-License-Identifier: Apache-2.0
"""A recipe as the operators torch.ops.cpd.matmul and convolution take it: by its text
(`cpd.Recipe.gemms`), which says how each operand of their three GEMMs is cast and summed, and by
tensors, whose values may change from call to call."""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from cpd import _core
from cpd._torch.operands import (
    Pair,
    cast_operand,
    cast_operand_both,
    casts_both,
    factor_of,
    operand_draws,
)
from cpd._torch.sums import NATIVE, Sum
from cpd.numeric.accumulator import parsed
from cpd.numeric.purposes import OPERANDS, SUMS, TENSOR_OF, TENSORS, Purpose
from cpd.numeric.scaled_cast import is_whole, operand_spec

SCHEMA = "str recipe, Tensor? numbers, Tensor? multipliers, ScalarType dtype"
"""What an operator takes of a recipe, and the type of its result."""


class _Parsed(NamedTuple):
    """The parts of a recipe's text that calls need."""

    roundings: tuple[str, ...]
    """The texts of sums and casts, by the numbers of their purposes; empty: no cast."""
    scales_at: str
    drawing: frozenset[Purpose]
    """The purposes of what rounds stochastically."""
    left_out: float
    """The factor of the forward product's operands."""


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> _Parsed:
    recipe = _core.Recipe.parse(text)
    roundings = recipe.roundings()
    drawing = {operand for operand in OPERANDS if operand_draws(roundings[operand])}
    for sum_ in SUMS:
        if roundings[sum_] != NATIVE and parsed(roundings[sum_]).rounding == "stochastic":
            drawing.add(sum_)
    left_out = factor_of(roundings[Purpose.cast_activation])
    left_out *= factor_of(roundings[Purpose.cast_weight])
    return _Parsed(roundings, recipe.fields()["scales_at"], frozenset(drawing), left_out)


class RecipeCall(NamedTuple):
    """A recipe in one call of an operator."""

    text: str
    numbers: Tensor | None
    """Seeds and streams, int64, a row for each purpose, by its number; None: nothing draws."""
    multipliers: Tensor | None
    """The scales of activation, weight and gradient, where scaling is delayed."""

    @property
    def scales_at(self) -> str:
        """Where scales are applied: `operand`, `block` or `epilogue`."""
        return _parsed(self.text).scales_at

    def sum(self, purpose: Purpose) -> Sum:
        """The sum of that purpose."""
        return Sum(self.rounding(purpose), *self.pair(purpose))

    def rounding(self, purpose: Purpose) -> str:
        """The text of a sum or of an operand's cast; empty where the operand is not cast."""
        return _parsed(self.text).roundings[purpose]

    def multiplier(self, operand: Purpose) -> Tensor | None:
        """The scale by which an operand is multiplied, where scaling is delayed."""
        if self.multipliers is None:
            return None
        return self.multipliers[TENSORS.index(TENSOR_OF[operand])]

    def pair(self, purpose: Purpose) -> Pair:
        """Seed and stream of a sum or of an operand's cast; None where it draws nothing."""
        if self.numbers is None or purpose not in _parsed(self.text).drawing:
            return None, None
        seed, stream = self.numbers[purpose].unbind()
        return seed, stream

    def cast(self, operand: Purpose, x: Tensor, axis: int) -> Tensor:
        """An operand as it enters its product, blocks along `axis`."""
        text = self.rounding(operand)
        if not text:
            return x
        return cast_operand(x, text, axis, self.pair(operand), self.multiplier(operand))

    def gradients(
        self, g: Tensor, needs: Sequence[bool], axes: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """The gradient as it enters the GEMMs of the input's and of the weight's gradient, as far
        as they are needed; cast once where one cast serves as both."""
        for_input, for_weight = needs
        first, second = self.rounding(Purpose.cast_gradient), self.rounding(Purpose.recast_gradient)
        if first == second and (not first or is_whole(operand_spec(first))):
            cast = self.cast(Purpose.cast_gradient, g, axes[0])
            return cast, cast
        if all(needs) and first == second and casts_both(first) and g.is_contiguous():
            return cast_operand_both(g, first, axes)
        return (
            self.cast(Purpose.cast_gradient, g, axes[0]) if for_input else g,
            self.cast(Purpose.recast_gradient, g, axes[1]) if for_weight else g,
        )

    def leaves_factors(self) -> bool:
        """Whether the operands of the forward product have factors, which its result must lose."""
        return _parsed(self.text).left_out != 1

    def unfactored(self, y: Tensor, first: Purpose, second: Purpose) -> Tensor:
        """A product of two operands times the reciprocal of the factors that it contains."""
        left_out = factor_of(self.rounding(first)) * factor_of(self.rounding(second))
        return y if left_out == 1 else y * (1 / left_out)

    def of_cast(self) -> RecipeCall:
        """The call for an activation and a weight that are cast already."""
        return self._replace(text=_of_cast(self.text))

    def draws(self) -> bool:
        """Whether a rounding is stochastic, in the backward pass too."""
        return bool(_parsed(self.text).drawing)


@functools.lru_cache(maxsize=1024)
def _of_cast(text: str) -> str:
    return _core.Recipe.parse(text).gemms(True, True).text
