# SPDX-License-Identifier: Apache-2.0
"""Builds all compiled mutants at once and says which tests catch them.

A copy of the sources with the mutants wrapped (`schemata.py`) is compiled in build/mutants; the
variable CPD_MUTANT chooses one. Each test first runs without a mutant: it must pass, and says how
long it takes and which mutants it reaches. A mutant then runs in the tests that reach it: the
expected one, those of its folder, and all others, quick ones first, until one fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import changed
import schemata
from mutants import ROOT, Mutant, Result
from mutants import mutants as listed

FOLDER = ROOT / "build/mutants"
TREE = FOLDER / "src"
BUILD = FOLDER / "release"
COPIED = ("CMakeLists.txt", "cpd", "kernels", "bindings", "tests", "benchmarks", "pyproject.toml")
CONFIGURE = (
    "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Mutants", "-DCMAKE_CXX_FLAGS_MUTANTS=-O1 -DNDEBUG -w",
    "-DCPD_CUDA=OFF", "-DCPD_MPI=OFF", "-DCPD_NCCL=OFF", "-DCPD_WIDEST_ISA=ON", "-DCPD_TESTS=ON",
    f"-DPython_EXECUTABLE={ROOT}/build/venv/bin/python",
)  # fmt: skip
PARTS = ("cpd", "cpd_core", "cpd_torch", "cpd_cuda_on_cpu", "cpd_cublas_on_cpu")
OTHER_PROGRAMS = re.compile("comm/(mpi|nccl)/|cuda_on_cpu/test_(devices|library)|package/|fuzz/")
UNRELATED = re.compile(r"isa\.|package\.|comm\.(mpi|nccl)")
"""Tests of the build itself, and of parts that this build is without."""
FIXED, FACTOR = 20.0, 10.0
"""A mutant's time limit is FIXED seconds and FACTOR times what the test takes without one."""
MEMORY = 6 << 30
"""Bytes of data that one test may have: a mutant may allocate without end."""
ALL_LIMIT = 3600.0


class Test(NamedTuple):
    """A program of the C++ tests as ctest runs it, or a file of Python tests."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    tier: str

    @property
    def program(self) -> str:
        return Path(self.command[0]).name if self.command else self.name


class Reach(NamedTuple):
    """The result of a test without a mutant."""

    seconds: float
    numbers: frozenset[int]


def build(
    mutants: Sequence[Mutant], jobs: int, exhaustive: bool = False, only: Sequence[str] = ()
) -> None:
    """Makes the tree and builds it, of the test programs `only` these if there are any.

    Raises RuntimeError with the compiler's words if it fails.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    make_tree(mutants)
    options = os.environ.get("CMAKE_ARGS", "").split()
    _call("configure", ["cmake", "-S", str(TREE), "-B", str(BUILD), *CONFIGURE, *options])
    sources = [name for name in changed.tests()[0] if not OTHER_PROGRAMS.search(name)]
    if not exhaustive:
        sources = [name for name in sources if "exhaustive" not in name]
    names = [changed.target_of(name) for name in sources]
    names = [name.replace("_testing_cuda_on_cpu_", "_") for name in names]
    targets = [*PARTS, *(name for name in names if not only or name in only)]
    _call("build", ["cmake", "--build", str(BUILD), f"-j{jobs}", "--target", *targets])


def _call(name: str, command: list[str]) -> None:
    log = FOLDER / f"{name}.log"
    launchers = {}
    if shutil.which("ccache"):
        launchers = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "1",
                     "CCACHE_SLOPPINESS": "pch_defines,time_macros"}  # fmt: skip
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=out, env={**os.environ, **launchers})
    if done.returncode != 0:
        lines = [line for line in log.read_text().splitlines() if "error" in line.lower()]
        raise RuntimeError(f"{name} failed ({log}):\n" + "\n".join(lines[:20]))


