# SPDX-License-Identifier: Apache-2.0
"""Compares `cpd.gemm` and `cpd.sum` in fixed-point accumulators to Python's integers.

The accumulators have scheme `fixed`. The file also tests the texts of such accumulators and the
errors for invalid ones, on every front end.
"""

from __future__ import annotations

import copy
import pickle
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
from arrays import fixed_of, from_bits, spec_of, to_bits
from cpd.numeric.accumulator import as_accumulator
from fixed_cases import TO_UNITS, accumulated, fixed, floats
from front_ends import Call, FrontEnd, every_front_end

F32 = npt.NDArray[np.float32]
made_of: Any = cpd.Accumulator


def product_of(a: F32, b: F32, acc: cpd.Accumulator, c: F32 | None = None) -> Call:
    rows, columns = [to_bits(row) for row in a], [to_bits(column) for column in b.T]
    start = None if c is None else [to_bits(row) for row in c]
    expected = [
        fixed_oracle.dot(row, column, start[i][j] if start else None, fixed_of(acc))[0]
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
    shaped = from_bits(expected).reshape(a.shape[0], b.shape[1])
    return Call(cpd.gemm, (a, b, acc, c), {}, shaped)


def sum_call(x: npt.NDArray[Any], acc: cpd.Accumulator) -> Call:
    expected = [fixed_oracle.total(fixed_of(acc), map(float, column))[0] for column in x.T]
    return Call(cpd.sum, (x, acc, 0), {}, from_bits(expected).astype(x.dtype))


def numbers(generator: random.Random, bits: int, low: int, high: int, count: int = 50) -> F32:
    """Returns random numbers of `bits` significant bits from 2^low to 2^high, and some zeros."""
    values = [0.0, -0.0]
    for _ in range(count):
        significand = generator.randrange(1 << (bits - 1), 1 << bits) * generator.choice((1, -1))
        values.append(significand * 2.0 ** (generator.randint(low, high) + 1 - bits))
    return np.array(values, np.float32)


def matrix(generator: random.Random, pool: F32, rows: int, columns: int) -> F32:
    chosen = [generator.randrange(len(pool)) for _ in range(rows * columns)]
    return pool[chosen].reshape(rows, columns)


# Kinds of random operands. Each tuple has the operands' significant bits, their least and greatest
# exponent, and the fraction bits of the accumulator that sums their products.
KINDS = {
    "int8": (8, 0, 7, 0),
    "int12": (12, 11, 11, 0),
    "halves": (11, -6, 6, 4),
    "binary32": (24, -6, 8, 12),
    "spread": (24, -20, 20, 14),
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
    for overflow in oracle.POLICIES:
        for rounding in generator.sample(TO_UNITS, 3):
            acc = accumulated(
                generator.choice(("fp32", "fp16", "e5m2", "e4m3fn", "binary8p4se", "e8m0", "int7")),
                fixed(width, fraction, rounding=rounding),
                generator.choice(TO_UNITS),
                overflow,
            )
            depth = generator.choice((1, 7, 40))
            a, b = matrix(generator, pool, 3, depth), matrix(generator, pool, depth, 4)
            start = matrix(generator, pool, 3, 4) if generator.randrange(2) else None
            calls.append(product_of(a, b, acc, start))
    return calls


@pytest.mark.few("", 2)
@every_front_end(
    {f"{kind} {width}": [(kind, width)] for kind in KINDS for width in WIDTHS},
    compiled=("int8 32", "halves 40", "wide 127"),
)
def test_products(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for call in products(*case)]
    front_end.check(calls if front_end.few is None else calls[:2])


@pytest.mark.few("", 3)
@pytest.mark.parametrize("backend", cpd._core.backends())
@pytest.mark.parametrize("kind", KINDS)
def test_deep_products_on_every_backend(kind: str, backend: str) -> None:
    """Products are exact on every backend for k above one tile, and for partly filled tiles."""
    generator = random.Random(kind)
    bits, low, high, fraction = KINDS[kind]
    pool = numbers(generator, bits, low, high)
    a, b = matrix(generator, pool, 11, 300), matrix(generator, pool, 300, 37)
    c = matrix(generator, pool, 11, 37)
    was = cpd._core.backend()
    cpd._core.force_backend(backend)
    try:
        for width, saturates in ((32, False), (30, True), (64, True), (200, False)):
            point = fixed(width, fraction, rounding="nearest_even")
            acc = point.replace(format="fp32", overflow="saturate" if saturates else "ieee")
            got = to_bits(cpd.gemm(a, b, acc, c))
            for _ in range(16):
                i, j = generator.randrange(11), generator.randrange(37)
                of = fixed_of(acc)
                row, column, start = to_bits(a[i]), to_bits(b[:, j]), to_bits(c)[i * 37 + j]
                expected, _ = fixed_oracle.dot(row, column, start, of)
                assert got[i * 37 + j] == expected, (i, j, str(acc))
    finally:
        cpd._core.force_backend(was)


@st.composite
def problems(draw: st.DrawFn) -> tuple[F32, F32, F32 | None, cpd.Accumulator]:
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    point = fixed(
        draw(st.integers(2, 1024)),
        draw(st.integers(-1024, 1024) | st.integers(-8, 60)),
        rounding=draw(st.sampled_from(TO_UNITS)),
    )
    acc = accumulated(
        draw(st.sampled_from(("fp32", "e4m3", "bf16", "e4m3fnuz", "e5m2:nosub", "e2m1"))),
        point,
        draw(st.sampled_from(TO_UNITS)),
        draw(st.sampled_from(oracle.POLICIES)),
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
    FrontEnd().check([product_of(a, b, acc, c)])


@cache
def sums(dtype: str) -> list[Call]:
    generator = random.Random(dtype)
    calls = []
    for width in WIDTHS:
        for low, high, fraction in ((-3, 7, 0), (-6, 6, 10), (-14, 14, 20), (-14, 14, -6)):
            pool = numbers(generator, 8 if dtype == "bfloat16" else 11, low, high)
            x: Any = matrix(generator, pool, generator.choice((1, 2, 50)), 5)
            if dtype == "float64":
                factor = generator.choice((1.0, 2.0**-1000, 2.0**900, 1 + 2.0**-52))
                x = x.astype(np.float64) * factor
            acc = accumulated(
                "e4m3",
                fixed(width, fraction, rounding=generator.choice(TO_UNITS)),
                generator.choice(TO_UNITS),
                generator.choice(oracle.POLICIES),
            )
            calls.append(sum_call(x if dtype == "float64" else x.astype(dtype), acc))
    return calls


@every_front_end(
    {dtype: [(dtype,)] for dtype in ("float32", "float16", "float64")}, compiled=("float32",)
)
def test_sums(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for call in sums(*case)]
    front_end.check(calls if front_end.few is None else calls[:2])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(width=64), max_size=6),
    st.integers(2, 1024),
    st.integers(-1024, 1024),
    st.sampled_from(oracle.POLICIES),
    st.sampled_from(TO_UNITS),
)
def test_any_sum(terms: list[float], width: int, fraction: int, overflow: str, to: str) -> None:
    acc = fixed(width, fraction, rounding=to).replace(format="bf16", overflow=overflow)
    x = np.array(terms, np.float64).reshape(-1, 1)
    FrontEnd().check([sum_call(x, acc)])


@pytest.mark.parametrize("scales_at", ["block", "epilogue"])
@pytest.mark.parametrize("most", [2**31 - 1, 2**17 - 1])
def test_scaled_operands(most: int, scales_at: str) -> None:
    """With scaled operands, the integer sum of each block of products starts at 0."""
    generator = np.random.default_rng(7)
    q = cpd.Scaled("int8 32" if scales_at == "block" else "int8 row")
    x: Any = generator.standard_normal((9, 160)).astype(np.float32)
    y: Any = generator.standard_normal((160, 35)).astype(np.float32)
    c: Any = generator.standard_normal((9, 35)).astype(np.float32)
    encoded: Any = cpd.Encoded
    a = encoded(*cpd.encode(x, q), q, x.shape)
    b = encoded(*cpd.encode(y, q, axis=0), q, y.shape, 0)
    acc = cpd.Accumulator(f"int{most.bit_length() + 1}", overflow="saturate")
    got = cpd.gemm(a, b, acc, c, scales_at=scales_at)

    elements = [cpd.decode(one.codes, q.element, one.shape).astype(np.int64) for one in (a, b)]
    scales = [
        cpd.decode(one.scales, q.scale, q.scales_shape(one.shape, axis))
        for one, axis in ((a, -1), (b, 0))
    ]
    block = 32 if scales_at == "block" else 160
    total: Any = np.zeros((9, 35), np.float32)
    for k in range(0, 160, block):
        s: Any = np.zeros((9, 35), np.int64)
        for i in range(k, k + block):
            s = np.clip(s + elements[0][:, i : i + 1] * elements[1][i : i + 1], -most - 1, most)
        both = scales[0][:, k // block, None] * scales[1][k // block]
        total = total + both * s.astype(np.float32)
    np.testing.assert_array_equal(got, total + c)


SOME = [
    "fp32 fixed width=32 fraction=0",
    "fp16 fixed width=40 fraction=-12 overflow=saturate",
    "bf16 fixed width=1024 fraction=298 sum_rounding=nearest_even rounding=up overflow=saturate",
]


@pytest.mark.parametrize("text", SOME)
def test_text_and_copies(text: str) -> None:
    acc = cpd.Accumulator(text)
    assert str(acc) == text
    assert acc.form == "integer"
    assert (acc.scheme, acc.product, acc.block) == (None, None, None)
    assert eval(repr(acc), {"cpd": cpd}) == acc
    for same in (copy.deepcopy(acc), pickle.loads(pickle.dumps(acc)), acc.replace()):
        assert same == acc
        assert (same.width, same.fraction) == (acc.width, acc.fraction)
    assert (acc.sum_integers(5), acc.gemm_integers(5)) == (0, 0)
    keys = {name: getattr(acc, name) for name in ("width", "fraction", "sum_rounding", "overflow")}
    assert accumulated(acc.format.name, cpd.Accumulator(**keys), acc.rounding, acc.overflow) == acc


def test_short_names() -> None:
    plain = cpd.Accumulator(cpd.Accumulator(width=32))
    assert str(plain) == SOME[0]
    for same in (
        "int32",
        "fixed<32,0>",
        cpd.Accumulator(width=32),
        "INT32",
        "int32 overflow=ieee",
    ):
        assert cpd.Accumulator(same) == plain, same
        assert as_accumulator(same) == plain
    assert cpd.Accumulator("int1024") == cpd.Accumulator(width=1024)
    assert cpd.Accumulator("fixed<40,-3>", rounding="up") == cpd.Accumulator(
        width=40, fraction=-3, rounding="up"
    )
    assert cpd.Accumulator("fixed<8,-1> sum_rounding=down") == cpd.Accumulator(
        width=8, fraction=-1, sum_rounding="down"
    )
    assert cpd.Accumulator("fixed<26,0> rounding=down").rounding == "down"
    for width in (2, 8, 16, 24, 25):
        assert cpd.Accumulator(f"int{width}") == cpd.Accumulator(width=width)
    assert str(cpd.Accumulator("int8 overflow=saturate")).startswith("fp32 fixed width=8")
    # `int8` alone means a fixed-point accumulator of 8 bits. If a scheme follows, `int8` is the
    # format of the result. `sm8` (sign and magnitude) is always a format and takes any scheme.
    assert cpd.Accumulator("int8 fixed width=20").format == cpd.Format("int8")
    assert str(cpd.Accumulator("sm8 kahan")) == "sm8 kahan"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: cpd.Accumulator(width=1), ValueError, "fixed: width must be 2…1024, got 1"),
        (lambda: cpd.Accumulator(width=1025), ValueError, "fixed: width must be 2…1024, got 1025"),
        (
            lambda: cpd.Accumulator(width=8, fraction=1025),
            ValueError,
            "fraction must be -1024…1024, got 1025",
        ),
        (
            lambda: cpd.Accumulator(width=8, sum_rounding="stochastic"),
            ValueError,
            "without random bits",
        ),
        (
            lambda: cpd.Accumulator(width=8, sum_rounding="even"),
            ValueError,
            "rounding must be nearest_even",
        ),
        (
            lambda: made_of(width=8, sum_rounding=1),
            TypeError,
            "sum_rounding must be a str, got int",
        ),
        (lambda: made_of(width=8.0), TypeError, "width must be an int"),
        (lambda: cpd.Accumulator("int1025"), ValueError, "width must be 2…1024, got 1025"),
        (lambda: cpd.Accumulator("int99999999999"), ValueError, "width must be 2…1024"),
        (lambda: cpd.Accumulator("int1"), ValueError, "width must be 2…1024, got 1"),
        (lambda: cpd.Accumulator("fixed<8>"), ValueError, "an integer is fixed<width,fraction>"),
        (lambda: cpd.Accumulator("fixed<8,x>"), ValueError, "fraction must be an integer"),
        (lambda: cpd.Accumulator("fixed<8,0"), ValueError, "an integer is fixed<width,fraction>"),
        (lambda: cpd.Accumulator("int32 chunk=3"), ValueError, "chunk is for scheme chunked"),
        (
            lambda: cpd.Accumulator("int32 block=3"),
            ValueError,
            "block is for scheme block_fma, got scheme fixed",
        ),
        (lambda: cpd.Accumulator("int32 kahan"), ValueError, "no format 'int32'"),
        (
            lambda: cpd.Accumulator("int8 kahan"),
            ValueError,
            "must be a floating-point format with scheme kahan, got int8; int8 alone is .*sm8",
        ),
        (
            lambda: cpd.Accumulator("fp32", product="int8"),
            ValueError,
            "product must be a floating-point format with scheme sequential, got int8",
        ),
        (
            lambda: cpd.Reduce("int8"),
            ValueError,
            "int8 alone is an accumulator of two's complement",
        ),
        (lambda: cpd.Accumulator("int32 sum_overflow=saturate"), ValueError, "unknown option"),
        (lambda: made_of("e4m3", fixed="int32"), TypeError, "takes an integer's keys, width="),
        (
            lambda: cpd.Accumulator("int32", product="e4m3"),
            ValueError,
            "forms its products exactly",
        ),
        (
            lambda: cpd.Accumulator("int32", rounding="stochastic"),
            ValueError,
            "without random bits",
        ),
        (
            lambda: cpd.Accumulator("v100", width=32),
            ValueError,
            "width is for scheme fixed, got scheme block_fma",
        ),
        (
            lambda: cpd.Accumulator("e4m3 width=8 kahan"),
            ValueError,
            "width is for scheme fixed, got scheme kahan",
        ),
        (
            lambda: cpd.Reduce("e4m3", accumulator="int32"),
            ValueError,
            "kahan, chunked or pairwise, got 'fixed', which is for cpd.gemm and cpd.sum",
        ),
        (lambda: cpd.Accumulator.exact("fp32", "fp32", 2**57), ValueError, None),
        (lambda: cpd.Accumulator.exact("fp32", "fp32", 0), ValueError, "terms must be at least 1"),
    ],
)
def test_errors(make: Any, error: type[Exception], message: str | None) -> None:
    if message is None:
        assert make().width <= 1024
        return
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("a", ["e4m3fn", "e5m2", "fp16", "int8", "e2m1", "e8m0", "bf16"])
@pytest.mark.parametrize("b", ["e4m3fn", "e3m2", "fp32"])
@pytest.mark.parametrize("terms", [1, 2, 3, 1000, 2**40])
def test_kulisch(a: str, b: str, terms: int) -> None:
    """`Accumulator.exact` is wide enough for the greatest sum and at most two bits wider than that.

    The greatest sum and the least product are whole multiples of the accumulator's unit.
    """
    point = cpd.Accumulator.exact(a, b, terms)
    of_a, of_b = spec_of(cpd.Format(a)), spec_of(cpd.Format(b))
    unit = oracle.power_of_two(-point.fraction)
    greatest = of_a.max * of_b.max * terms / unit
    least = [min(v for v in map(f.magnitude, range(3)) if v) for f in (of_a, of_b)]
    assert (least[0] * least[1] / unit).denominator == 1
    assert greatest.denominator == 1
    assert greatest < 1 << (point.width - 1) <= 4 * greatest


