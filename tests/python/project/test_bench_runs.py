# SPDX-License-Identifier: Apache-2.0
"""Tests `./dev bench` without timing: row selection and the comparison of two stored runs.

It also tests how memcpy and sgemm are limited to AVX2.
"""

from __future__ import annotations

import importlib
import os
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


def test_without_torch_a_family_of_selected_rows_is_named():
    reached = [selection.selection(text).reaches("gemm") for text in ("", "gemm/fma", "cast")]
    assert reached == [True, False, False]
    assert selection.selection("gem").reaches("gemm")
    assert selection.EVERY.reaches("model")


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


def test_stored_runs_have_names(capsys):
    name = sorted(store.RESULTS.glob("*.json"))[0].stem
    assert compare.show(name, f"{name}.json", lambda _: True) == 0
    rows = capsys.readouterr().out.partition("B/A\n")[2].splitlines()
    assert {line.split()[-1] for line in rows} == {"1.000"}


# ---- held to AVX2 --------------------------------------------------------------------------------

WITH = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512vl\n"


def test_the_switches_of_every_library():
    before = {"A": "b", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2:glibc.malloc.check=1"}
    after = held.switched(before)
    assert after["GLIBC_TUNABLES"] == f"glibc.malloc.check=1:{held.TUNABLES}"
    assert after == {"A": "b", "GLIBC_TUNABLES": after["GLIBC_TUNABLES"], **held.SWITCHES}
    assert held.switched(after) == after
    assert before["GLIBC_TUNABLES"].startswith("glibc.cpu.hwcaps=-AVX2")


class StartedError(Exception):
    """The error that the replaced `os.execve` raises instead of starting a program."""


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


def test_the_header_of_a_run_says_that_it_was_held(monkeypatch):
    monkeypatch.setattr(machine.held, "is_held", lambda _: True)
    assert machine.header({})["held"] == "avx2"
    monkeypatch.setattr(machine.held, "is_held", lambda _: False)
    assert "held" not in machine.header({})
