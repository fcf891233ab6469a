# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `vectors/…`: how fast `cpd vectors` writes its lines. The time includes drawing
the random inputs, computing (by the oracle or by the kernels, on two threads), and formatting the
text. Checks the bits, then compares the rate (10⁶ lines a second) with NumPy, which only generates
the random words for the same number of lines."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import gemm
import numpy as np
from timing import Row, Side, timed

from cpd.hardware import make_vectors

LINES = 1 << 20
WORDS = 17  # of a line of two operands
BAR = 10 / 20  # 10 million lines a second, where NumPy draws the words of 20 million
KNOWN = {
    "vectors/mul/e4m3fn/threads2": "39 39 3A 01",  # 1.125 · 1.125, which is not 1.25
    "vectors/mul/bf16/threads2": "3F81 3F81 3F82 01",  # (1 + 2^-7)², which is not 1 + 2^-6
}
"""For each benchmark row, one line of test vectors that `cpd vectors` must write for the row's
operation and format."""


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, measured on two threads."""
    for row, line in KNOWN.items():
        if not options.selection.wants(row):
            continue
        _, operation, name, _ = row.split("/")
        with TemporaryDirectory() as folder, gemm.setting("", 2):
            path = Path(folder, "lines.tv")
            if line not in make_vectors(operation, name, directed=True).write(
                path
            ).read_text().split("\n"):
                yield {"name": row, "wrong": f"no line {line}"}
                continue
            vectors = make_vectors(operation, name, random=LINES)
            side = Side(lambda p=path, m=vectors: m.write(p), LINES * 1e3)  # type: ignore[misc]
            words = Side(lambda: np.random.PCG64(0).random_raw(WORDS * LINES), LINES * 1e3)
            peer = "NumPy's random words"
            measured = timed(row, "Mlines/s", side, peer, words, options.repeats)
            yield measured | {"bar": BAR}
