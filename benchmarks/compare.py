# SPDX-License-Identifier: Apache-2.0
"""Two stored runs, row by row: `./dev bench --compare A B`.

B/A is how many times as fast B is, of times and bytes A/B. A difference counts where it is outside
the row's noise: a run's value would have been anything from least/ratio to most/ratio of it, by the
turns of that run; a loss is a B whose best is below A's worst.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import store
from bounds import TIMES
from timing import Row

Run = dict[str, Any]
LESS_IS_BETTER = (*TIMES, "MB")
VERDICTS = ("loss", "", "gain")  # in the table's order


class NoRunError(ValueError):
    """What was named holds no run."""


# ---- reading ------------------------------------------------------------------------------------


def load(text: str) -> Run:
    """The run of that path, or of that name in results/."""
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
            got = json.dumps(row)[:80]
            raise NoRunError(f"{path}: a row needs name, value and unit, got {got}")
    return run


# ---- comparing ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A row of both runs."""

    a: Row
    b: Row

    @property
    def times(self) -> float:
        """How many times as fast B is."""
        times = float(self.b["value"] / self.a["value"])
        return 1 / times if self.a["unit"] in LESS_IS_BETTER else times

    @property
    def noise(self) -> tuple[float, float] | None:
        """What B/A may be without a difference; None where a run has no range of turns."""
        ranges = [_range(row) for row in (self.a, self.b)]
        if None in ranges:
            return None
        (a_least, a_most), (b_least, b_most) = ranges  # type: ignore[misc]
        return a_least / b_most, a_most / b_least

    @property
    def verdict(self) -> str:
        if self.noise is None or self.noise[0] <= self.times <= self.noise[1]:
            return ""
        return "loss" if self.times < 1 else "gain"

    @property
    def is_fair(self) -> bool:
        """Whether both values count the same."""
        alike = all(self.a.get(key) == self.b.get(key) for key in ("unit", "counted"))
        return alike and self.a["value"] > 0 and self.b["value"] > 0


def _range(row: Row) -> tuple[float, float] | None:
    """Least and most of the turns, as shares of the median; None where they are not known."""
    if not {"least", "most", "ratio"} <= set(row) or row["least"] == row["most"]:
        return None
    return row["least"] / row["ratio"], row["most"] / row["ratio"]


def in_both(a: Run, b: Run) -> list[Pair]:
    others = {row["name"]: row for row in b["rows"]}
    return [Pair(row, others[row["name"]]) for row in a["rows"] if row["name"] in others]


def pairs(a: Run, b: Run) -> list[Pair]:
    """Rows that can be compared: losses first, gains last, each by B/A."""
    fair = [pair for pair in in_both(a, b) if pair.is_fair]
    return sorted(fair, key=lambda pair: (VERDICTS.index(pair.verdict), pair.times))


def differences(a: Run, b: Run) -> dict[str, tuple[str, str]]:
    """What differs in the headers; of the machine's rates, that of copies."""
    heads = []
    for run in (a, b):
        head = {key: str(value) for key, value in run.items() if key not in ("rows", "machine")}
        copy = run.get("machine", {}).get("copy")
        heads.append(head if copy is None else head | {"memcpy, GB/s": f"{copy:.3g}"})
    first, second = heads
    keys = dict.fromkeys([*first, *second])
    found = {key: (first.get(key, "–"), second.get(key, "–")) for key in keys}
    return {key: ends for key, ends in found.items() if ends[0] != ends[1]}


# ---- showing ------------------------------------------------------------------------------------


def _cells(pair: Pair) -> tuple[str, ...]:
    figures = []
    for row in (pair.a, pair.b):
        share = f"{row['share']:.2f}" if "share" in row else "–"
        figures += [f"{row['value']:.4g}", share]
    noise = "unknown" if pair.noise is None else "{:.2f} … {:.2f}".format(*pair.noise)
    return (pair.a["name"], pair.a["unit"], *figures, f"{pair.times:.3f}", noise, pair.verdict)


def _aligned(lines: list[tuple[str, ...]]) -> Iterable[str]:
    """The first two columns and the last to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if place in (0, 1, len(line) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _missing(name: str, run: Run, other: Run) -> Iterable[str]:
    """How many rows only this run has."""
    count = len({row["name"] for row in run["rows"]} - {row["name"] for row in other["rows"]})
    if count:
        yield f"only {name} has {count} more rows"


def text(a: Run, b: Run) -> str:
    """What differs in the headers, how many rows do, and the table."""
    found = pairs(a, b)
    lines = [f"{key}: {first} → {second}" for key, (first, second) in differences(a, b).items()]
    losses, same, gains = (sum(pair.verdict == v for pair in found) for v in VERDICTS)
    lines += [*_missing("A", a, b), *_missing("B", b, a)]
    unfair = [pair.a["name"] for pair in in_both(a, b) if not pair.is_fair]
    if unfair:
        lines.append(f"not compared, since they count something else: {', '.join(unfair)}")
    lines.append(f"{len(found)} rows: {losses} losses, {gains} gains, {same} within their noise")
    head = ("row", "unit", "A", "share", "B", "share", "B/A", "noise", "")
    return "\n".join([*lines, "", *_aligned([head, *map(_cells, found)])])


def show(first: str, second: str, wants: Callable[[str], bool]) -> int:
    """Prints the comparison of the wanted rows."""
    try:
        a, b = (_only(load(name), wants) for name in (first, second))
    except (NoRunError, OSError) as error:
        sys.exit(f"--compare: {error}")
    if not pairs(a, b):
        sys.exit(f"--compare: {first} and {second} have no row in common that was asked for")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    print(text(a, b))
    return 0


def _only(run: Run, wants: Callable[[str], bool]) -> Run:
    return run | {"rows": [row for row in run["rows"] if wants(row["name"])]}
