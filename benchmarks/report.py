# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of `./dev bench`: one table for the rows of each kind."""

from __future__ import annotations

from dataclasses import dataclass

import bounds
from rich.console import Console
from rich.table import Table
from timing import Row


def verdict(row: Row) -> str:
    if "wrong" in row:
        return f"[bold red]WRONG: {row['wrong']}[/]"
    if "skipped" in row:
        return f"skipped: {row['skipped']}"
    if "bar" not in row:
        return ""
    return "[yellow]missed[/]" if bounds.is_missed(row) else "[green]met[/]"


def _digits(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _bound(row: Row) -> tuple[str, str]:
    """Returns a benchmark row's bound (the rate that the machine allows), and the fraction of the
    bound that the row reaches. Fractions below bounds.LOW are marked."""
    if "share" not in row:
        return "", ""
    share = f"{row['share']:.2f}"
    low = bounds.is_low(row)
    return f"{row['bound']:.2f} {row['bound_is']}", f"[red]{share} ![/]" if low else share


@dataclass(frozen=True)
class Kind:
    """One table: the unit of its rows, its title, and the columns (heading, key) that it has in
    addition to the columns of every table."""

    unit: str
    title: str
    mark: str = ""  # a key that its rows have
    extra: tuple[tuple[str, str], ...] = ()

    def takes(self, row: Row) -> bool:
        return row.get("unit", _unit(row["name"])) == self.unit and (
            not self.mark or self.mark in row
        )

    def cells(self, row: Row) -> tuple[str, ...]:
        more = [_digits(row.get(key, "")) for _, key in self.extra]
        if "ratio" not in row:
            return row["name"], *[""] * 7, *more, verdict(row)
        bar = f"{row['bar']:.3f}" if "bar" in row else ""
        spread = f"{row['least']:.3f} … {row['most']:.3f}"
        numbers = f"{row['value']:.2f}", f"{row['baseline']:.2f}", f"{row['ratio']:.3f}", spread
        return row["name"], *numbers, bar, *_bound(row), *more, verdict(row)


KINDS = (
    Kind(
        "GB/s",
        "one thread; GB/s read and written; ratio to memcpy in the same run"
        " (fold, crc32c: to a plain fp32 sum; cast/fresh: to the cast with out=; peer: to torchao;"
        " Elias, Huffman: to 1 GB/s of floats)",
    ),
    Kind(
        "GMAC/s",
        "one thread; 10⁹ multiply-accumulates a second; ratio to torch's sgemm"
        " (threads2: to one thread; scaled: to the scheme without scales)",
    ),
    Kind(
        "µs",
        "a call of small arrays, in µs; ratio: torch's multiplication of 8 elements over it"
        " (compiled: over what it costs above x + 0)",
    ),
    Kind(
        "Mlines/s",
        "two threads; 10⁶ lines of vectors a second, in a file; ratio to NumPy's random words of as"
        " many",
    ),
    Kind(
        "ms a step",
        "256 virtual nodes, two threads; ratio: the time of 256 plain micro-batches over a step's",
    ),
    Kind(
        "ms",
        "Fig. 11 of the APS paper, phases in ms: e4m3 with APS (all of it overlapped; its phases"
        " one after the other) against an fp16 ring",
        "fold",
        (("max exp.", "max_exponent"), ("exchange", "exchange"), ("fold", "fold")),
    ),
    Kind(
        "ms",
        "what is exchanged, against the alpha-beta model; bytes sent by a rank",
        "steps",
        (("steps", "steps"), ("bytes", "bytes")),
    ),
    Kind(
        "ms",
        "fp32 MPI_Allreduce by Open MPI's algorithms, against its own choice",
        "algorithm",
        (("link", "link"),),
    ),
    Kind(
        "ms",
        "all-reduce of ResNet-50 over 4 ranks; ms of the slowest; ratio: how many times faster"
        " than the baseline; each side's share of its link",
        extra=(("link", "link"), ("baseline's", "baseline_link"), ("fewer bytes", "fewer_bytes")),
    ),
    Kind(
        "GFLOP/s",
        "two threads; forward and backward pass of a converted model, 10⁹ multiplications and"
        " additions of the model a second; ratio to the unconverted one (chunked: to the products)",
    ),
    Kind("MB", "MB that a host's interface sent; ratio to what was counted, or its inverse"),
)


def show(console: Console, rows: list[Row]) -> None:
    """Prints one table for each kind of benchmark row. A row below 0.7 of its bound is marked
    `!`."""
    left = rows
    for kind in KINDS:
        shown = [row for row in left if kind.takes(row)]
        left = [row for row in left if not kind.takes(row)]
        if not shown:
            continue
        table = Table(title=kind.title)
        table.add_column("name", no_wrap=True)
        headings = (kind.unit, "baseline", "ratio", "least … most", "bar", "bound", "share")
        for column in (*headings, *(heading for heading, _ in kind.extra)):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("")
        for row in shown:
            table.add_row(*kind.cells(row))
        console.print(table)


def _unit(name: str) -> str:
    """Returns the unit of a row, by the row's name. A row that was skipped or has wrong bits stores
    no unit; the name then decides which table shows the row."""
    if name.startswith("all_reduce"):
        return "ms"
    if name.startswith("overhead"):
        return "µs"
    if name.startswith("vectors"):
        return "Mlines/s"
    if name.startswith("model/virtual-nodes"):
        return "ms a step"
    if name.startswith("model"):
        return "GFLOP/s"
    return "GMAC/s" if "gemm" in name else "GB/s"
