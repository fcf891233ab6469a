# SPDX-License-Identifier: Apache-2.0
"""Figures in the READMEs are those that were measured, or those that this program computes."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RANGE = r"(\d\.\d{3})–(\d\.\d{3})"


def accuracies() -> list[dict[str, tuple[float, float]]]:
    """The demo's held-out accuracies on each stored CPU: least and greatest of the seeds."""
    files = sorted((ROOT / "benchmarks/results/demo").glob("*.json"))
    assert len(files) >= 2
    return [
        {name: tuple(ends) for name, ends in json.loads(file.read_text())["accuracy"].items()}
        for file in files
    ]


def ranges(line: str) -> list[tuple[float, float]]:
    return [(float(low), float(high)) for low, high in re.findall(RANGE, line)]


def test_what_the_demo_finds() -> None:
    """README has the envelope over the stored CPUs."""
    stored = accuracies()
    for name in ("FP32", "(4,3)", "(3,0)"):
        (line,) = (line for line in README.splitlines() if line.startswith(f"| {name}"))
        rows = [name] if name == "FP32" else [name, f"{name} + APS"]
        envelope = [
            (min(cpu[row][0] for cpu in stored), max(cpu[row][1] for cpu in stored)) for row in rows
        ]
        assert ranges(line) == envelope, name


def test_what_the_demo_finds_on_each_cpu() -> None:
    text = (ROOT / "benchmarks/README.md").read_text()
    amd, intel = accuracies()
    cells = [cell.strip() for cell in re.split(r"[|\n]", text)]
    for row in amd:
        at = cells.index(row, cells.index("AMD EPYC"))
        assert [ranges(cell)[0] for cell in cells[at + 1 : at + 3]] == [intel[row], amd[row]], row
