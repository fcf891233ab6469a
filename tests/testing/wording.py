#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the wording of pages, comments and docstrings: American spelling, and no banned phrase.

Prints the faults; exits with 1 if there are any. codespell checks the spelling. wording.toml has
the banned phrases and the words that codespell does not know, each with its reason. Text in fences,
in backticks and in double quotation marks is not read.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import prose

FILE = Path(__file__).with_suffix(".toml")
DICTIONARIES = "clear,rare,en-GB_to_en-US"
HASH = (".cmake", ".sh", ".toml", ".yaml", ".yml", "CMakeLists.txt", "/run", "dev")
"""Suffixes of the files whose comments begin with a number sign."""
SLASHES = (".sv", ".svh")
"""Suffixes of further files whose comments begin with two slashes."""
MADE = ("requirements.lock", "tests/testing/wording.toml")
"""Files that are not checked."""
QUOTED = re.compile(r"``.+?``|`[^`]+`|\"[^\"]*\"|“[^”]*”|<[^ >][^>]*>|\]\([^)]*\)|https?://\S+")
"""Matches code, quotations, tags, and the targets of links."""
NAME = re.compile(r"\b\w*(?:_\w*|\w[A-Z]\w*|\d\w*)\b|\b\w+(?=\()|\b[\w/]+\.(?:\w+)\b")
"""Matches names of code and of files that are not in backticks."""


class Phrase(NamedTuple):
    """A banned phrase."""

    name: str
    pattern: re.Pattern[str]
    why: str
    opening: bool
    """True if only the first word of a comment or docstring is banned."""

    def count(self, text: prose.Text) -> int:
        """Returns how many times a text has the phrase. Quotations and code in the text must be
        masked."""
        if not self.opening:
            return len(self.pattern.findall(text.text))
        return int(text.kind in ("comment", "docstring") and bool(self.pattern.match(text.text)))


class Rules(NamedTuple):
    """The contents of wording.toml."""

    phrases: tuple[Phrase, ...]
    words: tuple[str, ...]


def read_rules(text: str) -> Rules:
    """Reads wording.toml. Raises ValueError for a rule without a reason, or for a phrase that is
    listed twice."""
    data = tomllib.loads(text)
    phrases = []
    for row in data.get("banned", []):
        if not row.get("why") or row["name"] in (phrase.name for phrase in phrases):
            raise ValueError(f"{row['name']!r} must be listed once, with its reason why")
        pattern = re.compile(row["pattern"])
        phrases.append(Phrase(row["name"], pattern, row["why"], row.get("opening", False)))
    for row in data.get("words", []):
        if not row.get("why"):
            raise ValueError(f"{row['word']!r} must have its reason why")
    words = tuple(row["word"] for row in data.get("words", []))
    return Rules(tuple(phrases), words)


# ---- what is read --------------------------------------------------------------------------------


def masked(text: str) -> str:
    """Returns the text with each quotation and each piece of code replaced by a backtick."""
    return QUOTED.sub("`", text)


def trailing(name: str, source: str) -> Iterator[prose.Text]:
    """Yields the comments that follow code on the same line, in Python and C++."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and not token.line.lstrip().startswith("#"):
                yield prose.Text(name, token.start[0], token.string.lstrip("# "), "trailing")
        return
    for number, line in enumerate(source.splitlines(), 1):
        if found := re.match(r"\s*[^\s/\"][^\"]*?\s//[/!]?<?\s?(.+)$", line):
            yield prose.Text(name, number, found[1], "trailing")


def hash_comments(name: str, source: str) -> Iterator[prose.Text]:
    """Yields the lines of a script or a settings file that are comments."""
    for number, line in enumerate(source.splitlines(), 1):
        if found := re.match(r"\s*#+\s+(?!shellcheck|SPDX)(.+)$", line):
            yield prose.Text(name, number, found[1], "line")


def texts(root: Path = prose.ROOT) -> Iterator[prose.Text]:
    """Yields all texts that are checked, with quotations and code masked."""
    for text in (*prose.texts(root), *further(root)):
        if text.file not in MADE:
            yield text._replace(text=masked(text.text))


def further(root: Path) -> Iterator[prose.Text]:
    """Yields comments that follow code on the same line, and comments of languages that prose.texts
    does not read."""
    for name in prose.tracked(root, ".py", *prose.CPP, *SLASHES, *HASH):
        source = (root / name).read_text()
        if name.endswith(SLASHES):
            yield from prose.cpp_comments(name, source)
        yield from hash_comments(name, source) if name.endswith(HASH) else trailing(name, source)


# ---- the checks ----------------------------------------------------------------------------------

Lines = dict[str, dict[str, list[int]]]
"""The numbers of the lines that contain a phrase or a misspelled word, by file and by phrase or
word."""


def misspelled(read: Sequence[prose.Text], words: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Finds misspelled words, except the allowed `words`, in a list of texts. Yields for each the
    index of the text that contains the word, and codespell's correction."""
    lines = [NAME.sub("_", text.text) for text in read]
    command = [sys.executable, "-m", "codespell_lib", f"--builtin={DICTIONARIES}"]
    command += ["--regex=[A-Za-z']+", f"--ignore-words-list={','.join(words)}", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    if done.returncode not in (0, 65):  # 65: some words are misspelled
        raise RuntimeError(f"codespell failed with status {done.returncode}: {done.stderr.strip()}")
    for number, correction in re.findall(r"^(\d+): .*\n\t(.+)$", done.stdout, re.MULTILINE):
        yield int(number) - 1, correction


def lines_of(read: Sequence[prose.Text], rules: Rules) -> Lines:
    """Returns the numbers of the lines with banned phrases or misspelled words. A number occurs
    once for each fault of its line."""
    found: Lines = {}
    for text in read:
        for phrase in rules.phrases:
            if number := phrase.count(text):
                lines = found.setdefault(text.file, {}).setdefault(phrase.name, [])
                lines += [text.line] * number
    for index, correction in misspelled(read, rules.words):
        text = read[index]
        found.setdefault(text.file, {}).setdefault(correction, []).append(text.line)
    return found


def faults_of(found: Lines, rules: Rules) -> list[str]:
    """Returns a line for each phrase or misspelled word of each file."""
    whys = {phrase.name: f": {phrase.why}" for phrase in rules.phrases}
    return [
        f"{file}:{', '.join(map(str, lines))}: {name}{whys.get(name, '')}"
        for file, by_name in sorted(found.items())
        for name, lines in by_name.items()
    ]


def main() -> int:
    rules = read_rules(FILE.read_text())
    faults = faults_of(lines_of([*texts()], rules), rules)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
