# SPDX-License-Identifier: Apache-2.0
"""The cost model `cpd-2026`: figures counted by hand, and the order that it gives."""

from __future__ import annotations

import pytest

import cpd
from cpd.study import hardware_cost


def parts(*given):
    cost = hardware_cost(*given)
    return cost.multiplier, cost.aligner, cost.adder, cost.normaliser, cost.exponent, cost.scales


def test_counted_by_hand():
    # 4 × 4 bits; fp32's 24 bits and three more, five stages; the product of 8 bits rounded to 24
    assert parts("e4m3", "fp32") == (16, 27 * 5, 27, 27 + 27 * 5 + 24 + (8 + 24), 4 + 16, 0)
    # exact products: 2 · 24 + 8 + 2 bits, six stages
    assert parts("e4m3", "fp32 fma") == (16, 58 * 6, 58, 58 + 58 * 6 + 24, 20, 0)
    # toward zero nothing is rounded
    assert parts("e4m3", "fp32 fma rounding=toward_zero")[3] == 58 + 58 * 6
    assert parts("e4m3", "fp32 fma rounding=stochastic random_bits=5")[3] == 58 + 58 * 6 + 24 + 5
    # four adders; one and a 32nd
    assert parts("e4m3", "fp32 kahan")[1:3] == (4 * 135, 4 * 27)
    assert parts("e4m3", "fp32 chunked inner=e6m9 chunk=32")[2] == 13 + 27 / 32
    # 16 products and the addend of 14 + 2 bits, the tree four bits wider; one normaliser for all
    unit = cpd.BlockFma("e4m3fn", "e4m3fn", block=16, fraction_bits=14)
    width = 16 + 4
    assert parts("e4m3fn", unit)[1:4] == (
        17 * 16 * 4 / 16,
        17 * width / 16,
        (width + width * 5) / 16,
    )
    # integers have significands of all bits but the sign, and no exponents but the sum's
    assert parts("int8", "fp32")[0] == 49
    assert parts("int8", "fp32")[4] == 16
    # powers of two add their exponents; fp32 scales of blocks are multiplied
    assert parts("mxfp8", "fp32")[5] == (8 + 8) / 32
    assert parts("int8 32", "fp32")[5] == (8 + 8 + 24 * 24 + 48 * 24) / 32
    assert parts("fp8-tensor", "fp32")[5] == 0
    assert parts("e4m3", "fp32", "e2m1")[0] == 8


def test_the_order_of_formats_and_accumulators():
    def gates(*given):
        return hardware_cost(*given).gates

    assert gates("e2m1") < gates("e3m2") < gates("e4m3") < gates("bf16") < gates("fp16")
    assert gates("fp16") < gates("fp32")
    assert gates("e4m3", "e5m10") < gates("e4m3", "fp32") < gates("e4m3", "fp32 kahan")
    assert gates("e4m3fn", "h100-fp8") < gates("e4m3fn", "fp32 fma")
    assert gates("e2m1") < gates("mxfp4") < gates("nvfp4")
    assert hardware_cost("e4m3").json()["model"] == "cpd-2026"


def test_what_has_no_cost():
    with pytest.raises(ValueError, match="unknown format"):
        hardware_cost("e4n3")
    with pytest.raises(TypeError, match=r"a format must be a cpd\.Format"):
        hardware_cost(3.0)
