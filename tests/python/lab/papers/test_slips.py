# SPDX-License-Identifier: Apache-2.0
"""Recomputes the slips (small errors) of the papers that the README lists."""

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import cpd_lab.papers
from cpd_lab.papers.quotations import quoted

README = Path(cpd_lab.papers.__file__).with_name("README.md").read_text(encoding="utf-8")


def slip(start):
    """Returns the row of the README's table that begins with `start`."""
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {start} |"))
    return line


def test_steps_of_a_hierarchical_all_reduce():
    """The README's number of steps of a hierarchical all-reduce follows from the APS paper's own
    formula in section 4.2."""

    def steps(nodes, group):
        return 4 * (group - 1) + 2 * (nodes // group - 1)

    said = slip("APS, section 4.2 (steps)")
    assert f"| {quoted('aps.T6', '{steps}')} steps for 256 nodes" in said
    assert f"| {steps(256, 16)}, " in said
    assert steps(128, 16) == 74


def test_the_loss_of_e4m3_is_not_below_five_hundredths():
    said = slip("APS, table 6")
    loss = float(quoted("aps.T6", "{fp32}")) - float(quoted("aps.T6", "{(4,3) + APS}"))
    assert f"loses {loss:.2f}" in said
    assert loss > float(quoted("aps.T6", "{loss}"))


def test_bytes_of_4_bits_against_2_bits():
    """The README says how many more bytes QSGD sends with 4 bits than with 2. The number follows if
    each bucket has a 32-bit scale."""
    four, two = 4 + 32 / 512, 2 + 32 / 128
    said = slip("QSGD, section 5 (bytes)")
    assert f"{100 * (four / two - 1):.1f} %" in said
    assert quoted("qsgd.bytes", "{more}").rstrip("%") in said


def test_the_variance_of_buckets_of_512():
    said = slip("QSGD, section 4")
    assert f"{math.sqrt(512) / 16:.2f}" in said
    assert f"{math.sqrt(512) / 7:.2f}" in said


def elias(k):
    """Returns the length of a number in Elias' recursive (omega) code, by the code's definition."""
    bits = 1
    while k > 1:
        binary = bin(k)[2:]
        bits += len(binary)
        k = len(binary) - 1
    return bits


@pytest.mark.parametrize("n", [1 << 10, 1 << 16])
def test_corollary_3_3_fails_for_normal_values(n):
    """Corollary 3.3 of QSGD does not hold for normally distributed values. Section 3.1's dense code
    quantizes each of n values to one of √n levels, scaled by the 2-norm. Level k takes Elias(k + 1)
    bits, plus a sign bit if k is not 0. The test computes the exact expected length."""
    v = np.abs(np.random.default_rng(0).standard_normal(n))
    place = v / np.linalg.norm(v) * math.sqrt(n)
    low = np.floor(place).astype(int)
    up = place - low
    bits = np.array([elias(k + 1) + (k > 0) for k in range(low.max() + 2)])
    mean = float(((1 - up) * bits[low] + up * bits[low + 1]).mean())
    assert 2.90 < mean < 3.00
    assert mean > float(quoted("qsgd.slips", "{bits}").split("n")[0])
    assert "2.94 to 2.96" in slip("QSGD, corollary 3.3")


def test_elias_codes_by_hand():
    assert [elias(k) for k in (1, 2, 3, 4, 7, 8, 16)] == [1, 3, 3, 6, 6, 7, 11]


def test_ternary_bits():
    said = slip("TernGrad, section 3.1")
    assert quoted("terngrad.slips", "{log}") in said
    assert f"{32 / math.log2(3):.2f}" in said


def test_batches_a_worker_are_not_the_same():
    said = slip("TernGrad, section 4.1")
    two, many = (int(quoted("terngrad.T1", f"{{batch, {n} workers}}")) // n for n in (2, 16))
    assert f"{two} with 2 workers and {many} with 16" in said


def test_the_overall_reduction_of_oland_and_raj():
    said = slip("Øland and Raj, section 5.2")
    times = float(quoted("oland.F5", "{c = 6, times}"))
    fewer = float(quoted("oland.F4d", "{fewer}").rstrip("%")) / 100
    assert quoted("oland.slips", "{overall}") in said
    assert f"{times} / {1 - fewer} = {times / (1 - fewer):.2f}" in said
