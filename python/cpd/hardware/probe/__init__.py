# SPDX-License-Identifier: Apache-2.0
"""Finds the rule by which a function, a GPU's kernel or a simulated circuit adds products."""

from cpd.hardware.probe.command import Command, CommandError
from cpd.hardware.probe.find import Probed, dots_of_matmul, probe
from cpd.hardware.probe.rules import Known

__all__ = ["Command", "CommandError", "Known", "Probed", "dots_of_matmul", "probe"]
