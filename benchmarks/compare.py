# SPDX-License-Identifier: Apache-2.0
"""Compares two stored runs row by row: `./dev bench --compare A B`.

The column B/A is how many times as fast B is. It is B's value divided by A's for rates, and A's
value divided by B's for times and bytes. The two runs were measured at different times, perhaps on
different machines, so the table does not judge rows. `--against` (against.py) does judge rows,
because it measures both versions alternately in one run. Both commands use the table of this
module.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import store
from bounds import TIMES
from timing import Row

Run = dict[str, Any]
LESS_IS_BETTER = (*TIMES, "MB", "MiB", "s", "instructions")
"""Units for which a smaller value is better. All other units are rates."""


class NoRunError(ValueError):
    """Raised if a name or path does not lead to a stored run."""


# ---- reading ------------------------------------------------------------------------------------


def load(text: str) -> Run:
    """Returns the stored benchmark run in the file `text`, else the run of that name in
    results/."""
    paths = [Path(text), store.RESULTS / text, store.RESULTS / f"{text}.json"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        names = ", ".join(sorted(path.stem for path in store.RESULTS.glob("*.json")))
        raise NoRunError(f"{text} is no file, and no name in benchmarks/results (there: {names})")
    try:
        run = json.loads(path.read_text())
    except ValueError as error:
        raise NoRunError(f"{path} is not JSON: {error}") from None
    if isinstance(run, list):
        raise NoRunError(f"{path} has rows without a header; the run is in out/bench/<cpu>.json")
    if not (isinstance(run, dict) and isinstance(run.get("rows"), list)):
        raise NoRunError(f"{path} is not a run: an object with `rows` and a header")
    for row in run["rows"]:
        if not (isinstance(row, dict) and {"name", "value", "unit"} <= set(row)):
            excerpt = json.dumps(row)[:80]
            raise NoRunError(f"{path}: a row needs name, value and unit, got {excerpt}")
    return run


# ---- comparing ----------------------------------------------------------------------------------


def times_as_fast(unit: str, a: float, b: float) -> float:
    """Returns how many times as fast, or for sizes how many times as small, b is as a."""
    return a / b if unit in LESS_IS_BETTER else b / a


def are_alike(a: Row, b: Row) -> bool:
    """Returns whether the values of two benchmark rows have the same unit and meaning, so that they
    can be divided."""
    alike = all(a.get(key) == b.get(key) for key in ("unit", "counted"))
    return alike and a["value"] > 0 and b["value"] > 0


@dataclass(frozen=True)
class Pair:
    """A row that both runs have."""

    a: Row
    b: Row

    @property
    def times(self) -> float:
        """Returns how many times as fast the benchmark row is in run B as in run A."""
        return times_as_fast(self.a["unit"], self.a["value"], self.b["value"])


def in_both(a: Run, b: Run) -> list[Pair]:
    others = {row["name"]: row for row in b["rows"]}
    return [Pair(row, others[row["name"]]) for row in a["rows"] if row["name"] in others]


def pairs(a: Run, b: Run) -> list[Pair]:
    """Returns the pairs of rows that can be compared. Pairs in which run B is slowest relative to
    run A come first."""
    fair = [pair for pair in in_both(a, b) if are_alike(pair.a, pair.b)]
    return sorted(fair, key=lambda pair: pair.times)


def differences(a: Run, b: Run) -> dict[str, tuple[str, str]]:
    """Returns the entries that differ between the headers of two stored runs. Of the machine's
    rates, only the rate of copies is compared."""
    heads = []
    for run in (a, b):
        head = {key: str(value) for key, value in run.items() if key not in ("rows", "machine")}
        copy = run.get("machine", {}).get("copy")
        heads.append(head if copy is None else head | {"memcpy, GB/s": f"{copy:.3g}"})
    first, second = heads
    keys = dict.fromkeys([*first, *second])
    fields = {key: (first.get(key, "–"), second.get(key, "–")) for key in keys}
    return {key: ends for key, ends in fields.items() if ends[0] != ends[1]}


# ---- showing ------------------------------------------------------------------------------------


def _cells(pair: Pair) -> tuple[str, ...]:
    figures = []
    for row in (pair.a, pair.b):
        share = f"{row['share']:.2f}" if "share" in row else "–"
        figures += [f"{row['value']:.4g}", share]
    return (pair.a["name"], pair.a["unit"], *figures, f"{pair.times:.3f}")


def aligned(lines: list[tuple[str, ...]], texts: tuple[int, ...] = (0, 1)) -> Iterable[str]:
    """Yields the lines of an aligned table. Columns in `texts` are left-aligned, all other columns
    right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if index in texts else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _missing(name: str, run: Run, other: Run) -> Iterable[str]:
    """Yields a line with the number of rows that `run` has and `other` lacks, if there are any."""
    count = len({row["name"] for row in run["rows"]} - {row["name"] for row in other["rows"]})
    if count:
        yield f"only {name} has {count} more rows"


def text(a: Run, b: Run) -> str:
    """Returns the comparison of two stored runs: the differences of their headers, the number of
    rows that only one run has, and the table."""
    compared = pairs(a, b)
    lines = [f"{key}: {first} → {second}" for key, (first, second) in differences(a, b).items()]
    lines += [*_missing("A", a, b), *_missing("B", b, a)]
    unfair = [pair.a["name"] for pair in in_both(a, b) if not are_alike(pair.a, pair.b)]
    if unfair:
        lines.append(f"not compared, since they count something else: {', '.join(unfair)}")
    lines.append(f"{len(compared)} rows, losses first")
    head = ("row", "unit", "A", "share", "B", "share", "B/A")
    return "\n".join([*lines, "", *aligned([head, *map(_cells, compared)])])


def show(first: str, second: str, wants: Callable[[str], bool]) -> int:
    """Prints the comparison of the selected benchmark rows. Returns the exit status."""
    try:
        a, b = (_only(load(name), wants) for name in (first, second))
    except (NoRunError, OSError) as error:
        sys.exit(f"--compare: {error}")
    if not pairs(a, b):
        sys.exit(f"--compare: {first} and {second} have no row in common that was asked for")
    try:
        print(text(a, b), flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _only(run: Run, wants: Callable[[str], bool]) -> Run:
    return run | {"rows": [row for row in run["rows"] if wants(row["name"])]}
