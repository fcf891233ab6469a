# SPDX-License-Identifier: Apache-2.0
"""Self-checking SystemVerilog test benches around vectors."""

from cpd.hardware.testbench.files import write_testbench
from cpd.hardware.testbench.ports import Ports
from cpd.hardware.testbench.units import Unit, unit_of

__all__ = ["Ports", "Unit", "unit_of", "write_testbench"]
