# SPDX-License-Identifier: Apache-2.0
"""What specs have in common: each is one native object, made and checked once, whose fields are
shown as attributes, so that compiled programs see plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

SpecT = TypeVar("SpecT")

faces: dict[type, Callable[[Any], Any]] = {}
"""What gives the Python face of a native type."""


def showing(spec: type[SpecT], held: Any) -> SpecT:
    """The `spec` that is a native object; seed and stream, which Python keeps, are 0."""
    made = object.__new__(spec)
    take(made, held, seed=0, stream=0)
    return made


def take(spec: Any, held: Any, **others: Any) -> None:
    """Gives `spec` its native object and the fields that it has, but for `others`."""
    others["_held"] = held
    for name in spec.__dataclass_fields__:
        value = others[name] if name in others else _face(getattr(held, name))
        object.__setattr__(spec, name, value)


def _face(value: Any) -> Any:
    face = faces.get(type(value))
    return value if face is None else face(value)


def share(spec: Any, like: Any, **others: Any) -> None:
    """Gives `spec` what `like` has, but for `others`."""
    put = object.__setattr__
    for name in spec.__dataclass_fields__:
        if name not in others:
            put(spec, name, getattr(like, name))
    for name, value in others.items():
        put(spec, name, value)


def arguments(spec: Any) -> dict[str, Any]:
    """Those that make the same spec: what is pickled of it."""
    return {one.name: getattr(spec, one.name) for one in fields(spec) if one.init}
