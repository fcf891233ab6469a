# SPDX-License-Identifier: Apache-2.0
"""Makes consoles, tables, progress bars and files for the output of commands.

Only functions that print import rich. So a wrong command line is reported without this import.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cpd._files import STDOUT, write_json, write_text
from cpd.cli.errors import UsageError, users_mistakes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from cpd.cli.options import Values

MAY_BREAK = "\u00ad"
"""Marks the position in a header at which a narrow table may break the word (soft hyphen)."""


def new_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Returns a console of rich that does not cut lines.

    It uses colors only on a terminal or if FORCE_COLOR is set, and never if NO_COLOR is set.
    """
    from cpd.cli.tables import WholeConsole

    return WholeConsole(
        stderr=stderr,
        quiet=quiet,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def new_progress(quiet: bool = False, unit: str = "epochs") -> Progress:
    """Returns a progress bar on standard error.

    If standard error is not a terminal, no bar is shown. Lines that the caller prints on the
    console of the progress bar still appear.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = new_console(stderr=True, quiet=quiet)
    return Bars(
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
    """Returns a table with these column headers."""
    from rich import box

    from cpd.cli.tables import WholeTable

    table = WholeTable(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, name in enumerate(columns):
        left = index == 0 or name in ("State", "Weights", "asks")
        # In a narrow window, words may be broken, but not numbers.
        justify: Literal["left", "right"] = "left" if left else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not left)
    return table


def check_writable(path: Path | None) -> None:
    """Raises an error before the work begins if its result could not be written to a file.

    `-` is standard output.
    """
    if path is None or path == STDOUT:
        return
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: not a file in an existing folder")


def check_tables(options: Values) -> None:
    """Raises an error before the work begins if the files of a table could not be written."""
    plot: Path | None = getattr(options, "plot", None)
    for path in (options.json, options.csv, plot):
        check_writable(path)
    if is_stdout(options.csv) and is_stdout(options.json):
        raise UsageError("only one of --csv and --json can go to standard output")
    if plot is not None:
        from cpd._picture import check_plot_path

        with users_mistakes():
            check_plot_path(plot)


def check_readable(path: Path) -> None:
    """Raises OSError if a file cannot be opened, and ValueError for an ending that is unsupported.

    The check is made before the modules that read tensor files are imported.
    """
    from cpd.study.gradient_files import suffix

    suffix(path)
    with path.open("rb"):
        pass


def json_written(path: Path | None, result: Callable[[], Any]) -> bool:
    """Writes a result as JSON if `path` is not None.

    Returns True if the result was written to standard output.
    """
    if path is not None:
        write_json(path, result())
    return is_stdout(path)


def write_tables(options: Values, csv: Callable[[], str], json: Callable[[], Any]) -> None:
    """Writes the files of a table that the options ask for."""
    if options.csv is not None:
        write_text(options.csv, csv())
    json_written(options.json, json)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: '1 node', '8 nodes', '65,536 lines'."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def is_stdout(path: Path | None) -> bool:
    """Returns whether a result goes to standard output. Nothing else may then be printed."""
    return path == STDOUT


def short(value: float | None) -> str:
    """Returns a power of two far from 1 as 2^k, and any other value with up to six digits."""
    if value is None:
        return "none"
    mantissa, exponent = math.frexp(abs(value))
    if mantissa == 0.5 and not -4 < exponent < 12:
        return f"{'-' if value < 0 else ''}2^{exponent - 1}"
    return f"{value:.6g}"


def exact(value: float) -> str:
    """Returns the exact value: in decimal if that is short, else as m·2^k."""
    decimal = f"{value:.12g}"
    if not math.isfinite(value) or (float(decimal) == value and len(decimal) <= 12):
        return decimal
    numerator, denominator = value.as_integer_ratio()
    twos = (numerator & -numerator).bit_length() - 1
    odd = numerator >> twos
    power = f"2^{twos - (denominator.bit_length() - 1)}"
    return power if odd == 1 else f"-{power}" if odd == -1 else f"{odd}·{power}"
