# SPDX-License-Identifier: Apache-2.0
"""`Kept`: the texts and casts of a recipe, computed once and then used by each call of a layer."""

from __future__ import annotations

from typing import Any, NamedTuple

from cpd import _core
from cpd.numeric import purposes
from cpd.numeric.cast import Cast, operand_text
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose

SUMS = tuple(purposes.SUMS.values())
OPERANDS = purposes.TENSORS
OVERRIDES = {
    field: purposes.TENSOR_OF[purpose]
    for purpose, field in purposes.OPERANDS.items()
    if field not in OPERANDS
}
"""Maps each argument that casts a tensor for one GEMM to the argument with the usual cast."""
ROUNDED = ("norm", "softmax", "embedding", "residual")


def is_native(sum: Any) -> bool:
    """Returns True if torch's own kernel computes the sum.

    Tests whether `sum` is a str: torch.compile cannot trace a comparison of an accumulator with a
    str.
    """
    return isinstance(sum, str)


def is_same(operand: Any) -> bool:
    """Returns True if one GEMM's cast of a tensor is "same": the tensor's general cast."""
    return isinstance(operand, str)


class Kept(NamedTuple):
    """The texts and casts of a recipe, computed once and then used by each call of a layer."""

    text: str
    """The recipe's canonical text, with only its sums, its casts and `scales_at`."""
    gemms: str
    """The recipe's text for the GEMMs alone, without casts before the GEMMs and casts of
    results."""
    before: tuple[Cast | None, Cast | None]
    """The casts of activation and weight before the GEMMs; None if each GEMM casts separately."""
    operands: tuple[Cast | None, ...]
    """The casts of the two operands of each of the three GEMMs, in the order of GEMMs."""
    drawing: tuple[Any, ...]
    """The sum or cast for each `Purpose` if its rounding is stochastic, else None. The tuple is
    empty if no rounding is stochastic."""
    delays: bool
    """True if an operand's scale is delayed: computed from previous steps."""
    draws: bool
    """True if a rounding of any kind of layer is stochastic, including attention and
    normalizations."""


def put_kept(parts: dict[str, Any]) -> None:
    """Computes a recipe's `Kept`, stores it as `_kept`, and sets the default of `scales_at`.

    Raises ValueError if fields of the recipe contradict each other.
    """
    _check_histories(parts)
    operands = {purpose: parts[name] for purpose, name in purposes.OPERANDS.items()}
    for purpose, cast in operands.items():
        if is_same(cast):
            operands[purpose] = parts[purposes.TENSOR_OF[purpose]]
    text, gemms, of_activation, of_weight, scales_at = _described(_text(parts))
    within = {purpose: parts[name] for purpose, name in purposes.SUMS.items()} | operands
    before = (
        parts["activation"] if of_activation else None,
        parts["weight"] if of_weight else None,
    )
    if of_activation:
        within[Purpose.cast_activation] = within[Purpose.recast_activation] = None
    if of_weight:
        within[Purpose.cast_weight] = within[Purpose.recast_weight] = None
    drawing = [part if draws(part) else None for part in map(within.get, Purpose)]
    parts["scales_at"] = scales_at
    parts["_kept"] = Kept(
        text,
        gemms,
        before,
        tuple(operands.values()),
        tuple(drawing) if any(drawing) else (),
        any(cast is not None and bool(cast.history) for cast in operands.values()),
        any(map(draws, (*within.values(), *before, parts["output"], *(parts[n] for n in ROUNDED))))
        or (parts["attention"] is not None and parts["attention"]._kept.draws),
    )


def _check_histories(parts: dict[str, Any]) -> None:
    """Raises ValueError if a cast for only one GEMM has delayed scaling (the key `history`).

    A cast may have a `history` if it equals the tensor's own cast, which is for both GEMMs.
    """
    for name, tensor in OVERRIDES.items():
        cast = parts[name]
        if isinstance(cast, Cast) and cast.history and cast != parts[tensor]:
            raise ValueError(
                f"{name}: a history belongs to {tensor} itself, whose cast both GEMMs take"
            )


def draws(part: Any) -> bool:
    """Returns True if a sum or cast rounds stochastically; False for None."""
    return part is not None and not is_native(part) and part.rounding == "stochastic"


def _text(parts: dict[str, Any]) -> str:
    """Returns a recipe's text from its fields."""
    texts = {name: parts[name] for name in (*SUMS, *OPERANDS, "output", *ROUNDED, "scales_at")}
    texts |= {name: parts[name] for name in OVERRIDES if not is_same(parts[name])}
    if parts["scales_at"] is None:  # the default follows from `sums`
        texts["sums"] = texts.pop("forward")
        del texts["scales_at"]
    return "native " + " ".join(f"{name}='{_word(part)}'" for name, part in texts.items())


def _word(part: Any) -> str:
    if part is None:
        return "none"
    if isinstance(part, str):
        return part
    return operand_text(part) if isinstance(part, Cast) else str(part.text)


@constant
def _described(text: str) -> tuple[str, str, bool, bool, str]:
    """Returns a recipe's canonical text, the text for its GEMMs, two bools, and `scales_at`.

    The bools say whether the activation and the weight are cast before the GEMMs.
    """
    held = _core.Recipe.parse(text)
    of_activation = held.is_cast_once(Purpose.cast_activation)
    of_weight = held.is_cast_once(Purpose.cast_weight)
    gemms = held.gemms(of_activation, of_weight).text
    return held.text, gemms, of_activation, of_weight, held.fields()["scales_at"]
