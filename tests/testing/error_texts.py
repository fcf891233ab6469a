# SPDX-License-Identifier: Apache-2.0
"""Finds the texts of errors in the sources, and the tests that read each text.

The text of an error becomes a template: the words that its source writes, with a mark for each
value. A reader is a string of a test, an example in a docstring or a page, or a golden file. A
reader reads a template if it contains most of the template's words and few other templates fit it.
The module compares texts and runs no test. A test that compares only an argument's name therefore
reads no template.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import prose

OPEN = "\0"
"""The mark that stands for a value in the template (text with marks) of an error."""
LEAST_LETTERS = 12
"""A template must have at least this number of characters outside its marks for values. A reader (a
text that a test expects) must match at least this number of a template's characters."""
FEW = 3
"""A reader (a text that a test expects) is too general if it fits more than FEW different templates
(texts of errors with marks for values). It then counts as a test of none of them."""
COMMON, RAREST, LONGEST = 120, 4, 400
"""A reader (a text that a test expects) is compared only with the templates of its RAREST rarest
words. If more than COMMON templates have its rarest word, or if it is a pattern longer than LONGEST
characters, it is compared with no template."""
CPP_THROWS = re.compile(
    r"\b(?:throw|return)\s+(?:[\w:]+::)?(\w*(?:Error|Lost|Mismatch|Corrupt|DamagedBytes|[rR]efuse\w*))"
    r"(?:\(|\{)"
)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
REFUSED = ("tests/python/cases/refused.toml", "tests/python/cases/refused_inside.toml")
"""Files with a table for each kind of call. A key of a table is a call that raises an error, and
its value is the error's text. The name of the test that makes the calls is REFUSED_BY and then the
kind."""
REFUSED_BY = "tests/python/package/test_error_texts.py::test_"


class Template(NamedTuple):
    """The text of an error, with the file and line of its source."""

    file: str
    line: int
    text: str
    """The text of the error, with the mark OPEN in place of each value that the text contains."""

    @property
    def shown(self) -> str:
        """The text, with … in place of each value."""
        return prose.normal(self.text.replace(OPEN, "…"))

    @property
    def name(self) -> str:
        return f"{self.file}: {self.shown}"


class Reader(NamedTuple):
    """A reader: a string that a test compares with the text of an error."""

    test: str
    text: str
    is_pattern: bool


# ---- templates -----------------------------------------------------------------------------------


def _has_words(text: str) -> bool:
    words = re.findall(r"[^\W\d_]{2,}", text.replace(OPEN, " "))
    return len(words) >= 2 and len(text.replace(OPEN, "").strip()) >= LEAST_LETTERS


