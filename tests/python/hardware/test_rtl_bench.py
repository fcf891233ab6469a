# SPDX-License-Identifier: Apache-2.0
"""Tests the test benches for a user-defined module whose ports are the vectors' fields. Covers
every operation, combinational and clocked modules, messages about lines with wrong results, and
the numbers that messages print for codes."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.cli.vectors import Options
from cpd.hardware import Ports, make_vectors, write_testbench
from cpd.hardware.testbench.numbers import number_function, where_nan
from cpd.hardware.vectors.lines import lines_of
from cpd.hardware.vectors.values import values_of
from rtl_tools import call, needs
from rtl_tools import make as run

ICARUS = needs("iverilog", "make")
VERILATOR = needs("verilator", "make", "g++")


def digits(field: Any, columns: dict[str, Any], i: int) -> str:
    line = lines_of("testfloat", [field], {field.name: columns[field.name][i : i + 1]})
    return f"{field.bits}'h{line.decode().strip()}"


def looked_up(
    vectors: Any, signals: tuple[str, ...] = (), stages: int = 0, change: Any = None
) -> str:
    """Returns the source of a module `dut` that looks up its outputs in a table of the vectors,
    with a delay of `stages` cycles."""
    inputs = [each for each in vectors.rule.fields if each.role == "input"]
    outputs = [each for each in vectors.rule.fields if each.name in ("result", "flags", *signals)]
    key = "{" + ", ".join(each.name for each in inputs) + "}"
    rows = {}
    for columns in vectors.batches():
        for i in range(len(columns["result"])):
            found = [digits(each, columns, i) for each in outputs]
            if change is not None:
                found = change(i, found)
            rows[", ".join(digits(each, columns, i) for each in inputs)] = found
    width = sum(each.bits for each in outputs)
    ports = [f"input logic [{each.bits - 1}:0] {each.name}" for each in inputs]
    ports += [f"output logic [{each.bits - 1}:0] {each.name}" for each in outputs]
    names = "{" + ", ".join(each.name for each in outputs) + "}"
    lines = "\n".join(f"{{{k}}}: found = {{{', '.join(v)}}};" for k, v in rows.items())
    tail = f"assign {names} = found;"
    if stages:
        ports += ["input logic clk", "input logic go", "output logic ready"]
        tail = f"""
  logic [{width}:0] pipe[0:{stages - 1}];
  integer s;
  always @(posedge clk) begin
    pipe[0] <= {{go, found}};
    for (s = 1; s < {stages}; s = s + 1) pipe[s] <= pipe[s-1];
  end
  assign {{ready, {names[1:-1]}}} = pipe[{stages - 1}];"""
    return f"""
module dut(
  {", ".join(ports)}
);
  logic [{width - 1}:0] found;
  always_comb case ({key})
    {lines}
    default: found = 'x;
  endcase
  {tail}
