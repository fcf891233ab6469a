# SPDX-License-Identifier: Apache-2.0
"""For hardware design: vectors and test benches for RTL, the rule by which a unit adds (found by
probing, or replayed against its results), and the cost of formats and accumulators in gates."""

from cpd.hardware.hardware_cost import HardwareCost, hardware_cost
from cpd.hardware.probe import Command, CommandError, Probed, dots_of_matmul, probe
from cpd.hardware.replay import Mismatch, Replay, replay

__all__ = [
    "Command",
    "CommandError",
    "HardwareCost",
    "Mismatch",
    "Probed",
    "Replay",
    "dots_of_matmul",
    "hardware_cost",
    "probe",
    "replay",
]
