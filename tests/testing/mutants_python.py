# SPDX-License-Identifier: Apache-2.0
"""Runs mutants of files that need no build.

The tree is never changed, so mutants run in parallel. If the mutant changes a module or a data file
of the package, the faulty text is loaded in its place (mutant_hook/sitecustomize.py). Other files,
and files of the tests, are changed in a copy of the tree. The expected test runs first. Then run
the tests that changed.py selects for the file, the tests of its own folder first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import changed
from mutants import ROOT, Mutant, Result

HOOK = Path(__file__).with_name("mutant_hook")
MARKERS = {"quick": "not exhaustive and not gpu", "exhaustive": "exhaustive and not gpu"}
NO_TESTS = 5
"""pytest's exit status if none of the tests belongs to the tier."""
LONGEST = 3600.0
"""Time limit in seconds for tests whose usual time is unknown."""
START = 60.0
"""Seconds that pytest may take to start on a busy machine."""
SLOWER = 10.0
"""The factor by which a test may take longer than usual on a busy machine."""


class Ended(NamedTuple):
    """The outcome of a run of pytest."""

    status: int | None
    """The exit status; None if the time limit ended the run."""
    output: str

    @property
    def by(self) -> str:
        """The name of the first test that failed, without the parameters in brackets."""
        found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", self.output, re.M)
        return found[1] if found else ""


def run(mutants: list[Mutant], jobs: int, exhaustive: bool) -> Iterator[tuple[Mutant, Result]]:
    """Runs mutants, up to `jobs` at a time; yields each with its result as it is done.

    Mutants of the exhaustive tier run only with `exhaustive`, which also runs the exhaustive tests
    of the mutants that survive the quick tier.

    Raises:
        RuntimeError: after all others are done, if mutants could not be run: the entry is wrong,
            the expected test fails without the mutant, or no test loaded the mutated file.
    """
    tiers = ("quick", "exhaustive") if exhaustive else ("quick",)
    runnable = [mutant for mutant in mutants if mutant.tier in tiers]
    wrong = [fault for mutant in runnable if (fault := mutant.check())]
    sound = [mutant for mutant in runnable if not mutant.check()]
    usual = usual_seconds(sorted({m.test for m in sound if m.test}), tiers)
    wrong += [f"{test} fails without a mutant" for test, taken in usual.items() if taken is None]
    sound = [mutant for mutant in sound if usual.get(mutant.test, 0.0) is not None]
    with ThreadPoolExecutor(jobs) as pool:
        tasks = {pool.submit(result, m, usual.get(m.test) or 0.0, tiers): m for m in sound}
        try:
            for task in as_completed(tasks):
                try:
                    yield tasks[task], task.result()
                except RuntimeError as error:
                    wrong.append(str(error))
        finally:
            pool.shutdown(cancel_futures=True)
    if wrong:
        raise RuntimeError("\n".join(wrong))


def usual_seconds(tests: Sequence[str], tiers: Sequence[str]) -> dict[str, float | None]:
    """Runs the tests without a mutant. Returns the seconds that each test takes; None for a test
    that fails. If a test is missing, pytest ends before it runs any, so each test then runs
    alone."""
    if not tests:
        return {}
    marker = " or ".join(f"({MARKERS[tier]})" for tier in tiers)
    with tempfile.TemporaryDirectory(prefix="cpd-mutants-") as name:
        report = Path(name, "report.xml")
        ended = pytest([*tests, f"--junitxml={report}"], marker, limit=LONGEST, stop=False)
        if ended.status not in (0, 1, NO_TESTS):
            if len(tests) == 1:
                return {tests[0]: None}
            return {
                test: taken
                for each in tests
                for test, taken in usual_seconds([each], tiers).items()
            }
        seconds: dict[str, float | None] = dict.fromkeys(tests, 0.0)
        for case in ElementTree.parse(report).iter("testcase"):
            failed = case.find("failure") is not None or case.find("error") is not None
            for test in tests:
                if _is_case_of(case, test):
                    before = seconds[test]
                    taken = (
                        None if failed or before is None else before + float(case.get("time", "0"))
                    )
                    seconds[test] = taken
    return seconds


