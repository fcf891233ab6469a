# SPDX-License-Identifier: Apache-2.0
"""What a run of `./dev test` did, from the JUnit files of ctest, GoogleTest and pytest.

    summary.py FILE.xml...

Prints each skipped test with its reason and the number of times, then how many ran.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element


@dataclass
class Summary:
    skipped: Counter[str] = field(default_factory=Counter)
    cases: int = 0  # of GoogleTest
    programs: int = 0  # of ctest
    python: Counter[str] = field(default_factory=Counter)

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
            if skip is None:
                self.cases += case.get("status") == "run"
            else:
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
            else:
                self.python["skipped"] += 1
                self.skipped[f"{case.get('classname')}: {skip.get('message')}"] += 1

    def lines(self) -> Iterator[str]:
        if self.skipped:
            yield "skipped, with the number of times:"
        else:
            yield "nothing was skipped"
        for text, times in sorted(self.skipped.items()):
            yield f"{times:7} {text}"
        python = ", ".join(f"{n} {word}" for word, n in sorted(self.python.items()))
        yield (
            f"{self.cases} C++ tests in {self.programs} programs and scripts"
            + f"; Python: {python}" * bool(python)
        )


def _cases(suite: Element) -> Iterator[tuple[Element, Element | None]]:
    for case in suite.iter("testcase"):
        yield case, case.find("skipped")


def _first_line(skip: Element) -> str:
    """The reason, without the place in the source that GoogleTest puts before it."""
    text = re.sub(r"^[^\n]*:\d+\n", "", skip.get("message", ""))
    return (text.strip().splitlines() or ["no reason"])[0]


def main() -> None:
    summary = Summary()
    for name in sys.argv[1:]:
        summary.read(Path(name))
    print("\n".join(summary.lines()))


if __name__ == "__main__":
    main()
