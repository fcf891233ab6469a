# SPDX-License-Identifier: Apache-2.0
"""Random streams of roundings: the library's table (cpd/numeric/draws/streams.h)."""

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose

MAX_LAYERS = _core.MAX_LAYERS

_LAYER = _core.stream_tag("given", 1)


@constant
def _purpose_tag(purpose: str) -> int:
    """Returns the tag of a purpose with a sign, as an int64 of torch has it."""
    tag = _core.stream_tag(purpose)
    return tag - 2**64 if tag >= 2**63 else tag


def stream_tag(purpose: Purpose, layer: int = 0) -> int:
    """Returns the number XORed into a layer's streams: 64 bits, signed as torch's int64.

    `layer` is 0…MAX_LAYERS - 1; a compiled program may have it for a variable.
    """
    return _purpose_tag(purpose.name) ^ layer * _LAYER
