# SPDX-License-Identifier: Apache-2.0
"""Compressors: codecs of an all-reduce's messages, also for use on their own.

`cpd.Codec` has their texts and options. A codec is an argument of `ReduceSpec(wire=…)`, and encodes
and decodes a layer on its own. What it keeps between calls is in `States`.

>>> import numpy as np
>>> packet = Codec("e2m1").encode(np.float32([0.3, 1.0, -2.0]))
>>> packet.values.tolist(), packet.bits_a_value
([0.5, 1.0, -2.0], 5.333333333333333)
>>> decode(packet.data).tolist()
[0.5, 1.0, -2.0]
"""

import sys
from typing import Any

from cpd.compress import codecs
from cpd.compress.codecs import Codec, CodecLike, Packet, decode
from cpd.compress.states import States
from cpd.compress.table import Compressor, compressors, is_compressor

__all__ = ["Codec", "CodecLike", "Compressor", "Packet", "States", "compressors", "decode"]

sys.modules["cpd.compress.codec"] = codecs  # as pickles of 0.7 name the module


def __getattr__(name: str) -> Any:
    if name == "codec":
        raise AttributeError("cpd.compress.codec is gone: use cpd.Codec(…)")
    if is_compressor(name):
        raise AttributeError(f'cpd.compress.{name} is gone: use cpd.Codec("{name}", …)')
    raise AttributeError(f"module 'cpd.compress' has no attribute {name!r}")
