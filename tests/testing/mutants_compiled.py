# SPDX-License-Identifier: Apache-2.0
"""Builds all compiled mutants at once, and finds which tests catch them.

A copy of the sources with all mutants (`schemata.py`) is compiled in build/mutants, with the scalar
kernels and this CPU's widest. The first build takes about 15 minutes on two cores. The environment
variable CPD_MUTANT selects a mutant. Each test first runs without a mutant. It must pass, and
records how long it takes and which mutants it reaches. A mutant then runs in the tests that reach
it until one fails or exceeds its time limit. The expected test runs first, so at first only the
programs of expected tests are compiled. If mutants survive that without a reason, all programs are
compiled. Tests of the mutant's folder then run before others, and quick tests before exhaustive
ones.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import changed
import gpu
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
PYTHON_PARTS = ("cpd_core", "cpd_torch")
CUDA_PARTS = ("cpd_cuda_on_cpu", "cpd_cublas_on_cpu", "cpd_sim")
OTHER_PROGRAMS = re.compile("comm/(mpi|nccl)/|cuda_on_cpu/test_(devices|library)|package/|fuzz/")
UNRELATED = re.compile(r"isa\.|package\.|comm\.(mpi|nccl)|.*\.(?!sim)\w+\.sim$")
"""Matches the names of tests that this build leaves out: tests of the build itself, and tests of
MPI, NCCL and other parts that are not built."""
FIXED, FACTOR = 20.0, 10.0
"""A mutant's time limit is FIXED seconds plus FACTOR times the time of the test without a
mutant."""
MEMORY = 6 << 30
"""Limit in bytes for the data of one test, because a mutant may allocate without end."""
ALL_LIMIT = 3600.0
SAY_AFTER = 60.0
"""Seconds between two lines of output during a build."""


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
    """The result of a test without a mutant: its time, and the mutants that it reaches."""

    seconds: float
    numbers: frozenset[int]


def build(mutants: Sequence[Mutant], jobs: int, programs: Sequence[str], python: bool) -> None:
    """Copies the sources with all mutants to TREE, and builds the library and the test programs
    there; if `python`, also the Python extension. Raises RuntimeError with the compiler's output if
    the build fails."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    make_tree(mutants)
    options = os.environ.get("CMAKE_ARGS", "").split()
    _say(f"compiling {len(mutants)} mutants and {len(programs)} test programs")
    begin = time.monotonic()
    _call("configure", ["cmake", "-S", str(TREE), "-B", str(BUILD), *CONFIGURE, *options])
    parts = ["cpd", *(PYTHON_PARTS if python else ())]
    on_gpu = gpu.names()
    if any(name in on_gpu or name.endswith(("_on_cpu", "_sim")) for name in programs):
        parts += CUDA_PARTS
    _call("build", ["cmake", "--build", str(BUILD), f"-j{jobs}", "--target", *parts, *programs])
    _say(f"compiled in {time.monotonic() - begin:.0f} s")


def all_programs(exhaustive: bool) -> list[str]:
    """Returns the names of the C++ test programs that can run in this build."""
    sources = [name for name in changed.tests()[0] if not OTHER_PROGRAMS.search(name)]
    if not exhaustive:
        sources = [name for name in sources if "exhaustive" not in name]
    names = [changed.target_of(name) for name in sources]
    return [name.replace("_testing_cuda_on_cpu_", "_") for name in names]


def _say(text: str) -> None:
    print(f"mutants: {text}", file=sys.stderr, flush=True)


def _call(name: str, command: list[str]) -> None:
    log = FOLDER / f"{name}.log"
    launchers = {}
    if shutil.which("ccache"):
        launchers = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "1",
                     "CCACHE_SLOPPINESS": "pch_defines,time_macros"}  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **launchers}
        )  # fmt: skip
        while True:
            try:
                status = process.wait(SAY_AFTER)
                break
            except subprocess.TimeoutExpired:
                steps = re.findall(r"^\[(\d+)/(\d+)\]", log.read_text(errors="replace"), re.M)
                at = f"{steps[-1][0]} of {steps[-1][1]} steps" if steps else "going on"
                _say(f"{name}: {at} ({log.relative_to(ROOT)})")
    if status != 0:
        lines = [line for line in log.read_text().splitlines() if "error" in line.lower()]
        raise RuntimeError(f"{name} failed ({log}):\n" + "\n".join(lines[:20]))


