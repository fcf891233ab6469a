# SPDX-License-Identifier: Apache-2.0
"""`cpd.gemm` on NumPy arrays against exact rational arithmetic."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpd
import gemm_oracle
import oracle
from arrays import assert_same_bits, boundary_bits, from_bits, spec_of, to_bits
from gemm_oracle import Accumulation, Unit

F32 = npt.NDArray[np.float32]
SCHEMES = ("sequential", "kahan", "chunked", "pairwise")
FORMATS = (
    *("e4m3", "e5m2", "e3m0", "e2m1", "e6m9", "fp16", "bf16", "fp32", "e8m10"),
    *("e4m3fn", "e4m3fnuz", "e5m2fnuz", "binary8p4se", "e4m3:nosub", "e4m3:bias=11"),
)


def view_of(acc: cpd.Accumulator) -> Accumulation:
    """The same accumulator for the oracle."""
    product = "exact" if acc.product == "exact" else spec_of(cpd.format(acc.product))
    unit = None
    if acc.unit is not None:
        u = acc.unit
        unit = Unit(
            spec_of(u.a),
            spec_of(u.b),
            u.block,
            u.fraction_bits,
            spec_of(u.sum),
            u.rounding,
            u.aligns_addend,
            u.min_exponent,
            u.promote,
        )
    return Accumulation(
        spec_of(acc.format),
        acc.scheme,
        product,
        spec_of(acc.inner),
        acc.chunk,
        unit,
        oracle.Options(acc.rounding, acc.overflow, acc.variant, acc.random_bits),
        int(acc.seed),
        int(acc.stream),
    )


def rows(x: F32) -> list[list[int]]:
    bits = to_bits(x)
    return [bits[i : i + x.shape[1]] for i in range(0, len(bits), max(1, x.shape[1]))]


def check(a: F32, b: F32, acc: cpd.Accumulator, c: F32 | None = None) -> None:
    """2-dimensional operands; c of the result's shape."""
    expected = gemm_oracle.gemm(rows(a), rows(b), None if c is None else rows(c), view_of(acc))
    got = cpd.gemm(a, b, acc, c)
    assert got.shape == (a.shape[0], b.shape[1])
    assert_same_bits(got, expected, str(acc))


def matrix(generator: random.Random, pool: list[int], m: int, n: int) -> F32:
    return from_bits(generator.choice(pool) for _ in range(m * n)).reshape(m, n)


def around_one(generator: random.Random, bits: int, count: int = 60) -> list[int]:
    """Numbers near 1 of so many significant bits, few far smaller ones, and zeros."""
    pool = [0, 0x80000000]
    for _ in range(count):
        x = generator.randrange(1 << (bits - 1), 1 << bits) * 2.0 ** generator.randrange(-2, 2)
        x *= 2.0 ** (1 - bits) * generator.choice((1, -1)) * generator.choice((1, 1, 1, 2.0**-9))
        pool.append(oracle.bits_from_float(x))
    return pool


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(name: str, scheme: str) -> None:
    generator = random.Random(f"{name} {scheme}")
    f = cpd.format(name)
    for product in (None, "exact", "e5m2"):
        options: dict[str, Any] = {"product": product}
        if scheme == "chunked":
            options |= {"chunk": generator.choice((1, 2, 3, 5)), "inner": generator.choice(FORMATS)}
        if generator.randrange(2):
            options |= {
                "rounding": "stochastic",
                "seed": generator.getrandbits(64),
                "stream": generator.getrandbits(64),
                "random_bits": generator.choice((1, 7, 8, 9, 16, 17, 24)),
                "variant": generator.choice("ABC"),
            }
        else:
            options["rounding"] = generator.choice(oracle.DETERMINISTIC_MODES)
        acc = cpd.Accumulator(f, scheme, overflow=generator.choice(oracle.POLICIES), **options)
        near = around_one(generator, min(f.man + 1, 24))
        wide = around_one(generator, 24)
        special = boundary_bits(spec_of(f), 4, 20)
        a, b = matrix(generator, near, 3, 9), matrix(generator, wide, 9, 4)
        check(a, b, acc)
        check(a, b, acc, matrix(generator, wide, 3, 4))
        check(matrix(generator, special, 4, 3), matrix(generator, special, 3, 5), acc)


