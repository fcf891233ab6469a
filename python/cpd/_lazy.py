# SPDX-License-Identifier: Apache-2.0
"""Defines `attach`, which makes a package load its public names when they are first used."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from cpd._since import missing


def attach(module: str) -> None:
    """Sets the `__getattr__` of a package, which loads names of the package at their first use.

    The package lists the names as imports under `if TYPE_CHECKING:`, which type checkers read.
    Other names raise AttributeError. If version 0.7 had the name, the error names the replacement
    (`cpd._since`).
    """
    own = vars(sys.modules[module])

    def load(name: str) -> Any:
        if name not in later(module):
            raise missing(module, name)
        source, original = later(module)[name]
        if source == module:
            return importlib.import_module(f"{module}.{original}")
        value = own[name] = getattr(importlib.import_module(source), original)
        return value

    own["__getattr__"] = load


@functools.cache
def later(module: str) -> dict[str, tuple[str, str]]:
    """Maps each name that a package loads at first use to a pair: a module, and the name in it.

    >>> import cpd
    >>> later("cpd")["convert"], later("cpd")["comm"]
    (('cpd.nn.convert', 'convert'), ('cpd', 'comm'))
    """
    import ast  # only here, as it takes its time

    package = sys.modules[module]
    if "__path__" not in vars(package):
        return {}
    loader: Any = package.__loader__
    source = loader.get_source(module)
    if source is None:
        raise ImportError(f"{module} needs its source, which lists what is loaded at first use")
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cpd")
        for alias in node.names
    }
