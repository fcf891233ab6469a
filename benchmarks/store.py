# SPDX-License-Identifier: Apache-2.0
"""Reads and writes files of results, one for each CPU: a header, and rows with the date of their
run.

    python benchmarks/store.py FILE    merges a run's file (out/bench/<cpu>.json) into results/
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from timing import Row

RESULTS = Path(__file__).resolve().parent / "results"

Run = dict[str, Any]  # header, and `rows`


def made(header: dict[str, Any], rows: list[Row]) -> Run:
    """Returns the contents of the file that stores a benchmark run. Omits rows that were skipped or
    have wrong bits."""
    today = datetime.now(UTC).date().isoformat()
    dated = [row | {"date": today} for row in rows if not {"skipped", "wrong"} & set(row)]
    return header | {"rows": dated}


def merged(old: Run | None, new: Run) -> Run:
    """Merges two benchmark runs. New rows replace old rows of the same names; the header is the new
    run's."""
    rows = {row["name"]: row for row in (old or {"rows": []})["rows"]}
    rows |= {row["name"]: row for row in new["rows"]}
    rates = (old or {}).get("machine", {}) | new.get("machine", {})
    return new | {"machine": rates, "rows": list(rows.values())}


def dumped(run: Run) -> str:
    """Returns a benchmark run as JSON with one row on each line."""
    head = json.dumps({key: value for key, value in run.items() if key != "rows"}, indent=1)
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in run["rows"])
    return f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'


def load(path: Path) -> Run | None:
    if not path.exists():
        return None
    run: Run = json.loads(path.read_text())
    return run


def store(name: str, run: Run, folder: Path = RESULTS) -> Path:
    """Merges the rows of a benchmark run into the result file `name` in the folder. Returns the
    file's path."""
    from cpd._files import write_text  # reading needs no built package

    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, dumped(merged(load(path), run)))
    return path


def main() -> None:
    source = Path(sys.argv[1])
    run = load(source)
    if run is None:
        sys.exit(f"there is no {source}")
    print(store(source.name, run))


if __name__ == "__main__":
    main()
