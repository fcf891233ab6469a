# SPDX-License-Identifier: Apache-2.0
"""Calls operations with rounding options given as keywords, because the oracles and the tables of
cases use keywords. The keywords are moved into a `cpd.Cast`, which the operation takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cpd

PLACE = {"cast": 1, "encode": 1, "sqrt": 1, "add": 2, "mul": 2, "div": 2, "fma": 3}
"""The index of the format among an operation's arguments."""
KEYS = ("rounding", "overflow", "random_bits", "variant")


def with_cast(
    operation: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the operation's arguments and options, with a `cpd.Cast` in place of the format. The
    `cpd.Cast` has the format, the rounding and the overflow. The last two may be keywords or
    positional arguments after the format."""
    place = PLACE.get(getattr(operation, "__name__", ""), len(args))
    moved = dict(zip(KEYS, args[place + 1 :], strict=False))
    moved |= {key: options[key] for key in KEYS if key in options}
    if not moved or place >= len(args) or getattr(cpd, operation.__name__, None) is not operation:
        return tuple(args), dict(options)
    others = {key: value for key, value in options.items() if key not in moved}
    return (*args[:place], cpd.Cast(args[place], **moved)), others


def by_keywords(operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls an operation of cpd. Moves rounding options given as keywords into a `cpd.Cast`."""
    args, options = with_cast(operation, args, options)
    return operation(*args, **options)
