# SPDX-License-Identifier: Apache-2.0
"""`./dev bench [NAME]`: checks the bits, then times; prints a table and writes out/bench.json.

Exits 1 where bits are wrong. A missed bar is shown, but is no failure: times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import all_reduce
from rich.console import Console
from rich.table import Table
from timing import Row, Side, Work, timed

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"


def build(console: Console) -> Path:
    """Compiles the benchmark programs; returns their folder."""
    with console.status("compiling the benchmarks"):
        command = ["cmake", "--build", str(BUILD), "--target", "cpd_benchmarks"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        console.print(done.stdout[-4000:] + done.stderr[-4000:], markup=False)
        sys.exit("the benchmarks did not compile")
    return BUILD / "benchmarks"


def native_rows(program: Path, options: argparse.Namespace, only: str) -> Iterator[Row]:
    """The rows that a C++ program prints, as they come; those whose names contain `only`."""
    command = [str(program), "--only", only, "--seed", str(options.seed)]
    command += ["--floats", str(options.floats), "--repeats", str(options.repeats)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode not in (0, 1):
        sys.exit(f"{program.name} ended with status {process.returncode}")


# What an all-reduce computes: `all_reduce` names these rows too.
PARTS = ("fold/256", "pack/e4m3", "unpack/e4m3")


def fold_rows(programs: Path, options: argparse.Namespace) -> Iterator[Row]:
    """The parts of an all-reduce on one thread."""
    program = programs / "bench_fold"
    if options.name != "all_reduce":
        yield from native_rows(program, options, options.name)
        return
    for only in ("fold/256", "pack/e4m3"):
        yield from (row for row in native_rows(program, options, only) if row["name"] in PARTS)


OTHERS = (
    "ml_dtypes/encode/e4m3",
    "ml_dtypes/decode/e4m3",
    "ml_dtypes/encode/e4m3fn",
    "ml_dtypes/decode/e4m3fn",
    "torch/encode/e4m3fn",
    "torch/decode/e4m3fn",
    "torch/cast/e4m3fn",
)


def other_rows(options: argparse.Namespace) -> Iterator[Row]:
    """Other people's casts on the same data sizes, for information."""
    if not any(options.name in name for name in OTHERS):
        return
    import ml_dtypes
    import numpy as np

    rng = np.random.default_rng(options.seed)
    x = np.resize(rng.standard_normal(1 << 20, dtype=np.float32), options.floats)
    y = np.empty_like(x)
    n = x.size

    copy = Side(lambda: np.copyto(y, x), 8 * n)

    def row(name: str, work: Work, moved: int) -> Iterator[Row]:
        assert name in OTHERS
        if options.name in name:
            yield timed(name, "GB/s", Side(work, moved), "memcpy", copy, options.repeats)

    for dtype in (ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn):
        name = np.dtype(dtype).name.removeprefix("float8_")
        codes = x.astype(dtype)
        yield from row(f"ml_dtypes/encode/{name}", lambda d=dtype: x.astype(d), 5 * n)  # type: ignore[misc]
        yield from row(f"ml_dtypes/decode/{name}", lambda c=codes: c.astype(np.float32), 5 * n)  # type: ignore[misc]
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    tcodes = torch.empty(n, dtype=torch.float8_e4m3fn)
    tcodes.copy_(tx)
    yield from row("torch/encode/e4m3fn", lambda: tcodes.copy_(tx), 5 * n)
    yield from row("torch/decode/e4m3fn", lambda: ty.copy_(tcodes), 5 * n)
    yield from row("torch/cast/e4m3fn", lambda: ty.copy_(tcodes.copy_(tx)), 8 * n)


def torch_rows(options: argparse.Namespace) -> Iterator[Row]:
    """What is timed from Python: casts into fresh memory, matrix products, overhead of calls,
    training steps."""
    try:
        import torch  # noqa: F401
    except ImportError:
        for name in ("cast/fresh", "gemm", "scaled/peer", "overhead", "model"):
            if options.name in name:
                yield {"name": name, "skipped": "no torch"}
        return
    import fresh
    import gemm
    import gemm_scaled
    import model
    import overhead
    import scaled_peers
    import virtual_nodes

    yield from fresh.rows(options)
    yield from gemm.rows(options)
    yield from gemm_scaled.rows(options)
    yield from scaled_peers.rows(options)
    yield from overhead.rows(options)
    yield from virtual_nodes.rows(options)
    yield from model.rows(options)


