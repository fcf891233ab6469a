# SPDX-License-Identifier: Apache-2.0
"""Tests that each promise to users has tests, and that promises.py, which checks this, finds
mistakes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/testing"))

import error_texts  # noqa: E402
import promises  # noqa: E402
import prose  # noqa: E402

UNMAPPED_PAGES, UNREAD_ERRORS = 0, 22
"""The lengths of unmapped_pages.txt and unread_errors.toml, two lists that may only shrink.

If you shorten a list, lower its number here.
"""


@pytest.mark.exhaustive
def test_every_promise_has_its_test(tmp_path: Path) -> None:
    """The check of promises finds no mistake. `./dev check lint` makes the same check."""
    assert promises.complaints(ROOT, tmp_path / "map.json") == []
    whole = json.loads((tmp_path / "map.json").read_text())
    kinds = {promise["kind"] for promise in whole["promises"]}
    assert kinds == {"claim", "fixed fault", "error"}
    assert all(promise["tests"] for promise in whole["promises"])
    assert {t for promise in whole["promises"] for t in promise["tests"]} == {*whole["tests"]}


def test_the_lists_shrink() -> None:
    assert len(promises.lines(ROOT, "unmapped_pages.txt")) == UNMAPPED_PAGES
    assert len(promises.reasons(ROOT)) == UNREAD_ERRORS


# ---- pages ---------------------------------------------------------------------------------------

PAGE = """# A page
**Sums.** Sums are exact (Eq. 5 of a paper). Are they? `x` is
never NaN. As here:

```python
Code is no claim.
```

    Indented code is none.

| a | b |
|---|---|
| 1 | 2 |

- Each item is one.
- It has 2.5 parts; see J. Doe et al. 2020.

