# SPDX-License-Identifier: Apache-2.0
"""Tests the cost model `cpd-2026`: gate counts that are derived by hand, and the order of formats
and accumulators by gate count."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

import cpd
from cpd.hardware import gates


def parts(*given):
    cost = gates(*given)
    return cost.multiplier, cost.aligner, cost.adder, cost.normalizer, cost.exponent, cost.scales


def test_counted_by_hand():
    # An e4m3 multiplier with an fp32 adder rounds a product of 4 × 4 bits and adds it. The aligner
    # of 24 + 3 bits has five stages of shifts, and exchanges the operands. The adder adds and
    # negates. Normalizers of fp32's width normalize the sum and the 8-bit product. The exponent
    # logic adds the operands' exponents, aligns, and rounds twice.
    rounded = (27 + 2 * 27 * 5 + 24) + (25 + 2 * 25 * 5 + 24)
    exponents = 5 + 2 * 9 + 2 * 3 * 10
    assert parts("e4m3", "fp32") == (16, 27 * 7, 54, rounded, exponents, 0)
    # With an exact product, only the sum is rounded. Rounding toward zero needs no adder;
    # stochastic rounding adds random bits.
    assert parts("e4m3", "fp32 fma") == (16, 27 * 7, 54, 27 + 270 + 24, 5 + 18 + 30, 0)
    assert parts("fp16", "fp16 fma")[1:3] == (25 * 7, 50)
    assert parts("e4m3", "fp32 fma rounding=toward_zero")[3] == 27 + 270
    assert parts("e4m3", "fp32 fma rounding=stochastic random_bits=5")[3] == 27 + 270 + 24 + 5
    assert parts("e4m3", "e8m23:nosub fma")[3] == 27 + 135 + 24
    # Kahan needs four adders. Chunked sums use one adder for each term, and a second, wider adder
    # for every 32nd term.
    assert parts("e4m3", "fp32 kahan")[1:3] == (4 * 27 * 7, 4 * 54)
    assert parts("e4m3", "fp32 chunked inner=e6m9 chunk=32")[2] == 2 * 13 + 54 / 32
    # This matrix unit adds 16 products of 8 bits, cut to 14 fraction bits. The addend c has 16
    # bits, the sum 21 bits.
    unit = cpd.Accumulator(a="e4m3fn", b="e4m3fn", block=16, fraction_bits=14)
    assert parts("e4m3fn", unit)[1:] == (
        (16 * 16 * 5 + 16 * 5) / 16,
        (16 * 21 + 2 * 21) / 16,
        (25 + 2 * 25 * 5) / 16,
        (16 * 5 + 3 * 16 * 6 + 2 * 10 + 3 * 10) / 16,
        0,
    )
    # Integer operands have no exponents; their fp32 sum has one. In sign and magnitude (sm8), the
    # significand excludes the sign bit.
    assert parts("int8", "fp32 fma")[0] == 64
    assert parts("sm8", "fp32 fma")[0] == 49
    assert parts("int8", "fp32 fma")[4] == 18 + 30
    # An integer accumulator takes integers without shifts, and floats with shifts.
    assert parts("int8", "int32") == (64, 0, 96, 0, 0, 0)
    assert parts("int8", "int24 overflow=saturate") == (64, 0, 72, 12, 0, 0)
    assert parts("e4m3fn", "fixed<40,12>") == (16, 40 * 6, 120, 0, 5, 0)
    # Power-of-two scales are multiplied by adding their exponents. fp32 scales of blocks need a
    # multiplier.
    assert parts("mxfp8", "fp32")[5] == (8 + 8) / 32
    assert parts("int8 32", "fp32")[5] == (8 + 8 + 24 * 24 + 48 * 24) / 32
    assert parts("fp8-tensor", "fp32")[5] == 0
    assert parts("e4m3", "fp32", "e2m1")[0] == 8


GATES = Path(__file__).parents[2] / "rtl" / "gates.json"


def synthesized():
    """Yields three values for each module: its name, the number of gates that yosys counted, and
    the number of gates that `cpd.hardware`'s model estimates."""
    counted = {row["name"]: row["gates"] for row in json.loads(GATES.read_text())["rows"]}
    for name, count in counted.items():
        module, _, rest = name.partition(" ")
        f = f"{rest}ieee"
        if module == "fp_fma":
            yield name, count, gates(f, f"{f} fma").total
        elif module == "fp_mul" and f"fp_add {rest}" in counted:
            yield name, count + counted[f"fp_add {rest}"], gates(f, f).total
        elif module == "int_mac":
            operand, acc, *saturates = rest.split()
            how = " overflow=saturate" if saturates else ""
            yield name, count, gates(operand, acc + how).total
        elif module == "block_fma":
            element, _, bits = rest.partition(" F")
            f = {"e4m3": "e4m3fn"}.get(element, element)
            wide = "e8m13" if bits == "13" else "fp32"
            unit = cpd.Accumulator(a=f, b=f, block=16, fraction_bits=int(bits), sum=wide)
            yield name, count, 16 * gates(f, unit).total


def test_against_synthesized_modules():
    """The model's gate counts are close to the counts of synthesized modules, and put the modules
    in nearly the same order. For 4-bit formats, whose logic synthesis turns into tables, the
    model's counts are too high."""
    found = list(synthesized())
    assert len(found) > 10
    for name, count, model in found:
        assert 0.7 < model / count < (2.5 if "e2m1" in name else 1.7), (name, count, model)
    mean = statistics.geometric_mean(model / count for _, count, model in found)
    assert 0.8 < mean < 1.3
    counts, models = np.array([(count, model) for _, count, model in found]).T
    assert np.corrcoef(counts.argsort().argsort(), models.argsort().argsort())[0, 1] > 0.95


def test_the_order_of_formats_and_accumulators():
    def count(*given):
        return gates(*given).total

    assert count("e2m1") < count("e3m2") < count("e4m3") < count("bf16") < count("fp16")
    assert count("fp16") < count("fp32")
    assert count("e4m3", "e5m10") < count("e4m3", "fp32") < count("e4m3", "fp32 kahan")
    assert count("e4m3fn", "h100-fp8") < count("e4m3fn", "fp32 fma")
    assert count("e2m1") < count("mxfp4") < count("nvfp4")
    assert gates("e4m3").json()["model"] == "cpd-2026"


def test_what_has_no_cost():
    with pytest.raises(ValueError, match="unknown format"):
        gates("e4n3")
    with pytest.raises(TypeError, match=r"a format must be a name such as 'e4m3fn', a cpd\.Format"):
        gates(3.0)


def test_a_cost_of_0_7_loads() -> None:
    """A cost that version 0.7 pickled loads, although version 0.7 spelled one attribute
    differently."""
    cost = cpd.hardware.gates("e4m3fn")
    old = vars(cost) | {"normaliser": cost.normalizer}
    del old["normalizer"]
    loaded = object.__new__(cpd.hardware.Gates)
    loaded.__setstate__(old)
    assert loaded == cost
