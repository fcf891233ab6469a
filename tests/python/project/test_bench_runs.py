# SPDX-License-Identifier: Apache-2.0
"""`./dev bench`: which rows it selects, what it says of two stored runs, and what holds memcpy and
sgemm to AVX2. Nothing is timed."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "benchmarks"))
bounds, compare, held, machine, run, selection, store = map(
    importlib.import_module,
    ("bounds", "compare", "held", "machine", "run", "selection", "store"),
)

NAMES = sorted(
    {row["name"] for path in store.RESULTS.glob("*.json") for row in store.load(path)["rows"]}
)

# ---- which rows ----------------------------------------------------------------------------------


def selected(*arguments):
    return [name for name in NAMES if run.parse([*arguments]).selection.wants(name)]


def test_the_main_rows_are_a_part_of_all_and_have_the_readmes():
    assert selected("--all") == NAMES
    main = selected()
    assert set(selection.PRINCIPAL) <= set(main)
    assert len(main) < len(NAMES) / 4


@pytest.mark.parametrize("pattern", selection.MAIN)
def test_each_pattern_of_the_main_rows_has_one(pattern):
    model = importlib.import_module("model")
    vectors = importlib.import_module("vectors")
    names = [
        *NAMES,
        *vectors.KNOWN,
        *(f"model/{case.name}/{name}" for case in model.CASES for name in case.bars),
    ]
    assert any(fnmatchcase(name, pattern) for name in names)


def test_a_text_selects_among_all_rows():
    for text in ("gemm/map/", "e4m3", "te:bf16", "cast/size/1024"):
        assert selected(text) == [name for name in NAMES if text in name]
    assert selected("*") == selected("[a-z]") == []  # a text, no pattern


def test_an_all_reduce_has_its_parts():
    assert set(selection.PARTS) <= set(selected("all_reduce"))
    assert not set(selection.PARTS) & set(selected("all_reduce/"))


@pytest.mark.parametrize("text", ["", "e4m3", "top_k_0.01", "qsgd_bits=4", "te:bf16/bf16", "[a]"])
def test_the_programs_select_as_python_does(text):
    """The C++ programs match names by the C library's fnmatch, which agrees with Python's."""
    fnmatch = ctypes.CDLL(None).fnmatch
    for pattern in selection.selection(text).patterns:
        for name in [*NAMES, text, f"cast/{text}/more"]:
            there = fnmatch(pattern.encode(), name.encode(), 0) == 0
            assert there == fnmatchcase(name, pattern), (name, pattern)


def test_without_torch_a_family_of_selected_rows_is_named():
    reached = [selection.selection(text).reaches("gemm") for text in ("", "gemm/fma", "cast")]
    assert reached == [True, False, False]
    assert selection.selection("gem").reaches("gemm")
    assert selection.EVERY.reaches("model")


def test_help_comes_at_once(tmp_path):
    times = tmp_path / "times.tsv"
    made = subprocess.run(
        [ROOT / "dev", "bench", "--help"],
        env=os.environ | {"CPD_TIMES": str(times)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.startswith("usage: ./dev bench")
    assert not times.exists()  # no step of a build


# ---- two runs ------------------------------------------------------------------------------------


def row(name, value, ratio=1.0, spread=0.05, unit="GB/s", **more):
    turns = {"ratio": ratio, "least": ratio * (1 - spread), "most": ratio * (1 + spread)}
    return {"name": name, "value": value, "unit": unit, "against": "memcpy", **turns, **more}


FIRST = {
    "cpu": "EPYC",
    "compiler": "GCC 12",
    "version": "0.6.0",
    "machine": {"copy": 40.0},
    "rows": [
        row("same", 10.0, share=0.5),
        row("near", 10.0),
        row("slower", 10.0, share=0.8),
        row("slowest", 10.0),
        row("faster", 10.0),
        row("time", 10.0, unit="µs"),
        row("alone", 1.0),
        row("other unit", 1.0),
        row("other bytes", 1.0, counted=8),
        {"name": "no turns", "value": 4.0, "unit": "GB/s"},
    ],
}
SECOND = {
    "cpu": "EPYC",
    "compiler": "GCC 14",
    "version": "0.7.0",
    "machine": {"copy": 20.0},
    "rows": [
        row("near", 9.2, ratio=0.5),
        row("same", 10.0, share=0.6),
        row("slower", 8.0, share=0.7),
        row("slowest", 5.0),
        row("faster", 20.0),
        row("time", 20.0, unit="µs"),
        row("other unit", 1.0, unit="ms"),
        row("other bytes", 1.0, counted=5),
        {"name": "no turns", "value": 3.0, "unit": "GB/s"},
        row("new", 1.0),
    ],
}


def test_losses_come_first():
    found = [(pair.a["name"], round(pair.times, 3)) for pair in compare.pairs(FIRST, SECOND)]
    assert found == [
        ("slowest", 0.5),
        ("time", 0.5),  # less is better
        ("no turns", 0.75),
        ("slower", 0.8),
        ("near", 0.92),
        ("same", 1.0),
        ("faster", 2.0),
    ]


def shown(capsys, tmp_path, wants=lambda _: True):
    for name, kept in (("a", FIRST), ("b", SECOND)):
        (tmp_path / f"{name}.json").write_text(store.dumped(kept))
    assert compare.show(str(tmp_path / "a.json"), str(tmp_path / "b.json"), wants) == 0
    return capsys.readouterr().out.splitlines()


def test_what_differs_in_headers_and_rows_is_said(capsys, tmp_path):
    lines = shown(capsys, tmp_path)
    assert lines[: lines.index("")] == [
        "compiler: GCC 12 → GCC 14",
        "version: 0.6.0 → 0.7.0",
        "memcpy, GB/s: 40 → 20",
        "only A has 1 more rows",
        "only B has 1 more rows",
        "not compared, since they count something else: other unit, other bytes",
        "7 rows, losses first",
    ]
    figures = ["10", "0.80", "8", "0.70", "0.800"]
    slower = next(line for line in lines if line.startswith("slower "))
    assert slower.split() == ["slower", "GB/s", *figures]


def test_a_name_selects_rows_of_the_comparison(capsys, tmp_path):
    lines = shown(capsys, tmp_path, lambda name: "slow" in name)
    assert [line.split()[0] for line in lines[lines.index("") + 2 :]] == ["slowest", "slower"]


def test_stored_runs_have_names(capsys):
    name = sorted(store.RESULTS.glob("*.json"))[0].stem
    assert compare.show(name, f"{name}.json", lambda _: True) == 0
    rows = capsys.readouterr().out.partition("B/A\n")[2].splitlines()
    assert {line.split()[-1] for line in rows} == {"1.000"}


def test_a_reader_that_has_seen_enough_is_no_error():
    """And no signal's handler changes for it, which would outlive the call."""
    name = sorted(store.RESULTS.glob("*.json"))[0].stem
    before = signal.getsignal(signal.SIGPIPE)
    compare.show(name, name, lambda _: True)
    assert signal.getsignal(signal.SIGPIPE) == before
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, store.RESULTS.parent / "run.py", "--compare", name, name]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"is no file, and no name in benchmarks/results \(there: .*cpu-amd"),
        ("{", "is not JSON"),
        ("[]", "rows without a header; the run is in out/bench"),
        ('{"cpu": 1}', "is not a run: an object with `rows`"),
        ('{"rows": 3}', "is not a run"),
        ('{"rows": [{"name": "a"}]}', 'a row needs name, value and unit, got {"name": "a"}'),
        ('{"rows": [7]}', "a row needs name, value and unit, got 7"),
        ('{"rows": [{"name": "z", "value": 1, "unit": "GB/s"}]}', "no row in common"),
    ],
)
def test_what_is_no_run_is_said(tmp_path, text, message):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(FIRST))
    if text is not None:
        bad.write_text(text)
    with pytest.raises(SystemExit, match=message):
        compare.show(str(good), str(bad), lambda _: True)
    with pytest.raises(SystemExit, match=message):
        compare.show(str(bad), str(good), lambda _: True)


