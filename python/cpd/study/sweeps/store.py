# SPDX-License-Identifier: Apache-2.0
"""Results of cells: `Measured`, and `Measurements`, which stores them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cpd import _core
from cpd.study.store import Store, Telling, digest
from cpd.study.sweeps.cells import Cell, Losses

VERSION = f"{_core.__version__}/1"
"""The versions of what is measured: the library's, and the version of the meaning of `Losses`."""


@dataclass(frozen=True)
class Measured:
    """A cell and its losses, tensor by tensor."""

    cell: Cell
    losses: tuple[Losses, ...]
    accuracy: float | None = None
    """The result of the user's function for it."""


@dataclass(frozen=True)
class Measurements:
    """A folder of results.

    `context`: what determines the results in addition to the cell: the tensors' digest, the
    accuracy's function.
    """

    folder: Path
    context: tuple[str, ...]

    def key(self, cell: Cell) -> str:
        """Returns the digest of the cell and its context, which names its file."""
        return digest({"version": VERSION, "context": self.context, "cell": cell.json()})

    def write(self, measured: Measured) -> None:
        """Writes a cell's file. Raises OSError."""
        content = {
            "cell": measured.cell.json(),
            "losses": [_stored(losses) for losses in measured.losses],
            "accuracy": measured.accuracy,
        }
        Store(self.folder).write(self.key(measured.cell), content)

    def read(self, cell: Cell, tell: Telling) -> Measured | None:
        """Reads a cell's file; None unless it exists and is undamaged.

        Raises OSError for a file that cannot be read.
        """

        def made(body: dict[str, Any]) -> Measured:
            return Measured(cell, tuple(map(_read, body["losses"])), body["accuracy"])

        return Store(self.folder).read(self.key(cell), made, tell)


def _stored(losses: Losses) -> dict[str, Any]:
    """Returns the losses with null for infinities, which JSON lacks."""
    return {name: _or(value, math.inf, None) for name, value in asdict(losses).items()}


def _read(stored: dict[str, Any]) -> Losses:
    names = [field.name for field in fields(Losses)]
    return Losses(**{name: _or(stored[name], None, math.inf) for name in names})


def _or(value: Any, this: Any, that: Any) -> Any:
    return that if value == this else value
