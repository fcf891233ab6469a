# SPDX-License-Identifier: Apache-2.0
"""Tests that formats, flags, matrix units and the coverage of test vectors are as HARDWARE.md
documents them. The expected numbers are derived by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.hardware import make_vectors
from cpd.hardware.vectors.corners import CORNERS
from cpd.hardware.vectors.values import values_of


@pytest.mark.parametrize(
    ("text", "infinities", "nans", "values", "largest"),
    [
        ("e4m3", 2, 14, 239, 240),  # 2 * 15 * 8 codes of numbers, with two zeros
        ("(4,3)", 2, 14, 239, 240),
        ("e4m3fn", 0, 2, 253, 448),
        ("e4m3fnuz", 0, 1, 255, 240),
        ("e4m3finite", 0, 0, 255, 480),
        ("e3m2", 0, 0, 63, 28),
        ("e3m2ieee", 2, 6, 55, 14),
        ("e4m3:nosub", 2, 14, 225, 240),  # 14 subnormals less
        ("e3m1:unsigned", 1, 1, 14, 12),
    ],
)
def test_names_of_formats(
    text: str, infinities: int, nans: int, values: int, largest: float
) -> None:
    f = cpd.Format(text)
    codes = np.arange(1 << f.bits, dtype=np.uint32)
    numbers = values_of(f, codes)
    assert (np.isinf(numbers).sum(), np.isnan(numbers).sum()) == (infinities, nans)
    finite = np.unique(numbers[np.isfinite(numbers)])
    assert (len(finite), finite[-1]) == (values, largest)


def test_another_bias_moves_every_number() -> None:
    moved = cpd.Format("e4m3fn:bias=11").values()
    np.testing.assert_array_equal(moved * 16, cpd.Format("e4m3fn").values())


def test_ties_without_mantissa_bits() -> None:
    """Ties round to the even code in a format without mantissa bits. In (3,0), code 2 is 0.5, code
    3 is 1, and code 4 is 2."""
    x = np.float32([0.75, 1.5, -0.75, -1.5])
    assert cpd.cast(x, "(3,0)").tolist() == [0.5, 2, -0.5, -2]
    assert cpd.cast(x, "(3,0) nearest_away").tolist() == [1, 2, -1, -2]


def test_flags_of_infinite_operands() -> None:
    x = np.float32([np.inf, -np.inf])
    one = np.ones(2, np.float32)
    for text, flags in (("e4m3", 0), ("e4m3fn", 5), ("e4m3 overflow=saturate", 5)):
        assert cpd.cast(x, text, flags=True)[1].tolist() == [flags] * 2
        assert cpd.mul(x, one, text, flags=True)[1].tolist() == [flags] * 2
    values, flags = cpd.mul(np.float32([448]), np.float32([2]), "e4m3fn", flags=True)
    assert np.isnan(values[0])
    assert flags[0] == 5
    assert cpd.mul(x[:1], np.float32([0]), "e4m3", flags=True)[1].item() == 16


def test_a_wrapped_sum_that_comes_back_raises_flags() -> None:
    """If a partial sum of eight bits wraps, the flags are raised even if the last sum is right:
    127 + 1 wraps to -128, and adding the next product, -1, gives 127 again."""
    made = make_vectors("dot", "int8", accumulator="fixed<8,0>", length=2)
    given: dict[str, Any] = {
        "a": np.uint8([[1, 0xFF], [0xFF, 1]]),
        "b": np.uint8([[1, 1], [1, 1]]),
        "c": np.uint64([127, 127]),
    }
    outputs, _ = made.rule.results(given)
    assert outputs["result"].tolist() == [127, 127]
    assert outputs["flags"].tolist() == [5, 0]  # another order does not leave the range


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("h100-fp8 a=e5m2", {"a": "e5m2", "b": "e4m3fn", "block": 32, "fraction_bits": 13}),
        ("h100-fp8 block=16 fraction_bits=10", {"a": "e4m3fn", "block": 16, "fraction_bits": 10}),
        (
            "a=e4m3fn b=e4m3fn block=8 fraction_bits=20 sum_rounding=nearest_even",
            {"block": 8, "fraction_bits": 20, "sum_rounding": "nearest_even"},
        ),
        ("a=e4m3fn b=e4m3fn block=32 scale=e8m0", {"block": 32, "scale": "e8m0"}),
    ],
)
def test_texts_of_units(text: str, keys: dict[str, Any]) -> None:
    unit = cpd.Accumulator(text)
    for name, value in keys.items():
        found = getattr(unit, name)
        assert (str(found) if isinstance(value, str) else found) == value
    operation = "block_fma" if unit.scale is None else "mma"
    made = make_vectors(operation, accumulator=text, random=2)
    fields = [name for name, *_ in made.fields]
    assert ("a_scale" in fields and "b_scale" in fields) == (unit.scale is not None)
    assert sum(len(batch["result"]) for batch in made.batches()) == 2
    assert "Per block, each product is exact" in (cpd.Accumulator.__doc__ or "")


def test_a_unit_with_scales_is_no_block_fma() -> None:
    with pytest.raises(ValueError, match="the unit takes scales: its operation is mma"):
        make_vectors("dot", accumulator="rtx-blackwell-mxfp8")


@pytest.mark.parametrize(
    ("a", "b", "cases"),
    [
        (0x38, 0x3C, "exact"),  # 1 * 1.5
        (0x39, 0x3C, "tie"),  # 1.125 * 1.5 = 1.6875, halfway between 1.625 and 1.75
        (0x39, 0x3E, "carry"),  # 1.125 * 1.75 = 1.96875 becomes 2
        (0x01, 0x38, "exact subnormal_in subnormal_out"),
        (0x00, 0x38, "exact zero_in positive_zero"),
        (0x80, 0x38, "exact zero_in negative_zero"),
        (0x78, 0x38, "exact infinity_in infinity_out"),
        (0x7C, 0x38, "exact nan_in nan_out"),
        (0x77, 0x38, "exact largest"),
    ],
)
def test_cases_of_products(a: int, b: int, cases: str) -> None:
    rule = make_vectors("mul", "e4m3").rule
    _, corners = rule.results({"a": np.uint32([a]), "b": np.uint32([b])})
    assert {name for i, name in enumerate(CORNERS) if corners[0] >> i & 1} == set(cases.split())


@pytest.mark.parametrize(("c", "cancels"), [(0xB8, True), (0xB6, True), (0xB0, False)])
def test_cancellation(c: int, cancels: bool) -> None:
    """A sum counts as cancellation if it is far below its terms: 1 * 1 - 1 is 0, and 1 - 0.875 lies
    three binades below 1. 1 - 0.5 lies one binade below 1 and does not count."""
    rule = make_vectors("fma", "e4m3").rule
    one = np.uint32([0x38])
    _, corners = rule.results({"a": one, "b": one, "c": np.uint32([c])})
    assert bool(corners[0] >> CORNERS.index("cancellation") & 1) == cancels


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "e4m3fn", "--values"]) == 0
    shown = capsys.readouterr().out
    assert " 7e  448" in shown
    assert " 7f  nan" in shown
