# SPDX-License-Identifier: Apache-2.0
"""Recipes as plain data: dicts, JSON, TOML.

`make`, in functions that read, is `cpd.Recipe`, whose module imports this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from cpd import _core
from cpd.nn.recipe_parts import OVERRIDES, ROUNDED, SUMS, is_native, is_same
from cpd.numeric.accumulator import Accumulator, as_accumulator
from cpd.numeric.cast import Cast, as_cast, operand_text, refuse_e4m3
from cpd.numeric.names import did_you_mean
from cpd.numeric.numbers import Number
from cpd.numeric.shown import shown
from cpd.numeric.spec import arguments

RecipeT = TypeVar("RecipeT")

NONE = "none"
"""Stands for None where that is not the default: TOML has no null."""

_OF_SUMS = (*SUMS, "sums")
_CASTS = ("activation", "weight", "gradient", "output", *OVERRIDES, *ROUNDED)


def said(recipe: Any) -> dict[str, Any]:
    """The arguments that are not their defaults, `forward` first."""
    bias = recipe.forward if is_native(recipe.forward) else Accumulator("fp32")
    usual: dict[str, Any] = dict.fromkeys(SUMS, recipe.forward) | dict.fromkeys(OVERRIDES, "same")
    usual |= {"forward": None, "grad_bias": bias}
    usual |= {"layer": 0, "rules": (), "schedule": (), "source": "", "scales_at": "operand"}
    parts = arguments(recipe).items()
    return {name: value for name, value in parts if value != usual.get(name)}


def to_dict(recipe: Any) -> dict[str, Any]:
    """Returns strings, numbers, dicts and lists from which `from_dict` makes an equal recipe.

    They hold the arguments that differ from the defaults. Raises ValueError if a seed or stream is
    a tensor, whose value changes.

    >>> from cpd import Recipe
    >>> to_dict(Recipe("native", weight="mxfp8", rules=[("*.head", None)]))
    {'forward': 'native', 'weight': 'mxfp8', 'rules': [{'layers': '*.head', 'recipe': 'none'}]}
    """
    parts = said(recipe)
    rules, schedule = parts.pop("rules", ()), parts.pop("schedule", ())
    made: dict[str, Any] = {name: _plain_data(name, value) for name, value in parts.items()}
    if rules:
        made["rules"] = [{"layers": s, "recipe": _nested(r)} for s, r in rules]
    if schedule:
        made["schedule"] = [{u: n, "recipe": _nested(r)} for u, n, r in schedule]
    return made


def from_dict(data: dict[str, Any], make: type[RecipeT], where: str = "") -> RecipeT:
    """The recipe of plain data; `where` precedes the keys that errors name.

    Raises ValueError, naming the key, for keys that do not exist and values that are wrong, and
    TypeError for other objects than a dict.

    >>> from cpd import Recipe
    >>> from_dict({"forward": "native", "weigth": "mxfp8"}, Recipe)
    Traceback (most recent call last):
    ...
    ValueError: weigth is no key of a recipe; did you mean weight?
    """
    if not isinstance(data, dict):
        raise TypeError(f"{where or 'a recipe'} must be a table of keys, got {shown(data)}")
    keys = ["format", "sums"]
    keys += [one.name for one in fields(make) if one.init]  # type: ignore[arg-type]
    for key in data:
        if key not in keys:
            raise ValueError(f"{where}{key} is no key of a recipe{_nearest(key, keys)}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        values[key] = _read(key, value, make, f"{where}{key}")
    try:
        return make(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where.removesuffix('.') or 'recipe'}: {error}") from None


def to_json(recipe: Any) -> str:
    """`to_dict` as JSON."""
    import json  # like tomllib below, not imported with cpd, which takes time

    return json.dumps(to_dict(recipe), indent=2, ensure_ascii=False) + "\n"


def from_json(text: str, make: type[RecipeT]) -> RecipeT:
    """The recipe of a JSON text; errors as `from_dict`'s."""
    import json

    return _from_text("JSON", json.loads, text, make)


def to_toml(recipe: Any) -> str:
    """`to_dict` as TOML."""
    import tomli_w

    return tomli_w.dumps(to_dict(recipe))


def from_toml(text: str, make: type[RecipeT]) -> RecipeT:
    """The recipe of a TOML text; errors as `from_dict`'s."""
    import tomllib

    return _from_text("TOML", tomllib.loads, text, make)


def _from_text(kind: str, loads: Callable[[str], Any], text: str, make: type[RecipeT]) -> RecipeT:
    if not isinstance(text, str):
        raise TypeError(f"a recipe's {kind} must be a str, got {type(text).__name__}")
    try:
        data = loads(text)
    except RecursionError:
        raise ValueError(f"the recipe's {kind} is nested too deeply") from None
    except ValueError as error:  # of JSON and TOML, and of ints with too many digits
        raise ValueError(f"the recipe is no {kind}: {_core.readable(str(error))}") from None
    if not isinstance(data, dict):
        raise ValueError(f"the recipe's {kind} must be a table of keys, got {shown(data)}")
    try:
        return from_dict(data, make)
    except RecursionError:
        raise ValueError(f"the recipe's {kind} has too many recipes within recipes") from None


