# SPDX-License-Identifier: Apache-2.0
"""The parts of a recipe by name and purpose, and what each call of a layer needs of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from cpd import _core
from cpd.numeric import purposes
from cpd.numeric.cast import Cast, operand_text, scaled_of
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose

SUMS = tuple(purposes.SUMS.values())
OPERANDS = purposes.TENSORS
OVERRIDES = {
    field: purposes.TENSOR_OF[purpose]
    for purpose, field in purposes.OPERANDS.items()
    if field not in OPERANDS
}
"""The operands of one backward GEMM, each with the tensor whose cast is its default."""
ROUNDED = ("norm", "softmax", "embedding", "residual")


def is_native(sum: Any) -> bool:
    """Returns whether torch's own kernel forms the sum.

    Only the type is looked at: torch.compile cannot trace a comparison of an accumulator with a
    string.
    """
    return isinstance(sum, str)


def is_same(operand: Any) -> bool:
    """Returns whether an operand of one GEMM has the tensor's own cast."""
    return isinstance(operand, str)


class Kept(NamedTuple):
    """The parts of a recipe that each call of a layer needs, computed once."""

    text: str
    gemms: str
    before: tuple[Cast | None, Cast | None]
    operands: tuple[Cast | None, ...]
    drawing: tuple[tuple[Purpose, Any], ...]
    delays: bool


def kept(parts: dict[str, Any]) -> Kept:
    """The `Kept` of a recipe's parts by name. Raises ValueError where they do not go together."""
    _check_histories(parts)
    operands = {purpose: parts[name] for purpose, name in purposes.OPERANDS.items()}
    for purpose, cast in operands.items():
        if is_same(cast):
            operands[purpose] = parts[purposes.TENSOR_OF[purpose]]
    once = (
        operands[Purpose.cast_activation] is operands[Purpose.recast_activation],
        operands[Purpose.cast_weight] is operands[Purpose.recast_weight],
    )
    text, gemms, of_activation, of_weight = _described(_text(parts), *once)
    within = {purpose: parts[name] for purpose, name in purposes.SUMS.items()} | operands
    if of_activation:
        within[Purpose.cast_activation] = within[Purpose.recast_activation] = None
    if of_weight:
        within[Purpose.cast_weight] = within[Purpose.recast_weight] = None
    return Kept(
        text,
        gemms,
        (
            parts["activation"] if of_activation else None,
            parts["weight"] if of_weight else None,
        ),
        tuple(operands.values()),
        tuple((purpose, part) for purpose, part in within.items() if draws(part)),
        any(cast is not None and bool(cast.history) for cast in operands.values()),
    )


def unit_scales_at(parts: dict[str, Any]) -> str:
    """The default of `scales_at`: for a matrix unit's sums what the operands' blocks allow."""
    forward = parts["forward"]
    casts = [parts[name] for name in (*OPERANDS, *OVERRIDES)]
    scaled = [
        q for q in (scaled_of(cast) for cast in casts if isinstance(cast, Cast)) if q is not None
    ]
    if is_native(forward) or forward.form != "unit" or not scaled:
        return "operand"
    is_whole = all(q.block in ("tensor", "row") and q.tensor_scale is None for q in scaled)
    return "epilogue" if is_whole else "block"


def _check_histories(parts: dict[str, Any]) -> None:
    """Raises ValueError if a GEMM's cast of a tensor has a history and differs from the tensor's.

    A cast may differ by its seed alone, which texts do not have.
    """
    for name, tensor in OVERRIDES.items():
        cast = parts[name]
        if isinstance(cast, Cast) and cast.history and cast != parts[tensor]:
            raise ValueError(
                f"{name}: a history belongs to {tensor} itself, whose cast both GEMMs take"
            )


def draws(part: Any) -> bool:
    """Returns whether a sum or a cast, if there is one, rounds stochastically."""
    return part is not None and not is_native(part) and part.rounding == "stochastic"


def _text(parts: dict[str, Any]) -> str:
    """A text of a recipe's parts."""
    said = [_word(parts["forward"])]
    said += [f"{name}={_word(parts[name])}" for name in SUMS[1:]]
    for name in (*OPERANDS, "output", *ROUNDED):
        if parts[name] is not None:
            said.append(f"{name}={operand_text(parts[name])}")
    for name in OVERRIDES:
        if not is_same(parts[name]):
            said.append(f"{name}={_word(parts[name])}")
    said.append(f"scales_at={parts['scales_at']}")
    return "; ".join(said)


def _word(part: Any) -> str:
    if part is None:
        return "none"
    if isinstance(part, str):
        return part
    return operand_text(part) if isinstance(part, Cast) else str(part.text)


@constant
def _described(text: str, activation: bool, weight: bool) -> tuple[str, str, bool, bool]:
    """Returns a recipe's canonical text, and the text of what its GEMMs take.

    Also whether the activation, and the weight, is cast before the GEMMs. `activation`, `weight`:
    whether both GEMMs have one cast of it, which does not follow from a text, as seeds may differ.
    """
    held = _core.Recipe.parse(text)
    of_activation = activation and held.is_cast_once(Purpose.cast_activation)
    of_weight = weight and held.is_cast_once(Purpose.cast_weight)
    return held.text, held.gemms(of_activation, of_weight).text, of_activation, of_weight
