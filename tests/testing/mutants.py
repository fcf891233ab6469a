# SPDX-License-Identifier: Apache-2.0
"""Runs the fixed list of mutants: faults planted in the code, one at a time, that tests must catch.

    mutants.py [TEXT ...] [--python | --compiled] [--new] [--open] [--expected] [--exhaustive]
               [--report]

Runs the mutants whose file begins with one of the TEXTs, or whose name or test contains one;
without a TEXT, all of them. --new runs only mutants without a stored result. --open runs only those
that no test caught and that give no reason. --expected runs only the test that each entry names.
--report runs none and prints the table of stored results. Exits with 1 if a mutant survives without
a reason.

Every table of planted/*.toml is a mutant. `file` is the file, `before` a text that the file has
exactly once, and `after` the faulty text. `test` is the test that is expected to fail, and `why`
describes the mistake that a person might make. Optional keys are `kind`, `tier` ("exhaustive" if
only an exhaustive test can catch the mutant), `survives` (why no test can or need catch it) and
`name`. Results are stored by name in planted/results, one file for each file of planted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).with_name("planted")
RESULTS = LISTS / "results"
COMPILED = (".h", ".cpp", ".cu", ".cuh")
KINDS = (
    "boundary", "sign", "dropped term", "operand", "missed case", "index", "lock", "error"
)  # fmt: skip
TIERS = ("quick", "exhaustive")


class Mutant(NamedTuple):
    """One planted fault."""

    file: str
    before: str
    after: str
    test: str
    why: str
    list: str = ""
    """The name of the TOML file that lists the mutant, without the suffix."""
    kind: str = ""
    tier: str = "quick"
    survives: str = ""
    own_name: str = ""
    form: str = ""
    """The form in which a compiled mutant is wrapped, "expression" or "statement". Empty:
    schemata.py finds the form from the changed text."""

    @property
    def name(self) -> str:
        """The key of the mutant's result: the file and a hash of the change, unless the entry has a
        name."""
        change = hashlib.sha256(f"{self.before}\0{self.after}".encode()).hexdigest()
        return self.own_name or f"{self.file}#{change[:8]}"

    @property
    def is_compiled(self) -> bool:
        """Returns whether the mutant changes a compiled file, so that running it needs a build."""
        return Path(self.file).suffix in COMPILED

    @property
    def folder(self) -> str:
        """The folder under which the report counts the mutant, such as cpd/numeric, kernels/cpu or
        python/cpd/nn. Outside these roots it is the outermost folder."""
        parts = Path(self.file).parent.parts
        depth = {"cpd": 2, "kernels": 2, "python": 3, "tests": 2}.get(parts[0] if parts else "", 1)
        return "/".join(parts[:depth]) or "."

    @property
    def line(self) -> int:
        """The number of the line in which the changed text begins."""
        text = (ROOT / self.file).read_text()
        return text[: text.find(self.before)].count("\n") + 1

    def check(self) -> str:
        """Returns what is wrong with the entry; an empty text if it is valid."""
        path = ROOT / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text().count(self.before)
        if count != 1:
            return f"{self.file} has the text {count} times: {self.before!r}"
        if self.before == self.after:
            return f"{self.file}: before and after are equal: {self.before!r}"
        test, *names = self.test.split("::")
        if test.endswith(".py") and not (ROOT / test).is_file():
            return f"{test} does not exist"
        if names and f"def {names[-1].split('[')[0]}(" not in (ROOT / test).read_text():
            return f"{test} has no {names[-1]}"
        if self.kind and self.kind not in KINDS:
            return f"{self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}"
        if self.tier not in TIERS:
            return f"{self.name}: tier must be one of {', '.join(TIERS)}, got {self.tier!r}"
        return ""


def mutants() -> Iterator[Mutant]:
    """Yields all mutants, in the order of the lists."""
    for path in sorted(LISTS.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["mutant"]:
            own_name = table.pop("name", "")
            yield Mutant(**table, list=path.stem, own_name=own_name)


def selected(texts: Iterable[str]) -> list[Mutant]:
    """Returns the mutants whose file begins with one of the texts, or whose name, list or test
    contains one."""
    texts = list(texts)

    def is_selected(mutant: Mutant) -> bool:
        parts = (mutant.name, mutant.list, mutant.test)
        return not texts or any(text in part for text in texts for part in parts)

    return [mutant for mutant in mutants() if is_selected(mutant)]


class Result(NamedTuple):
    """The result of one mutant."""

    caught: str
    """The tier of the test that caught the mutant, "quick" or "exhaustive"; empty if it
    survived."""
    by: str
    """The test that failed, written as in the entries; empty if the mutant survived."""
    how: str = "fails"
    """The outcome: "fails", or "time limit" if the test did not end. For a survivor, the tests that
    were tried."""


def results(list_: str) -> dict[str, Result]:
    """Returns the stored results of one list of mutants, by the mutants' names."""
    path = RESULTS / f"{list_}.json"
    if not path.is_file():
        return {}
    return {name: Result(**row) for name, row in json.loads(path.read_text()).items()}


