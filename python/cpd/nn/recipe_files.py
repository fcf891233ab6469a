# SPDX-License-Identifier: Apache-2.0
"""Reads and writes recipes as texts, files and plain data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cpd import _core
from cpd.nn.recipe_arguments import NATIVE, NONE, names_cast
from cpd.nn.recipe_parts import OVERRIDES, SUMS, is_native
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast, operand_text
from cpd.numeric.names import did_you_mean
from cpd.numeric.shown import shown
from cpd.numeric.spec import Spec
from cpd.numeric.spec_text import head_and_keys, quoted

KEYS: dict[str, str] = {
    **_core.Recipe.keys(),
    "attention": "recipe",
    "optimizer": "words",
    "reduce": "reduce",
    "loss_scale": "loss_scale",
    "rules": "rules",
    "schedule": "schedule",
    "source": "words",
}
"""The keys of a recipe's text, each with the kind of its values.

In files, the first argument of `Recipe` is the value of the key `format`. A text begins with this
argument, without a key.
"""


# ---- keys ----------------------------------------------------------------------------------------


def keys_of(given: Any) -> dict[str, Any] | None:
    """Returns the keys and values in a text, a file or plain data.

    The words of a text before its first key are the value of the key `format`. Returns None for a
    text without keys (a format or a name). Raises ValueError for unknown keys.
    """
    if isinstance(given, dict):
        return _known(given)
    if is_file(given):
        return _of_file(Path(given))
    if not isinstance(given, str):
        return None
    if ";" in given:
        _core.Recipe.parse(given)  # which raises with the text as it is written now
    if "=" not in given:
        return None
    head, keys = head_and_keys(given, (*KEYS, *_GONE))
    for name, equals, _ in (word.partition("=") for word in head.split()):
        is_missed = did_you_mean(name, KEYS, 0.8) and not names_cast(head)
        if equals and (head.startswith(f"{NATIVE} ") or is_missed):
            keys[name] = ""  # unknown: the caller raises
    return _known({"format": head or NATIVE} | keys) if keys else None


def is_file(given: Any) -> bool:
    """Returns True if a recipe's first argument is a file's path."""
    if isinstance(given, str):
        return given.endswith((".toml", ".json")) and not _KEY.search(given)
    return isinstance(given, os.PathLike)


_KEY = re.compile(rf"(^|\s)({'|'.join(KEYS)})=")


def _of_file(path: Path) -> dict[str, Any]:
    kind = path.suffix.removeprefix(".").upper()
    if kind not in ("TOML", "JSON"):
        raise ValueError("a recipe's file must end in .toml or .json")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    try:
        data = _loads(kind)(text)
    except RecursionError:
        raise ValueError(f"the recipe's {kind} is nested too deeply") from None
    except ValueError as error:  # of JSON and TOML, and of ints with too many digits
        told = _core.readable(str(error))
        raise ValueError(f"the recipe is not valid {kind}: {told}") from None
    if not isinstance(data, dict):
        raise ValueError(f"the recipe's {kind} must be a table of keys, got {shown(data)}")
    return _known(data)


def _loads(kind: str) -> Callable[[str], Any]:
    if kind == "JSON":
        import json  # like tomllib, not imported with cpd, which takes time

        return json.loads
    import tomllib

    return tomllib.loads


def _known(keys: dict[str, Any]) -> dict[str, Any]:
    refuse_gone(keys)
    known = ("format", *KEYS)
    for key in keys:
        if key not in known:
            near = did_you_mean(key, known) or f"there are {', '.join(known)}"
            raise ValueError(f"unknown key {shown(key)} of a recipe; {near}")
    return dict(keys)


# ---- keys of version 0.7 -------------------------------------------------------------------------

_GONE = ("wire", "update", "state")
_OF_CALLS = {
    "seed": "give it to the call, cpd.convert(…, seed=…)",
    "stream": "give it to the call, cpd.functional.linear(…, stream=…)",
    "layer": "cpd.convert numbers the layers; give other calls stream=stream ^ layer << 20",
}


def refuse_gone(keys: dict[str, Any], error: type[Exception] = ValueError) -> None:
    """Raises an error for keys of version 0.7. The message names the keys that replace them."""
    for name in keys.keys() & _OF_CALLS.keys():
        raise error(f"a recipe has no {name}: {_OF_CALLS[name]}")
    gone = [key for key in _GONE if key in keys]
    if gone:
        now = renewed({key: keys[key] for key in gone if keys[key] is not None})
        told = " ".join(f"{name}={quoted(str(value))}" for name, value in now.items())
        raise error(f"{' and '.join(gone)} of version 0.7: a recipe has {told or 'reduce='} now")


def renewed(keys: dict[str, Any]) -> dict[str, Any]:
    """Converts the keys of a recipe of version 0.7 to present keys."""
    now = {key: value for key, value in keys.items() if key not in _GONE}
    if keys.get("wire") is not None:
        now["reduce"] = keys["wire"]
    optimizer = [str(keys[key]) for key in ("update", "state") if keys.get(key) is not None]
    if optimizer:
        now["optimizer"] = _optimizer(" ".join(optimizer))
    if "rules" in keys:
        now["rules"] = tuple((_selector(selector), recipe) for selector, recipe in keys["rules"])
    return now


def _optimizer(text: str) -> str:
    """Converts a recipe's text `optimizer` of version 0.7: quotes formats that have options."""
    parts: list[str] = []
    for word in text.split():
        is_key = word.partition("=")[0] in OPTIMIZER
        if parts and not is_key and parts[-1].partition("=")[0] in OPTIMIZER[1:]:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    pairs = [part.partition("=") for part in parts]
    return " ".join(
        f"{name}={quoted(value)}" if name in OPTIMIZER else name + equals + value
        for name, equals, value in pairs
    )


