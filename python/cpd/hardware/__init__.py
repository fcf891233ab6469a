# SPDX-License-Identifier: Apache-2.0
"""Tools for hardware design: vectors, test benches, adders' rules, and costs in gates.

`probe` finds the rule by which a unit adds products, and `replay` compares a unit's published
results with an accumulator. `gates` estimates the gates of a format and an accumulator.
`cpd.hardware.vectors` makes vectors for RTL, and `cpd.hardware.testbench` writes test benches that
read them.
"""

from typing import Any

from cpd._since import keep_modules, missing
from cpd.hardware.gate_counts import Gates, gates
from cpd.hardware.probing.command import Command, CommandError
from cpd.hardware.probing.find import Probed, dots_of_matmul, probe
from cpd.hardware.replaying import Mismatch, Replay, replay
from cpd.hardware.testbench.files import write_testbench
from cpd.hardware.testbench.ports import Ports
from cpd.hardware.vectors.checking import VectorCheck, check_vectors
from cpd.hardware.vectors.making import make_vectors
from cpd.hardware.vectors.vectors import Vectors

__all__ = [
    "Command",
    "CommandError",
    "Gates",
    "Mismatch",
    "Ports",
    "Probed",
    "Replay",
    "VectorCheck",
    "Vectors",
    "check_vectors",
    "dots_of_matmul",
    "gates",
    "make_vectors",
    "probe",
    "replay",
    "write_testbench",
]

keep_modules("cpd.hardware")


def __getattr__(name: str) -> Any:
    raise missing("cpd.hardware", name)