def reported(mutant: Mutant, result: Result) -> str:
    """Returns one line about a mutant that has run."""
    if result.caught:
        text = f"caught    {mutant.name}  {result.by}"
        text += f" ({result.how})" if result.how != "fails" else ""
        return text + (": say no longer that it survives" if mutant.survives else "")
    if mutant.survives:
        return f"survives  {mutant.name}  {mutant.survives}"
    return f"SURVIVES  {mutant.name}  expected: {mutant.test}"


def table(wanted: Sequence[Mutant]) -> list[str]:
    """Returns the lines of the report: the number of stored results for each folder, then the names
    of the open mutants (no test caught them, and the list gives no reason)."""
    known = {list_: results(list_) for list_ in {m.list for m in wanted}}
    counts: dict[str, Counter[str]] = {}
    open_: list[str] = []
    for mutant in wanted:
        result = known[mutant.list].get(mutant.name)
        column = "not run" if result is None else result.caught
        if column == "":
            column = "survives, reason" if mutant.survives else "open"
            if not mutant.survives:
                open_.append(f"{mutant.name}: {mutant.why}")
        counts.setdefault(mutant.folder, Counter())[column] += 1
    columns = (*TIERS, "survives, reason", "open", "not run")
    heads = ("caught quick", "caught exhaustive", *columns[2:])
    lines = [f"{'':24}{'planted':>10}" + "".join(f"{head:>19}" for head in heads)]
    rows = [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]
    for folder, row in rows:
        lines.append(f"{folder:24}{row.total():>10}" + "".join(f"{row[c]:>19}" for c in columns))
    return lines + open_


def store(found: Iterable[tuple[Mutant, Result]]) -> None:
    """Adds results to the stored ones, and drops the results of mutants that are gone."""
    fresh = {mutant.name: result for mutant, result in found}
    RESULTS.mkdir(exist_ok=True)
    by_list: dict[str, list[str]] = {}
    for mutant in mutants():
        by_list.setdefault(mutant.list, []).append(mutant.name)
    for list_, names in by_list.items():
        if not fresh.keys() & set(names):
            continue
        known = {**results(list_), **fresh}
        rows = {name: known[name]._asdict() for name in sorted(names) if name in known}
        (RESULTS / f"{list_}.json").write_text(json.dumps(rows, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="plants the listed mutants, and runs their tests")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="text in a file, name or test")
    parser.add_argument("--python", action="store_true", help="only mutants of Python code")
    parser.add_argument("--compiled", action="store_true", help="only mutants of C++ and CUDA")
    parser.add_argument("--new", action="store_true", help="only mutants without a result")
    parser.add_argument("--open", action="store_true", help="only uncaught ones without a reason")
    parser.add_argument("--expected", action="store_true", help="run only the test of each entry")
    parser.add_argument("--exhaustive", action="store_true", help="run exhaustive tests too")
    parser.add_argument("--report", action="store_true", help="only print stored results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    wanted = selected(options.texts)
    if wrong := [why for mutant in wanted if (why := mutant.check())]:
        sys.exit("mutants: plant again what has moved:\n" + "\n".join(wrong))
    if options.report:
        print("\n".join(table(wanted)))
        return 0
    left = [m for m in wanted if _is_wanted(m, options)]
    compiled = [m for m in left if m.is_compiled and not options.python]
    others = [m for m in left if not m.is_compiled and not options.compiled]
    missed = 0
    for mutant, result in _run(compiled, others, options):
        if result.caught or not options.expected:
            store([(mutant, result)])
        missed += not result.caught and not mutant.survives
        print(reported(mutant, result), flush=True)
    print("\n".join(table(wanted)))
    return 1 if missed else 0


def _is_wanted(mutant: Mutant, options: argparse.Namespace) -> bool:
    result = results(mutant.list).get(mutant.name)
    if options.new and result is not None:
        return False
    is_closed = result is not None and (result.caught or mutant.survives)
    return not (options.open and is_closed)


def _run(
    compiled: list[Mutant], others: list[Mutant], options: argparse.Namespace
) -> Iterator[tuple[Mutant, Result]]:
    if compiled:
        import mutants_compiled

        yield from mutants_compiled.run(
            compiled, options.jobs, options.exhaustive, options.expected
        )
    if others:
        import mutants_python

        yield from mutants_python.run(others, options.jobs, options.exhaustive)


if __name__ == "__main__":
    sys.modules["mutants"] = sys.modules["__main__"]  # what the runners import
    sys.exit(main())
