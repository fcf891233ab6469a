# SPDX-License-Identifier: Apache-2.0
"""Tests `./dev bench --against REV`: which rows it compares and calls slower or faster.

Tests also how it starts benchmarks. Invented versions replace builds.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "benchmarks"))
against, run, timing = map(importlib.import_module, ("against", "run", "timing"))

# ---- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((0.9, 0.95, 0.96), "slower"),
        ((0.9, 0.969, 0.999), "slower"),
        ((0.9, 0.97, 0.98), ""),  # the median is at the limit
        ((0.8, 0.9, 1.0), ""),  # one round does not agree
        ((0.8, 0.8, 1.01), ""),
        ((1.05, 1.04, 1.2), "faster"),
        ((1.2, 1.2, 0.999), ""),
        ((1.02, 1.03, 1.03), ""),  # 1/0.97 is 1.0309
        ((1.0, 1.0, 1.0), ""),
    ],
)
def test_a_verdict_needs_the_median_and_every_round(ratios, word):
    for order in (ratios, ratios[::-1], ratios[1:] + ratios[:1]):
        assert against.verdict(order) == word


def test_a_noisy_round_does_not_end_what_confirms_a_verdict():
    """Benchmarks found slower or faster in rounds 1 to 3 are measured again in rounds 4 to 9.

    A benchmark is measured no further after a round with the opposite result: faster, if it was
    slower before, or slower, if it was faster.
    """
    rounds = {
        "slower": [0.966, 0.967, 0.968, 0.991, 0.96, 0.96, 0.96, 0.96, 0.96],
        "faster": [1.04, 1.05, 1.04, 1.01, 1.02, 1.04, 1.05, 1.04, 1.04],
        "disagrees": [0.9, 0.9, 0.9, 0.9, 1.001, 0.9],
        "near": [0.966, 0.967, 0.968, 0.991, 0.99, 0.98, 0.99, 0.98, 0.98],
        "neither": [0.9, 0.9, 1.1],
    }
    rows = [against.Measured(name, "GB/s") for name in rounds]

    def measure(rows):
        for row in rows:
            row.add([1.0], [rounds[row.name][len(row.this)]])

    for _ in range(against.LEAST_ROUNDS):
        measure(rows)
    assert [row.verdict for row in rows] == ["slower", "faster", "slower", "slower", ""]
    against.confirm(rows, measure)
    assert {row.name: (len(row.this), row.verdict) for row in rows} == {
        "slower": (9, "slower"),
        "faster": (9, "faster"),
        "disagrees": (5, ""),
        "near": (9, ""),
        "neither": (3, ""),
    }


def test_a_round_is_the_ratio_of_the_best_turns():
    rate = against.Measured("cast", "GB/s")
    rate.add([10.0, 20.0, 5.0], [19.0, 1.0, 18.0])
    assert (rate.other, rate.this, rate.ratios) == ([20.0], [19.0], [0.95])
    time = against.Measured("call", "µs")
    time.add([10.0, 20.0], [40.0, 12.5])
    assert (time.other, time.this, time.ratios) == ([10.0], [12.5], [0.8])


def test_the_side_that_begins_changes():
    calls = []
    sides = (lambda: calls.append("a") or 1, lambda: calls.append("b") or 2)
    assert against.in_turns(3, 0, *sides) == [[1, 1, 1], [2, 2, 2]]
    assert "".join(calls) == "abbaab"
    calls.clear()
    against.in_turns(2, 1, *sides)
    assert "".join(calls) == "baab"


def test_the_best_of_a_row_leaves_out_other_processes():
    spent = timing.Spent
    assert timing.least([spent(9.0, 2.0, 2.0), spent(8.0, 3.0, 3.0)]) == 2.0
    two_threads = [spent(9.0, 4.0, 8.0), spent(8.0, 5.0, 8.0)]
    assert timing.least(two_threads) == 8.0


# ---- which rows, and the table -------------------------------------------------------------------


def row(name, value=10.0, unit="GB/s", **more):
    return {"name": name, "value": value, "unit": unit, **more}


def noted():
    """Returns the comparison of two versions with benchmark rows of every kind: in both versions,
    in one, with another unit, with wrong results, and skipped."""
    others = [row("same"), row("loss"), row("gone"), row("unit"), row("wrong")]
    own = [row("same"), row("loss"), row("new"), row("unit", unit="ms"), row("bits")]
    others += [{"name": "bits", "wrong": "not exact"}, {"name": "skip", "skipped": "no torch"}]
    own += [{"name": "wrong", "wrong": "a bit"}, {"name": "skip", "skipped": "no torch"}]
    found = against.Found()
    found.note_rows("v1", *({r["name"]: r for r in rows} for rows in (others, own)))
    return found


def test_rows_of_one_side_and_wrong_ones_are_named():
    found = noted()
    assert [r.name for r in found.rows] == ["same", "loss"]
    assert found.notes == [
        "only v1 has: gone",
        "v1 skips skip: no torch",
        "only this tree has: new",
        "this tree skips skip: no torch",
        "not compared, since they count something else: unit",
    ]
    assert found.wrong == ["v1: bits: not exact", "this tree: wrong: a bit"]
    found.add_wrong("v1", [{"name": "bits", "wrong": "not exact"}])
    assert len(found.wrong) == 2


def test_options_that_do_not_fit_are_refused(capsys):
    for arguments, message in (
        (["--against", "main", "--rounds", "2"], "--rounds must be at least 3, got 2"),
        (["--rounds", "4"], "are options of --against"),
        (["--compile"], "are options of --against"),
        (["--against", "main", "--store"], "no --compare, no --store"),
        (["--against", "main", "--compare", "a", "b"], "no --compare, no --store"),
        (["--against"], "expected one argument"),
    ):
        with pytest.raises(SystemExit):
            run.parse(arguments)
        assert message in capsys.readouterr().err
    assert run.parse(["--against", "main"]).repeats == 15
    assert run.parse([]).repeats == 9


# ---- sizes and sources ---------------------------------------------------------------------------


def test_libraries_have_names_without_pythons_tag(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libcpd.so").write_bytes(bytes(1 << 20))
    (folder / "_core.cpython-311-x86_64-linux-gnu.so").write_bytes(bytes(1 << 19))
    assert against.library_sizes(tmp_path) == {"size/_core": 0.5, "size/libcpd": 1.0}
    smaller = against.constants({"size/libcpd": 2.0, "gone": 1.0}, {"size/libcpd": 1.0}, "MiB")
    assert [(r.name, r.ratios, r.verdict) for r in smaller] == [("size/libcpd", [2.0], "faster")]


def entry(target, source):
    words = f"/usr/bin/ccache /usr/bin/g++ -O2 -o cpd/CMakeFiles/{target}/{source}.o -c /t/{source}"
    return {"directory": "/t", "command": words, "file": f"/t/{source}"}


def test_only_the_librarys_own_sources_are_compiled():
    commands = [
        entry("cpd.dir", "Unity/unity_spec_0_cxx.cxx"),
        entry("cpd_kernels_avx2.dir", "cast.cpp"),
        entry("cpd_tests.dir", "test.cpp"),
        entry("cpd.dir", "roster.cpp"),
    ]
    groups = against.sources(commands, Path("/t"))
    assert groups == {
        "compile/libcpd": [commands[0], commands[3]],
        "compile/kernels": [commands[1]],
    }


def test_a_compilers_time_is_the_processors(tmp_path):
    (tmp_path / "a.cpp").write_text("int f() { return 1; }\n")
    command = f"{sys.executable} -c pass -o a.o -c a.cpp"
    made = {"directory": str(tmp_path), "command": command, "file": "a.cpp"}
    assert 0 < against.processor_seconds(made) < 60
    assert not (tmp_path / "a.o").exists()
    broken = made | {"command": f"{sys.executable} -c raise(SystemExit(1)) -o a.o -c a.cpp"}
    with pytest.raises(against.FailedError, match=r"a\.cpp does not compile"):
        against.processor_seconds(broken)


def test_compile_times_are_of_the_same_sources_and_confirmed(tmp_path, monkeypatch):
    """Compile times are compared only for the sources that both versions have.

    A version is found slower or faster only if three rounds agree.
    """
    cast, cost = entry("cpd_kernels_avx2.dir", "cast.cpp"), entry("cpd.dir", "cost.cpp")
    listed = [[cast, cost], [cost, cast, entry("cpd.dir", "new.cpp")]]
    versions = [against.Version(name, tmp_path / name) for name in ("REV", "this tree")]
    for version, entries in zip(versions, listed, strict=True):
        version.built.mkdir(parents=True)
        (version.built / "compile_commands.json").write_text(json.dumps(entries))
    seconds = {"cast.cpp": iter([10, 10, 9, 10, 10, 9]), "cost.cpp": iter([4, 4.05])}
    monkeypatch.setattr(
        against, "processor_seconds", lambda one: float(next(seconds[Path(one["file"]).name]))
    )
    found = against.Found()
    rows = {row.name: row for row in against.compile_times(versions, found, lambda _: None)}
    assert rows["compile/libcpd"].other == [4.0]
    assert rows["compile/libcpd"].this == [4.05]
    assert rows["compile/kernels"].ratios == [1.0]
    assert found.notes == ["compile/libcpd leaves out 1 objects of one version alone"]
    seconds = {"cast.cpp": iter([9, 10, 9, 10, 11, 10]), "cost.cpp": iter([9, 10, 9, 10, 9, 10])}
    rows = {row.name: row for row in against.compile_times(versions, found, lambda _: None)}
    assert rows["compile/libcpd"].verdict == "slower"
    assert len(rows["compile/libcpd"].ratios) == against.LEAST_ROUNDS
    assert rows["compile/kernels"].verdict == ""  # the third round disagrees


def test_a_name_without_rows_is_refused_before_the_other_version_is_built(repository, monkeypatch):
    monkeypatch.setattr(against, "ROOT", repository)
    own = against.Version("this tree", repository)
    options = Namespace(name="nosuchrow", all=False, floats=1, values=1, repeats=3, seed=1)
    against.check_name(options, own)  # the repository's benchmarks have rows of any name
    monkeypatch.setattr(against.Server, "ask", lambda _: [])
    with pytest.raises(against.FailedError, match="no row of this tree has 'nosuchrow' in its na"):
        against.check_name(options, own)
    options.name = ""
    against.check_name(options, own)


def test_both_versions_get_the_same_options_of_cmake():
    cache = "CPD_NATIVE:BOOL=OFF\nCPD_CUDA:STRING=AUTO\n//x\nCPD_MPI:STRING=ON\nCMAKE_BUILD_TYPE=\n"
    assert against.cache_arguments(cache) == ["-DCPD_NATIVE=OFF", "-DCPD_CUDA=AUTO"]


# ---- a made-up tree ------------------------------------------------------------------------------

RUN = """
from argparse import Namespace
from selection import Selection
def parse(arguments):
    return Namespace(name=arguments[0], repeats=int(arguments[-1]), selection=Selection(("*",)))
