# SPDX-License-Identifier: Apache-2.0
"""A recipe in the form that torch.ops.cpd.matmul and convolution take.

They take a text, which has the cast and the sum of each operand of their three GEMMs, and tensors,
whose values may change from call to call.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd import _core
from cpd._torch.native import HALVES, Factor
from cpd._torch.operands import (
    UNCAST,
    Pair,
    Parts,
    cast_operand,
    cast_operand_both,
    is_plain,
    narrow_operand,
    parts,
    split_operand,
)
from cpd._torch.private import transforms_active
from cpd._torch.sums import NATIVE, Sum, of_type
from cpd.numeric.accumulator import parsed
from cpd.numeric.cast import is_whole
from cpd.numeric.purposes import OPERANDS, SUMS, TENSOR_OF, TENSORS, Purpose

SCHEMA = "str recipe, Tensor? numbers, Tensor? multipliers, ScalarType? narrow, ScalarType dtype"
"""The arguments that an operator takes of a recipe, and the type of its result."""


class Resolved(NamedTuple):
    """A recipe's text, resolved once for all calls."""

    text: str
    roundings: tuple[str, ...]
    """The texts of sums and casts, by the numbers of their purposes; empty: no cast."""
    casts: tuple[Parts, ...]
    """The parts of operands' casts, by the numbers of their purposes."""
    in_native: tuple[bool, ...]
    """True if torch's kernels compute the sum, for each operand's purpose by its number."""
    scales_at: str
    """The place where scales are applied: `operand`, `block` or `epilogue`."""
    drawing: frozenset[Purpose]
    """The purposes of stochastic roundings."""
    left_out: float
    """The factor of the forward product's operands."""


@functools.lru_cache(maxsize=1024)
def resolved(text: str) -> Resolved:
    """Returns the resolved recipe of a text."""
    recipe = _core.Recipe.parse(text)
    roundings = recipe.roundings()
    casts = tuple(parts(roundings[p]) if p in OPERANDS else UNCAST for p in Purpose)
    drawing = {operand for operand in OPERANDS if casts[operand].draws}
    for sum_ in SUMS:
        if roundings[sum_] != NATIVE and parsed(roundings[sum_]).rounding == "stochastic":
            drawing.add(sum_)
    in_native = tuple(p in OPERANDS and roundings[_SUM_OF[p]] == NATIVE for p in Purpose)
    left_out = casts[Purpose.cast_activation].factor
    left_out *= casts[Purpose.cast_weight].factor
    scales_at = recipe.fields()["scales_at"]
    return Resolved(text, roundings, casts, in_native, scales_at, frozenset(drawing), left_out)


