# SPDX-License-Identifier: Apache-2.0
"""Tests that `./dev test --changed` runs every test that a changed file may break.

For C++ tests, the expected files are the ones that the compiler read.
"""

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/testing"))

import changed  # noqa: E402

BUILD = ROOT / "build/release"
OURS = ("cpd/", "kernels/", "tests/")


def planned(*names):
    return changed.plan(list(names))


@pytest.mark.parametrize(
    "name",
    [
        *("dev", ".dev/tests.sh", "CMakeLists.txt", "pyproject.toml", "tests/python/conftest.py"),
        *(
            "cpd/numeric/round/round.h",
            "kernels/cpu/cast.cpp",
            "cpd/cmake/CpdOptions.cmake",
            "python/cpd/__init__.py",
        ),
    ],
)
def test_everything(name):
    (line,) = planned(name)
    assert line.startswith("everything ")
    assert name in line


def test_a_codec_breaks_its_own():
    lines = planned("cpd/compress/sparse.cpp")
    assert "program test_compress_sparse compress.sparse" in lines
    assert "python tests/python/compress/test_compress.py" in lines
    assert "python tests/python/ops/test_cast.py" not in lines
    assert not any("test_isa" in line for line in lines)


def test_a_module_breaks_who_imports_it():
    lines = planned("python/cpd_lab/demo/figures.py")
    assert "python tests/python/lab/demo/test_report.py" in lines
    assert not any(line.startswith("program") for line in lines)
    assert "python tests/python/ops/test_gemm.py" not in lines


def read_by_the_compiler():
    """Returns, for each group of C++ tests that are compiled together, the project's files that the
    compiler read."""
    if not (BUILD / ".ninja_deps").exists() or not (ninja := shutil.which("ninja")):
        pytest.skip("build/release was not built by ninja")
    said = subprocess.run(
        [ninja, "-C", BUILD, "-t", "deps"], capture_output=True, text=True, check=True
    ).stdout
    result = defaultdict(set)
    for block in said.split("\n\n"):
        _, *lines = block.splitlines() or [""]
        paths = [os.path.normpath(BUILD / line.strip()) for line in lines]
        names = [os.path.relpath(path, ROOT) for path in paths]
        sources = {n for n in names if n.startswith("tests/") and n.endswith(".cpp")}
        if sources:
            read = {n for n in names if n.startswith(OURS) and (ROOT / n).exists()}
            result[frozenset(sources)] |= read - sources
    return result


def test_nothing_that_the_compiler_read_is_missing():
    """A change of any file that the compiler read for some tests selects at least one of them."""
    edges = changed.cpp_edges()
    groups = read_by_the_compiler()
    if not groups:
        pytest.skip("no C++ test was compiled in build/release")
    reached = {name: changed.leading_to([name], edges) for name in set().union(*groups.values())}
    for sources, read in groups.items():
        for name in read:
            assert sources & reached[name], (name, sorted(sources))