def _alternatives(node: ast.expr | None, names: dict[str, list[str]]) -> list[str]:
    """Returns the templates of the texts that an expression may have as its value. Parts that are
    not literal become OPEN."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(p.value if isinstance(p, ast.Constant) else OPEN for p in node.values)  # type: ignore[misc]
        ]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        right = _alternatives(node.right, names)
        return [a + b for a in _alternatives(node.left, names) for b in right][:8]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return [re.sub(r"%[\d.]*\w", OPEN, text) for text in _alternatives(node.left, names)]
    if isinstance(node, ast.IfExp):
        return _alternatives(node.body, names) + _alternatives(node.orelse, names)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    return [OPEN]


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields the outermost functions of a Python file, and last the code outside of functions."""
    rest: list[ast.AST] = [tree]
    outside = ast.Module([], [])
    while rest:
        for node in ast.iter_child_nodes(rest.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node
            elif isinstance(node, ast.ClassDef):
                rest.append(node)
            elif isinstance(node, ast.stmt):
                outside.body.append(node)
    yield outside


def python_templates(name: str, source: str) -> Iterator[Template]:
    """Yields the texts that a Python source passes to exceptions and to the `error` method of
    parsers."""
    for scope in _scopes(ast.parse(source)):
        names: dict[str, list[str]] = defaultdict(list)
        calls = []
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                texts = [t for t in _alternatives(node.value, {}) if _has_words(t)]
                if texts:
                    names[node.targets[0].id] += texts
            elif isinstance(node, ast.Call) and node.args:
                called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                called = node.func.id if isinstance(node.func, ast.Name) else called
                if called == "error" or called.endswith(("Error", "Lost", "Mismatch", "Corrupt")):
                    calls.append(node)
        for node in calls:
            for argument in node.args:
                for text in _alternatives(argument, names):
                    if _has_words(text):
                        yield Template(name, node.lineno, text)


def _call_at(source: str, begin: int) -> str:
    """Returns the text within the bracket that opens just before `begin`."""
    depth, at = 1, begin
    while depth and at < len(source):
        if found := LITERAL.match(source, at):
            at = found.end()
            continue
        depth += (source[at] in "({[") - (source[at] in ")}]")
        at += 1
    return source[begin : at - 1]


def cpp_templates(name: str, source: str) -> Iterator[Template]:
    """Yields the texts that a C++ source throws."""
    for found in CPP_THROWS.finditer(source):
        call = _call_at(source, found.end())
        parts, last = "", 0
        for literal in LITERAL.finditer(call):
            between = call[last : literal.start()].strip()
            if between:
                parts += OPEN
            last = literal.end()
            is_chosen = re.search(r"(?<!:)[?:]$", between)
            if is_chosen and literal[1][:1] in ("", " ", ",", ";"):  # an addition, in some cases
                continue
            parts += re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], literal[1])
        parts += OPEN if call[last:].strip() else ""
        if _has_words(parts):
            yield Template(name, source.count("\n", 0, found.start()) + 1, parts)


def templates(root: Path = prose.ROOT) -> list[Template]:
    """Returns the texts of all errors of the package and the library. A text that a file has twice
    is included once."""
    found: dict[str, Template] = {}
    for name in prose.tracked(root, ".py", *prose.CPP):
        if name.startswith(("python/cpd/", "python/cpd_lab/")):
            texts = python_templates(name, (root / name).read_text())
        elif name.startswith(("cpd/", "bindings/", "kernels/")) and not name.endswith(".py"):
            texts = cpp_templates(name, (root / name).read_text())
        else:
            continue
        for text in texts:
            found.setdefault(text.name, text)
    return list(found.values())


# ---- readers -------------------------------------------------------------------------------------


def _strings(node: ast.AST, test: str) -> Iterator[Reader]:
    for child in ast.walk(node):
        if isinstance(child, ast.JoinedStr):
            text = "".join(p.value if isinstance(p, ast.Constant) else ".*" for p in child.values)  # type: ignore[misc]
            yield Reader(test, text, True)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield Reader(test, child.value, True)


def readers(root: Path = prose.ROOT) -> Iterator[Reader]:
    """Yields the strings of all tests, of golden files, and of examples that run as tests."""
    for name in prose.tracked(root, ".py", ".cpp", ".h", ".md"):
        source = (root / name).read_text()
        if name.startswith("tests/python/") and name.endswith(".py"):
            for node in ast.parse(source).body:
                is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
                yield from _strings(node, f"{name}::{node.name}" if is_test else name)  # type: ignore[attr-defined]
        elif name.startswith("tests/") and name.endswith((".cpp", ".h")):
            test = name
            for found in re.finditer(
                r'^(?:TYPED_)?TEST(?:_[FP])?\((\w+), (\w+)\)|"((?:[^"\\\n]|\\.)*)"'
                r'(?:\s+"((?:[^"\\\n]|\\.)*)")*',
                source,
                re.M,
            ):
                if found[1]:
                    test = f"{name} {found[1]}.{found[2]}"
                else:
                    whole = "".join(LITERAL.findall(found[0]))
                    yield Reader(test, re.sub(r"\\(.)", r"\1", whole), True)
        elif name.endswith(".md") or name.startswith(("python/cpd/", "python/cpd_lab/")):
            pages = "tests/python/project/test_docs.py::test_commands_print_what_is_shown"
            examples = "tests/python/package/test_doctests.py::test_examples"
            for line in source.splitlines():
                if re.search(r"\b\w*(Error|Mismatch|Lost): |: error: ", line):
                    yield Reader(pages if name.endswith(".md") else examples, line, False)
    for file in REFUSED:
        for kind, cases in tomllib.loads((root / file).read_text()).items():
            texts = [row[-1] for row in cases] if kind == "damaged" else cases.values()
            yield from (Reader(f"{REFUSED_BY}{kind}", text, False) for text in texts)
    test = "tests/golden/cli.json"
    for value in json.loads((root / test).read_text()).values():
        for text in value if isinstance(value, list) else [value]:
            yield Reader(test, str(text), False)


