# SPDX-License-Identifier: Apache-2.0
"""QSGD against rationals (compress_oracle_levels): values, norms, random integers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import compress_oracle_levels as oracle
import cpd

HUGE = float(np.finfo(np.float32).max)


def layer(n: int, seed: int) -> np.ndarray:
    """Values of many magnitudes: zeros, subnormals, and some that lie on levels."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n) * 2.0 ** generator.integers(-6, 3, n)
    x[generator.random(n) < 0.1] = 0
    x[generator.random(n) < 0.1] *= 1e-42
    grid = generator.random(n) < 0.1
    x[grid] = generator.integers(-8, 9, n)[grid]
    return x.astype(np.float32)


CASES = [
    (bits, bucket, norm, levels)
    for (bits, bucket), norm, levels in itertools.product(
        [(2, 128), (4, 512), (8, 100), (16, 8192), (5, None)], ["max", "2"], ["signed", "intervals"]
    )
]


@pytest.mark.parametrize(("bits", "bucket", "norm", "levels"), CASES)
@pytest.mark.parametrize("random_bits", [1, 8, 24])
def test_values_are_those_of_rationals(
    bits: int, bucket: int | None, norm: str, levels: str, random_bits: int
) -> None:
    x = layer(700, 100 * bits + random_bits)
    x[650] = {2: np.nan, 4: np.inf}.get(bits, x[650])
    random = np.random.default_rng(bits).integers(0, 2**random_bits, x.size)
    name = f"qsgd bits={bits} bucket={bucket or 'tensor'} norm={norm} levels={levels}"
    codec = cpd.compress.codec(name, random_bits=random_bits)
    expected = oracle.qsgd(
        x,
        random,
        bits=bits,
        bucket=bucket,
        norm_kind=norm,
        levels=levels,
        random_bits=random_bits,
    )
    got = codec.encode(x, random=random).values
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("norm", ["max", "2"])
def test_extreme_buckets(norm: str) -> None:
    parts = [
        [0.0, -0.0, 0.0, 0.0],
        [1e-45, -1e-45, 3e-45, 0],
        [HUGE, -HUGE, 1, 0],
        [1e-38, 2e-39, -7e-40, 1e-45],
        [math.nan, 1, 2, 3],
        [1, 2, 3, -math.inf],
        [7, 7, 7, 7],
        [3.0, 0, 0, -0.0],
    ]
    x = np.array(parts, np.float32).reshape(-1)
    random = np.arange(x.size) * 7 % 256
    codec = cpd.compress.codec(f"qsgd bits=4 bucket=4 norm={norm}", random_bits=8)
    expected = oracle.qsgd(x, random, bucket=4, norm_kind=norm, random_bits=8)
    got = codec.encode(x, random=random).values
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_every_random_integer_once_is_without_bias() -> None:
    x = layer(64, 5)
    codec = cpd.compress.codec("qsgd bits=4 bucket=64", random_bits=8)
    steps, scale = 7, oracle.norm(x, "max")
    levels = np.zeros(x.size)
    for r in range(256):
        values = codec.encode(x, random=np.full(x.size, r)).values
        levels += np.rint(values.astype(np.float64) * steps / scale)
    for value, total in zip(x.tolist(), levels.tolist(), strict=True):
        place = abs(Fraction(value)) * steps / Fraction(scale)
        assert abs(total) == math.floor(place * 256)


def test_bits_a_value() -> None:
    x = layer(1 << 16, 6)
    assert cpd.compress.codec("qsgd bits=4 bucket=512").encode(x).bits_a_value == 4.0625
    assert cpd.compress.codec("qsgd bits=2 bucket=128").encode(x).bits_a_value == 2.25
