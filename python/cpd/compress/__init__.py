# SPDX-License-Identifier: Apache-2.0
"""Compressors: codecs of an all-reduce's messages, also for use on their own.

`codec(text)` makes a codec: a compressor of `compressors()` with its options, or a format.
`qsgd(…)` and the other functions write the text. A codec is an argument of `ReduceSpec(wire=…)`,
and also encodes and decodes a single tensor. `States` holds what codecs keep between calls.

>>> import numpy as np
>>> packet = codec("e2m1").encode(np.float32([0.3, 1.0, -2.0]))
>>> packet.values.tolist(), packet.bits_a_value
([0.5, 1.0, -2.0], 5.333333333333333)
>>> decode(packet.data).tolist()
[0.5, 1.0, -2.0]
"""

from cpd.compress.codec import Codec, CodecLike, Packet, codec, decode
from cpd.compress.makers import (
    blockwise,
    feedback,
    fp8_rows,
    int4,
    int8_rows,
    one_bit,
    qsgd,
    quantized,
    terngrad,
    top_k,
    uniform,
)
from cpd.compress.states import States
from cpd.compress.table import Compressor, compressors

__all__ = [
    "Codec",
    "CodecLike",
    "Compressor",
    "Packet",
    "States",
    "blockwise",
    "codec",
    "compressors",
    "decode",
    "feedback",
    "fp8_rows",
    "int4",
    "int8_rows",
    "one_bit",
    "qsgd",
    "quantized",
    "terngrad",
    "top_k",
    "uniform",
]
