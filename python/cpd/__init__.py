# SPDX-License-Identifier: Apache-2.0
"""CPD: floating point in customized precision, exactly rounded.

>>> import cpd, numpy as np
>>> cpd.cast(np.float32([0.3, 17.0]), "e4m3").tolist()
[0.3125, 16.0]
"""

from cpd import study
from cpd._core import __version__, backend
from cpd.accumulator import Accumulator
from cpd.formats import Format, format
from cpd.ops import add, cast, decode, encode, fma, mul, random_integers, sum
from cpd.reduce import LayerReport, ReduceSpec, simulate_all_reduce

__all__ = [
    "Accumulator",
    "Format",
    "LayerReport",
    "ReduceSpec",
    "__version__",
    "add",
    "backend",
    "cast",
    "decode",
    "encode",
    "fma",
    "format",
    "mul",
    "random_integers",
    "simulate_all_reduce",
    "study",
    "sum",
]
