# SPDX-License-Identifier: Apache-2.0
"""Tests the errors for names of unsupported formats, such as HiFloat8, whose exponent and mantissa
have no fixed widths. An error says what the format is and names the closest supported formats; its
statements are tested. Also tests PTX's names of scale formats."""

from __future__ import annotations

import re

import numpy as np
import pytest

import cpd
from cpd.numeric.scaled import format_or_scaled

OTHERS = {
    "nf4": "table of quantiles",
    "NF3": "table of quantiles",
    "hif8": "mantissa shrinks",
    "hif4": "two levels",
    "mx6": "share a bit of exponent",
    "posit8": "exponent and mantissa share bits",
    "takum16": "exponent and mantissa share bits",
    "lns8": "powers of one base",
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_it_is_and_what_is_next_to_it(name):
    with pytest.raises(ValueError, match=OTHERS[name]) as raised:
        cpd.Format(name)
    told = str(raised.value)
    assert told.startswith(f"no format '{name}': it is ")
    assert "exponent and a mantissa of fixed widths" in told
    near = re.findall(r"'([^']+)'", told.partition("next to it")[2])
    assert near
    for one in near:
        format_or_scaled(one)


@pytest.mark.parametrize(
    "refuses",
    [
        lambda name: cpd.Scaled(f"{name} 32 scale=fp32"),
        lambda name: cpd.Accumulator(name),
        lambda name: cpd.Cast(name),
        lambda name: cpd.Reduce(name),
        lambda name: cpd.Codec(name),
        lambda name: cpd.Recipe("native", weight=name),
        lambda name: cpd.cast(np.zeros(1, np.float32), name),
    ],
)
def test_wherever_a_format_may_stand(refuses):
    with pytest.raises(ValueError, match="NormalFloat"):
        refuses("nf4")


def hif8() -> dict[int, int]:
    """Returns the number of mantissa bits of HiFloat8 by the exponent of a normal value."""
    return {e: 3 if abs(e) <= 3 else 2 if abs(e) <= 7 else 1 if abs(e) <= 15 else 0
            for e in range(-22, 16)}  # fmt: skip


def test_what_is_said_of_hif8():
    """The error for HiFloat8 is right: from 1/8 to 15, `e4m3fn` has exactly HiFloat8's values, and
    not beyond. `e5m2` has the same greatest exponent."""
    bits = hif8()
    values = {2.0**e * (1 + m / 2**b) for e, b in bits.items() for m in range(2**b)}
    middle = {value for value in values if 1 / 8 <= value <= 15}
    ours = {float(v) for v in cpd.Format("e4m3fn").values() if 1 / 8 <= v <= 15}
    assert middle == ours
    assert not {v for v in cpd.Format("e4m3fn").values() if 15 < v <= 32} <= values
    assert np.log2(cpd.Format("e5m2").max) // 1 == max(bits)


def test_ue5m3_is_cudas():
    """ue5m3 has CUDA's values: bias 15, no infinity, and 0xFF as its only NaN."""
    ours = cpd.Format("ue5m3")
    assert ours == cpd.Format("UE5M3") == cpd.Format("e5m3fn:unsigned")
    codes = np.arange(256, dtype=np.uint8)
    got = np.concatenate([cpd.decode(codes[i : i + 1], ours, (1,)) for i in range(256)])
    exponent, mantissa = codes >> 3, codes & 7
    wanted = np.where(
        exponent == 0,
        mantissa * 2.0**-17,
        (1 + mantissa / 8) * 2.0 ** (exponent.astype(float) - 15),
    )
    wanted[0xFF] = np.nan
    np.testing.assert_array_equal(got, wanted.astype(np.float32))
    assert ours.max == 114688


def test_names_of_ptx_scales():
    assert cpd.Format("ue4m3") == cpd.Format("e4m3fn:unsigned")
    assert cpd.Format("ue4m3").max == 448
    assert cpd.Format("ue8m0") == cpd.Format("e8m0")
    assert cpd.Scaled("e2m1 16 scale=ue5m3") == cpd.Scaled("e2m1 16 scale=e5m3fn:unsigned")
