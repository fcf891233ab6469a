# SPDX-License-Identifier: Apache-2.0
"""Tests that the default test vectors (one test case a line) find every bug of
`tests/rtl/line_mutants`. Directed lines of other seeds must find the bugs that random lines seldom
find."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import cpd
from cpd.hardware import Ports, Vectors, make_vectors, write_testbench
from cpd.hardware.vectors.making import RANDOM
from rtl_tools import RTL, SOURCES, needs
from rtl_tools import make as run

MUTANTS = {
    name: mutant
    for path in sorted((RTL / "line_mutants").glob("*.toml"))
    for name, mutant in tomllib.loads(path.read_text()).items()
}
DOT4 = (
    "bf16 block_fma a=e4m3fn b=e4m3fn block=4 fraction_bits=12 sum=bf16 sum_rounding=nearest_even"
)
E4M3 = ("e4m3fn", "e4m3fn", "fp32")
OPERATIONS: dict[str, dict[str, Any]] = {
    "dot4": {"operation": "block_fma", "formats": "e4m3fn", "accumulator": DOT4, "length": 4},
    "fma8": {"operation": "fma", "formats": E4M3, "result": "fp32"},
    "mul16": {"operation": "mul", "formats": "fp16"},
    "mul16r": {"operation": "mul", "formats": "fp16"},
    "add16": {"operation": "add", "formats": "fp16"},
    "add32": {"operation": "add", "formats": "fp32"},
    "mul32": {"operation": "mul", "formats": "fp32"},
    "fma16": {"operation": "fma", "formats": "fp16"},
    "fma16up": {"operation": "fma", "formats": "fp16", "rounding": "up"},
    "fma32": {"operation": "fma", "formats": "fp32"},
    "cast": {"operation": "cast", "formats": ("fp32", "e4m3fn")},
    "block8": {"operation": "block_fma", "accumulator": "h100-fp8"},
    "block16": {"operation": "block_fma", "accumulator": "h100-fp16"},
    "mx": {"operation": "mma", "accumulator": "rtx-blackwell-mxfp8"},
    "int": {"operation": "dot", "formats": "int8", "accumulator": "int32", "length": 4},
    "int16": {
        "operation": "dot",
        "formats": "int8",
        "accumulator": "int16 overflow=saturate",
        "length": 4,
    },
}
"""Maps a short name to an operation. The operation's test vectors must reveal the planted bugs."""
PIPE = Ports(clock="clk", latency=3, valid_in="valid_in", valid_out="valid_out")
MODULES = {
    "dot4": ("fp8_dot4", Ports(flags=False)),
    "fma8": ("fp8_fma_wide", Ports(flags=False)),
    "mul16": ("fp16_mul_pipe", PIPE),
}
"""Modules that have a port for each field of the test vectors, by operation. The operations that
are not listed use the library's module for the operation."""
EQUAL = {name for name, mutant in MUTANTS.items() if "equal" in mutant}
"""Code changes that are not bugs, because they change no result."""
QUICK = {
    "dot4_zero_sign_of_terms",
    "dot4_zero_products_hide_c",
    "dot4_flushed_result",
    "int_last_flag",
    "mul_tiny_by_code",
    "mul_tiny_tie",
    "round_lost_cast",
}
QUICK_SEEDS = {"dot4_flushed_result", "mul_tiny_by_code"}
SEEDS = QUICK_SEEDS | {
    *("dot4_zero_sign_of_terms", "dot4_nan_lane_2", "mul_least_normal_lost", "round_lost_mul32"),
    *("fma_sticky_dropped", "fma_shift_cut_at_32", "fma_under_last", "fma_negative_not_negated"),
    *("align_places_fma32", "round_unbounded_sticky_up", "round_lost_fma", "round_lost_cast"),
    *("block_infinity_of_first", "block_scale_nan", "mx_scale_of_b", "int_saturated_end"),
}
"""Planted bugs that a single kind of directed test vectors finds; the other kinds do not."""