def from_file(path: str | Path, make: type[RecipeT]) -> RecipeT:
    """The recipe of a file, .toml or .json."""
    path = Path(path)
    read = {".toml": from_toml, ".json": from_json}.get(path.suffix)
    if read is None:
        raise ValueError(f"a recipe's file is .toml or .json, got {path}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return read(text, make)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# ---- to plain data -------------------------------------------------------------------------------


def _nested(recipe: Any) -> Any:
    return NONE if recipe is None else to_dict(recipe)


def _plain_data(name: str, value: Any) -> Any:
    if value is None:
        return NONE
    if name == "attention":
        return to_dict(value)
    if isinstance(value, (Accumulator, Cast)):
        numbers = {key: _whole(name, getattr(value, key)) for key in ("seed", "stream")}
        drawn = {key: number for key, number in numbers.items() if number}
        text = value.text if isinstance(value, Accumulator) else operand_text(value)
        return {"text": text, **drawn} if drawn else text
    return value


def _whole(name: str, number: Number) -> int:
    if not isinstance(number, int):
        raise ValueError(f"{name} has a seed or stream in a tensor, which a file cannot hold")
    return number


# ---- and back ------------------------------------------------------------------------------------


def _read(key: str, value: Any, make: type[Any], where: str) -> Any:
    if key == "rules" and isinstance(value, dict):
        return [(layers, _recipe(one, make, f"{where}.{layers}.")) for layers, one in value.items()]
    if key == "rules":
        return [_rule(one, make, f"{where}[{i}].") for i, one in enumerate(_list(value, where))]
    if key == "schedule":
        return [
            _phase(phase, make, f"{where}[{i}].") for i, phase in enumerate(_list(value, where))
        ]
    if key == "attention":
        return _recipe(value, make, f"{where}.")
    if key == "format" and isinstance(value, str):
        return value
    if key == "sums" and isinstance(value, list):
        return tuple(_read("forward", one, make, where) for one in value)
    if key not in (*SUMS, *_CASTS, "format", "sums"):
        return value
    try:
        return _spec(key, value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from None


def _spec(key: str, value: Any) -> Any:
    """A sum or a cast."""
    if is_same(value) and value in (NONE, "same", "native"):
        return None if value == NONE else value
    if not isinstance(value, dict):
        if not isinstance(value, str):
            raise ValueError(
                f"must be a text, or a table of text, seed and stream, got {shown(value)}"
            )
        if key in _OF_SUMS:
            return as_accumulator(value)
        refuse_e4m3(key, value)
        return as_cast(value)
    unknown = sorted(set(value) - {"text", "seed", "stream"})
    if unknown or "text" not in value:
        raise ValueError(f"must have the keys text, seed and stream, got {sorted(value)}")
    text, seed, stream = value["text"], value.get("seed", 0), value.get("stream", 0)
    if key in _OF_SUMS:
        return Accumulator(text, seed=seed, stream=stream)
    refuse_e4m3(key, text)
    return Cast(text, seed=seed, stream=stream)


def _recipe(value: Any, make: type[RecipeT], where: str) -> RecipeT | None:
    if value == NONE:
        return None
    if isinstance(value, str):
        try:
            return make.of(value)  # type: ignore[attr-defined,no-any-return]
        except ValueError as error:
            raise ValueError(f"{where.removesuffix('.')}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where.removesuffix('.')} must be a table of keys, got {shown(value)}")
    return from_dict(value, make, where)


def _rule(rule: Any, make: type[Any], where: str) -> tuple[str, Any]:
    _check_table(rule, {"layers", "recipe"}, where)
    return rule["layers"], _recipe(rule["recipe"], make, f"{where}recipe.")


def _phase(phase: Any, make: type[Any], where: str) -> tuple[str, int, Any]:
    unit = "epoch" if isinstance(phase, dict) and "epoch" in phase else "step"
    _check_table(phase, {unit, "recipe"}, where)
    return unit, phase[unit], _recipe(phase["recipe"], make, f"{where}recipe.")


def _check_table(value: Any, keys: set[str], where: str) -> None:
    if not isinstance(value, dict) or set(value) != keys:
        raise ValueError(
            f"{where.removesuffix('.')} must be a table of {' and '.join(sorted(keys))}, "
            f"got {shown(value)}"
        )


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {shown(value)}")
    return value


def _nearest(key: str, keys: list[str]) -> str:
    return f"; {did_you_mean(key, keys) or 'there are ' + ', '.join(keys)}"
