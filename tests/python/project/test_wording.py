# SPDX-License-Identifier: Apache-2.0
"""Tests that wording.py finds misspelled words and banned phrases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import prose
import wording

RULES = wording.read_rules(wording.FILE.read_text())
FILES = {
    "a.py": '"""Whether it is a colour."""\nX = 1  # grey, and the catalogue() of `colour`\n',
    "b.h": "// What those of a have.\nint colour = 0;  // a neighbour\n",
    "c.md": 'What those of *a* say is no number, there is no doubt; "it is no name" is quoted.\n',
    "d.sh": "# A behaviour.\nlicence=1\n",
    "e.sv": "// A centre.\n",
}
FOUND = {
    "a.py": {"Whether …": [1], "colour ==> color": [1], "grey ==> gray": [2]},
    "b.h": {"What …": [1], "those of": [1], "neighbour ==> neighbor": [2]},
    "c.md": {"those of": [1], "is no X": [1]},
    "d.sh": {"behaviour ==> behavior": [1]},
    "e.sv": {"centre ==> center": [1]},
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    pytest.importorskip("codespell_lib")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_phrases_and_words_are_found(tree: Path) -> None:
    """Phrases are found in prose, but not in names, quotations and code.

    Banned openings are not searched on pages.
    """
    assert wording.lines_of([*wording.texts(tree)], RULES) == FOUND


def test_every_fault_is_reported() -> None:
    found = {"new.md": {"colour ==> color": [3]}, "c.md": {"those of": [1, 7]}}
    assert wording.faults_of(found, RULES) == [
        "c.md:1, 7: those of: repeat the noun, next to its verb",
        "new.md:3: colour ==> color",
    ]


def test_the_status_tells_whether_there_are_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wording, "texts", lambda: iter(()))
    monkeypatch.setattr(wording, "lines_of", lambda read, rules: {"a.md": {"so many": [2]}})
    assert wording.main() == 1
    assert capsys.readouterr().out.startswith("a.md:2: so many: ")
    monkeypatch.setattr(wording, "lines_of", lambda read, rules: {})
    assert wording.main() == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("phrase", RULES.phrases, ids=lambda phrase: phrase.name)
def test_each_phrase_is_found(phrase: wording.Phrase) -> None:
    example = {
        "is none": "it is none",
        "is no X": "it is no number",
        "Of …, Which …": "Likewise",
        "those of": "that of a",
    }.get(phrase.name, phrase.name.replace(" …", " it is"))
    for kind, count in {"docstring": 1, "paragraph": 0 if phrase.opening else 1}.items():
        assert phrase.count(prose.Text("a", 1, example, kind)) == count
    assert phrase.count(prose.Text("a", 1, "Returns a number. There is no other.", "comment")) == 0


@pytest.mark.parametrize(
    "row",
    ['[[banned]]\nname = "a"\npattern = "a"', '[[words]]\nword = "te"\nwhy = ""'],
)
def test_each_rule_has_a_reason(row: str) -> None:
    with pytest.raises(ValueError, match="reason why"):
        wording.read_rules(row)


def test_codespell_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "No module named codespell_lib")

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(RuntimeError, match="status 1: No module named codespell_lib"):
        list(wording.misspelled([prose.Text("a", 1, "a", "comment")], ()))
