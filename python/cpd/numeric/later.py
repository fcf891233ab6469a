# SPDX-License-Identifier: Apache-2.0
"""Imports modules at their first use, because importing torch takes seconds: `Later`."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A placeholder for a module, which is imported when one of its attributes is first used.

    >>> fractions = Later("fractions")
    >>> str(fractions.Fraction(2, 4))
    '1/2'
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
