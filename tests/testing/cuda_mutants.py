# SPDX-License-Identifier: Apache-2.0
"""Plants faults in the GPU's kernels, and finds which of them the GPU tests catch on this CPU.

    cuda_mutants.py [--count N] [--seed S] [--only TEXT] [--out FILE] [--jobs N]

The faults are planted in kernels/cuda, one at a time. Each `__syncthreads` is left out once. Of the
comparisons with bounds, terms of indices and rounding modes, a random sample of N is changed. The
sources that include the changed file are compiled, those that compile quickly first. The test
program of each source runs in the CUDA emulation (tests/testing/cuda_on_cpu), with fewer cases, and
with threads in ascending and in descending order, until a test fails. Needs build/release with
cpd_tests. FILE gets a line of JSON for each mutant when its result is known. Mutants that FILE
already contains are not run again. survivors.toml has the known reasons why no test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
KERNELS = ROOT / "kernels/cuda"
TREE = "tests/testing/cuda_on_cpu/CMakeFiles/cpd_cuda_on_cpu.dir/__/__/__/kernels/cuda"

# The test program for each source. Sources that compile quickly come first.
PROGRAMS = {
    "cast": "test_ops_cast_devices",
    "codec": "test_ops_cast_devices",
    "hadamard": "test_ops_hadamard",
    "arithmetic": "test_ops_arithmetic_devices",
    "fold": "test_ops_arithmetic_devices",
    "memory": "test_comm_all_reduce_devices",
    "reduce": "test_comm_all_reduce_devices",
    "blas": "test_ops_gemm_devices",
    "gemm": "test_ops_gemm_devices",
    "gemm_scaled": "test_ops_gemm_devices",
    "api": "test_cuda_on_cpu",
}
LIMIT = 600
"""Limit in seconds for one program. It is far more than a program takes, because a mutant may loop
for ever."""

Change = tuple[str, str]
BARRIERS: list[Change] = [(r"__syncthreads\(\);", ";")]
SAMPLED: dict[str, list[Change]] = {
    "bound": [(r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > ")],
    "index": [
        (r" \+ ", " - "), (r" \* ", " + "), (r" / ", " * "), (r" % ", " / "), (r" \+= ", " -= ")
    ],
    "rounding": [
        (r"Rounding::nearest_even", "Rounding::toward_zero"),
        (r"\bround<mode>", "round<Rounding::toward_zero>"),
    ],
}  # fmt: skip


class Mutant(NamedTuple):
    kind: str
    file: str
    line: int
    column: int
    text: str  # in place of the line

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.kind}"


def mutants() -> Iterator[Mutant]:
    """Yields all mutants: every change at every place of the kernels."""
    for path in sorted(KERNELS.iterdir()):
        if path.suffix not in (".cu", ".cuh", ".h"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            if code.lstrip().startswith(("#", "template", "static_assert")):
                continue
            for kind, changes in {"barrier": BARRIERS, **SAMPLED}.items():
                for pattern, instead in changes:
                    for found in re.finditer(pattern, code):
                        text = line[: found.start()] + found.expand(instead) + line[found.end() :]
                        yield Mutant(kind, path.name, number, found.start(), text)


def chosen(count: int, seed: int) -> list[Mutant]:
    """Returns every mutant of a barrier, and a random sample of `count` other mutants."""
    everything = list(mutants())
    others = [m for m in everything if m.kind != "barrier"]
    random.Random(seed).shuffle(others)
    return [m for m in everything if m.kind == "barrier"] + others[:count]


def includers(file: str) -> list[str]:
    """Returns the sources that include a file, from the compiler's dependency list."""
    found = []
    for source in PROGRAMS:
        listing = _run(["ninja", "-C", str(BUILD), "-t", "deps", f"{TREE}/{source}.cu.o"]).stdout
        if f"kernels/cuda/{file}\n" in listing:
            found.append(source)
    return found


