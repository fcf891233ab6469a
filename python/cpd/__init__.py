# SPDX-License-Identifier: Apache-2.0
"""CPD: floating point in customized precision, exactly rounded.

>>> import cpd, numpy as np
>>> cpd.cast(np.float32([0.3, 17.0]), "e4m3").tolist()
[0.3125, 16.0]

Loaded when they are first used: `cpd.comm` (reductions over real ranks) and, importing torch,
`cpd.functional` and `cpd.nn` (torch's layers in a customized precision), `cpd.ddp_hook` and
`cpd.fsdp` (torch's data parallelism).
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd import loading, study
from cpd._core import __version__, backend
from cpd.accumulator import Accumulator, BlockFma, PresetInfo, presets
from cpd.formats import Format, format
from cpd.ops import add, cast, decode, encode, fma, gemm, mul, random_integers, sum
from cpd.recipes import CastSpec, Recipe
from cpd.reduce import LayerReport, ReduceSpec, StallWarning, simulate_all_reduce
from cpd.schedule import Schedule

if TYPE_CHECKING:
    from . import comm as comm
    from . import fsdp as fsdp
    from . import functional as functional
    from . import nn as nn
    from .ddp import ddp_hook as ddp_hook

__all__ = [
    "Accumulator",
    "BlockFma",
    "CastSpec",
    "Format",
    "LayerReport",
    "PresetInfo",
    "Recipe",
    "ReduceSpec",
    "Schedule",
    "StallWarning",
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


loading.tell_torch()


def __getattr__(name: str) -> Any:
    if name in ("comm", "fsdp", "functional", "nn"):
        return importlib.import_module(f"cpd.{name}")
    if name == "ddp_hook":
        return importlib.import_module("cpd.ddp").ddp_hook
    raise AttributeError(f"module 'cpd' has no attribute {name!r}")
