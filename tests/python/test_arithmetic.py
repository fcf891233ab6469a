# SPDX-License-Identifier: Apache-2.0
"""cpd.add, mul, fma and sum against the rational oracle."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import cpd
import oracle
from arrays import assert_same_bits, boundary_bits, from_bits, spec_of

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e6m9", "e8m0", "e4m3fn", "e4m3fnuz", "bf16", "fp16", "tf32", "fp32"),
    *("binary8p4se", "e8m11", "e8m12", "e7m22", "e5m2:nosub", "e4m3fn:unsigned", "e2m1"),
]


def operands(spec: oracle.Spec, n: int, seed: int) -> list[list[int]]:
    """Patterns of which many give results beside a tie, or cancel."""
    generator = random.Random(seed)
    pool = boundary_bits(spec, codes=20, noise=30, seed=seed)
    binary32 = oracle.Spec(8, 23)
    x, y, z = ([generator.choice(pool) for _ in range(n)] for _ in range(3))
    for i in range(0, n, 3):
        y[i] = oracle.subtract(binary32, z[i], x[i])  # x + y is nearly z
        z[i + 1 if i + 1 < n else i] = oracle.mul(binary32, x[i], y[i] ^ 0x80000000)
        if i + 2 < n:
            y[i + 2] = generator.choice([0x00000001, 0x80000001, 0x22000000, 0xA2000000])
    return [x, y, z]


@pytest.mark.parametrize("rounding", oracle.DETERMINISTIC_MODES)
@pytest.mark.parametrize("name", NAMES)
def test_one_operation_one_rounding(name: str, rounding: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    x, y, z = operands(spec, 150, 3)
    a, b, c = from_bits(x), from_bits(y), from_bits(z)
    for overflow in oracle.POLICIES:
        o = oracle.Options(rounding, overflow)
        more: dict[str, Any] = {"rounding": rounding, "overflow": overflow}
        expected = [oracle.add(spec, p, q, o) for p, q in zip(x, y, strict=True)]
        assert_same_bits(cpd.add(a, b, f, **more), expected, "add")
        expected = [oracle.mul(spec, p, q, o) for p, q in zip(x, y, strict=True)]
        assert_same_bits(cpd.mul(a, b, f, **more), expected, "mul")
        expected = [oracle.fma(spec, p, q, r, o) for p, q, r in zip(x, y, z, strict=True)]
        assert_same_bits(cpd.fma(a, b, c, f, **more), expected, "fma")


@pytest.mark.parametrize("random_bits", [1, 8, 16, 24])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "bf16", "e8m22", "e3m0"])
def test_stochastic(name: str, random_bits: int) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    x, y, z = operands(spec, 200, 5)
    r = cpd.random_integers(200, seed=4, stream=9, random_bits=random_bits)
    for variant in "ABC":
        o = [oracle.Options("stochastic", "ieee", variant, random_bits, int(k)) for k in r]
        more: dict[str, Any] = {
            "rounding": "stochastic",
            "seed": 4,
            "stream": 9,
            "random_bits": random_bits,
            "variant": variant,
        }
        got = cpd.fma(from_bits(x), from_bits(y), from_bits(z), f, **more)
        rows = zip(x, y, z, o, strict=True)
        assert_same_bits(got, [oracle.fma(spec, p, q, s, t) for p, q, s, t in rows], "fma")
        got = cpd.add(from_bits(x), from_bits(y), f, **more)
        pairs = zip(x, y, o, strict=True)
        assert_same_bits(got, [oracle.add(spec, p, q, t) for p, q, t in pairs], "add")


def test_values_that_binary32_would_get_wrong() -> None:
    def scalar(x: float) -> Any:
        return np.array([x], np.float32)

    p, q = float.fromhex("0x1.a30fecp+0"), float.fromhex("0x1.4c52bp-1")
    assert cpd.mul(scalar(p), scalar(q), "e4m3").item() == 1.125
    assert cpd.fma(scalar(1.0625), scalar(1), scalar(2.0**-30), cpd.Format(8, 3)).item() == 1.125


@pytest.mark.parametrize("scheme", ["sequential", "kahan"])
@pytest.mark.parametrize(
    "name", ["e4m3", "e5m2", "e3m0", "bf16", "fp16", "fp32", "e8m12", "e4m3fn"]
)
def test_sum(name: str, scheme: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    generator = np.random.default_rng(1)
    x = (generator.standard_normal((20, 9)) * 4).astype(np.float32)
    x[:, 0] *= np.float32(100)
    x[3, 1], x[5, 2], x[7, 2] = np.nan, np.inf, -np.inf
    for rounding in oracle.DETERMINISTIC_MODES:
        for overflow in oracle.POLICIES:
            acc = cpd.Accumulator(f, scheme, rounding=rounding, overflow=overflow)
            o = oracle.Options(rounding, overflow)
            columns = x.view(np.uint32).T.tolist()
            expected = [oracle.fold(spec, column, o, scheme == "kahan") for column in columns]
            assert_same_bits(cpd.sum(x, acc, dim=0), expected, f"{name} {scheme} {rounding}")
            turned = np.ascontiguousarray(x.T)
            assert_same_bits(cpd.sum(turned, acc, dim=1), expected, f"{name} {scheme} {rounding}")
            assert_same_bits(cpd.sum(turned, acc, dim=-1), expected)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e3m0", "bf16", "fp32", "e4m3fn"])
def test_sum_of_chunks_and_of_pairs(name: str) -> None:
    f = cpd.format(name)
    spec, inner = spec_of(f), oracle.Spec(5, 2)
    generator = np.random.default_rng(2)
    x = (generator.standard_normal((13, 9)) * 4).astype(np.float32)
    x[:, 0] *= np.float32(100)
    x[3, 1], x[5, 2], x[7, 2] = np.nan, np.inf, -np.inf
    for rounding in oracle.DETERMINISTIC_MODES:
        o = oracle.Options(rounding)
        for terms in (1, 2, 3, 8, 13):
            columns = x[:terms].view(np.uint32).T.tolist()
            acc = cpd.Accumulator(f, "pairwise", rounding=rounding)
            expected = [oracle.fold_pairwise(spec, column, o) for column in columns]
            assert_same_bits(cpd.sum(x[:terms], acc), expected, f"{name} pairwise {rounding}")
            acc = cpd.Accumulator(f, "chunked", inner="e5m2", chunk=3, rounding=rounding)
            expected = [oracle.fold_chunked(spec, inner, 3, column, o) for column in columns]
            assert_same_bits(cpd.sum(x[:terms], acc), expected, f"{name} chunked {rounding}")
    empty = np.zeros((0, 2), np.float32)
    for scheme in ("chunked", "pairwise"):
        assert_same_bits(cpd.sum(empty, cpd.Accumulator(f, scheme)), [0, 0])


def test_edges_of_sums() -> None:
    minus_zeros = np.array([-0.0, -0.0], np.float32)
    assert np.signbit(cpd.sum(minus_zeros, "e4m3"))
    empty = cpd.sum(np.zeros((0, 2), np.float32), "e4m3")
    assert empty.tolist() == [0.0, 0.0]
    assert not np.signbit(empty).any()
    large = np.array([240, 240, 240, -240], np.float32)
    assert cpd.sum(large, cpd.Accumulator("e4m3", "kahan")).item() == np.inf


def test_broadcast() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.array([[0.125], [1.0]], np.float32)
    np.testing.assert_array_equal(cpd.add(x, y, "e4m3"), cpd.cast(x + y, "e4m3"))


@pytest.mark.parametrize("verb", [cpd.add, cpd.mul])
def test_bad_arguments(verb: Any) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="shape"):
        verb(x, np.ones(2, np.float32), "e4m3")
    with pytest.raises(TypeError):
        verb(x, x.astype(np.float64), "e4m3")
    with pytest.raises(TypeError):
        verb(x.astype(np.float64), x, "e4m3")
    with pytest.raises(TypeError):
        verb(x, 1.0, "e4m3")
    with pytest.raises(ValueError, match="rounding"):
        verb(x, x, "e4m3", rounding="?")


def test_bad_sums() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="dim"):
        cpd.sum(x, "e4m3", dim=2)
    with pytest.raises(ValueError, match="scheme"):
        cpd.sum(x, "h100-fp16")
    with pytest.raises(TypeError):
        cpd.sum(x, 3)  # type: ignore[arg-type]
