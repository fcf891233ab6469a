# SPDX-License-Identifier: Apache-2.0
"""Vectors for hardware: inputs, and the results on which oracle and kernels agree.

The oracle is slow and exact. Vectors are arrays, and files that simulators read. `check` compares
files from elsewhere.
"""

from cpd._lazy import attach

attach(__name__)
