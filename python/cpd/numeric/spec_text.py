# SPDX-License-Identifier: Apache-2.0
"""The text of a spec that has specs within: a head, and `name=value` with quoted values."""

from __future__ import annotations

import re
import shlex

from cpd.numeric.compiling import constant
from cpd.numeric.shown import shown


@constant
def head_and_keys(text: str, keys: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Returns the words of a text that are not keys, and the values of its `keys`.

    Quotes hold words together, as in a shell. Raises ValueError for a key given twice, and for a
    quote that is not closed.

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
    """Returns the words of each item of a list, which commas outside quotes separate.

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
    """Returns a text as a value within another one: in quotes where it has more than a word."""
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
