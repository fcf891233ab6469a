# SPDX-License-Identifier: Apache-2.0
"""Self-checking SystemVerilog test benches around vectors."""

from typing import Any

from cpd._since import missing
from cpd.hardware.testbench.files import write_testbench
from cpd.hardware.testbench.ports import Ports

__all__ = ["Ports", "write_testbench"]


def __getattr__(name: str) -> Any:
    raise missing("cpd.hardware.testbench", name)