class RecipeCall(NamedTuple):
    """A recipe in one call of an operator."""

    recipe: Resolved
    numbers: Tensor | None = None
    """Seeds and streams, int64, a row for each purpose, by its number; None: nothing draws."""
    multipliers: Tensor | None = None
    """The scales of activation, weight and gradient, where scaling is delayed."""
    narrow: torch.dtype | None = None
    """The type of torch.autocast; None: no autocast. Uncast operands of native products have this
    type. Their gradients are rounded to it before they are rounded to the operand's own type."""

    @property
    def scales_at(self) -> str:
        """The place where scales are applied: `operand`, `block` or `epilogue`."""
        return self.recipe.scales_at

    def sum(self, purpose: Purpose) -> Sum:
        """Returns the sum of that purpose."""
        return Sum(self.recipe.roundings[purpose], *self.pair(purpose))

    def rounding(self, purpose: Purpose) -> str:
        """Returns the text of a sum or of an operand's cast.

        Empty where the operand is not cast.
        """
        return self.recipe.roundings[purpose]

    def multiplier(self, operand: Purpose) -> Tensor | None:
        """Returns the scale by which an operand is multiplied, where scaling is delayed."""
        if self.multipliers is None:
            return None
        return self.multipliers[TENSORS.index(TENSOR_OF[operand])]

    def pair(self, purpose: Purpose) -> Pair:
        """Returns seed and stream of a sum or of an operand's cast; None without random bits."""
        if self.numbers is None or purpose not in self.recipe.drawing:
            return None, None
        seed, stream = self.numbers[purpose].unbind()
        return seed, stream

    def cast(self, operand: Purpose, x: Tensor, axis: int) -> Tensor:
        """Returns an operand as it enters its product, blocks along `axis`."""
        text = self.recipe.roundings[operand]
        if not text:
            return self.narrowed(x, _SUM_OF[operand])
        return cast_operand(x, text, axis, self.pair(operand), self.multiplier(operand))

    def factor(
        self, operand: Purpose, x: Tensor, axis: int, dtype: torch.dtype, narrow: bool = True
    ) -> Factor:
        """Returns `cast`, for a product whose result has type `dtype`.

        If `dtype` is a 16-bit type and the sum is native, 16-bit values are returned apart from
        their scale, outside of differentiated code; with `narrow`, in bfloat16 on the CPU.
        """
        recipe = self.recipe
        text, cast = recipe.roundings[operand], recipe.casts[operand]
        if dtype in HALVES and text and recipe.in_native[operand] and not _differentiates():
            if cast.splits_at(x.dim()):
                pair, multiplier = self.pair(operand), self.multiplier(operand)
                return split_operand(x, text, axis, pair, multiplier, narrow=narrow)
            if dtype == torch.bfloat16 and cast.narrows and is_plain(x):
                return Factor(narrow_operand(x, text, axis, self.pair(operand)))
            if dtype == torch.bfloat16 and cast.fits_bfloat16 and narrow:
                return Factor(of_type(self.cast(operand, x, axis), torch.bfloat16))
        y = self.cast(operand, x, axis)
        return Factor(y, None, y.dtype == torch.float32 and cast.is_short)

    def narrowed(self, x: Tensor, purpose: Purpose) -> Tensor:
        """Returns an uncast operand of the sum `purpose`: in autocast's type if that is native."""
        if self.narrow is None or self.rounding(purpose) != NATIVE:
            return x
        return of_type(x, self.narrow)

    def gradient_type(self, like: torch.dtype, purpose: Purpose) -> torch.dtype:
        """Returns the type into which a sum that is a gradient is rounded, before `like`."""
        if self.narrow is None or self.rounding(purpose) != NATIVE or like != torch.float32:
            return like
        return self.narrow

    def gradients(
        self,
        g: Tensor,
        needs: Sequence[bool],
        axes: tuple[int, int],
        dtype: torch.dtype,
        narrow: bool = True,
    ) -> tuple[Factor, Factor]:
        """Returns the gradient as it enters the two backward GEMMs, as far as they are needed.

        It is cast once if one cast serves as both. `dtype`: of their results; `narrow`: as in
        `factor`.
        """
        for_input, for_weight = needs
        first, second = self.rounding(Purpose.cast_gradient), self.rounding(Purpose.recast_gradient)
        if first == second and (not first or is_whole(first)):
            cast = self.factor(Purpose.cast_gradient, g, axes[0], dtype, narrow)
            return cast, cast
        gradient = self.recipe.casts[Purpose.cast_gradient]
        both = all(needs) and first == second and gradient.is_scaled and not gradient.draws
        if both and g.is_contiguous() and not (dtype in HALVES and gradient.splits_at(g.dim())):
            once, again = cast_operand_both(g, first, axes)
            short = gradient.is_short and once.dtype == torch.float32
            return Factor(once, None, short), Factor(again, None, short)
        return (
            self._factor_if(for_input, Purpose.cast_gradient, g, axes[0], dtype, narrow),
            self._factor_if(for_weight, Purpose.recast_gradient, g, axes[1], dtype, narrow),
        )

    def _factor_if(self, needed: bool, operand: Purpose, x: Tensor, *arguments: Any) -> Factor:
        return self.factor(operand, x, *arguments) if needed else Factor(x)

    def leaves_factors(self) -> bool:
        """True if the operands of the forward product have factors, which its result loses."""
        return self.recipe.left_out != 1

    def left_out(self, first: Purpose, second: Purpose) -> float:
        """Returns the factors that a product of two operands contains."""
        return self.recipe.casts[first].factor * self.recipe.casts[second].factor

    def of_cast(self) -> RecipeCall:
        """Returns the call for an activation and a weight that are cast already."""
        return self._replace(recipe=_of_cast(self.recipe.text))

    def draws(self) -> bool:
        """Returns whether a rounding is stochastic, in the backward pass too."""
        return bool(self.recipe.drawing)


_SUM_OF = {
    Purpose.cast_activation: Purpose.given,
    Purpose.cast_weight: Purpose.given,
    Purpose.cast_gradient: Purpose.grad_input,
    Purpose.recast_weight: Purpose.grad_input,
    Purpose.recast_activation: Purpose.grad_weight,
    Purpose.recast_gradient: Purpose.grad_weight,
}
"""The sum that each operand enters."""


def _differentiates() -> bool:
    """Returns whether the present computation is differentiated itself.

    Operands must then be tensors that follow from their sources: the scales and codes of
    `split_operand` have no derivatives.
    """
    return torch.is_grad_enabled() or transforms_active()


@functools.lru_cache(maxsize=1024)
def _of_cast(text: str) -> Resolved:
    return resolved(_core.Recipe.parse(text).gemms(True, True).text)


# ---- calls by torch.vmap -------------------------------------------------------------------------


def recipe_call(arguments: dict[str, Any]) -> RecipeCall:
    """Returns the recipe of a call, by its arguments' names."""
    text, *rest = (arguments[name] for name in RecipeCall._fields)
    return RecipeCall(resolved(text), *rest)


def recipe_draws(arguments: dict[str, Any]) -> bool:
    """Returns whether an operator of a recipe rounds stochastically, in its backward pass too.

    A gradient over the whole batch takes its numbers from the forward call.
    """
    return recipe_call(arguments).draws()


def scales_apart(call: Any) -> bool:
    """Returns whether each example needs a separate call.

    It does if a scale of an operand covers a whole tensor, or scales are applied to sums.
    """
    of = recipe_call(call.arguments)
    return of.scales_at != "operand" or any(cast.covers_a_tensor for cast in of.recipe.casts)
