# SPDX-License-Identifier: Apache-2.0
"""Compares quotients, square roots and the flags of element-wise operations with rationals."""

from __future__ import annotations

import math
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

import cpd
import flags_oracle
import oracle
from arrays import STRIDED, boundary_bits, from_bits, layout, spec_of
from double_operands import operands
from flag_cases import OPERATIONS, flags_alone, value_and_flags, values_of
from flags_oracle import DZ, NV, NX, OF, UF
from front_ends import Call, FrontEnd, every_front_end

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e8m0", "e4m3fn", "e4m3fnuz", "bf16", "fp16", "fp32", "binary8p4se"),
    *("e5m2:nosub", "e4m3fn:unsigned", "e4m3:unsigned", "e2m1", "e1m3ieee", "sm8", "e8m22"),
    *("int8", "int8:full", "e2m1:unsigned", "e3m0:nosub", "binary8p1ue"),
    *("binary8p4sf", "binary8p3uf"),
]


def arrays(f: cpd.Format, dtype: Any, n: int, seed: int) -> list[Any]:
    """Returns operands whose results are often near a value where rounding or a flag changes."""
    spec = spec_of(f)
    if dtype == np.float64:
        return list(operands(spec, n, seed))
    generator = random.Random(seed)
    pool = boundary_bits(spec, codes=24, noise=20, seed=seed)
    x, y, z = (from_bits(generator.choice(pool) for _ in range(n)) for _ in range(3))
    with np.errstate(all="ignore"):
        x[::4] = (z[::4] * y[::4]).astype(np.float32)  # x / y is nearly z
        x[1::4] = (z[1::4] * z[1::4]).astype(np.float32)  # sqrt(x) is
    return [x, y, z]


def cases(
    f: cpd.Format, rows: list[Any], o: list[oracle.Options], tininess: str, how: dict[str, Any]
) -> list[Call]:
    """Returns two test cases for each operation: one has the expected values, one the flags."""
    made = []
    values = [values_of(row) for row in rows]
    for name, count in flags_oracle.COUNTS.items():
        signals = np.any([flags_oracle.signalling(row) for row in rows[:count]], axis=0)
        columns = zip(zip(*values[:count], strict=True), o, signals, strict=True)
        spec = spec_of(f)
        both = [flags_oracle.result(name, x, spec, i, tininess, s) for x, i, s in columns]
        patterns = [oracle.bits_from_value(value) for value, _ in both]
        expected = from_bits(patterns).astype(rows[0].dtype)
        given = (*rows[:count], f)
        raised = np.array([flags for _, flags in both], np.uint8)
        more = how | {"flags": True, "tininess": tininess}
        made.append(Call(OPERATIONS[name], given, how, expected))
        made.append(Call(value_and_flags, (name, *given), more, expected))
        made.append(Call(flags_alone, (name, *given), more, raised))
    return made


@cache
def rounded_once(name: str, dtype: Any, rounding: str) -> list[Call]:
    f = cpd.Format(name)
    n = 96
    result = []
    for i, overflow in enumerate(oracle.POLICIES):
        o = [oracle.Options(rounding, overflow)] * n
        tininess = ("after", "before")[(i + len(rounding)) % 2]
        how = {"rounding": rounding, "overflow": overflow}
        result += cases(f, arrays(f, dtype, n, 3 + i), o, tininess, how)
    return result


@pytest.mark.few("", 4)
@every_front_end(
    {
        f"{name}-{dtype.__name__}": [(name, dtype, mode) for mode in oracle.DETERMINISTIC_MODES]
        for name in NAMES
        for dtype in (np.float32, np.float64)
    },
    compiled=("e4m3-float32", "e4m3fn:unsigned-float64"),
)
def test_one_operation_one_rounding(front_end: FrontEnd, cases: list[Any]) -> None:
    every = [call for case in cases for call in rounded_once(*case)]
    front_end.check(every if front_end.few is None else every[::11])


