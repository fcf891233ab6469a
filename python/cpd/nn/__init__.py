# SPDX-License-Identifier: Apache-2.0
"""Torch's layers in a customized precision: `Linear`, `Conv2d`; and `Quantizer`, a cast anywhere.

Importing a name of `__all__` imports torch; `cpd.nn.recipe` does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpd.nn.layers import Conv2d, Linear
    from cpd.nn.quantizers import Quantizer
    from cpd.nn.registered import register

__all__ = ["Conv2d", "Linear", "Quantizer", "register"]

_NAMES = {
    "Conv2d": "layers",
    "Linear": "layers",
    "Quantizer": "quantizers",
    "register": "registered",
}
_MODULES = ("bypasses", "functional", "layers", "observers", "quantizers")


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"cpd.nn.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"cpd.nn.{name}")
    raise AttributeError(f"module 'cpd.nn' has no attribute {name!r}")