def test_a_comparison_needs_two_runs(capsys):
    for arguments in (["--compare", "a"], ["--compare"]):
        with pytest.raises(SystemExit):
            run.parse(arguments)
        assert "expected 2 arguments" in capsys.readouterr().err


# ---- held to AVX2 --------------------------------------------------------------------------------

WITH = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512vl\n"
WITHOUT = "processor\t: 0\nflags\t\t: fpu avx2\n"


def test_only_a_cpu_with_avx512_is_held():
    assert held.is_held({"CPD_BACKEND": "avx2"}, WITH)
    assert not held.is_held({"CPD_BACKEND": "avx2"}, WITHOUT)
    assert not held.is_held({"CPD_BACKEND": "avx512"}, WITH)
    assert not held.is_held({}, WITH)
    assert not held.has_avx512("model name\t: avx512f\n")


def test_the_switches_of_every_library():
    before = {"A": "b", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2:glibc.malloc.check=1"}
    after = held.switched(before)
    assert after["GLIBC_TUNABLES"] == f"glibc.malloc.check=1:{held.TUNABLES}"
    assert after == {"A": "b", "GLIBC_TUNABLES": after["GLIBC_TUNABLES"], **held.SWITCHES}
    assert held.switched(after) == after
    assert before["GLIBC_TUNABLES"].startswith("glibc.cpu.hwcaps=-AVX2")


class StartedError(Exception):
    """In place of the process that would start."""


def start(monkeypatch, environment, text, features=()):
    def execve(path, arguments, environment):
        raise StartedError(path, arguments, environment)

    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(held, "has_avx512", lambda: "avx512f" in text)
    monkeypatch.setattr(held, "usable", lambda feature, _: feature in features)
    held.start_again_where_needed()


def test_the_process_starts_again_with_the_switches(monkeypatch, capsys):
    given = {"CPD_BACKEND": "avx2"}
    with pytest.raises(StartedError) as caught:
        start(monkeypatch, given, WITH)
    path, arguments, environment = caught.value.args
    assert (path, arguments[0], arguments[1:]) == (
        sys.executable,
        sys.executable,
        sys.orig_argv[1:],
    )
    assert environment == held.switched(given)
    start(monkeypatch, environment, WITH)  # once
    assert capsys.readouterr().out.startswith("AVX2: memcpy and sgemm are held to it, by GLIBC")


def test_a_memcpy_that_is_not_held_ends_the_run(monkeypatch):
    with pytest.raises(SystemExit, match="memcpy still uses AVX512VL"):
        start(monkeypatch, held.switched({"CPD_BACKEND": "avx2"}), WITH, ["AVX512VL"])


def test_there_is_nothing_to_hold_without_avx512(monkeypatch, capsys):
    start(monkeypatch, {"CPD_BACKEND": "avx2"}, WITHOUT)
    assert capsys.readouterr().out == "AVX2: this CPU has no AVX-512 for memcpy and sgemm\n"
    start(monkeypatch, {"CPD_BACKEND": "scalar"}, WITH)
    start(monkeypatch, {}, WITH)
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(
    not held.LOADER.exists() or "avx2" not in held.CPUINFO.read_text(), reason="no glibc with AVX2"
)
def test_glibc_says_what_its_tunables_leave():
    """By AVX2, which is on more machines: glibc ignores names that it does not know."""
    assert held.usable("AVX2", {})
    assert not held.usable("AVX2", {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2"})
    assert held.usable("AVX2", {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2_Usable"})
    for feature in ("AVX512F", "AVX512VL"):
        assert not held.usable(feature, held.switched({}))
    assert held.usable("AVX2", held.switched({}))


def test_an_sgemm_that_avx2_cannot_reach_is_seen():
    """A stored run of an Intel CPU, whose sgemm has AVX-512: all but the smallest products."""
    run_with = store.load(store.RESULTS / "cpu-intel-6-207-avx512.json")
    found = held.beyond_avx2(run_with["rows"], run_with["machine"])
    assert {"gemm/sequential/e4m3/512", "gemm/fma/e4m3/1024"} <= set(found)
    slow = [
        row(name, 1.0, unit="GMAC/s", baseline=50.0) | {"against": "torch sgemm"} for name in "ab"
    ]
    assert held.beyond_avx2(slow, {"avx2/fma": 7.0}) == []
    assert held.beyond_avx2(slow, {"avx2/fma": 5.0}) == ["a", "b"]
    assert held.beyond_avx2([row("a", 1.0, baseline=50.0)], {"avx2/fma": 5.0}) == []


def test_the_header_of_a_run_says_that_it_was_held(monkeypatch):
    monkeypatch.setattr(machine.held, "is_held", lambda _: True)
    assert machine.header({})["held"] == "avx2"
    monkeypatch.setattr(machine.held, "is_held", lambda _: False)
    assert "held" not in machine.header({})
