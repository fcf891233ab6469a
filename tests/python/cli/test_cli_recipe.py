# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd show` of recipes: a list, TOML that can be read back, and the recipes' JSON schema."""

import json

import pytest

import cpd
from cpd.cli import main


def printed(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_recipes_are_one_line_each(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(capsys, "show", "--recipes").splitlines()
    for name, about in cpd.Recipe.named().items():
        (line,) = (line for line in lines if line.strip().startswith(f"{name} "))
        assert line.split(maxsplit=1)[1].strip() == about["summary"]
        assert len(line) <= 80


def test_recipes_as_json(capsys):
    found = json.loads(printed(capsys, "show", "--recipes", "--json"))
    made = {name: cpd.Recipe(data) for name, data in found.items()}
    assert made == {name: cpd.Recipe(name) for name in cpd.Recipe.named()}


@pytest.mark.parametrize("name", cpd.Recipe.named())
def test_a_recipe_reads_back(capsys, tmp_path, name):
    file = tmp_path / "mine.toml"
    file.write_text(printed(capsys, "show", "--recipes", name))
    assert cpd.Recipe(file) == cpd.Recipe(name)
    assert printed(capsys, "show", "--recipes", str(file)) == file.read_text()
    assert cpd.Recipe(
        json.loads(printed(capsys, "show", "--recipes", name, "--json"))
    ) == cpd.Recipe(name)


def test_a_recipe_of_a_text(capsys):
    assert printed(capsys, "show", "--recipes", "native weight=e4m3fn") == (
        'forward = "native"\nweight = "e4m3fn"\n'
    )


def test_the_schema_is_that_of_the_library(capsys):
    from cpd.nn.recipe_schema import schema

    assert json.loads(printed(capsys, "show", "--schema")) == schema()


def test_a_mistake_in_a_file_names_the_key(capsys, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('forward = "native"\nweight = "e4m3fm"\n')
    assert main(["show", "--recipes", str(file)]) == 2
    told = capsys.readouterr().err
    assert "weight: unknown format 'e4m3fm'; did you mean 'e4m3fn'?" in told
