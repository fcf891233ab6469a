# SPDX-License-Identifier: Apache-2.0
"""Tests that vectors find every planted bug of `tests/rtl/mutants.toml`, and report no failure for
modules without a bug."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cpd
import rtl_oracle
from cpd.hardware import make_vectors, write_testbench
from rtl_oracle import Block
from rtl_tools import RTL, SOURCES, make, needs

MUTANTS = tomllib.loads((RTL / "mutants.toml").read_text())
FP16_UNIT = Block(out="fp16", rounding="nearest_even", min_exponent=-21)
BLOCKS = {
    "block": (Block(), 240),
    "block fp16": (FP16_UNIT, 120),
    "mx": (Block("e4m3fn", 32, scales=True), 96),
}

pytestmark = needs("iverilog", "make")


def vectors_of(name: str) -> Any:
    if name in BLOCKS:
        return rtl_oracle.blocks(*BLOCKS[name])
    operation, rounding = name.split()
    if operation == "cast":
        return rtl_oracle.elements("cast", "e5m2", "e3m2ieee", rounding, random_bits=4)
    if operation == "fma":
        return rtl_oracle.elements("fma", "e2m2", rounding=rounding)
    return rtl_oracle.elements(operation, "e3m2ieee", rounding=rounding)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that returns the folder of the test bench for the named test vectors. It
    writes the test bench at the first call for the name."""

    @functools.cache
    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp("bench")
        return write_testbench(vectors_of(name), made, SOURCES)

    return folder


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", sorted({mutant["vectors"] for mutant in MUTANTS.values()}))
def test_nothing_is_found_where_nothing_is_wrong(bench: Any, name: str) -> None:
    failed, count, said = make(bench(name), "icarus")
    assert (failed, count > 90) == (0, True), said


@pytest.mark.few("", 4)
@pytest.mark.parametrize("define", MUTANTS)
def test_a_mutant_is_caught(bench: Any, define: str, record_property: Any) -> None:
    failed, count, _ = make(bench(MUTANTS[define]["vectors"]), "icarus", [define])
    record_property("caught", f"{failed} of {count}")
    assert 0 < failed < count


PRESETS = {
    "block": ("h100-fp16", "fp32"),
    "block fp16": ("h100-fp16", "fp16"),
    "mx": ("rtx-blackwell-mxfp8", "fp32"),
}


def library_vectors(name: str) -> Any:
    """Returns test vectors as `cpd vectors` writes them: all pairs of 8-bit operands, or directed
    and random lines."""
    if name in PRESETS:
        preset, output = PRESETS[name]
        accumulator = cpd.Accumulator(output, scheme=preset)
        operation = "mma" if name == "mx" else "block_fma"
        return make_vectors(operation, accumulator=accumulator, directed=True, random=200)
    operation, rounding = name.split()
    if operation == "cast":
        formats = ("fp16", "e4m3fn")
        drawn = {"random_bits": 8} if rounding == "stochastic" else {}
        return make_vectors("cast", formats, rounding=rounding, random=60_000, **drawn)
    if operation == "fma":
        return make_vectors("fma", "e4m3", directed=True, random=60_000)
    return make_vectors(operation, "e4m3", rounding=rounding, exhaustive=True)


@pytest.fixture(scope="module")
def library_bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp("bench")
        return write_testbench(library_vectors(name), made, SOURCES)

    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("define", MUTANTS)
def test_a_mutant_is_caught_by_the_library(
    library_bench: Any, define: str, record_property: Any
) -> None:
    failed, count, _ = make(library_bench(MUTANTS[define]["vectors"]), "icarus", [define])
    record_property("caught", f"{failed} of {count}")
    assert 0 < failed < count


def test_every_planted_bug_is_listed() -> None:
    planted = {macro for path in SOURCES for macro in re.findall(r"\bMUT_\w+", path.read_text())}
    assert planted == set(MUTANTS)
    assert len(planted) >= 12
