# SPDX-License-Identifier: Apache-2.0
"""Tests FP8 and int8 rows and int4 buckets. Values are compared with rationals, and with torchft's
rule in torch. Further tests cover rows and blocks of layers, and unbiased stochastic rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest

import compress_oracle_sparse as by_rule
import cpd
from arrays import assert_same_values

torch = pytest.importorskip("torch")


def layer(shape, seed=1) -> np.ndarray:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(shape).astype(np.float32)
    return x * np.exp2(draw.integers(-20, 20, shape)).astype(np.float32)


def coded(text: str, x, **options):
    return cpd.Codec(text, **options).encode(x).values


@pytest.mark.parametrize("shape", [(1,), (257,), (3, 5), (4, 3, 3, 3), (0,), (2, 0)])
def test_int8_rows(shape):
    x = layer(shape)
    row = math.prod(shape[1:]) if len(shape) > 1 else max(1, x.size)
    assert_same_values(
        by_rule.integers(x.ravel().tolist(), 127, max(1, row)), coded("int8_rows", x)
    )
    assert_same_values(by_rule.integers(x.ravel().tolist(), 127, 5), coded("int8_rows row=5", x))


@pytest.mark.parametrize("bucket", [1, 7, 32, 64, 256])
def test_int4_in_buckets(bucket):
    x = layer(300)
    x[40:80] = 0
    x[90] = np.nan
    x[200] = np.inf
    assert_same_values(by_rule.integers(x.tolist(), 7, bucket), coded(f"int4 bucket={bucket}", x))
    assert not np.signbit(coded("int4 bucket=32", np.full(32, -0.0, np.float32))).any()


@pytest.mark.parametrize("bits", [1, 3, 12, 24])
@pytest.mark.parametrize(("text", "most"), [("int4 bucket=16", 7), ("int8_rows row=16", 127)])
def test_given_integers_decide(text, most, bits):
    x = layer(160, 2)
    random = np.random.default_rng(bits).integers(0, 2**bits, 160)
    made = cpd.Codec(text + " stochastic", random_bits=bits)
    expected = by_rule.integers(x.tolist(), most, 16, random.tolist(), bits)
    assert_same_values(expected, made.encode(x, random=random).values)


def test_a_draw_is_unbiased():
    """Stochastic rounding is unbiased: the mean of a value over all 4-bit random integers is the
    value itself, for multiples of 1/16 of int4's step."""
    x = np.array([7, 2.3125, -4.5, 6.0625, -0.9375], np.float32)
    made = cpd.Codec("int4 stochastic", random_bits=4)
    total = sum(made.encode(x, random=np.full(5, r)).values.astype(np.float64) for r in range(16))
    np.testing.assert_array_equal(total / 16, x)


def torchft(x: torch.Tensor) -> torch.Tensor:
    """Computes torchft's FP8 rows by torch's own operations and torch.float8_e4m3fn."""
    rows = x.nan_to_num(0.0, torch.inf, -torch.inf).abs().amax(-1, keepdim=True)
    scale = torch.full_like(rows, 448.0) / rows  # torch computes 448.0 / rows by a reciprocal
    scale = torch.where(scale == torch.inf, 1.0, scale)
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


@pytest.mark.parametrize("shape", [(1, 1), (5, 64), (7, 33), (9, 1024), (2, 3000)])
def test_fp8_rows_are_torchfts(shape):
    x = layer(shape, 3)
    if x.size > 100:
        x[0, 3] = np.nan
        x[1, 5] = -np.inf
        x[-1, :7] = 0
    expected = torchft(torch.from_numpy(x))
    got = coded("fp8_rows", torch.from_numpy(x))
    assert isinstance(got, torch.Tensor)
    assert_same_values(expected, got)
    assert_same_values(by_rule.fp8_rows(x.ravel().tolist(), shape[1]), got)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-38, 1e-36, 2e-36, 1e30, 3e38])
def test_fp8_rows_of_every_size(scale):
    x = np.linspace(-1, 1, 23).astype(np.float64) * scale
    x = x.astype(np.float32)[None]
    assert_same_values(torchft(torch.from_numpy(x)), coded("fp8_rows", x))
    assert_same_values(by_rule.fp8_row(x[0].tolist()), coded("fp8_rows", x))


@pytest.mark.parametrize("name", ["nvfp4", "fp8-tensor"])
def test_blocks_of_a_sum(name):
    """In an all-reduce, the blocks of all ranks are added in binary32. The rank that owns a slice
    casts the sum again by blocks."""

    def by_blocks(x):
        return np.concatenate([cpd.cast(x[i : i + 4096], name) for i in range(0, x.size, 4096)])

    per_rank = [layer((9001,), seed) for seed in range(3)]
    first, *others = map(by_blocks, per_rank)
    spec = cpd.Reduce(f"blockwise {name}", exchange="owner")
    [got] = cpd.simulate_all_reduce([[x] for x in per_rank], spec)
    assert_same_values(by_blocks(sum(others, first)), got)


def test_rows_of_a_sum():
    """In an all-reduce, the rows of all ranks are added in binary32. The rank that owns a slice
    quantizes the sum again by rows."""
    per_rank = [layer((8, 40), seed) for seed in range(3)]
    spec = cpd.Reduce("int8_rows", exchange="owner")
    first, *others = (
        np.asarray(by_rule.integers(x.ravel().tolist(), 127, 40), np.float32) for x in per_rank
    )
    total = sum(others, first)
    expected = by_rule.integers(total.tolist(), 127, 40)
    [got] = cpd.simulate_all_reduce([[x] for x in per_rank], spec)
    assert_same_values(expected, got)
