# SPDX-License-Identifier: Apache-2.0
"""Other libraries' names, computed here: `qpytorch`, `cpd2020` and `transformer_engine`.

Each has the functions of that library with its names, its arguments and their order, so that a
program only changes an import. Results differ where those libraries rounded wrongly; each module
lists the differences.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["cpd2020", "qpytorch", "transformer_engine"]


if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return importlib.import_module(f"cpd.compat.{name}")
        raise AttributeError(f"module 'cpd.compat' has no attribute {name!r}")
