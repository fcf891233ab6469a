# SPDX-License-Identifier: Apache-2.0
"""Compares cpd.add, cpd.mul and cpd.fma on every front end to exact rational arithmetic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
from arrays import STRIDED, boundary_bits, from_bits, layout, spec_of
from by_keywords import by_keywords
from front_ends import Call, FrontEnd, every_front_end

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e6m9", "e8m0", "e4m3fn", "e4m3fnuz", "bf16", "fp16", "tf32", "fp32"),
    *("binary8p4se", "e8m11", "e8m12", "e7m22", "e5m2:nosub", "e4m3fn:unsigned", "e2m1"),
]
OPERATIONS = {"add": (cpd.add, oracle.add, 2), "mul": (cpd.mul, oracle.mul, 2)}
OPERATIONS["fma"] = (cpd.fma, oracle.fma, 3)


def operands(spec: oracle.Spec, n: int, seed: int) -> list[list[int]]:
    """Returns operands in binary32 whose results are often near a rounding tie, or cancel."""
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


def calls(
    f: cpd.Format, rows: list[list[int]], o: Sequence[oracle.Options], how: dict[str, Any]
) -> list[Call]:
    """Returns one call each of cpd.add, cpd.mul and cpd.fma, with the exact results to expect.

    `rows` has the operands as binary32 bit patterns. `o` has the oracle's options for each element,
    such as the rounding. `how` has the keyword arguments of all calls.
    """
    result = []
    for operation, exact, n in OPERATIONS.values():
        columns = zip(*rows[:n], o, strict=True)
        expected = [exact(spec_of(f), *column) for column in columns]
        result.append(Call(operation, (*(from_bits(x) for x in rows[:n]), f), how, expected))
    return result


@cache
def rounded_once(name: str, rounding: str) -> list[Call]:
    f = cpd.Format(name)
    rows = operands(spec_of(f), 150, 3)
    result = []
    for overflow in oracle.POLICIES:
        o = [oracle.Options(rounding, overflow)] * 150
        result += calls(f, rows, o, {"rounding": rounding, "overflow": overflow})
    return result


@pytest.mark.few("", 2)
@every_front_end(
    {name: [(name, rounding) for rounding in oracle.DETERMINISTIC_MODES] for name in NAMES},
    compiled=("e4m3", "e8m12", "e4m3fn:unsigned"),
)
def test_one_operation_one_rounding(front_end: FrontEnd, cases: list[Any]) -> None:
    every = [call for case in cases for call in rounded_once(*case)]
    front_end.check(every if front_end.few is None else every[::8])


@cache
def stochastic(name: str, random_bits: int, variant: str) -> list[Call]:
    f = cpd.Format(name)
    rows = operands(spec_of(f), 200, 5)
    r = cpd.random_integers(200, seed=4, stream=9, random_bits=random_bits)
    o = [oracle.Options("stochastic", "ieee", variant, random_bits, int(k)) for k in r]
    how = {"rounding": "stochastic", "random_bits": random_bits, "variant": variant}
    drawn = calls(f, rows, o, how | {"seed": 4, "stream": 9})
    return drawn + calls(f, rows, o, how | {"random": r})


@every_front_end(
    {
        f"{name}-{bits}": [(name, bits)]
        for name in ("e4m3", "e5m2", "bf16", "e8m22", "e3m0", "e4m3fnuz", "binary8p4se", "e8m0")
        for bits in (1, 8, 16, 24)
    },
    compiled=("e4m3-8", "e8m22-24"),
)
def test_stochastic(front_end: FrontEnd, cases: list[Any]) -> None:
    """Stochastic rounding agrees with the oracle, with the random integers that a seed and stream
    generate and with the integers that `random=` gives."""
    front_end.check([call for case in cases for v in "ABC" for call in stochastic(*case, v)])


def test_values_that_binary32_would_get_wrong(front_end: FrontEnd) -> None:
    p, q, one, wide, tiny = (
        np.array([x], np.float32)
        for x in (
            *(float.fromhex("0x1.a30fecp+0"), float.fromhex("0x1.4c52bp-1")),
            *(1.0, 1.0625, 2.0**-30),
        )
    )
    wanted = np.array([1.125], np.float32)
    front_end.check(
        [
            Call(cpd.mul, (p, q, "e4m3"), {}, wanted),
            Call(cpd.fma, (wide, one, tiny, cpd.Format(exp=8, man=3)), {}, wanted),
        ]
    )


def test_operands_broadcast(front_end: FrontEnd) -> None:
    x = np.float32([[1.0], [2.0]])
    y = np.float32([1.0, 10.0, 100.0])
    z = np.array(1.0, np.float32)
    total = np.float32([[2, 11, 101], [3, 21, 201]])
    front_end.check(
        [
            Call(cpd.mul, (x, y, "fp32"), {}, x * y),
            Call(cpd.fma, (x, y, z, "fp32"), {}, total),
            Call(cpd.add, (x, y, "e4m3"), {}, cpd.cast(x + y, "e4m3")),
        ]
    )
    narrow = [
        Call(cpd.add, (x.astype(dtype), y.astype(dtype), "e4m3"), {})
        for dtype in (np.float16, ml_dtypes.bfloat16)
    ]
    for call, got in zip(narrow, front_end.run(narrow), strict=True):
        assert got.dtype == call.args[0].dtype


@pytest.mark.parametrize("operation", OPERATIONS)
def test_out_of_the_broadcast_shape(front_end: FrontEnd, operation: str) -> None:
    run, _, n = OPERATIONS[operation]
    shapes = ((9, 1, 5), (7, 1), (9, 7, 5))[:n]
    some = np.random.default_rng(3).standard_normal
    given = [some(shape).astype(np.float32) for shape in shapes]
    result = []
    for f in ("e4m3", "fp16", "fp32")[: front_end.few]:
        for mode in oracle.MODES[::-1][: front_end.few]:
            wanted = by_keywords(run, *given, f, mode, seed=3)
            assert wanted.shape == np.broadcast_shapes(*shapes)
            result.append(Call(run, (*given, f, mode), {"seed": 3}, wanted))
    front_end.check(result)
    out = front_end.array(np.empty(wanted.shape, np.float32))
    front_end(run, *given, f, mode, seed=3, out=out)
    assert front_end.numpy(out).tobytes() == wanted.tobytes()


def test_arithmetic_into_an_operand(front_end: FrontEnd) -> None:
    x, y = (np.random.default_rng(s).standard_normal((5, 7)).astype(np.float32) for s in (1, 2))
    wanted = cpd.mul(x, y, "e4m3")
    out = front_end.array(y)
    front_end(cpd.mul, x, out, "e4m3", out=out)
    assert front_end.numpy(out).tobytes() == wanted.tobytes()


def test_layouts_have_the_same_bits(front_end: FrontEnd) -> None:
    result = []
    for name in list(STRIDED)[: front_end.few]:
        x = layout(name)
        plain = np.array(x, order="C")
        for operation, _, n in OPERATIONS.values():
            wanted = operation(*(plain,) * n, "e4m3 rounding=stochastic")
            result.append(Call(operation, (*(x,) * n, "e4m3 rounding=stochastic"), {}, wanted))
    front_end.check(result)
