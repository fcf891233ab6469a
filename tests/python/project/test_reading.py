# SPDX-License-Identifier: Apache-2.0
"""A reading sample is drawn fairly and judged by a known interval."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import prose
import reading

SOURCE_PY = '''# SPDX-License-Identifier: Apache-2.0
"""The docstring of this module says it."""
# A comment of two lines
# is one text of this file.
X = 1  # a comment behind code is none
"""The constant that X holds here."""


def f():
    """Returns nothing at all to anyone."""
'''
SOURCE_CPP = """// SPDX-License-Identifier: Apache-2.0
/// Adds one to n, and
/// returns it to the caller.
int Add(int n);  // not this one
// NOLINTNEXTLINE(everything)
"""


def test_texts_of_sources() -> None:
    assert [
        (t.line, t.kind)
        for t in sorted(prose.python_texts("a.py", SOURCE_PY), key=lambda t: t.line)
    ] == [
        (2, "docstring"),
        (3, "comment"),
        (6, "docstring"),
        (10, "docstring"),
    ]
    (text,) = prose.cpp_comments("a.h", SOURCE_CPP)
    assert text == ("a.h", 2, "Adds one to n, and returns it to the caller.", "comment")


def texts(count: int) -> list[prose.Text]:
    return [
        prose.Text("a.md", n, f"These are many words of text {n}.", "paragraph")
        for n in range(count)
    ]


def test_the_same_seed_draws_the_same() -> None:
    assert reading.draw(1, 20, texts(100)) == reading.draw(1, 20, texts(100))
    assert reading.draw(1, 20, texts(100)) != reading.draw(2, 20, texts(100))


def test_each_text_has_the_same_chance() -> None:
    """Within five standard deviations of the binomial distribution."""
    drawn = Counter(t.line for seed in range(2000) for t in reading.draw(seed, 5, texts(20)))
    assert sum(drawn.values()) == 10_000
    assert all(abs(drawn[n] - 500) < 5 * (2000 * 0.25 * 0.75) ** 0.5 for n in range(20))


@pytest.mark.parametrize(
    "text", ["One two three", "x == y && z != w; (a + b) * c % d of it all", ""]
)
def test_what_is_no_prose(text: str) -> None:
    assert not reading.is_read(prose.Text("a.py", 1, text, "comment"))


def test_a_table_is_no_prose() -> None:
    assert not reading.is_read(prose.Text("a.md", 1, "| many words of a table |", "table"))


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="N must be at most the 3 texts, got 4"):
        reading.draw(1, 4, texts(3))


@pytest.mark.parametrize(("hits", "count"), [(47, 80), (1, 2), (3, 4), (79, 80)])
def test_wilsons_interval(hits: int, count: int) -> None:
    """Its ends are the shares that lie 1.96 of their own deviations from the sample's."""
    for end in reading.interval(hits, count):
        deviation = (end * (1 - end) / count) ** 0.5
        assert abs(hits / count - end) == pytest.approx(1.959964 * deviation)


def test_intervals_of_none_and_all() -> None:
    assert reading.interval(0, 10) == pytest.approx((0.0, 0.2775), abs=5e-5)
    assert reading.interval(10, 10) == pytest.approx((0.7225, 1.0), abs=5e-5)


def test_long_texts_end_with_a_sentence() -> None:
    text = "This has four words. " * 40
    short = reading.shortened(text)
    assert short.endswith("words. […]")
    assert len(short.split()) <= reading.MOST + 1
    assert reading.shortened("Short. Text.") == "Short. Text."


def test_answers(tmp_path: Path) -> None:
    file = tmp_path / "answers"
    file.write_text("# mine\n1 y\n\n3 y quite\n2 n\n")
    assert reading.answers(file, 3) == [True, False, True]
    lines = reading.verdict(texts(3), [True, False, True])
    assert lines[0].startswith("understood at first reading: 2 of 3, 67% (21% to 94%)")
    assert lines[1].startswith("  md paragraphs: 2 of 3")
    assert lines[2:] == ["2. a.md:1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 y\n", "no verdict on 2"),
        ("1 y\n2 maybe\n", "a line must be a number 1…2, once, and y or n, got '2 maybe'"),
        ("1 y\n1 n\n2 y\n", "once, and y or n, got '1 n'"),
        ("1 y\n3 y\n", "a line must be a number 1…2"),
    ],
)
def test_wrong_answers_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "answers").write_text(text)
    with pytest.raises(ValueError, match=said):
        reading.answers(tmp_path / "answers", 2)


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
