# SPDX-License-Identifier: Apache-2.0
"""Plain JSON as the dataclass that it was: every value is of the type that the field has."""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def read_as(kind: type[T], value: Any, where: str) -> T:
    """`value`, which asdict and JSON made of a `kind`, as that again.

    A float may be an int, or null, which is one that was not finite. Raises
    ValueError, naming the place, where a value is of another type, or a field is missing or not
    known.
    """
    made: T = _read(kind, value, where)
    return made


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, where)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [_read(parts[0], v, f"{where}[{i}]") for i, v in enumerate(_of(list, value, where))]
    if origin is dict:
        return {k: _read(parts[1], v, f"{where}.{k}") for k, v in _of(dict, value, where).items()}
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in parts:
            return None
        fitting = [part for part in parts if part is not types.NoneType and _fits(part, value)]
        return _read(fitting[0] if fitting else parts[0], value, where)
    if kind is Any:
        return value
    if kind is float:
        return _read_float(value, where)
    return _of(kind, value, where)


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    fields = _of(dict, value, where)
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}
    for name in fields:
        if name not in known:
            raise ValueError(f"{where} has no {name!r}")
    for name, field in known.items():
        optional = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if name not in fields and not optional:
            raise ValueError(f"{where} lacks {name!r}")
    return kind(**{name: _read(hints[name], v, f"{where}.{name}") for name, v in fields.items()})


def _read_float(value: Any, where: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where} must be a number, got {_named(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where} is beyond binary64") from None


def _of(kind: type, value: Any, where: str) -> Any:
    if not _fits(kind, value):
        names = {list: "a list", dict: "an object", str: "a text", int: "an integer"}
        raise ValueError(f"{where} must be {names.get(kind, kind.__name__)}, got {_named(value)}")
    return value


def _fits(kind: Any, value: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _named(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"