def make_tree(mutants: Sequence[Mutant]) -> None:
    """Makes the mutated tree. Writes only files that differ from the present tree, so few are
    compiled again."""
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
    """Returns the C++ tests of the mutated tree that can run here."""
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
    """Returns the Test that runs a file of Python tests, or one test in it, with the compiled
    module of the mutated tree."""
    command = [f"{ROOT}/build/venv/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p",
               "no:cacheprovider", "-m", "not exhaustive", file]  # fmt: skip
    return Test(file, command, {"PYTHONPATH": str(package())}, "quick")


def package() -> Path:
    """Returns a folder for PYTHONPATH that makes `cpd` load the compiled module of the mutated
    tree."""
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
    """Links the compiled module beside its libraries, as in an installation, and returns its
    path."""
    installed = folder / "installed"
    installed.mkdir(exist_ok=True)
    for path in [*(BUILD / "lib").iterdir(), *(BUILD / "bindings").glob("_core*.so")]:
        link = installed / path.name
        if path.suffix == ".so" or ".so." in path.name:
            with contextlib.suppress(FileExistsError):
                link.symlink_to(path)
    return next(installed.glob("_core*.so"))


def run_test(test: Test, number: int, limit: float, case: str = "", record: str = "") -> str | None:
    """Runs a test with a mutant. Returns the name of the failed case, "time limit", or None if it
    passes."""
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
    """Returns the case that failed, or the case that was running when the program ended. For Python
    tests, returns the test's name without the case."""
    if "pytest" in test.command:
        found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", text, re.M)
        return found[1] if found else f"{test.name} (status {status})"
    found = re.search(r"^\[  FAILED  \] ([\w./]+)", text, re.M)
    running = re.findall(r"^\[ RUN      \] ([\w./]+)", text, re.M)
    return found[1] if found else running[-1] if running else f"status {status}"


# ---- what reaches what ------------------------------------------------------------------------


class Bench:
    """Runs the tests of one build with mutants. Stores which mutants each test reaches, that is,
    whose code the test executes."""

    def __init__(self, exhaustive: bool) -> None:
        self.tests = cpp_tests(exhaustive)
        self.reach: dict[str, Reach] = {}
        self.locks: dict[str, threading.Lock] = {}
        self.guard = threading.Lock()

    def reached(self, test: Test) -> Reach | None:
        """Returns the time of a test and the mutants that it reaches; None if the test fails
        without a mutant. Runs each test only at the first call."""
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

    def expected(self, mutant: Mutant) -> Result:
        """Runs the test that the mutant's entry names, if this test executes the mutated code."""
        case = "" if ".py" in mutant.test else mutant.test.partition(" ")[2]
        for test in self._expected(mutant):
            if found := self._tried(test, schemata.number_of(mutant), case):
                return found
        return Result("", "", "survives the expected test")

    def others(self, mutant: Mutant) -> Result:
        """Runs the tests that execute the mutated code, except the test that the mutant's entry
        names, until one fails."""
        for test in self._others(mutant, self._expected(mutant)):
            if found := self._tried(test, schemata.number_of(mutant), ""):
                return found
        return Result("", "", f"survives {len(self.tests)} programs, where they reach it")

    def _expected(self, mutant: Mutant) -> list[Test]:
        if ".py" in mutant.test:
            return [python_test(mutant.test)]
        return [t for t in self.tests if t.program == mutant.test.partition(" ")[0]]

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
    """Returns the files of Python tests that `changed.py` selects for a file."""
    edges = {**changed.cpp_edges(), **changed.python_edges()}
    reached = changed.leading_to([file], edges)
    return [name for name in changed.tests()[1] if name in reached]


def run(
    mutants: Sequence[Mutant], jobs: int, exhaustive: bool, only_expected: bool
) -> Iterator[tuple[Mutant, Result]]:
    """Runs the mutants, and yields each with its result when it is known. The build contains all
    mutants of the list."""
    everything = [m for m in listed() if m.is_compiled]
    names = all_programs(exhaustive)
    wanted = {m.test.partition(" ")[0] for m in mutants}
    python = any(".py" in m.test or m.file.startswith("bindings/") for m in mutants)
    build(everything, jobs, [name for name in names if name in wanted], python)
    left = []
    bench = Bench(exhaustive)
    for mutant, result in _each(bench.expected, mutants, jobs):
        if result.caught or mutant.survives or only_expected:
            yield mutant, result
        else:
            left.append(mutant)
    if not left:
        return
    _say(f"{len(left)} survive the expected tests: now all others")
    build(everything, jobs, names, python)
    bench.tests = cpp_tests(exhaustive)
    yield from _each(bench.others, left, jobs)


def _each(
    verdict: Callable[[Mutant], Result], mutants: Sequence[Mutant], jobs: int
) -> Iterator[tuple[Mutant, Result]]:
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(verdict, m): m for m in mutants}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
