# SPDX-License-Identifier: Apache-2.0
"""Other libraries' interfaces, computed by CPD: `qpytorch`, `cpd2020`, `transformer_engine`.

Each module has functions with the other library's names and arguments, in the same order. A program
only changes an import. Results differ where the other library rounds wrongly; each module's
docstring lists the differences.
"""

from typing import TYPE_CHECKING

from cpd._lazy import attach

if TYPE_CHECKING:
    from cpd.compat import cpd2020, qpytorch, transformer_engine

__all__ = ["cpd2020", "qpytorch", "transformer_engine"]

attach(__name__)
