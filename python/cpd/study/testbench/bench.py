# SPDX-License-Identifier: Apache-2.0
"""The text of a test bench: reads the vectors, drives the unit, compares, counts."""

from __future__ import annotations

from collections.abc import Sequence

from cpd.study.testbench.units import Field, Unit

SHOWN = 10
"""How many failing lines a bench prints."""

_BENCH = """\
// SPDX-License-Identifier: Apache-2.0
//
// {title}
`timescale 1ns / 1ps
module tb;
  localparam int COUNT = {count};
  logic [{top}:0] vectors[0:COUNT-1];
  logic [{top}:0] vector;

{declarations}

  {module} #(
      {parameters}
  ) unit (
      {ports}
  );

  integer i, failures;
  initial begin
    $readmemh("{file}", vectors);
    failures = 0;
    for (i = 0; i < COUNT; i = i + 1) begin
      vector = vectors[i];
      #1;
      if ({differs}) begin
        failures = failures + 1;
        if (failures <= {shown}) begin
          $display("line %0d: {inputs_format}", i + 1{inputs});
{reports}
        end
      end
    end
    if (failures != 0) begin
      $display("FAIL {module}: %0d of %0d vectors", failures, COUNT);
      $fatal(1);
    end
    $display("PASS {module}: %0d vectors", COUNT);
    $finish;
  end
endmodule
"""


def bench_text(
    unit: Unit, fields: Sequence[Field], count: int, file: str = "vectors.hex", title: str = ""
) -> str:
    """A module `tb` that reads `count` lines of `file` by $readmemh, every field of whole hex
    digits, the first on top. It ends with a line of PASS or FAIL and counts; FAIL by $fatal."""
    starts = _starts(fields)
    given, expected = unit.inputs, unit.outputs
    declarations = [
        f"  logic [{each.bits - 1}:0] {each.name};\n"
        f"  assign {each.name} = vector[{starts[each.name]}+:{each.bits}];"
        for each in given
    ] + [
        f"  logic [{each.bits - 1}:0] {each.name}, expected_{each.name};\n"
        f"  assign expected_{each.name} = vector[{starts[each.name]}+:{each.bits}];"
        for each in expected
    ]
    ports = [f".{each.name}({each.name})" for each in (*given, *expected)]
    ports += [f".{name}({bits}'d{value})" for name, (bits, value) in unit.constants.items()]
    return _BENCH.format(
        title=title or f"{unit.name} against {count} vectors.",
        count=count,
        top=_width(fields) - 1,
        declarations="\n".join(declarations),
        module=unit.name,
        parameters=",\n      ".join(f".{name}({x})" for name, x in unit.parameters.items()),
        ports=",\n      ".join(ports),
        file=file,
        differs=" || ".join(_differs(each, expected) for each in expected),
        shown=SHOWN,
        inputs_format=" ".join(f"{each.name}=%h" for each in given),
        inputs="".join(f", {each.name}" for each in given),
        reports="\n".join(_report(each, expected) for each in expected),
    )


def _differs(each: Field, all_outputs: Sequence[Field]) -> str:
    """Inside a line that is special, signals are not compared."""
    differs = f"{each.name} !== expected_{each.name}"
    has_special = any(other.name == "special" for other in all_outputs)
    if each.role == "output" or each.name == "special" or not has_special:
        return differs
    return f"(!expected_special && {differs})"


def _report(each: Field, all_outputs: Sequence[Field]) -> str:
    name = each.name
    return (
        f"          if ({_differs(each, all_outputs)})\n"
        f'            $display("  {name}: got %h, expected %h", {name}, expected_{name});'
    )


def _digits(each: Field) -> int:
    return -(-each.bits // 4)


def _width(fields: Sequence[Field]) -> int:
    return sum(4 * _digits(each) for each in fields)


def _starts(fields: Sequence[Field]) -> dict[str, int]:
    """Where each field's lowest bit stands in a line."""
    starts, above = {}, _width(fields)
    for each in fields:
        above -= 4 * _digits(each)
        starts[each.name] = above
    return starts
