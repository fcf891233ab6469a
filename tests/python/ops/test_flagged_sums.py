# SPDX-License-Identifier: Apache-2.0
"""Tests the flags of sums and products on every front end.

An independent oracle gives the expected flags. For sums in integers, exact rationals give the
expected flags.
"""

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
from arrays import fixed_of, to_bits
from cpd import _core
from fixed_cases import TO_UNITS, accumulated, fixed, floats
from flags_oracle import is_signalling
from front_ends import Call, FrontEnd, every_front_end

NX, UF, OF, NV = 1, 2, 4, 16
SCHEMES = ("sequential", "kahan", "chunked", "pairwise", "fma", "block_fma")
FORMATS = ("e4m3", "e5m2", "e4m3fn", "e2m1", "binary8p4se", "e3m2:nosub", "fp16", "e6m9")
LINES = 60


def values_alone(operation: Any, *args: Any, **how: Any) -> Any:
    return operation(*args, flags=True, **how)[0]


def flags_alone(operation: Any, *args: Any, **how: Any) -> Any:
    return operation(*args, flags=True, **how)[1]


def calls_of(operation: Any, *args: Any, flags: Any, values: Any, **how: Any) -> list[Call]:
    """Returns two test cases for a call: one has the expected flags, one the values."""
    return [
        Call(flags_alone, (operation, *args), how, flags),
        Call(values_alone, (operation, *args), how, values),
    ]


def codes_of(
    acc: cpd.Accumulator, f: cpd.Format, generator: np.random.Generator, *shape: int
) -> tuple[Any, Any]:
    """Returns random codes of a format and their values; every other row has only small numbers.

    If the accumulator saturates sums, zeros replace the infinities and NaNs among the codes.
    test_flags.py tests the flags that infinities raise in saturating sums.
    """
    codes = generator.integers(0, 1 << f.bits, shape, np.uint32)
    sign = np.uint32(1 << (f.bits - 1))
    codes[::2] &= sign | sign >> 1 | (sign >> 2) - 1
    if acc.overflow == "saturate":
        codes[~np.isfinite(values_by_code(f)[codes])] = 0
    return codes, values_by_code(f)[codes]


@cache
def values_by_code(f: cpd.Format) -> npt.NDArray[np.float32]:
    spec = oracle.Spec(f.exp, f.man, f.bias, f.encoding, f.signed, f.subnormals)
    loud = 0x7F800001  # a signaling NaN
    made = [
        loud if is_signalling(spec, code) else oracle.bits_from_value(spec.decode(code))
        for code in range(1 << f.bits)
    ]
    return np.array(made, np.uint32).view(np.float32)


def holds(name: str, other: object) -> bool:
    """Returns True if the first format has the exponent and mantissa bits of the second.

    Both formats must be IEEE-like.
    """
    wide, narrow = cpd.Format(name), cpd.Format(str(other))
    return wide.exp >= narrow.exp and wide.man >= narrow.man


def accumulator_of(name: str, scheme: str, generator: random.Random) -> cpd.Accumulator:
    options: dict[str, Any] = {}
    if scheme == "block_fma":
        unit = cpd.Accumulator(
            a=name,
            b=name,
            block=generator.choice((1, 2, 4)),
            fraction_bits=generator.choice((3, 7, 13, 25)),
            addend="aligned" if generator.choice((True, False)) else "separate",
            min_exponent=generator.choice((-133, -20, 2)),
            sum=generator.choice(("fp32", "e8m13", "fp16", "e5m2")),
            sum_rounding=generator.choice(("toward_zero", "nearest_even")),
        )
        promote = unit.block * generator.choice((0, 2))
        options["unit"] = unit.replace(promote=promote)
    elif scheme == "chunked":
        options |= {"chunk": generator.choice((1, 2, 3)), "inner": generator.choice(FORMATS)}
    if scheme not in ("fma", "block_fma"):
        options["product"] = generator.choice((None, "exact", "e5m2"))
    rounding = generator.choice(oracle.MODES)
    unit = options.pop("unit", None)
    if unit is not None and holds(name, unit.sum):
        rounding = None  # the default: no sum is rounded again
    if rounding == "stochastic":
        options |= {"random_bits": generator.choice((1, 8, 24)), "variant": generator.choice("ABC")}
    overflow = "ieee" if scheme == "block_fma" else generator.choice(oracle.POLICIES)
    keys = {"rounding": rounding, "overflow": overflow, **options}
    if unit is not None:
        return unit.replace(format=name, **keys)
    return cpd.Accumulator(name, scheme=scheme, **keys)