class Bench:
    """Compiles and runs mutants, several at a time."""

    def __init__(self) -> None:
        listing = _run(["ninja", "-C", str(BUILD), "-t", "commands", "cpd_cuda_on_cpu"]).stdout
        self.commands = {}
        for line in listing.splitlines():
            if found := re.search(r"-c \S*/kernels/cuda/(\w+)\.cu$", line):
                self.commands[found[1]] = [w for w in shlex.split(line) if w != "ccache"]
        self.lock = threading.Lock()

    def verdict(self, mutant: Mutant) -> dict[str, object]:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = self._tried(mutant, Path(folder))
        return {
            "mutant": mutant.name, "text": mutant.text.strip(), "result": result,
            "seconds": round(time.monotonic() - begin),
        }  # fmt: skip

    def _tried(self, mutant: Mutant, folder: Path) -> str:
        changed = folder / "kernels/cuda"
        changed.mkdir(parents=True)
        lines = (KERNELS / mutant.file).read_text().splitlines()
        lines[mutant.line - 1] = mutant.text
        (changed / mutant.file).write_text("\n".join(lines) + "\n")
        objects: dict[str, Path] = {}
        for source in includers(mutant.file):
            built = self._compiled(source, folder)
            if built is None:
                return "does not compile"
            objects[source] = built
            self._link(objects, folder)
            for order in ("ascending", "descending"):
                if how := self._failure(PROGRAMS[source], order, folder):
                    return f"caught: {PROGRAMS[source]}, {how}"
        return "survived"

    def _compiled(self, source: str, folder: Path) -> Path | None:
        command = list(self.commands[source])
        own = folder / "kernels/cuda" / f"{source}.cu"
        to = folder / f"{source}.o"
        command[command.index("-o") + 1] = str(to)
        command[command.index("-MF") + 1] = str(folder / "deps")
        if own.exists():
            command[-1] = str(own)
        first = next(i for i, word in enumerate(command) if word.startswith("-I"))
        command.insert(first, f"-I{folder}")
        done = _run([*command, "-w"], cwd=BUILD)
        return to if done.returncode == 0 else None

    def _link(self, objects: dict[str, Path], folder: Path) -> None:
        libraries = folder / "lib"
        libraries.mkdir(exist_ok=True)
        for library in (BUILD / "cuda_on_cpu").iterdir():
            link = libraries / library.name
            if library.name != "libcpd_cuda.so" and not link.exists():
                link.symlink_to(library.resolve())
        inputs = [str(objects.get(s, BUILD / TREE / f"{s}.cu.o")) for s in PROGRAMS]
        _run(
            ["g++", "-shared", "-o", str(libraries / "libcpd_cuda.so"), *inputs,
             f"-L{BUILD}/lib", "-lcpd", f"-L{BUILD}/cuda_on_cpu", "-l:libcuda.so.1", "-ldl"],
            check=True,
        )  # fmt: skip

    def _failure(self, program: str, order: str, folder: Path) -> str:
        """Returns how the program failed; an empty text if it passed."""
        environment = {
            **os.environ,
            "CPD_TEST_BACKENDS": "cuda",
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "CPD_CUDA_ON_CPU": "1",
            "CPD_REQUIRE_GPU": "1",
            "CPD_THREAD_ORDER": order,
        }
        command = [str(BUILD / f"tests/{program}"), "--gtest_fail_fast"]
        try:
            done = _run(command, env=environment, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return "did not end"
        if done.returncode == 0:
            return ""
        failed = re.search(r"\[  FAILED  \] (\w+\.\w+)", done.stdout)
        words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return failed[1] if failed else words[-1][:120]


def _run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", **options)  # type: ignore[call-overload,no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--count", type=int, default=100, help="of the sample; default 100")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants whose names hold this text")
    parser.add_argument("--out", type=Path, default=ROOT / "out/mutants.jsonl")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    wanted = [m for m in chosen(options.count, options.seed) if options.only in m.name]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    results = {row["mutant"]: row for row in map(json.loads, lines)}
    bench = Bench()
    with options.out.open("a") as out, ThreadPoolExecutor(options.jobs) as pool:
        left = [m for m in wanted if m.name not in results]
        for row in pool.map(bench.verdict, left):
            results[str(row["mutant"])] = row
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{row['mutant']}: {row['result']} ({row['seconds']} s)", flush=True)
    done = [results[m.name] for m in wanted if results[m.name]["result"] != "does not compile"]
    survived = [row for row in done if row["result"] == "survived"]
    reasons = harmless()
    for row in survived:
        file = str(row["mutant"]).partition(":")[0]
        why = reasons.get((file, str(row["text"])), "not known why")
        print(f"survived: {row['mutant']}: {row['text']}\n  {why}")
    caught, broken = len(done) - len(survived), len(wanted) - len(done)
    print(f"caught {caught} of {len(done)}; {broken} do not compile")
    return 0


def harmless() -> dict[tuple[str, str], str]:
    """Returns the known reasons why a mutant makes no test fail, by file and changed line."""
    files = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text())
    return {(file, each["line"]): each["why"] for file, all_ in files.items() for each in all_}


if __name__ == "__main__":
    sys.exit(main())
