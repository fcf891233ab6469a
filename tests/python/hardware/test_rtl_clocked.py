# SPDX-License-Identifier: Apache-2.0
"""Tests the test benches of clocked modules: reset, valid and ready with gaps, units that are busy
for many cycles, and ports with other names. Each bug planted in `tests/rtl/clocked` must give its
own message. Without a bug, the modules must give the results of the test vectors, which other tests
compare with rational numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cpd.hardware import Ports, make_vectors, write_testbench
from cpd.hardware.testbench.ports import header_ports
from rtl_tools import RTL, SOURCES, call, needs
from rtl_tools import make as run

CLOCKED = sorted((RTL / "clocked").glob("*.sv"))
SIMULATORS = [
    pytest.param("icarus", marks=needs("iverilog", "make")),
    pytest.param("verilator", marks=[needs("verilator", "make", "g++"), pytest.mark.exhaustive]),
]
ICARUS = needs("iverilog", "make")

ELASTIC: dict[str, Any] = {
    "clock": "clk_i",
    "reset": "rst_ni",
    "reset_level": 0,
    "valid_in": "in_valid_i",
    "ready_in": "in_ready_o",
    "valid_out": "out_valid_o",
    "ready_out": "out_ready_i",
    "names": {"a": "op_a_i", "b": "op_b_i", "result": "res_o", "flags": "status_o"},
}
FIXED: dict[str, Any] = {"clock": "clk", "reset": "rst", "valid_in": "valid_in"}


def bench(folder: Path, module: str, ports: dict[str, Any], lines: int = 300) -> tuple[Path, int]:
    operation = "div" if module.startswith("div") else "mul"
    f = "fp16" if module == "fp16_mul_pipe" else "e4m3fn"
    vectors = make_vectors(operation, f, random=lines, seed=3)
    sources = [*SOURCES, *CLOCKED]
    return write_testbench(vectors, folder, sources, module, Ports(**ports)), vectors.count


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize(
    ("module", "ports"),
    [
        ("mul_elastic", ELASTIC),
        ("mul_elastic", ELASTIC | {"gaps": 0}),
        ("mul_elastic", ELASTIC | {"gaps": 90, "reset_cycles": 0}),
        ("div_iterative", ELASTIC),
        ("fp16_mul_pipe", FIXED | {"latency": 3}),
        ("fp16_mul_pipe", FIXED | {"latency": 3, "gaps": 40, "interval": 2}),
        ("fp16_mul_pipe", FIXED | {"valid_out": "valid_out", "gaps": 40}),
    ],
)
def test_right_modules_pass(
    tmp_path: Path, simulator: str, module: str, ports: dict[str, Any]
) -> None:
    folder, lines = bench(tmp_path, module, ports)
    failed, count, said = run(folder, simulator)
    assert (failed, count) == (0, lines), said
    again = call("make", "-s", "-C", folder, simulator, "LINE=7", "SEED=5")
    assert f"PASS {module}: 1 vectors" in again.stdout


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize(
    ("bug", "module", "ports", "said"),
    [
        ("VALID_STUCK", "mul_elastic", {}, r"out_valid_o never falls: it is 1 in all \d+ cycles"),
        ("VALID_STUCK", "mul_elastic", {"gaps": 0}, r"\A(line .*\n  .*\n)*out_valid_o never falls"),
        ("READY_STUCK", "mul_elastic", {}, r"\d+ lines were taken and have no result: lost"),
        ("UNSTABLE", "mul_elastic", {}, "the result changes while out_ready_i is 0"),
        ("VALID_EARLY", "mul_elastic", {"gaps": 0}, "or out_valid_o is 1 before the result is"),
        ("LINE_LOST", "mul_elastic", {}, "is lost: from here on each result is that of the line 1"),
        ("READY_STUCK", "div_iterative", {}, r"\d+ lines were taken and have no result: lost"),
        ("NEVER_DONE", "div_iterative", {}, r"line \d+: no result in 10000 cycles"),
        ("VALID_STUCK", "div_iterative", {}, r"line \d+: a result too many: from here on each is"),
    ],
)
def test_a_bug_is_found_and_named(
    tmp_path: Path, simulator: str, bug: str, module: str, ports: dict[str, Any], said: str
) -> None:
    if bug == "LINE_LOST":
        vectors = make_vectors("mul", "e4m3fn", directed=True)
        sources = [*SOURCES, *CLOCKED]
        folder = write_testbench(vectors, tmp_path, sources, module, Ports(**ELASTIC))
    else:
        folder, _ = bench(tmp_path, module, ELASTIC | ports)
    done = call("make", "-s", "-C", folder, simulator, f"DEFINES=BUG_{bug}")
    assert done.returncode != 0
    assert f"FAIL {module}: " in done.stdout
    assert re.search(said, done.stdout), done.stdout
    assert done.stdout.count("\nline ") < 60


@ICARUS
def test_a_stuck_valid_fails_where_every_line_is_right(tmp_path: Path) -> None:
    source = (RTL / "fp16_mul_pipe.sv").read_text()
    stuck = source.replace("else valid_out <= valid_2;", "else valid_out <= valid_out | valid_2;")
    assert stuck != source
    (tmp_path / "stuck.sv").write_text(stuck)
    vectors = make_vectors("mul", "fp16", random=200)
    ports = Ports(**FIXED, valid_out="valid_out")
    sources = [tmp_path / "stuck.sv"]
    folder = write_testbench(vectors, tmp_path / "tb", sources, "fp16_mul_pipe", ports)
    done = call("make", "-s", "-C", folder, "icarus")
    assert "valid_out never falls: it is 1 in all " in done.stdout
    assert "FAIL fp16_mul_pipe: 0 of 200 vectors" in done.stdout
    assert done.returncode != 0


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize(("latency", "gaps"), [(1, 0), (2, 30), (9, 0), (20, 50)])
def test_a_wrong_latency_names_the_right_one(
    tmp_path: Path, simulator: str, latency: int, gaps: int
) -> None:
    folder, _ = bench(tmp_path, "fp16_mul_pipe", FIXED | {"latency": latency, "gaps": gaps})
    failed, _, said = run(folder, simulator)
    assert failed > 0
    assert "results match with latency 3: --latency 3\n" in said


@ICARUS
def test_a_run_ends_after_some_failing_lines(tmp_path: Path) -> None:
    folder, lines = bench(tmp_path, "fp16_mul_pipe", FIXED | {"latency": 1})
    failed, count, said = run(folder, "icarus", stop=3)
    assert (failed, count) == (3, lines)
    assert re.search(r"^stopped after line \d+: STOP=3$", said, re.M)
    assert "no result" not in said


@ICARUS
def test_unknown_bits_are_named(tmp_path: Path) -> None:
    vectors = make_vectors("mul", "e4m3fn", directed=True)
    sources = [*SOURCES, *CLOCKED]
    folder = write_testbench(vectors, tmp_path, sources, "mul_elastic", Ports(**ELASTIC))
    failed, _, said = run(folder, "icarus", ["BUG_UNKNOWN"])
    assert f"{failed} results hold X or Z\n" in said
    assert re.search(r"  result: got 7X \(\S+\), expected 7e \(448\), X or Z\n", said)


@ICARUS
@pytest.mark.parametrize("any_nan", [False, True])
def test_unknown_bits_are_no_nan(tmp_path: Path, any_nan: bool) -> None:
    (tmp_path / "dut.sv").write_text(
        "module dut(input [7:0] a, b, output [7:0] result, output [4:0] flags);\n"
        "  assign result = 8'hxx; assign flags = 5'd0;\nendmodule\n"
    )
    vectors = make_vectors("mul", "e4m3fn", random=200)
    ports = Ports(any_nan=any_nan)
    folder = write_testbench(vectors, tmp_path / "tb", [tmp_path / "dut.sv"], "dut", ports)
    failed, count, said = run(folder, "icarus")
    assert failed == count, said
    assert f"{count} results hold X or Z" in said


@ICARUS
def test_a_reset_of_the_other_level_is_named(tmp_path: Path) -> None:
    folder, lines = bench(tmp_path, "mul_elastic", ELASTIC | {"reset_level": 1})
    failed, count, said = run(folder, "icarus")
    assert failed == count == lines
    assert "rst_ni resets at 1; if it resets at 0, give --reset-level 0" in said


@ICARUS
def test_a_reset_that_is_left_out_is_named(tmp_path: Path) -> None:
    ports = {name: value for name, value in ELASTIC.items() if not name.startswith("reset")}
    folder, lines = bench(tmp_path, "div_iterative", ports)
    failed, _, said = run(folder, "icarus")
    assert failed == lines
    assert "the bench does not drive rst_ni of div_iterative" in said
    assert "in_ready_o is not 1" in said


@ICARUS
def test_other_nan_codes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "dut.sv").write_text(
        "module dut(input [7:0] a, b, output [7:0] result, output [4:0] flags);\n"
        "  wire [7:0] x;\n"
        "  fp_mul #(.EXP(4), .MAN(3), .ENCODING(1)) m(.a(a), .b(b), .rounding(3'd0),\n"
        "      .saturate(1'b0), .r(1'b0), .result(x), .flags(flags));\n"
        "  assign result = x == 8'h7f ? 8'hff : x == 8'h31 ? 8'h32 : x;\nendmodule\n"
    )
    vectors = make_vectors("mul", "e4m3fn", directed=True, random=2000)
    nans = wrong = 0
    for columns in vectors.batches():
        nans += int((columns["result"] == 0x7F).sum())
        wrong += int((columns["result"] == 0x31).sum())
    assert nans > 100
    sources = [*SOURCES, tmp_path / "dut.sv"]
    folder = write_testbench(vectors, tmp_path / "tb", sources, "dut")
    failed, _, said = run(folder, "icarus")
    assert failed == nans + wrong
    assert re.search(
        rf"^{nans} differ in NaN codes alone: --any-nan \(line \d+: got ff,", said, re.M
    )
    shown = re.findall(r"result: got (\w+)", said)
    assert len(shown) == min(wrong, 10) > 0
    assert set(shown) == {"32"}
    folder = write_testbench(vectors, tmp_path / "tb", sources, "dut", Ports(any_nan=True))
    failed, _, said = run(folder, "icarus")
    assert failed == wrong
    assert "NaN codes" not in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clock": "clk"}, "the module mul_elastic has no port clk: its ports are clk_i, rst_ni,"),
        ({"names": {"a": "op_a_i", "b": "op_b_i"}}, "has no port result, flags: .*--no-flags"),
    ],
)
def test_ports_that_the_header_lacks(tmp_path: Path, changed: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bench(tmp_path / "tb", "mul_elastic", ELASTIC | changed)
    assert not (tmp_path / "tb").exists()


def test_signals_need_special(tmp_path: Path) -> None:
    (tmp_path / "mma.sv").write_text(
        "module mma(input [511:0] a, b, input [31:0] c, output [31:0] result, output [4:0] flags,\n"
        "  output [9:0] max_exp);\nendmodule\n"
    )
    vectors = make_vectors("block_fma", accumulator="h100-fp8", random=3)
    ports = Ports(signals=("max_exp",))
    with pytest.raises(ValueError, match=r"the module mma has no port special: .*--signals"):
        write_testbench(vectors, tmp_path / "tb", [tmp_path / "mma.sv"], "mma", ports)
    assert not (tmp_path / "tb").exists()


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("module m; endmodule", None),
        ("module other(input x); endmodule", None),
        ("module m(`PORTS); endmodule", None),
        (
            "module m import p::*; #(parameter int W = f(1, 2), X = 3) (\n"
            "input wire [W-1:0] a, b /* c, d */, // e\n"
            "`ifdef TWO\ninput logic signed [3:0] v [0:1],\n`endif\n output reg q = 1'b0);",
            {"a": "input", "b": "input", "v": "input", "q": "output"},
        ),
        ("module m(a, b); input a; output b; endmodule", {"a": "", "b": ""}),
        (
            "module mm(input y); endmodule module m (input x, inout z);",
            {"x": "input", "z": "inout"},
        ),
    ],
)
def test_ports_of_a_header(tmp_path: Path, text: str, ports: dict[str, str] | None) -> None:
    (tmp_path / "m.sv").write_text(text)
    assert header_ports([tmp_path / "missing.sv", tmp_path / "m.sv"], "m") == ports


@needs("verilator")
@pytest.mark.parametrize("module", ["mul_elastic", "fp16_mul_pipe", "div_iterative"])
def test_the_linter_has_nothing_to_say(module: str) -> None:
    unused = [f"-Wno-{name}" for name in ("DECLFILENAME", "PINCONNECTEMPTY", "UNUSEDSIGNAL")]
    sources = [*SOURCES, *CLOCKED]
    done = call("verilator", "--lint-only", "-Wall", *unused, "--top-module", module, *sources)
    assert (done.returncode, done.stderr) == (0, "")
