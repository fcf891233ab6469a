# SPDX-License-Identifier: Apache-2.0
"""Studies of reductions, formats and accumulators.

Measures the round-off of a reduction, and counts its cost: messages and modelled time by group
size. Measures the errors of formats and accumulators on tensors. The names of `cpd.hardware` are
here too.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import ReduceSpec, StallWarning
from cpd.comm.virtual import Source
from cpd.hardware import (
    Command,
    CommandError,
    HardwareCost,
    Mismatch,
    Probed,
    Replay,
    dots_of_matmul,
    hardware_cost,
    probe,
    replay,
)
from cpd.study.choices import (
    Choice,
    Recommendation,
    check_recommended,
    choose,
    recommend,
    recommend_over,
)
from cpd.study.costs import (
    DEFAULT_CHUNK,
    Cost,
    MeasuredCost,
    Round,
    cost,
    measured_cost,
    rounds,
    transfer_time,
)
from cpd.study.machines import Link, Machine, machine
from cpd.study.networks import Network, network
from cpd.study.reduce import (
    DRAWS,
    Contributions,
    Measurement,
    Roundoff,
    roundoff,
    roundoff_over,
)
from cpd.study.sweeps.cells import Cell, Losses
from cpd.study.sweeps.results import Sweep
from cpd.study.sweeps.rows import Row, Tensor
from cpd.study.sweeps.run import sweep
from cpd.study.throughput import CodecRate, StepTime, step_time

if TYPE_CHECKING:
    from cpd.study.sweeps.capture import capture as capture

__all__ = [
    "DEFAULT_CHUNK",
    "DRAWS",
    "Cell",
    "Choice",
    "CodecRate",
    "Command",
    "CommandError",
    "Contributions",
    "Cost",
    "HardwareCost",
    "Layers",
    "Link",
    "Losses",
    "Machine",
    "MeasuredCost",
    "Measurement",
    "Mismatch",
    "Network",
    "PerRank",
    "Probed",
    "Recommendation",
    "ReduceSpec",
    "Replay",
    "Round",
    "Roundoff",
    "Row",
    "Source",
    "StallWarning",
    "StepTime",
    "Sweep",
    "Tensor",
    "check_recommended",
    "choose",
    "cost",
    "dots_of_matmul",
    "hardware_cost",
    "machine",
    "measured_cost",
    "network",
    "probe",
    "recommend",
    "recommend_over",
    "replay",
    "roundoff",
    "roundoff_over",
    "rounds",
    "step_time",
    "sweep",
    "transfer_time",
]


def __getattr__(name: str) -> Any:
    """`capture`, which imports torch."""
    if name == "capture":
        return importlib.import_module("cpd.study.sweeps.capture").capture
    raise AttributeError(f"module 'cpd.study' has no attribute {name!r}")
