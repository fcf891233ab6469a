# SPDX-License-Identifier: Apache-2.0
"""Vectors for hardware: inputs and the results on which the slow exact oracle and the kernels
agree, as arrays and as files that simulators read; files from elsewhere are checked."""

from typing import Any

from cpd._since import missing
from cpd.hardware.vectors.checking import Check, check
from cpd.hardware.vectors.files import VectorFileError
from cpd.hardware.vectors.making import make
from cpd.hardware.vectors.rules import DisagreementError
from cpd.hardware.vectors.vectors import Vectors

__all__ = [
    "Check",
    "DisagreementError",
    "VectorFileError",
    "Vectors",
    "check",
    "make",
]


def __getattr__(name: str) -> Any:
    raise missing("cpd.hardware.vectors", name)
