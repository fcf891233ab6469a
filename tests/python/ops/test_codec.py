# SPDX-License-Identifier: Apache-2.0
"""Compares cpd.encode and cpd.decode on every front end to exact rational arithmetic."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
from arrays import LAYOUTS, STRIDED, boundary_bits, from_bits, layout, pack, spec_of
from front_ends import Call, FrontEnd, every_front_end

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e1m3", "e8m0", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1", "e2m3"),
    *("e3m2", "e1m1", "e2m2", "binary8p4se", "binary8p3ue", "binary3p1se", "e5m2:nosub"),
    *("e4m3fn:unsigned", "e6m4", "e4m3fnuz:nosub"),
]
WIDE_NAMES = ["bf16", "fp16", "e6m9", "tf32", "fp32", "e7m14", "e8m18", "e4m6"]
COMPILED = ("e4m3", "e2m1", "e8m0", "e4m3fn:unsigned", "fp32", "e6m9")


@cache
def every_code(name: str) -> list[Call]:
    f = cpd.Format(name)
    spec = spec_of(f)
    codes = list(range(1 << spec.bits))
    values = [oracle.bits_from_value(spec.decode(c)) for c in codes]
    again = [oracle.encode(spec, bits) for bits in values]
    assert None not in again
    return [
        Call(cpd.decode, (pack(codes, spec.bits), f, len(codes)), {}, values),
        Call(cpd.encode, (from_bits(values), f), {}, pack(again, spec.bits)),  # type: ignore
    ]


@every_front_end({name: [(name,)] for name in NAMES}, compiled=COMPILED)
def test_every_code(front_end: FrontEnd, cases: list[Any]) -> None:
    for (name,) in cases:
        calls = every_code(name)
        front_end.check(calls)
        if not spec_of(cpd.Format(name)).has_nan:
            assert not np.isnan(front_end(cpd.decode, *calls[0].args)).any()


@cache
def rounding_like_cast(name: str, rounding: str) -> list[tuple[Call, Call, Call]]:
    """Returns calls of encode, decode and cast with equal values, for each overflow policy.

    Decoding the codes of encode must give the values of the cast.
    """
    f = cpd.Format(name)
    spec = spec_of(f)
    result = []
    for overflow in oracle.POLICIES:
        o = oracle.Options(rounding, overflow)
        rows = [(b, oracle.encode(spec, b, o)) for b in boundary_bits(spec, codes=6, noise=20)]
        kept = [(b, code) for b, code in rows if code is not None]
        x, codes = from_bits(b for b, _ in kept), pack([code for _, code in kept], f.bits)
        values = [oracle.bits_from_value(spec.decode(code)) for _, code in kept]
        result.append(
            (
                Call(cpd.encode, (x, f, rounding, overflow), {}, codes),
                Call(cpd.decode, (codes, f, x.shape), {}, values),
                Call(cpd.cast, (x, f, rounding, overflow), {}, values),
            )
        )
    return result


@pytest.mark.few("", 2)
@every_front_end(
    {
        name: [(name, rounding) for rounding in oracle.DETERMINISTIC_MODES]
        for name in [*NAMES, *WIDE_NAMES]
    },
    compiled=COMPILED,
)
def test_encode_rounds_like_cast(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = [call for case in cases for three in rounding_like_cast(*case) for call in three]
    front_end.check(calls if front_end.few is None else calls[::8])


@pytest.mark.parametrize(
    "f", ["e2m1", "e4m3", "e3m2ieee", "fp16", "e6m9", "fp32", "e1m0fn:unsigned"]
)
def test_stochastic_codes_are_those_of_the_cast(front_end: FrontEnd, f: str) -> None:
    x = np.nan_to_num(from_bits(boundary_bits(oracle.Spec(4, 3))), nan=1.0)
    how = {"rounding": "stochastic", "seed": 2}
    codes, cast = front_end.run([Call(cpd.encode, (x, f), how), Call(cpd.cast, (x, f), how)])
    assert codes.dtype == np.uint8
    assert codes.tobytes() == cpd.encode(x, cpd.Cast(f, rounding="stochastic"), seed=2).tobytes()
    front_end.check([Call(cpd.decode, (codes, f, x.shape), {}, cast)])


def test_padding_and_order(front_end: FrontEnd) -> None:
    x = np.array([0.5, -6.0, 1.0], np.float32)
    assert front_end(cpd.encode, x, "e2m1").tolist() == [0xF1, 0x02]
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    wanted = cpd.encode(matrix.T.copy(), "e5m2")
    front_end.check([Call(cpd.encode, (matrix.T, "e5m2"), {}, wanted)])
    assert front_end(cpd.encode, np.zeros((0, 3), np.float32), "e4m3").size == 0


@every_front_end(
    {mode: [(name, mode) for name in LAYOUTS] for mode in ("nearest_even", "stochastic")},
    numpy_only=[
        (name, mode)
        for name in LAYOUTS
        if name not in STRIDED
        for mode in ("nearest_even", "stochastic")
    ],
)
def test_layouts_have_the_same_codes(front_end: FrontEnd, cases: list[Any]) -> None:
    calls = []
    for name, mode in cases:
        x = layout(name, nan=False)
        wanted = cpd.encode(np.array(x, order="C"), cpd.Cast("e4m3", rounding=mode))
        calls.append(Call(cpd.encode, (x, "e4m3", mode), {}, wanted))
    front_end.check(calls)


def test_decode_types_and_out(front_end: FrontEnd) -> None:
    codes = cpd.encode(np.float32([[1.0, -6.0], [0.5, 4.0]]), "e2m1")
    wanted = np.array([[1.0, -6.0], [0.5, 4.0]])
    made = front_end.array(codes)
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.float32):
        own = dtype if front_end.name == "numpy" else front_end.array(np.zeros(1, dtype)).dtype
        got = front_end.numpy(cpd.decode(made, "e2m1", (2, 2), dtype=own))
        assert got.dtype == np.dtype(dtype)
        assert got.astype(float).tolist() == wanted.tolist()
    out = front_end.array(np.zeros((2, 4), np.float16))
    assert cpd.decode(made, "e2m1", (2, 2), out=out[:, ::2]).shape == (2, 2)
    assert front_end.numpy(out).tolist() == [[1.0, 0, -6.0, 0], [0.5, 0, 4.0, 0]]
    into = front_end.array(np.zeros(4))
    front_end(cpd.decode, codes, "e2m1", 4, out=into)
    assert front_end.numpy(into).tolist() == wanted.reshape(-1).tolist()
    twice = np.repeat(codes, 2)[::2]
    assert front_end(cpd.decode, twice, "e2m1", [4]).tolist() == [1.0, -6.0, 0.5, 4.0]


@pytest.mark.parametrize("name", ["e2m1", "e3m2", "e3m0"])
def test_nan_without_a_code(front_end: FrontEnd, name: str) -> None:
    x = np.ones(500, np.float32)
    x[321] = np.nan
    with pytest.raises(ValueError, match="element 321 is NaN"):
        front_end(cpd.encode, x, name)


def test_bytes_of_codes_are_counted_in_63_bits() -> None:
    packed_bytes = cpd.Format("fp32")._held.packed_bytes
    assert packed_bytes(2**60) == 2**62
    assert packed_bytes(2**61 - 16) == 2**63 - 64
    for n in (2**61, 2**62, 2**63 - 1, -1):
        with pytest.raises(ValueError, match=f"got {n} codes of fp32"):
            packed_bytes(n)
    assert cpd.Format("e1m0")._held.packed_bytes(2**62) == 2**62 // 8 * 2
