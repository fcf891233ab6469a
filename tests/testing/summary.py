# SPDX-License-Identifier: Apache-2.0
"""Summarizes a run of `./dev test` from the JUnit files of ctest, GoogleTest and pytest.

    summary.py [--quick] FILE.xml...

Prints each skipped test with its reason and how often it was skipped, the slowest tests, and the
number of tests that ran. --quick also names tests that took more than QUICK seconds and give no
reason (`@pytest.mark.slow("why")`, or `RecordProperty("slow", "why")` in C++). Such tests do not
fail the run, because their time depends on the other load of the machine.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

sys.path.insert(0, str(Path(__file__).parents[1] / "python/ranks"))

import patience

QUICK = 20.0
"""Limit for a quick test, in seconds of an idle machine (patience.py)."""
LISTED = 10


@dataclass
class Summary:
    skipped: Counter[str] = field(default_factory=Counter)
    cases: int = 0  # of GoogleTest
    programs: int = 0  # of ctest
    python: Counter[str] = field(default_factory=Counter)
    times: list[tuple[float, str, str]] = field(default_factory=list)
    """For each test: the seconds that it took, its name, and its stated reason for being slow."""

    def read(self, path: Path) -> None:
        root = ElementTree.parse(path).getroot()
        for suite in root.iter("testsuite"):
            if root.get("name") == "AllTests":
                self._google(suite)
            elif suite.get("name") == "pytest":
                self._pytest(suite)
            else:
                self._ctest(suite)

    def _google(self, suite: Element) -> None:
        for case, skip in _cases(suite):
            if skip is None and case.get("status") == "run":
                self.cases += 1
                self._time(case)
            elif skip is not None:
                where = f"{case.get('classname')}.{case.get('name')}"
                self.skipped[f"{where}: {_first_line(skip)}"] += 1

    def _ctest(self, suite: Element) -> None:
        for case, skip in _cases(suite):
            if skip is None:
                self.programs += 1
            else:
                said = case.findtext("system-out", "").strip().splitlines()
                self.skipped[f"{case.get('name')}: {said[-1] if said else 'no reason'}"] += 1

    def _pytest(self, suite: Element) -> None:
        for case, skip in _cases(suite):
            if skip is None:
                failed = case.find("failure") is not None or case.find("error") is not None
                self.python["failed" if failed else "passed"] += 1
                self._time(case)
            else:
                self.python["skipped"] += 1
                self.skipped[f"{case.get('classname')}: {skip.get('message')}"] += 1

    def _time(self, case: Element) -> None:
        reasons = {p.get("name"): p.get("value", "") for p in case.iter("property")}
        name = f"{case.get('classname')}.{case.get('name')}"
        self.times.append((float(case.get("time", 0.0)), name, reasons.get("slow", "")))

    def lines(self) -> Iterator[str]:
        if self.skipped:
            yield "skipped, with the number of times:"
        else:
            yield "nothing was skipped"
        for text, times in sorted(self.skipped.items()):
            yield f"{times:7} {text}"
        if self.times:
            yield "the slowest, in seconds:"
        for seconds, name, why in sorted(self.times, key=lambda time: -time[0])[:LISTED]:
            yield f"{seconds:7.1f} {name}" + f": {why}" * bool(why)
        python = ", ".join(f"{n} {word}" for word, n in sorted(self.python.items()))
        yield (
            f"{self.cases} C++ tests in {self.programs} programs and scripts"
            + f"; Python: {python}" * bool(python)
        )

    def too_slow(self, limit: float) -> list[str]:
        return [name for seconds, name, why in self.times if seconds > limit and not why]


def _cases(suite: Element) -> Iterator[tuple[Element, Element | None]]:
    for case in suite.iter("testcase"):
        yield case, case.find("skipped")


def _first_line(skip: Element) -> str:
    """Returns the reason of a skipped test, without the source position that GoogleTest puts before
    it."""
    text = re.sub(r"^[^\n]*:\d+\n", "", skip.get("message", ""))
    return (text.strip().splitlines() or ["no reason"])[0]


def main() -> None:
    quick, *names = sys.argv[1:] if "--quick" in sys.argv[1:2] else ["", *sys.argv[1:]]
    summary = Summary()
    for name in names:
        summary.read(Path(name))
    print("\n".join(summary.lines()))
    limit = patience.scaled(QUICK)
    slow = summary.too_slow(limit) if quick else []
    if slow:
        text = f"quick tests above {limit:.0f} s without a reason: {', '.join(slow)}"
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
