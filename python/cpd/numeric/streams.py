# SPDX-License-Identifier: Apache-2.0
"""Numbers the random streams of a layer's roundings, as cpd/numeric/draws/streams.h documents."""

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose

MAX_LAYERS = _core.MAX_LAYERS

_LAYER = _core.stream_tag("given", 1)


@constant
def _purpose_tag(purpose: str) -> int:
    """Returns the 64-bit tag of a purpose as a signed number, because torch has only int64."""
    tag = _core.stream_tag(purpose)
    return tag - 2**64 if tag >= 2**63 else tag


def stream_tag(purpose: Purpose, layer: int = 0) -> int:
    """Returns the tag that is XORed into the stream of a layer's rounding.

    The tag is a 64-bit number, signed for torch's int64. `layer` is 0…MAX_LAYERS - 1. In a compiled
    program, `layer` may be a variable.
    """
    return _purpose_tag(purpose.name) ^ layer * _LAYER
