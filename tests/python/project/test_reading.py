# SPDX-License-Identifier: Apache-2.0
"""Tests `reading.py`, which draws comments and pages at random and reports the share that readers
understood: the choice of texts, and the confidence interval of the share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import reading


@pytest.mark.parametrize(("hits", "count"), [(47, 80), (1, 2), (3, 4), (79, 80)])
def test_wilsons_interval(hits: int, count: int) -> None:
    """Each end p of Wilson's interval lies 1.96 sqrt(p (1 - p) / n) from the share of understood
    texts, for n texts."""
    for end in reading.interval(hits, count):
        deviation = (end * (1 - end) / count) ** 0.5
        assert abs(hits / count - end) == pytest.approx(1.959964 * deviation)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reading.main(["3", "5", "--of", "tests/testing"]) == 0
    printed = capsys.readouterr().out
    assert [line[:3] for line in printed.splitlines() if line[:1].isdigit()] == [
        f"{n}. " for n in range(1, 6)
    ]
    (tmp_path / "answers").write_text("".join(f"{n} y\n" for n in range(1, 6)))
    command = ["3", "5", "--of", "tests/testing", "--answers", str(tmp_path / "answers")]
    assert reading.main(command) == 0
    assert "5 of 5, 100% (57% to 100%)" in capsys.readouterr().out