@cache
def stochastic(name: str, bits: int, variant: str, tininess: str) -> list[Call]:
    f = cpd.Format(name)
    n = 120
    r = cpd.random_integers(n, seed=4, stream=9, random_bits=bits)
    o = [oracle.Options("stochastic", "ieee", variant, bits, int(k)) for k in r]
    how: dict[str, Any] = {"rounding": "stochastic", "random_bits": bits, "variant": variant}
    drawn = cases(f, arrays(f, np.float32, n, 5), o, tininess, how | {"seed": 4, "stream": 9})
    return drawn + cases(f, arrays(f, np.float32, n, 5), o, tininess, how | {"random": r})[::2]


@pytest.mark.few("", 2)
@every_front_end(
    {
        f"{name}-{bits}": [(name, bits)]
        for name in ("e4m3", "e5m2:nosub", "e3m0", "e8m22", "e4m3fn")
        for bits in (1, 8, 24)
    },
    compiled=("e4m3-8",),
)
def test_stochastic(front_end: FrontEnd, cases: list[Any]) -> None:
    every = [c for case in cases for v in "ABC" for c in stochastic(*case, v, "after")]
    every += [c for case in cases for c in stochastic(*case, "A", "before")]
    front_end.check(every if front_end.few is None else every[::9])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_is_what_numpy_divides_and_extracts(dtype: Any) -> None:
    """Quotients and square roots in NumPy's own formats equal NumPy's, for any bit patterns."""
    generator = np.random.default_rng(3)
    unsigned = f"u{np.dtype(dtype).itemsize}"
    x, y = (
        generator.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), 200_000).astype(unsigned)
        for _ in range(2)
    )
    a, b = x.view(dtype), y.view(dtype)
    with np.errstate(all="ignore"):
        wanted, root = a / b, np.sqrt(a)
    f = cpd.Format(np.dtype(dtype).name)
    for got, expected in ((cpd.div(a, b, f), wanted), (cpd.sqrt(a, f), root)):
        numbers = ~np.isnan(expected)
        assert (np.isnan(got) == ~numbers).all()
        assert (got[numbers].view(unsigned) == expected[numbers].view(unsigned)).all()


def test_named_exceptions(front_end: FrontEnd) -> None:
    """Operations raise the flags that IEEE 754 requires, such as DZ for 1 / 0."""
    inf, nan = math.inf, math.nan
    table: list[tuple[str, list[float], str, dict[str, Any], int]] = [
        ("div", [1, 0], "e4m3", {}, DZ),
        ("div", [0, 0], "e4m3", {}, NV),
        ("div", [inf, inf], "e4m3", {}, NV),
        ("div", [inf, 0], "e4m3", {}, 0),
        ("sqrt", [-1], "e4m3", {}, NV),
        ("sqrt", [-0.0], "e4m3", {}, 0),
        ("sqrt", [2], "e4m3", {}, NX),
        ("mul", [0, inf], "e4m3", {}, NV),
        ("add", [inf, -inf], "e4m3", {}, NV),
        ("fma", [0, inf, nan], "e4m3", {}, 0),
        ("cast", [nan], "e4m3", {}, 0),
        ("cast", [nan], "e2m1", {}, NV),
        ("cast", [inf], "e4m3", {}, 0),
        ("cast", [inf], "e4m3fn", {}, OF | NX),
        ("cast", [1e9], "e4m3", {"rounding": "toward_zero"}, OF | NX),
        ("cast", [1e9], "e4m3fn", {}, OF | NX),
        ("cast", [1e-9], "e4m3", {}, UF | NX),
        ("cast", [-1], "e4m3fn:unsigned", {}, NV),
        ("div", [1, 0], "e4m3", {"overflow": "saturate"}, DZ),
        ("div", [-1, 0], "e4m3fn:unsigned", {}, DZ),
        ("cast", [-inf], "e4m3fn:unsigned", {}, NV),
        ("cast", [-inf], "e4m3fn:unsigned", {"overflow": "saturate"}, OF | NX),
        ("cast", [-inf], "e2m1:unsigned", {}, OF | NX),
        ("cast", [-1], "binary8p4uf", {"rounding": "up"}, NX),
        ("cast", [-inf], "binary8p4uf", {"rounding": "up"}, NV),
        ("cast", [225], "binary8p4se", {"rounding": "to_odd"}, OF | NX),
        ("cast", [inf], "binary8p4sf", {}, OF | NX),
        ("cast", [float.fromhex("0x1.FFp-7")], "e4m3", {}, NX),
        ("cast", [float.fromhex("0x1.FFp-7")], "e4m3", {"tininess": "before"}, UF | NX),
    ]
    calls = []
    for name, given, f, more, wanted in table:
        operands = [np.array([x], np.float32) for x in given]
        how = {"flags": True} | more
        calls.append(Call(flags_alone, (name, *operands, f), how, np.array([wanted], np.uint8)))
    front_end.check(calls)


