# SPDX-License-Identifier: Apache-2.0
"""Torch's layers in a customized precision. See `Linear` and `Conv2d`.

Importing a name of `__all__` imports torch; `cpd.nn.recipe` does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpd.nn.layers import Conv2d, Linear

__all__ = ["Conv2d", "Linear"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("cpd.nn.layers"), name)
    if name in ("bypasses", "functional", "layers"):
        return importlib.import_module(f"cpd.nn.{name}")
    raise AttributeError(f"module 'cpd.nn' has no attribute {name!r}")
