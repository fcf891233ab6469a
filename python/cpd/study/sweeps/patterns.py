# SPDX-License-Identifier: Apache-2.0
"""Expands patterns with sets of numbers in brackets, such as `e[2-5]m[1-3]`, to texts."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from typing import Any

from cpd.numeric.accumulator import Accumulator
from cpd.numeric.formats import as_format, format_text
from cpd.numeric.names import listed
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import shown

MOST = 10_000
"""The largest number of texts to which a pattern may expand."""

_SET = re.compile(r"\[([^\[\]]*)\]")
_KIND = re.compile(r"^(e\d+m\d+):(ieee|finite)(?=:|$)")
"""Matches a format with an encoding after a colon: e2m1:ieee means the format e2m1ieee."""
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


def expand(pattern: str) -> list[str]:
    """Returns all texts to which a pattern expands; the last set of numbers varies fastest.

    A set in brackets has integers and ranges such as `2-5`, separated by commas.

    Raises ValueError if a pattern is malformed or expands to more than `MOST` texts.

    >>> expand("e[2-3]m[1,3]")
    ['e2m1', 'e2m3', 'e3m1', 'e3m3']
    >>> expand("mxfp4")
    ['mxfp4']
    """
    parts = _SET.split(pattern)
    words, sets = parts[::2], [_integers(pattern, text) for text in parts[1::2]]
    if any(bracket in word for word in words for bracket in "[]"):
        raise ValueError(f"pattern {shown(pattern)}: a bracket is not closed, or not opened")
    count = 1
    for numbers in sets:
        count *= len(numbers)
    if count > MOST:
        raise ValueError(f"pattern {shown(pattern)} gives {count} texts, at most {MOST} are taken")
    return [
        words[0] + "".join(f"{n}{word}" for n, word in zip(chosen, words[1:], strict=True))
        for chosen in itertools.product(*sets)
    ]


def _integers(pattern: str, text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"pattern {shown(pattern)}: {shown(f'[{text}]')} must hold integers or ranges of "
                "them, as [2-5] "
                "or [1,3]"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"pattern {shown(pattern)}: the range {part.strip()} runs down")
        numbers += range(first, last + 1)
    return list(dict.fromkeys(numbers))


def texts(what: str, given: Any) -> list[str]:
    """Returns the texts to which an argument of `sweep`, one object or a list, expands.

    A text has patterns, separated by commas outside of brackets and parentheses. `:ieee` or
    `:finite` after a format such as e2m1 selects its encoding. Formats and other objects are
    replaced by their names. Raises ValueError or TypeError for an invalid argument, named `what` in
    the error.

    >>> texts("formats", "e[2-3]m1, (4,3)")
    ['e2m1', 'e3m1', '(4,3)']
    >>> texts("formats", "e2m[1-2]:ieee")
    ['e2m1ieee', 'e2m2ieee']
    """
    names: list[str] = []
    for value in _each(given):
        if not isinstance(value, str):
            names.append(_text(what, value))
            continue
        for pattern in listed(value):
            if not pattern.strip():
                raise ValueError(f"{what}: a name is missing in {shown(value)}")
            if pattern.count("(") != pattern.count(")"):
                raise ValueError(
                    f"{what}: a parenthesis is not closed, or not opened, in {shown(value)}"
                )
            names += (_KIND.sub(r"\1\2", text) for text in expand(pattern.strip()))
    if not names:
        raise ValueError(f"{what} must name at least one, got none")
    return list(dict.fromkeys(names))


def _each(values: Any) -> Iterable[Any]:
    several = isinstance(values, Iterable) and not isinstance(values, str)
    pair = isinstance(values, tuple) and all(type(part) is int for part in values)
    return values if several and not pair else (values,)


def _text(what: str, value: Any) -> str:
    """Returns the text that names a format, a scaled format, an accumulator or a dtype."""
    return value.text if isinstance(value, Scaled | Accumulator) else format_text(what, value)


def mixed(given: Any) -> list[str]:
    """Returns a warning for each pattern that expands to formats with different encodings.

    >>> mixed("e2m[1-2]")
    ['e2m[1-2] mixes encodings: finite e2m1; ieee e2m2; e2m[1-2]:ieee and :finite have one']
    """
    notes = []
    for pattern in listed(given) if isinstance(given, str) else ():
        kinds: dict[str, list[str]] = {}
        for name in expand(pattern.strip()) if "[" in pattern else ():
            with contextlib.suppress(ValueError):
                kinds.setdefault(as_format(name).encoding, []).append(name)
        if len(kinds) > 1:
            told = "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items())
            clean = pattern.strip()
            notes.append(f"{clean} mixes encodings: {told}; {clean}:ieee and :finite have one")
    return notes
