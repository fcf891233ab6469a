# SPDX-License-Identifier: Apache-2.0
"""Tests that README lists the fast paths of the GPU kernels, with their files."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_CUDA = _ROOT / "kernels/cuda"


def test_every_path_has_a_row_a_file_and_a_line() -> None:
    """Each fast path of paths.def has a file and a row of README's table, in the same order."""
    rows = re.findall(
        r"^CPD_FAST_CUDA\((\w+)\)", (_ROOT / "cpd/numeric/fast/paths.def").read_text(), re.MULTILINE
    )
    lines = re.findall(
        r"^\| `(\w+)` \| `(fast/[\w.]+)` \|", (_CUDA / "README.md").read_text(), re.MULTILINE
    )
    assert rows
    assert [path for path, _ in lines] == rows
    assert [file for _, file in lines] == [f"fast/{path}.cu" for path in rows]
    assert {p.stem for p in (_CUDA / "fast").iterdir()} == set(rows)


def test_a_file_is_the_path_of_its_name() -> None:
    for file in (_CUDA / "fast").iterdir():
        assert re.findall(r"FastPath::(\w+)", file.read_text()) == [file.stem]
