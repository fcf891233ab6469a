# SPDX-License-Identifier: Apache-2.0
"""Writes the tables that are computed from stored results: in README.md the principal rows and the
reasons; in OPERATIONS.md the operations; in results/README.md all rows; in GPU.md the rows of GPUs;
and in python/docs/why.md the comparison with other libraries.

    python benchmarks/table.py            writes the tables; prints the names of rows below 0.7 of
                                          their bound, or below their bar, for which reasons.toml
                                          states no reason
    python benchmarks/table.py --check    writes nothing; exits 1 if a table differs
"""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import bounds
import store
from selection import PRINCIPAL
from timing import Row

from cpd._files import write_text

HERE = Path(__file__).resolve().parent
VENDORS = {"amd": "AMD", "intel": "Intel"}

PEERS = (
    ("fp32 rounded to e4m3fn, as fp32", "torch", "cast/nearest_even/e4m3fn", "torch/cast/e4m3fn"),
    ("fp32 to codes of e4m3fn", "torch", "encode/e4m3fn", "torch/encode/e4m3fn"),
    ("fp32 to codes of e4m3fn", "ml_dtypes", "encode/e4m3fn", "ml_dtypes/encode/e4m3fn"),
    ("codes of e4m3fn to fp32", "torch", "decode/e4m3fn", "torch/decode/e4m3fn"),
    ("codes of e4m3fn to fp32", "ml_dtypes", "decode/e4m3fn", "ml_dtypes/decode/e4m3fn"),
    (
        "a GPT block's training step in FP8",
        "torchao, emulated",
        "model/gpt/peer/torchao-float8",
        "",
    ),
    ("the same step", "torch, not converted", "model/gpt/te-current", ""),
    ("a product of 512³ with (4,3) sums", "torch in fp32", "gemm/sequential/e4m3/512", ""),
    ("an all-reduce in (4,3), 4 ranks, 1 Gb/s", "MPI in fp32", "all_reduce/1gbps/e4m3", ""),
    ("the same in QSGD's 4 bits", "MPI in fp32", "all_reduce/1gbps/qsgd4", ""),
)
"""Rows that are compared with other libraries: the description, the other library, the name of
CPD's row, and the name of the other library's row. If the last name is empty, the other library is
the baseline of CPD's row."""


ON_AVX2 = """\
On AVX2 alone, by vendor, family and model; `held`: a CPU with AVX-512, which nothing uses in this \
run
(`CPD_BACKEND=avx2`)."""


@dataclass(frozen=True)
class Reason:
    rows: tuple[str, ...]
    text: str

    def covers(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.rows)


@functools.cache
def reasons() -> list[Reason]:
    entries = tomllib.loads((HERE / "reasons.toml").read_text())["reason"]
    return [Reason(tuple(entry["rows"]), entry["text"]) for entry in entries]


Rows = dict[str, dict[str, Row]]  # by name, then by column


def _generation(run: store.Run) -> tuple[int, ...]:
    return tuple(int(n) if n.isdecimal() else -1 for n in (run["family"], run["model"]))


def _runs(folder: Path, isa: str) -> list[store.Run]:
    """Returns the stored benchmark runs that used an instruction set, sorted so that the newest CPU
    is last."""
    runs = [store.load(path) for path in sorted(folder.glob("*.json"))]
    return sorted((run for run in runs if run and run["isa"] == isa), key=_generation)


def stored(folder: Path = store.RESULTS) -> Rows:
    """Returns the stored rows of CPUs with AVX-512, by vendor. The CPU with the highest family and
    model has priority; older CPUs supply the rows that it lacks."""
    rows: Rows = {}
    for run in _runs(folder, "avx512"):
        for row in run["rows"]:
            rows.setdefault(row["name"], {})[run["vendor"]] = row
    return rows


def stored_on_avx2(folder: Path = store.RESULTS) -> Rows:
    """Returns the rows of runs with the AVX2 backend, by CPU."""
    rows: Rows = {}
    for run in _runs(folder, "avx2"):
        cpu = f"{VENDORS.get(run['vendor'], run['vendor'])} {run['family']}-{run['model']}"
        for row in run["rows"]:
            rows.setdefault(row["name"], {})[cpu + (", held" if "held" in run else "")] = row
    return rows


