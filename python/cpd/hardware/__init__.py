# SPDX-License-Identifier: Apache-2.0
"""Tools for hardware design: vectors, test benches, rules of adders, and gate counts.

`probe` finds the rule by which a hardware unit adds products: the order, formats and roundings.
`replay` compares a unit's published results with an accumulator. `gates` estimates the gates of a
multiply-accumulate. `make_vectors` makes test vectors for RTL, and `write_testbench` writes a test
bench that reads them.
"""

from cpd._lazy import attach
from cpd._since import keep_modules
from cpd.hardware.gate_counts import Gates, gates
from cpd.hardware.probing.command import Command
from cpd.hardware.probing.find import Probed, probe
from cpd.hardware.replaying import Replay, replay
from cpd.hardware.testbench.files import write_testbench
from cpd.hardware.testbench.ports import Ports
from cpd.hardware.vectors.checking import VectorCheck, check_vectors
from cpd.hardware.vectors.making import make_vectors
from cpd.hardware.vectors.vectors import Vectors

__all__ = [
    "Command",
    "Gates",
    "Ports",
    "Probed",
    "Replay",
    "VectorCheck",
    "Vectors",
    "check_vectors",
    "gates",
    "make_vectors",
    "probe",
    "replay",
    "write_testbench",
]

keep_modules("cpd.hardware")

attach(__name__)
