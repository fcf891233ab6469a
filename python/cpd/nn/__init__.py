# SPDX-License-Identifier: Apache-2.0
"""Custom modules in `cpd.convert`, and what `convert` and `observe` return.

Importing a name of `__all__` imports torch; `cpd.nn.recipe` does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd._since import missing

if TYPE_CHECKING:
    from cpd.nn.coverage_result import Products
    from cpd.nn.observed_rows import WatchRow
    from cpd.nn.observers import Watch
    from cpd.nn.registered import register
    from cpd.nn.report import Report, ReportRow

__all__ = ["Products", "Report", "ReportRow", "Watch", "WatchRow", "register"]

_NAMES = {
    "Products": "coverage_result",
    "Report": "report",
    "ReportRow": "report",
    "Watch": "observers",
    "WatchRow": "observed_rows",
    "register": "registered",
}
_MODULES = ("functional", "observers", "quantizers")


if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        if name in _NAMES:
            return getattr(importlib.import_module(f"cpd.nn.{_NAMES[name]}"), name)
        if name in _MODULES:
            return importlib.import_module(f"cpd.nn.{name}")
        raise missing("cpd.nn", name)
