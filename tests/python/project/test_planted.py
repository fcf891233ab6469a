# SPDX-License-Identifier: Apache-2.0
"""The list of planted faults follows the code: `tests/testing/planted.py` plants them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import planted


def test_the_list_follows_the_code():
    wrong = [why for fault in planted.faults() if (why := fault.check())]
    assert not wrong, "plant again what has moved:\n" + "\n".join(wrong)


FILE = "tests/testing/planted.py"


@pytest.mark.parametrize(
    ("file", "before", "after", "test", "wrong"),
    [
        (FILE, "def is_caught(", "def caught(", "tests/python/project/test_planted.py::t", ""),
        (FILE, "import", "export", "test_a B.C", "has the text"),
        (FILE, "no such text" * 2, "", "test_a B.C", "0 times"),
        ("no/such/file.py", "a", "b", "test_a B.C", "does not exist"),
        (FILE, "def is_caught(", "def is_caught(", "test_a B.C", "are equal"),
        (FILE, "def is_caught(", "", "tests/no_such.py::t", "does not exist"),
    ],
)
def test_entries_are_checked(file: str, before: str, after: str, test: str, wrong: str):
    said = planted.Fault(file, before, after, test, "").check()
    assert wrong in said
    assert bool(said) == bool(wrong)