pytestmark = needs("iverilog", "make")


def lines_of(name: str, **how: Any) -> Vectors:
    """Returns an operation's default test vectors: directed lines and 10,000 random lines."""
    return make_vectors(**OPERATIONS[name], **(how or {"directed": True, "random": RANDOM}))


def write_bench(folder: Path, name: str, vectors: Vectors) -> Path:
    module, ports = MODULES.get(name, (None, None))
    return write_testbench(vectors, folder, SOURCES, module, ports)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that returns the folder of an operation's test bench. The first call with
    an operation and its options writes the test bench; later calls reuse the folder."""

    @functools.cache
    def folder(name: str, **how: Any) -> Path:
        return write_bench(tmp_path_factory.mktemp("bench"), name, lines_of(name, **how))

    return folder


def mutated(name: str, folder: Path) -> list[Path]:
    """Writes the module's sources with one planted bug into `folder`, and returns their paths."""
    mutant = MUTANTS[name]
    source = (RTL / mutant["file"]).read_text()
    assert source.count(mutant["before"]) == 1, name
    changed = folder / mutant["file"]
    changed.write_text(source.replace(mutant["before"], mutant["after"]))
    return [changed if path.name == mutant["file"] else path for path in SOURCES]


def slow_but(names: Iterable[str], quick: set[str]) -> list[Any]:
    """Returns the names as pytest parameters. Names that are not in `quick` are marked for the
    exhaustive tier."""
    return [pytest.param(n, marks=[] if n in quick else pytest.mark.exhaustive) for n in names]


@pytest.mark.parametrize("name", slow_but(OPERATIONS, {"dot4", "mul16"}))
def test_the_modules_pass_the_default_lines(bench: Any, name: str) -> None:
    failed, count, said = run(bench(name), "icarus")
    assert (failed, count > 10_000) == (0, True), said


@pytest.mark.parametrize("name", slow_but(MUTANTS, QUICK))
def test_the_default_lines_find_a_bug(bench: Any, tmp_path: Path, name: str) -> None:
    """The default test vectors find every bug. The vectors report no failure for a code change that
    does not affect results."""
    sources = mutated(name, tmp_path)
    failed, count, said = run(bench(MUTANTS[name]["vectors"]), "icarus", rtl=sources, stop=1)
    assert count > 10_000
    assert (failed == 0) == (name in EQUAL), said


@pytest.mark.parametrize("seed", [1, 2**63])
@pytest.mark.parametrize("name", slow_but(sorted(SEEDS), QUICK_SEEDS))
def test_directed_lines_of_other_seeds_find_a_bug(
    bench: Any, tmp_path: Path, name: str, seed: int
) -> None:
    folder = bench(MUTANTS[name]["vectors"], directed=True, seed=seed)
    failed, _, said = run(folder, "icarus", rtl=mutated(name, tmp_path), stop=1)
    assert failed == 1, said


@pytest.mark.parametrize("name", OPERATIONS)
def test_default_lines_are_at_most_twice_those_of_0_7(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are at most twice as many default test vectors as in version 0.7.0. That version had
    no directed lines near values at which results are rounded differently."""
    made = lines_of(name)
    count = sum(len(batch["result"]) for batch in made.batches())
    monkeypatch.setattr(type(made.rule), "near_lines", lambda *_: iter(()))
    before = sum(len(batch["result"]) for batch in made.batches())
    assert RANDOM < before < count <= 2 * before


def test_the_bugs_are_listed() -> None:
    assert set(MUTANTS) >= QUICK | SEEDS
    assert {mutant["vectors"] for mutant in MUTANTS.values()} == set(OPERATIONS)
    assert len(MUTANTS) - len(EQUAL) >= 115
    assert all(len(MUTANTS[name]["equal"]) > 20 for name in EQUAL)
    assert cpd.Accumulator(DOT4).form == "unit"
