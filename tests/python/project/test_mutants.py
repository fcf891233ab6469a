# SPDX-License-Identifier: Apache-2.0
"""Tests that the list of mutants matches the code.

It also tests that a compiled mutant behaves like the text with the mutant's change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import changed
import mutants
import mutants_compiled
import schemata

LISTED = list(mutants.mutants())


def test_the_list_follows_the_code():
    wrong = [why for mutant in LISTED if (why := mutant.check())]
    assert not wrong, "plant again what has moved:\n" + "\n".join(wrong)


def test_names_and_numbers_are_different():
    twice = [name for name, n in Counter(m.name for m in LISTED).items() if n > 1]
    assert not twice
    schemata.files([m for m in LISTED if m.is_compiled])  # raises where numbers are equal


def test_the_programs_of_expected_tests_exist():
    programs = {changed.target_of(name) for name in changed.tests()[0]}
    programs |= {p.stem for p in (changed.ROOT / "tests/testing/cuda_on_cpu").glob("test_*.cpp")}
    named = {m.test.split()[0] for m in LISTED if ".py" not in m.test}
    assert named <= programs


FILE, OWN = "tests/testing/mutants.py", "tests/python/project/test_mutants.py"


@pytest.mark.parametrize(
    ("file", "before", "after", "test", "wrong"),
    [
        (FILE, "def reported(", "def said(", f"{OWN}::test_entries_are_checked[a]", ""),
        (FILE, "def reported(", "def said(", f"{OWN}::test_entries", "has no test_entries"),
        (FILE, "import", "export", "test_a B.C", "has the text"),
        (FILE, "no such text" * 2, "", "test_a B.C", "0 times"),
        ("no/such/file.py", "a", "b", "test_a B.C", "does not exist"),
        (FILE, "def reported(", "def reported(", "test_a B.C", "are equal"),
        (FILE, "def reported(", "", "tests/no_such.py::t", "does not exist"),
    ],
)
def test_entries_are_checked(file: str, before: str, after: str, test: str, wrong: str):
    said = mutants.Mutant(file, before, after, test, "").check()
    assert wrong in said
    assert bool(said) == bool(wrong)


@pytest.mark.parametrize(
    ("field", "value"), [("kind", "typo"), ("tier", "slow")], ids=["kind", "tier"]
)
def test_kinds_and_tiers_are_checked(field: str, value: str):
    mutant = mutants.Mutant(FILE, "def reported(", "", "tests/python/project/test_mutants.py", "")
    assert f"{field} must be one of" in mutant._replace(**{field: value}).check()


# ---- wrapping --------------------------------------------------------------------------------

# TEXT is the source of a function `f`, and CHANGES are its mutants. The program contains all of
# these mutants, and prints the values of `f` with the mutant that CPD_MUTANT selects.
TEXT = """\
int f(int a, int b) {
  int sum = a + b * 2;  // a * 7
  if (a < 0 || b < 0) return -1;
  for (int i = 0; i < b; ++i) {
    if (i == 3) continue;
    sum += i;
  }
  return std::max(sum, a > 5 ? a : b);
}
"""
CHANGES = [
    ("b * 2", "b * 3"),
    ("a + b", "a - b"),
    ("if (a < 0 ||", "if ("),
    ("a < 0 || b", "a <= 0 || b"),
    ("if (a < 0 || b < 0) return -1;", ""),
    ("i < b;", "i <= b;"),
    ("i == 3", "i == 2"),
    ("    if (i == 3) continue;\n", ""),
    ("sum += i;", "sum -= i;"),
    ("std::max(sum,", "std::min(sum,"),
    ("(sum, a > 5 ? a : b)", "(a > 5 ? a : b, sum + 1)"),
    ("a > 5 ? a : b", "a > 5 ? b : a"),
    ("? a : b)", "? a : a)"),
]
MAIN = """
#include <cstdio>
template <class Of> void print(Of of) {
  for (int a = -1; a < 9; a += 2) for (int b = -1; b < 6; ++b) std::printf("%d ", of(a, b));
  std::printf("\\n");
}
"""


def _output(program: Path, number: int = 0, reached: Path | None = None) -> list[str]:
    environment = {"CPD_MUTANT": str(number), "CPD_MUTANT_REACHED": str(reached)}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _compiled(program: Path, *parts: str) -> Path:
    source = program.with_suffix(".cpp")
    source.write_text("#include <algorithm>\n" + "\n".join(parts))
    subprocess.run(["g++", "-std=c++20", "-o", program, source], check=True)
    return program


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a + b * 2", "", "replace a whole expression"),
        ("a + b * 2", "{a}", "replace a whole expression"),
        ("const int sum = a + b * 2;", "const int sum = a; (void)b;", "so that the name stays"),
    ],
)
def test_a_change_that_no_choice_can_make_is_refused(before: str, after: str, said: str):
    text = TEXT.replace("int sum", "const int sum")
    with pytest.raises(ValueError, match=said):
        schemata.wrapped(text, [mutants.Mutant("f.cpp", before, after, "", "")])


@pytest.mark.exhaustive
@pytest.mark.slow("compiles the library, the extension and the CUDA emulation with all mutants")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_all_compiled_mutants_compile():
    compiled = [mutant for mutant in LISTED if mutant.is_compiled]
    mutants_compiled.build(compiled, os.cpu_count() or 1, ["test_backend_sim"], python=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_number_chooses_a_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schemata, "ROOT", tmp_path)
    (tmp_path / "f.cpp").write_text(TEXT)
    planted = [mutants.Mutant("f.cpp", before, after, "", "") for before, after in CHANGES]
    (text,) = schemata.files(planted).values()
    state = schemata.HEADER.replace("#pragma once", "") + schemata.SOURCE
    built = _compiled(tmp_path / "built", state, text, MAIN, "int main() { print(f); }")
    # The expected results come from a second program. It contains the unchanged TEXT, and for each
    # mutant a copy of TEXT with the mutant's change, each in a namespace of its own.
    texts = [TEXT, *(TEXT.replace(before, after) for before, after in CHANGES)]
    spaces = [f"namespace n{i} {{ {each} }}" for i, each in enumerate(texts)]
    calls = "".join(f"print(n{i}::f); " for i in range(len(texts)))
    alone = _output(_compiled(tmp_path / "alone", *spaces, MAIN, f"int main() {{ {calls} }}"))
    assert _output(built) == alone[:1]
    for mutant, expected in zip(planted, alone[1:], strict=True):
        assert _output(built, schemata.number_of(mutant)) == [expected], mutant
    reached = tmp_path / "reached"
    assert _output(built, -1, reached) == alone[:1]
    assert set(map(int, reached.read_text().split())) == {schemata.number_of(m) for m in planted}