<!-- No claim. -->
"""


def test_each_sentence_and_table_is_a_claim() -> None:
    assert promises.claims("page.md", PAGE) == [
        "**Sums.** Sums are exact (Eq. 5 of a paper).",
        "`x` is never NaN.",
        "| a | b |",
        "Each item is one.",
        "It has 2.5 parts; see J. Doe et al. 2020.",
    ]


def test_the_changelog_claims_what_is_fixed_in_the_first_release() -> None:
    text = "# C\n## Unreleased\n### Added\n- A.\n### Fixed\n- One. Two.\n- Three.\n## 1.0\n- Old.\n"
    assert promises.claims("CHANGELOG.md", text) == ["One. Two.", "Three."]


def entries(*texts: str) -> list[promises.Entry]:
    return [promises.Entry(text, ("t.py::test_a",)) for text in texts]


def test_a_page_and_its_tables() -> None:
    known = promises.claims("page.md", PAGE)
    assert promises.of_page("page.md", PAGE, entries(*known)) == []
    (missing,) = promises.of_page("page.md", PAGE, entries(*known[1:]))
    assert missing == f"page.md: no test is named for: {known[0]}"
    changed = PAGE.replace("never NaN", "rarely NaN")
    lost, gone = promises.of_page("page.md", changed, entries(*known))
    assert lost == "page.md: no test is named for: `x` is rarely NaN."
    assert "no longer has (held by t.py::test_a): `x` is never NaN." in gone
    assert "it has: `x` is rarely NaN." in gone
    (twice,) = promises.of_page("page.md", PAGE, entries(*known, known[0]))
    assert "twice in the map" in twice


@pytest.mark.parametrize(
    "table",
    [
        '[[claim]]\ntext = "A."\n',
        '[[claim]]\ntext = "A."\ntests = []\n',
        '[[said]]\ntext = "A."\ntests = ["t"]\n',
        '[[said]]\ntext = "A."\nwhy = ""\n',
        '[[promise]]\ntext = "A."\nwhy = "b"\n',
        '[[measured]]\ntext = "A."\nrows = ["b"]\n',
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / promises.FOLDER).mkdir(parents=True)
    (tmp_path / promises.FOLDER / "docs.page.toml").write_text(table)
    with pytest.raises(ValueError, match=r"docs\.page\.toml: a table is \[\[claim\]\] with text"):
        promises.entries(tmp_path, "docs/page.md")


def test_measured_figures_have_their_rows(tmp_path: Path) -> None:
    results = tmp_path / promises.RESULTS
    results.mkdir(parents=True)
    (results / "cpu.json").write_text('{"cpu": "x", "rows": [{"name": "cast/e4m3"}]}')
    (results / "study.json").write_text('{"tables": [], "findings": []}')

    def wrong(machine: str, *rows: str) -> list[str]:
        return promises.of_rows(tmp_path, [promises.Entry("1 GB/s.", machine=machine, rows=rows)])

    assert wrong("cpu", "cast/e4m3") == wrong("cpu", "cast/*") == wrong("study", "tables") == []
    assert wrong("cpu", "cast/*", "sum") == ["benchmarks/results/cpu.json has no row sum: 1 GB/s."]
    assert wrong("gpu", "cast") == ["benchmarks/results has no run gpu: 1 GB/s."]


def test_new_tables_parse_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "entries", lambda root, page: None)
    texts = promises.tomllib.loads(promises.new_tables("README.md"))["claim"]
    assert [t["text"] for t in texts] == promises.claims(
        "README.md", (ROOT / "README.md").read_text()
    )


def test_lists_name_what_is_new_and_what_is_done() -> None:
    wrong = promises.of_list("list.txt", ["a", "b"], ["b", "c"], "new")
    assert wrong == ["new: c", "strike from tests/testing/promises/list.txt, it is done or gone: a"]


def test_lists_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / promises.FOLDER
    folder.mkdir(parents=True)
    (folder / promises.UNMAPPED).write_text("# Why.\nold\n")
    known = "\n[[error]]\nname = 'a.py: an error'\nwhy = 'It is rare.'\n"
    (folder / promises.UNREAD).write_text(f"# Why.\n{known}\n[[error]]\nname = 'gone'\nwhy = 'B'\n")
    monkeypatch.setattr(promises, "errors", lambda root: ([], ["a.py: an error", "b.py: new"]))
    (tmp_path / "page.md").write_text("It is so.\n")
    promises.store(tmp_path)
    new = "\n[[error]]\nname = 'b.py: new'\nwhy = ''\n"
    assert (folder / promises.UNREAD).read_text() == f"# Why.\n{known}{new}"
    assert (folder / promises.UNMAPPED).read_text() == "# Why.\npage.md\n"


def test_without_git_all_but_what_is_made_counts(tmp_path: Path) -> None:
    for name in ("a.md", "build/b.md", "out/c.md", ".venv/d.md", ".github/e.md", "f.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert prose.tracked(tmp_path, ".md") == [".github/e.md", "a.md"]


def test_an_unread_error_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(promises, "reasons", lambda root: {"a.py: an error": ""})
    monkeypatch.setattr(promises, "errors", lambda root: ([], ["a.py: an error"]))
    monkeypatch.setattr(promises, "promises", lambda root: [])
    (wrong,) = promises.complaints(ROOT, tmp_path / "map.json")
    assert wrong.endswith("unread_errors.toml does not say why: a.py: an error")


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "there"),
    [
        ("tests/python/project/test_promises.py::test_the_lists_shrink", True),
        ("tests/python/ops/test_scaled_golden.py::test_golden[any]", True),
        ("tests/python/project/test_promises.py::test_no_such", False),
        ("tests/python/project/test_no_such.py::test_a", False),
        ("tests/comm/test_all_reduce.cpp AllReduce.EqualsVirtualRanks", True),
        ("tests/comm/test_all_reduce.cpp AllReduce.NoSuch", False),
        ("tests/golden/cli.json", True),
        ("tests/golden/cli.json Some.Test", False),
    ],
)
def test_tests_exist(test: str, there: bool) -> None:
    assert promises.exists(ROOT, test) == there


def test_a_test_that_is_gone_names_its_promises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = promises.Promise("claim", "README.md", "It is exact.", ("tests/python/no.py::test_a",))
    monkeypatch.setattr(promises, "promises", lambda root: [gone])
    monkeypatch.setattr(promises, "errors", lambda root: ([], list(promises.reasons(ROOT))))
    assert promises.complaints(ROOT, tmp_path / "map.json") == [
        "tests/python/no.py::test_a does not exist, which held:",
        "    README.md: It is exact.",
    ]


# ---- errors --------------------------------------------------------------------------------------

PYTHON = """
class A:
    def f(self, n):
        text = f"n must be a number, got {n}"
        if n:
            raise ValueError(text)
        raise TypeError(
            "a tensor " + ("of floats" if n else "of integers") + f" is needed, not {n}"
        )

