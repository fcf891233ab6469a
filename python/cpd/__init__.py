# SPDX-License-Identifier: Apache-2.0
"""CPD: floating point in customized precision, exactly rounded.

>>> import cpd, numpy as np
>>> cpd.cast(np.float32([0.3, 17.0]), "e4m3").tolist()
[0.3125, 16.0]

`cpd.functional` and `cpd.nn`, torch's layers in a customized precision, import torch: they are
loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd import study
from cpd._core import __version__, backend
from cpd.accumulator import Accumulator, BlockFma, PresetInfo, presets
from cpd.formats import Format, format
from cpd.ops import add, cast, decode, encode, fma, gemm, mul, random_integers, sum
from cpd.recipes import CastSpec, Recipe
from cpd.reduce import LayerReport, ReduceSpec, simulate_all_reduce

if TYPE_CHECKING:
    from . import functional as functional
    from . import nn as nn

__all__ = [
    "Accumulator",
    "BlockFma",
    "CastSpec",
    "Format",
    "LayerReport",
    "PresetInfo",
    "Recipe",
    "ReduceSpec",
    "__version__",
    "add",
    "backend",
    "cast",
    "decode",
    "encode",
    "fma",
    "format",
    "gemm",
    "mul",
    "presets",
    "random_integers",
    "simulate_all_reduce",
    "study",
    "sum",
]


def __getattr__(name: str) -> Any:
    if name in ("functional", "nn"):
        return importlib.import_module(f"cpd.{name}")
    raise AttributeError(f"module 'cpd' has no attribute {name!r}")
