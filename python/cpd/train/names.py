# SPDX-License-Identifier: Apache-2.0
"""Errors for wrong names: `checked_name`."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from cpd.numeric.shown import shown


def checked_name(what: str, name: object, allowed: Iterable[str]) -> str:
    """`name`, if it is allowed. Raises ValueError, which names the nearest one and all of them.

    >>> checked_name("optimizer", "adm", ["sgd", "adam"])
    Traceback (most recent call last):
    ValueError: optimizer must be one of sgd, adam, got 'adm' (did you mean adam?)
    """
    known = list(allowed)
    if isinstance(name, str) and name in known:
        return name
    near = get_close_matches(name.lower(), known, n=1) if isinstance(name, str) else []
    if isinstance(name, str) and not near:
        near = [one for one in known if one.lower() == name.lower()]
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(f"{what} must be one of {', '.join(known)}, got {shown(name)}{hint}")