"""
SELECTION = """
from fnmatch import fnmatchcase
class Selection:
    def __init__(self, patterns): self.patterns = patterns
    def wants(self, name): return any(fnmatchcase(name, p) for p in self.patterns)
"""
MEASURE = """
import os, sys
def all_rows(programs, options):
    print("noise")                 # of a module
    os.system("echo noise; cat")   # of a program, which also reads what it can
    for name in ("a[1]", "a1", "b"):
        if options.selection.wants(name):
            yield {"name": name, "value": float(options.repeats), "unit": programs.parts[-3]}
"""


@pytest.fixture
def repository(tmp_path):
    """Returns the folder of a version with benchmarks and a Python environment."""
    (tmp_path / "benchmarks").mkdir()
    for name, text in (("run", RUN), ("selection", SELECTION), ("measure", MEASURE)):
        (tmp_path / f"benchmarks/{name}.py").write_text(text)
    (tmp_path / "build/venv/bin").mkdir(parents=True)
    (tmp_path / "build/venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def test_each_version_measures_its_own_rows(repository, tmp_path):
    version = against.Version("v1", repository)
    with against.Server(version, ["NAME", "--repeats", "4"], tmp_path / "log") as server:
        unit = "build"
        rows = server.ask()
        assert [r["name"] for r in rows] == ["a[1]", "a1", "b"]
        assert {r["value"] for r in rows} == {1.0}  # once
        assert server.ask("a[1]") == [{"name": "a[1]", "value": 4.0, "unit": unit}]
        assert server.ask("b") == [{"name": "b", "value": 4.0, "unit": unit}]
        assert server.ask("c") == []
    assert "noise" in (tmp_path / "log").read_text()


def test_rounds_add_values_of_both_versions(repository, tmp_path):
    versions = against.Version("v1", repository), against.Version("this tree", repository)
    found = against.Found(rows=[against.Measured("a1", "build"), against.Measured("gone", "build")])
    rounds = against.Rounds(versions, ["NAME", "--repeats", "4"], tmp_path, found)
    shown = []
    rounds.one(found.rows, shown.append)
    rounds.one([], shown.append)
    assert [(r.name, r.other, r.this) for r in found.rows] == [
        ("a1", [4.0], [4.0]),
        ("gone", [], []),
    ]
    assert shown == ["round 1, a1", "round 1, gone"]
    assert (rounds.done, os.listdir(tmp_path).count("measured-this.log")) == (1, 1)