def test_what_hardware_does() -> None:
    """Sums of int8 products in int32 wrap around at 2^31; an exact accumulator is exact."""
    ones = np.full((1, 140_000), 127, np.float32)
    exact = 127 * 127 * 140_000
    assert cpd.gemm(ones, ones.T, "int32").item() == np.float32(exact - 2**32)
    few = ones[:, :2]
    for width in (8, 16, 24):
        wrapped = (2 * 127 * 127 + 2 ** (width - 1)) % 2**width - 2 ** (width - 1)
        assert cpd.gemm(few, few.T, f"int{width}").item() == wrapped
        ends = (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        for sign, end in zip((-1, 1), ends, strict=True):
            many = cpd.gemm(ones[:, :600], sign * ones[:, :600].T, f"int{width} overflow=saturate")
            assert many.item() == np.clip(sign * 600 * 127 * 127, *ends)
            assert end in (many.item(), end)
    saturated = cpd.gemm(ones, ones.T, "int32 overflow=saturate").item()
    assert saturated == 2.0**31
    x = cpd.cast(floats([[448, 2.0**-9, -448, 2.0**-9]]), "e4m3fn")
    y = cpd.cast(floats([[448], [2.0**-9], [448], [2.0**-9]]), "e4m3fn")
    assert cpd.gemm(x, y, cpd.Accumulator.exact("e4m3fn", "e4m3fn", 4)).item() == 2.0**-17


def test_layers_take_integers() -> None:
    """Layers that sum int8 operands in int32 equal layers in fp32, whose sums are exact here."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(3)

    def whole(*shape: int) -> Any:
        return torch.randint(-128, 128, shape, generator=generator).float()

    recipe = cpd.Recipe(forward="int32", grad_input="int32", grad_weight="int32")
    layer, plain = torch.nn.Linear(16, 5), torch.nn.Linear(16, 5)
    convolution = torch.nn.Conv2d(2, 3, 3)
    for one in (layer, convolution):
        cpd.convert(one, recipe, coverage=False)
    plain_convolution = torch.nn.Conv2d(2, 3, 3)
    for one in (layer, convolution):
        for parameter in one.parameters():
            parameter.data = whole(*parameter.shape)
    plain.load_state_dict(layer.state_dict())
    plain_convolution.load_state_dict(convolution.state_dict())
    x, images = whole(7, 16), whole(2, 2, 6, 6)
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(convolution(images), plain_convolution(images))
    layer(x).sum().backward()
    plain(x).sum().backward()
    assert torch.equal(layer.weight.grad, plain.weight.grad)
    assert torch.equal(layer.bias.grad, plain.bias.grad)
