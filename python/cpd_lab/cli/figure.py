# SPDX-License-Identifier: Apache-2.0
"""`cpd study figure`: compares published times of training steps with the cost model's times."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cpd._files import csv_text
from cpd.cli import options as opt
from cpd.cli.errors import users_mistakes
from cpd.cli.output import check_tables, counted, new_console, new_table, write_tables
from cpd.numeric.shown import percent

if TYPE_CHECKING:
    from cpd_lab.papers.published import Cell


@dataclass
class Options:
    """Compare the model of `cpd cost` with what a paper publishes.

    Compares every published number of a figure: grubic-6 to grubic-16, qsgd-2, terngrad-5. For a
    table of rates, the constants of the links are fitted to the rows of 32 bits alone. Papers do
    not publish the time that a codec takes on their GPUs. The model assumes 0 unless --codec-gbps
    is given.
    """

    figure: str = opt.argument("the figure, such as grubic-10", metavar="NAME")
    codec_gbps: float | None = opt.option(
        "GB/s of binary32 values that a codec encodes, and also decodes", absent="no time"
    )
    shared: bool = opt.option(
        "fit a third constant: what the GPUs of a host share, such as its memory", False
    )
    results: opt.Values = opt.group(opt.Values, "the results")


def run(options: Options) -> int:
    """Prints every published number of a figure with the cost model's number and the error."""
    from cpd_lab.papers.published import by_ratio, compared, rms

    figure, results = options.figure, options.results
    check_tables(results)
    with users_mistakes():
        cells = compared(figure, options.codec_gbps, options.shared)
    rows = [{**asdict(cell), "error": cell.error} for cell in cells]
    curve = by_ratio([1, 2, 4, 8, 16, 32, 64, 128]) if figure == "grubic-16" else []
    if not results.to_stdout:
        console = new_console()
        for line in _fitted(figure, options.shared):
            console.print(line, soft_wrap=True)
        _show_cells(cells)
        if curve:
            console.print("AlexNet with larger gradients, 8 GPUs by NCCL, 8 bits:")
            for ratio, speedup in curve:
                console.print(f"  {ratio:8.3f} MB/GFLOP  {speedup:.3f}×")
        console.print(f"RMS of the errors: {percent(rms(cells))} of {counted(len(cells), 'cell')}")
    data: dict[str, Any] = {"figure": figure, "cells": rows, "rms": rms(cells)}
    if curve:
        data["by_ratio"] = [list(point) for point in curve]
    write_tables(results, lambda: csv_text(rows), lambda: data)
    return 0


def _seconds(value: float) -> str:
    if value >= 1:
        return f"{value:,.3f} s"
    return f"{value * 1e3:.3f} ms" if value >= 1e-3 or value == 0 else f"{value * 1e6:.2f} µs"


def _fitted(figure: str, with_shared: bool) -> list[str]:
    from cpd_lab.papers.published import fit, table_of

    source = table_of(figure)
    if source is None:
        return []
    constants = fit(source, with_shared)
    shared = f", shared {constants.shared / 1e9:.3g} GB/s" if constants.shared else ""
    lines = [
        f"fitted to the rows of 32 bits: alpha {_seconds(constants.alpha)}, "
        f"beta {constants.beta / 1e9:.3g} GB/s{shared}; RMS error {percent(constants.error)}"
    ]
    if constants.left_out:
        left = ", ".join(f"{name} on {ranks}" for name, ranks in constants.left_out)
        lines.append(f"left out of the fit, as faster than their computation alone: {left}")
    return lines


def _show_cells(cells: "list[Cell]") -> None:
    from cpd_lab.papers.published import rms

    console = new_console()
    has_source = any(cell.source for cell in cells)
    head = ["Network", "Sum", "Ranks", "Quantity", "Published", "Model", "Error"]
    table = new_table(*head, *["Source"] * has_source)
    for column in (1, 3, 7):
        if column < len(table.columns):
            table.columns[column].justify = "left"
            table.columns[column].no_wrap = False
    for cell in cells:
        relation = "" if cell.relation == "=" else f"{cell.relation} "
        texts = [cell.network, cell.wire, str(cell.ranks), cell.quantity]
        texts += [f"{relation}{cell.published:,.6g}", f"{cell.predicted:,.4g}"]
        texts += [f"{100 * cell.error:+.1f} %"]
        table.add_row(*texts, *[cell.source] * has_source)
    console.print(table)
    if has_source:
        return
    summary = new_table("Sum", "Cells", "RMS error", "Mean", "Worst")
    for wire in dict.fromkeys(cell.wire for cell in cells):
        mine = [cell for cell in cells if cell.wire == wire]
        errors = [cell.error for cell in mine]
        worst = max(errors, key=abs)
        mean = sum(errors) / len(errors)
        shown = (f"{100 * rms(mine):.1f} %", f"{100 * mean:+.1f} %", f"{100 * worst:+.1f} %")
        summary.add_row(wire, str(len(mine)), *shown)
    console.print(summary)