endmodule
"""


def bench(folder: Path, vectors: Any, source: str, ports: Ports | None = None) -> Path:
    (folder / "dut.sv").write_text(source)
    return write_testbench(vectors, folder / "tb", [folder / "dut.sv"], "dut", ports)


FEW = {"directed": True, "random": 30}


@pytest.mark.few("", 3)
@ICARUS
@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("mul", {"formats": ("e4m3fn", "e5m2"), **FEW}),
        ("mul", {"formats": "e2m1", "exhaustive": True}),
        ("mul", {"formats": "e4m3fnuz", "overflow": "saturate", "random": 200}),
        ("add", {"formats": "fp32", "rounding": "stochastic", "random_bits": 7, "random": 100}),
        ("fma", {"formats": "bf16", "tininess": "before", "random": 100}),
        ("div", {"formats": "e3m2", "random": 200}),
        ("sqrt", {"formats": "fp16", "random": 100}),
        ("cast", {"formats": ("fp32", "e5m2"), "random": 100}),
        ("dot", {"formats": "e4m3fn", "accumulator": "e6m9 kahan", "length": 3, "random": 40}),
        ("dot", {"formats": "e4m3fn", "accumulator": "fixed<16,2>", "length": 4, "random": 40}),
        ("sum", {"formats": "bf16", "accumulator": "fp32", "length": 5, "random": 40}),
        ("block_fma", {"accumulator": "deepseek-promoted", "random": 20}),
        ("mma", {"accumulator": "rtx-blackwell-mxfp4", "random": 20}),
    ],
)
def test_every_operation_with_plain_ports(tmp_path: Path, operation: str, options: Any) -> None:
    vectors = make_vectors(operation, **options)
    folder = bench(tmp_path, vectors, looked_up(vectors))
    failed, count, said = run(folder, "icarus")
    assert failed == 0, said
    assert count == vectors.count > 0


STREAM = Ports("clk", valid_in="go", valid_out="ready")


@pytest.mark.parametrize(
    ("simulator", "stages", "ports"),
    [
        pytest.param("icarus", 1, Ports("clk", valid_in="go"), marks=ICARUS),
        pytest.param("icarus", 4, Ports("clk", latency=4, valid_in="go"), marks=ICARUS),
        pytest.param("icarus", 3, STREAM, marks=ICARUS),
        pytest.param("verilator", 3, STREAM, marks=[VERILATOR, pytest.mark.exhaustive]),
    ],
)
def test_clocked_modules(tmp_path: Path, simulator: str, stages: int, ports: Ports) -> None:
    vectors = make_vectors("mul", "e2m2", exhaustive=True)
    folder = bench(tmp_path, vectors, looked_up(vectors, stages=stages), ports)
    assert run(folder, simulator)[:2] == (0, vectors.count)
    again = call("make", "-s", "-C", folder, simulator, "LINE=7")
    assert "PASS dut: 1 vectors" in again.stdout


@ICARUS
def test_another_latency_fails(tmp_path: Path) -> None:
    vectors = make_vectors("mul", "e2m2", exhaustive=True)
    source = looked_up(vectors, stages=3)
    folder = bench(tmp_path, vectors, source, Ports("clk", latency=2, valid_in="go"))
    failed, count, _ = run(folder, "icarus")
    assert 0 < failed <= count


@ICARUS
def test_a_result_that_never_comes(tmp_path: Path) -> None:
    vectors = make_vectors("mul", "e2m2", exhaustive=True)
    source = looked_up(vectors, stages=1).replace("{go, found}", "{1'b0, found}")
    folder = bench(tmp_path, vectors, source, Ports("clk", valid_in="go", valid_out="ready"))
    failed, count, said = run(folder, "icarus")
    assert failed == count
    assert "line 1: no result in 10000 cycles" in said


@ICARUS
def test_the_first_signal_that_differs(tmp_path: Path) -> None:
    vectors = make_vectors("dot", "e4m3fn", accumulator="fixed<16,2>", length=4, random=20)

    def change(i: int, found: list[str]) -> list[str]:
        """Flips the lowest bit of term, sum and result in the sixth test vector (line)."""
        if i != 5:
            return found
        return [f"{each} ^ 1" if place < 3 else each for place, each in enumerate(found)]

    source = looked_up(vectors, ("term", "sum"), change=change)
    source = re.sub(r"(\d+'h\w+) \^ 1", lambda m: f"{m[1][:-1]}{int(m[1][-1], 16) ^ 1:X}", source)
    folder = bench(tmp_path, vectors, source, Ports(signals=("all",)))
    failed, _, said = run(folder, "icarus")
    assert failed == 1
    assert re.search(
        r"line 6: a=\w+ b=\w+ c=\w+ \(-?\d+\)\n  first term: got \w+, expected \w+\n"
        r"  result: got \w+ \(-?\d+\), expected \w+ \(-?\d+\)\n  again: make icarus LINE=6\n",
        said,
    ), said
    assert "sum:" not in said


@ICARUS
def test_any_nan(tmp_path: Path) -> None:
    vectors = make_vectors("mul", "fp16", directed=True)

    def other(nan: str) -> str:
        def change(_: int, found: list[str]) -> list[str]:
            return [nan if each == "16'h7E00" else each for each in found]

        return looked_up(vectors, change=change)

    nans = other("16'hFC01")
    assert run(bench(tmp_path, vectors, nans), "icarus")[0] > 0
    assert run(bench(tmp_path, vectors, nans, Ports(any_nan=True)), "icarus")[0] == 0
    infinities = other("16'hFC00")
    assert run(bench(tmp_path, vectors, infinities, Ports(any_nan=True)), "icarus")[0] > 0


@ICARUS
def test_without_flags(tmp_path: Path) -> None:
    vectors = make_vectors("sqrt", "e4m3fn")
    source = looked_up(vectors).replace("logic [4:0] flags", "logic [4:0] others")
    source = source.replace("{result, flags}", "{result, others}")
    assert run(bench(tmp_path, vectors, source, Ports(flags=False)), "icarus")[0] == 0


@ICARUS
@pytest.mark.parametrize(
    "name", ["e4m3fn", "e4m3fnuz", "e5m2", "e8m0", "e2m1", "fp16", "bf16", "e6m9", "e5m4"]
)
def test_codes_as_numbers(tmp_path: Path, name: str) -> None:
    f = cpd.Format(name)
    codes = np.unique(np.linspace(0, (1 << f.bits) - 1, 4099).astype(np.uint32))
    nan = where_nan(f, "code") or "0"
    (tmp_path / "x.sv").write_text(
        f"module x;\n{number_function('x', f)}\n  logic [{f.bits - 1}:0] code;\n"
        + "  initial begin\n"
        + "".join(
            f'    code = {code}; $display("%h %b", $realtobits(number_x(code)), {nan});\n'
            for code in codes
        )
        + "  end\nendmodule\n"
    )
    done = call("iverilog", "-g2012", "-o", tmp_path / "x", tmp_path / "x.sv")
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.split() for line in call("vvp", "-n", tmp_path / "x").stdout.splitlines()]
    found = np.array([int(word, 16) for word, _ in told], np.uint64).view(np.float64)
    expected = values_of(f, codes).astype(np.float64)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        np.signbit(found[found == 0]), np.signbit(expected[expected == 0])
    )
    np.testing.assert_array_equal([bit == "1" for _, bit in told], np.isnan(expected))


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ({"clock": "a;b"}, "a port's name must be a SystemVerilog identifier"),
        ({"latency": 2}, "latency needs clock, the name of the module's clock port"),
        ({"valid_in": "go"}, "valid_in needs clock"),
        ({"clock": "clk", "latency": 0}, "latency must be 1…1048576, got 0"),
        ({"clock": "clk", "reset_level": 2}, "reset_level must be 0…1, got 2"),
        ({"clock": "clk", "ready_in": "r"}, "ready_in needs valid_in"),
        ({"clock": "clk", "ready_out": "r"}, "ready_out needs valid_out"),
        ({"clock": "clk", "gaps": 10}, "gaps needs valid_in or ready_out"),
        ({"clock": "clk", "reset_cycles": 0}, "reset_cycles needs reset"),
        ({"names": {"c": "x"}}, "no field 'c' to map: the fields are a, b, result, flags"),
        ({"names": {"a": "x", "b": "x"}}, "ports must have different names"),
        ({"names": {"a": "b"}}, "the port b has the name of a field: a and b cannot share it"),
        ({"names": {"a": "1x"}}, "a port's name must be a SystemVerilog identifier"),
        ({"clock": "clk", "valid_in": "clk"}, "ports must have different names"),
        ({"clock": "a"}, "the port a has the name of a field"),
        ({"signals": ("p_exp",)}, "no signal 'p_exp': these vectors have none"),
    ],
)
def test_ports_that_no_module_has(tmp_path: Path, ports: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bench(tmp_path, make_vectors("mul", "e2m1"), "", Ports(**ports))
    assert not (tmp_path / "tb").exists()


def test_names_of_ports_are_texts() -> None:
    with pytest.raises(TypeError, match="a port's name must be a str, got int"):
        Ports(names={"a": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--module m", "--module needs --testbench DIR"),
        ("--clock clk --rtl x.sv", "--clock and --rtl need --testbench DIR"),
        ("--any-nan", "--any-nan needs --testbench DIR"),
        ("--testbench x --clock=c", "--clock needs --module NAME"),
        ("--testbench x --module m --latency 2", "--latency needs --clock PORT"),
        ("--testbench x --module m --clock c --ready-in r", "--ready-in needs --valid-in PORT"),
        ("--testbench x --module m --clock c --reset-level 0", "--reset-level needs --reset PORT"),
        ("--testbench x --module m --rtl nofile.sv", "--rtl nofile.sv: no such file"),
        ("--testbench x --module m --ports a", "--ports must be FIELD=PORT,…"),
        ("--testbench x --module m --ports a=b,a=c", "with each field once"),
        ("--testbench x -o y", "leave out --as and -o"),
    ],
)
def test_options_that_do_not_go_together(
    words: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["vectors", "mul", "e2m1", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "mode"),
    [("rtz", "toward_zero"), ("RMM", "nearest_away"), ("rminMag", "toward_zero"), ("RNE", "")],
)
def test_roundings_by_the_names_of_standards(
    name: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head = []
    for word in (name, mode or "nearest_even"):
        assert main(["vectors", "mul", "e2m1", "-o", "-", "--rounding", word]) == 0
        head.append(capsys.readouterr().out)
    assert head[0] == head[1]
    assert f'"rounding": "{mode or "nearest_even"}"' in head[0]


def test_the_examples_of_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mac.sv").write_text("")
    examples = re.findall(r"^  cpd (vectors .*)$", inspect.getdoc(Options) or "", re.M)
    assert len(examples) >= 6
    for example in examples:
        assert main(shlex.split(example.replace("100000", "1000"))) == 0, example


def test_every_signal_of_a_unit_has_a_meaning(tmp_path: Path) -> None:
    """The SystemVerilog package of a matrix unit's test vectors and HARDWARE.md explain every inner
    signal (intermediate result) of the unit."""
    vectors = make_vectors("block_fma", accumulator="h100-fp16", random=3)
    vectors.write(tmp_path / "x.hex")
    text = (tmp_path / "x_pkg.sv").read_text()
    table = (Path(__file__).parents[3] / "python/HARDWARE.md").read_text()
    signals = [field for field in vectors.rule.fields if field.role == "signal"]
    assert len(signals) > 5
    for each in signals:
        assert f"`{each.name}`" in table
        assert each.name == "sum" or re.search(rf" {each.name};  // \w", text)
