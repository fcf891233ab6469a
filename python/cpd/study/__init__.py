# SPDX-License-Identifier: Apache-2.0
"""Studies of reductions, formats and accumulators.

Measures the round-off of a reduction, and counts its cost: messages and modelled time by group
size. Measures the errors of formats and accumulators on tensors.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd._since import missing
from cpd.study.choices import (
    Choice,
    Recommendation,
    recommend,
    recommend_over,
)
from cpd.study.costs import (
    Cost,
    MeasuredCost,
    cost,
    measured_cost,
    transfer_time,
)
from cpd.study.machines import Link, Machine, machine
from cpd.study.networks import Network, network
from cpd.study.reduce import (
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
    "Cell",
    "Choice",
    "CodecRate",
    "Cost",
    "Link",
    "Losses",
    "Machine",
    "MeasuredCost",
    "Network",
    "Recommendation",
    "Roundoff",
    "Row",
    "StepTime",
    "Sweep",
    "Tensor",
    "cost",
    "machine",
    "measured_cost",
    "network",
    "recommend",
    "recommend_over",
    "roundoff",
    "roundoff_over",
    "step_time",
    "sweep",
    "transfer_time",
]


def __getattr__(name: str) -> Any:
    """`capture`, which imports torch."""
    if name == "capture":
        return importlib.import_module("cpd.study.sweeps.capture").capture
    raise missing("cpd.study", name)
