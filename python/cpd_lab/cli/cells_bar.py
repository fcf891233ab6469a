# SPDX-License-Identifier: Apache-2.0
"""The progress of cells that are measured: `CellsBar`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from cpd_lab.papers.study import Cell, Found


class CellsBar:
    """A bar of cells, with the minutes that are left of those in `cells`; `more` follow them."""

    def __init__(self, progress: Progress, cells: Iterable[Cell], more: int = 0) -> None:
        self._left = {cell.key: cell for cell in cells}
        self._progress = progress
        total = len(self._left) + more
        self._bar = progress.add_task("measuring", total=total, note=self._note())

    def done(self, found: Found) -> None:
        """Counts a measured cell."""
        self._left.pop(found.cell.key, None)
        self._progress.update(self._bar, advance=1, note=self._note())

    def _note(self) -> str:
        minutes = sum(cell.minutes for cell in self._left.values())
        return f"about {minutes:.0f} min of one process left" if minutes >= 1 else ""
