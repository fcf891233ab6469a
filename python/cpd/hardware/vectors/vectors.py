# SPDX-License-Identifier: Apache-2.0
"""`Vectors`: test vectors with checked results, in batches or in files."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cpd._core import __version__
from cpd._files import STDOUT, is_replaceable, replaced_together
from cpd.hardware.vectors import inputs
from cpd.hardware.vectors.corners import CORNERS, FLAGS, count_corners
from cpd.hardware.vectors.inputs import MOST_LINES
from cpd.hardware.vectors.lines import SUFFIXES, head_text, kind_of, line_width, lines_of
from cpd.hardware.vectors.rules import ElementRule
from cpd.hardware.vectors.sums import SumRule
from cpd.hardware.vectors.systemverilog import package_text
from cpd.numeric.checked import checked
from cpd.numeric.shown import byte_size

_NAMES = (*CORNERS, *FLAGS)


@checked
class Vectors:
    """The test vectors (lines) of one operation: inputs and their results.

    `count` is the number of lines that the last call of `batches` or `write` has made so far, and
    `coverage` counts their corner cases. A line with a NaN result is left out if the format cannot
    encode NaN; `left_out` counts such lines. After each batch, `write` calls `on_batch`, if it is
    set, with the number of lines so far.

    Args:
        rule: the operation and its roundings.
        source: the kind of inputs: `exhaustive`, `directed`, `random` or `directed+random`.
        random: the number of random lines; default 0.
        seed: the seed of random lines; default 0.
    """

    fields: tuple[tuple[Any, ...], ...]
    """The fields of a line (test vector), in order, as tuples (name, bits, count, role, signed).

    A field has `count` elements of `bits` / `count` bits each; the first element is least
    significant. The role is `input`,
    `signal` (inside a unit) or `output`. Signed elements are in two's complement."""

    def __init__(
        self, rule: ElementRule | SumRule, source: str, random: int = 0, seed: int = 0
    ) -> None:
        self.rule = rule
        self.source = source
        self.random = random
        self.seed = seed
        self.fields = tuple(tuple(field) for field in rule.fields)
        self.on_batch: Callable[[int], None] | None = None
        self._clear()

    def __repr__(self) -> str:
        return f"<cpd.hardware.Vectors of {self.rule}, {self.source}>"

    def _clear(self) -> None:
        self.count = 0
        self.left_out = 0
        self.coverage: Counter[str] = Counter()

    @property
    def head(self) -> dict[str, Any]:
        """The content of a file's head: the operation, the options and the counts of lines."""
        return {
            "cpd": __version__,
            **self.rule.describe(),
            "fields": [field.describe() for field in self.rule.fields],
            "source": self.source,
            "seed": self.seed,
            "count": self.count,
            "coverage": dict(self.coverage),
        }

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yields all test vectors, in batches, from the first line.

        Yields:
            A dict from each field's name to an array of shape (n,), or (n, count) for a field of
            several elements.

        Raises:
            RuntimeError: if the oracle (the exact reference) and the kernels differ.
        """
        self._clear()
        for lines in self._inputs():
            outputs, corners = self.rule.results(lines)
            columns = {**lines, **outputs}
            has_code = ~self.rule.missing(columns["result"])
            if not has_code.all():
                self.left_out += int(np.count_nonzero(~has_code))
                columns = {name: values[has_code] for name, values in columns.items()}
                corners = corners[has_code]
            self.count += len(corners)
            count_corners(self.coverage, columns.get("flags"), corners)
            if len(corners):
                yield columns

    def _inputs(self) -> Iterator[dict[str, Any]]:
        if self.source == "exhaustive":
            yield from inputs.exhaustive(self.rule.inputs)
        if "directed" in self.source:
            yield from inputs.directed(self.rule, self.seed)
        if self.random:
            yield from inputs.in_batches(self.rule, self.random, self.seed)

    def name(self, kind: str) -> str:
        """Returns the default name of a file of these test vectors, such as e4m3_mul_rne.tv.

        Args:
            kind: the kind of file: `testfloat`, `readmemh`, `csv` or `jsonl`.

        Returns:
            The name, with the kind's suffix.

        Raises:
            ValueError: for an unknown kind.
        """
        return self.rule.stem + SUFFIXES[kind_of(None, kind)]

    def write(self, path: str | Path, kind: str | None = None) -> Path:
        """Writes all lines to a file, or replaces an existing file.

        For each line, the results of the oracle (the exact reference) and of the kernels are
        compared. Lines are first written to a temporary file, which then replaces the file.
        Standard output and pipes receive all lines at the end.

        Args:
            path: a file, `-` for standard output, or a folder, in which the file has the name that
                `name(kind)` returns.
            kind: the kind of file: `testfloat`, `readmemh`, `csv` or `jsonl`. Default None: the
                kind that the suffix gives, else `testfloat`. With `readmemh`, a SystemVerilog
                package is written next to the file.

        Returns:
            The file's path.

        Raises:
            ValueError: for an unknown kind.
            RuntimeError: if the oracle and the kernels differ.
            OSError: if the file cannot be written. If the disk has too little free space, the error
                is raised before the first line.
        """
        target = Path(path)
        if target != STDOUT and target.is_dir():
            target = target / self.name(kind_of(None, kind or "testfloat"))
        kind = "testfloat" if kind is None and target == STDOUT else kind_of(target, kind)
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
        whole = target != STDOUT and is_replaceable(target)
        self._check_room(target.parent if whole else Path(tempfile.gettempdir()), target, kind)
        stem = target.with_suffix("").name
        package = target.with_name(f"{stem}_pkg.sv")
        both = kind == "readmemh" and target != STDOUT
        with ExitStack() as stack:
            rest = None if whole else stack.enter_context(tempfile.TemporaryFile())
            if rest is not None:
                self._write_lines(rest, kind)
                rest.seek(0)
            files = stack.enter_context(replaced_together([target, package] if both else [target]))
            if rest is None:
                self._write_lines(files[0], kind)
            else:
                shutil.copyfileobj(rest, files[0], 1 << 20)
            if both:
                files[1].write(package_text(stem, self.rule.fields, self.count).encode())
        return target

    @property
    def planned(self) -> int | None:
        """The number of vectors, including vectors that are left out later; None if unknown.

        The number of directed vectors is only known after they are made.
        """
        if "directed" in self.source:
            return None
        exhaustive = inputs.exhaustive_lines(self.rule.inputs)
        return exhaustive if self.source == "exhaustive" else self.random

    def size(self, kind: str) -> tuple[int, int]:
        """Returns the numbers of lines and bytes of a file, before lines are made.

        Directed lines are not counted. Lines that will be left out are counted.

        Args:
            kind: the kind of file: `testfloat`, `readmemh`, `csv` or `jsonl`.

        Returns:
            The number of lines, and the number of bytes.

        Raises:
            ValueError: for an unknown kind.
        """
        lines = self.random if self.planned is None else self.planned
        return lines, lines * line_width(kind_of(None, kind), self.rule.fields)

    def _check_room(self, folder: Path, target: Path, kind: str) -> None:
        lines, size = self.size(kind)
        free = shutil.disk_usage(folder).free
        if size > free:
            reason = (
                f"{lines:,} lines need {byte_size(size)}, and {folder} has {byte_size(free)} free"
            )
            raise OSError(errno.ENOSPC, reason, str(target))

    def _write_lines(self, file: BinaryIO, kind: str) -> None:
        """Writes the head and the lines.

        The counts in the head are only known at the end. So spaces are written first, and the head
        replaces them at the end.
        """
        begin = file.tell()
        widest = {**self.head, "count": MOST_LINES, "coverage": dict.fromkeys(_NAMES, MOST_LINES)}
        room = len(head_text(kind, widest, self.rule.fields).encode())
        file.write(b" " * room)
        for columns in self.batches():
            file.write(lines_of(kind, self.rule.fields, columns))
            if self.on_batch is not None:
                self.on_batch(self.count + self.left_out)
        first, *names = head_text(kind, self.head, self.rule.fields).splitlines(keepends=True)
        rest = "".join(names).encode()
        head = first.rstrip("\n").encode()
        file.seek(begin)
        file.write(head.ljust(room - len(rest) - 1) + b"\n" + rest)
        file.seek(0, 2)
