# SPDX-License-Identifier: Apache-2.0
"""The progress bar of a study's measurements: `CellsBar`. A cell is one measurement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from cpd_lab.papers.study import Cell, Found


class CellsBar:
    """Shows a progress bar over a study's cells (its measurements) and the minutes that remain.

    Args:
        progress: the display that gets the bar.
        cells: the cells that are known before the run. Their estimated minutes are added up.
        more: the number of cells that follow `cells`. They lengthen the bar but add no minutes.
    """

    def __init__(self, progress: Progress, cells: Iterable[Cell], more: int = 0) -> None:
        self._left = {cell.key: cell for cell in cells}
        self._progress = progress
        total = len(self._left) + more
        self._bar = progress.add_task("measuring", total=total, note=self._note())

    def done(self, found: Found) -> None:
        """Advances the bar by one finished measurement and subtracts its estimated minutes."""
        self._left.pop(found.cell.key, None)
        self._progress.update(self._bar, advance=1, note=self._note())

    def _note(self) -> str:
        minutes = sum(cell.minutes for cell in self._left.values())
        return f"about {minutes:.0f} min of one process left" if minutes >= 1 else ""
