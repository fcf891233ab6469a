# SPDX-License-Identifier: Apache-2.0
"""Compares cpd.cast on every front end to exact rational arithmetic."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
from arrays import LAYOUTS, STRIDED, boundary_bits, from_bits, layout, spec_of
from by_keywords import by_keywords
from front_ends import Call, FrontEnd, every_front_end

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e6m9", "e1m3", "e8m0", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1"),
    *("e3m2", "bf16", "fp16", "tf32", "fp32", "binary8p4se", "binary8p3ue", "binary8p1uf"),
    *("binary8p3sf", "binary6p3uf"),
    *("e5m2:nosub", "e4m3fn:unsigned", "e2m3:unsigned:nosub", "e4m0", "e7m22", "e8m3:nosub"),
]
DETERMINISTIC = [(r, o) for r in oracle.DETERMINISTIC_MODES for o in oracle.POLICIES]


@cache
def rounded(name: str, rounding: str, overflow: str) -> Call:
    f = cpd.Format(name)
    spec = spec_of(f)
    bits = boundary_bits(spec)
    o = oracle.Options(rounding, overflow)
    expected = [oracle.cast(spec, b, o) for b in bits]
    return Call(cpd.cast, (from_bits(bits), f, rounding, overflow), {}, expected)


@pytest.mark.few("", 2)
@every_front_end(
    {name: [(name, *how) for how in DETERMINISTIC] for name in NAMES},
    compiled=("e4m3", "e5m2", "e8m0", "e2m1", "e5m2:nosub", "fp32"),
)
def test_every_mode_and_policy(front_end: FrontEnd, cases: list[Any]) -> None:
    front_end.check([rounded(*case) for case in (cases if front_end.few is None else cases[::5])])


@cache
def drawing(name: str, variant: str, random_bits: int) -> Call:
    f = cpd.Format(name)
    spec = spec_of(f)
    inputs = boundary_bits(spec, codes=6, noise=10)
    bits = [b for b in inputs for _ in range(1 << random_bits)]
    integers = np.array([r for _ in inputs for r in range(1 << random_bits)])
    options = {"random_bits": random_bits, "variant": variant}
    expected = [
        oracle.cast(spec, b, oracle.Options("stochastic", "ieee", variant, random_bits, int(r)))
        for b, r in zip(bits, integers, strict=True)
    ]
    options |= {"rounding": "stochastic", "random": integers}
    return Call(cpd.cast, (from_bits(bits), f), options, expected)


@pytest.mark.few("", 2)
@every_front_end(
    {
        f"{name}-{variant}": [(name, variant)]
        for name in ("e4m3", "e5m2", "e3m0", "e4m3fnuz", "e8m0", "bf16", "e5m2:nosub")
        for variant in "ABC"
    },
    compiled=("e4m3-A", "e5m2-B", "e8m0-C"),
)
def test_stochastic_with_every_random_integer(front_end: FrontEnd, cases: list[Any]) -> None:
    front_end.check([drawing(*case, random_bits) for case in cases for random_bits in (1, 3, 5)])


@pytest.mark.parametrize(
    ("x", "random_bits", "up"),
    [(259, 5, (1, 2, 2)), (277, 3, (2, 3, 3)), (311, 3, (6, 7, 7))],
)
def test_published_counts(
    front_end: FrontEnd, x: int, random_bits: int, up: tuple[int, int, int]
) -> None:
    integers = np.arange(1 << random_bits)
    values = np.full(integers.shape, x, np.float32)
    options = {"rounding": "stochastic", "random_bits": random_bits, "random": integers}
    calls = [Call(cpd.cast, (values, "e5m2"), options | {"variant": v}) for v in "ABC"]
    for y, expected in zip(front_end.run(calls), up, strict=True):
        assert int((y > x).sum()) == expected


def test_seeded_bits_are_the_documented_integers(front_end: FrontEnd) -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    ways: list[dict[str, Any]] = [{"seed": 8}, {"seed": 9}]
    for random_bits in (1, 8, 11, 24):
        options: dict[str, Any] = {"seed": 7, "stream": 3, "random_bits": random_bits}
        r = cpd.random_integers(x.shape, **options)
        assert r.max() < 1 << random_bits
        ways += [options, {"random_bits": random_bits, "random": r.astype(np.int64)}]
    results = front_end.run([Call(cpd.cast, (x, "e4m3", "stochastic"), how) for how in ways])
    for seeded, given in zip(results[2::2], results[3::2], strict=True):
        np.testing.assert_array_equal(seeded, given)
    assert (results[0] != results[1]).any()


def test_given_integers_of_every_type(front_end: FrontEnd) -> None:
    x = from_bits(boundary_bits(oracle.Spec(4, 3)))
    pairs = [(bits, v) for bits in (1, 8, 9, 16, 17, 24) for v in "ABC"]
    calls = []
    for bits, variant in pairs if front_end.few is None else pairs[::7]:
        how = {"rounding": "stochastic", "random_bits": bits, "variant": variant}
        wanted = by_keywords(cpd.cast, x, "e4m3", **how, seed=9)
        integers = cpd.random_integers(x.shape, seed=9, random_bits=bits)
        for kind in (np.int32, np.int64, np.uint32):
            more = how | {"random": integers.astype(kind)}
            calls.append(Call(cpd.cast, (x, "e4m3"), more, wanted))
    front_end.check(calls)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e8m0", "fp32", "e3m0", "bf16"])
def test_float64_is_rounded_from_its_own_bits(front_end: FrontEnd, name: str) -> None:
    f = cpd.Format(name)
    spec = spec_of(f)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        x = from_bits(boundary_bits(spec)).astype(np.float64)
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), [1e-320, 1e300]])
    expected = from_bits(oracle.cast_double(spec, float(v)) for v in x)
    front_end.check([Call(cpd.cast, (x, f), {}, expected.astype(np.float64))])


def test_float16_in_float16_out(front_end: FrontEnd) -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    wanted = cpd.cast(x.astype(np.float32), "e4m3").astype(np.float16)
    wanted.view(np.uint16)[np.isnan(wanted)] = 0x7E00
    front_end.check([Call(cpd.cast, (x, "e4m3"), {}, wanted)])


TYPES = ("float32", "float64", "float16", "bfloat16")


@every_front_end(
    {dtype: [(dtype, mode) for mode in oracle.MODES] for dtype in TYPES},
    compiled=("float64", "bfloat16"),
)
def test_types_of_storage(front_end: FrontEnd, cases: list[Any]) -> None:
    for dtype, mode in cases[::-1][: front_end.few]:
        kind = np.dtype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
        with np.errstate(all="ignore"):
            x = from_bits(boundary_bits(oracle.Spec(4, 3))).astype(kind)
            wide = x.astype(np.float32)
        names = ("e4m3", "e4m3fn", "e2m1")
        calls = [Call(cpd.cast, (x, name, mode), {"seed": 1}) for name in names]
        for name, y in zip(names, front_end.run(calls), strict=True):
            assert y.dtype == kind
            wanted = cpd.cast(wide, cpd.Cast(name, rounding=mode), seed=1)
            assert np.array_equal(y.astype(np.float32), wanted, equal_nan=True)
            assert np.array_equal(np.signbit(y), np.signbit(wanted))


def test_storage_that_does_not_hold_the_format(front_end: FrontEnd) -> None:
    front_end.refuse(ValueError, r"float16.*bf16", cpd.cast, np.zeros(3, np.float16), "bf16")


@every_front_end(
    {mode: [(name, mode) for name in LAYOUTS] for mode in ("nearest_even", "stochastic")},
    numpy_only=[
        (name, mode)
        for name in LAYOUTS
        if name not in STRIDED
        for mode in ("nearest_even", "stochastic")
    ],
)
def test_layouts_have_the_same_bits(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = []
    for name, mode in cases:
        x = layout(name)
        wanted = cpd.cast(np.array(x, order="C"), cpd.Cast("e4m3", rounding=mode))
        calls.append(Call(cpd.cast, (x, "e4m3", mode), {}, wanted))
    front_end.check(calls)


def test_input_is_not_overwritten_unless_out_says_so(front_end: FrontEnd) -> None:
    values = np.full(100, 1.1, np.float32)
    wanted = cpd.cast(values, "e4m3")
    x, out = front_end.array(values.copy()), front_end.array(np.empty_like(values))
    assert front_end(cpd.cast, x, "e4m3").tobytes() == wanted.tobytes()
    assert front_end.numpy(x).tobytes() == values.tobytes()
    front_end(cpd.cast, x, "e4m3", out=out)
    assert front_end.numpy(out).tobytes() == wanted.tobytes()
    assert cpd.cast(x, "e4m3", out=out) is out
    front_end(cpd.cast, x, "e4m3", out=x)
    assert front_end.numpy(x).tobytes() == wanted.tobytes()
    assert cpd.cast(x, "e4m3", out=x) is x


def test_out_may_be_strided(front_end: FrontEnd) -> None:
    x = from_bits(boundary_bits(oracle.Spec(4, 3))[:48]).reshape(6, 8)
    wanted = cpd.cast(x, "e4m3")
    out = front_end.array(np.full((8, 12), 7.0, np.float32).T)
    if front_end.name == "compiled":
        limit = "non-contiguous `out=`"  # dynamo's own
        front_end.refuse(Exception, limit, cpd.cast, x, "e4m3", out=out[::2])
        return
    front_end(cpd.cast, x, "e4m3", out=out[::2])
    got = front_end.numpy(out)
    assert np.ascontiguousarray(got[::2]).tobytes() == wanted.tobytes()
    assert (got[1::2] == 7).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalar_shapes(front_end: FrontEnd, shape: tuple[int, ...]) -> None:
    y = front_end(cpd.cast, np.full(shape, 1.1, np.float32), "e4m3")
    assert y.shape == shape


def test_empty_broadcast(front_end: FrontEnd) -> None:
    """Empty arrays with strides 0 are accepted, because none of their elements share memory."""
    x = np.broadcast_to(np.empty((1, 0, 2), np.float32), (3, 0, 2))
    front_end.check(
        [
            Call(operation, (*operands, "e4m3"), {}, x.copy())
            for operation, operands in ((cpd.cast, (x,)), (cpd.add, (x, x)), (cpd.fma, (x, x, x)))
        ]
    )
    front_end.check([Call(cpd.cast, (x, "e4m3"), {"out": x.copy()}, x.copy())])


def test_idempotent(front_end: FrontEnd) -> None:
    x = from_bits(boundary_bits(oracle.Spec(4, 3)))
    names = ("e4m3", "e4m3fn", "e3m0", "e8m0", "bf16")[: front_end.few]
    hows = [(name, mode) for name in names for mode in oracle.DETERMINISTIC_MODES]
    once = front_end.run([Call(cpd.cast, (x, *how)) for how in hows])
    front_end.check([Call(cpd.cast, (y, *how), {}, y) for y, how in zip(once, hows, strict=True)])


def test_seeds_and_streams_are_64_bits(front_end: FrontEnd) -> None:
    x = (np.arange(0x3F800000, 0x3F800000 + 999, dtype=np.uint32)).view(np.float32)
    numbers = (0, 1, 2**32, 2**63, 2**64 - 1)
    calls = [
        Call(cpd.cast, (x, "e4m15", "stochastic"), {"seed": seed, "stream": stream})
        for seed in numbers
        for stream in numbers
    ][:: 1 if front_end.few is None else 6]
    results = [y.tobytes() for y in front_end.run(calls)]
    assert len(set(results)) == len(calls)
    wanted = [by_keywords(cpd.cast, x, *call.args[1:], **call.options).tobytes() for call in calls]
    assert results == wanted
    as_arrays = {"seed": np.uint64(2**63), "stream": np.int8(1)}
    as_ints = {"seed": 2**63, "stream": 1}
    one, other = (cpd.cast(x, "e4m15 stochastic", **how) for how in (as_arrays, as_ints))
    assert one.tobytes() == other.tobytes()