def verdict(row: Row) -> str:
    if "wrong" in row:
        return f"[bold red]WRONG: {row['wrong']}[/]"
    if "skipped" in row:
        return f"skipped: {row['skipped']}"
    if "bar" not in row:
        return ""
    return "[green]met[/]" if row["ratio"] >= row["bar"] else "[yellow]missed[/]"


def _digits(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Kind:
    """Rows of one table: its title, and columns beside the usual ones (heading, key)."""

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
            return row["name"], "", "", "", "", "", *more, verdict(row)
        bar = f"{row['bar']:.3f}" if "bar" in row else ""
        spread = f"{row['least']:.3f} … {row['most']:.3f}"
        numbers = f"{row['value']:.2f}", f"{row['baseline']:.2f}", f"{row['ratio']:.3f}", spread
        return row["name"], *numbers, bar, *more, verdict(row)


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
        extra=(("link", "link"), ("baseline's", "baseline_link"), ("bytes' bound", "bound")),
    ),
    Kind(
        "GFLOP/s",
        "two threads; forward and backward pass of a converted model, 10⁹ multiplications and"
        " additions of the model a second; ratio to the unconverted one (chunked: to the products)",
    ),
    Kind("MB", "MB that a host's interface sent; ratio to what was counted, or its inverse"),
)


def show(console: Console, rows: list[Row]) -> None:
    """A table for the rows of each kind."""
    left = rows
    for kind in KINDS:
        shown = [row for row in left if kind.takes(row)]
        left = [row for row in left if not kind.takes(row)]
        if not shown:
            continue
        table = Table(title=kind.title)
        table.add_column("name", no_wrap=True)
        headings = (kind.unit, "baseline", "ratio", "least … most", "bar")
        for column in (*headings, *(heading for heading, _ in kind.extra)):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("")
        for row in shown:
            table.add_row(*kind.cells(row))
        console.print(table)


def _unit(name: str) -> str:
    """Of a row without a value."""
    if name.startswith("all_reduce"):
        return "ms"
    if name.startswith("overhead"):
        return "µs"
    if name.startswith("model/virtual-nodes"):
        return "ms a step"
    if name.startswith("model"):
        return "GFLOP/s"
    return "GMAC/s" if "gemm" in name else "GB/s"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="only rows whose name contains this")
    parser.add_argument("--floats", type=int, default=64 << 20, help="of a cast (default: 64 Mi)")
    parser.add_argument(
        "--values", type=int, default=all_reduce.VALUES, help="of an all-reduce (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=9, help="timings of each row (default: 9)")
    parser.add_argument("--seed", type=int, default=None, help="of data and drawn formats")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "bench.json")
    parser.add_argument("--programs", type=Path, default=None, help="folder of built benchmarks")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    return options


def main() -> int:
    options = parse()
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    programs = options.programs or build(console)
    rows: list[Row] = []
    console.print(f"seed {options.seed}; bits first, then times")
    with console.status("…") as status:
        sources = (
            native_rows(programs / "bench_cast", options, options.name),
            native_rows(programs / "bench_hadamard", options, options.name),
            native_rows(programs / "bench_scaled", options, options.name),
            native_rows(programs / "bench_compress", options, options.name),
            fold_rows(programs, options),
            other_rows(options),
            torch_rows(options),
            all_reduce.rows(options, programs),
        )
        for source in sources:
            for row in source:
                rows.append(row)
                status.update(f"{len(rows)} rows, last {row['name']}")
    if not rows:
        sys.exit(f"no row's name contains '{options.name}'")
    show(console, rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measured = [row for row in rows if "skipped" not in row]
    options.out.write_text(json.dumps(measured, indent=1) + "\n")
    wrong = [row["name"] for row in rows if "wrong" in row]
    missed = [row["name"] for row in rows if "bar" in row and row["ratio"] < row["bar"]]
    barred = sum("bar" in row for row in rows)
    console.print(f"bars met: {barred - len(missed)} of {barred}; rows in {options.out}")
    if missed:
        console.print("[yellow]missed:[/] " + ", ".join(missed))
    if wrong:
        console.print("[bold red]wrong bits:[/] " + ", ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
