# SPDX-License-Identifier: Apache-2.0
"""Other libraries' names, computed here: `qpytorch`, `cpd2020` and `transformer_engine`.

Each has the functions of that library with its names, its arguments and their order, so that a
program only changes an import. Results differ where those libraries rounded wrongly; each module
lists the differences.
"""

from typing import TYPE_CHECKING

from cpd._lazy import attach

if TYPE_CHECKING:
    from cpd.compat import cpd2020, qpytorch, transformer_engine

__all__ = ["cpd2020", "qpytorch", "transformer_engine"]

attach(__name__)
