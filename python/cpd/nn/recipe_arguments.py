# SPDX-License-Identifier: Apache-2.0
"""Checks and converts the arguments of `cpd.Recipe`.

Each function takes one argument from a keyword, plain data or a text, and returns the value that
the recipe stores.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cpd import _core
from cpd.nn.ready import READY
from cpd.numeric.accumulator import (
    SCHEMES,
    Accumulator,
    AccumulatorLike,
    as_accumulator,
)
from cpd.numeric.cast import Cast, CastLike, as_cast, element_of, refuse_e4m3
from cpd.numeric.names import checked_name, did_you_mean
from cpd.numeric.numbers import integer
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import shown
from cpd.numeric.spec_text import items

if TYPE_CHECKING:
    from cpd.comm.spec import Reduce

MAX_EXPONENT, MAX_MANTISSA = 8, 23

NATIVE: Literal["native"] = "native"
"""The text, in place of an accumulator, for a sum that torch's own kernel computes."""
NONE = "none"
"""The word for None in texts and files: TOML has no null."""

Sum: TypeAlias = "Accumulator | Literal['native']"
SumLike: TypeAlias = "AccumulatorLike | Literal['native']"
Nested: TypeAlias = "Callable[[str, Any], Any]"
"""A function that reads a recipe within a recipe.

Its arguments are a name for errors and the value. Its result is a recipe or None.
"""


def is_none(value: Any) -> bool:
    """Returns True if an argument is None, or the word for None."""
    return value is None or (isinstance(value, str) and value == NONE)


def operands(value: Any) -> Cast | None:
    """Reads the cast of all operands. For an unknown name, the error suggests a known name."""
    try:
        return formats(value)
    except ValueError as error:
        if not isinstance(value, str) or not str(error).startswith(_UNKNOWN):
            raise  # the error has another reason
        if number := re.search(r"\b(seed|stream|step|layer)=", value):
            raise ValueError(
                f"a recipe has no {number[1]}: give it to the call, cpd.convert(…, seed=…), in "
                f"place of {shown(value)}"
            ) from None
        near = re.search("did you mean [^;?]*[?]", str(error))  # a format
        meant = _MEANT.get(value.lower()) or did_you_mean(value, READY, cutoff=0.75)
        meant = meant or (near[0] if near else did_you_mean(value, READY))
        hint = f"; {meant}" if meant else ""
        raise ValueError(
            f"unknown recipe {shown(value)}: expected one of {', '.join(sorted(READY))}, a "
            f".toml or .json file, or a format of operands{hint}"
        ) from error


_UNKNOWN = ("unknown", "no format", "a cast is a format")
_MEANT = {"fp8": "did you mean te-current?", "fp4": "did you mean nvfp4?"}


def formats(value: Any) -> Cast | None:
    """Reads a recipe's first argument: returns the cast of all operands, or None for "native".

    Raises ValueError for the text of an accumulator, and TypeError for an `Accumulator`. Both
    messages recommend `sums=`.
    """
    if isinstance(value, str) and value == NATIVE:
        return None
    if isinstance(value, Accumulator):
        raise TypeError(_is_sum(str(value)))
    try:
        as_cast(value)
    except TypeError:
        raise TypeError(
            "a recipe must be a cpd.Recipe, its name or text, a path (.toml or .json), a dict, or "
            f"the format of all operands, got {shown(value)}"
        ) from None
    except ValueError:
        if isinstance(value, str) and _names_sum(value):
            raise ValueError(_is_sum(value)) from None
        raise
    return operand("a recipe", value)


def _is_sum(text: str) -> str:
    return (
        f"{shown(text)} is an accumulator, not a format of operands: give it as "
        f"sums={shown(text)}, as in cpd.Recipe(sums={shown(text)})"
    )


def names_cast(text: str) -> bool:
    """Returns True if a text is a format or a cast."""
    try:
        as_cast(text)
    except ValueError:
        return False
    return True


def _names_sum(text: str) -> bool:
    """Returns True if a text is an accumulator, or probably meant as an accumulator.

    A scheme's name, or a preset's name with options, counts as meant.
    """
    try:
        as_accumulator(text)
    except ValueError:
        head, *rest = text.split() or [""]
        is_preset = bool(rest) and head in Accumulator.named()
        return is_preset or not set(SCHEMES).isdisjoint(rest)
    return True


def sums(value: Any) -> tuple[Any, ...]:
    """Reads `sums`: returns how each GEMM (and grad_bias, if given) sums; () for None."""
    if value is None:
        return ()
    is_tuple = isinstance(value, (tuple, list)) and len(value) != 2  # (exp, man) is a format
    if is_tuple and len(value) not in (3, 4):
        raise ValueError(
            "sums must be one accumulator, or a tuple of forward, grad_input, grad_weight and, at "
            f"choice, grad_bias, got {len(value)} values"
        )
    return tuple(value) if is_tuple else (value,) * 3


def sum_(name: str, value: Any) -> Sum:
    """Reads a sum."""
    _refuse_table(value)
    return NATIVE if isinstance(value, str) and value == NATIVE else as_accumulator(value)


def _refuse_table(value: Any) -> None:
    """Raises ValueError if a sum is a table (text, seed, stream), as in files of version 0.7."""
    if isinstance(value, dict):
        raise ValueError(
            f"must be a text, got a table, {shown(value)}: give its seed to the call, "
            "cpd.convert(…, seed=…)"
        )


