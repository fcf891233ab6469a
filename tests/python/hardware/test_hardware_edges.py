# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of vectors, test benches and probes: limits, codes of odd widths, and inputs
that do not fit together."""

from __future__ import annotations

import numpy as np
import pytest

import cpd
from cpd.hardware import Command
from cpd.hardware.probing.fit import _one_field
from cpd.hardware.probing.rules import Known
from cpd.hardware.probing.tree import Node, OrderError, tree_of
from cpd.hardware.testbench.bench import _differs, _values
from cpd.hardware.testbench.clocked import state
from cpd.hardware.testbench.ports import Ports
from cpd.hardware.vectors.corners import CORNERS, corner_of
from cpd.hardware.vectors.fields import Field, from_digits
from cpd.hardware.vectors.inputs import Words, corner_codes
from cpd.hardware.vectors.lines import kind_of
from cpd.hardware.vectors.making import rule_of, sum_rule
from cpd.hardware.vectors.near_sums import SumLines
from cpd.hardware.vectors.rules import NO_CODE
from cpd.hardware.vectors.systemverilog import package_text
from cpd.hardware.vectors.values import values_of


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_command_has_time(timeout):
    assert Command(["true"], "fp16", timeout=0.5).timeout == 0.5
    with pytest.raises(ValueError, match="timeout must be seconds above 0"):
        Command(["true"], "fp16", timeout=timeout)


def test_losses_that_fit_no_order():
    """The probe derives the order of a sum from a matrix of sizes. Element (i, j) is the number of
    terms in the first partial sum that contains terms i and j. In (0 + 1) + 2, that is 3 for term 2
    with any other term. If no order gives these sizes, an error is raised."""
    sizes = np.array([[1, 2, 3], [2, 1, 3], [3, 3, 1]])
    first = Node(frozenset({0, 1}))
    assert tree_of(sizes, [0, 1, 2]) == Node(frozenset({first, 2}))
    sizes[1, 2] = sizes[2, 1] = 2
    with pytest.raises(OrderError, match="no order of sums explains"):
        tree_of(sizes, [0, 1, 2])


def test_which_differences_of_signals_count():
    special, inner = Field("special", 1, role="signal"), Field("sum", 9, role="signal")
    result = Field("result", 8, role="output")
    every = [special, inner, result]
    assert _differs(special, every) == "special !== expected_special"
    assert _differs(result, every) == "result !== expected_result"
    assert _differs(inner, every) == "(!expected_special && sum !== expected_sum)"
    assert _differs(inner, [inner, result]) == "sum !== expected_sum"


def test_signed_integers_are_shown_with_their_sign():
    signed, plain = (Field("x", 9, role="signal", signed=is_signed) for is_signed in (True, False))
    assert _values(signed, "x", set()) == "x, $signed(x)"
    assert _values(plain, "x", set()) == "x, x"


@pytest.mark.parametrize("name", ["(4,3)", "e4m3fn", "e4m3fnuz", "e2m1", "(5,2)"])
def test_corners_are_what_values_say(name):
    f = cpd.Format(name)
    codes = np.arange(1 << f.bits, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signaling NaN
        values = values_of(f, codes).astype(np.float64)
    bits = corner_of(f, codes, "out")
    least_normal = 2.0 ** (1 - f.bias)
    is_zero, is_negative = values == 0, np.signbit(values)
    wanted = {
        "subnormal_out": (values != 0) & (np.abs(values) < least_normal),
        "positive_zero": is_zero & ~is_negative,
        "negative_zero": is_zero & is_negative,
        "nan_out": np.isnan(values),
        "infinity_out": np.isinf(values),
        "largest": np.abs(values) == f.max,
    }
    for corner, found in wanted.items():
        assert np.array_equal(bits >> CORNERS.index(corner) & 1 != 0, found), corner


def digits(text):
    return np.frombuffer(text.encode(), np.uint8).reshape(1, -1)


@pytest.mark.parametrize(
    ("field", "text", "values"),
    [
        (Field("x", 3), "7", [7]),
        (Field("x", 3), "8", None),
        (Field("x", 6, 2), "3E", [[6, 7]]),  # 111 110: the first element is the least significant
        (Field("x", 6, 2), "7E", None),
        (Field("x", 6, 2), "BE", None),
        (Field("x", 8, 2), "A5", [[5, 10]]),
    ],
)
def test_words_of_odd_widths(field, text, values):
    found = from_digits(field, digits(text))
    assert values is None if found is None else found.tolist() == values


def test_corners_are_on_both_sides_of_one():
    for name in ("(4,3)", "e5m2"):
        f = cpd.Format(name)
        one = f.bias << f.man
        assert {one - 1, one, one + 1} <= set(corner_codes(f).tolist())
        assert values_of(f, np.uint32([one + 1])).item() == 1 + 2.0**-f.man


def test_kinds_of_files_by_their_names():
    found = {name: kind_of(name, None) for name in ("a.mem", "a.hex", "b.csv", "c.MEM")}
    assert found == {"a.mem": "readmemh", "a.hex": "readmemh", "b.csv": "csv", "c.MEM": "readmemh"}
    with pytest.raises(ValueError, match="a file of vectors must end in"):
        kind_of("a.mems", None)


def test_packed_structs_are_padded_to_digits():
    text = package_text("v", [Field("a", 6, 2), Field("b", 8)], 3)
    assert "logic [1:0] a_pad;" in text
    assert "b_pad" not in text
    assert "localparam int BITS = 16;" in text


def test_a_result_without_a_code_is_nan():
    """The oracle reports NO_CODE for a NaN that the format cannot encode. If it reports NO_CODE for
    1 + 1, it contradicts the kernel, and the comparison raises an error."""
    formats = {"formats": ["(4,3)", "(4,3)"], "result": "(4,3)", "rounding": "nearest_even"}
    rule = rule_of({"operation": "add", **formats})
    one = np.uint32([cpd.Format("(4,3)").bias << 3])
    two, flags = one + 8, np.zeros(1, np.uint8)
    rule._compare([one, one], None, two, flags)
    with pytest.raises(RuntimeError, match="oracle and kernel differ at line 0"):
        rule._compare([one, one], None, np.full(1, NO_CODE, np.uint32), flags)


def test_the_outputs_of_a_stalled_bench_are_held_whole():
    ports = Ports(clock="clk", valid_out="valid", ready_out="ready")
    assert "logic [12:0] stalled_outputs;" in state(ports, "wrong", "result, flags", 13)


def test_either_scale_has_every_corner_beside_a_scale_of_one():
    rule = sum_rule("mma", (), "rtx-blackwell-mxfp8", None, "after")
    made = SumLines(rule, Words(3)).scales_of_zero()
    one, corners = rule.scale.bias << rule.scale.man, set(corner_codes(rule.scale).tolist())
    for name, other in (("a_scale", "b_scale"), ("b_scale", "a_scale")):
        beside = (made[other] == one).all(axis=1)
        assert set(made[name][beside].reshape(-1).tolist()) == corners


def unit(**fields):
    return Known(cpd.Accumulator(cpd.Accumulator(a="e4m3fn", b="e4m3fn", block=16, **fields)))


def test_fields_of_a_unit_that_are_reported_one_by_one():
    """The probe searches the rules that explain a matrix unit's sums. Rules that differ only in
    `fraction_bits` or `min_exponent` count as one rule, because the probe reports these fields
    separately."""
    found = unit(fraction_bits=14, min_exponent=-20)
    for fields in ({"fraction_bits": 15}, {"min_exponent": -19}):
        assert _one_field(found, unit(**({"fraction_bits": 14, "min_exponent": -20} | fields)))
    assert _one_field(found, unit(fraction_bits=15, min_exponent=-19))
    assert not _one_field(found, unit(fraction_bits=14, min_exponent=-20, addend="separate"))
