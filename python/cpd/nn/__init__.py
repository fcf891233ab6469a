# SPDX-License-Identifier: Apache-2.0
"""Exports `register`, and the classes of the results of `cpd.convert` and `cpd.observe`.

`register` makes `cpd.convert` emulate modules of a user-defined class.


Importing a name in `__all__` imports torch. Importing `cpd.nn.recipe` does not.
"""

from typing import TYPE_CHECKING

from cpd._lazy import attach

if TYPE_CHECKING:
    from cpd.nn import functional as functional
    from cpd.nn import observers as observers
    from cpd.nn import quantizers as quantizers
    from cpd.nn.coverage_result import Products
    from cpd.nn.observed_rows import WatchRow
    from cpd.nn.observers import Watch
    from cpd.nn.registered import register
    from cpd.nn.report import Report, ReportRow

__all__ = ["Products", "Report", "ReportRow", "Watch", "WatchRow", "register"]

attach(__name__)
