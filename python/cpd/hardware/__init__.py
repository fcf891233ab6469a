# SPDX-License-Identifier: Apache-2.0
"""For whoever builds the hardware: vectors and test benches for RTL, the rule by which a unit adds
(found, or replayed against its results), and what formats and accumulators cost in gates."""

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
