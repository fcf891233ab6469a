# SPDX-License-Identifier: Apache-2.0
"""Vectors for hardware: inputs and the results on which the slow exact oracle and the kernels
agree, as arrays and as files that simulators read; files from elsewhere are checked."""

from typing import Any

from cpd._since import missing


def __getattr__(name: str) -> Any:
    raise missing("cpd.hardware.vectors", name)
