# SPDX-License-Identifier: Apache-2.0
"""Compares the modules of `tests/rtl`, with their inner signals, with `cpd vectors` and with
rational numbers, in Icarus and Verilator. Also tests the modules' gate counts, and the messages and
errors of test benches."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import cpd
import rtl_oracle
from cpd.hardware import make_vectors, write_testbench
from cpd.hardware.testbench.units import ROUNDINGS
from rtl_oracle import Block
from rtl_tools import RTL, SOURCES, call, needs
from rtl_tools import make as run

ICARUS = needs("iverilog", "make")
VERILATOR = needs("verilator", "make", "g++")
FEW = {"directed": True, "random": 40}


def unit(name: str, output: str = "fp32", **lines: Any) -> Any:
    """Returns test vectors of the preset matrix unit `name`, for one block of its products."""
    accumulator = cpd.Accumulator(output, scheme=name)
    assert accumulator.form == "unit"
    operation = "block_fma" if accumulator.scale is None else "mma"
    return make_vectors(operation, accumulator=accumulator, **lines)


def of(unit: str, operation: str = "block_fma") -> Any:
    """Returns test vectors of a matrix unit, for one block of its products. The text `unit` has the
    options of the matrix unit."""
    accumulator = cpd.Accumulator(f"fp32 block_fma {unit}")
    assert accumulator.form == "unit"
    formats = str(accumulator.a), str(accumulator.b), "fp32"
    return make_vectors(operation, formats, accumulator=accumulator, random=9)


def passes(folder: Path, vectors: Any, simulator: str = "icarus") -> int:
    """Simulates a test bench, asserts that it passes, and returns the number of test vectors that
    were compared."""
    failed, count, said = run(write_testbench(vectors, folder, SOURCES), simulator)
    assert failed == 0, said
    assert count == vectors.count
    return count


@pytest.mark.parametrize(
    "module", ["fp_mul", "fp_add", "fp_fma", "fp_cast_sr", "block_fma", "mx_dot", "int_mac"]
)
@needs("verilator")
def test_the_linter_has_nothing_to_say(module: str) -> None:
    unused = [f"-Wno-{name}" for name in ("DECLFILENAME", "PINCONNECTEMPTY", "UNUSEDSIGNAL")]
    done = call("verilator", "--lint-only", "-Wall", *unused, "--top-module", module, *SOURCES)
    assert (done.returncode, done.stderr) == (0, "")


@ICARUS
@pytest.mark.parametrize("operation", ["mul", "add"])
def test_all_pairs(tmp_path: Path, operation: str) -> None:
    """The SystemVerilog module gives the results of the test vectors for all pairs of operands in
    every rounding. Operands have 6 bits here, and 8 bits in the exhaustive tier."""
    for rounding in ROUNDINGS[:-1]:
        assert passes(tmp_path, make_vectors(operation, "e3m2ieee", rounding=rounding)) == 4096


@pytest.mark.few("", 4)
@ICARUS
@pytest.mark.parametrize(
    ("operation", "formats", "options"),
    [
        ("mul", "e4m3fn", {"exhaustive": True}),
        ("mul", "e4m3fn", {"rounding": "stochastic", "random_bits": 5, "random": 4000}),
        ("mul", "e5m2", {"result": "e4m3fn", "overflow": "saturate", "random": 4000}),
        ("add", "fp16", {"result": "fp32", **FEW}),
        ("add", "bf16", {"result": "e3m2ieee", "rounding": "to_odd", **FEW}),
        ("fma", "e2m2", {"exhaustive": True}),
        ("fma", "fp16", {"rounding": "down", "random": 4000}),
        ("fma", "e4m3fn", {"result": "fp16", "rounding": "nearest_away", "random": 4000}),
        ("cast", ("e5m2", "e3m2ieee"), {"rounding": "stochastic", "random_bits": 5}),
        ("cast", ("fp32", "e4m3fn"), {"rounding": "stochastic", "random_bits": 8, **FEW}),
        ("cast", ("fp16", "e5m2"), {"rounding": "up", "exhaustive": True}),
    ],
)
def test_elementwise(tmp_path: Path, operation: str, formats: Any, options: Any) -> None:
    assert (
        passes(tmp_path, make_vectors(operation, formats, **options)) >= 4000
        or "directed" in options
    )


@ICARUS
@pytest.mark.parametrize(
    ("name", "output"), [("h100-fp16", "fp32"), ("h100-fp16", "fp16"), ("ada-fp8", "fp32")]
)
def test_blocks_with_their_signals(tmp_path: Path, name: str, output: str) -> None:
    assert passes(tmp_path, unit(name, output, random=200)) == 200


@ICARUS
@pytest.mark.parametrize(
    ("formats", "accumulator", "length"),
    [
        (("int8", "int8:full"), "int32", 4),
        (("int8:full", "int8:full"), "int18", 9),
        (("int8:full", "int8:full"), "int17 overflow=saturate", 9),
        (("int4", "int4"), "int6", 3),
        (("int4:full", "int4"), "int6 overflow=saturate", 3),
        (("int2:full", "int2"), "int2 overflow=saturate", 2),
        (("int16", "int16"), "int64 overflow=saturate", 2),
    ],
)
def test_integers_with_their_signals(
    tmp_path: Path, formats: Any, accumulator: str, length: int
) -> None:
    how: Any = {"accumulator": accumulator, "length": length}
    vectors = make_vectors("dot", formats, directed=True, random=400, **how)
    assert passes(tmp_path, vectors) >= 400
    assert vectors.coverage["OF"] or accumulator in ("int32", "int64 overflow=saturate")


@ICARUS
def test_scaled_blocks_with_their_signals(tmp_path: Path) -> None:
    assert passes(tmp_path, unit("rtx-blackwell-mxfp8", random=60)) == 60


@ICARUS
@pytest.mark.parametrize(
    "block",
    [
        Block("bf16"),
        Block("e4m3fn", fraction_bits=13),
        Block("e2m1", 32, scales=True),
    ],
)
def test_blocks_against_rational_numbers(tmp_path: Path, block: Block) -> None:
    assert passes(tmp_path, rtl_oracle.blocks(block, 96)) == 96


_USES_PACKAGE = """\
module use_package;
  import vectors_pkg::*;
  line_t line;
  logic [BITS-1:0] lines[0:COUNT-1];
  initial begin
    $readmemh("vectors.hex", lines);
    line = lines[COUNT-1];
    $display("%0d %h %h %h %h", COUNT, line.a, line.b, line.result, line.flags);
  end