def make_tree(mutants: Sequence[Mutant]) -> None:
    """Writes what differs from the tree that is there, so that little is compiled again."""
    texts = schemata.files(mutants)
    header = f'#include "{TREE}/cpd/base/cpd_mutant.h"\n'
    wanted = {"cpd/base/cpd_mutant.h": schemata.HEADER,
              "cpd/base/cpd_mutant.cpp": header + schemata.SOURCE}  # fmt: skip
    for name in COPIED:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                wanted[path.relative_to(ROOT).as_posix()] = ""
    for file in wanted:
        to = TREE / file
        content = wanted[file].encode()
        if file in texts:
            content = (header + texts[file]).encode()
        elif not content:
            content = (ROOT / file).read_bytes()
        if not to.is_file() or to.read_bytes() != content:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(content)
    for path in TREE.rglob("*"):
        if path.is_file() and path.relative_to(TREE).as_posix() not in wanted:
            path.unlink()


# ---- tests ------------------------------------------------------------------------------------


def cpp_tests(exhaustive: bool) -> list[Test]:
    """The tests of the mutated tree that can run here."""
    listing = subprocess.run(
        ["ctest", "--test-dir", str(BUILD), "--show-only=json-v1"], capture_output=True, check=True
    ).stdout
    found = []
    for each in json.loads(listing)["tests"]:
        properties = {p["name"]: p["value"] for p in each.get("properties", [])}
        labels = properties.get("LABELS", [])
        tier = "exhaustive" if "exhaustive" in labels else "quick"
        if "command" not in each:  # not built
            continue
        if UNRELATED.match(each["name"]) or "gpu" in labels or (tier != "quick" and not exhaustive):
            continue
        environment = dict(v.split("=", 1) for v in properties.get("ENVIRONMENT", []))
        environment.pop("GTEST_OUTPUT", None)
        found.append(Test(each["name"], each["command"], environment, tier))
    return found


def python_test(file: str) -> Test:
    """A file of Python tests, or one test, with the extension of the mutated tree."""
    command = [f"{ROOT}/build/venv/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p",
               "no:cacheprovider", "-m", "not exhaustive", file]  # fmt: skip
    return Test(file, command, {"PYTHONPATH": str(package())}, "quick")


def package() -> Path:
    """A folder for PYTHONPATH that makes `cpd` load the compiled module of the mutated tree."""
    folder = FOLDER / "package"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"""\
import importlib.util, sys
class Mutated:
    def find_spec(self, name, path=None, target=None):
        if name != "cpd._core": return None
        return importlib.util.spec_from_file_location(name, {str(_core(folder))!r})
sys.meta_path.insert(0, Mutated())
""")
    return folder


def _core(folder: Path) -> Path:
    """The module beside its libraries, as an installation has them."""
    installed = folder / "installed"
    installed.mkdir(exist_ok=True)
    for path in [*(BUILD / "lib").iterdir(), *(BUILD / "bindings").glob("_core*.so")]:
        link = installed / path.name
        if path.suffix == ".so" or ".so." in path.name:
            with contextlib.suppress(FileExistsError):
                link.symlink_to(path)
    return next(installed.glob("_core*.so"))


def run_test(test: Test, number: int, limit: float, case: str = "", record: str = "") -> str | None:
    """Runs a test with a mutant. Returns the case that failed or "time limit", or None."""
    environment = {**os.environ, **test.environment, "CPD_MUTANT": str(number)}
    if record:
        environment["CPD_MUTANT_REACHED"] = record
    command = list(test.command)
    if "pytest" not in command:
        command += ["--gtest_fail_fast", "--gtest_color=no"]
        command += [f"--gtest_filter={case}"] if case else []
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, open(f"{folder}/out", "w+b") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT,
            start_new_session=True, preexec_fn=_limit,
        )  # fmt: skip
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return "time limit"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        out.seek(0)
        text = out.read().decode(errors="replace")
    if status == 0 and not re.search(r"^\[  FAILED  \]", text, re.M):
        return None
    return _failed(text, status, test)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _failed(text: str, status: int, test: Test) -> str:
    """The case that failed, or the one that was running when the program ended; of Python's tests
    the name without the case."""
    if "pytest" in test.command:
        found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", text, re.M)
        return found[1] if found else f"{test.name} (status {status})"
    found = re.search(r"^\[  FAILED  \] ([\w./]+)", text, re.M)
    running = re.findall(r"^\[ RUN      \] ([\w./]+)", text, re.M)
    return found[1] if found else running[-1] if running else f"status {status}"


