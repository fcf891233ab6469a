# SPDX-License-Identifier: Apache-2.0
"""Keeps results of cells in files: one per cell, named by the SHA-256 of all that determines it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cpd import _core
from cpd._files import write_text
from cpd.study.sweeps.cells import Cell, Losses

VERSION = f"{_core.__version__}/1"
"""The version of measurements: the library's, and that of the meaning of `Losses`."""

Telling = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """A cell and its losses, tensor by tensor."""

    cell: Cell
    losses: tuple[Losses, ...]
    accuracy: float | None = None
    """The result of the user's function for it."""


@dataclass(frozen=True)
class Store:
    """A folder of results. `context`: what determines them in addition to the cell: the tensors'
    digest, the accuracy's function.

    A file holds the SHA-256 of its content. One that is damaged, or has another cell's name, is
    reported and counts as missing. Files are written whole or not at all, so that several processes
    may share a folder.
    """

    folder: Path
    context: tuple[str, ...]

    def key(self, cell: Cell) -> str:
        return _hash({"version": VERSION, "context": self.context, "cell": cell.json()})

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{self.key(cell)}.json"

    def write(self, measured: Measured) -> None:
        """Writes a cell's file. Raises OSError."""
        key = self.key(measured.cell)
        body = {
            "key": key,
            "cell": measured.cell.json(),
            "losses": [_stored(one) for one in measured.losses],
            "accuracy": measured.accuracy,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = json.dumps({"sha256": _hash(body), "body": body})
        write_text(self.path(measured.cell), whole)

    def read(self, cell: Cell, tell: Telling) -> Measured | None:
        """Reads a cell's file; None unless it is there and undamaged. Raises OSError for a file
        that cannot be read."""
        path = self.path(cell)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _measured(json.loads(data), self.key(cell), cell)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            why = str(error).partition("\n")[0][:100] or type(error).__name__
            tell(f"{path}: damaged ({why}); the cell is measured again")
            return None


def _measured(whole: Any, key: str, cell: Cell) -> Measured:
    body = whole["body"]
    if whole["sha256"] != _hash(body):
        raise ValueError("its SHA-256 is not that of its content")
    if body["key"] != key:
        raise ValueError("it is another cell's")
    return Measured(cell, tuple(map(_read, body["losses"])), body["accuracy"])


def _hash(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _stored(losses: Losses) -> dict[str, Any]:
    """The losses with null for infinities, which JSON lacks."""
    return {name: _or(value, math.inf, None) for name, value in asdict(losses).items()}


def _read(stored: dict[str, Any]) -> Losses:
    names = [one.name for one in fields(Losses)]
    return Losses(**{name: _or(stored[name], None, math.inf) for name in names})


def _or(value: Any, this: Any, that: Any) -> Any:
    return that if value == this else value
