# SPDX-License-Identifier: Apache-2.0
"""CPD: floating point in customized precision, exactly rounded.

>>> import cpd, numpy as np
>>> cpd.cast(np.float32([0.3, 17.0]), "e4m3").tolist()
[0.3125, 16.0]

These parts are loaded at their first use: `cpd.comm` (reductions over real ranks), `cpd.compress`
(encodings of messages), `cpd.study` (round-off and cost of reductions) and `cpd.hardware` (test
vectors for RTL, and cost in gates). The following parts also import torch: `cpd.functional` and
`cpd.nn` (torch's layers in a customized precision), `cpd.optim` (optimizers in a customized
precision, and workers that average every N steps), `cpd.ddp_hook`, `cpd.fsdp_hook` and
`cpd.VirtualNodes` (torch's data parallelism) and `cpd.track` (records of a training for
TensorBoard, Weights & Biases, Lightning and so on).
"""

from typing import TYPE_CHECKING

from cpd import _interpreter, loading  # noqa: F401 - _interpreter first: it may refuse
from cpd._core import __version__, backend
from cpd._lazy import attach, later
from cpd._since import keep_modules, refuse_moved
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast
from cpd.numeric.formats import Format
from cpd.numeric.scaled import Scaled
from cpd.numeric.warned import PrecisionWarning
from cpd.ops import (
    Encoded,
    add,
    cast,
    decode,
    div,
    encode,
    fma,
    gemm,
    hadamard,
    mul,
    random_integers,
    sqrt,
    sum,
)
from cpd.ops.device_memory import check_cuda, release_cuda_memory

if TYPE_CHECKING:
    from cpd import comm as comm
    from cpd import compat as compat
    from cpd import compress as compress
    from cpd import functional as functional
    from cpd import hardware as hardware
    from cpd import nn as nn
    from cpd import optim as optim
    from cpd import study as study
    from cpd import track as track
    from cpd.comm.schedule import Schedule
    from cpd.comm.spec import Reduce as Reduce
    from cpd.comm.virtual import simulate_all_reduce
    from cpd.compress.codecs import Codec as Codec
    from cpd.nn.autocast import autocast as autocast
    from cpd.nn.convert import convert as convert
    from cpd.nn.convert import plain_state_dict as plain_state_dict
    from cpd.nn.convert import restore as restore
    from cpd.nn.convert import set_step as set_step
    from cpd.nn.coverage import Coverage as Coverage
    from cpd.nn.observers import observe as observe
    from cpd.nn.quantizers import quantizer as quantizer
    from cpd.nn.recipe import Recipe as Recipe
    from cpd.ops.explain import Explanation as Explanation
    from cpd.ops.explain import explain as explain
    from cpd.parallel.ddp import ddp_hook as ddp_hook
    from cpd.parallel.fsdp import fsdp_hook as fsdp_hook
    from cpd.parallel.virtual_nodes import VirtualNodes as VirtualNodes

__all__ = [
    "Accumulator",
    "Cast",
    "Codec",
    "Encoded",
    "Explanation",
    "Format",
    "PrecisionWarning",
    "Recipe",
    "Reduce",
    "Scaled",
    "Schedule",
    "__version__",
    "add",
    "backend",
    "cast",
    "check_cuda",
    "decode",
    "div",
    "encode",
    "explain",
    "fma",
    "gemm",
    "hadamard",
    "mul",
    "random_integers",
    "release_cuda_memory",
    "simulate_all_reduce",
    "sqrt",
    "study",
    "sum",
]

keep_modules("cpd.numeric")
refuse_moved()
loading.load_operations_with_the_first_tensor()
loading.register_safe_globals()

attach(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *later(__name__)})
