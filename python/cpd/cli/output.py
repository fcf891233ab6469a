# SPDX-License-Identifier: Apache-2.0
"""What the commands' output is made of: consoles, tables, progress bars."""

import math
import os
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cpd._files import STDOUT
from cpd.cli.errors import UsageError


class _Console(Console):
    """Cuts no line at the window's edge."""

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        super().print(*objects, crop=crop, **options)


class _Table(Table):
    """Cuts no number where the window is narrow: headers are then broken into lines and columns set
    closer, and where that is not enough the table is wider. A pipe's edge is at 80 columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_pipe = not console.file.isatty() and "COLUMNS" not in os.environ
        edge = _PIPE if is_pipe else options.max_width
        headers = [str(column.header) for column in self.columns]
        for column, header in zip(self.columns, headers, strict=True):
            column.header = header.replace(MAY_BREAK, "")
        if self._least(console, options) > edge:
            self.padding = 0
            for column, header in zip(self.columns, headers, strict=True):
                column.header = _in_lines(header, map(str, column.cells))
        width = max(edge, self._least(console, options))
        yield from super().__rich_console__(console, options.update(width=width))

    def _least(self, console: Console, options: ConsoleOptions) -> int:
        """The width at which no number is cut."""
        least = Measurement.get(console, options.update(width=1000), self).maximum
        for column in self.columns:
            if not column.no_wrap:
                cells = [cell for cell in (column.header, *column.cells) if isinstance(cell, str)]
                natural = max(cell_len(line) for cell in cells for line in cell.split("\n"))
                least -= natural - min(natural, _LEAST_WORDS)
        return least


MAY_BREAK = "\u00ad"
"""Stands in a header where a narrow table breaks the word."""


def _in_lines(header: str, cells: Iterable[str]) -> str:
    """A header broken to lines of its cells' width, or of its longest word's."""
    widest = max(map(cell_len, cells), default=0)
    words: list[str] = []
    for word in header.split():
        parts = word.split(MAY_BREAK)
        whole = "".join(parts)
        fits = cell_len(whole) <= widest
        words += [whole] if fits else [*(f"{part}-" for part in parts[:-1]), parts[-1]]
    return "\n".join(textwrap.wrap(" ".join(words), max(widest, *map(cell_len, words), 1)))


_PIPE = 80
_LEAST_WORDS = 8
"""To so many letters a column of words is narrowed."""


def new_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Styles only on a terminal (or where FORCE_COLOR is set), and never where NO_COLOR is."""
    return _Console(
        stderr=stderr,
        quiet=quiet,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def new_progress(quiet: bool = False, unit: str = "epochs") -> Progress:
    """A bar on standard error where that is a terminal; otherwise only what is printed on it."""
    console = new_console(stderr=True, quiet=quiet)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=quiet or not sys.stderr.isatty(),  # whatever FORCE_COLOR says of styles
    )


def new_table(*columns: str, title: str | None = None) -> Table:
    table = _Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, name in enumerate(columns):
        left = index == 0 or name in ("State", "Weights", "asks")
        # Words may be broken where the window is narrow, numbers not.
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not left)
    return table


def percent(value: float) -> str:
    """A share in per cent: two decimals, or three digits where those would show nothing."""
    return f"{value:.2%}" if value == 0 or not abs(value) < 1e-4 else f"{value * 100:.2e}%"


def check_writable(path: Path | None) -> None:
    """Finds out before the work whether its result can be written; - is standard output."""
    if path is None or path == STDOUT:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: not a file in an existing folder")


def check_readable(path: Path) -> None:
    """Raises OSError where a file cannot be opened, ValueError where its ending is not that of
    tensors: before what reads it is imported."""
    from cpd.study.gradient_files import suffix

    suffix(path)
    with path.open("rb"):
        pass


def counted(number: int, noun: str) -> str:
    """'1 node', '8 nodes'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_stdout(path: Path | None) -> bool:
    """Whether a result goes to standard output, which then takes nothing else."""
    return path == STDOUT


def short(value: float | None) -> str:
    """A power of two far from 1 as 2^k, any other value in up to six digits."""
    if value is None:
        return "none"
    mantissa, exponent = math.frexp(abs(value))
    if mantissa == 0.5 and not -4 < exponent < 12:
        return f"{'-' if value < 0 else ''}2^{exponent - 1}"
    return f"{value:.6g}"


def exact(value: float) -> str:
    """The value without rounding: in decimal where that is short, else as m·2^k."""
    decimal = f"{value:.12g}"
    if not math.isfinite(value) or (float(decimal) == value and len(decimal) <= 12):
        return decimal
    numerator, denominator = value.as_integer_ratio()
    twos = (numerator & -numerator).bit_length() - 1
    odd = numerator >> twos
    power = f"2^{twos - (denominator.bit_length() - 1)}"
    return power if odd == 1 else f"-{power}" if odd == -1 else f"{odd}·{power}"
