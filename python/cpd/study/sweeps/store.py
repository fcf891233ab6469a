# SPDX-License-Identifier: Apache-2.0
"""Stores the results of a sweep's cells (combinations of options) in a folder.

`Measured` is one result, `Measurements` the folder.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cpd import _core
from cpd.study.store import Store, Telling, digest
from cpd.study.sweeps.cells import Cell, Losses

VERSION = f"{_core.__version__}/1"
"""The library's version and the version of the definition of `Losses`. Results of another version
are not read."""


@dataclass(frozen=True)
class Measured:
    """A combination of options (a cell) and its measured errors on each tensor."""

    cell: Cell
    losses: tuple[Losses, ...]
    accuracy: float | None = None
    """The result of the user's function `accuracy` for the cell; None without a function."""


@dataclass(frozen=True)
class Measurements:
    """A folder with the results of cells (combinations of a sweep's options).

    `context` has texts for all else that a result depends on: the digest of the tensors, whether
    dot products are computed, and the identity of the function `accuracy`.
    """

    folder: Path
    context: tuple[str, ...]

    def key(self, cell: Cell) -> str:
        """Returns the cell's file name: a hash of the cell's options, `context` and `VERSION`."""
        return digest({"version": VERSION, "context": self.context, "cell": cell.json()})

    def write(self, measured: Measured) -> None:
        """Writes a cell's file. Raises OSError if the file cannot be written."""
        content = {
            "cell": measured.cell.json(),
            "losses": [_stored(losses) for losses in measured.losses],
            "accuracy": measured.accuracy,
        }
        Store(self.folder).write(self.key(measured.cell), content)

    def read(self, cell: Cell, tell: Telling) -> Measured | None:
        """Reads a cell's file; returns None if the file is missing or damaged.

        Raises OSError if an existing file cannot be read.
        """

        def made(body: dict[str, Any]) -> Measured:
            return Measured(cell, tuple(map(_read, body["losses"])), body["accuracy"])

        return Store(self.folder).read(self.key(cell), made, tell)


def _stored(losses: Losses) -> dict[str, Any]:
    """Returns the measured errors as a dict for JSON, with None in place of infinity."""
    return {name: _or(value, math.inf, None) for name, value in asdict(losses).items()}


def _read(stored: dict[str, Any]) -> Losses:
    names = [field.name for field in fields(Losses)]
    return Losses(**{name: _or(stored[name], None, math.inf) for name in names})


def _or(value: Any, this: Any, that: Any) -> Any:
    return that if value == this else value