def every_column(folder: Path = store.RESULTS) -> Rows:
    """Returns all stored rows: of runs with AVX-512 by vendor, of runs with the AVX2 backend by
    CPU."""
    rows, others = stored(folder), stored_on_avx2(folder)
    return {name: rows.get(name, {}) | others.get(name, {}) for name in {**rows, **others}}


def low(rows: Rows) -> list[str]:
    """Returns the names of rows that are below bounds.LOW of their bound on some CPU."""
    return [name for name, by_cpu in rows.items() if any(map(bounds.is_low, by_cpu.values()))]


def missed(rows: Rows) -> list[str]:
    """Returns the names of rows that miss the ratio that they must reach (their bar) on some
    CPU."""
    return [name for name, by_cpu in rows.items() if any(map(bounds.is_missed, by_cpu.values()))]


def reason_of(name: str) -> Reason | None:
    return next((reason for reason in reasons() if reason.covers(name)), None)


def uncovered(rows: Rows) -> list[str]:
    """Returns the names of rows that are below bounds.LOW of their bound, or below the ratio that
    they must reach (their bar), and for which reasons.toml states no reason."""
    names = dict.fromkeys([*low(rows), *missed(rows)])
    return [name for name in names if reason_of(name) is None]


# ---- Markdown -----------------------------------------------------------------------------------


def _figure(row: Row | None) -> str:
    """Returns a row's value and, in brackets, the fraction of the row's bound. The text is bold if
    the fraction is below bounds.LOW."""
    if row is None:
        return "–"
    value = f"{row['value']:.4g}" if row["value"] < 1000 else f"{row['value']:.0f}"
    if "share" not in row:
        return value
    share = f"({row['share']:.2f})"
    return f"{value} **{share}**" if bounds.is_low(row) else f"{value} {share}"


def _ratio(row: Row | None) -> str:
    return "–" if row is None else f"{row['ratio']:.3g}"


def _line(name: str, cells: list[Row | None]) -> str:
    row = next(row for row in reversed(cells) if row is not None)
    is_what = dict.fromkeys(r["bound_is"] for r in cells if r is not None and "bound_is" in r)
    peer = f"{row['against']}: {', '.join(map(_ratio, cells))}"
    figures = [_figure(cell) for cell in cells]
    columns = [f"`{name}`", row["unit"], *figures, ", ".join(is_what) or "–", peer]
    return f"| {' | '.join(columns)} |"


def table(rows: Rows, names: list[str]) -> str:
    """Returns a table with the columns row, unit, AMD, Intel, bound and peer."""
    return _table(rows, names, VENDORS, "AMD's ratio, Intel's")


def _table(rows: Rows, names: list[str], columns: dict[str, str], ratios: str) -> str:
    """Returns a table with one column for each key of `columns`, under its heading."""
    head = ("row", "unit", *columns.values(), "bound", f"peer: {ratios}")
    lines = [
        _line(name, [rows[name].get(key) for key in columns]) for name in names if name in rows
    ]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines])


def avx2_table(rows: Rows, names: list[str]) -> str:
    """Returns the table of rows measured on AVX2 alone, after a line that explains its columns.
    Returns an empty text if no such row is stored."""
    columns = list(dict.fromkeys(cpu for by_cpu in rows.values() for cpu in by_cpu))
    if not columns:
        return ""
    table = _table(rows, names, {cpu: cpu for cpu in columns}, "ratio" + "s" * (len(columns) > 1))
    return f"{ON_AVX2}\n\n{table}"


def reasons_table(rows: Rows) -> str:
    """Returns a table of the reasons in reasons.toml that explain some row below bounds.LOW of its
    bound, or below its bar. Shows for each reason how many rows are below each of the two."""
    lines = []
    for reason in reasons():
        counts = [
            sum(reason_of(name) == reason for name in names) for names in (low(rows), missed(rows))
        ]
        if any(counts):
            patterns = ", ".join(f"`{p}`" for p in reason.rows)
            lines.append(f"| {patterns} | {counts[0]} | {counts[1]} | {reason.text} |")
    return "\n".join(["| rows | low | missed | where the rest goes |", "|---|---|---|---|", *lines])


def operations_table() -> str:
    """Returns a table that counts the operations of each measured loop for one AVX-512 vector. The
    counts include the generation of random words."""
    kinds = bounds.KINDS
    lines = []
    for mixture in bounds.mixtures():
        counts = mixture.on("avx512")
        cells = [f"{counts[kind]:g}" if kind in counts else "" for kind in kinds]
        total = f"{sum(counts.values()):g}"
        lines.append(f"| {mixture.name} | {' | '.join(cells)} | {total} | {mixture.how} |")
    head = f"| loop | {' | '.join(kinds)} | all | how |"
    return "\n".join([head, "|---" * (len(kinds) + 3) + "|", *lines])


