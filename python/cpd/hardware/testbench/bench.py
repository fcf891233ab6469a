# SPDX-License-Identifier: Apache-2.0
"""Makes the SystemVerilog text of a test bench.

The bench reads the vectors, drives the module under test, compares its outputs and counts failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cpd.hardware.testbench.clocked import run as clocked_run
from cpd.hardware.testbench.clocked import state as clocked_state
from cpd.hardware.testbench.numbers import number_function, where_nan
from cpd.hardware.testbench.ports import Ports
from cpd.hardware.testbench.units import Unit
from cpd.hardware.vectors.fields import Field, line_digits
from cpd.numeric.formats import Format

SHOWN = 10
"""The largest number of failing lines (test vectors) that a bench prints."""

_BENCH = """\
// SPDX-License-Identifier: Apache-2.0
//
// {title}
// +line=N runs line N of the vectors alone; +stop=N ends the run after N failing lines.
`timescale 1ns / 1ps
module tb;
  localparam int COUNT = {count};
  logic [{top}:0] vectors[0:COUNT-1];
  logic [{top}:0] vector, checked;
  logic wrong, same;
  integer i, first, last, done, stop, failures, shown, nans, first_nan, unknown, problems;

{declarations}
{state}
  {module}{parameters} unit (
      {ports}
  );

{functions}
  task load(input integer index);
    checked = vectors[index];
{expected}
  endtask

  task compare(input integer index);
    load(index);
    wrong = {wrong};
    if (wrong) begin
      failures = failures + 1;
      shown = shown + 1;
      if ({x}) unknown = unknown + 1;
      if (shown <= {shown}) begin
        $display("line %0d: {inputs_format}", index + 1{inputs});
{reports}
`ifdef VERILATOR
        $display("  again: make verilator LINE=%0d", index + 1);
`else
        $display("  again: make icarus LINE=%0d", index + 1);
`endif
      end
    end{other_nan}
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
    if (!$value$plusargs("stop=%d", stop)) stop = 0;
    failures = 0;
    shown = 0;
    nans = 0;
    unknown = 0;
    problems = 0;
    done = first;
{run}
    if (unknown != 0) $display("%0d results hold X or Z", unknown);
    if (stop != 0 && failures + nans >= stop)
      $display("stopped after line %0d: STOP=%0d", done, stop);
{nan_summary}    if (failures != 0 || problems != 0) begin
{undriven}      $display("FAIL {module}: %0d of %0d vectors", failures, last - first + 1);
      $fatal(1);
    end
    $display("PASS {module}: %0d vectors", last - first + 1);
    $finish;
  end
endmodule
"""

_AT_ONCE = """\
    for (i = first; i <= last && (stop == 0 || failures + nans < stop); i = i + 1) begin
      vector = vectors[i];
      #1;
      compare(i);
      done = i + 1;
    end"""

_OTHER_NAN = """ else if ({differs}) begin
      if (nans == 0) begin
        first_nan = index + 1;
        first_got = result;
        first_expected = expected_result;
      end
      nans = nans + 1;
    end"""

_NAN_SUMMARY = """\
    if (nans != 0) begin
      $display("%0d differ in NaN codes alone: --any-nan (line %0d: got %h, expected %h)", nans,
               first_nan, first_got, first_expected);
      failures = failures + nans;
    end