endmodule
"""


@ICARUS
def test_the_struct_of_the_vectors_package(tmp_path: Path) -> None:
    folder = write_testbench(make_vectors("mul", "e3m2ieee"), tmp_path, SOURCES)
    (folder / "use.sv").write_text(_USES_PACKAGE)
    done = call("iverilog", "-g2012", "-o", "x", "vectors_pkg.sv", "use.sv", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert call("vvp", "-n", "x", cwd=folder).stdout == "4096 3f 3f 1e 00\n"


@pytest.mark.parametrize(
    "simulator",
    [
        pytest.param("icarus", marks=ICARUS),
        pytest.param("verilator", marks=VERILATOR),
    ],
)
def test_a_failing_bench(tmp_path: Path, simulator: str) -> None:
    vectors = make_vectors("add", "e3m2ieee", rounding="down")
    folder = write_testbench(vectors, tmp_path, SOURCES)
    failed, count, said = run(folder, simulator, ["MUT_ZERO_SIGN_DOWN"])
    assert (failed, count) == (56, 4096)  # x - x of 28 finite magnitudes, twice
    wrong = "line 33: a=00 (0) b=20 (-0)\n  result: got 00 (0), expected 20 (-0)\n"
    assert f"{wrong}  again: make {simulator} LINE=33\n" in said
    assert said.count("line ") == 10
    done = call("make", "-s", "-C", folder, simulator, "DEFINES=MUT_ZERO_SIGN_DOWN", "LINE=33")
    assert wrong in done.stdout
    assert "FAIL fp_add: 1 of 1 vectors" in done.stdout
    failed, count, said = run(folder, simulator, ["MUT_ZERO_SIGN_DOWN"], stop=2)
    assert (failed, count) == (2, 4096)
    assert re.search(r"^stopped after line \d+: STOP=2$", said, re.M)


@ICARUS
def test_every_run_is_of_its_own_macros(tmp_path: Path) -> None:
    folder = write_testbench(make_vectors("mul", "e2m2", exhaustive=True), tmp_path, SOURCES)
    found = [run(folder, "icarus", macros)[0] for macros in ([], ["MUT_TIES_AWAY"], [])]
    assert found[0] == found[2] == 0 < found[1]


@ICARUS
def test_without_sources(tmp_path: Path) -> None:
    folder = write_testbench(make_vectors("mul", "e2m2", exhaustive=True), tmp_path)
    done = call("make", "-s", "-C", folder, "icarus")
    assert "give the sources under test: RTL='fp_mul.sv …'" in done.stderr
    assert done.returncode != 0


def test_another_module(tmp_path: Path) -> None:
    folder = write_testbench(
        make_vectors("mul", "e3m2ieee"), tmp_path, ["mine.sv"], module="my_mul"
    )
    assert "  my_mul unit (\n" in (folder / "tb.sv").read_text()
    assert f"RTL ?= {Path('mine.sv').resolve()}\n" in (folder / "Makefile").read_text()


@pytest.mark.parametrize(
    "name", ["a;b", "../x", "", "1a", "a b", "ä", "module", "tb", "a\n", "a.b", "`x"]
)
def test_names_that_no_module_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="must be a SystemVerilog identifier"):
        write_testbench(make_vectors("mul", "e3m2ieee"), tmp_path / "bench", SOURCES, module=name)
    assert not (tmp_path / "bench").exists()


@ICARUS
@pytest.mark.parametrize("name", ["a b", "$(false) $HOME", "it's # not", "q`false`;&|(<", "x\\#"])
def test_paths_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    sources = [folder / source.name for source in SOURCES]
    for source, copy in zip(SOURCES, sources, strict=True):
        copy.write_text(source.read_text())
    bench = write_testbench(make_vectors("mul", "e2m2"), tmp_path / "tb", sources)
    failed, count, said = run(bench, "icarus")
    assert (failed, count) == (0, 1024), said


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (lambda: make_vectors("sqrt", "e4m3fn"), "no test bench for 'sqrt' without a module"),
        (lambda: make_vectors("mul", "e4m3fn", nan_signals=True), "give the name of your module"),
        (lambda: make_vectors("mul", ("e4m3fn", "e5m2"), random=9), "operands of one format"),
        (lambda: make_vectors("mul", "e4m3fnuz"), "no test bench for the format e4m3fnuz"),
        (lambda: make_vectors("mul", "e4m3:nosub"), "with subnormals"),
        (lambda: make_vectors("mul", "e2m1"), "which has no NaN"),
        (
            lambda: make_vectors("add", "e4m3", rounding="stochastic", random=9),
            "with stochastic rounding",
        ),
        (
            lambda: make_vectors("cast", "e4m3", rounding="stochastic", variant="B", random=9),
            "variant A",
        ),
        (lambda: make_vectors("mul", "e4m3", tininess="before"), "tininess after"),
        (lambda: unit("h100-fp16", length=32, random=9), "one block: length 16, got 32"),
        (lambda: unit("deepseek-promoted", random=9), "units that align products and c"),
        (lambda: of("a=fp16 b=bf16 block=4"), "a test bench takes a and b of one format, c of the"),
        (
            lambda: of("a=e4m3fn b=e4m3fn block=8 scale=e8m0 scale_block=4", "mma"),
            "takes units with a scale a block, and sums in fp32",
        ),
    ],
)
def test_what_has_no_test_bench(tmp_path: Path, vectors: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_testbench(vectors(), tmp_path / "bench", SOURCES)
    assert not (tmp_path / "bench").exists()


# ---- gates ---------------------------------------------------------------------------------------


def gates() -> Any:
    spec = importlib.util.spec_from_file_location("gates", RTL / "gates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed() -> dict[str, int]:
    return {
        row["name"]: row["gates"] for row in json.loads((RTL / "gates.json").read_text())["rows"]
    }


def test_every_row_of_gates_is_listed() -> None:
    counts = listed()
    assert list(counts) == [row[0] for row in gates().rows()]
    for module in ("fp_mul", "fp_add", "fp_fma"):
        assert counts[f"{module} e2m1"] < counts[f"{module} e4m3"] < counts[f"{module} e5m10"]
    assert counts["block_fma e4m3 F13"] < counts["block_fma e4m3 F25"]


@needs("yosys")
@pytest.mark.parametrize("name", ["fp_mul e4m3", "fp_add e3m2"])
def test_gates_are_as_listed(name: str) -> None:
    module = gates()
    (row,) = [row for row in module.rows() if row[0] == name]
    assert module.count(*row[1:]) == pytest.approx(listed()[name], rel=0.05)


# ---- exhaustive ----------------------------------------------------------------------------------


@VERILATOR
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("operation", "format", "rounding"),
    list(itertools.product(["mul", "add"], ["e4m3fn", "e5m2", "e4m3"], ROUNDINGS[:-1])),
)
def test_all_pairs_of_8_bits(tmp_path: Path, operation: str, format: str, rounding: str) -> None:
    vectors = make_vectors(operation, format, rounding=rounding, exhaustive=True)
    assert passes(tmp_path, vectors, "verilator") == 1 << 16


@VERILATOR
@pytest.mark.exhaustive
@pytest.mark.parametrize("format", ["e4m3fn", "e5m2", "fp16", "bf16"])
def test_a_million_fused_operations(tmp_path: Path, format: str) -> None:
    vectors = make_vectors("fma", format, directed=True, random=1_000_000)
    assert passes(tmp_path, vectors, "verilator") > 1_000_000


@VERILATOR
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("h100-fp16", "fp32"),
        ("h100-fp16", "fp16"),
        ("h100-bf16", "fp32"),
        ("ada-fp8", "fp32"),
        ("rtx-blackwell-mxfp8", "fp32"),
    ],
)
def test_many_blocks(tmp_path: Path, name: str, output: str) -> None:
    vectors = unit(name, output, directed=True, random=10_000)
    assert passes(tmp_path, vectors, "verilator") > 10_000


@VERILATOR
@pytest.mark.exhaustive
@pytest.mark.parametrize("rounding", ["nearest_even", "down"])
def test_all_triples_of_6_bits(tmp_path: Path, rounding: str) -> None:
    vectors = make_vectors("fma", "e3m2ieee", rounding=rounding, exhaustive=True)
    assert passes(tmp_path, vectors, "verilator") == 1 << 18