# ---- what reaches what ------------------------------------------------------------------------


class Bench:
    """The tests of a build, what they reach, and the runs of mutants."""

    def __init__(self, exhaustive: bool, only_expected: bool = False) -> None:
        self.tests = cpp_tests(exhaustive)
        self.only_expected = only_expected
        self.reach: dict[str, Reach] = {}
        self.locks: dict[str, threading.Lock] = {}
        self.guard = threading.Lock()

    def reached(self, test: Test) -> Reach | None:
        """Returns what a test reaches, or None if it fails without a mutant. Each is asked once."""
        with self.guard:
            lock = self.locks.setdefault(test.name, threading.Lock())
        with lock:
            if test.name not in self.reach:
                self.reach[test.name] = self._reached(test)
            found = self.reach[test.name]
            return None if found.seconds < 0 else found

    def _reached(self, test: Test) -> Reach:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            record = Path(folder) / "reached"
            failed = run_test(test, -1, ALL_LIMIT, record=str(record))
            numbers = record.read_text().split() if record.is_file() else []
        seconds = time.monotonic() - begin
        if failed:
            print(f"fails without a mutant: {test.name}: {failed}", file=sys.stderr, flush=True)
            seconds = -1.0
        return Reach(seconds, frozenset(map(int, numbers)))

    def verdict(self, mutant: Mutant) -> Result:
        """Runs the tests that reach the mutant, the expected one first, until one fails."""
        number = schemata.number_of(mutant)
        program, _, case = mutant.test.partition(" ")
        if ".py" in mutant.test:
            expected = [python_test(mutant.test)]
        else:
            expected = [t for t in self.tests if t.program == program]
        for test in expected:
            if found := self._tried(test, number, case):
                return found
        for test in () if self.only_expected else self._others(mutant, expected):
            if found := self._tried(test, number, ""):
                return found
        return Result("", "", "survives all tests that reach it")

    def _others(self, mutant: Mutant, tried: list[Test]) -> Iterator[Test]:
        own = mutant.folder.rpartition("/")[2]
        tests = sorted(
            self.tests,
            key=lambda t: (t.tier == "exhaustive", own not in t.name, self._seconds(t)),
        )
        yield from (t for t in tests if t not in tried or mutant.test.count(" "))
        if mutant.file.startswith("bindings/"):
            yield from (python_test(file) for file in _selected_python(mutant.file))

    def _seconds(self, test: Test) -> float:
        found = self.reached(test)
        return found.seconds if found else 1e9

    def _tried(self, test: Test, number: int, case: str) -> Result | None:
        reach = self.reached(test)
        if reach is None or number not in reach.numbers:
            return None
        failed = run_test(test, number, FIXED + FACTOR * reach.seconds, case)
        if failed is None:
            return None
        if "pytest" in test.command:
            by = failed if "::" in failed else test.name
        else:
            by = f"{test.program} {case}" if failed == "time limit" else f"{test.program} {failed}"
        how = "time limit" if failed == "time limit" else "fails"
        return Result(test.tier, by.strip(), how)


def _selected_python(file: str) -> list[str]:
    """The files of Python tests that `changed.py` selects."""
    edges = {**changed.cpp_edges(), **changed.python_edges()}
    reached = changed.leading_to([file], edges)
    return [name for name in changed.tests()[1] if name in reached]


def run(
    mutants: Sequence[Mutant], jobs: int, exhaustive: bool, only_expected: bool
) -> Iterator[tuple[Mutant, Result]]:
    """Yields each mutant with its result as it is done. All that are listed are in the build."""
    only = [m.test.partition(" ")[0] for m in mutants] if only_expected else []
    build([m for m in listed() if m.is_compiled], jobs, exhaustive, only)
    bench = Bench(exhaustive, only_expected)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(bench.verdict, m): m for m in mutants}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