"""


def bench_text(
    unit: Unit,
    fields: Sequence[Field],
    count: int,
    file: str = "vectors.hex",
    title: str = "",
    formats: Mapping[str, Format] | None = None,
    ports: Ports | None = None,
    undriven: Sequence[str] = (),
) -> str:
    """Returns the module `tb`, which reads `count` lines of `file` by $readmemh.

    A line is one test vector. Each field has a whole number of hex digits; the first field is most
    significant. The bench prints PASS or FAIL and counts at its end; after a failure it calls
    $fatal. `formats` has the formats of the fields that the bench also prints as numbers. `ports`
    names the ports for the clock and for handshakes, and says whether any NaN may replace an
    expected NaN. `undriven` are the module's inputs that the bench does not drive; a failing bench
    names them.
    """
    formats, ports = formats or {}, ports or Ports()
    starts = _starts(fields)
    inputs, expected = unit.inputs, unit.outputs

    def part(field: Field) -> str:
        return f"checked[{starts[field.name]}+:{field.bits}]"

    declarations = [
        f"  logic [{field.bits - 1}:0] {field.name};\n"
        f"  assign {field.name} = vector[{starts[field.name]}+:{field.bits}];"
        for field in inputs
    ] + [f"  logic [{field.bits - 1}:0] {field.name}, expected_{field.name};" for field in expected]
    wires = [f".{ports.port(field.name)}({field.name})" for field in (*inputs, *expected)]
    wires += [f".{name}({bits}'d{value})" for name, (bits, value) in unit.constants.items()]
    wires += [f".{port}({name})" for name, port in ports.controls.items() if port is not None]
    numbers = {name: f for name, f in formats.items() if number_function(name, f)}
    nan = where_nan(formats["result"], "result") if "result" in formats else ""
    exact = {field.name: _differs(field, expected) for field in expected}
    loose = {field.name: _differs(field, expected, nan) for field in expected}
    wrong = " || ".join(loose.values())
    reported = loose if ports.any_nan else exact
    told = bool(nan) and not ports.any_nan
    outputs = ", ".join(field.name for field in expected)
    clocked = ports.clock is not None
    bits = sum(field.bits for field in expected)
    parameters = ",\n      ".join(f".{name}({x})" for name, x in unit.parameters.items())
    declarations += [
        f"  logic [{field.bits - 1}:0] first_got, first_expected;"
        for field in expected
        if told and field.name == "result"
    ]
    return _BENCH.format(
        title=title or f"{unit.name} against {count} vectors.",
        count=count,
        top=4 * line_digits(fields) - 1,
        declarations="\n".join(declarations),
        state=clocked_state(ports, wrong, outputs, bits) if clocked else "",
        module=unit.name,
        parameters=f" #(\n      {parameters}\n  )" if parameters else "",
        ports=",\n      ".join(wires),
        functions="\n".join(number_function(name, f) for name, f in numbers.items()),
        expected="\n".join(f"    expected_{field.name} = {part(field)};" for field in expected),
        file=file,
        wrong=wrong,
        x=f"^{{{outputs}}} === 1'bx",
        shown=SHOWN,
        inputs_format=" ".join(f"{field.name}={_form(field, set(numbers))}" for field in inputs),
        inputs="".join(f", {_values(field, part(field), set(numbers))}" for field in inputs),
        reports="\n".join(_reports(expected, reported, set(numbers))),
        other_nan=_OTHER_NAN.format(differs=exact["result"]) if told else "",
        run=clocked_run(ports, wrong, outputs) if clocked else _AT_ONCE,
        nan_summary=_NAN_SUMMARY if told else "",
        undriven=_undriven(unit, undriven),
    )


def _undriven(unit: Unit, names: Sequence[str]) -> str:
    if not names:
        return ""
    message = f"the bench does not drive {', '.join(names)} of {unit.name}"
    return f'      $display("{message}");\n'


def _differs(field: Field, all_outputs: Sequence[Field], nan: str = "") -> str:
    """Returns the SystemVerilog condition that a field of a line is wrong.

    `nan` is the text of a condition that `result` is NaN. With a text, any NaN result is correct if
    a NaN is expected. If a line expects 1 in the field `special`, inner signals are not compared.
    """
    name = field.name
    differs = f"{name} !== expected_{name}"
    if name == "result" and nan:
        both = f"({nan} && {nan.replace('result', 'expected_result')})"
        return f"({differs} && {both} !== 1'b1)"
    has_special = any(other.name == "special" for other in all_outputs)
    if field.role == "output" or name == "special" or not has_special:
        return differs
    return f"(!expected_special && {differs})"


def _reports(outputs: Sequence[Field], differs: Mapping[str, str], numbers: set[str]) -> list[str]:
    """Returns statements that print the first inner signal, and all outputs, that differ."""
    statements = []
    before = ""
    for field in (field for field in outputs if field.role == "signal"):
        statements.append(
            f"        {before}if ({differs[field.name]})\n{_report(field, numbers, 'first ')}"
        )
        before = "else "
    for field in (field for field in outputs if field.role != "signal"):
        statements.append(f"        if ({differs[field.name]})\n{_report(field, numbers)}")
    return statements


def _report(field: Field, numbers: set[str], which: str = "") -> str:
    form = _form(field, numbers)
    got, expected = (
        _values(field, code, numbers) for code in (field.name, f"expected_{field.name}")
    )
    message = f"{which}{field.name}: got {form}, expected {form}%0s"
    unknown = f'^{field.name} === 1\'bx ? ", X or Z" : ""'
    return f'          $display("  {message}", {got}, {expected}, {unknown});'


def _is_integer(field: Field) -> bool:
    return field.count == 1 and (field.signed or field.role == "signal")


def _form(field: Field, numbers: set[str]) -> str:
    """Returns the format string with which $display prints a field's code and number, if any."""
    return "%h (%g)" if field.name in numbers else "%h (%0d)" if _is_integer(field) else "%h"


def _values(field: Field, code: str, numbers: set[str]) -> str:
    """Returns the arguments that $display prints with the format string of `_form`."""
    if field.name in numbers:
        return f"{code}, number_{field.name}({code})"
    if _is_integer(field):
        return f"{code}, $signed({code})" if field.signed else f"{code}, {code}"
    return code


def _starts(fields: Sequence[Field]) -> dict[str, int]:
    """Returns the position of each field's least significant bit in a line."""
    starts, above = {}, 4 * line_digits(fields)
    for field in fields:
        above -= 4 * field.digits
        starts[field.name] = above
    return starts
