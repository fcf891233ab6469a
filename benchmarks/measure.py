# SPDX-License-Identifier: Apache-2.0
"""Performs a run: checks the bits of each selected row and then times it, by the programs and
modules that measure the rows. Prints tables, and writes out/bench.json and out/bench/<cpu>.json."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import all_reduce
import bounds
import held
import machine
import report
import store
from rich.console import Console
from timing import Row, Side, Work, timed

from cpd._files import write_text

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
PROGRAMS = (
    *("bench_cast", "bench_sizes", "bench_hadamard", "bench_scaled", "bench_compress"),
    *("bench_fold", "bench_arithmetic"),
)


def build(console: Console, tree: Path = BUILD) -> Path:
    """Compiles the benchmark programs of a build tree. Returns their folder."""
    with console.status("compiling the benchmarks"):
        command = ["cmake", "--build", str(tree), "--target", "cpd_benchmarks"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        console.print(done.stdout[-4000:] + done.stderr[-4000:], markup=False)
        sys.exit("the benchmarks did not compile")
    return tree / "benchmarks"


def native_rows(program: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows that a C++ program prints, as soon as each is printed."""
    command = [str(program), "--seed", str(options.seed)]
    command += ["--floats", str(options.floats), "--repeats", str(options.repeats)]
    for pattern in options.selection.patterns:
        command += ["--only", pattern]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode not in (0, 1):
        sys.exit(f"{program.name} ended with status {process.returncode}")


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
    """Measures casts of other libraries on arrays of the size that CPD's rows use, for
    information."""
    if not any(map(options.selection.wants, OTHERS)):
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
        if options.selection.wants(name):
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
    """Yields the benchmark rows that Python measures: casts to new arrays, matrix products,
    overhead of calls, lines of test vectors, training steps."""
    try:
        import torch  # noqa: F401
    except ImportError:
        for name in ("cast/fresh", "gemm", "scaled/peer", "overhead", "vectors", "model"):
            if options.selection.reaches(name):
                yield {"name": name, "skipped": "no torch"}
        return
    import fresh
    import gemm
    import gemm_bf16
    import gemm_map
    import gemm_scaled
    import gemm_sizes
    import model
    import overhead
    import scaled_peers
    import threads
    import vectors
    import virtual_nodes

    import cpd

    warnings.simplefilter("ignore", cpd.PrecisionWarning)  # the rows say how slow they are
    yield from fresh.rows(options)
    yield from threads.rows(options)
    yield from gemm.rows(options)
    yield from gemm_sizes.rows(options)
    yield from gemm_map.rows(options)
    yield from gemm_bf16.rows(options)
    yield from gemm_scaled.rows(options)
    yield from scaled_peers.rows(options)
    yield from overhead.rows(options)
    yield from vectors.rows(options)
    yield from virtual_nodes.rows(options)
    yield from model.rows(options)


def all_rows(programs: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows as soon as each is measured."""
    for program in PROGRAMS:
        yield from native_rows(programs / program, options)
    yield from other_rows(options)
    yield from torch_rows(options)
    yield from all_reduce.rows(options, programs)


def write(console: Console, options: argparse.Namespace, rows: list[Row], run: store.Run) -> None:
    """Writes the measured rows to out/bench.json, and the run to a file named after this CPU. If
    the options ask for it, also merges the run into the file in benchmarks/results."""
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


def measure(options: argparse.Namespace) -> int:
    """Measures all selected benchmark rows and reports them. Returns 1 if bits are wrong, else
    0."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    programs = options.programs or build(console)
    begin = time.monotonic()
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
    if held.is_held(os.environ) and (names := held.beyond_avx2(rows, measured)):
        sys.exit(f"sgemm was not held to AVX2, whose rate it exceeds in {', '.join(names)}")
    write(console, options, rows, store.made(machine.header(measured), rows))
    minutes = (time.monotonic() - begin) / 60
    console.print(f"{len(rows)} rows in {minutes:.1f} minutes")
    return verdict(console, rows)


def verdict(console: Console, rows: list[Row]) -> int:
    """Prints the names of rows below the ratio that they must reach (their bar), and of rows with
    wrong bits. Returns 1 if bits are wrong, else 0."""
    wrong = [row["name"] for row in rows if "wrong" in row]
    missed = [row["name"] for row in rows if bounds.is_missed(row)]
    barred = sum("bar" in row for row in rows)
    console.print(f"bars met: {barred - len(missed)} of {barred}")
    if missed:
        console.print("[yellow]missed:[/] " + ", ".join(missed))
    if wrong:
        console.print("[bold red]wrong bits:[/] " + ", ".join(wrong))
    return 1 if wrong else 0
