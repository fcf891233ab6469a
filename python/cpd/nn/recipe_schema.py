# SPDX-License-Identifier: Apache-2.0
"""`schema`: a JSON schema of recipe files."""

from __future__ import annotations

import re
from inspect import getdoc, signature
from typing import Any

from cpd import _core
from cpd.nn.recipe import Recipe
from cpd.nn.recipe_files import KEYS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TEXT: dict[str, Any] = {"type": "string"}
_NESTED = {"$ref": "#/$defs/nested"}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema of an object that has exactly these keys."""
    keys = {"properties": properties, "required": list(properties)}
    return {"type": "object", **keys, "additionalProperties": False}


_START = {"type": "integer", "minimum": 0}
_PHASES = [_object(step=_START, recipe=_NESTED), _object(epoch=_START, recipe=_NESTED)]
_RULES = {"type": "array", "items": _object(layers=_TEXT, recipe=_NESTED)}
_SEVERAL = {"type": "array", "items": _TEXT, "minItems": 3, "maxItems": 4}
_VALUES: dict[str, dict[str, Any]] = {
    "sums": {"anyOf": [_TEXT, _SEVERAL]},
    "recipe": _NESTED,
    "loss_scale": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "dynamic"}]},
    "rules": {"anyOf": [_RULES, {"type": "object", "additionalProperties": _NESTED}]},
    "schedule": {"type": "array", "items": {"anyOf": _PHASES}},
    "word": {"enum": list(_core.SCALES_AT)},
}
"""Maps a kind of key to the JSON schema of the key's value. `KEYS` gives the kind of each key. If
this dict lacks the kind, the value must be a text."""


def schema() -> dict[str, Any]:
    """Returns a JSON schema (draft 2020-12) of the files and plain data that `Recipe` takes.

    The schema checks keys, types and bounds. It does not check the texts of formats and
    accumulators.

    >>> list(schema()["$defs"]["recipe"]["properties"])[:3]
    ['format', 'sums', 'forward']
    """
    about = _arguments(Recipe)
    values = {key: _VALUES.get(KEYS.get(key, ""), _TEXT) for key in signature(Recipe).parameters}
    properties = {key: {"description": about[key], **value} for key, value in values.items()}
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
            "nested": {"anyOf": [_TEXT, {"$ref": "#/$defs/recipe"}]},
        },
    }


def _arguments(documented: type) -> dict[str, str]:
    """Returns the description of each argument in a docstring's section `Args`, as one line."""
    text = getdoc(documented) or ""
    section = text.partition("\nArgs:\n")[2].partition("\n\nRaises:")[0]
    descriptions: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", "\n" + section):
        names, colon, rest = entry.strip().partition(":")
        if colon:
            descriptions |= dict.fromkeys(re.split(r", ", names), " ".join(rest.split()))
    return descriptions
