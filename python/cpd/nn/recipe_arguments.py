# SPDX-License-Identifier: Apache-2.0
"""Reads the arguments of `cpd.Recipe`.

Each function checks one argument and converts it to what a recipe holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from cpd import _core
from cpd.numeric.accumulator import (
    SCHEMES,
    Accumulator,
    AccumulatorLike,
    as_accumulator,
)
from cpd.numeric.cast import Cast, CastLike, as_cast, element_of, refuse_e4m3
from cpd.numeric.numbers import integer
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import shown
from cpd.numeric.streams import MAX_LAYERS

MAX_EXPONENT, MAX_MANTISSA = 8, 23

NATIVE: Literal["native"] = "native"
"""The sum of torch's own kernel."""

Sum: TypeAlias = "Accumulator | Literal['native']"
SumLike: TypeAlias = "AccumulatorLike | Literal['native']"
Nested: TypeAlias = "Callable[[str, Any], Any]"
"""A function that reads a recipe within a recipe, or None."""


def formats(value: Any) -> Cast | None:
    """Reads a recipe's first argument: the cast of all operands; None for "native".

    Raises ValueError for the text of an accumulator, TypeError for an accumulator; both name
    `sums=`.
    """
    if isinstance(value, str) and value == NATIVE:
        return None
    if isinstance(value, Accumulator):
        raise TypeError(_is_sum(str(value)))
    try:
        as_cast(value)
    except TypeError:
        raise TypeError(
            "a recipe is a cpd.Recipe, a recipe's name, a file (.toml or .json), plain data, or a "
            f"format, scaled or not, or a cast, for all operands, got {shown(value)}"
        ) from None
    except ValueError:
        if isinstance(value, str) and _names_sum(value):
            raise ValueError(_is_sum(value)) from None
        raise
    return operand("a recipe", value)


def _is_sum(text: str) -> str:
    return (
        f"{shown(text)} is an accumulator, the rule of a sum, and no format of operands: give it "
        f"as sums={shown(text)}, as in cpd.Recipe(sums={shown(text)}), or as a recipe's text, "
        f"{shown(text + ';')}"
    )


def names_cast(text: str) -> bool:
    """Returns whether a text names a format or a cast of operands."""
    try:
        as_cast(text)
    except ValueError:
        return False
    return True


def _names_sum(text: str) -> bool:
    """Returns whether a text names an accumulator, or seems to mean one.

    A scheme's word or a preset's name with options means one.
    """
    try:
        as_accumulator(text)
    except ValueError:
        head, *rest = text.split() or [""]
        is_preset = bool(rest) and head in Accumulator.named()
        return is_preset or not set(SCHEMES).isdisjoint(rest)
    return True


def sums(value: Any) -> tuple[Any, ...]:
    """Reads `sums`: the sums of the three GEMMs, and of the bias's gradient where given."""
    if value is None:
        return ()
    is_tuple = isinstance(value, (tuple, list)) and len(value) != 2  # (exp, man) is a format
    if is_tuple and len(value) not in (3, 4):
        raise ValueError(
            "sums must be one accumulator, or a tuple of forward, grad_input, grad_weight and, at "
            f"choice, grad_bias, got {len(value)} values"
        )
    return tuple(value) if is_tuple else (value,) * 3


def sum_(name: str, value: SumLike) -> Sum:
    """Reads a sum."""
    return NATIVE if isinstance(value, str) and value == NATIVE else as_accumulator(value)


def usual_bias(forward: Sum) -> SumLike:
    """The default sum of a bias's gradient."""
    return NATIVE if isinstance(forward, str) else "fp32"


