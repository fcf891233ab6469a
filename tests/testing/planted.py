# SPDX-License-Identifier: Apache-2.0
"""Plants known faults, one at a time, and checks that the test named for each catches it.

    planted.py [TEXT ...] [--cpp]

Every table of planted/*.toml is a fault: `file`, the text `before` as the file has it (once), the
faulty text `after`, the `test` that must fail, and `why`. Runs those whose file, name or test
contains one of the TEXTs, by default all. Faults in compiled code need a build each, so they run
only with --cpp. A fault is planted in the tree itself, in files without uncommitted changes, and
removed again. Exits with 1 if a fault is not caught.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("planted")
LIMIT = 900
"""Seconds for one test: a fault may loop for ever."""


class Fault(NamedTuple):
    """One planted fault."""

    file: str
    before: str
    after: str
    test: str
    why: str

    @property
    def is_compiled(self) -> bool:
        """Whether only a build shows it."""
        return Path(self.file).suffix in (".h", ".cpp", ".cu", ".cuh")

    @property
    def name(self) -> str:
        """The file, and the line that the fault begins in."""
        text = (ROOT / self.file).read_text()
        return f"{self.file}:{text[: text.find(self.before)].count(chr(10)) + 1}"

    def check(self) -> str:
        """Returns what is wrong with the entry, or an empty text."""
        path = ROOT / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text().count(self.before)
        if count != 1:
            return f"{self.file} has the text {count} times: {self.before!r}"
        if self.before == self.after:
            return f"{self.file}: before and after are equal: {self.before!r}"
        test = self.test.split("::")[0]
        if test.endswith(".py") and not (ROOT / test).is_file():
            return f"{test} does not exist"
        return ""


def faults() -> Iterator[Fault]:
    """All planted faults, in the files' order."""
    for path in sorted(FOLDER.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["mutant"]:
            yield Fault(**table)


def is_caught(fault: Fault) -> bool:
    """Plants the fault, and returns whether its test fails."""
    path = ROOT / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.before, fault.after))
    try:
        return not passes(fault)
    finally:
        path.write_text(text)


def passes(fault: Fault) -> bool:
    """Returns whether the fault's test passes in the tree as it is. Raises RuntimeError where it
    does not run: a fault that does not compile is none."""
    if ".py" in fault.test:
        if fault.is_compiled:
            build("./dev", "build")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", fault.test]
        status = run(command)
        if status not in (0, 1):
            raise RuntimeError(f"{fault.test} does not run: pytest's status is {status}")
        return status == 0
    program, _, case = fault.test.partition(" ")
    build("cmake", "--build", "build/release", "--target", program)
    return run([f"build/release/tests/{program}", f"--gtest_filter={case}"]) == 0


def build(*command: str) -> None:
    """Runs a build. Raises RuntimeError where it fails."""
    if run(command) != 0:
        raise RuntimeError(f"{' '.join(command)} failed")


def run(command: Sequence[str]) -> int:
    """Runs a command silently in the tree; returns its status."""
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT
    ).returncode


def is_clean(fault: Fault) -> bool:
    """Whether the fault's file has no uncommitted changes."""
    return run(["git", "diff", "--quiet", "HEAD", "--", fault.file]) == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="plants known faults, and runs their tests")
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--cpp", action="store_true", help="faults in compiled code, too")
    arguments = parser.parse_args()
    missed = planted = 0
    for fault in faults():
        wanted = not arguments.texts or any(
            text in part for text in arguments.texts for part in (fault.name, fault.test)
        )
        if not wanted or (fault.is_compiled and not arguments.cpp):
            continue
        wrong = fault.check()
        if not wrong and not is_clean(fault):
            wrong = f"{fault.file} has uncommitted changes"
        if wrong:
            sys.exit(f"planted: {wrong}")
        planted += 1
        caught = is_caught(fault)
        missed += not caught
        print(f"{'caught' if caught else 'MISSED'}  {fault.name}  {fault.test}", flush=True)
    print(f"{planted - missed} of {planted} faults are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
