# SPDX-License-Identifier: Apache-2.0
"""The table of compressors."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cpd import _core


@dataclass(frozen=True)
class Compressor:
    """A row of the table of compressors.

    Attributes:
        name: the first word of its texts.
        options: the options, as written after the name.
        source: the paper and section, or the implementation, that defines the rule.
        summary: the rule in words.
    """

    name: str
    options: str
    source: str
    summary: str


@functools.cache
def compressors() -> tuple[Compressor, ...]:
    """Returns every compressor: its name, its options, its source and a summary."""
    return tuple(Compressor(*row) for row in _core.compressors())


def is_compressor(text: str) -> bool:
    """Returns whether a text begins with the name of a compressor."""
    return text.partition(" ")[0] in _names()


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(one.name for one in compressors())
