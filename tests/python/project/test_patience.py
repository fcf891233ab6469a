# SPDX-License-Identifier: Apache-2.0
"""Tests time limits that scale with the machine's speed, and marks that conftest.py reads."""

import ast
import os
import time
from pathlib import Path

import pytest

import forked
import patience

WAITS = ("wait", "join", "communicate")
SHARED = (forked.FOLDER, "PYTHONPATH")
"""The environment variables that conftest.py sets for the tests' programs."""
MARKED = """
import os
import time
import pytest

@pytest.mark.few("many", 3)
@pytest.mark.parametrize("case", ["one", *(f"many-{n}" for n in range(7))])
def test_cases(case):
    pass

@pytest.mark.parametrize("front_end", ["eager", *(f"compiled-{n}" for n in range(24))])
def test_front_ends(front_end):
    pass

@pytest.mark.timeout(40)
def test_limit(request):
    print("limits:", [mark.args[0] for mark in request.node.iter_markers("timeout")])

def test_without_limit(request):
    print("default:", [mark.args[0] for mark in request.node.iter_markers("timeout")])

def test_other_work_begins():
    os.environ["CPD_TEST_SLOWNESS"] = f"4@{int(time.time())}"

@pytest.mark.timeout(40)
def test_after_other_work_begins(request):
    print("later:", [mark.args[0] for mark in request.node.iter_markers("timeout")])

@pytest.mark.slow("a large network")
def test_slow():
    pass
"""

STUCK = """
import ctypes
import pytest

@pytest.mark.timeout(1)
def test_stuck():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # waits for itself, with the GIL
"""


def test_is_measured_again_where_old(monkeypatch):
    """The machine's speed is measured again if the last measurement is old, for loads change."""
    monkeypatch.delenv(patience.NAME, raising=False)
    seconds, now = [3 * patience.IDLE, 5 * patience.IDLE], [1000.0]
    monkeypatch.setattr(patience, "_start", lambda: seconds.pop(0))
    monkeypatch.setattr(patience.time, "time", lambda: now[0])
    assert patience.slowness() == 3
    assert patience.scaled(10) == 30
    assert os.environ[patience.NAME] == "3.0@1000"  # for child processes
    now[0] += patience.FRESH
    assert patience.scaled(10) == 50
    assert not seconds


def test_a_fast_machine_has_the_limits_of_an_idle_one(monkeypatch):
    monkeypatch.delenv(patience.NAME, raising=False)
    monkeypatch.setattr(patience, "_start", lambda: patience.IDLE / 10)
    assert patience.scaled(10) == 10


pytest_plugins = ["pytester"]


@pytest.fixture(scope="module", autouse=True)
def environment():
    """Asserts that the tests here do not change the environment variables in SHARED.

    A pytest session inside a test sets these variables. Later tests would then use that session's
    process for forks.
    """
    before = {name: os.environ.get(name) for name in SHARED}
    yield
    assert {name: os.environ.get(name) for name in SHARED} == before


@pytest.fixture
def marked(pytester, monkeypatch, request):
    for name in SHARED:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # is restored after the test
    monkeypatch.setenv(patience.NAME, f"2.5@{int(time.time())}")
    pytester.makeconftest(request.config.rootpath.joinpath("tests/python/conftest.py").read_text())
    pytester.makepyprojecttoml(request.config.rootpath.joinpath("pyproject.toml").read_text())
    pytester.makepyfile(MARKED)
    return pytester


def test_one_in_so_many_cases_is_quick(marked):
    def collected(tier):
        lines = marked.runpytest("-m", tier, "--collect-only", "-q").stdout.str().splitlines()
        return {line.partition("::")[2] for line in lines if "::" in line}

    quick, rest = collected("not exhaustive"), collected("exhaustive")
    others = {"test_cases[one]", "test_cases[many-0]", "test_limit", "test_without_limit"}
    others |= {"test_other_work_begins", "test_after_other_work_begins"}
    assert {*others, "test_slow", "test_front_ends[eager]"} <= quick
    assert len(quick) + len(rest) == 38
    for prefix, fewest, most in (("test_cases[many", 1, 6), ("test_front_ends[compiled", 12, 23)):
        assert fewest <= sum(name.startswith(prefix) for name in rest) <= most
    assert all(name.startswith(("test_cases[many-", "test_front_ends[compiled-")) for name in rest)


def test_limits_scale(marked):
    told = marked.runpytest("-s", "-k", "limit").stdout
    told.fnmatch_lines(["*limits: [[]100.0, 40]*", "*default: [[]750.0]*"])


def test_limits_scale_with_the_load_when_the_test_begins(marked):
    """A test's time limit scales with the load at the moment when the test begins.

    The load at the moment when pytest reads the test's marks does not count: it may be minutes old.
    """
    told = marked.runpytest("-s", "-k", "begins").stdout
    told.fnmatch_lines(["*later: [[]160.0, 40]*"])


def test_a_process_whose_gil_is_gone_ends(marked):
    """A process that holds the GIL forever is ended, with a report of where it was.

    Nothing can interrupt such a process.
    """
    marked.makepyfile(STUCK)
    told = marked.runpytest_subprocess(timeout=patience.scaled(120))
    assert told.ret == 1
    told.stderr.fnmatch_lines(["Timeout (0:00:05)!", "*in test_stuck"])


def fixed_limits(path):
    """Yields the calls of a test file that wait with a constant timeout of a second or more."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        limits = [word.value for word in node.keywords if word.arg == "timeout"]
        if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
            limits += node.args[:1]
        values = [limit.value for limit in limits if isinstance(limit, ast.Constant)]
        if any(isinstance(value, (int, float)) and value >= 1 for value in values):
            yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def test_limits_follow_the_load(tmp_path):
    """`fixed_limits` finds each call that waits with a constant limit of a second or more.

    Such a limit suffices on an idle machine only, so no test file may have one. Limits below a
    second are permitted, because the tests expect such waits to time out.
    """
    program = tmp_path / "waits.py"
    program.write_text("a.wait(60)\nb.run(timeout=5.0)\nc.join(scaled(9))\nd.run(timeout=0.5)\n")
    assert list(fixed_limits(program)) == [
        "waits.py:1: a.wait(60)",
        "waits.py:2: b.run(timeout=5.0)",
    ]
    tests = Path(__file__).parents[1]
    assert [limit for path in sorted(tests.rglob("*.py")) for limit in fixed_limits(path)] == []


def test_reasons_are_kept(marked):
    marked.runpytest("-k", "slow", "--junitxml=results.xml")
    text = (marked.path / "results.xml").read_text()
    assert '<property name="slow" value="a large network" />' in text
