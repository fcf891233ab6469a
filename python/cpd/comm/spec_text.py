# SPDX-License-Identifier: Apache-2.0
"""Texts of all-reduces: `reduce_spec`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from cpd import _core
from cpd.comm.spec import ReduceSpec
from cpd.compress import table
from cpd.numeric.shown import shown

_SWITCHES: dict[str, Any] = {"true": True, "false": False}
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "accumulator": str,
    "order": str,
    "exchange": str,
    "group_size": int,
    "aps": lambda value: value if value == "paper" else _SWITCHES[value],
    "loss_scale": float,
    "average": _SWITCHES.__getitem__,
    "divide": str,
    "rounding": str,
    "overflow": str,
    "seed": int,
    "random_bits": int,
    "variant": str,
    "result": str,
    "step": int,
}


def reduce_spec(given: ReduceSpec | str) -> ReduceSpec:
    """Returns the all-reduce of a text, or `given` itself.

    A text has the format or codec, and `ReduceSpec`'s arguments, each as name=value, values of
    several words in quotes. `aps` and `average` alone are switched on. Other words are the codec's.

    Args:
        given: a `ReduceSpec`, or a text such as `"e4m3 aps group_size=16"`.

    Returns:
        The spec.

    Raises:
        ValueError: for an invalid text; it names the option.
        TypeError: for anything else.

    >>> spec = reduce_spec("e4m3 aps accumulator='e5m10 kahan' group_size=16")
    >>> spec.aps, spec.accumulator.text, spec.group_size
    (True, 'fp16 kahan', 16)
    >>> reduce_spec("mxfp8 exchange=gather").exchange
    'gather'
    """
    if isinstance(given, ReduceSpec):
        return given
    if not isinstance(given, str):
        raise TypeError(f"an all-reduce must be a cpd.ReduceSpec or its text, got {shown(given)}")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"{shown(given)} is no all-reduce: {error}") from None
    ours = [word for word in words if word.partition("=")[0] in _OPTIONS]
    options: dict[str, Any] = {}
    for word in ours:
        name, is_valued, value = word.partition("=")
        if name in options:
            raise ValueError(f"{name} is given twice in {shown(given)}")
        options[name] = _value(name, value if is_valued else "true", given)
    wire = " ".join(word for word in words if word not in ours)
    if table.is_compressor(wire):
        return ReduceSpec(wire=wire, **options)
    return ReduceSpec(wire, **options)


def _value(name: str, value: str, text: str) -> Any:
    try:
        return _OPTIONS[name](value)
    except (KeyError, ValueError):
        raise ValueError(
            f"{_core.readable(f'{name}={value}')} is no value of {name}, in {shown(text)}"
        ) from None
