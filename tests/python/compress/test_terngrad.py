# SPDX-License-Identifier: Apache-2.0
"""TernGrad against rationals (compress_oracle_levels)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import compress_oracle_levels as oracle
import cpd
from test_qsgd import layer


@pytest.mark.parametrize("clip", [None, 2.5, 1 / 3])
@pytest.mark.parametrize("share", ["on", "off"])
@pytest.mark.parametrize("random_bits", [1, 8, 24])
def test_values_are_those_of_rationals(clip: float | None, share: str, random_bits: int) -> None:
    x = layer(900, random_bits)
    x[3], x[500] = math.nan, -math.inf
    random = np.random.default_rng(3).integers(0, 2**random_bits, x.size)
    name = f"terngrad clip={clip or 'none'} share={share}"
    scale = oracle.scaler(x, clip)
    units = oracle.terngrad(x, random, scale, random_bits=random_bits)
    got = cpd.compress.codec(name, random_bits=random_bits).encode(x, random=random).values
    expected = units * np.float32(scale)
    np.testing.assert_array_equal(got, expected)


def test_another_scaler_may_be_given() -> None:
    x = layer(300, 9)
    scale = 3 * oracle.scaler(x, None)
    random = np.random.default_rng(4).integers(0, 2**24, x.size)
    packet = cpd.compress.codec("terngrad clip=none").encode(x, random=random, scale=scale)
    expected = oracle.terngrad(x, random, float(np.float32(scale))) * np.float32(scale)
    np.testing.assert_array_equal(packet.values, expected)


@pytest.mark.parametrize("whole", [1, 9, 25])
def test_buckets_have_scalers_of_their_own(whole: int) -> None:
    x = layer(300, 10)
    random = np.random.default_rng(5).integers(0, 2**24, x.size)
    codec = cpd.compress.codec(f"terngrad clip=none share=off bucket=64 whole={whole}")
    got = codec.encode(x, random=random).values
    for part in oracle.buckets_of_runs(x.size, 64, whole):
        scale = oracle.scaler(x[part], None)
        expected = oracle.terngrad(x[part], random[part], scale) * np.float32(scale)
        np.testing.assert_array_equal(got[part], expected)


@pytest.mark.parametrize("x", [[], [0.0, -0.0], [math.nan, math.inf], [0.7, 0.7, 0.7], [1e-45]])
def test_small_layers(x: list[float]) -> None:
    values = np.array(x, np.float32)
    got = cpd.compress.codec("terngrad").encode(values).values
    # One value, or equal ones, have no deviation: zeros. NaN and infinities are NaN.
    np.testing.assert_array_equal(got, np.where(np.isfinite(values), np.float32(0), np.nan))


def test_bits_a_value() -> None:
    assert cpd.compress.codec("terngrad").encode(layer(4096, 1)).bits_a_value == 2


def test_runs_are_of_buckets() -> None:
    assert cpd.compress.codec("terngrad bucket=100 whole=9").name.endswith("bucket=99")
    with pytest.raises(
        ValueError, match="whole=9 is of buckets: give bucket=N with it, got 'terng"
    ):
        cpd.compress.codec("terngrad whole=9")
