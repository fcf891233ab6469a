# SPDX-License-Identifier: Apache-2.0
"""Self-checking SystemVerilog test benches around vectors."""

from typing import Any

from cpd._since import missing


def __getattr__(name: str) -> Any:
    raise missing("cpd.hardware.testbench", name)
