# SPDX-License-Identifier: Apache-2.0
"""Finds the project's prose: paragraphs of pages, comments and docstrings, each with its line."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CPP = (".h", ".cpp", ".cu", ".cuh")
END = re.compile(
    r"(?<!\bal\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bEq\.)(?<!\bNo\.)(?<!\b[A-Z]\.)"
    r"(?:(?<=[.!?])|(?<=[.!?][*)\"'’])|(?<=[.!?]\*\*))\s+(?=[A-Z0-9Ø`*(\[\"…∞])"
)
"""Matches the gap between two sentences."""
HEAD = re.compile(r"\*\*[^*]+[.?!]\*\*")
"""Matches a heading within a paragraph: bold text that ends a sentence."""


class Text(NamedTuple):
    """A paragraph, the first row of a table, a comment or a docstring."""

    file: str
    line: int
    text: str
    kind: str
    """The kind of text: "paragraph", "table", "comment" or "docstring"."""


def tracked(root: Path = ROOT, *suffixes: str) -> list[str]:
    """Returns the files whose names end with one of the suffixes. These are the files under version
    control and new files. Without git, they are all files outside build, out and hidden folders."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        names = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(root) for path in root.rglob("*"))
        names = [path.as_posix() for path in found if not _is_made(path)]
    return sorted(n for n in {*names} if n.endswith(suffixes) and (root / n).is_file())


def _is_made(path: Path) -> bool:
    hidden = any(part.startswith(".") and part != ".github" for part in path.parts[:-1])
    return hidden or path.parts[0] in ("build", "out")


def normal(text: str) -> str:
    """Returns the text with a single blank between words."""
    return " ".join(text.split())


def sentences(text: str) -> list[str]:
    """Splits a paragraph after full stops, exclamation marks and question marks. A heading within
    the paragraph belongs to the sentence after it."""
    parts: list[str] = []
    for part in END.split(normal(text)):
        if parts and HEAD.fullmatch(parts[-1]):
            parts[-1] += " " + part
        elif part:
            parts.append(part)
    return parts


# ---- pages ---------------------------------------------------------------------------------------


def page_texts(name: str, page: str) -> Iterator[Text]:
    """Yields a page's paragraphs, list items, and the first row of each table. Leaves out code (in
    fences or indented by four blanks), headings and HTML comments."""
    page = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), page, flags=re.DOTALL)
    part: list[str] = []
    begin, fence, kind = 0, "", "paragraph"

    def ended() -> Iterator[Text]:
        if part:
            yield Text(name, begin, normal(" ".join(part)), kind)
            part.clear()

    for number, line in enumerate(page.splitlines(), 1):
        bare = line.strip()
        mark = re.match(r"(`{3,}|~{3,}|:{3,})", bare)
        if fence:
            fence = "" if mark and bare.startswith(fence) and bare.strip(fence[0]) == "" else fence
        elif mark:
            yield from ended()
            fence = mark[1]
        elif not bare or bare.startswith(("#", "![")) or (not part and line.startswith("    ")):
            yield from ended()
        elif bare.startswith("|"):
            if kind != "table" or not part:
                yield from ended()
                kind, begin = "table", number
                part.append(bare)
            elif len(part) == 1 and re.fullmatch(r"[|\s]*", part[0]):  # an empty first row
                part[0] = "" if re.fullmatch(r"[|\s:-]*", bare) else bare
            elif len(part) == 1 and part[0] == "":
                part[0] = bare
        else:
            item = re.match(r"([-*+]|\d+\.)\s+", bare)
            if item or kind == "table" or not part:
                yield from ended()
                kind, begin = "paragraph", number
            part.append(bare[item.end() :] if item else bare)
    yield from ended()


def page_rows(page: str) -> Iterator[str]:
    """Yields the rows of a page's tables."""
    yield from (normal(line) for line in page.splitlines() if line.startswith("|"))


# ---- comments and docstrings ---------------------------------------------------------------------


def cpp_comments(name: str, source: str) -> Iterator[Text]:
    """Yields the comments of a C++ or CUDA source. Consecutive lines form one comment."""
    part: list[str] = []
    begin = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = re.match(r"\s*//[/!]?<?\s?(.*)$", line)
        if found and not re.match(r"SPDX|NOLINT|clang-format|-{4,}|={4,}", found[1].strip()):
            begin = begin if part else number
            part.append(found[1])
        elif part:
            yield Text(name, begin, normal(" ".join(part)), "comment")
            part.clear()


def python_texts(name: str, source: str) -> Iterator[Text]:
    """Yields the comments and the docstrings (also of attributes) of a Python source."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Text(name, child.lineno, normal(value.value), "docstring")
    part: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not token.line.lstrip().startswith("#"):
            continue
        text = token.string.lstrip("#! ")
        if re.match(r"SPDX|noqa|type:|ruff:|mypy:|-{4,}|={4,}|/usr/bin", text):
            continue
        if part and token.start[0] != last + 1:
            yield Text(name, begin, normal(" ".join(part)), "comment")
            part.clear()
        begin = begin if part else token.start[0]
        part.append(text)
        last = token.start[0]
    if part:
        yield Text(name, begin, normal(" ".join(part)), "comment")


def texts(root: Path = ROOT, of: str = "") -> Iterator[Text]:
    """Yields all prose of the tree's files whose name contains `of`, ordered by file and line."""
    for name in tracked(root, ".md", ".py", *CPP):
        if of not in name:
            continue
        source = (root / name).read_text()
        if name.endswith(".md"):
            found = page_texts(name, source)
        elif name.endswith(".py"):
            found = python_texts(name, source)
        else:
            found = cpp_comments(name, source)
        yield from sorted(found, key=lambda text: text.line)
