# SPDX-License-Identifier: Apache-2.0
"""Loads the commands and the modules for gradients that other packages add to `cpd`.

The packages declare them as entry points, so that this package does not import them by name.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from cpd.cli.errors import RunError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LAB = "cpd-lab"
"""The package that has the commands LAB_COMMANDS and the models that `cpd roundoff` trains."""
LAB_COMMANDS = ("train", "study", "demo", "report")


def needs(package: str) -> str:
    """Returns the text of the error for a package that is not installed."""
    return f"needs the Python package '{package}' (pip install {package})"


@functools.cache
def added_commands() -> dict[str, EntryPoint]:
    """Returns the entry points of the commands of other packages, by the command's name.

    An entry point loads a function that adds the command to the parser of `cpd`.
    """
    return _entries("cpd.commands")


def model_gradients() -> Any:
    """Returns the module of an installed package that trains models and returns their gradients.

    The module has the functions `check(options)` and `gradients`.

    Raises RunError if no installed package has such a module.
    """
    for entry in _entries("cpd.gradients").values():
        return entry.load()
    raise RunError(needs(LAB))


def _entries(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # imported here, because only few commands need it

    return {entry.name: entry for entry in entry_points(group=group)}
