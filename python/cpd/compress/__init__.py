# SPDX-License-Identifier: Apache-2.0
"""Compressors: codecs that encode the messages of an all-reduce, or single tensors.

`cpd.Codec` documents the names and options of codecs. A codec is an argument of `cpd.Reduce`. Its
methods `encode` and `decode` convert single tensors. `States` stores the codec's state, such as
residuals, between calls.

>>> import numpy as np
>>> from cpd.compress.codecs import Codec
>>> packet = Codec("e2m1").encode(np.float32([0.3, 1.0, -2.0]))
>>> packet.values.tolist(), packet.bits_a_value
([0.5, 1.0, -2.0], 5.333333333333333)
>>> Packet.from_bytes(packet.data).values.tolist()
[0.5, 1.0, -2.0]
"""

from cpd._lazy import attach
from cpd._since import keep_modules
from cpd.compress.codecs import Packet
from cpd.compress.states import States

__all__ = ["Packet", "States"]

keep_modules("cpd.compress")

attach(__name__)
