# SPDX-License-Identifier: Apache-2.0
"""Vectors for hardware: inputs, and the results on which oracle and kernels agree.

The oracle is slow and exact. Vectors are arrays, and files that simulators read. `check` compares
files from elsewhere.
"""

from cpd.hardware.vectors.checking import Check, check
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.files import File, VectorFileError
from cpd.hardware.vectors.making import make, rule_of
from cpd.hardware.vectors.rules import DisagreementError
from cpd.hardware.vectors.vectors import Vectors

__all__ = [
    "Check",
    "DisagreementError",
    "Field",
    "File",
    "VectorFileError",
    "Vectors",
    "check",
    "make",
    "rule_of",
]
