# SPDX-License-Identifier: Apache-2.0
"""The text of a test bench: reads the vectors, drives the unit, compares, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpd.hardware.testbench.numbers import number_function, where_nan
from cpd.hardware.testbench.units import Field, Ports, Unit
from cpd.numeric.formats import Format

SHOWN = 10
"""How many failing lines a bench prints."""

_BENCH = """\
// SPDX-License-Identifier: Apache-2.0
//
// {title}
// +line=N runs line N of the vectors alone.
`timescale 1ns / 1ps
module tb;
  localparam int COUNT = {count};
  localparam int LATENCY = {latency};
  localparam int PATIENCE = 10000;
  logic [{top}:0] vectors[0:COUNT-1];
  logic [{top}:0] vector, checked;
  logic clock, valid_in, valid_out;

{declarations}

  {module}{parameters} unit (
      {ports}
  );

{functions}
  integer i, first, last, done, idle, failures;

  task compare(input integer index);
    checked = vectors[index];
{expected}
    if ({differs}) begin
      failures = failures + 1;
      if (failures <= {shown}) begin
        $display("line %0d: {inputs_format}", index + 1{inputs});
{reports}
`ifdef VERILATOR
        $display("  again: make verilator LINE=%0d", index + 1);
`else
        $display("  again: make icarus LINE=%0d", index + 1);
`endif
      end
    end
  endtask

  initial begin
    $readmemh("{file}", vectors);
    first = 0;
    last = COUNT - 1;
    if ($value$plusargs("line=%d", i)) begin
      if (i < 1 || i > COUNT) begin
        $display("LINE must be 1 to %0d, got %0d", COUNT, i);
        $fatal(1);
      end
      first = i - 1;
      last = i - 1;
    end
    failures = 0;
    idle = 0;
    clock = 0;
    done = first;
{run}
    if (failures != 0) begin
      $display("FAIL {module}: %0d of %0d vectors", failures, last - first + 1);
      $fatal(1);
    end
    $display("PASS {module}: %0d vectors", last - first + 1);
    $finish;
  end
