# SPDX-License-Identifier: Apache-2.0
"""`./dev bench [NAME]`: checks the bits, then times; prints tables, and writes out/bench.json and
out/bench/<cpu>.json. With --store the rows also go to benchmarks/results, to those of this CPU.

Exits 1 where bits are wrong. A missed bar is shown, but is no failure: times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import all_reduce
import bounds
import machine
import report
import store
from rich.console import Console
from timing import Row, Side, Work, timed

from cpd._files import write_text

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
    import gemm_map
    import gemm_scaled
    import gemm_sizes
    import model
    import overhead
    import scaled_peers
    import threads
    import virtual_nodes

    yield from fresh.rows(options)
    yield from threads.rows(options)
    yield from gemm.rows(options)
    yield from gemm_sizes.rows(options)
    yield from gemm_map.rows(options)
    yield from gemm_scaled.rows(options)
    yield from scaled_peers.rows(options)
    yield from overhead.rows(options)
    yield from virtual_nodes.rows(options)
    yield from model.rows(options)


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
    parser.add_argument("--store", action="store_true", help="keep the rows in benchmarks/results")
    options = parser.parse_args()
    full = options.floats == parser.get_default("floats") and options.values == all_reduce.VALUES
    if options.store and not full:
        parser.error("--store keeps rows of full size: no --floats, no --values")
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "little")
    return options


def all_rows(programs: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Those whose names contain options.name, as they come."""
    for program in ("bench_cast", "bench_sizes", "bench_hadamard", "bench_scaled"):
        yield from native_rows(programs / program, options, options.name)
    yield from native_rows(programs / "bench_compress", options, options.name)
    yield from fold_rows(programs, options)
    yield from other_rows(options)
    yield from torch_rows(options)
    yield from all_reduce.rows(options, programs)


def write(console: Console, options: argparse.Namespace, rows: list[Row], run: store.Run) -> None:
    """out/bench.json, the run's file under its CPU's name and, if asked, benchmarks/results."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measured = [row for row in rows if "skipped" not in row]
    write_text(options.out, json.dumps(measured, indent=1) + "\n")
    name = machine.this_cpu().file
    path = options.out.with_suffix("") / name
    path.parent.mkdir(exist_ok=True)
    write_text(path, store.dumped(run))
    console.print(f"rows in {options.out} and {path}")
    if options.store:
        console.print(f"kept in {store.store(name, run)}; its tables: python benchmarks/table.py")


def main() -> int:
    options = parse()
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    programs = options.programs or build(console)
    rows: list[Row] = []
    console.print(f"seed {options.seed}; bits first, then times")
    with console.status("the machine") as status:
        measured = machine.rates(
            programs / "bench_machine", bounds.texts(), options.floats, options.repeats
        )
        for row in all_rows(programs, options):
            rows.append(bounds.with_bound(row, measured))
            status.update(f"{len(rows)} rows, last {row['name']}")
    if not rows:
        sys.exit(f"no row's name contains '{options.name}'")
    report.show(console, rows)
    write(console, options, rows, store.made(machine.header(measured), rows))
    wrong = [row["name"] for row in rows if "wrong" in row]
    missed = [row["name"] for row in rows if "bar" in row and row["ratio"] < row["bar"]]
    barred = sum("bar" in row for row in rows)
    console.print(f"bars met: {barred - len(missed)} of {barred}")
    if missed:
        console.print("[yellow]missed:[/] " + ", ".join(missed))
    if wrong:
        console.print("[bold red]wrong bits:[/] " + ", ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
