# SPDX-License-Identifier: Apache-2.0
"""`File`: reads the lines (test vectors) of a file in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cpd.hardware.vectors.fields import Field, field_of
from cpd.hardware.vectors.lines import LineReader, columns_of, head_in, kind_of
from cpd.numeric.checked import checked

_BLOCK = 1 << 22
_LONGEST_LINE = 1 << 20
_MOST_FIELDS = 1024


@checked
class File:
    """A file of test vectors (lines), with its head.

    Code in a file is never executed.

    The attributes `path`, `kind` and `head` (None: the file has no head) describe the file.
    `fields` describes a line.

    Args:
        path: the file.
        kind: the kind of file: `testfloat`, `readmemh`, `csv` or `jsonl`; default None: the kind
            that the suffix gives.
        fields: the fields of a line. A file without a head needs this argument; with a head it must
            equal the head's fields. Default None: the head's fields.

    Raises:
        ValueError: for an unknown kind, for an invalid head, and if neither `fields` nor the head
            lists the fields.
        OSError: if the file cannot be opened.
    """

    def __init__(self, path: Any, kind: str | None = None, fields: Sequence[Field] = ()) -> None:
        self.path = Path(path)
        self.kind = kind_of(path, kind)
        self.head = self._read_head()
        self.fields = tuple(fields) or self._head_fields()

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yields the lines in batches.

        Yields:
            A dict from each field's name to an array of shape (n,), or (n, count) for fields of
            several elements. The key `line` has the line numbers, from 1.

        Raises:
            ValueError: for an invalid line, and if the file has another number of lines than its
                head states.
        """
        reader = LineReader(self.kind, self.fields, whole=self.head is not None)
        number = count = 0
        with self.path.open("rb") as file:
            for block in self._blocks(file):
                columns = columns_of(self.kind, self.fields, block) if number else None
                n = block.count(b"\n") + (not block.endswith(b"\n"))
                if columns is None:
                    columns = self._one_by_one(reader, block, number)
                else:
                    columns["line"] = np.arange(number + 1, number + n + 1)
                number += n
                count += len(columns["line"])
                if len(columns["line"]):
                    yield columns
        expected = (self.head or {}).get("count")
        if expected is not None and expected != count:
            raise self._error(number, f"the head says {expected} lines, found {count}: truncated?")

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Yields the file's bytes in blocks of whole lines; the first block is the head."""
        rest = b""
        first = True
        number = 0
        while data := file.read(_BLOCK):
            rest += data
            end = rest.rfind(b"\n") + 1
            longest = len(rest) - end
            if longest > _LONGEST_LINE:
                line = number + rest.count(b"\n") + 1
                raise self._error(line, f"longer than {_LONGEST_LINE} bytes")
            block, rest = rest[:end], rest[end:]
            number += block.count(b"\n")
            if first and block:
                # The first yielded block is only the file's head, one line of JSON, and in CSV
                # files also the line with the fields' names.
                begin = 0
                for _ in range(2 if self.kind == "csv" else 1):
                    begin = block.find(b"\n", begin) + 1 or len(block)
                yield block[:begin]
                block, first = block[begin:], False
            if block:
                yield block
        if rest:
            yield rest

    def _one_by_one(self, reader: LineReader, block: bytes, number: int) -> dict[str, Any]:
        lines: list[list[list[int]]] = []
        numbers = []
        for i, raw in enumerate(block.splitlines(), number + 1):
            if len(raw) > _LONGEST_LINE:
                raise self._error(i, f"longer than {_LONGEST_LINE} bytes")
            try:
                text = raw.decode("utf-8")
                is_head = self.kind == "jsonl" and head_in(self.kind, text) is not None
                line = None if is_head else reader.read(text)
            except UnicodeDecodeError:
                raise self._error(i, "not UTF-8 text") from None
            except ValueError as error:
                raise self._error(i, str(error)) from None
            if line is not None:
                lines.append(line)
                numbers.append(i)
        columns: dict[str, Any] = {"line": np.array(numbers, np.int64)}
        for place, field in enumerate(self.fields):
            values = np.array([line[place] for line in lines], np.uint64)
            values = values.reshape(len(lines), field.count)
            columns[field.name] = values[:, 0] if field.count == 1 else values
        return columns

    def _read_head(self) -> dict[str, Any] | None:
        with self.path.open("rb") as file:
            raw = file.readline(_LONGEST_LINE)
        try:
            return head_in(self.kind, raw.decode("utf-8", "replace"))
        except ValueError as error:
            raise self._error(1, str(error)) from None

    def _head_fields(self) -> tuple[Field, ...]:
        descriptions = (self.head or {}).get("fields")
        if not isinstance(descriptions, list) or not 0 < len(descriptions) <= _MOST_FIELDS:
            raise self._error(1, "no head that says the fields of a line")
        try:
            return tuple(map(field_of, descriptions))
        except ValueError as error:
            raise self._error(1, str(error)) from None

    def _error(self, line: int, text: str) -> ValueError:
        return ValueError(f"{self.path}:{line}: {text}")