@cache
def products(name: str, scheme: str) -> list[Call]:
    generator = random.Random(f"{name} {scheme}")
    numbers = np.random.default_rng(generator.getrandbits(32))
    f = cpd.Format(name)
    calls = []
    for length in (1, 3, 6):
        acc = accumulator_of(name, scheme, generator)
        tininess = generator.choice(("after", "before"))
        rule = _core.SumRule(acc._held, [f._held] * 3, length, tininess)
        (a, x), (b, y) = (codes_of(acc, f, numbers, LINES, length) for _ in range(2))
        c, z = codes_of(acc, f, numbers, LINES)
        draws = rule.draws()
        given_integers = numbers.integers(0, 1 << acc.random_bits, (LINES, draws), np.uint32)
        integers = given_integers if draws else None
        flags = _core.oracle_sums(rule, LINES, a, b, c, random=integers)[1]
        how: dict[str, Any] = {"tininess": tininess}
        if draws:
            how["random"] = given_integers.reshape(LINES, 1, 1, draws)
        operands = x.reshape(LINES, 1, length), y.reshape(LINES, length, 1), acc
        start = z.reshape(LINES, 1, 1)
        values = cpd.gemm(*operands, start, **{k: v for k, v in how.items() if k == "random"})
        shaped = np.array(flags).reshape(LINES, 1, 1)
        calls += calls_of(cpd.gemm, *operands, start, flags=shaped, values=values, **how)
    return calls


@every_front_end(
    {f"{name} {scheme}": [(name, scheme)] for scheme in SCHEMES for name in FORMATS},
    compiled=("e4m3 kahan", "e5m2 block_fma"),
)
def test_products(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for call in products(*case)]
    if front_end.name == "cuda":
        call = calls[0]
        front_end.refuse(
            ValueError,
            "flags are for tensors on the CPU",
            call.operation,
            *call.args,
            **call.options,
        )
        return
    front_end.check(calls if front_end.few is None else calls[:2])


@cache
def sums(name: str, scheme: str) -> list[Call]:
    generator = random.Random(f"{name} {scheme}")
    numbers = np.random.default_rng(generator.getrandbits(32))
    f = cpd.Format(name)
    calls = []
    for length in (1, 2, 5, 8):
        acc = accumulator_of("e4m3" if name == "fp16" else name, scheme, generator)
        rule = _core.SumRule(acc._held, [f._held], length, "after")
        a, x = codes_of(acc, f, numbers, LINES, length)
        draws = rule.draws()
        given_integers = numbers.integers(0, 1 << acc.random_bits, (LINES, draws), np.uint32)
        flags = _core.oracle_sums(rule, LINES, a, random=given_integers if draws else None)[1]
        how: dict[str, Any] = {"random": given_integers} if draws else {}
        values = cpd.sum(x, acc, 1, **how)
        calls += calls_of(cpd.sum, x, acc, 1, flags=np.array(flags), values=values, **how)
    return calls


@every_front_end(
    {f"{name} {scheme}": [(name, scheme)] for scheme in SCHEMES[:4] for name in FORMATS},
    compiled=("e4m3 kahan",),
)
def test_sums(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for call in sums(*case)]
    if front_end.name == "cuda":
        call = calls[0]
        front_end.refuse(
            ValueError,
            "flags are for tensors on the CPU",
            call.operation,
            *call.args,
            **call.options,
        )
        return
    front_end.check(calls if front_end.few is None else calls[:2])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-8, 8, width=16) | st.floats(width=32), st.floats(width=16)),
        min_size=1,
        max_size=5,
    ),
    st.floats(width=32),
    st.integers(2, 1024) | st.integers(2, 40),
    st.integers(-1024, 1024) | st.integers(0, 30),
    st.sampled_from(oracle.POLICIES),
    st.sampled_from(TO_UNITS),
    st.sampled_from(("e4m3", "bf16", "e2m1", "e4m3fn", "int5", "int5:full")),
    st.sampled_from(("after", "before")),
)
def test_integers(
    terms: list[tuple[float, float]],
    start: float,
    width: int,
    fraction: int,
    overflow: str,
    to: str,
    name: str,
    tininess: str,
) -> None:
    point = fixed(width, fraction, rounding=to)
    acc = accumulated(name, point, to, overflow)
    a, b = floats([[x for x, _ in terms]]), floats([[y] for _, y in terms])
    c = floats([[start]])
    value, flags = cpd.gemm(a, b, acc, c, flags=True, tininess=tininess)
    of = fixed_of(acc)
    expected = fixed_oracle.dot(to_bits(a), to_bits(b), to_bits(c)[0], of, tininess)
    assert (to_bits(value)[0], flags.item()) == expected
    value, flags = cpd.sum(a, acc, 1, flags=True, tininess=tininess)
    expected = fixed_oracle.total(of, map(float, a[0]), tininess)
    assert (to_bits(value)[0], flags.item()) == expected


