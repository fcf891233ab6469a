# SPDX-License-Identifier: Apache-2.0
"""Tests formats wider than binary32, up to binary64, in float64 arrays and tensors.

Only element-wise operations support such formats.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import cpd
import flags_oracle
import oracle
from arrays import spec_of
from flag_cases import OPERATIONS, flags_alone, value_and_flags, values_of
from front_ends import Call, FrontEnd, every_front_end
from rationals import Fraction

NAMES = [
    *("fp64", "e9m30", "e11m0", "e11m3", "e5m52", "e8m24", "e9m0", "e10m40:nosub", "e1m30"),
    *("e9m30:bias=-20", "e9m30:unsigned", "e11m20:nosub", "e9m23:bias=700", "e11m51"),
]


def double(value: oracle.Value) -> float:
    """Returns the binary64 number that equals an exact value."""
    if isinstance(value, oracle.NotANumber):
        return math.nan
    if isinstance(value, oracle.Infinity):
        return -math.inf if value.negative else math.inf
    x = float(value.value)
    assert Fraction(x) == value.value
    return math.copysign(x, -1.0) if value.negative else x


def nearest(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf


def operands(spec: oracle.Spec, n: int, seed: int) -> list[Any]:
    """Returns operands: values of the format and their neighbors, binary64's extremes, and more.

    Some operands are products or quotients of two of the values.
    """
    generator = random.Random(seed)
    edges = [0.0, math.inf, math.nan, 2.0**-1074, 2.0**-1022, math.nextafter(math.inf, 0), 1.0]

    def one() -> float:
        ends = [0, 1, 2, spec.max_code - 1, spec.max_code, 1 << spec.man, (1 << spec.man) - 1]
        code = generator.choice([*ends, *(generator.randrange(spec.max_code + 1),) * 7])
        low, high = spec.magnitude(code), spec.magnitude(code + 1)
        part = generator.choice([Fraction(0), Fraction(1, 2), Fraction(generator.random())])
        x = nearest(low + (high - low) * part)
        x = generator.choice([x, math.nextafter(x, math.inf), math.nextafter(x, 0)])
        x = generator.choice([x, x, x, generator.choice(edges)])
        return generator.choice([x, -x])

    x, y, z = (np.array([one() for _ in range(n)]) for _ in range(3))
    with np.errstate(all="ignore"):
        x[::4] = y[::4] * z[::4]
        x[1::4] = z[1::4] * z[1::4]
        z[2::4] = -(x[2::4] * y[2::4])
        y[3::4] = z[3::4] - x[3::4]
    return [x, y, z]


@cache
def rounded_once(name: str, rounding: str) -> list[Call]:
    f = cpd.Format(name)
    n = 64
    made = []
    for overflow, tininess in zip(oracle.POLICIES, ("after", "before"), strict=True):
        how: dict[str, Any] = {"rounding": rounding, "overflow": overflow}
        rows = operands(spec_of(f), n, 3)
        values = [values_of(row) for row in rows]
        r = np.zeros(n, np.int64)
        if rounding == "stochastic":
            how |= {"random_bits": 20, "variant": "C", "seed": 3, "stream": 8}
            r = cpd.random_integers(n, seed=3, stream=8, random_bits=20)
        o = [oracle.Options(rounding, overflow, "C", 20, int(k)) for k in r]
        for operation, count in flags_oracle.COUNTS.items():
            signals = np.any([flags_oracle.signalling(row) for row in rows[:count]], axis=0)
            columns = zip(zip(*values[:count], strict=True), o, signals, strict=True)
            both = [
                flags_oracle.result(operation, x, spec_of(f), i, tininess, s) for x, i, s in columns
            ]
            wanted = np.array([double(value) for value, _ in both])
            raised = np.array([flags for _, flags in both], np.uint8)
            given, more = (*rows[:count], f), how | {"flags": True, "tininess": tininess}
            made.append(Call(OPERATIONS[operation], given, how, wanted))
            made.append(Call(value_and_flags, (operation, *given), more, wanted))
            made.append(Call(flags_alone, (operation, *given), more, raised))
    return made


@pytest.mark.few("", 2)
@every_front_end(
    {name: [(name, rounding) for rounding in oracle.MODES] for name in NAMES},
    compiled=("fp64", "e9m30:unsigned"),
)
def test_one_operation_one_rounding(front_end: FrontEnd, cases: list[Any]) -> None:
    every = [call for case in cases for call in rounded_once(*case)]
    front_end.check(every if front_end.few is None else every[::17])


def test_binary64_is_numpys() -> None:
    generator = np.random.default_rng(5)
    patterns = generator.integers(0, 2**64, (2, 100_000), np.uint64)
    near = generator.standard_normal((2, 100_000)) * 2.0 ** generator.integers(-40, 40, 100_000)
    for x, y in (patterns.view(np.float64), near):
        with np.errstate(all="ignore"):
            theirs = {
                "cast": x,
                "add": x + y,
                "mul": x * y,
                "div": x / y,
                "sqrt": np.sqrt(x),
            }
        for name, expected in theirs.items():
            got = OPERATIONS[name](*(x, y)[: flags_oracle.COUNTS[name]], "fp64")
            numbers = ~np.isnan(expected)
            assert (np.isnan(got) == ~numbers).all()
            same = got.view(np.uint64) == expected.view(np.uint64)
            assert same[numbers].all(), name


def test_figures() -> None:
    f = cpd.Format("fp64")
    info = np.finfo(np.float64)
    assert (f.exp, f.man, f.bias, f.bits) == (11, 52, 1023, 64)
    assert (f.max, f.min_normal, f.epsilon) == (info.max, info.tiny, info.eps)
    assert f.min_subnormal == info.smallest_subnormal
    assert f.num_values == 2 * (2047 * 2**52 - 1) + 1
    for name in NAMES:
        f = cpd.Format(name)
        spec = spec_of(f)
        assert cpd.Format(str(f)) == f
        assert Fraction(f.max) == spec.max
        least = spec.magnitude(1 if f.subnormals else 1 << f.man)
        assert Fraction(f.min_subnormal or 0) == least
        assert (
            cpd.Format((f.exp, f.man), bias=f.bias, signed=f.signed, subnormals=f.subnormals) == f
        )
    for same in ("e11m52", "float64", "double", np.float64, (11, 52), "fp64:bias=1023"):
        assert cpd.Format(same) == cpd.Format("fp64")


@pytest.mark.parametrize("name", ["e12m3", "e9m53", "e9m3fn", "e4m24p3109", "e11m52:bias=1024"])
def test_there_are_no_wider_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r"11|encoding ieee|binary64"):
        cpd.Format(name)


def test_other_element_types_refuse_them(front_end: FrontEnd) -> None:
    for dtype in (np.float32, np.float16):
        x = np.ones(3, dtype)
        for operation, count in flags_oracle.COUNTS.items():
            front_end.refuse(
                ValueError,
                "give dtype=float64" if operation == "cast" else "of float64 tensors",
                OPERATIONS[operation],
                *(x,) * count,
                "e9m30",
            )


REFUSED: dict[str, Callable[[Any], Any]] = {
    "accumulator": lambda x: cpd.Accumulator("e9m30"),
    "product": lambda x: cpd.Accumulator("fp32", product="e9m30"),
    "inner": lambda x: cpd.Accumulator("fp32 chunked", inner="e9m30"),
    "sum": lambda x: cpd.sum(x, "fp64"),
    "gemm": lambda x: cpd.gemm(x.astype("f4"), x.astype("f4"), "fp64"),
    "encode": lambda x: cpd.encode(x, "e9m30"),
    "decode": lambda x: cpd.decode(np.zeros(8, np.uint8), "fp64", 1, dtype=np.float64),
    "unit": lambda x: cpd.Accumulator(a="fp64", b="fp64"),
    "unit's sum": lambda x: cpd.Accumulator(a="fp16", b="fp16", sum="e9m30"),
    "scaled": lambda x: cpd.Scaled("e9m30", block=16),
    "scale": lambda x: cpd.Scaled("e2m1", block=16, scale="e9m3"),
    "reduction": lambda x: cpd.Reduce("fp64"),
    "reduction's result": lambda x: cpd.Reduce("e4m3", result="fp64"),
    "recipe": lambda x: cpd.Recipe(sums="e9m30"),
    "values": lambda x: cpd.Format("e9m3").values(),
    "wire": lambda x: cpd.Reduce("fp64"),
}


@pytest.mark.parametrize("use", REFUSED)
def test_everything_else_refuses_them(use: str) -> None:
    with pytest.raises(ValueError, match=r"float64 tensors|fp64|e9m30"):
        REFUSED[use](np.ones((2, 2)))
