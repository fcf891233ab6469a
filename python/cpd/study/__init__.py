# SPDX-License-Identifier: Apache-2.0
"""Studies of reductions, formats and accumulators.

`roundoff`, `cost` and `recommend` compute the round-off, the messages and the modeled time of an
all-reduce for each group size. `step_time` models a training step. `sweep` measures the errors of
formats and accumulators on tensors.
"""

from typing import TYPE_CHECKING

from cpd._lazy import attach
from cpd.comm.costs import Cost
from cpd.study.choices import Choice, Recommendation, recommend
from cpd.study.costs import cost
from cpd.study.machines import Machine
from cpd.study.networks import Network
from cpd.study.reduce import Roundoff, roundoff
from cpd.study.sweeps.results import Sweep
from cpd.study.sweeps.rows import SweepRow
from cpd.study.sweeps.run import sweep
from cpd.study.throughput import StepTime, step_time

if TYPE_CHECKING:
    from cpd.study.sweeps.capture import capture as capture

__all__ = [
    "Choice",
    "Cost",
    "Machine",
    "Network",
    "Recommendation",
    "Roundoff",
    "StepTime",
    "Sweep",
    "SweepRow",
    "cost",
    "recommend",
    "roundoff",
    "step_time",
    "sweep",
]

attach(__name__)