OPTIMIZER = ("update", "master", "momentum", "second_moment", "gradient")
"""The keys in the text of a recipe's `optimizer`; the weights' format comes before the keys."""


def _selector(text: str) -> str:
    return f"type {text[5:].strip()}" if text.startswith("type:") else text


# ---- to plain data and texts ---------------------------------------------------------------------


def said(recipe: Any) -> dict[str, Any]:
    """Returns a recipe's arguments that differ from their defaults, `forward` first."""
    bias = recipe.forward if is_native(recipe.forward) else Accumulator("fp32")
    usual: dict[str, Any] = dict.fromkeys(SUMS, recipe.forward) | dict.fromkeys(OVERRIDES, "same")
    usual |= {"forward": None, "grad_bias": bias}
    usual |= {"rules": (), "schedule": (), "source": "", "scales_at": "operand"}
    parts = recipe._arguments.items()
    return {name: value for name, value in parts if value != usual.get(name)}


def to_dict(recipe: Any) -> dict[str, Any]:
    """Returns a recipe's arguments that differ from their defaults, as plain data.

    `cpd.Recipe` makes an equal recipe from the result, a dict of strings, numbers, dicts and lists.

    >>> from cpd import Recipe
    >>> to_dict(Recipe("native", weight="mxfp8", rules=[("*.head", None)]))
    {'forward': 'native', 'weight': 'mxfp8', 'rules': [{'layers': '*.head', 'recipe': 'none'}]}
    """
    parts = said(recipe)
    rules, schedule = parts.pop("rules", ()), parts.pop("schedule", ())
    data: dict[str, Any] = {name: _plain_data(name, value) for name, value in parts.items()}
    if rules:
        data["rules"] = [{"layers": s, "recipe": _nested(r)} for s, r in rules]
    if schedule:
        data["schedule"] = [{u: n, "recipe": _nested(r)} for u, n, r in schedule]
    return data


def text_of(recipe: Any, names: Mapping[str, str]) -> str:
    """Returns a recipe's canonical text, without its source.

    `names` maps texts to the names of recipes, which are used instead of these texts.
    """

    def within(inner: Any) -> str:
        return NONE if inner is None else text_of(inner, names)

    words = [recipe._kept.text]
    for name in ("optimizer", "reduce", "loss_scale"):
        if getattr(recipe, name) is not None:
            words.append(f"{name}={quoted(str(getattr(recipe, name)))}")
    if recipe.attention is not None:
        words.append(f"attention={quoted(within(recipe.attention))}")
    for name in ("rules", "schedule"):
        lists = [[*map(str, entry[:-1]), within(entry[-1])] for entry in getattr(recipe, name)]
        if lists:
            words.append(f"{name}={quoted(', '.join(' '.join(map(quoted, x)) for x in lists))}")
    text = " ".join(words)
    return names.get(text, text)


def _nested(recipe: Any) -> Any:
    return NONE if recipe is None else to_dict(recipe)


def _plain_data(name: str, value: Any) -> Any:
    if value is None:
        return NONE
    if name == "attention":
        return to_dict(value)
    if isinstance(value, Cast):
        return operand_text(value)
    return value.text if isinstance(value, Spec) else value
