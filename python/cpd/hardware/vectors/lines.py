# SPDX-License-Identifier: Apache-2.0
"""Writes and reads lines (test vectors) of each kind of file.

Lines that CPD has written are read in bulk, lines with any other spacing one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpd import _core
from cpd.hardware.vectors.fields import Field, from_digits, from_number, line_digits
from cpd.numeric.shown import alternatives, shown

KINDS = ("testfloat", "readmemh", "csv", "jsonl")
SUFFIXES = {"testfloat": ".tv", "readmemh": ".hex", "csv": ".csv", "jsonl": ".jsonl"}

_COMMENTS = {"testfloat": ("#", "//"), "readmemh": ("//",), "csv": ("#",), "jsonl": ()}
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]+(?:_+[0-9A-Fa-f]+)*")
_MOST_SHOWN = 40


def kind_of(path: Any, kind: str | None = None) -> str:
    """Returns `kind`; if `kind` is None, returns the kind that the file's suffix gives.

    Raises ValueError for an unknown kind or suffix.
    """
    if kind is not None:
        if kind not in KINDS:
            raise ValueError(f"a kind of file must be {', '.join(KINDS)}, got {shown(kind)}")
        return kind
    suffix = str(path)[str(path).rfind(".") :].lower()
    known = {suffix: kind for kind, suffix in SUFFIXES.items()} | {".mem": "readmemh"}
    if suffix not in known:
        *suffixes, last = known
        raise ValueError(
            f"{path}: a file of vectors must end in {', '.join(suffixes)} or {last}; otherwise "
            f"give its kind (kind= or --as): {alternatives(KINDS)}"
        )
    return known[suffix]


def head_text(kind: str, head: Mapping[str, Any], fields: Sequence[Field]) -> str:
    """Returns the text that precedes the lines in a file: the head and the names of fields."""
    text = json.dumps(head, ensure_ascii=True)
    if kind == "jsonl":
        return text + "\n"
    names = ",".join(field.name for field in fields)
    return f"{'//' if kind == 'readmemh' else '#'} {text}\n" + (
        f"{names}\n" if kind == "csv" else ""
    )


def head_in(kind: str, line: str) -> dict[str, Any] | None:
    """Reads a file's head from a line; returns None if the line is not a head.

    Raises ValueError for an invalid head.
    """
    text = line.strip()
    mark = next((m for m in _COMMENTS[kind] if text.startswith(m)), "")
    content = text.removeprefix(mark).strip()
    if not content.startswith('{"cpd"') or (kind != "jsonl" and not mark):
        return None
    try:
        head = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("the head is not JSON") from None
    return head if isinstance(head, dict) else None


# ---- lines of fixed width -----------------------------------------------------------------------


def _literals(kind: str, fields: Sequence[Field]) -> list[bytes]:
    """Returns the text that is the same in all lines: before each field's digits, and the end."""
    names = [field.name.encode() for field in fields]
    if kind == "jsonl":
        first, *rest = (b'"' + name + b'":"' for name in names)
        return [b"{" + first, *(b'",' + name for name in rest), b'"}\n']
    between = {"testfloat": b" ", "readmemh": b"_", "csv": b","}[kind]
    return [b"", *(between for _ in names[1:]), b"\n"]


def line_width(kind: str, fields: Sequence[Field]) -> int:
    """Returns the number of bytes of a line in a file."""
    return sum(map(len, _literals(kind, fields))) + line_digits(fields)


def lines_of(kind: str, fields: Sequence[Field], columns: Mapping[str, Any]) -> bytes:
    """Returns test vectors as lines of a file; `columns` has an array for each field."""
    *literals, last = _literals(kind, fields)
    numbers = [np.ascontiguousarray(columns[field.name]) for field in fields]
    widths = [field.width for field in fields]
    lines: bytes = _core.text_lines(list(zip(literals, numbers, widths, strict=True)), last)
    return lines


def columns_of(kind: str, fields: Sequence[Field], block: bytes) -> dict[str, Any] | None:
    """Reads lines into arrays. Returns None for lines in another form than `lines_of` writes."""
    width = line_width(kind, fields)
    if len(block) % width:
        return None
    lines = np.frombuffer(block, np.uint8).reshape(-1, width)
    *literals, last = _literals(kind, fields)
    columns: dict[str, Any] = {}
    at = 0
    for literal, field in zip([*literals, last], [*fields, None], strict=True):
        if (lines[:, at : at + len(literal)] != np.frombuffer(literal, np.uint8)).any():
            return None
        at += len(literal)
        if field is not None:
            values = from_digits(field, lines[:, at : at + field.digits])
            if values is None:
                return None
            columns[field.name] = values
            at += field.digits
    return columns