def operand(name: str, value: CastLike | None) -> Cast | None:
    """Reads the cast of an operand, or None. Raises ValueError for a format that none can have."""
    if value is None:
        return None
    refuse_e4m3(name, value)
    spec = as_cast(value)
    f = element_of(spec)
    if f.man > MAX_MANTISSA:
        raise ValueError(
            f"{name} takes formats with a mantissa of up to {MAX_MANTISSA} bits, as operands are "
            f"at most float32, got {f.name!r}, which has {f.man}"
        )
    if f.exp > MAX_EXPONENT:
        raise ValueError(
            f"{name} takes formats of up to {MAX_EXPONENT} exponent bits, as operands are at most "
            f"float32, got {f.name!r}, which has {f.exp}"
        )
    return spec


def override(name: str, value: Any) -> Any:
    """Reads the cast of an operand of one GEMM, or "same"."""
    return value if isinstance(value, str) and value == "same" else operand(name, value)


def cast(name: str, value: CastLike | Scaled | None) -> Cast | None:
    """Reads the cast of results, or None. Raises ValueError for scaled formats."""
    if value is None:
        return None
    refuse_e4m3(name, value)
    spec = as_cast(value)
    if isinstance(spec.format, Scaled):
        raise ValueError(
            f"{name} takes formats without scales, got {value}; the operands of products, "
            "activation, weight and gradient, take scaled ones too"
        )
    return spec


def layer(name: str, value: Any) -> int:
    """Reads a layer's number."""
    number = integer(name, value)
    if not 0 <= number < MAX_LAYERS:
        raise ValueError(f"layer must be 0…2^16 - 1, got {number}")
    return number


def words(name: str, value: Any) -> Any:
    """Reads a text, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def loss_scale(name: str, value: Any) -> Any:
    """Reads a loss scale: None, "dynamic" or a number."""
    if value is None or (isinstance(value, str) and value == "dynamic"):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"loss_scale must be None, a number or 'dynamic', got {shown(value)}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"loss_scale must be above 0 and finite, got {shown(value)}")
    return float(value)


def scales_at(name: str, value: Any) -> Any:
    """Reads where scales are applied."""
    if value not in _core.SCALES_AT:
        allowed = ", ".join(_core.SCALES_AT)
        raise ValueError(f"scales_at must be one of {allowed}, got {shown(value)}")
    return value


def rules(name: str, value: Any, nested: Nested) -> tuple[tuple[str, Any], ...]:
    """Reads rules. Classes become texts, so that files can hold them."""
    found = []
    for each in value.items() if isinstance(value, Mapping) else _items(name, value):
        if not isinstance(each, (tuple, list)) or len(each) != 2:
            raise TypeError(f"rules must be pairs (selector, recipe or None), got {shown(each)}")
        selector, how = each
        if isinstance(selector, type):
            selector = f"type:{selector.__module__}.{selector.__qualname__}"
        if not isinstance(selector, str):
            raise TypeError(f"a rule's selector must be a str or a class, got {shown(selector)}")
        found.append((selector, nested(name, how)))
    return tuple(found)


def schedule(name: str, value: Any, nested: Nested) -> tuple[tuple[str, int, Any], ...]:
    """Reads a schedule."""
    found: list[tuple[str, int, Any]] = []
    for each in _items(name, value):
        if not isinstance(each, (tuple, list)) or len(each) != 3:
            raise TypeError(
                "schedule must be triples ('step' or 'epoch', from, recipe or None), "
                f"got {shown(each)}"
            )
        unit, start, how = each
        if unit not in ("step", "epoch"):
            raise ValueError(f"schedule: the unit must be 'step' or 'epoch', got {shown(unit)}")
        number = integer(name, start)
        if found and (unit != found[-1][0] or number <= found[-1][1]):
            raise ValueError(
                "schedule must have one unit, and numbers that grow, got "
                f"{found[-1][:2]} before {(unit, number)}"
            )
        if number < 0:
            raise ValueError(f"schedule starts at 0 or later, got {number}")
        found.append((unit, number, nested(name, how)))
    return tuple(found)


def _items(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence, got {shown(value)}")
    return list(value)
