# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported at their first use, because torch takes seconds: `Later`."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A module that is imported when an attribute of it is first used.

    >>> fractions = Later("fractions")
    >>> str(fractions.Fraction(2, 4))
    '1/2'
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
