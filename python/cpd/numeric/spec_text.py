# SPDX-License-Identifier: Apache-2.0
"""Splits the text of a spec that contains other specs: a head, then `name=value` pairs."""

from __future__ import annotations

import re
import shlex

from cpd.numeric.compiling import constant
from cpd.numeric.shown import shown


@constant
def head_and_keys(text: str, keys: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Splits a text into a dict with the values of `keys`, and a head with all other words.

    A value of several words is in quotes, as in a shell. Raises ValueError for a key that is given
    twice, and for a quote that is not closed.

    >>> head_and_keys("int8 row weight='mxfp8 rule=rceil'", ("weight",))
    ('int8 row', {'weight': 'mxfp8 rule=rceil'})
    """
    head: list[str] = []
    values: dict[str, str] = {}
    for word in _words(text):
        name, equals, value = word.partition("=")
        if not equals or name not in keys:
            head.append(word)
        elif name in values:
            raise ValueError(f"{name} is given twice in {shown(text)}")
        else:
            values[name] = value
    return " ".join(head), values


def items(text: str) -> list[list[str]]:
    """Splits a list at its commas outside quotes, and returns the words of each item.

    >>> items("'last 15%' bf16, *.head none")
    [['last 15%', 'bf16'], ['*.head', 'none']]
    """
    parts: list[list[str]] = [[]]
    for word in _words(text, ","):
        if word == ",":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def quoted(text: str) -> str:
    """Returns a text as a value in another text: with quotes if needed.

    Quotes are needed for an empty text, spaces, commas, quotes and backslashes.
    """
    if re.fullmatch(r"[^\s'\"\\,]+", text):
        return text
    if "'" not in text:
        return f"'{text}'"
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _words(text: str, separators: str = "") -> list[str]:
    reader = shlex.shlex(text, posix=True, punctuation_chars=separators)
    reader.whitespace_split, reader.commenters = True, ""
    try:
        return list(reader)
    except ValueError:
        raise ValueError(f"a quote is not closed in {shown(text)}") from None
