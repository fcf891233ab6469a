# SPDX-License-Identifier: Apache-2.0
"""Consoles and tables of rich that never cut text. Only functions that print import this module."""

import os
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

_PIPE = 80
_SOFT_HYPHEN = "\u00ad"  # cpd.cli.output.MAY_BREAK, which may not be imported here
_LEAST_WORDS = 8
"""The least width of a column of words, in characters."""
_BREAKS = re.compile(r".+?(?:[=/:]+|[.-](?!\d)|$)")
"""Matches the parts into which a word is broken if it is wider than its column."""


class WholeConsole(Console):
    """A console that does not cut lines at the edge of the window."""

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """Prints without cropping, unless `crop`."""
        super().print(*objects, crop=crop, **options)


class WholeTable(Table):
    """A table that does not cut numbers if the window is narrow.

    In a narrow window, headers are broken into lines and columns are closer. If this is not enough,
    the table is wider than the window. For a pipe, the width is 80 columns.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_pipe = not console.file.isatty() and "COLUMNS" not in os.environ
        edge = _PIPE if is_pipe else options.max_width
        headers = [str(column.header) for column in self.columns]
        for column, header in zip(self.columns, headers, strict=True):
            column.header = header.replace(_SOFT_HYPHEN, "")
        if self._least(console, options) > edge:
            self.padding = 0
            for column, header in zip(self.columns, headers, strict=True):
                column.header = _in_lines(header, map(str, column.cells))
        width = max(edge, self._least(console, options))
        self._break_words(_LEAST_WORDS + width - self._least(console, options))
        yield from super().__rich_console__(console, options.update(width=width))

    def _least(self, console: Console, options: ConsoleOptions) -> int:
        """Returns the least width of the table at which no number is cut."""
        least = Measurement.get(console, options.update(width=1000), self).maximum
        for column in self.columns:
            if not column.no_wrap:
                cells = [cell for cell in (column.header, *column.cells) if isinstance(cell, str)]
                natural = max(cell_len(line) for cell in cells for line in cell.split("\n"))
                least -= natural - min(natural, _LEAST_WORDS)
        return least

    def _break_words(self, width: int) -> None:
        """Breaks words of more than `width` characters in all columns that may wrap."""
        for column in self.columns:
            if not column.no_wrap:
                column._cells = [
                    _parted(cell, width) if isinstance(cell, str) else cell for cell in column.cells
                ]


def _parted(text: str, width: int) -> str:
    """Returns the text. Words longer than `width` are broken after characters such as / and =."""

    def parts(word: re.Match[str]) -> str:
        if cell_len(word[0]) <= width:
            return word[0]
        lines = [""]
        for piece in _BREAKS.findall(word[0]):
            if lines[-1] and cell_len(lines[-1] + piece) > width:
                lines.append("")
            lines[-1] += piece
        return "\n".join(lines)

    return re.sub(r"\S+", parts, text)


def _in_lines(header: str, cells: Iterable[str]) -> str:
    """Returns a column's header, broken into lines.

    A line is at most as wide as the column's widest cell, or as the header's longest word if this
    word is wider.
    """
    widest = max(map(cell_len, cells), default=0)
    words: list[str] = []
    for word in header.split():
        parts = word.split(_SOFT_HYPHEN)
        whole = "".join(parts)
        fits = cell_len(whole) <= widest
        words += [whole] if fits else [*(f"{part}-" for part in parts[:-1]), parts[-1]]
    return "\n".join(textwrap.wrap(" ".join(words), max(widest, *map(cell_len, words), 1)))
