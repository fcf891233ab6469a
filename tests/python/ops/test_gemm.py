# SPDX-License-Identifier: Apache-2.0
"""Compares `cpd.gemm` on every front end to exact rational arithmetic."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpd
import gemm_oracle
import oracle
from arrays import accumulation_of, assert_same_bits, boundary_bits, from_bits, spec_of, to_bits
from front_ends import Call, FrontEnd, every_front_end

F32 = npt.NDArray[np.float32]
SCHEMES = ("sequential", "kahan", "chunked", "pairwise")
FORMATS = (
    *("e4m3", "e5m2", "e3m0", "e2m1", "e6m9", "fp16", "bf16", "fp32", "e8m10"),
    *("e4m3fn", "e4m3fnuz", "e5m2fnuz", "binary8p4se", "e4m3:nosub", "e4m3:bias=11"),
)


def rows(x: F32) -> list[list[int]]:
    bits = to_bits(x)
    return [bits[i : i + x.shape[1]] for i in range(0, len(bits), max(1, x.shape[1]))]


def product_of(a: F32, b: F32, acc: cpd.Accumulator, c: F32 | None = None, **numbers: int) -> Call:
    """Returns a call of cpd.gemm, for matrices a, b and c (or None), with the exact result."""
    start = None if c is None else rows(c)
    expected = gemm_oracle.gemm(rows(a), rows(b), start, accumulation_of(acc, **numbers))
    shaped = from_bits(expected).reshape(a.shape[0], b.shape[1])
    return Call(cpd.gemm, (a, b, acc, c), numbers, shaped)


def matrix(generator: random.Random, pool: list[int], m: int, n: int) -> F32:
    return from_bits(generator.choice(pool) for _ in range(m * n)).reshape(m, n)


def around_one(generator: random.Random, bits: int, count: int = 60) -> list[int]:
    """Returns zeros and random numbers of `bits` significant bits, most of them near 1."""
    pool = [0, 0x80000000]
    for _ in range(count):
        x = generator.randrange(1 << (bits - 1), 1 << bits) * 2.0 ** generator.randrange(-2, 2)
        x *= 2.0 ** (1 - bits) * generator.choice((1, -1)) * generator.choice((1, 1, 1, 2.0**-9))
        pool.append(oracle.bits_from_float(x))
    return pool


@cache
def products(name: str, scheme: str) -> list[Call]:
    generator = random.Random(f"{name} {scheme}")
    f = cpd.Format(name)
    calls = []
    for product in (None, "exact", "e5m2"):
        options: dict[str, Any] = {"product": product}
        numbers: dict[str, int] = {}
        if scheme == "chunked":
            options |= {"chunk": generator.choice((1, 2, 3, 5)), "inner": generator.choice(FORMATS)}
        if generator.randrange(2):
            numbers = {name: generator.getrandbits(64) for name in ("seed", "stream")}
            options |= {
                "rounding": "stochastic",
                "random_bits": generator.choice((1, 7, 8, 9, 16, 17, 24)),
                "variant": generator.choice("ABC"),
            }
        else:
            options["rounding"] = generator.choice(oracle.DETERMINISTIC_MODES)
        acc = cpd.Accumulator(
            f, scheme=scheme, overflow=generator.choice(oracle.POLICIES), **options
        )
        near = around_one(generator, min(f.man + 1, 24))
        wide = around_one(generator, 24)
        special = boundary_bits(spec_of(f), 4, 20)
        a, b = matrix(generator, near, 3, 9), matrix(generator, wide, 9, 4)
        calls.append(product_of(a, b, acc, **numbers))
        calls.append(product_of(a, b, acc, matrix(generator, wide, 3, 4), **numbers))
        a, b = matrix(generator, special, 4, 3), matrix(generator, special, 3, 5)
        calls.append(product_of(a, b, acc, **numbers))
    return calls


@pytest.mark.few("", 2)
@every_front_end(
    {f"{name} {scheme}": [(name, scheme)] for scheme in SCHEMES for name in FORMATS},
    compiled=("e4m3 sequential", "e5m2 kahan", "e8m10 chunked", "e4m3fn pairwise"),
)
def test_schemes(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for call in products(*case)]
    front_end.check(calls if front_end.few is None else calls[::2])


@st.composite
def problems(
    draw: st.DrawFn,
) -> tuple[F32, F32, F32 | None, cpd.Accumulator, dict[str, int]]:
    m, k, n = (draw(st.integers(0, 5)) for _ in range(3))
    name = draw(st.sampled_from(FORMATS))
    scheme = draw(st.sampled_from((*SCHEMES, "fma")))
    options: dict[str, Any] = {}
    if scheme == "chunked":
        options |= {"chunk": draw(st.integers(1, 6)), "inner": draw(st.sampled_from(FORMATS))}
    if scheme != "fma":
        options["product"] = draw(st.sampled_from((None, "exact", *FORMATS)))
    rounding = draw(st.sampled_from(oracle.MODES))
    if rounding == "stochastic":
        options["random_bits"] = draw(st.integers(1, 24))
        options["variant"] = draw(st.sampled_from("ABC"))
    acc = cpd.Accumulator(
        name,
        scheme=scheme,
        rounding=rounding,
        overflow=draw(st.sampled_from(oracle.POLICIES)),
        **options,
    )
    numbers = {name: draw(st.integers(0, 2**64 - 1)) for name in ("seed", "stream")}
    near_one = st.floats(-8, 8, width=16)
    values = st.one_of(near_one, st.floats(width=32), st.floats(-300, 300, width=32))

    def fill(rows: int, columns: int) -> F32:
        flat = draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
        return np.array(flat, np.float32).reshape(rows, columns)

    return fill(m, k), fill(k, n), fill(m, n) if draw(st.booleans()) else None, acc, numbers


@settings(max_examples=150, deadline=None)
@given(problems())
def test_any_problem(
    problem: tuple[F32, F32, F32 | None, cpd.Accumulator, dict[str, int]],
) -> None:
    a, b, c, acc, numbers = problem
    if 0 in a.shape or 0 in b.shape:
        got = cpd.gemm(a, b, acc, c, **numbers)
        assert got.shape == (a.shape[0], b.shape[1])
        start = np.zeros(got.shape, np.float32) if c is None else c
        columns = got.shape[1]
        expected = [
            gemm_oracle.element([], [], bits, accumulation_of(acc, **numbers), i)
            for i, bits in enumerate(to_bits(start))
        ]
        assert columns == b.shape[1]
        assert_same_bits(got, expected, str(acc))
    else:
        FrontEnd().check([product_of(a, b, acc, c, **numbers)])


@cache
def unit_products(promote: int, aligns_addend: bool, rounding: str) -> list[Call]:
    generator = random.Random(f"{promote} {aligns_addend} {rounding}")
    calls = []
    for operands, total in (("fp16", "fp32"), ("e5m2", "e8m13"), ("e4m3", "fp16")):
        for block in (1, 2, 4, 7):
            unit = cpd.Accumulator(
                a=operands,
                b=operands,
                block=block,
                fraction_bits=generator.choice((1, 7, 13, 25, 30)),
                addend="aligned" if aligns_addend else "separate",
                min_exponent=generator.choice((-133, -20, 3)),
                sum=total,
                sum_rounding=rounding,
                promote=promote * block,
            )
            acc = unit.replace(format="fp32")
            spec = spec_of(unit.a)
            codes = [generator.randrange(1 << spec.bits) for _ in range(40)]
            any_value = [oracle.bits_from_value(spec.decode(code)) for code in codes]
            near = [oracle.cast(spec, x) for x in around_one(generator, unit.a.man + 1)]
            for pool, k in ((near, 11), (any_value, 3)):
                a, b = matrix(generator, pool, 3, k), matrix(generator, pool, k, 4)
                calls.append(product_of(a, b, acc))
                calls.append(product_of(a, b, acc, matrix(generator, pool, 3, 4)))
    return calls


@every_front_end(
    {
        f"promote={promote}": [
            (promote, aligns_addend, rounding)
            for aligns_addend in (True, False)
            for rounding in ("toward_zero", "nearest_even")
        ]
        for promote in (0, 2)
    }
)
def test_block_fma(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for call in unit_products(*case)]
    front_end.check(calls if front_end.few is None else calls[::29])


ADDERS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "exact": (("fp16", "bf16"), {"block": 4, "sum": "fp16", "sum_rounding": "nearest_even"}),
    "exact to zero": (("fp32", "fp32"), {"block": 3, "adder": "exact", "promote": 6}),
    "flushed_pairs": (("bf16", "bf16"), {"block": 4, "sum_rounding": "nearest_even"}),
    "two_steps": (("bf16", "fp16"), {"block": 8, "sum_rounding": "nearest_even"}),
    "two_steps_even": (("e4m3fnuz", "e5m2fnuz"), {"block": 16, "sum_rounding": "nearest_even"}),
    "order": (("e4m3fn", "e5m2"), {"block": 4, "group": 8}),
    "order by pairs": (("e4m3fn", "e5m2"), {"block": 3, "group": 12, "stride": 6, "take": 3}),
    "order, promoted": (
        ("fp16", "fp16"),
        {"block": 2, "group": 8, "take": 1, "promote": 8, "sum": "fp16", "min_exponent": -21},
    ),
}


@cache
def adder_products(name: str) -> list[Call]:
    operands, options = ADDERS[name]
    adder = name if "_" in name or name == "exact" else "aligned"
    uncut = options.get("adder", adder) in ("exact", "flushed_pairs")
    cut = {} if uncut else {"fraction_bits": 24}
    a, b = operands
    unit = cpd.Accumulator(a=a, b=b, **{"adder": adder} | cut | options)
    acc = unit.replace(format="fp32")
    assert cpd.Accumulator(str(acc)) == acc
    generator = random.Random(name)
    calls = []
    for k in (1, 3, 19):
        pools = []
        for f in (unit.a, unit.b):
            spec = spec_of(f)
            codes = [generator.randrange(1 << spec.bits) for _ in range(40)]
            near = [oracle.cast(spec, x) for x in around_one(generator, f.man + 1)]
            pools.append((near, [oracle.bits_from_value(spec.decode(code)) for code in codes]))
        for pool_a, pool_b in zip(*pools, strict=True):
            a, b = matrix(generator, pool_a, 3, k), matrix(generator, pool_b, k, 4)
            calls.append(product_of(a, b, acc))
            calls.append(product_of(a, b, acc, matrix(generator, pool_a, 3, 4)))
    return calls


@every_front_end(
    {name: [(name,)] for name in ADDERS if name.startswith("order")}, compiled=("order",)
)
def test_orders_of_k(front_end: FrontEnd, cases: list[str]) -> None:
    calls = [call for case in cases for call in adder_products(*case)]
    front_end.check(calls if front_end.few is None else calls[::5])


@pytest.mark.parametrize("name", [name for name in ADDERS if not name.startswith("order")])
def test_adders(name: str) -> None:
    FrontEnd().check(adder_products(name))


def test_batches_broadcast(front_end: FrontEnd) -> None:
    generator = np.random.default_rng(2)
    a = generator.standard_normal((2, 1, 3, 5)).astype(np.float32)
    b = generator.standard_normal((4, 5, 2)).astype(np.float32)
    c = generator.standard_normal((4, 1, 2)).astype(np.float32)
    acc = cpd.Accumulator("e4m3 kahan", rounding="stochastic", random_bits=8)
    view = accumulation_of(acc, seed=3)
    expected = []
    for index, (i, j, row, column) in enumerate(np.ndindex(2, 4, 3, 2)):
        x, y = to_bits(a[i, 0, row]), to_bits(b[j, :, column])
        expected.append(
            gemm_oracle.element(x, y, to_bits(c[j, 0, column : column + 1])[0], view, index)
        )
    shaped = from_bits(expected).reshape(2, 4, 3, 2)
    front_end.check([Call(cpd.gemm, (a, b, acc, c), {"seed": 3}, shaped)])


def test_strides_and_transposes_change_nothing(front_end: FrontEnd) -> None:
    generator = np.random.default_rng(3)
    a = generator.standard_normal((17, 40)).astype(np.float32)
    b = generator.standard_normal((40, 35)).astype(np.float32)
    acc = cpd.Accumulator("e4m3", rounding="stochastic")
    wide = np.zeros((34, 120), np.float32)
    wide[::2, ::3] = a
    pairs = [
        (wide[::2, ::3], b),
        (np.asfortranarray(a), np.asfortranarray(b)),
        (a[:, ::-1][:, ::-1], b[::-1][::-1]),
        (np.ascontiguousarray(a.T).T, b),
    ]
    if front_end.name == "numpy":  # tensors have no negative strides
        reversed_a = np.ascontiguousarray(a[:, ::-1])[:, ::-1]
        reversed_b = np.ascontiguousarray(b[::-1])[::-1]
        pairs.append((reversed_a, reversed_b))
    wanted = cpd.gemm(a, b, acc, seed=5)
    front_end.check([Call(cpd.gemm, (x, y, acc), {"seed": 5}, wanted) for x, y in pairs])


def test_inputs_are_left_alone(front_end: FrontEnd) -> None:
    before = [
        np.full(shape, x, np.float32) for shape, x in (((3, 4), 1.3), ((4, 2), 0.7), (2, 5.1))
    ]
    a, b, c = (front_end.array(x.copy()) for x in before)
    front_end(cpd.gemm, a, b, "e4m3", c)
    for x, y in zip((a, b, c), before, strict=True):
        np.testing.assert_array_equal(front_end.numpy(x), y)


def test_narrow_operands_give_their_type(front_end: FrontEnd) -> None:
    generator = np.random.default_rng(6)
    a, b = (cpd.cast(generator.standard_normal(s).astype("f4"), "e4m3") for s in ((4, 9), (9, 3)))
    wanted = cpd.gemm(a, b, "e4m3")
    types = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32))
    front_end.check(
        [
            Call(cpd.gemm, (a.astype(p), b.astype(q), "e4m3"), {}, wanted.astype(p))
            for p in types[: front_end.few]
            for q in types[: front_end.few]
        ]
    )


ACCUMULATORS = [
    "e4m3",
    "e4m3 sequential product=exact",
    "e5m2 kahan product=e5m3",
    "e6m9 chunked inner=e4m3 chunk=5",
    "e4m3 pairwise",
    "h100-fp16",
    "e4m3 sequential rounding=stochastic random_bits=8",
    "fp32",
]


@cache
def shapes(text: str) -> list[Call]:
    generator = np.random.default_rng(7)

    def some(*shape: int) -> F32:
        """Returns random numbers that both fp16 and bf16 represent, as matrix units require."""
        x = generator.standard_normal(shape).astype(np.float32) * 2
        return cpd.cast((x * 32).round() / 32, "bf16")

    calls = []
    for m, k, n in ((3, 7, 5), (1, 33, 17), (9, 1, 4)):
        a, b, c = some(m, k), some(k, n), np.broadcast_to(some(n), (m, n))
        acc = cpd.Accumulator(text)
        calls += [product_of(a, b, acc), product_of(a, b, acc, c)]
    return calls


@every_front_end({text: [(text,)] for text in ACCUMULATORS}, compiled=ACCUMULATORS[3:7])
def test_texts(front_end: FrontEnd, cases: list[Any]) -> None:
    front_end.check([call for (text,) in cases for call in shapes(text)])


@pytest.mark.parametrize(
    "text", ["e4m3 sequential product=exact rounding=stochastic random_bits=8"]
)
def test_seeds_and_streams(front_end: FrontEnd, text: str) -> None:
    generator = np.random.default_rng(8)
    a, b = (generator.standard_normal(s).astype(np.float32) for s in ((6, 40), (40, 5)))
    numbers = (0, 7, 2**64 - 1)
    given = [{"seed": p, "stream": q} for p in numbers for q in numbers]
    calls = [Call(cpd.gemm, (a, b, text), one, cpd.gemm(a, b, text, **one)) for one in given]
    assert len({call.expected.tobytes() for call in calls}) == 9
    front_end.check(calls[: front_end.few])


def test_fp32_in_order_is_plain_fp32(front_end: FrontEnd) -> None:
    generator = np.random.default_rng(5)
    a = generator.standard_normal((6, 200)).astype(np.float32)
    b = generator.standard_normal((200, 7)).astype(np.float32)
    s = np.zeros((6, 7), np.float32)
    for k in range(200):
        s = s + a[:, k : k + 1] * b[k]
    front_end.check([Call(cpd.gemm, (a, b, "fp32"), {}, s)])


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
        {"scheme": "h1000"},
    ],
)
def test_accumulators_that_do_not_fit(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        cpd.Accumulator("e4m3", **options)


UNIT = "block_fma a=e4m3 b=e4m3 block=4 sum=fp32"


@pytest.mark.parametrize("scheme", [*SCHEMES, UNIT, f"{UNIT} promote=8"])
def test_no_products_give_the_addend_rounded(front_end: FrontEnd, scheme: str) -> None:
    """With k = 0 the result is c rounded to the accumulator's format, or zeros without c."""
    a, b = np.zeros((2, 0), np.float32), np.zeros((0, 5), np.float32)
    c = np.float32([4124, 1.0625, -0.0, np.inf, np.nan])
    calls = []
    for name in ("e4m3", "e5m2", "e4m3fn", "fp16")[: front_end.few]:
        rounded = np.tile(cpd.cast(c, name), (2, 1))
        calls.append(Call(cpd.gemm, (a, b, f"{name} {scheme}", c), {}, rounded))
        calls.append(Call(cpd.gemm, (a, b, f"{name} {scheme}"), {}, np.zeros((2, 5), np.float32)))
    front_end.check(calls)