def usual_bias(forward: Sum) -> SumLike:
    """Returns a bias gradient's default sum: "native" if `forward` is "native", else "fp32"."""
    return NATIVE if isinstance(forward, str) else "fp32"


def operand(name: str, value: Any) -> Cast:
    """Reads the cast of an operand. Raises ValueError for a format that exceeds binary32."""
    spec = _cast(name, value)
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


def _cast(name: str, value: Any) -> Cast:
    _refuse_table(value)
    refuse_e4m3(name, value)
    return as_cast(value)


def override(name: str, value: Any) -> Any:
    """Reads one GEMM's cast of a tensor, or "same": the recipe's general cast of that tensor."""
    return value if isinstance(value, str) and value == "same" else operand(name, value)


def cast(name: str, value: CastLike | Scaled | dict[str, Any]) -> Cast:
    """Reads the cast of a result. Raises ValueError for a scaled format."""
    spec = _cast(name, value) if isinstance(value, (str, dict)) else as_cast(value)
    if isinstance(spec.format, Scaled):
        raise ValueError(
            f"{name} takes formats without scales, got {spec}; the operands of products, "
            "activation, weight and gradient, take scaled ones too"
        )
    return spec


def words(name: str, value: Any) -> str:
    """Reads a text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def reduce(name: str, value: Any) -> Reduce:
    """Reads an all-reduce."""
    from cpd.comm.spec import as_reduce  # imported late: slow, rarely used

    return as_reduce(value)


def loss_scale(name: str, value: Any) -> Any:
    """Reads a loss scale: "dynamic" or a number."""
    if isinstance(value, str):
        if value == "dynamic":
            return value
        with contextlib.suppress(ValueError):  # the check below raises
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"loss_scale must be None, a number or 'dynamic', got {shown(value)}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"loss_scale must be above 0 and finite, got {shown(value)}")
    if float(value) != value:
        raise ValueError(
            f"loss_scale must be a number of binary64, got {shown(value)}; the nearest is "
            f"{int(float(value))}"
        )
    return float(value)


def scales_at(name: str, value: Any) -> Any:
    """Reads `scales_at`; None means the default, which depends on the sums."""
    return None if value is None else checked_name("scales_at", value, _core.SCALES_AT)


def rules(name: str, value: Any, nested: Nested) -> tuple[tuple[str, Any], ...]:
    """Reads rules. Classes become texts, which files can contain."""
    pairs = []
    is_table = isinstance(value, Mapping)
    for i, entry in enumerate(value.items() if is_table else _list(name, value)):
        if isinstance(entry, dict):
            entry = _table(f"{name}[{i}]", entry, "layers")
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise TypeError(f"rules must be pairs (selector, recipe or None), got {shown(entry)}")
        selector, recipe = entry
        if isinstance(selector, type):
            selector = f"type {selector.__module__}.{selector.__qualname__}"
        if not isinstance(selector, str):
            raise TypeError(f"a rule's selector must be a str or a class, got {shown(selector)}")
        check_selector(selector)
        where = f"{name}.{selector}" if is_table else f"{name}[{i}].recipe"
        pairs.append((selector, nested(where, recipe)))
    return tuple(pairs)


def check_selector(text: str) -> None:
    """Raises ValueError for `type:NAME`, which selected a class of layers in version 0.7."""
    if text.startswith("type:"):
        now = f"type {text.removeprefix('type:').strip()}"
        raise ValueError(f"a selector of a class is {now!r} in place of {text!r}")


def schedule(name: str, value: Any, nested: Nested) -> tuple[tuple[str, int, Any], ...]:
    """Reads a schedule."""
    phases: list[tuple[str, int, Any]] = []
    for i, entry in enumerate(_list(name, value)):
        if isinstance(entry, dict):
            unit = "epoch" if "epoch" in entry else "step"
            entry = (unit, *_table(f"{name}[{i}]", entry, unit))
        if not isinstance(entry, (tuple, list)) or len(entry) != 3:
            raise TypeError(
                "schedule must be a list of triples ('step' or 'epoch', first number, recipe or "
                f"None), such as [('step', 2, 'e4m3fn')], got {shown(entry)} in it"
            )
        unit, start, recipe = entry
        if unit not in ("step", "epoch"):
            raise ValueError(f"schedule: the unit must be 'step' or 'epoch', got {shown(unit)}")
        is_digits = isinstance(start, str) and start.isascii() and start.isdigit()
        number = int(start) if is_digits else integer(name, start)
        if phases and (unit != phases[-1][0] or number <= phases[-1][1]):
            raise ValueError(
                "schedule must have one unit, and numbers that grow, got "
                f"{phases[-1][:2]} before {(unit, number)}"
            )
        if number < 0:
            raise ValueError(f"schedule starts at 0 or later, got {number}")
        phases.append((unit, number, nested(f"{name}[{i}].recipe", recipe)))
    return tuple(phases)


def _table(name: str, value: dict[str, Any], key: str) -> tuple[Any, Any]:
    if set(value) != {key, "recipe"}:
        raise ValueError(f"{name} must be a table of {key} and recipe, got {shown(value)}")
    return value[key], value["recipe"]


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str):
        return items(value)
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence, got {shown(value)}")
    return list(value)