@st.composite
def problems(draw: st.DrawFn) -> tuple[F32, F32, F32 | None, cpd.Accumulator]:
    m, k, n = (draw(st.integers(0, 5)) for _ in range(3))
    name = draw(st.sampled_from(FORMATS))
    scheme = draw(st.sampled_from((*SCHEMES, "fma")))
    options: dict[str, Any] = {}
    if scheme == "chunked":
        options |= {"chunk": draw(st.integers(1, 6)), "inner": draw(st.sampled_from(FORMATS))}
    if scheme != "fma":
        options["product"] = draw(st.sampled_from((None, "exact", *FORMATS)))
    acc = cpd.Accumulator(
        name,
        scheme,
        rounding=draw(st.sampled_from(oracle.MODES)),
        overflow=draw(st.sampled_from(oracle.POLICIES)),
        seed=draw(st.integers(0, 2**64 - 1)),
        stream=draw(st.integers(0, 2**64 - 1)),
        random_bits=draw(st.integers(1, 24)),
        variant=draw(st.sampled_from("ABC")),
        **options,
    )
    near_one = st.floats(-8, 8, width=16)
    values = st.one_of(near_one, st.floats(width=32), st.floats(-300, 300, width=32))

    def fill(rows: int, columns: int) -> F32:
        flat = draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
        return np.array(flat, np.float32).reshape(rows, columns)

    return fill(m, k), fill(k, n), fill(m, n) if draw(st.booleans()) else None, acc


@settings(max_examples=150, deadline=None)
@given(problems())
def test_any_problem(problem: tuple[F32, F32, F32 | None, cpd.Accumulator]) -> None:
    a, b, c, acc = problem
    if 0 in a.shape or 0 in b.shape:
        got = cpd.gemm(a, b, acc, c)
        assert got.shape == (a.shape[0], b.shape[1])
        start = np.zeros(got.shape, np.float32) if c is None else c
        columns = got.shape[1]
        expected = [
            gemm_oracle.element([], [], bits, view_of(acc), i)
            for i, bits in enumerate(to_bits(start))
        ]
        assert columns == b.shape[1]
        assert_same_bits(got, expected, str(acc))
    else:
        check(a, b, acc, c)


@pytest.mark.parametrize("promote", [0, 2])
@pytest.mark.parametrize("aligns_addend", [True, False])
@pytest.mark.parametrize("rounding", ["toward_zero", "nearest_even"])
def test_block_fma(promote: int, aligns_addend: bool, rounding: str) -> None:
    generator = random.Random(f"{promote} {aligns_addend} {rounding}")
    for operands, total in (("fp16", "fp32"), ("e5m2", "e8m13"), ("e4m3", "fp16")):
        for block in (1, 2, 4, 7):
            unit = cpd.BlockFma(
                operands,
                operands,
                block=block,
                fraction_bits=generator.choice((1, 7, 13, 25, 30)),
                aligns_addend=aligns_addend,
                min_exponent=generator.choice((-133, -20, 3)),
                sum=total,
                rounding=rounding,
                promote=promote * block,
            )
            acc = cpd.Accumulator("fp32", unit=unit)
            spec = spec_of(unit.a)
            codes = [generator.randrange(1 << spec.bits) for _ in range(40)]
            any_value = [oracle.bits_from_value(spec.decode(code)) for code in codes]
            near = [oracle.cast(spec, x) for x in around_one(generator, unit.a.man + 1)]
            for pool, k in ((near, 11), (any_value, 3)):
                a, b = matrix(generator, pool, 3, k), matrix(generator, pool, k, 4)
                check(a, b, acc)
                check(a, b, acc, matrix(generator, pool, 3, 4))


def test_batches_broadcast() -> None:
    generator = np.random.default_rng(2)
    a = generator.standard_normal((2, 1, 3, 5)).astype(np.float32)
    b = generator.standard_normal((4, 5, 2)).astype(np.float32)
    c = generator.standard_normal((4, 1, 2)).astype(np.float32)
    acc = cpd.Accumulator("e4m3", "kahan", rounding="stochastic", random_bits=8, seed=3)
    got = cpd.gemm(a, b, acc, c)
    assert got.shape == (2, 4, 3, 2)
    view = view_of(acc)
    expected = []
    for index, (i, j, row, column) in enumerate(np.ndindex(got.shape)):
        x, y = to_bits(a[i, 0, row]), to_bits(b[j, :, column])
        expected.append(
            gemm_oracle.element(x, y, to_bits(c[j, 0, column : column + 1])[0], view, index)
        )
    assert_same_bits(got, expected)


def test_strides_and_transposes_change_nothing() -> None:
    generator = np.random.default_rng(3)
    a = generator.standard_normal((17, 40)).astype(np.float32)
    b = generator.standard_normal((40, 35)).astype(np.float32)
    acc = cpd.Accumulator("e4m3", rounding="stochastic", seed=5)
    expected = to_bits(cpd.gemm(a, b, acc))
    wide = np.zeros((34, 120), np.float32)
    wide[::2, ::3] = a
    assert_same_bits(cpd.gemm(wide[::2, ::3], b, acc), expected)
    assert_same_bits(cpd.gemm(np.asfortranarray(a), np.asfortranarray(b), acc), expected)
    assert_same_bits(cpd.gemm(a[:, ::-1][:, ::-1], b[::-1][::-1], acc), expected)
    assert_same_bits(cpd.gemm(np.ascontiguousarray(a.T).T, b, acc), expected)
    reversed_a = np.ascontiguousarray(a[:, ::-1])[:, ::-1]
    reversed_b = np.ascontiguousarray(b[::-1])[::-1]
    assert_same_bits(cpd.gemm(reversed_a, reversed_b, acc), expected)


