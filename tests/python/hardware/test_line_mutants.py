# SPDX-License-Identifier: Apache-2.0
"""The default lines of vectors find every bug of `tests/rtl/line_mutants.toml`."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cpd
from cpd.hardware.testbench import Ports, write_testbench
from cpd.hardware.vectors import Vectors, make
from cpd.hardware.vectors.making import RANDOM
from rtl_tools import RTL, SOURCES, needs
from rtl_tools import make as run

MUTANTS = tomllib.loads((RTL / "line_mutants.toml").read_text())
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
"""The lines that each bug must differ in."""
PIPE = Ports(clock="clk", latency=3, valid_in="valid_in", valid_out="valid_out")
MODULES = {
    "dot4": ("fp8_dot4", Ports(flags=False)),
    "fma8": ("fp8_fma_wide", Ports(flags=False)),
    "mul16": ("fp16_mul_pipe", PIPE),
}
"""The modules whose ports are the fields; the others are those of the operations."""
QUICK = {
    "dot4_zero_sign_of_terms",
    "dot4_zero_products_hide_c",
    "dot4_flushed_result",
    "mul_tiny_by_code",
}

pytestmark = needs("iverilog", "make")


def lines_of(name: str, **how: Any) -> Vectors:
    """The default lines: directed and 10,000 random ones."""
    return make(**OPERATIONS[name], **(how or {"directed": True, "random": RANDOM}))


def write_bench(folder: Path, name: str, vectors: Vectors) -> Path:
    module, ports = MODULES.get(name, (None, None))
    return write_testbench(vectors, folder, SOURCES, module, ports)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a test bench by its lines' name; each is written once."""

    @functools.cache
    def folder(name: str) -> Path:
        return write_bench(tmp_path_factory.mktemp("bench"), name, lines_of(name))

    return folder


def mutated(name: str, folder: Path) -> list[Path]:
    """The sources with one bug, in a folder."""
    mutant = MUTANTS[name]
    source = (RTL / mutant["file"]).read_text()
    assert source.count(mutant["before"]) == 1, name
    changed = folder / mutant["file"]
    changed.write_text(source.replace(mutant["before"], mutant["after"]))
    return [changed if path.name == mutant["file"] else path for path in SOURCES]


@pytest.mark.parametrize("name", MODULES)
def test_the_modules_pass_the_default_lines(bench: Any, name: str) -> None:
    failed, count, said = run(bench(name), "icarus")
    assert (failed, count > 10_000) == (0, True), said


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.exhaustive) for n in MUTANTS]
)
def test_the_default_lines_find_a_bug(
    bench: Any, tmp_path: Path, name: str, record_property: Any
) -> None:
    sources = mutated(name, tmp_path)
    failed, count, said = run(bench(MUTANTS[name]["vectors"]), "icarus", rtl=sources)
    record_property("caught", f"{failed} of {count}")
    assert 0 < failed < count, said


def test_the_quick_bugs_are_listed() -> None:
    assert set(MUTANTS) >= QUICK
    assert {mutant["vectors"] for mutant in MUTANTS.values()} == set(OPERATIONS)
    assert cpd.Accumulator(DOT4).unit is not None
