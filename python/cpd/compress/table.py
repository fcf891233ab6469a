# SPDX-License-Identifier: Apache-2.0
"""The table of compressors."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from cpd import _core


@functools.cache
def compressors() -> dict[str, Mapping[str, str]]:
    """Returns what `Codec.named` returns."""
    return {
        name: {"summary": summary, "source": source, "evidence": "literature", "options": options}
        for name, options, source, summary in _core.compressors()
    }


def is_compressor(text: str) -> bool:
    """Returns whether a text begins with the name of a compressor."""
    return text.partition(" ")[0] in compressors()
