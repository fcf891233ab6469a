# SPDX-License-Identifier: Apache-2.0
"""Accumulators of scheme `fixed`: `cpd.gemm` and `cpd.sum` on every face against Python's integers;
their texts and errors."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpd
import fixed_oracle
import oracle
from arrays import from_bits, spec_of, to_bits
from faces import Call, Face, every_face

F32 = npt.NDArray[np.float32]
TO_UNITS = oracle.DETERMINISTIC_MODES


def fixed(width: int, fraction: int, **more: Any) -> cpd.FixedPoint:
    return cpd.FixedPoint(width=width, fraction=fraction, **more)


def oracle_of(acc: cpd.Accumulator) -> fixed_oracle.Fixed:
    point = acc.fixed
    assert point is not None
    options = oracle.Options(acc.rounding, acc.overflow)
    return fixed_oracle.Fixed(
        spec_of(acc.format), point.width, point.fraction, point.saturates, point.rounding, options
    )


def product_of(a: F32, b: F32, acc: cpd.Accumulator, c: F32 | None = None) -> Call:
    rows, columns = [to_bits(row) for row in a], [to_bits(column) for column in b.T]
    start = None if c is None else [to_bits(row) for row in c]
    expected = [
        fixed_oracle.dot(row, column, start[i][j] if start else None, oracle_of(acc))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
    shaped = from_bits(expected).reshape(a.shape[0], b.shape[1])
    return Call(cpd.gemm, (a, b, acc, c), {}, shaped)


def sum_call(x: npt.NDArray[Any], acc: cpd.Accumulator) -> Call:
    expected = [fixed_oracle.total(oracle_of(acc), map(float, column)) for column in x.T]
    return Call(cpd.sum, (x, acc), {}, from_bits(expected).astype(x.dtype))


def numbers(generator: random.Random, bits: int, low: int, high: int, count: int = 50) -> F32:
    """Numbers of so many significant bits between 2^low and 2^high, some zeros."""
    values = [0.0, -0.0]
    for _ in range(count):
        significand = generator.randrange(1 << (bits - 1), 1 << bits) * generator.choice((1, -1))
        values.append(significand * 2.0 ** (generator.randint(low, high) + 1 - bits))
    return np.array(values, np.float32)


def matrix(generator: random.Random, pool: F32, rows: int, columns: int) -> F32:
    chosen = [generator.randrange(len(pool)) for _ in range(rows * columns)]
    return pool[chosen].reshape(rows, columns)


# What integers the products are: whole and small, whole and large, with a fraction, far beyond.
KINDS = {
    "int8": (8, 0, 7, 0),
    "int12": (12, 11, 11, 0),
    "halves": (11, -6, 6, 4),
    "binary32": (24, -6, 8, 12),
    "wide": (24, -40, 40, 20),
    "huge": (24, -120, 120, 100),
}
WIDTHS = (2, 7, 16, 31, 32, 33, 40, 53, 62, 63, 64, 65, 96, 127, 600, 1024)


@cache
def products(kind: str, width: int) -> list[Call]:
    generator = random.Random(f"{kind} {width}")
    bits, low, high, fraction = KINDS[kind]
    pool = numbers(generator, bits, low, high)
    if kind.startswith("int"):
        pool = np.round(pool)
    calls = []
    for saturates in (False, True):
        for rounding in generator.sample(TO_UNITS, 3):
            point = fixed(width, fraction, saturates=saturates, rounding=rounding)
            acc = cpd.Accumulator(
                generator.choice(("fp32", "fp16", "e5m2", "e4m3fn", "binary8p4se", "e8m0")),
                fixed=point,
                rounding=generator.choice(TO_UNITS),
                overflow=generator.choice(oracle.POLICIES),
            )
            depth = generator.choice((1, 7, 40))
            a, b = matrix(generator, pool, 3, depth), matrix(generator, pool, depth, 4)
            start = matrix(generator, pool, 3, 4) if generator.randrange(2) else None
            calls.append(product_of(a, b, acc, start))
    return calls


@every_face(
    {f"{kind} {width}": [(kind, width)] for kind in KINDS for width in WIDTHS},
    compiled=("int8 32", "halves 40", "wide 127"),
)
def test_products(face: Face, cases: list[Any]) -> None:
    calls = [call for case in cases for call in products(*case)]
    if face.name == "cuda":
        pytest.skip("accumulators of scheme fixed are for the CPU")
    face.check(calls if face.few is None else calls[:2])


@pytest.mark.parametrize("backend", cpd._core.backends())
@pytest.mark.parametrize("kind", KINDS)
def test_deep_products_on_every_backend(kind: str, backend: str) -> None:
    """Several blocks of k, and tiles that the result does not fill."""
    generator = random.Random(kind)
    bits, low, high, fraction = KINDS[kind]
    pool = numbers(generator, bits, low, high)
    a, b = matrix(generator, pool, 11, 300), matrix(generator, pool, 300, 37)
    c = matrix(generator, pool, 11, 37)
    was = cpd._core.backend()
    cpd._core.force_backend(backend)
    try:
        for width, saturates in ((32, False), (30, True), (64, True), (200, False)):
            point = fixed(width, fraction, saturates=saturates, rounding="nearest_even")
            acc = cpd.Accumulator("fp32", fixed=point)
            got = to_bits(cpd.gemm(a, b, acc, c))
            for _ in range(60):
                i, j = generator.randrange(11), generator.randrange(37)
                of = oracle_of(acc)
                expected = fixed_oracle.dot(
                    to_bits(a[i]), to_bits(b[:, j]), to_bits(c)[i * 37 + j], of
                )
                assert got[i * 37 + j] == expected, (i, j, str(acc))
    finally:
        cpd._core.force_backend(was)


@st.composite
def problems(draw: st.DrawFn) -> tuple[F32, F32, F32 | None, cpd.Accumulator]:
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    point = fixed(
        draw(st.integers(2, 1024)),
        draw(st.integers(-1024, 1024) | st.integers(-8, 60)),
        saturates=draw(st.booleans()),
        rounding=draw(st.sampled_from(TO_UNITS)),
    )
    acc = cpd.Accumulator(
        draw(st.sampled_from(("fp32", "e4m3", "bf16", "e4m3fnuz", "e5m2:nosub", "e2m1"))),
        fixed=point,
        rounding=draw(st.sampled_from(TO_UNITS)),
        overflow=draw(st.sampled_from(oracle.POLICIES)),
    )
    values = st.one_of(st.floats(-8, 8, width=16), st.floats(width=32), st.integers(-128, 127))

    def fill(rows: int, columns: int) -> F32:
        flat = draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
        return np.array(flat, np.float32).reshape(rows, columns)

    return fill(m, k), fill(k, n), fill(m, n) if draw(st.booleans()) else None, acc


@settings(max_examples=300, deadline=None)
@given(problems())
def test_any_product(problem: tuple[F32, F32, F32 | None, cpd.Accumulator]) -> None:
    a, b, c, acc = problem
    Face().check([product_of(a, b, acc, c)])


@cache
def sums(dtype: str) -> list[Call]:
    generator = random.Random(dtype)
    calls = []
    for width in WIDTHS:
        for low, high, fraction in ((-3, 7, 0), (-6, 6, 10), (-14, 14, 20), (-14, 14, -6)):
            pool = numbers(generator, 8 if dtype == "bfloat16" else 11, low, high)
            x = matrix(generator, pool, generator.choice((1, 2, 50)), 5)
            if dtype == "float64":
                factor = generator.choice((1.0, 2.0**-1000, 2.0**900, 1 + 2.0**-52))
                x = x.astype(np.float64) * factor
            point = fixed(
                width,
                fraction,
                saturates=bool(generator.randrange(2)),
                rounding=generator.choice(TO_UNITS),
            )
            acc = cpd.Accumulator("e4m3", fixed=point, rounding=generator.choice(TO_UNITS))
            calls.append(sum_call(x if dtype == "float64" else x.astype(dtype), acc))
    return calls


@every_face(
    {dtype: [(dtype,)] for dtype in ("float32", "float16", "float64")}, compiled=("float32",)
)
def test_sums(face: Face, cases: list[Any]) -> None:
    calls = [call for case in cases for call in sums(*case)]
    if face.name == "cuda":
        pytest.skip("accumulators of scheme fixed are for the CPU")
    face.check(calls if face.few is None else calls[:2])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(width=64), max_size=6),
    st.integers(2, 1024),
    st.integers(-1024, 1024),
    st.booleans(),
    st.sampled_from(TO_UNITS),
)
def test_any_sum(terms: list[float], width: int, fraction: int, saturates: bool, to: str) -> None:
    acc = cpd.Accumulator("bf16", fixed=fixed(width, fraction, saturates=saturates, rounding=to))
    x = np.array(terms, np.float64).reshape(-1, 1)
    Face().check([sum_call(x, acc)])
