# SPDX-License-Identifier: Apache-2.0
"""Tests papers.toml, the list of the papers' tables and figures (its rows): none is missing, each
has a state, and the command that measures it exists."""

import shlex
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cpd.cli import build_parser
from cpd_lab.papers.catalogue import STUDIES, papers, studies_named

ROOT = Path(__file__).parents[4]
ROWS = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))


def test_every_row_that_was_written_down_is_there():
    found = {paper.name: paper for paper in papers()}
    assert {name: paper.title for name, paper in found.items()} == {
        name: of["title"] for name, of in ROWS.items()
    }
    for name, of in ROWS.items():
        assert [row.name for row in found[name].rows] == [f"{name}.{row}" for row in of["rows"]]
    assert sum(len(of["rows"]) for of in ROWS.values()) == 71


@pytest.mark.parametrize(
    "row", [row for paper in papers() for row in paper.rows], ids=lambda row: row.name
)
def test_a_row_says_what_there_is(row):
    assert row.title
    measured = row.state in ("reproduced", "substitute")
    assert bool(row.command) == measured
    assert bool(row.why) == (row.state in ("substitute", "out of scope")) or measured
    if row.studies:
        assert set(row.studies) <= set(STUDIES)
    elif row.command.startswith("cpd "):
        build_parser().parse_args(words_of(row.command))  # exits if the command is invalid
    elif row.command:
        program = row.command.split()[1 if row.command.startswith("python ") else 0]
        assert (ROOT / program).exists()


def words_of(command):
    return shlex.split(command)[1:]


def test_a_study_answers_rows():
    answered = {study for paper in papers() for row in paper.rows for study in row.studies}
    assert set(STUDIES) <= answered


def test_the_demo_answers_a_row():
    rows = [row.name for paper in papers() for row in paper.rows if row.command == "cpd demo"]
    assert rows == ["aps.F5"]


def test_names():
    assert [study.name for study in studies_named(["aps-fig4"])] == ["aps-fig4"]
    assert len(studies_named(["all"])) == len(STUDIES)
    with pytest.raises(ValueError, match=r"no study 'aps-table'; did you mean aps-table\d\?"):
        studies_named(["aps-table"])
