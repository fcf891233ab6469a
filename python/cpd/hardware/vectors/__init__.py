# SPDX-License-Identifier: Apache-2.0
"""Test vectors for hardware: inputs with their exact results.

Two implementations compute each result and must agree: a slow, exact oracle and CPD's fast kernels.
Vectors are arrays, or files that simulators read. `check_vectors` checks files that other programs
have written.
"""

from cpd._lazy import attach

attach(__name__)
