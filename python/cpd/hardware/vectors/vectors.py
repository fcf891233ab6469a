# SPDX-License-Identifier: Apache-2.0
"""Vectors: inputs, and the results on which oracle and kernels agree, as batches and as files."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpd._core import __version__
from cpd._files import STDOUT, replaced_together
from cpd.hardware.vectors import inputs
from cpd.hardware.vectors.corners import count_corners
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.lines import SUFFIXES, head_text, kind_of, lines_of
from cpd.hardware.vectors.rules import ElementRule
from cpd.hardware.vectors.sums import SumRule
from cpd.hardware.vectors.systemverilog import package_text
from cpd.numeric.checked import checked

_IN_MEMORY = 1 << 28
"""The bytes of lines that are kept in memory before all of them are in a temporary file."""


@checked
class Vectors:
    """Lines of one operation: inputs and their results.

    `fields`: of a line, in order. `source`: `exhaustive`, `directed`, `random` or
    `directed+random`. `coverage` and `count` are those of the batches made so far. Lines whose
    result has no code (NaN in a format without NaN) are left out and counted in `left_out`.
    """

    def __init__(
        self, rule: ElementRule | SumRule, source: str, random: int = 0, seed: int = 0
    ) -> None:
        self.rule = rule
        self.source = source
        self.random = random
        self.seed = seed
        self.fields: tuple[Field, ...] = rule.fields
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.left_out = 0
        self.coverage: Counter[str] = Counter()

    @property
    def head(self) -> dict[str, Any]:
        """The contents of a file's head."""
        return {
            "cpd": __version__,
            **self.rule.describe(),
            "fields": [field.describe() for field in self.fields],
            "source": self.source,
            "seed": self.seed,
            "count": self.count,
            "coverage": dict(self.coverage),
        }

    def batches(self) -> Iterator[dict[str, Any]]:
        """Batches of lines: field names → n numbers, or n × count elements. Raises
        DisagreementError where oracle and kernels differ."""
        self._clear()
        for given in self._inputs():
            outputs, corners = self.rule.results(given)
            columns = {**given, **outputs}
            kept = ~self.rule.missing(columns["result"])
            if not kept.all():
                self.left_out += int(np.count_nonzero(~kept))
                columns = {name: values[kept] for name, values in columns.items()}
                corners = corners[kept]
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
        """The name of a file of these lines, such as e4m3_mul_rne.tv."""
        return self.rule.stem + SUFFIXES[kind_of(None, kind)]

    def write(self, path: Any, kind: str | None = None) -> Path:
        """Writes a file, or replaces an existing one, after every line has been compared; `-` is
        standard output. In a folder the file gets the lines' own name. With `readmemh` a
        SystemVerilog package is written next to it. Returns the file's path. Raises ValueError for
        an unknown kind, OSError where the file cannot be written."""
        target = Path(path)
        if target != STDOUT and target.is_dir():
            target = target / self.name(kind_of(None, kind or "testfloat"))
        kind = "testfloat" if kind is None and target == STDOUT else kind_of(target, kind)
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
        with tempfile.SpooledTemporaryFile() as rest:
            texts: list[bytes] = []
            size = 0
            for columns in self.batches():
                texts.append(lines_of(kind, self.fields, columns))
                size += len(texts[-1])
                if size > _IN_MEMORY:
                    rest.rollover()
                    rest.writelines(texts)
                    texts.clear()
            rest.seek(0)
            head = head_text(kind, self.head, self.fields).encode()
            stem = target.with_suffix("").name
            package = target.with_name(f"{stem}_pkg.sv")
            both = kind == "readmemh" and target != STDOUT
            with replaced_together([target, package] if both else [target]) as files:
                files[0].write(head)
                shutil.copyfileobj(rest, files[0], 1 << 20)
                files[0].writelines(texts)
                if both:
                    files[1].write(package_text(stem, self.fields, self.count).encode())
        return target
