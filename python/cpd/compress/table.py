# SPDX-License-Identifier: Apache-2.0
"""`compressors`: the names of all compressors, with rule, source and options."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from cpd import _core


@functools.cache
def compressors() -> dict[str, Mapping[str, str]]:
    """Returns the dict that `Codec.named` documents."""
    return {
        name: {"summary": summary, "source": source, "evidence": "literature", "options": options}
        for name, options, source, summary in _core.compressors()
    }


def is_compressor(text: str) -> bool:
    """Returns whether a text begins with the name of a compressor."""
    return text.partition(" ")[0] in compressors()
