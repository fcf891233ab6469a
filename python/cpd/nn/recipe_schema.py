# SPDX-License-Identifier: Apache-2.0
"""A JSON schema of recipes' files: `schema`."""

from __future__ import annotations

import inspect
import re
from typing import Any

from cpd import _core
from cpd.nn.recipe import OPERANDS, OVERRIDES, ROUNDED, SUMS, Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT: dict[str, Any] = {"type": "string"}
_RECIPE = {"$ref": "#/$defs/recipe"}
_NESTED = {"$ref": "#/$defs/nested"}
_FROM = {"type": "integer", "minimum": 0}


def schema() -> dict[str, Any]:
    """Returns a JSON schema (draft 2020-12) of the files and plain data that `Recipe` takes.

    It has keys, types and bounds. The meaning of the texts of formats and accumulators is not
    checked.

    >>> list(schema()["$defs"]["recipe"]["properties"])[:3]
    ['format', 'sums', 'forward']
    """
    about = _arguments(Recipe)
    keys = _keys()
    properties = {key: {"description": about.get(key, ""), **of} for key, of in keys.items()}
    return {
        "$schema": DIALECT,
        "title": "A recipe of CPD: how a model computes",
        "$ref": "#/$defs/recipe",
        "$defs": {
            "recipe": {
                "type": "object",
                "properties": properties,
                "additionalProperties": False,
            },
            "nested": {"anyOf": [_TEXT, _RECIPE]},
        },
    }


def _keys() -> dict[str, dict[str, Any]]:
    """The schema of each key's value, in the order of a recipe's arguments."""
    specs = ("format", *SUMS, *OPERANDS, *OVERRIDES, "output", *ROUNDED)
    schedule = [_object(step=_FROM, recipe=_NESTED), _object(epoch=_FROM, recipe=_NESTED)]
    rules = {"type": "array", "items": _object(layers=_TEXT, recipe=_NESTED)}
    of: dict[str, dict[str, Any]] = {
        **dict.fromkeys(specs, _TEXT),
        **dict.fromkeys(("optimizer", "reduce", "source"), _TEXT),
        "sums": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 3, "maxItems": 4}]},
        "attention": _NESTED,
        "loss_scale": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "dynamic"}]},
        "rules": {"anyOf": [rules, {"type": "object", "additionalProperties": _NESTED}]},
        "schedule": {"type": "array", "items": {"anyOf": schedule}},
        "scales_at": {"enum": list(_core.SCALES_AT)},
    }
    names = [name for name in inspect.signature(Recipe).parameters if name in of]
    return {name: of[name] for name in names}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object of these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _arguments(documented: type) -> dict[str, str]:
    """Returns the text of each name in a docstring's section `Args`, in one line."""
    text = inspect.getdoc(documented) or ""
    section = text.partition("\nArgs:\n")[2].partition("\n\nRaises:")[0]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", "\n" + section):
        names, colon, rest = entry.strip().partition(":")
        if colon:
            found |= dict.fromkeys(re.split(r", ", names), " ".join(rest.split()))
    return found