def peers_table(rows: Rows) -> str:
    """Returns a table of comparisons with other libraries: the description, the library, and for
    each CPU the value of CPD, the value of the library, and how many times as fast CPD is."""
    lines = []
    for what, whom, ours, theirs in PEERS:
        cells = [_compared(rows[ours].get(v), rows.get(theirs, {}).get(v)) for v in VENDORS]
        unit = next(iter(rows[ours].values()))["unit"]
        lines.append(f"| {what} | {whom} | {unit} | {' | '.join(cells)} |")
    head = f"| what | compared with | unit | {' | '.join(VENDORS.values())} |"
    return "\n".join([head, "|---" * (3 + len(VENDORS)) + "|", *lines])


def _compared(ours: Row | None, theirs: Row | None) -> str:
    if ours is None:
        return "–"
    if theirs is None:
        value, times = ours["baseline"], ours["ratio"]
    else:
        value, times = theirs["value"], ours["value"] / theirs["value"]
    return f"{ours['value']:.4g}, {value:.4g}: **{times:.3g}**"


def gpu_table(folder: Path = store.RESULTS / "gpu") -> str:
    """Returns a table with each row's value and, in brackets, its ratio to the row's peer, for each
    GPU."""
    runs = [run for path in sorted(folder.glob("*.json")) if (run := store.load(path))]
    rows: dict[str, dict[str, Row]] = {}
    for run in runs:
        for row in run["rows"]:
            rows.setdefault(row["name"], {})[run["device"]] = row
    devices = [run["device"] for run in runs]
    lines = []
    for name, by_device in rows.items():
        row = next(iter(by_device.values()))
        cells = [_of_peer(by_device.get(device)) for device in devices]
        columns = [f"`{name}`", row["unit"], *cells, f"`{row['against']}`"]
        lines.append(f"| {' | '.join(columns)} |")
    head = ("row", "unit", *devices, "peer")
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines])


def _of_peer(row: Row | None) -> str:
    return "–" if row is None else f"{row['value']:.4g} ({row['ratio']:.3g})"


def _put(text: str, mark: str, table: str) -> str:
    """Returns a page's text with a new table between its two comments that name `mark`."""
    begin, end = f"<!-- {mark}: made by table.py -->", f"<!-- end of {mark} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
    assert pattern.search(text), f"no marks of {mark}"
    return pattern.sub(lambda _: "\n".join([begin, *filter(None, [table]), end]), text)


def rendered() -> dict[Path, str]:
    """Returns the pages that contain generated tables, each with the text that it should have."""
    rows, on_avx2 = stored(), stored_on_avx2()
    readme = HERE / "README.md"
    text = _put(readme.read_text(), "rows", table(rows, list(PRINCIPAL)))
    text = _put(text, "rows on AVX2", avx2_table(on_avx2, list(PRINCIPAL)))
    text = _put(text, "reasons", reasons_table(every_column()))
    operations = HERE / "OPERATIONS.md"
    every = store.RESULTS / "README.md"
    all_rows = _put(every.read_text(), "all rows", table(rows, sorted(rows)))
    why = HERE.parent / "python/docs/why.md"
    gpu = HERE / "GPU.md"
    return {
        readme: text,
        operations: _put(operations.read_text(), "operations", operations_table()),
        every: _put(all_rows, "all rows on AVX2", avx2_table(on_avx2, sorted(on_avx2))),
        gpu: _put(gpu.read_text(), "rows of GPUs", gpu_table()),
        why: _put(why.read_text(), "peers", peers_table(rows)),
    }


def main() -> None:
    checks = sys.argv[1:] == ["--check"]
    stale = [path for path, text in rendered().items() if path.read_text() != text]
    for path, text in rendered().items():
        if not checks:
            write_text(path, text)
    missing = uncovered(every_column())
    for name in missing:
        print(f"no reason of reasons.toml covers {name}")
    for path in stale:
        print(f"{path} {'is not' if checks else 'was not'} what the results say")
    sys.exit(1 if missing or (checks and stale) else 0)


if __name__ == "__main__":
    main()