SIGNALLING = {np.float16: 0x7C01, np.float32: 0xFF800001, np.float64: 0x7FF0000000000001}


@pytest.mark.few("", 2)
@pytest.mark.parametrize("dtype", SIGNALLING)
def test_signalling_nan_raise_invalid(front_end: FrontEnd, dtype: Any) -> None:
    """A signaling NaN in any operand raises invalid, even if another operand is a quiet NaN.

    IEEE 754-2019, section 6.2, requires this.
    """
    bits = np.array([SIGNALLING[dtype]], f"u{np.dtype(dtype).itemsize}")
    loud, quiet, one = bits.view(dtype), np.array([math.nan], dtype), np.ones(1, dtype)
    calls = []
    for name, count in flags_oracle.COUNTS.items():
        for place in range(count):
            for other in (one, quiet):
                operands = [loud if i == place else other for i in range(count)]
                given = (name, *operands, "e4m3")
                calls.append(Call(flags_alone, given, {"flags": True}, np.array([NV], np.uint8)))
        given = (name, *(quiet,) * count, "e4m3")
        calls.append(Call(flags_alone, given, {"flags": True}, np.array([0], np.uint8)))
    front_end.check(calls)


def test_signalling_nan_in_sums_and_products(front_end: FrontEnd) -> None:
    x = np.array([[0x3F800000, 0x7F800001], [0x3F800000, 0x7FC00000]], np.uint32).view(np.float32)
    ones = np.ones((2, 2), np.float32)
    how = {"flags": True}
    for accumulator in ("e4m3", "int32", "e4m3 kahan"):
        rows = np.array([NV, 0], np.uint8)
        table = np.array([[NV, NV], [0, 0]], np.uint8)
        addend = np.array([[0, NV], [0, 0]], np.uint8)
        front_end.check(
            [
                Call(sum_flags, (x, accumulator, 1), how, rows),
                Call(gemm_flags, (x, ones, accumulator), how, table),
                Call(gemm_flags, (ones, x.T, accumulator), how, table.T),
                Call(gemm_flags, (ones, ones, accumulator, x), how, addend),
            ]
        )


def sum_flags(*args: Any, **how: Any) -> Any:
    return cpd.sum(*args, **how)[1]


def gemm_flags(*args: Any, **how: Any) -> Any:
    return cpd.gemm(*args, **how)[1]


