# SPDX-License-Identifier: Apache-2.0
"""Self-checking SystemVerilog test benches around vectors."""

from typing import TYPE_CHECKING, Any

from cpd._since import missing

if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        raise missing("cpd.hardware.testbench", name)
