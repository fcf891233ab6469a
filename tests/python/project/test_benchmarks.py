# SPDX-License-Identifier: Apache-2.0
"""Tests the stored figures of the benchmarks, and the computed bounds of these figures.

Each CPU has a file of results, and the pages' tables must agree with these files. A row far below
its bound must state a reason. The bounds are computed for invented machines, without timing.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "benchmarks"))
bounds, machine, store, table = map(
    importlib.import_module, ("bounds", "machine", "store", "table")
)

HEADER = {
    *("cpu", "vendor", "family", "model", "isa", "cores", "governor", "compiler", "torch"),
    *("version", "machine", "rows"),
}
RUNS = sorted(store.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_file_of_results_has_a_header_and_each_row_once(path):
    run = store.load(path)
    assert set(run) - {"held"} == HEADER
    assert run.get("held", run["isa"]) == run["isa"]
    assert path.name == f"cpu-{run['vendor']}-{run['family']}-{run['model']}-{run['isa']}.json"
    names = [row["name"] for row in run["rows"]]
    assert len(names) == len(set(names))
    for row in run["rows"]:
        assert {"name", "value", "unit", "against", "baseline", "ratio", "date"} <= set(row), row
    assert path.read_text() == store.dumped(run)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_share_is_the_part_of_the_bound(path):
    for row in store.load(path)["rows"]:
        assert ("share" in row) == ("bound" in row) == ("bound_is" in row), row["name"]
        if "share" in row:
            bare = {key: value for key, value in row.items() if key != "share"}
            assert bounds.with_bound(bare, {})["share"] == pytest.approx(row["share"], abs=2e-3)


def test_each_row_far_below_its_bound_has_a_reason():
    assert table.uncovered(table.every_column()) == []


def test_reasons_are_sentences():
    reasons = table.reasons()
    assert reasons
    for reason in reasons:
        assert reason.rows
        assert reason.text.endswith(".")
        assert "\n" not in reason.text


def test_tables_are_what_the_results_say():
    stale = [str(path) for path, text in table.rendered().items() if path.read_text() != text]
    assert not stale, f"{stale}: run python benchmarks/table.py"


def test_the_readme_names_no_file_of_results_that_is_not_there():
    for path in [ROOT / "python/MODELS.md", *(ROOT / "benchmarks").rglob("*.md")]:
        for name in re.findall(r"results/([\w-]+\.json)", path.read_text()):
            assert (store.RESULTS / name).exists(), f"{path.name} names {name}"


# ---- bounds --------------------------------------------------------------------------------------


def row(name, unit="GB/s", value=10.0, baseline=20.0, against="memcpy", **more):
    return {
        "name": name,
        "unit": unit,
        "value": value,
        "baseline": baseline,
        "against": against,
        "ratio": value / baseline,
        "backend": "avx512",
        **more,
    }


def rates(isa="avx512", rate=7.0, **more):
    return {f"{isa}/{mixture.text(isa)}": rate for mixture in bounds.mixtures()} | more


def bound_of(given, measured):
    full = bounds.with_bound(given, measured)
    return full.get("bound"), full.get("bound_is"), full.get("share")


def test_a_product_is_bound_by_the_issue_of_its_operations():
    given = row("gemm/sequential/e4m3/512", "GMAC/s", 12.0, 80.0, "torch sgemm")
    assert bound_of(given, rates()) == (16.0, "issue", 0.75)  # 7 operations for 16 lanes
    assert bound_of(given, {}) == (None, None, None)
    two = given | {"name": "gemm/sequential/e4m3/1024/threads2"}
    assert bound_of(two, rates()) == (32.0, "issue", 0.375)


def test_avx2_has_half_the_lanes_and_no_directed_operations():
    given = row("avx2/gemm/sequential/e4m3/512", "GMAC/s", 4.0, backend="avx2")
    assert bound_of(given, rates("avx2")) == (8.0, "issue", 0.5)
    fma = row("avx2/gemm/fma/fp16/512", "GMAC/s", 4.0, backend="avx2")
    assert bounds.mixture_of(fma).on("avx512") == {"mul": 3, "add": 1, "integer": 2, "directed": 2}
    assert bounds.mixture_of(fma).on("avx2") == {"mul": 3, "add": 9, "integer": 6}
    exact = row("avx2/gemm/fma/e4m3/512", "GMAC/s", 4.0, backend="avx2")
    assert bounds.mixture_of(exact).on("avx512") == {"mul": 3, "add": 1, "integer": 1}
    assert bounds.mixture_of(exact).on("avx2") == {"mul": 3, "integer": 4}
    draws = bounds.mixture_of(row("avx2/gemm/stochastic24/e4m3/512", "GMAC/s", 4.0, backend="avx2"))
    assert draws.on("avx2")["integer"] == draws.on("avx512")["integer"] + 2 * 7


def test_a_stream_is_bound_by_the_lesser_of_bytes_and_issue():
    given = row("cast/stochastic24/e4m3", counted=8, moved=8)
    operations = sum(bounds.mixture_of(given).on("avx512").values())
    issue = 16 * 8 * 5.0 / operations
    assert bound_of(given, rates(rate=5.0)) == (round(issue, 3), "issue", round(10 / issue, 3))
    assert bound_of(given, rates(rate=500.0)) == (20.0, "bytes", 0.5)
    assert bound_of(given, {}) == (20.0, "bytes", 0.5)


def test_times_links_and_peers():
    link = row("all_reduce/1gbps/e4m3", "ms", 400.0, 1400.0, "MPI", link=0.9)
    assert bound_of(link, {}) == (360.0, "link", 0.9)
    call = row("overhead/numpy/cast", "µs", 4.0, 1.0, "torch's multiplication")
    assert bound_of(call, {}) == (1.0, "peer", 0.25)
    given = row("model/gpt/bf16", "GFLOP/s", 8.0, bound=10.0, bound_is="products")
    assert bound_of(given, {}) == (10.0, "products", 0.8)
    assert "bound" not in bounds.with_bound({"name": "gemm", "skipped": "no torch"}, {})


def test_every_mixture_can_be_measured_and_is_used():
    kinds = {word.partition("=")[0] for text in bounds.texts() for word in text.split()}
    assert kinds <= set(bounds.KINDS)
    assert "mul=3 add=2 integer=2" in bounds.texts()
    for mixture in bounds.mixtures():
        assert mixture.rows
        assert sum(mixture.counts.values()) > 0


def test_bits_of_bf16_products_are_compared(monkeypatch):
    torch = pytest.importorskip("torch")
    gemm_bf16, rows_of = map(importlib.import_module, ("gemm_bf16", "selection"))
    options = Namespace(seed=1, repeats=3, selection=rows_of.selection("bf16-products"))
    monkeypatch.setattr(gemm_bf16, "SIZES", (64,))
    found = list(gemm_bf16.rows(options))
    assert [row["name"] for row in found] == [
        f"gemm/bf16-products/{t}/64" for t in ("bf16", "fp32")
    ]
    if any("skipped" in row for row in found):
        pytest.skip("no AVX-512 BF16")
    assert not any("wrong" in row for row in found)
    assert [row["against"] for row in found] == ["torch bf16 mm", "torch fp32 mm"]
    rate = {"avx512/pairs=0.5": 8.0}
    assert bounds.with_bound(found[0], rate)["bound"] == 256.0  # two products in each of 16 lanes
    a = torch.tensor([[2.0**24, 1.0, -(2.0**24), 0.5]])  # 1, 2^24, 2^24, 0; in order of k 0.5
    assert gemm_bf16.defined(a, torch.ones(4, 1)).item() == 0
    monkeypatch.setattr(gemm_bf16, "product", lambda a, b: gemm_bf16.defined(a, b) + 1)
    assert all("definition" in row["wrong"] for row in gemm_bf16.rows(options))


# ---- files by CPU --------------------------------------------------------------------------------


def test_the_cpu_of_a_machine():
    text = (
        "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: EPYC\n\nmore: x"
    )
    cpu = machine.this_cpu(text)
    assert (cpu.cpu, cpu.file) == ("EPYC", f"cpu-amd-26-2-{cpu.isa}.json")
    arm = machine.this_cpu("CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n")
    assert arm.file == f"cpu-arm-8-0xd4f-{arm.isa}.json"


def test_new_rows_take_the_places_of_old_ones(tmp_path):
    old = {"cpu": "A", "machine": {"copy": 1.0, "read": 2.0}, "rows": []}
    old["rows"] = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
    (tmp_path / "x.json").write_text(store.dumped(old))
    rows = [{"name": "b", "value": 3}, {"name": "c", "value": 4}, {"name": "d", "skipped": "why"}]
    run = store.made(
        {"cpu": "B", "machine": {"copy": 5.0}}, [*rows, {"name": "e", "wrong": "bits"}]
    )
    path = store.store("x.json", run, tmp_path)
    kept = json.loads(path.read_text())
    assert kept["cpu"] == "B"
    assert kept["machine"] == {"copy": 5.0, "read": 2.0}
    assert [(row["name"], row["value"]) for row in kept["rows"]] == [("a", 1), ("b", 3), ("c", 4)]
    assert ["date" in row for row in kept["rows"]] == [False, True, True]


def test_a_vendors_newest_cpu_counts(tmp_path):
    for family, model, names in (("26", "2", "a"), ("25", "unknown", "abc"), ("25", "17", "ab")):
        header = {"vendor": "amd", "family": family, "model": model, "isa": "avx512"}
        run = store.made(header, [row(name, against=family + model) for name in names])
        store.store(f"{family}-{model}.json", run, tmp_path)
    against = {name: each["amd"]["against"] for name, each in table.stored(tmp_path).items()}
    assert against == {"a": "262", "b": "2517", "c": "25unknown"}


def test_a_table_shows_a_row_of_each_vendor():
    def made(vendor, **more):
        return row("a", ratio=0.5, bound=20.0, bound_is="bytes", share=0.5, **more)

    rows = {"a": {"amd": made("amd"), "intel": made("intel", value=15.0) | {"share": 0.75}}}
    text = table.table(rows, ["a", "absent"])
    assert (
        text.splitlines()[-1]
        == "| `a` | GB/s | 10 **(0.50)** | 15 (0.75) | bytes | memcpy: 0.5, 0.5 |"
    )
    assert table.low(rows) == ["a"]
    assert table.uncovered(rows) == ["a"]


def keep(folder, vendor, family, isa, *rows, **more):
    header = {"vendor": vendor, "family": family, "model": "1", "isa": isa, **more}
    store.store(f"cpu-{vendor}-{family}-1-{isa}.json", store.made(header, list(rows)), folder)


def test_a_cpu_without_avx512_has_a_column_of_its_own(tmp_path):
    keep(tmp_path, "amd", "25", "avx512", row("a", value=40.0))
    before = table.table(table.stored(tmp_path), ["a", "b"])
    assert table.avx2_table(table.stored_on_avx2(tmp_path), ["a", "b"]) == ""
    # Stores runs of an older and of a newer CPU without AVX-512, and of the first CPU when limited
    # to AVX2. These runs do not change the table of CPUs with AVX-512.
    keep(tmp_path, "amd", "23", "avx2", row("a", value=9.0), row("b", value=3.0))
    keep(tmp_path, "amd", "27", "avx2", row("a", value=50.0))
    keep(tmp_path, "amd", "25", "avx2", row("a", value=30.0), held="avx2")
    assert table.table(table.stored(tmp_path), ["a", "b"]) == before
    text = table.avx2_table(table.stored_on_avx2(tmp_path), ["a", "b"])
    head, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    assert head == "| row | unit | AMD 23-1 | AMD 25-1, held | AMD 27-1 | bound | peer: ratios |"
    assert lines == [
        "| `a` | GB/s | 9 | 30 | 50 | – | memcpy: 0.45, 1.5, 2.5 |",
        "| `b` | GB/s | 3 | – | – | – | memcpy: 0.15, –, – |",
    ]


COMMANDS = ROOT / "build" / "release" / "compile_commands.json"


@pytest.mark.few("", 4)
@pytest.mark.skipif(not COMMANDS.exists(), reason="nothing was compiled in build/release")
@pytest.mark.parametrize("source", sorted(ROOT.glob("benchmarks/*.cpp")), ids=lambda p: p.stem)
def test_the_programs_compile(source):
    """The benchmark programs in C++ compile; no other test builds them."""
    entries = json.loads(COMMANDS.read_text())
    entry = next((one for one in entries if Path(one["file"]) == source), None)
    if entry is None:
        assert source.name == "bench_all_reduce.cpp"
        pytest.skip("this build has no MPI")
    command = [word for word in shlex.split(entry["command"]) if word != "ccache"]
    at = command.index("-o")
    command[at : at + 2] = ["-fsyntax-only"]
    folder = entry["directory"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
