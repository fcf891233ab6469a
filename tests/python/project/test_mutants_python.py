# SPDX-License-Identifier: Apache-2.0
"""Tests that mutants of Python files reach every process of a test and never change the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import mutants_python
from mutants import Mutant, Result
from mutants_python import Ended

FILE = "python/cpd_lab/shares.py"
TEST = "tests/python/lab/papers/test_papers_edges.py::test_shares"
MUTANT = Mutant(FILE, "share < 0.001", "share < 0.5", TEST, "")
PROGRAM = "from cpd_lab.shares import percent; print(percent(0.25))"
WITHIN = """
import multiprocessing, sys
from cpd_lab.shares import percent
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(percent, (0.25,)))
"""


def environment(own: dict[str, str], *paths: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (mutants_python.HOOK, *paths)))
    return os.environ | own | {"PYTHONPATH": path}


def test_every_process_loads_the_mutant(tmp_path):
    script = tmp_path / "within.py"
    script.write_text(WITHIN)
    before = (mutants_python.ROOT / FILE).read_bytes()
    with mutants_python.planted(MUTANT) as (tree, own, loaded):
        assert tree == mutants_python.ROOT
        for words in (["-c", PROGRAM], [script]):
            assert not loaded()
            command = [sys.executable, *map(str, words)]
            env = environment(own, tmp_path)
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
            assert done.stdout == "< 0.1 %\n"
            assert loaded()
            Path(own["CPD_PYTHON_MUTANT"], "loaded").unlink()
    assert (mutants_python.ROOT / FILE).read_bytes() == before
    assert subprocess.run(command, capture_output=True, text=True).stdout == "25.0 %\n"


@pytest.mark.exhaustive
def test_forked_programs_load_the_mutant(tmp_path, monkeypatch):
    """Forked programs load the mutant although the parent imported the package before it forked."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with mutants_python.planted(MUTANT) as (_, own, loaded):
        for name, value in environment(own).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(forked.FOLDER, raising=False)
        done = forked.run([program], capture_output=True, text=True)
        assert done.stdout == "< 0.1 %\n"
        assert loaded()


def test_data_of_the_package_is_read_with_its_fault():
    file = "python/cpd_lab/papers/papers.toml"
    mutant = Mutant(file, (mutants_python.ROOT / file).read_text(), "faulty", "", "")
    program = (
        f"import pathlib; print(pathlib.Path({str(mutants_python.ROOT / file)!r}).read_text())"
    )
    with mutants_python.planted(mutant) as (_, own, loaded):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment(own), capture_output=True, text=True)
        assert done.stdout == "faulty\n"
        assert loaded()


def test_another_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    with mutants_python.planted(MUTANT) as (_, own, _):
        env = environment(own, tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True
        )
    assert done.stdout == "the other one\n< 0.1 %\n"


def test_other_files_change_in_a_copy_of_the_tree():
    mutant = Mutant("dev", "readonly kCaller\n", "", "", "")
    with mutants_python.planted(mutant) as (tree, own, loaded):
        assert tree != mutants_python.ROOT
        assert loaded()
        assert own == {}
        assert "readonly kCaller\n" not in (tree / "dev").read_text()
        assert os.access(tree / "dev", os.X_OK)
        assert (tree / "build").resolve() == mutants_python.ROOT / "build"
    assert "readonly kCaller\n" in (mutants_python.ROOT / "dev").read_text()


@pytest.fixture
def runs(monkeypatch):
    """Replaces pytest by a function that records each run's tests and returns given results."""
    answers: list[tuple[Ended, bool]] = []
    asked: list[list[str]] = []

    def pytest_(tests, marker, *, environment=None, **others):
        asked.append([marker, *tests])
        ended, loads = answers.pop(0)
        if loads:
            Path(environment["CPD_PYTHON_MUTANT"], "loaded").touch()
        return ended

    monkeypatch.setattr(mutants_python, "pytest", pytest_)
    monkeypatch.setattr(
        mutants_python, "selected", lambda file: ["tests/python/lab/demo/test_report.py"]
    )
    return answers, asked


FAILED = Ended(1, "F\nFAILED tests/python/lab/demo/test_report.py::test_other[a b] - assert\n")
PASSED = Ended(0, "1 passed\n")
QUICK, EXHAUSTIVE = (mutants_python.MARKERS[tier] for tier in ("quick", "exhaustive"))
OTHER = "tests/python/lab/demo/test_report.py::test_other"


@pytest.mark.parametrize(
    ("answers", "tiers", "result"),
    [
        ([(FAILED, True)], ["quick"], Result("quick", OTHER)),
        ([(PASSED, True), (FAILED, False)], ["quick"], Result("quick", OTHER)),
        ([(PASSED, True), (PASSED, False)], ["quick"], Result("", "")),
        ([(Ended(None, ""), True)], ["quick"], Result("quick", TEST, "time limit")),
        ([(Ended(2, "ERROR a/test_b.py\n"), True)], ["quick"], Result("quick", "a/test_b.py")),
        (
            [(PASSED, True), (PASSED, False), (FAILED, False)],
            ["quick", "exhaustive"],
            Result("exhaustive", OTHER),
        ),
    ],
)
def test_results(runs, answers, tiers, result):
    runs[0][:] = answers
    assert mutants_python.result(MUTANT, 1.0, tiers) == result
    markers = [asked[0] for asked in runs[1]]
    assert markers == [QUICK, QUICK, EXHAUSTIVE][: len(answers)]
    assert runs[1][0][1:] == [TEST]


@pytest.mark.parametrize("ended", [FAILED, PASSED])
def test_a_mutant_that_no_test_loads_has_no_result(runs, ended):
    """A test that does not load the mutated file gives no result, whether it passes or fails."""
    runs[0][:] = [(ended, False)] * 2
    with pytest.raises(RuntimeError, match="load"):
        mutants_python.result(MUTANT, 1.0, ["quick"])


def test_survivors_with_a_reason_run_their_test_alone(runs):
    runs[0][:] = [(PASSED, True)]
    mutant = MUTANT._replace(survives="both are the same number")
    assert mutants_python.result(mutant, 1.0, ["quick"]) == Result("", "")
    assert len(runs[1]) == 1


@pytest.mark.exhaustive
def test_a_mutant_runs_with_pytest_itself():
    """Runs two mutants with pytest itself. The text that the first mutant replaces is not in the
    file. The error for this mutant is raised after the second mutant has run."""
    wrong = MUTANT._replace(before="no such text" * 2)
    found = []
    with pytest.raises(RuntimeError, match="0 times"):
        found.extend(mutants_python.run([wrong, MUTANT], 1, exhaustive=False))
    assert found == [(MUTANT, Result("quick", TEST))]
