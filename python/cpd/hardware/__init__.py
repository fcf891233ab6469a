# SPDX-License-Identifier: Apache-2.0
"""Tools for hardware design: vectors, test benches, adders' rules, and costs in gates.

`probe` finds the rule by which a unit adds products, and `replay` compares a unit's published
results with an accumulator. `hardware_cost` estimates the gates of a format and an accumulator.
`cpd.hardware.vectors` makes vectors for RTL, and `cpd.hardware.testbench` writes test benches that
read them.
"""

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
