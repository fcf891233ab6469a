# SPDX-License-Identifier: Apache-2.0
"""Splits lists of names, and suggests known names in errors for unknown names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cpd.numeric.shown import shown


def listed(text: str) -> list[str]:
    """Splits a text at its commas, except for commas in brackets of any kind and in quotes.

    >>> listed("(4,3), fixed<32,12>,e[2,3]m4")
    ['(4,3)', 'fixed<32,12>', 'e[2,3]m4']
    >>> listed("e4m3 result='(5,2)', fp32")
    ["e4m3 result='(5,2)'", 'fp32']
    """
    words = [""]
    for part in _PARTS.findall(text):
        if part == ",":
            words.append("")
        else:
            words[-1] += part
    return [word.strip() for word in words]


_PARTS = re.compile(r"""'[^']*'|"[^"]*"|\([^)]*\)|\[[^\]]*\]|<[^>]*>|.""", re.S)


def checked_name(what: str, name: object, allowed: Iterable[str]) -> str:
    """Returns `name` if it is one of the allowed names.

    Otherwise raises ValueError, whose text has the nearest allowed name and all allowed names.
    `what` names the argument.

    >>> checked_name("optimizer", "adm", ["sgd", "adam"])
    Traceback (most recent call last):
    ValueError: optimizer must be one of sgd, adam, got 'adm' (did you mean adam?)
    """
    known = list(allowed)
    if isinstance(name, str) and name in known:
        return name
    hint = did_you_mean(name, known)
    raise ValueError(
        f"{what} must be one of {', '.join(known)}, got {shown(name)}{hint and f' ({hint})'}"
    )


def nearest(name: object, known: Iterable[str]) -> str:
    """Returns the end of an error text: the known name nearest to `name`, or else all known names.

    >>> nearest("adm", ["sgd", "adam"]), nearest("lion", ["sgd", "adam"])
    ('; did you mean adam?', '; there are sgd, adam')
    """
    names = list(known)
    return f"; {did_you_mean(name, names) or 'there are ' + ', '.join(names)}"


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns 'did you mean x?' for the known name x nearest to `name`, ignoring letter case.

    Known names that begin with `name` count as nearest. Returns '' if no known name is near.

    >>> did_you_mean("Adm", ["sgd", "adam"]), did_you_mean("lion", ["sgd", "adam"])
    ('did you mean adam?', '')
    """
    if not isinstance(name, str):
        return ""
    from difflib import get_close_matches  # imported here because the import takes a millisecond

    lower = {candidate.lower(): candidate for candidate in known}
    longer = [text for text in lower if len(name) > 2 and text.startswith(name.lower())]
    near = get_close_matches(name.lower(), longer or lower, n=1, cutoff=0 if longer else cutoff)
    return f"did you mean {lower[near[0]]}?" if near else ""