# ---- lines of others ----------------------------------------------------------------------------


class LineReader:
    """Reads lines of one kind of file, with any spacing, one by one.

    Raises ValueError for an invalid line. With `whole`, numbers must have all their digits, as in
    files with a head that lists the fields.
    """

    def __init__(self, kind: str, fields: Sequence[Field], whole: bool = False) -> None:
        self._kind = kind
        self._whole = whole
        self._fields = tuple(fields)
        self._order: list[Field] | None = None if kind == "csv" else list(fields)
        self._in_comment = False

    def read(self, line: str) -> list[list[int]] | None:
        """Reads the elements of each field from a line; returns None if the line has no numbers."""
        text = self._bare(line)
        if not text:
            return None
        if self._order is None:
            self._order = self._named([name.strip() for name in text.split(",")])
            return None
        if self._kind == "jsonl":
            return self._objects(text)
        words = [text] if self._kind == "readmemh" else self._words(text)
        if self._kind == "readmemh":
            return self._word(words[0])
        if len(words) != len(self._order):
            names = " ".join(field.name for field in self._order)
            raise ValueError(f"{len(words)} fields where {len(self._order)} are wanted: {names}")
        elements = {f.name: self._elements(f, w) for f, w in zip(self._order, words, strict=True)}
        return [elements[field.name] for field in self._fields]

    def _bare(self, line: str) -> str:
        """Returns a line of a file without comments."""
        if self._kind == "readmemh":
            line = self._without_blocks(line)
        for mark in _COMMENTS[self._kind]:
            line = line.partition(mark)[0]
        return line.strip()

    def _without_blocks(self, line: str) -> str:
        texts = []
        while line:
            if self._in_comment:
                _, end, line = line.partition("*/")
                self._in_comment = not end
            else:
                before, begin, line = line.partition("/*")
                texts.append(before)
                self._in_comment = bool(begin)
        return " ".join(texts)

    def _words(self, text: str) -> list[str]:
        return [w.strip() for w in text.split(",")] if self._kind == "csv" else text.split()

    def _named(self, names: list[str]) -> list[Field]:
        known = {field.name: field for field in self._fields}
        if sorted(names) != sorted(known):
            raise ValueError(f"columns must be {','.join(known)}, got {_shown(','.join(names))}")
        return [known[name] for name in names]

    def _word(self, text: str) -> list[list[int]]:
        if text.startswith("@"):
            raise ValueError("addresses (@) are not read: words must follow each other")
        number = _number(text, "word")
        digits = line_digits(self._fields)
        if self._whole and len(text.replace("_", "")) < digits:
            raise ValueError(f"a word has {digits} digits, got {_shown(text)}")
        elements = []
        for field in reversed(self._fields):
            elements.append(_checked(field, number & ((1 << 4 * field.digits) - 1)))
            number >>= 4 * field.digits
        if number:
            raise ValueError(f"a word of more than {digits} digits")
        return elements[::-1]

    def _elements(self, field: Field, word: str) -> list[int]:
        digits = len(word.replace("_", ""))
        if digits > field.digits or (self._whole and digits < field.digits):
            requirement = f"{field.name} has {field.digits} hexadecimal digits"
            raise ValueError(f"{requirement}, got {_shown(word)}")
        return _checked(field, _number(word, field.name))

    def _objects(self, text: str) -> list[list[int]]:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"not a JSON object: {_shown(text)}") from None
        if not isinstance(record, dict):
            raise ValueError(f"not a JSON object: {_shown(text)}")
        elements = []
        for field in self._fields:
            if field.name not in record:
                raise ValueError(f"field {field.name} is missing")
            word = record[field.name]
            if not isinstance(word, str):
                raise ValueError(f"field {field.name} must be hexadecimal digits in quotes")
            elements.append(self._elements(field, word))
        return elements


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def _number(word: str, name: str) -> int:
    if not _HEXADECIMAL.fullmatch(word):
        raise ValueError(f"{name} must be hexadecimal digits, got {_shown(word)}")
    return int(word.replace("_", ""), 16)


def _checked(field: Field, number: int) -> list[int]:
    if number >> field.bits:
        raise ValueError(f"{field.name} has {field.bits} bits, got {number:X}")
    return from_number(field, number)
