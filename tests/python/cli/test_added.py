# SPDX-License-Identifier: Apache-2.0
"""Tests commands that other packages add to `cpd` by entry points."""

import argparse
import importlib.metadata

import pytest

from cpd.cli import added, main

NEEDS = "needs the Python package 'cpd-lab' (pip install cpd-lab)"


class Entry:
    """An entry point that returns a given object without an import."""

    def __init__(self, name, target):
        self.name, self.load = name, lambda: target


@pytest.fixture
def install(monkeypatch):
    """Replaces the entry points of all installed packages by the entry points that a test gives."""

    def replace(**groups):
        def entry_points(group):
            return groups.get(group.replace(".", "_"), ())

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
        added.added_commands.cache_clear()

    yield replace
    added.added_commands.cache_clear()


def status(*words):
    try:
        return main(words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    "words",
    [
        *((c, *rest) for c in added.LAB_COMMANDS for rest in ((), ("--help",), ("--nodes", "2"))),
        ("roundoff",),  # without a file, takes a model's gradients
    ],
    ids=" ".join,
)
def test_a_command_of_the_lab_without_the_lab(install, capsys, words):
    install()
    assert status(*words) == 1
    assert capsys.readouterr() == ("", f"cpd {words[0]}: error: {NEEDS}\n")


def test_the_help_without_the_lab(install, capsys):
    install()
    assert status("--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(f" {command} {NEEDS} " in out for command in added.LAB_COMMANDS)


def test_a_wrong_command_without_the_lab(install, capsys):
    install()
    assert status("trian") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "(did you mean train?)" in err


def test_a_command_of_another_package(install, capsys):
    def register(commands):
        parser = commands.add_parser("bake", help="bakes")
        parser.set_defaults(run=lambda options: print("baked") or 0)

    install(cpd_commands=[Entry("bake", register)])
    assert status("bake") == 0
    assert status("--help") == 0
    out = capsys.readouterr().out
    assert out.startswith("baked\n")
    assert "    bake      bakes\n" in out
    assert status("bakee") == 2
    assert "did you mean bake?" in capsys.readouterr().err


def test_the_gradients_of_another_package(install):
    module = argparse.Namespace()
    install(cpd_gradients=[Entry("model", module)])
    assert added.model_gradients() is module