def test_inputs_are_left_alone() -> None:
    a, b = np.full((3, 4), 1.3, np.float32), np.full((4, 2), 0.7, np.float32)
    c = np.full((2,), 5.1, np.float32)
    before = a.copy(), b.copy(), c.copy()
    cpd.gemm(a, b, "e4m3", c)
    for x, y in zip((a, b, c), before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_fp16_operands_give_fp16() -> None:
    a = np.full((2, 3), 1.0625, np.float16)
    got = cpd.gemm(a, a.T, "e4m3")
    assert got.dtype == np.float16
    one = cpd.gemm(a.astype(np.float32), a.T.astype(np.float32), "e4m3")
    np.testing.assert_array_equal(got.astype(np.float32), one)


def test_fma_is_sequential_with_exact_products() -> None:
    generator = np.random.default_rng(4)
    a = generator.standard_normal((5, 30)).astype(np.float32)
    b = generator.standard_normal((30, 6)).astype(np.float32)
    fma = cpd.gemm(a, b, cpd.Accumulator("e5m2", "fma"))
    exact = cpd.gemm(a, b, cpd.Accumulator("e5m2", product="exact"))
    rounded = cpd.gemm(a, b, cpd.Accumulator("e5m2"))
    np.testing.assert_array_equal(fma, exact)
    assert (fma != rounded).any()


def test_fp32_in_order_is_plain_fp32() -> None:
    generator = np.random.default_rng(5)
    a = generator.standard_normal((6, 200)).astype(np.float32)
    b = generator.standard_normal((200, 7)).astype(np.float32)
    s = np.zeros((6, 7), np.float32)
    for k in range(200):
        s = s + a[:, k : k + 1] * b[k]
    assert_same_bits(cpd.gemm(a, b, "fp32"), to_bits(s))


@pytest.mark.parametrize(
    ("a", "b", "c", "says"),
    [
        ((3, 4), (5, 6), None, "4"),
        ((4,), (4, 2), None, "two dimensions"),
        ((2, 3, 4), (3, 4, 5), None, "broadcast"),
        ((3, 4), (4, 5), (3, 4), "broadcast"),
        ((3, 4), (4, 5), (2, 3, 5), "broadcast"),
    ],
)
def test_shapes_that_do_not_fit(
    a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...] | None, says: str
) -> None:
    addend = None if c is None else np.zeros(c, np.float32)
    with pytest.raises(ValueError, match=says):
        cpd.gemm(np.zeros(a, np.float32), np.zeros(b, np.float32), "e4m3", addend)


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "kahn"},
        {"scheme": "chunked", "chunk": 0},
        {"scheme": "kahan", "chunk": 8},
        {"scheme": "kahan", "inner": "e5m2"},
        {"scheme": "fma", "product": "e5m2"},
        {"product": "inexact"},
        {"scheme": "block_fma"},
        {"preset": "h1000"},
    ],
)
def test_accumulators_that_do_not_fit(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpd.Accumulator("e4m3", **options)


def test_types_that_do_not_fit() -> None:
    whole = np.zeros((2, 2), np.int64)
    real = np.zeros((2, 2), np.float32)
    for a, b in ((whole, real), (real, whole)):
        with pytest.raises((TypeError, ValueError)):
            cpd.gemm(a, b, "e4m3")
    with pytest.raises((TypeError, ValueError)):
        cpd.gemm(real.astype(np.float16), real.astype(np.float16), "bf16")


@pytest.mark.parametrize("promote", [0, 8])
@pytest.mark.parametrize("scheme", [*SCHEMES, "block_fma a=e4m3 b=e4m3 block=4 sum=fp32"])
def test_no_products_give_the_addend_rounded(scheme: str, promote: int) -> None:
    """Whatever format a matrix unit sums in, its result is the accumulator's."""
    if promote:
        if not scheme.startswith("block_fma"):
            return
        scheme += f" promote={promote}"
    a, b = np.zeros((2, 0), np.float32), np.zeros((0, 5), np.float32)
    c = np.float32([4124, 1.0625, -0.0, np.inf, np.nan])
    for name in ("e4m3", "e5m2", "e4m3fn", "fp16"):
        got = cpd.gemm(a, b, f"{name} {scheme}", c)
        assert_same_bits(got, 2 * to_bits(cpd.cast(c, name)))
        assert_same_bits(cpd.gemm(a, b, f"{name} {scheme}"), [0] * 10)
