# SPDX-License-Identifier: Apache-2.0
"""Vectors for hardware: inputs, and the results on which oracle and kernels agree.

The oracle is slow and exact. Vectors are arrays, and files that simulators read. `check` compares
files from elsewhere.
"""

from typing import TYPE_CHECKING, Any

from cpd._since import missing

if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        raise missing("cpd.hardware.vectors", name)