# ---- who reads what ------------------------------------------------------------------------------


def _fragments(text: str, is_pattern: bool) -> list[str]:
    """Returns the fragments of a test's string or pattern that an error must contain unchanged."""
    if not is_pattern:
        return [prose.normal(text)]
    text = re.sub(r"\\([^\w\s])", lambda m: chr(0xE000 + ord(m[1])), text)
    parts = re.split(r"\\[a-zA-Z]\+?|\[[^\]]*\][+*?]?|\.[*+]\??|[()|^$]|\{[^}]*\}", text)
    parts = [re.sub("[\ue000-\ue0ff]", lambda m: chr(ord(m[0]) - 0xE000), p) for p in parts]
    return [p for p in (prose.normal(part) for part in parts) if len(p) >= 4]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]{3,}", text.replace(OPEN, " ")))


def _read(pieces: list[str], fragments: list[str]) -> int:
    """Returns how many characters of a template are covered by the fragments of a reader (a text
    that a test expects)."""
    inside = sum(len(f) for f in fragments if any(f in piece for piece in pieces))
    whole = 0
    for fragment in fragments:
        at = 0
        for piece in pieces:
            found = fragment.find(piece, at) if len(piece) >= 4 else -1
            if found >= 0:
                whole += len(piece)
                at = found + len(piece)
    return max(inside, whole)


def read_by(texts: Iterable[Template], strings: Iterable[Reader]) -> dict[str, list[str]]:
    """Returns the tests that expect an error's text, for each template (text with marks for
    values). The keys are the templates' names."""
    known = list(texts)
    pieces = [[p for p in map(prose.normal, t.text.split(OPEN)) if p] for t in known]
    index: dict[str, list[int]] = defaultdict(list)
    for number, template in enumerate(known):
        for word in _words(template.text):
            index[word].append(number)
    found: dict[str, set[str]] = {template.name: set() for template in known}
    by_text: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for reader in strings:
        if len(reader.text) <= LONGEST or not reader.is_pattern:
            by_text[reader.text, reader.is_pattern].add(reader.test)
    for (text, is_pattern), tests in by_text.items():
        known_words = [word for word in _words(text) if word in index]
        words = sorted(known_words, key=lambda word: (len(index[word]), word))
        if len(words) < 2 or len(index[words[0]]) > COMMON:
            continue
        near = {n for word in words[:RAREST] for n in index[word]}
        fragments = _fragments(text, is_pattern)
        hits = []
        for number in near:
            read = _read(pieces[number], fragments)
            own = sum(map(len, pieces[number]))
            if read >= LEAST_LETTERS and (is_pattern or read >= 0.8 * own):
                hits.append((read, number))
        best = max(hits, default=(0, 0))[0]
        hits = [(read, number) for read, number in hits if read >= 0.8 * best]
        if len({known[number].shown for _, number in hits}) <= FEW:
            for _, number in hits:
                found[known[number].name] |= tests
    return {name: sorted(tests) for name, tests in found.items()}
