# SPDX-License-Identifier: Apache-2.0
"""Tests that add, mul, fma and sum of float64 arrays round the exact result once.

Exact rationals give the expected results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd
import oracle
import reduce_oracle
from arrays import spec_of, sum_of
from by_keywords import by_keywords
from cpd import _core
from double_operands import GREATEST, operands
from front_ends import Call, FrontEnd

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e8m0", "e4m3fn", "e4m3fnuz", "bf16", "fp16", "fp32", "e8m22"),
    *("binary8p4se", "e5m2:nosub", "e4m3fn:unsigned", "e2m1", "e5m2:bias=-20", "e3m4:bias=120"),
]


def same(got: npt.NDArray[Any], expected: Sequence[int], about: str) -> None:
    """Asserts that float64 results have the values of the expected binary32 bit patterns."""
    assert got.dtype == np.float64
    for i, (value, bits) in enumerate(zip(got.ravel().tolist(), expected, strict=True)):
        if math.isnan(value):
            assert np.float64(value).view(np.uint64) == 0x7FF8000000000000
        wanted = oracle.float_from_bits(bits)
        assert np.float64(wanted).tobytes() == np.float64(value).tobytes() or (
            math.isnan(wanted) and math.isnan(value)
        ), f"{about} at {i}: expected {wanted!r}, got {value!r}"


def every(operation: Callable[..., Any], *args: Any, **more: Any) -> npt.NDArray[Any]:
    """Calls `operation` on every backend. Returns the result, whose bits must be equal on all."""
    results = []
    try:
        for backend in _core.backends():
            _core.force_backend(backend)
            results.append(by_keywords(operation, *args, **more))
            about = f"{backend}: {operation.__name__} {args[-1]} {more}"
            assert results[-1].tobytes() == results[0].tobytes(), about
    finally:
        _core.force_backend("")
    return results[0]  # type: ignore[no-any-return]


def values(x: npt.NDArray[Any]) -> list[oracle.Value]:
    return [oracle.value_from_double(float(v)) for v in x.tolist()]


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", NAMES)
def test_one_operation_one_rounding(name: str) -> None:
    f = cpd.Format(name)
    spec = spec_of(f)
    x, y, z = operands(spec, 160, 3)
    a, b, c = values(x), values(y), values(z)
    for rounding in oracle.DETERMINISTIC_MODES:
        for overflow in oracle.POLICIES:
            o = oracle.Options(rounding, overflow)
            how: dict[str, Any] = {"rounding": rounding, "overflow": overflow}
            about = f"{rounding} {overflow}"
            expected = [oracle.add(spec, p, q, o) for p, q in zip(a, b, strict=True)]
            same(every(cpd.add, x, y, f, **how), expected, f"add {about}")
            expected = [oracle.mul(spec, p, q, o) for p, q in zip(a, b, strict=True)]
            same(every(cpd.mul, x, y, f, **how), expected, f"mul {about}")
            expected = [oracle.fma(spec, p, q, r, o) for p, q, r in zip(a, b, c, strict=True)]
            same(every(cpd.fma, x, y, z, f, **how), expected, f"fma {about}")


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e8m22", "fp32", "e4m3fnuz", "e8m0"])
@pytest.mark.parametrize("random_bits", [1, 13, 24])
def test_stochastic(name: str, random_bits: int) -> None:
    f = cpd.Format(name)
    spec = spec_of(f)
    n = 160
    x, y, z = operands(spec, n, 5)
    a, b, c = values(x), values(y), values(z)
    drawn = cpd.random_integers(n, seed=4, stream=9, random_bits=random_bits)
    given = np.random.default_rng(1).integers(0, 2**random_bits, n)
    for variant in "ABC":
        how: dict[str, Any] = {"random_bits": random_bits, "variant": variant}
        how["rounding"] = "stochastic"
        for r, more in ((drawn, {"seed": 4, "stream": 9}), (given, {"random": given})):
            o = [oracle.Options("stochastic", "ieee", variant, random_bits, int(k)) for k in r]
            expected = [oracle.add(spec, *row) for row in zip(a, b, o, strict=True)]
            same(every(cpd.add, x, y, f, **how, **more), expected, f"add {variant}")
            expected = [oracle.mul(spec, *row) for row in zip(a, b, o, strict=True)]
            same(every(cpd.mul, x, y, f, **how, **more), expected, f"mul {variant}")
            expected = [oracle.fma(spec, *row) for row in zip(a, b, c, o, strict=True)]
            same(every(cpd.fma, x, y, z, f, **how, **more), expected, f"fma {variant}")


def test_every_random_integer_next_to_a_gaps_point() -> None:
    """One more random integer rounds up a sum 2^-60 above a threshold than a sum 2^-60 below it.

    The test counts over all random integers of N bits. The thresholds divide the gap between two
    values of the format into 2^N parts.
    """
    bits = 10
    r = np.arange(2**bits)
    for direction in (-1, 1):
        x = np.full(r.shape, 1 + 331 * 2.0**-13)  # 331 / 2^10 of the gap 1…1.125
        y = np.full(r.shape, direction * 2.0**-60)
        got = cpd.add(x, y, cpd.Cast("e4m3", rounding="stochastic", random_bits=bits), random=r)
        assert int((got == 1.125).sum()) == (331 if direction > 0 else 330)


def wanted_sum(acc: cpd.Accumulator, x: npt.NDArray[Any], index: int) -> int:
    step = reduce_oracle._draws(index, 2, 6)
    return sum_of(acc, values(x), step)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("scheme", ["sequential", "kahan", "chunked", "pairwise"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2fnuz", "bf16", "fp32", "e4m3fn"])
def test_sums(name: str, scheme: str) -> None:
    chunks = {"inner": "e5m2", "chunk": 3} if scheme == "chunked" else {}
    spec = spec_of(cpd.Format(name))
    pool = operands(spec, 40, 8).reshape(-1)
    generator = np.random.default_rng(4)
    for terms in (1, 2, 7, 8):
        x = generator.normal(size=(terms, 23)) * np.exp2(generator.integers(-3, 5, (terms, 23)))
        x[:, :9] = generator.choice(pool, (terms, 9))
        x[0, 9], x[-1, 9] = GREATEST, GREATEST
        x[0, 10], x[-1, 10] = GREATEST, -GREATEST / 2
        for rounding in oracle.MODES:
            drawn = {"random_bits": 9} if rounding == "stochastic" else {}
            acc = cpd.Accumulator(name, scheme=scheme, rounding=rounding, **drawn, **chunks)
            expected = [wanted_sum(acc, column, i) for i, column in enumerate(x.T)]
            same(every(cpd.sum, x, acc, 0, seed=2, stream=6), expected, f"{acc} of {terms}")
            same(every(cpd.sum, x.T, acc, -1, seed=2, stream=6), expected, f"{acc} of {terms}")
    empty = cpd.sum(np.zeros((0, 2)), cpd.Accumulator(name, scheme=scheme, **chunks), 0)
    same(empty, [0, 0], "empty")


def test_float64_of_binary32_numbers_gives_what_float32_gives() -> None:
    generator = np.random.default_rng(9)
    x, y, z = (generator.normal(size=10000).astype(np.float32) for _ in range(3))
    wide = [v.astype(np.float64) for v in (x, y, z)]
    for rounding in oracle.MODES:
        how: dict[str, Any] = {"rounding": rounding, "seed": 3}
        for f in ("e4m3", "e8m12", "fp32"):
            got = by_keywords(cpd.fma, *wide, f, **how)
            assert got.dtype == np.float64
            np.testing.assert_array_equal(got, by_keywords(cpd.fma, x, y, z, f, **how))
            np.testing.assert_array_equal(
                by_keywords(cpd.add, *wide[:2], f, **how), by_keywords(cpd.add, x, y, f, **how)
            )
            np.testing.assert_array_equal(
                by_keywords(cpd.mul, *wide[:2], f, **how), by_keywords(cpd.mul, x, y, f, **how)
            )


def test_every_front_end(front_end: FrontEnd) -> None:
    x, y, z = operands(spec_of(cpd.Format("e4m3")), 300, 6)
    calls = []
    for more in ({}, {"rounding": "down"}, {"rounding": "stochastic", "seed": 7}):
        for operation, n in ((cpd.add, 2), (cpd.mul, 2), (cpd.fma, 3)):
            given = (*(x, y, z)[:n], "e4m3")
            calls.append(Call(operation, given, more, by_keywords(operation, *given, **more)))
        how = dict(more)
        seed = {"seed": how.pop("seed")} if "seed" in how else {}
        acc = cpd.Accumulator("e4m3 kahan", **how)
        rows = x.reshape(10, 30)
        calls.append(Call(cpd.sum, (rows, acc, 0), seed, cpd.sum(rows, acc, 0, **seed)))
    front_end.check(calls)


def test_types_do_not_mix_and_gemm_takes_none() -> None:
    x = np.ones((2, 2))
    with pytest.raises(TypeError, match="y must have x's type, float64, got float32"):
        cpd.add(x, x.astype(np.float32), "e4m3")
    with pytest.raises(TypeError, match="a must be of type"):
        cpd.gemm(x, x, "e4m3")
