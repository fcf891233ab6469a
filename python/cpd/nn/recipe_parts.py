# SPDX-License-Identifier: Apache-2.0
"""The parts of a recipe by their names and purposes, and what each call of a layer asks of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from cpd import _core
from cpd.numeric import purposes
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled_cast import OperandSpec, ScaledCast

SUMS = tuple(purposes.SUMS.values())
OPERANDS = purposes.TENSORS
OVERRIDES = {
    field: purposes.TENSOR_OF[purpose]
    for purpose, field in purposes.OPERANDS.items()
    if field not in OPERANDS
}
"""Operands of one backward GEMM, and which each is the same as unless it is said."""
ROUNDED = ("norm", "softmax", "embedding", "residual")


def is_native(sum: Any) -> bool:
    """Whether torch's own kernel forms it. Sums are not compared with strings: torch.compile cannot
    follow that."""
    return isinstance(sum, str)


def is_same(operand: Any) -> bool:
    """Whether an operand of one GEMM is the tensor's usual one."""
    return isinstance(operand, str)


class Kept(NamedTuple):
    """What each call of a layer asks of its recipe."""

    text: str
    gemms: str
    before: tuple[OperandSpec | None, OperandSpec | None]
    operands: tuple[OperandSpec | None, ...]
    drawing: tuple[tuple[Purpose, Any], ...]
    delays: bool


def kept(how: Any) -> Kept:
    """Raises ValueError where the parts of a recipe do not go together."""
    operands = {purpose: how.operand(name) for purpose, name in purposes.OPERANDS.items()}
    once = (
        operands[Purpose.cast_activation] is operands[Purpose.recast_activation],
        operands[Purpose.cast_weight] is operands[Purpose.recast_weight],
    )
    text, gemms, of_activation, of_weight = _described(_text(how), *once)
    before = how.activation if of_activation else None, how.weight if of_weight else None
    within = {purpose: getattr(how, name) for purpose, name in purposes.SUMS.items()} | operands
    if of_activation:
        within |= dict.fromkeys((Purpose.cast_activation, Purpose.recast_activation))
    if of_weight:
        within |= dict.fromkeys((Purpose.cast_weight, Purpose.recast_weight))
    return Kept(
        text,
        gemms,
        before,
        tuple(operands.values()),
        tuple((purpose, part) for purpose, part in within.items() if draws(part)),
        any(isinstance(cast, ScaledCast) and bool(cast.history) for cast in operands.values()),
    )


def draws(part: Any) -> bool:
    """Whether a sum or a cast, if there is one, rounds stochastically."""
    return part is not None and not is_native(part) and part.rounding == "stochastic"


def _text(how: Any) -> str:
    """The text of a recipe, of which every field is said."""
    names = (*SUMS[1:], *OPERANDS, *OVERRIDES, "output", *ROUNDED, "scales_at")
    said = [f"{name}={_word(getattr(how, name))}" for name in names]
    return "; ".join([_word(how.forward), *said])


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else value.text


@constant
def _described(text: str, activation: bool, weight: bool) -> tuple[str, str, bool, bool]:
    """Of a recipe's text: the canonical one; that of what its GEMMs take; and whether the
    activation, and the weight, is cast before them. `activation`, `weight`: whether both GEMMs have
    one cast of it, which a text does not tell: seeds may differ."""
    held = _core.Recipe.parse(text)
    of_activation = activation and held.is_cast_once(Purpose.cast_activation)
    of_weight = weight and held.is_cast_once(Purpose.cast_weight)
    return held.text, held.gemms(of_activation, of_weight).text, of_activation, of_weight