def _is_case_of(case: ElementTree.Element, test: str) -> bool:
    path, *names = test.split("::")
    classname = ".".join([path.removesuffix(".py").replace("/", "."), *names[:-1]])
    if not names:
        return case.get("classname", "").startswith(classname)
    return (
        case.get("classname") == classname
        and case.get("name", "").split("[")[0] == (names[-1].split("[")[0])
    )


def result(mutant: Mutant, usual: float, tiers: Sequence[str]) -> Result:
    """Runs the tests of one mutant, tier by tier, until one fails."""
    with planted(mutant) as (tree, environment, loaded):
        limit = START + SLOWER * usual
        for tier in tiers:
            for tests, seconds in choices(mutant, limit):
                ended = pytest(
                    tests, MARKERS[tier], limit=seconds, tree=tree, environment=environment
                )
                if ended.status in (0, NO_TESTS):
                    continue
                if not loaded():
                    raise RuntimeError(
                        f"{mutant.name}: {tests[0]} fails and does not load the file"
                    )
                if ended.status is None:
                    return Result(tier, ended.by or mutant.test, "time limit")
                return Result(tier, ended.by or mutant.test)
        if not loaded():
            raise RuntimeError(f"{mutant.name}: no test loads the file")
        return Result("", "")


def choices(mutant: Mutant, limit: float) -> Iterator[tuple[list[str], float]]:
    """Yields lists of tests to run one after the other, each with its time limit in seconds. If the
    entry says why the mutant survives, only the expected test runs."""
    if mutant.test:
        yield [mutant.test], limit
    if not mutant.survives and (others := selected(mutant.file)):
        yield others, LONGEST


@functools.cache
def selected(file: str) -> list[str]:
    """Returns the files of Python tests that changed.py selects for a file. Tests of the file's own
    folder come first, and small files before large ones."""
    lines = changed.plan([file])
    if lines and lines[0].startswith("everything"):
        files = [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "tests/python").glob("**/test_*.py")
        ]
    else:
        files = [line.removeprefix("python ") for line in lines if line.startswith("python ")]
    folder = Path(file).parent.parts[2:3]

    def key(name: str) -> tuple[bool, int, str]:
        path = ROOT / name
        return path.parent.name not in folder, path.stat().st_size, name

    return sorted(files, key=key)


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[tuple[Path, dict[str, str], Callable[[], bool]]]:
    """Plants a mutant. Yields the tree in which its tests run, their environment, and a function
    that returns whether the faulty file was loaded."""
    text = (ROOT / mutant.file).read_text().replace(mutant.before, mutant.after)
    with tempfile.TemporaryDirectory(prefix="cpd-mutant-") as name:
        folder = Path(name)
        if mutant.file.startswith("python/"):
            (folder / "file").write_text(str(ROOT / mutant.file))
            (folder / "text").write_text(text)
            yield ROOT, {"CPD_PYTHON_MUTANT": name}, (folder / "loaded").exists
        else:
            tree = copied(folder)
            (tree / mutant.file).write_text(text)
            yield tree, {}, lambda: True


def copied(folder: Path) -> Path:
    """Copies the tree's files, with links to the build and its data, and returns the copy."""
    tree = folder / ROOT.name
    names = changed.git("ls-files", "--cached", "--others", "--exclude-standard")
    for name in names:
        source = ROOT / name
        if source.is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, tree / name, follow_symlinks=False)
    for link, target in (
        (tree / "build", ROOT / "build"),
        (folder / "shared", ROOT.parent / "shared"),
    ):
        link.symlink_to(target)
    return tree


def pytest(
    arguments: Iterable[str],
    marker: str,
    *,
    limit: float,
    stop: bool = True,
    tree: Path = ROOT,
    environment: dict[str, str] | None = None,
) -> Ended:
    """Runs pytest in a process group of its own, and ends the group when the time limit is
    reached."""
    options = ["-q", "-rfE", "-p", "no:xdist", "-p", "no:cacheprovider", *(["-x"] if stop else [])]
    paths = [str(HOOK), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, "-m", marker, *arguments],
            cwd=tree,
            env=os.environ | own | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(status, output.read())
