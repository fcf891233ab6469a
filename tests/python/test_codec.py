# SPDX-License-Identifier: Apache-2.0
"""cpd.encode and cpd.decode against the rational oracle."""

from __future__ import annotations

import numpy as np
import pytest

import cpd
import oracle
from arrays import assert_same_bits, boundary_bits, from_bits, pack, spec_of, unpack

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e1m3", "e8m0", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1", "e2m3"),
    *("e3m2", "e1m1", "e2m2", "binary8p4se", "binary8p3ue", "binary3p1se", "e5m2:nosub"),
    *("e4m3fn:unsigned", "e6m4", "e4m3fnuz:nosub"),
]
WIDE_NAMES = ["bf16", "fp16", "e6m9", "tf32", "fp32", "e7m14", "e8m18", "e4m6"]


@pytest.mark.parametrize("name", NAMES)
def test_every_code(name: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    codes = list(range(1 << spec.bits))
    values = [spec.decode(c) for c in codes]
    got = cpd.decode(pack(codes, spec.bits), f, len(codes))
    assert_same_bits(got, [oracle.bits_from_value(v) for v in values], name)
    if not spec.has_nan:
        assert not np.isnan(got).any()
    again = unpack(cpd.encode(got, f), spec.bits, len(codes))
    expected = [oracle.encode(spec, oracle.bits_from_value(v)) for v in values]
    assert again == expected


@pytest.mark.parametrize("rounding", oracle.DETERMINISTIC_MODES)
@pytest.mark.parametrize("name", [*NAMES, *WIDE_NAMES])
def test_encode_rounds_like_cast(name: str, rounding: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    for overflow in oracle.POLICIES:
        o = oracle.Options(rounding, overflow)
        rows = [(b, oracle.encode(spec, b, o)) for b in boundary_bits(spec, codes=6, noise=20)]
        rows = [(b, code) for b, code in rows if code is not None]
        x = from_bits(b for b, _ in rows)
        packed = cpd.encode(x, f, rounding=rounding, overflow=overflow)
        assert packed.dtype == np.uint8
        assert unpack(packed, f.bits, len(rows)) == [code for _, code in rows]
        decoded = cpd.decode(packed, f, x.shape)
        cast = cpd.cast(x, f, rounding=rounding, overflow=overflow)
        np.testing.assert_array_equal(decoded.view(np.uint32), cast.view(np.uint32))


def test_padding_and_order() -> None:
    x = np.array([0.5, -6.0, 1.0], np.float32)
    assert cpd.encode(x, "e2m1").tolist() == [0xF1, 0x02]
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(cpd.encode(matrix.T, "e5m2"), cpd.encode(matrix.T.copy(), "e5m2"))
    assert cpd.encode(np.zeros((0, 3), np.float32), "e4m3").size == 0


@pytest.mark.parametrize("name", ["e2m1", "e3m2", "e3m0"])
def test_nan_without_a_code(name: str) -> None:
    x = np.ones(500, np.float32)
    x[321] = np.nan
    with pytest.raises(ValueError, match="321"):
        cpd.encode(x, name)


def test_bad_arguments() -> None:
    codes = cpd.encode(np.ones(5, np.float32), "e4m3")
    with pytest.raises(ValueError, match="5"):
        cpd.decode(codes, "e4m3", 6)
    with pytest.raises(TypeError):
        cpd.decode(codes.astype(np.int32), "e4m3", 5)
    with pytest.raises(TypeError):
        cpd.decode([1, 2], "e4m3", 2)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="-1"):
        cpd.decode(codes, "e4m3", -1)
    with pytest.raises(TypeError):
        cpd.encode([1.0], "e4m3")  # type: ignore[type-var]


def test_bytes_of_codes_are_counted_in_63_bits():
    packed_bytes = cpd.format("fp32")._native.packed_bytes
    assert packed_bytes(2**60) == 2**62
    assert packed_bytes(2**61 - 16) == 2**63 - 64
    for n in (2**61, 2**62, 2**63 - 1, -1):
        with pytest.raises(ValueError, match=f"got {n} codes of fp32"):
            packed_bytes(n)
    assert cpd.format("e1m0")._native.packed_bytes(2**62) == 2**62 // 8 * 2
