# SPDX-License-Identifier: Apache-2.0
"""A recipe as arguments of the operators torch.ops.cpd.matmul and convolution.

The arguments are a text and tensors. The text has the sums of the three GEMMs and the casts of
their operands. The tensors have values that may change from call to call, such as seeds.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
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
"""The arguments, in an operator's schema, that pass a recipe and the result's dtype."""


class Resolved(NamedTuple):
    """The properties of a recipe, computed once from its text."""

    text: str
    roundings: tuple[str, ...]
    """The text of each sum or cast, indexed by its `Purpose`. "": the operand is not cast."""
    casts: tuple[Parts, ...]
    """The properties of each operand's cast, indexed by the `Purpose` of the cast."""
    in_native: tuple[bool, ...]
    """True for each operand whose product is summed by torch's own kernel, indexed by the `Purpose`
    of the operand's cast."""
    scales_at: str
    """The values that scales multiply: operands ("operand"), sums of blocks ("block") or whole sums
    ("epilogue")."""
    drawing: frozenset[Purpose]
    """The sums and casts that round stochastically, each as a `Purpose`."""
    left_out: float
    """The number by which the forward product is divided: the key `factor` of the activation's cast
    times the key `factor` of the weight's cast."""


@functools.lru_cache(maxsize=1024)
def resolved(text: str) -> Resolved:
    """Parses the text of a recipe and returns the recipe's properties."""
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
    """A recipe for one call of an operator, with the call's seeds, streams and delayed scales."""

    recipe: Resolved
    numbers: Tensor | None = None
    """The seeds and streams: int64, one row for each `Purpose`, in the order of the enumeration.
    None: no rounding is stochastic."""
    multipliers: Tensor | None = None
    """With delayed scaling, the three scales by which activation, weight and gradient are
    multiplied; else None."""
    narrow: torch.dtype | None = None
    """The dtype of torch.autocast; None: no autocast. Operands of native products that the recipe
    does not cast are converted to this dtype. Their gradients are rounded to it before they are
    rounded to the operand's own type."""

    @property
    def scales_at(self) -> str:
        """The values that block scales multiply: operands, sums of blocks or whole sums."""
        return self.recipe.scales_at

    def sum(self, purpose: Purpose) -> Sum:
        """Returns the accumulator of the GEMM `purpose`, with the call's seed and stream."""
        return Sum(self.recipe.roundings[purpose], *self.pair(purpose))

    def rounding(self, purpose: Purpose) -> str:
        """Returns the text of an accumulator or operand's cast; "" if the operand is not cast."""
        return self.recipe.roundings[purpose]

    def multiplier(self, operand: Purpose) -> Tensor | None:
        """Returns the scale by which delayed scaling multiplies an operand, else None."""
        if self.multipliers is None:
            return None
        return self.multipliers[TENSORS.index(TENSOR_OF[operand])]

    def pair(self, purpose: Purpose) -> Pair:
        """Returns seed and stream of a sum or cast; (None, None) if it uses no random bits."""
        if self.numbers is None or purpose not in self.recipe.drawing:
            return None, None
        seed, stream = self.numbers[purpose].unbind()
        return seed, stream

    def cast(self, operand: Purpose, x: Tensor, axis: int) -> Tensor:
        """Returns an operand `x` after its cast, with blocks along `axis`."""
        text = self.recipe.roundings[operand]
        if not text:
            return self.narrowed(x, _SUM_OF[operand])
        return cast_operand(x, text, axis, self.pair(operand), self.multiplier(operand))

    def factor(
        self, operand: Purpose, x: Tensor, axis: int, dtype: torch.dtype, narrow: bool = True
    ) -> Factor:
        """Returns an operand `x` after its cast, for a product with a result of `dtype`.

        If `dtype` is a 16-bit type and torch's own kernel sums, the result may have a separate
        scale, and values that bfloat16 represents. With `narrow`, these values may be a bfloat16
        tensor on the CPU. While autograd records gradients, the scale is never separate.
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
        """Returns an operand that is not cast, `x`, in autocast's dtype if needed.

        This is needed if torch's own kernel computes the sum for `purpose`.
        """
        if self.narrow is None or self.rounding(purpose) != NATIVE:
            return x
        return of_type(x, self.narrow)

    def gradient_type(self, like: torch.dtype, purpose: Purpose) -> torch.dtype:
        """Returns the dtype to which a gradient is rounded before its operand's dtype, `like`."""
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
        """Returns the result's gradient `g` after its casts for the two backward GEMMs.

        `needs` has a bool for each GEMM; the operand of a GEMM that is not needed is not cast. If
        one cast can serve both GEMMs, `g` is cast once. `dtype` is the dtype of the GEMMs' results.
        With `narrow`, the cast gradients may be bfloat16 tensors on the CPU.
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
        """Returns True if the forward product must be divided by the keys `factor` of its casts."""
        return self.recipe.left_out != 1

    def left_out(self, first: Purpose, second: Purpose) -> float:
        """Returns the number that divides a GEMM: the product of its two casts' keys `factor`."""
        return self.recipe.casts[first].factor * self.recipe.casts[second].factor

    def of_cast(self) -> RecipeCall:
        """Returns a copy of this call that does not cast activation and weight again."""
        return self._replace(recipe=_of_cast(self.recipe.text))

    def draws(self) -> bool:
        """Returns whether any rounding of the forward or backward pass is stochastic."""
        return bool(self.recipe.drawing)


_SUM_OF = {
    Purpose.cast_activation: Purpose.given,
    Purpose.cast_weight: Purpose.given,
    Purpose.cast_gradient: Purpose.grad_input,
    Purpose.recast_weight: Purpose.grad_input,
    Purpose.recast_activation: Purpose.grad_weight,
    Purpose.recast_gradient: Purpose.grad_weight,
}
"""Maps each cast of an operand to the GEMM that reads the operand, both as a `Purpose`."""


def _differentiates() -> bool:
    """Returns whether autograd or a transform of torch.func may differentiate the running code.

    Then `split_operand` must not be used, because its scales and codes have no derivatives.
    """
    return torch.is_grad_enabled() or transforms_active()


@functools.lru_cache(maxsize=1024)
def _of_cast(text: str) -> Resolved:
    return resolved(_core.Recipe.parse(text).gemms(True, True).text)


# ---- calls by torch.vmap -------------------------------------------------------------------------


def recipe_call(arguments: dict[str, Any]) -> RecipeCall:
    """Returns the `RecipeCall` of an operator call, from the operator's arguments by name."""
    text, *rest = (arguments[name] for name in RecipeCall._fields)
    return RecipeCall(resolved(text), *rest)


def recipe_draws(arguments: dict[str, Any]) -> bool:
    """Returns whether an operator with a recipe rounds stochastically, forward or backward.

    Stochastic gradients count even in the forward pass, because a gradient over the whole batch
    uses the seeds and streams of the forward call.
    """
    return recipe_call(arguments).draws()


def scales_apart(call: Any) -> bool:
    """Returns whether each example of torch.vmap needs a separate call.

    A separate call is needed if a scale covers a whole tensor, or if scales are applied to sums.
    """
    of = recipe_call(call.arguments)
    return of.scales_at != "operand" or any(cast.covers_a_tensor for cast in of.recipe.casts)