def test_operands_broadcast_and_layouts(front_end: FrontEnd) -> None:
    x, y = np.float32([[1.0], [2.0]]), np.float32([1.0, 3.0, 0.0])
    table = np.array([[0, NX, DZ], [0, NX, DZ]], np.uint8)
    result = [Call(flags_alone, ("div", x, y, "e4m3"), {"flags": True}, table)]
    for name in list(STRIDED)[: front_end.few]:
        x = layout(name)
        plain = np.array(x, order="C")
        for operation, count in flags_oracle.COUNTS.items():
            wanted = OPERATIONS[operation](
                *(plain,) * count, "e4m3 rounding=stochastic", flags=True
            )
            for pick, part in zip((value_and_flags, flags_alone), wanted, strict=True):
                how = {"flags": True}
                given = (operation, *(x,) * count, "e4m3 rounding=stochastic")
                result.append(Call(pick, given, how, part))
    front_end.check(result)


def test_out_is_written_after_the_flags(front_end: FrontEnd) -> None:
    x = np.float32([1.0, 3.0, 0.0])
    ones = np.ones(3, np.float32)
    out = front_end.array(x.copy())
    raised = front_end(flags_alone, "div", front_end.array(ones), out, "e4m3", flags=True, out=out)
    assert raised.tolist() == [0, NX, DZ]
    assert front_end.numpy(out).tolist() == [1.0, 0.34375, math.inf]


def test_many_elements_on_several_threads() -> None:
    x = np.random.default_rng(1).standard_normal(300_001).astype(np.float32)
    values, flags = cpd.mul(x, x, "e4m3 stochastic", flags=True, seed=3)
    assert values.tobytes() == cpd.mul(x, x, "e4m3 stochastic", seed=3).tobytes()
    exact = x.astype(np.float64) * x
    assert ((flags & NX != 0) == (values != exact)).all()
    tiny = (np.abs(values) < 2.0**-6) & (flags & NX != 0)
    assert ((flags & UF != 0) == tiny)[np.abs(values) < 2.0**-7].all()


def test_errors(front_end: FrontEnd) -> None:
    x = np.float32([1.0])
    for operation, count in flags_oracle.COUNTS.items():
        given = (*(x,) * count, "e4m3")
        front_end.refuse(
            TypeError, "flags must be a bool, got int", OPERATIONS[operation], *given, flags=1
        )
        front_end.refuse(
            ValueError,
            "tininess must be after or before, got 'between'",
            OPERATIONS[operation],
            *given,
            flags=True,
            tininess="between",
        )
    front_end.refuse(
        ValueError, "flags are for formats without scales", cpd.cast, x, "mxfp8", flags=True
    )
    front_end.refuse(TypeError, "y must have x's type", cpd.div, x, x.astype(np.float64), "e4m3")
    x, y = np.ones((3, 4), "f4"), np.ones((3, 3), "f4")
    message = r"x and y must broadcast together.*\(3, 4\) and \(3, 3\)"
    front_end.refuse(ValueError, message, cpd.div, x, y, "e4m3", flags=True)


def test_flushing_and_threads_change_nothing() -> None:
    """Flushing of subnormals (FTZ, DAZ) and eight threads change no result and no flag.

    The operands and the results are subnormal.
    """
    torch = pytest.importorskip("torch")
    x, y = np.float32([2**-140, 1e-40, 3, 2**-149]), np.float32([3, 2**-20, 7, 0.5])
    v, w = np.float64([5e-324, 1, 2**-1050, 3]), np.float64([3, 2**-1060, 2**30, 1e-310])

    def results() -> list[bytes]:
        made = (
            *(*cpd.div(x, y, "e8m7", flags=True), *cpd.mul(x, y, "e8m7", flags=True)),
            *(cpd.sqrt(x, "e8m10"), cpd.div(v, w, "e11m40"), cpd.mul(v, w, "fp64")),
            *(cpd.gemm(x[None], y[:, None], acc) for acc in ("fixed<200,160>", "fixed<60,59>")),
        )
        return [one.tobytes() for one in made]

    right = results()
    torch.set_flush_denormal(True)
    try:
        assert results() == right
    finally:
        torch.set_flush_denormal(False)
    with ThreadPoolExecutor(8) as pool:
        assert all(made == right for made in pool.map(lambda _: results(), range(200)))
