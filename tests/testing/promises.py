#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the map from promises (statements of pages, texts of errors) to the tests that check them.

    promises.py                  checks the map, and writes out/promises.json
    promises.py --new PAGE       prints the tables that the map lacks for a page, to be filled in
    promises.py --test TEXT      prints the promises of tests whose name contains TEXT
    promises.py --store          writes unmapped_pages.txt and unread_errors.toml (see below)

Every sentence of a page is a claim, unless it ends with a colon or a question mark. Each table of a
page is a claim too, and its first row stands for it. promises/*.toml has a file for each page, with
these tables:

- `[[claim]]`: the sentence's `text`, and the `tests` that check it. A test is `FILE::test_name` in
  tests/python, or `FILE Suite.Name` for C++.
- `[[measured]]`: the `text` of a figure, the `machine` on which it was measured (a file of
  benchmarks/results), and patterns of the `rows` in that file.
- `[[said]]`: the `text` of a sentence that no test checks, and the reason `why`.

In CHANGELOG.md, the entries of the first release under the headings FIXED are claims. Other fixed
faults are the tables `[[fault]]` of promises/faults.toml, with the same keys.

The text of an error is a promise too. The tests that read it (error_texts.py) check it. Errors that
no test reads are the tables `[[error]]` of promises/unread_errors.toml, with `name` and `why`.
Pages without a file are listed in unmapped_pages.txt. These two lists may only shrink.

The check fails if a page has a sentence that the map lacks, if the map has a sentence that the page
lacks, or if it names a test that does not exist. It then prints the promises of that test.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import fnmatch
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import error_texts
import prose

ROOT = prose.ROOT
FOLDER = Path("tests/testing/promises")
CHANGELOG = "CHANGELOG.md"
FIXED = ("Results that change", "Fixed")
FAULTS = "faults.toml"
UNMAPPED, UNREAD = "unmapped_pages.txt", "unread_errors.toml"
KINDS = {"claim": ("tests",), "measured": ("machine", "rows"), "said": ("why",)}
"""The keys that a table of each kind must have, in addition to `text`."""
RESULTS = Path("benchmarks/results")


class Promise(NamedTuple):
    """A claim of a page, a fault that was fixed, or the text of an error; and the tests that check
    it."""

    kind: str
    where: str
    text: str
    tests: tuple[str, ...]


class Entry(NamedTuple):
    """A table of the map of promises: a sentence of a page, with the tests that check it, or the
    measurement (rows of a stored run) that gave its figure, or the reason why it has neither."""

    text: str
    tests: tuple[str, ...] = ()
    why: str = ""
    machine: str = ""
    rows: tuple[str, ...] = ()


# ---- what pages claim ----------------------------------------------------------------------------


def claims(page: str, text: str) -> list[str]:
    """Returns the sentences and tables of a page that the map of promises must list, in the page's
    order."""
    if page == CHANGELOG:
        text = fixed(text)
        return [part.text for part in prose.page_texts(page, text)]
    found: list[str] = []
    for part in prose.page_texts(page, text):
        if part.kind == "table":
            found.append(part.text)
        else:
            sentences = prose.sentences(part.text)
            found += [s for s in sentences if not s.rstrip("*_").endswith((":", "?"))]
    return list(dict.fromkeys(found))


def fixed(changelog: str) -> str:
    """Returns the text below the headings FIXED of the changelog's first (newest) release."""
    release = re.split(r"^## ", changelog, flags=re.M)[1]
    parts = [part.partition("\n") for part in re.split(r"^### ", release, flags=re.M)]
    return "\n".join(body for head, _, body in parts if head.strip() in FIXED)


def entries(root: Path, page: str) -> list[Entry] | None:
    """Returns the tables of a page's file in promises/; None if the page has no file there. Raises
    ValueError for a malformed table."""
    file = root / FOLDER / f"{page.replace('/', '.').removesuffix('.md')}.toml"
    if not file.is_file():
        return None
    found = []
    for kind, tables in tomllib.loads(file.read_text()).items():
        for table in tables:
            if {*table} != {"text", *KINDS.get(kind, ())} or not all(table.values()):
                raise ValueError(
                    f"{file.name}: a table is [[claim]] with text and tests, [[measured]] with "
                    f"text, machine and rows, or [[said]] with text and why, got [[{kind}]] {table}"
                )
            lists = {name: tuple(table.get(name, ())) for name in ("tests", "rows")}
            texts = {name: table.get(name, "") for name in ("why", "machine")}
            found.append(Entry(prose.normal(table["text"]), **lists, **texts))
    return found


def of_rows(root: Path, found: Sequence[Entry]) -> list[str]:
    """Returns a line for each benchmark row that a `[[measured]]` entry of the map names, but that
    the stored results of the entry's machine lack."""
    wrong = []
    for entry in found:
        if not entry.machine:
            continue
        file = root / RESULTS / f"{entry.machine}.json"
        if not file.is_file():
            wrong.append(f"{RESULTS} has no run {entry.machine}: {entry.text}")
            continue
        names = row_names(file)
        wrong += [
            f"{file.relative_to(root)} has no row {row}: {entry.text}"
            for row in entry.rows
            if not fnmatch.filter(names, row)
        ]
    return wrong


@cache
def row_names(file: Path) -> tuple[str, ...]:
    """Returns the names of the results (rows) in a file of benchmarks/results. For a file without
    rows, returns its keys."""
    run = json.loads(file.read_text())
    rows = run.get("rows") if isinstance(run, dict) else run
    return tuple(row["name"] for row in rows) if rows else tuple(run)


def pages(root: Path = ROOT) -> list[str]:
    """Returns the pages under version control."""
    return prose.tracked(root, ".md")


def lines(root: Path, name: str) -> list[str]:
    """Returns the lines of a list of exceptions (UNMAPPED or UNREAD), without comments."""
    text = (root / FOLDER / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def reasons(root: Path = ROOT) -> dict[str, str]:
    """Returns the errors that no test reads, each with the reason, by name."""
    tables = tomllib.loads((root / FOLDER / UNREAD).read_text()).get("error", [])
    return {table["name"]: table.get("why", "") for table in tables}


def of_page(page: str, text: str, found: Sequence[Entry]) -> list[str]:
    """Compares a page's claims (sentences and tables) with its tables in the map of promises.
    Returns a line for each difference."""
    wanted, known = claims(page, text), [entry.text for entry in found]
    wrong = [f"{page}: twice in the map: {t}" for t in dict.fromkeys(known) if known.count(t) > 1]
    for claim in wanted:
        if claim not in known:
            wrong.append(f"{page}: no test is named for: {claim}")
    for entry in found:
        if entry.text not in wanted:
            near = difflib.get_close_matches(entry.text, wanted, 1, 0.5)
            held = f" (held by {', '.join(entry.tests)})" if entry.tests else ""
            nearest = f"\n    it has: {near[0]}" if near else ""
            wrong.append(f"{page}: no longer has{held}: {entry.text}{nearest}")
    return wrong


# ---- tests ---------------------------------------------------------------------------------------


@cache
def functions(file: Path) -> frozenset[str]:
    """Returns the names of the tests in a Python file."""
    tree = ast.parse(file.read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))


@cache
def suites(file: Path) -> frozenset[str]:
    """Returns the names of the tests in a C++ file."""
    found = re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", file.read_text(), re.M)
    return frozenset(f"{suite}.{name}" for suite, name in found)


def exists(root: Path, test: str) -> bool:
    """Returns whether the tree has a test of that name."""
    if "::" in test:
        name, _, function = test.partition("::")
        file = root / name
        return file.is_file() and function.partition("[")[0] in functions(file)
    name, _, case = test.partition(" ")
    file = root / name
    if not file.is_file():
        return False
    return not case or (file.suffix == ".cpp" and case in suites(file))


# ---- the map -------------------------------------------------------------------------------------


def promises(root: Path = ROOT) -> Iterator[Promise]:
    """Yields all promises that have a test."""
    for page in pages(root):
        kind = "fixed fault" if page == CHANGELOG else "claim"
        for entry in entries(root, page) or ():
            if entry.tests:
                yield Promise(kind, page, entry.text, entry.tests)
    for table in tomllib.loads((root / FOLDER / FAULTS).read_text())["fault"]:
        yield Promise("fixed fault", f"{FOLDER / FAULTS}", table["text"], tuple(table["tests"]))


def errors(root: Path = ROOT) -> tuple[list[Promise], list[str]]:
    """Returns the texts of errors that tests read, and the names of the errors that no test
    reads."""
    templates = error_texts.templates(root)
    read = error_texts.read_by(templates, error_texts.readers(root))
    found = [
        Promise("error", t.file, t.shown, tuple(read[t.name])) for t in templates if read[t.name]
    ]
    return found, sorted(t.name for t in templates if not read[t.name])


def of_list(name: str, listed: Sequence[str], found: Iterable[str], text: str) -> list[str]:
    """Compares a stored list of exceptions (`listed`) with the exceptions of this tree (`found`).
    Returns a line for each exception that is not listed, and for each listed one that is gone."""
    now = {*found}
    wrong = [f"{text}: {each}" for each in sorted(now - {*listed})]
    wrong += [
        f"strike from {FOLDER / name}, it is done or gone: {each}"
        for each in listed
        if each not in now
    ]
    return wrong


def unmapped(root: Path = ROOT) -> list[str]:
    """Returns the pages that make claims but have no file in promises/."""
    known = [page for page in pages(root) if entries(root, page) is None]
    return [page for page in known if claims(page, (root / page).read_text())]


def store(root: Path = ROOT) -> None:
    """Writes the lists of exceptions, UNMAPPED and UNREAD, again, each below its opening
    comment."""
    _, unread = errors(root)
    known = reasons(root)
    whys = {name: known.get(name, "") for name in unread}
    tables = [f"\n[[error]]\nname = {quoted(n)}\nwhy = {quoted(why)}" for n, why in whys.items()]
    for name, found in ((UNMAPPED, unmapped(root)), (UNREAD, tables)):
        file = root / FOLDER / name
        head = [line for line in file.read_text().splitlines() if line.startswith("#")]
        file.write_text("\n".join([*head, *found]) + "\n")
        print(f"{FOLDER / name}: {len(found)}")


def complaints(root: Path = ROOT, out: Path = ROOT / "out/promises.json") -> list[str]:
    """Returns the faults of the map of promises, and writes the map to a file."""
    wrong: list[str] = []
    without = unmapped(root)
    for page in pages(root):
        found = entries(root, page)
        if found is not None:
            wrong += of_page(page, (root / page).read_text(), found) + of_rows(root, found)
    files = {
        FAULTS,
        UNREAD,
        *(f"{page.replace('/', '.').removesuffix('.md')}.toml" for page in pages(root)),
    }
    wrong += [
        f"{FOLDER / p.name} is of no page"
        for p in (root / FOLDER).glob("*.toml")
        if p.name not in files
    ]
    wrong += of_list(
        UNMAPPED,
        lines(root, UNMAPPED),
        without,
        "a page without a map (promises.py --new PAGE)",
    )
    held = list(promises(root))
    read, unread = errors(root)
    wrong += of_list(
        UNREAD,
        list(known := reasons(root)),
        unread,
        "no test reads the error's text",
    )
    wrong += [f"{FOLDER / UNREAD} does not say why: {name}" for name in known if not known[name]]
    by_test = defaultdict(list)
    for promise in [*held, *read]:
        for test in promise.tests:
            by_test[test].append(f"{promise.where}: {promise.text}")
    for test in sorted(by_test):
        if not exists(root, test):
            wrong.append(f"{test} does not exist, which held:")
            wrong += [f"    {text}" for text in by_test[test]]
    out.parent.mkdir(exist_ok=True)
    whole = {
        "promises": [promise._asdict() for promise in [*held, *read]],
        "tests": {test: by_test[test] for test in sorted(by_test)},
        "unread errors": unread,
        "unmapped pages": without,
    }
    out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    return wrong


def new_tables(page: str) -> str:
    """Returns the tables for a page that the map of promises lacks, without their tests."""
    known = [entry.text for entry in entries(ROOT, page) or ()]
    missing = [c for c in claims(page, (ROOT / page).read_text()) if c not in known]
    return "".join(f'[[claim]]\ntext = {quoted(text)}\ntests = [""]\n\n' for text in missing)


def quoted(text: str) -> str:
    """A TOML string."""
    return f"'{text}'" if "'" not in text else json.dumps(text, ensure_ascii=False)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="the map of promises and their tests")
    parser.add_argument("--new", metavar="PAGE", help="print the rows that PAGE lacks")
    parser.add_argument("--test", metavar="TEXT", help="print promises of these tests")
    parser.add_argument("--store", action="store_true", help="rewrite the two stored lists")
    given = parser.parse_args(words)
    if given.store:
        store()
        return 0
    if given.new:
        print(new_tables(given.new), end="")
        return 0
    wrong = complaints()
    if given.test:
        tests = json.loads((ROOT / "out/promises.json").read_text())["tests"]
        for test in (test for test in tests if given.test in test):
            print("\n    ".join([test, *tests[test]]))
        return 0
    print("\n".join(wrong) or "every promise has its test: out/promises.json")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