def test_generated_integers_are_the_values_own() -> None:
    """With stochastic rounding by a seed, `flags=True` does not change the values of a product."""
    generator = np.random.default_rng(5)
    x = generator.integers(0, 64, (3, 7)).astype(np.float32) / 8
    y = generator.integers(0, 64, (7, 5)).astype(np.float32) / 8
    for text, most in (
        ("e3m2 kahan", OF | NX),
        ("e3m2 chunked chunk=2", OF | NX),
        ("e3m2 pairwise", OF | NX),
        ("e5m2 fma", NX),
    ):
        acc = cpd.Accumulator(f"{text} rounding=stochastic random_bits=2")
        seen = set()
        for seed in range(20):
            values, flags = cpd.gemm(x, y, acc, flags=True, seed=seed)
            assert values.tobytes() == cpd.gemm(x, y, acc, seed=seed).tobytes()
            seen |= set(flags.reshape(-1).tolist())
        assert {NX, most} <= seen


def test_layouts_batches_and_threads() -> None:
    generator = np.random.default_rng(6)
    x: Any = generator.standard_normal((4, 1, 6, 9)).astype(np.float32)
    y: Any = generator.standard_normal((3, 9, 8)).astype(np.float16)
    c = generator.standard_normal((8,)).astype(np.float32)
    values, flags = cpd.gemm(x, y, "e4m3 kahan", c, flags=True)
    assert values.shape == flags.shape == (4, 3, 6, 8)
    for i in range(4):
        for j in range(3):
            one = cpd.gemm(x[i, 0], y[j], "e4m3 kahan", np.broadcast_to(c, (6, 8)), flags=True)
            np.testing.assert_array_equal(values[i, j], one[0])
            np.testing.assert_array_equal(flags[i, j], one[1])
    many = generator.standard_normal((300, 40, 5)).astype(np.float64)
    total, raised = cpd.sum(many, "e4m3 pairwise", 1, flags=True)
    for i in (0, 150, 299):
        one = cpd.sum(many[i], "e4m3 pairwise", 0, flags=True)
        np.testing.assert_array_equal(total[i], one[0])
        np.testing.assert_array_equal(raised[i], one[1])
    empty = cpd.gemm(np.empty((0, 3), np.float32), np.empty((3, 2), np.float32), "e4m3", flags=True)
    assert empty[1].shape == (0, 2)
    none = cpd.gemm(np.empty((2, 0), np.float32), np.empty((0, 2), np.float32), "e4m3", flags=True)
    assert none[1].tolist() == [[0, 0], [0, 0]]
    assert cpd.sum(np.empty((0, 2), np.float32), "e4m3", 0, flags=True)[1].tolist() == [0, 0]


def test_named_exceptions() -> None:
    ones = np.ones((1, 40), np.float32)
    assert cpd.sum(ones[0], "e4m3", flags=True)[1] == NX  # 16 + 1 stays at 16
    assert cpd.sum(ones[0], "e4m3 pairwise", flags=True)[1] == 0
    big = np.full((1, 2), 240, np.float32)
    assert cpd.gemm(big, big.T, "e4m3", flags=True)[1] == OF | NX
    assert cpd.gemm(ones[:, :3] * 100, ones[:, :3].T, "fixed<8,0>", flags=True)[1] == OF | NX
    assert cpd.gemm(ones * 0.3, ones.T, "int32", flags=True)[1] == NX
    infinite = floats([[np.inf, -np.inf]])
    assert cpd.gemm(infinite, ones[:, :2].T, "e4m3", flags=True)[1] == NV
    assert cpd.gemm(infinite, ones[:, :2].T, "int32", flags=True)[1] == NV
    assert cpd.gemm(infinite * np.nan, ones[:, :2].T, "int32", flags=True)[1] == 0
    tiny = floats([[2.0**-8]])
    assert cpd.gemm(tiny, tiny, "e4m3", flags=True)[1] == NX | UF
    units = cpd.cast(floats([[1, 2.0**-14, 2.0**-14]]), "fp16")
    assert cpd.gemm(units, units.T, "v100", flags=True)[1] == NX  # cut


def test_torch_values_have_derivatives() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 4, requires_grad=True)
    y, flags = cpd.gemm(x, torch.ones(4, 2), "e4m3", flags=True)
    assert flags.dtype == torch.uint8
    assert not flags.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [[2.0] * 4] * 3
    y, flags = torch.vmap(lambda x: cpd.sum(x, "e4m3", flags=True))(torch.full((5, 40), 1.0))
    assert flags.tolist() == [NX] * 5


def test_errors(front_end: FrontEnd) -> None:
    x = np.ones((2, 2), np.float32)
    for operation, *args in ((cpd.gemm, x, x, "e4m3"), (cpd.sum, x, "e4m3")):
        front_end.refuse(TypeError, "flags must be a bool", operation, *args, flags=1)
        front_end.refuse(
            ValueError, "tininess must be", operation, *args, flags=True, tininess="never"
        )
    front_end.refuse(
        ValueError, "a BLAS reports no flags", cpd.gemm, x, x, "fp32", flags=True, blas=True
    )
    unit = "rtx-blackwell-mxfp8"
    message = "flags are for matrix units that align"
    front_end.refuse(ValueError, message, cpd.gemm, x, x, unit, flags=True)