def main(parser):
    parser.error("give one of --all and --none")
    raise KeyError(text)
"""
CPP = r"""
void F(int n) {
  if (n) throw Error("n must be " + std::to_string(1) + "…" "8, \"n\" is (" + Text(n) + ")");
  throw Broken("no text of an error");
  throw Error(n ? "the first of two texts" : "the other text");
  throw Error("values must be dense, got " + T(n) + (n ? ", of a view" : ""));
}
"""


def test_templates() -> None:
    o = error_texts.OPEN
    assert {t.text for t in error_texts.python_templates("a.py", PYTHON)} == {
        f"n must be a number, got {o}",
        f"a tensor of floats is needed, not {o}",
        f"a tensor of integers is needed, not {o}",
        "give one of --all and --none",
    }
    template, chosen, added = error_texts.cpp_templates("a.cpp", CPP)
    assert template == ("a.cpp", 3, f'n must be {o}…8, "n" is ({o})')
    assert (chosen.text, added.text) == (
        f"{o}the first of two texts{o}the other text",
        f"values must be dense, got {o}{o}{o}",
    )
    assert template.name == 'a.cpp: n must be ……8, "n" is (…)'


@pytest.mark.parametrize(
    ("string", "is_pattern", "reads"),
    [
        ("interval must be at least 1, got 0", False, True),
        ("ValueError: interval must be at least 1, got 0 (see help)", False, True),
        ("interval must be at least 2, got 0", False, False),
        (r"interval must be at least 1, got \d+", True, True),
        ("interval.*at least 1, got", True, True),
        (r"interval must be at least 1\.", True, False),
        ("interval", True, False),
        ("must be at", True, False),
    ],
)
def test_who_reads_a_text(string: str, is_pattern: bool, reads: bool) -> None:
    template = error_texts.Template(
        "a.py", 1, f"interval must be at least 1, got {error_texts.OPEN}"
    )
    reader = error_texts.Reader("t.py::test_a", string, is_pattern)
    read = error_texts.read_by([template], [reader])
    assert read == {template.name: ["t.py::test_a"] if reads else []}


def test_a_text_that_many_errors_share_reads_none() -> None:
    names = ("growth", "backoff", "interval", "momentum")
    known = [
        error_texts.Template("a.py", n, f"{name} must be above zero")
        for n, name in enumerate(names)
    ]
    shared = error_texts.Reader("t.py", "must be above zero", True)
    own = error_texts.Reader("t.py", "growth must be above zero", True)
    assert not any(error_texts.read_by(known, [shared]).values())
    read = error_texts.read_by(known, [own])
    assert [name for name, tests in read.items() if tests] == [known[0].name]


def test_texts_of_the_tree() -> None:
    found = error_texts.templates()
    assert len(found) > 1000
    assert {Path(t.file).suffix for t in found} == {".py", ".cpp", ".h"}
    assert not [t for t in found if re.search(r"\s{2}", t.shown)]


# ---- prose ---------------------------------------------------------------------------------------


def test_paragraphs_have_their_lines() -> None:
    found = [(t.line, t.kind, t.text) for t in prose.page_texts("page.md", PAGE)]
    assert found[0] == (
        2,
        "paragraph",
        "**Sums.** Sums are exact (Eq. 5 of a paper). Are they? `x` is never NaN. As here:",
    )
    assert [(line, kind) for line, kind, _ in found] == [
        (2, "paragraph"),
        (11, "table"),
        (15, "paragraph"),
        (16, "paragraph"),
    ]


def test_a_table_without_a_first_row_has_its_second() -> None:
    (table,) = prose.page_texts("p.md", "| | |\n|---|---|\n| one | two |\n| three | four |\n")
    assert table.text == "| one | two |"
