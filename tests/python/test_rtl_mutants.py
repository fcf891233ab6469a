# SPDX-License-Identifier: Apache-2.0
"""Vectors find every planted bug of `tests/rtl/mutants.toml`, and nothing where there is none."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rtl_oracle
from cpd.study.testbench import write_testbench
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
    """The folder of a test bench by its vectors' name; each is written once."""

    @functools.cache
    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp("bench")
        return write_testbench(vectors_of(name), made, SOURCES)

    return folder


def run(folder: Path, *defines: str) -> tuple[int, int, str]:
    (folder / "tb.vvp").unlink(missing_ok=True)
    return make(folder, "icarus", defines)


@pytest.mark.parametrize("name", sorted({mutant["vectors"] for mutant in MUTANTS.values()}))
def test_nothing_is_found_where_nothing_is_wrong(bench: Any, name: str) -> None:
    failed, count, said = run(bench(name))
    assert (failed, count > 90) == (0, True), said


@pytest.mark.parametrize("define", MUTANTS)
def test_a_mutant_is_caught(bench: Any, define: str, record_property: Any) -> None:
    failed, count, _ = run(bench(MUTANTS[define]["vectors"]), define)
    record_property("caught", f"{failed} of {count}")
    assert 0 < failed < count


def test_every_planted_bug_is_listed() -> None:
    planted = {macro for path in SOURCES for macro in re.findall(r"\bMUT_\w+", path.read_text())}
    assert planted == set(MUTANTS)
    assert len(planted) >= 12