endmodule
"""

_AT_ONCE = """\
    for (i = first; i <= last; i = i + 1) begin
      vector = vectors[i];
      #1;
      compare(i);
    end"""

_CLOCKED = """\
    for (i = first; done <= last && idle < PATIENCE; i = i + 1) begin
      vector = vectors[i <= last ? i : last];
      valid_in = i <= last;
      #1 clock = 1;
      #1;
      if ({comes}) begin
        compare(done);
        done = done + 1;
        idle = 0;
      end else idle = idle + 1;
      clock = 0;
    end
    if (done <= last) begin
      $display("line %0d: no result in %0d cycles", done + 1, PATIENCE);
      failures = failures + last - done + 1;
    end"""


def bench_text(
    unit: Unit,
    fields: Sequence[Field],
    count: int,
    file: str = "vectors.hex",
    title: str = "",
    formats: Mapping[str, Format] | None = None,
    ports: Ports | None = None,
) -> str:
    """A module `tb` that reads `count` lines of `file` by $readmemh, each field in whole hex
    digits, the first most significant. It ends with a line of PASS or FAIL and counts; FAIL by
    $fatal.

    `formats`: of fields whose codes it also prints as numbers. `ports`: clock, latency, valid, and
    whether any NaN passes for any other.
    """
    formats, ports = formats or {}, ports or Ports()
    starts = _starts(fields)
    given, expected = unit.inputs, unit.outputs

    def part(each: Field) -> str:
        return f"checked[{starts[each.name]}+:{each.bits}]"

    declarations = [
        f"  logic [{each.bits - 1}:0] {each.name};\n"
        f"  assign {each.name} = vector[{starts[each.name]}+:{each.bits}];"
        for each in given
    ] + [f"  logic [{each.bits - 1}:0] {each.name}, expected_{each.name};" for each in expected]
    wires = [f".{each.name}({each.name})" for each in (*given, *expected)]
    wires += [f".{name}({bits}'d{value})" for name, (bits, value) in unit.constants.items()]
    signals = ("clock", ports.clock), ("valid_in", ports.valid_in), ("valid_out", ports.valid_out)
    wires += [f".{name}({wire})" for wire, name in signals if name]
    numbers = {name: f for name, f in formats.items() if number_function(name, f)}
    nan = where_nan(formats["result"], "result") if ports.any_nan and "result" in formats else ""
    differs = {each.name: _differs(each, expected, nan) for each in expected}
    parameters = ",\n      ".join(f".{name}({x})" for name, x in unit.parameters.items())
    return _BENCH.format(
        title=title or f"{unit.name} against {count} vectors.",
        count=count,
        latency=ports.latency,
        top=_width(fields) - 1,
        declarations="\n".join(declarations),
        module=unit.name,
        parameters=f" #(\n      {parameters}\n  )" if parameters else "",
        ports=",\n      ".join(wires),
        functions="\n".join(number_function(name, f) for name, f in numbers.items()),
        expected="\n".join(f"    expected_{each.name} = {part(each)};" for each in expected),
        file=file,
        differs=" || ".join(differs.values()),
        shown=SHOWN,
        inputs_format=" ".join(f"{each.name}={_form(each, set(numbers))}" for each in given),
        inputs="".join(f", {_values(each, part(each), set(numbers))}" for each in given),
        reports="\n".join(_reports(expected, differs, set(numbers))),
        run=_run(ports),
    )


def _run(ports: Ports) -> str:
    if ports.clock is None:
        return _AT_ONCE
    late = "i - first + 1 >= LATENCY"
    return _CLOCKED.format(comes=late if ports.valid_out is None else "valid_out === 1'b1")


def _differs(each: Field, all_outputs: Sequence[Field], nan: str) -> str:
    """The condition of a failure. Signals of a special line are not compared."""
    name = each.name
    differs = f"{name} !== expected_{name}"
    if name == "result" and nan:
        return f"({differs} && !({nan} && {nan.replace('result', 'expected_result')}))"
    has_special = any(other.name == "special" for other in all_outputs)
    if each.role == "output" or name == "special" or not has_special:
        return differs
    return f"(!expected_special && {differs})"


def _reports(outputs: Sequence[Field], differs: Mapping[str, str], numbers: set[str]) -> list[str]:
    """Statements that report the first inner signal and all outputs that differ."""
    made = []
    before = ""
    for each in (each for each in outputs if each.role == "signal"):
        made.append(
            f"        {before}if ({differs[each.name]})\n{_report(each, numbers, 'first ')}"
        )
        before = "else "
    for each in (each for each in outputs if each.role != "signal"):
        made.append(f"        if ({differs[each.name]})\n{_report(each, numbers)}")
    return made


def _report(each: Field, numbers: set[str], which: str = "") -> str:
    form = _form(each, numbers)
    got, expected = (_values(each, code, numbers) for code in (each.name, f"expected_{each.name}"))
    said = f"{which}{each.name}: got {form}, expected {form}"
    return f'          $display("  {said}", {got}, {expected});'


def _is_integer(each: Field) -> bool:
    return each.count == 1 and (each.signed or each.role == "signal")


def _form(each: Field, numbers: set[str]) -> str:
    """The format in which a field is printed: its code, and its number where it has one."""
    return "%h (%g)" if each.name in numbers else "%h (%0d)" if _is_integer(each) else "%h"


def _values(each: Field, code: str, numbers: set[str]) -> str:
    """The arguments for `_form`."""
    if each.name in numbers:
        return f"{code}, number_{each.name}({code})"
    if _is_integer(each):
        return f"{code}, $signed({code})" if each.signed else f"{code}, {code}"
    return code


def _digits(each: Field) -> int:
    return -(-each.bits // 4)


def _width(fields: Sequence[Field]) -> int:
    return sum(4 * _digits(each) for each in fields)


def _starts(fields: Sequence[Field]) -> dict[str, int]:
    """The position of each field's lowest bit in a line."""
    starts, above = {}, _width(fields)
    for each in fields:
        above -= 4 * _digits(each)
        starts[each.name] = above
    return starts
