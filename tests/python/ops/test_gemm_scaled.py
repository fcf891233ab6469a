# SPDX-License-Identifier: Apache-2.0
"""Tests products of scaled operands, `_core.gemm_scaled`.

Exact rational arithmetic, MMA-Sim's matrix units with block scales and TransformerEngine's NVFP4
reference give the expected results. Tests with changed rules must fail, which shows that the
comparisons detect a wrong rule.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd
import gemm_oracle
import oracle
from arrays import accumulation_of, assert_same_bits, from_bits, to_bits
from cpd import _core

_ROOT = Path(__file__).resolve().parents[3]
_DATA = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data")) / "scaling"

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
Scaling = tuple[F32 | None, int, int, F32 | None]
"""The scaling of an operand, as a tuple.

The fields are the scales, the number of k values that share a scale, the number of rows that share
a scale, and a factor for each row, which multiplies the row's sums.
"""


def _product(
    a: F32,
    of_a: Scaling,
    b: F32,
    of_b: Scaling,
    acc: cpd.Accumulator,
    *,
    epilogue: bool = False,
    c: F32 | None = None,
) -> F32:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out: F32 = np.empty((*batch, a.shape[-2], b.shape[-1]), np.float32)
    _core.gemm_scaled(a, of_a, b, of_b, acc._held, epilogue, out, c, (3, 0))
    return out


# ---- against exact rationals ---------------------------------------------------------------------


def _values(
    generator: random.Random, name: str, shape: tuple[int, ...], finite: bool = True
) -> F32:
    """Returns random values of a format; if `finite`, infinities and NaNs become 1."""
    f = cpd.Format(name)
    codes = np.array([generator.randrange(1 << f.bits) for _ in range(int(np.prod(shape)))], "u1")
    table = cpd.cast(cpd.decode(_packed(f.bits), f, (1 << f.bits,)), f)
    values: F32 = table[codes].reshape(shape)
    return np.where(np.isfinite(values), values, np.float32(1)) if finite else values


def _packed(bits: int) -> U8:
    """Returns all codes of `bits` bits in ascending order, packed."""
    whole = sum(code << (bits * code) for code in range(1 << bits))
    return np.frombuffer(whole.to_bytes(-(-bits * (1 << bits) // 8), "little"), np.uint8)


def _spread(scales: F32 | None, rows: int, depth: int, block: int, lines: int) -> list[list[int]]:
    """Returns the scale of each element of an operand, by row, as binary32 bit patterns."""
    if scales is None:
        return [[oracle.bits_from_float(1.0)] * depth for _ in range(rows)]
    by_row = np.arange(rows) // (lines or rows)
    by_k = np.arange(depth) // (block or max(1, depth))
    whole = np.ascontiguousarray(scales[by_row][:, by_k], np.float32)
    return [to_bits(whole[i]) for i in range(rows)]


def _expected(
    a: F32,
    of_a: Scaling,
    b: F32,
    of_b: Scaling,
    acc: cpd.Accumulator,
    *,
    epilogue: bool = False,
    c: F32 | None = None,
) -> F32:
    (m, depth), n = a.shape, b.shape[1]
    a_scales = _spread(of_a[0], m, depth, *of_a[1:3])
    b_scales = _spread(None if of_b[0] is None else of_b[0].T, n, depth, *of_b[1:3])
    blocks = [x[1] for x in (of_a, of_b) if x[0] is not None and x[1]]
    accumulation = accumulation_of(acc, seed=3)
    results = []
    for i in range(m):
        for j in range(n):
            factors = None
            if of_a[3] is not None or of_b[3] is not None:
                x = np.float32(1) if of_a[3] is None else of_a[3][i % len(of_a[3]), 0]
                y = np.float32(1) if of_b[3] is None else of_b[3][0, j % of_b[3].shape[1]]
                factors = oracle.bits_from_float(float(x)), oracle.bits_from_float(float(y))
            scales = gemm_oracle.Scales(
                a_scales[i], b_scales[j], min(blocks, default=max(1, depth)), epilogue, factors
            )
            column = np.ascontiguousarray(b[:, j])
            results.append(
                gemm_oracle.scaled_element(
                    to_bits(a[i]),
                    to_bits(column),
                    None if c is None else to_bits(c)[i * n + j],
                    accumulation,
                    scales,
                    i * n + j,
                )
            )
    return from_bits(results).reshape(m, n)


TEXTS = [
    "fp32 sequential",
    "e4m3 sequential",
    "e4m3 fma",
    "e5m10 kahan",
    "e6m9 chunked chunk=12 inner=e5m4",
    "e4m3 pairwise rounding=toward_zero",
    "e4m3 sequential rounding=stochastic random_bits=8",
    "e4m3 chunked chunk=5 rounding=stochastic random_bits=20",
    "h100-fp8",
    "deepseek-promoted",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("block", [8, 12, 32])
def test_blocks(text: str, block: int) -> None:
    generator = random.Random(f"{text} {block}")
    acc = cpd.Accumulator(text)
    m, k, n = 3, 50, 4
    a, b = _values(generator, "e4m3fn", (m, k)), _values(generator, "e4m3fn", (k, n))
    if "e4m3 " in text:
        a, b = a * np.float32(2.0**-6), b * np.float32(2.0**-6)
    parts = -(-k // block)
    of_a = _scales(generator, (m, parts)), block, 1, None
    of_b = _scales(generator, (-(-parts // 2), 2)), 2 * block, 2, _scales(generator, (1, n))
    for c in (None, _scales(generator, (m, n))):
        given: Any = (a, of_a, b, of_b, acc)
        assert_same_bits(_product(*given, c=c), to_bits(_expected(*given, c=c)))


@pytest.mark.parametrize("text", TEXTS)
def test_epilogue(text: str) -> None:
    generator = random.Random(text)
    acc = cpd.Accumulator(text)
    a, b = _values(generator, "e2m3", (3, 20)), _values(generator, "e2m3", (20, 4))
    for of_a in (
        (_scales(generator, (3, 1)), 0, 1, None),
        (_scales(generator, (1, 1)), 0, 0, None),
    ):
        of_b = _scales(generator, (1, 4)), 0, 1, None
        given: Any = (a, of_a, b, of_b, acc)
        c = _scales(generator, (3, 4))
        assert_same_bits(
            _product(*given, c=c, epilogue=True), to_bits(_expected(*given, c=c, epilogue=True))
        )


def _scales(generator: random.Random, shape: tuple[int, ...]) -> F32:
    """Returns random binary32 scales between 2^-4 and 2^4."""
    count = int(np.prod(shape))
    values = [generator.uniform(1, 2) * 2.0 ** generator.randrange(-4, 4) for _ in range(count)]
    return np.array(values, np.float32).reshape(shape)


@pytest.mark.parametrize(
    "text",
    [
        "rtx-blackwell-mxfp8",
        "rtx-blackwell-mxfp8 a=e5m2 b=e3m2",
        "rtx-blackwell-mxfp4",
        "rtx-blackwell-nvfp4",
        "rtx-blackwell-nvfp4 dot=4 fraction_bits=12 addend=separate",
    ],
)
def test_units(text: str) -> None:
    generator = random.Random(text)
    acc = cpd.Accumulator(text)
    assert acc.form == "unit"
    assert acc.scale is not None
    block = acc.scale_block
    for k in (16, 70, 130):
        finite = k != 16
        a = _values(generator, acc.a.name, (3, k), finite)
        b = _values(generator, acc.b.name, (k, 4), finite)
        parts = -(-k // block)
        for all_scales in (False, True):
            near = np.float32(2.0) ** np.array([generator.randrange(-3, 4) for _ in range(99)])
            of_a, of_b = (
                _values(generator, acc.scale.name, shape, finite)
                if all_scales
                else near[: shape[0] * shape[1]].reshape(shape).astype(np.float32)
                for shape in ((3, parts), (parts, 4))
            )
            for c in (None, _scales(generator, (3, 4))):
                given: Any = (a, (of_a, block, 1, None), b, (of_b, block, 1, None), acc)
                assert_same_bits(_product(*given, c=c), to_bits(_expected(*given, c=c)))


# ---- replays -------------------------------------------------------------------------------------

needs_data = pytest.mark.skipif(
    not (_DATA / "mma.npz").exists(),
    reason=f"no scaling vectors at {_DATA} (CPD_DATA names the data folder)",
)

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

UNITS = {
    "m16n8k32.block32.e4m3.e4m3.ue8m0": "rtx-blackwell-mxfp8",
    "m16n8k64.block32.e2m1.e2m1.ue8m0": "rtx-blackwell-mxfp4",
    "m16n8k64.block16.e2m1.e2m1.ue4m3": "rtx-blackwell-nvfp4",
}


def _nibbles(x: U8, axis: int) -> F32:
    """Returns the E2M1 values of bytes that hold two codes each along an axis, low half first."""
    both = np.stack([x & 15, x >> 4], axis=axis + 1 if axis >= 0 else x.ndim)
    shape = list(x.shape)
    shape[axis] *= 2
    return E2M1[both.reshape(shape)]


def _decoded(codes: U8, name: str) -> F32:
    values: F32 = cpd.decode(np.ascontiguousarray(codes).reshape(-1), name, codes.shape)
    return values


def _tiles(key: str) -> tuple[F32, F32, F32, F32, F32, F32]:
    """Returns a, b, c, the scales of a and b, and the results of MMA-Sim, for four tiles."""
    with np.load(_DATA / "mma.npz") as archive:
        parts = ("A", "B", "C", "scale_A", "scale_B", "D")
        a, b, c, of_a, of_b, d = (archive[f"mmasim.{key}.{part}"] for part in parts)
    if "e2m1" in key:
        a, b = _nibbles(a, 2), _nibbles(b, 1)
    else:
        a, b = _decoded(a, "e4m3fn"), _decoded(b, "e4m3fn")
    scale = "e8m0" if key.endswith("ue8m0") else "e4m3fn"
    return a, b, c, _decoded(of_a, scale), _decoded(of_b, scale), d


def _differences(x: F32, y: F32) -> int:
    """Returns the number of different elements; all NaNs count as equal."""
    same = (x.view(np.uint32) == y.view(np.uint32)) | (np.isnan(x) & np.isnan(y))
    return int(np.count_nonzero(~same))


def _of_unit(key: str, acc: cpd.Accumulator) -> tuple[F32, F32]:
    a, b, c, of_a, of_b, d = _tiles(key)
    block = a.shape[2] // of_a.shape[2]
    return _product(a, (of_a, block, 1, None), b, (of_b, block, 1, None), acc, c=c), d


@needs_data
@pytest.mark.parametrize("key", UNITS)
def test_replay_of_units_with_scales(key: str) -> None:
    """The presets of matrix units with block scales reproduce all stored results of MMA-Sim.

    Some scales are NaN. All NaN results count as equal.
    """
    got, expected = _of_unit(key, cpd.Accumulator(UNITS[key]))
    assert expected.size == 512
    assert _differences(got, expected) == 0


@needs_data
@pytest.mark.parametrize("key", UNITS)
def test_changed_units_fail_the_replay(key: str) -> None:
    preset = UNITS[key]
    unit = cpd.Accumulator(preset)
    assert unit is not None
    f = unit.fraction_bits
    # The e4m3 scales in the stored NVFP4 operands span few binades, so sums with 28 fraction bits
    # or more lose nothing. Results change only if a matrix unit has fewer fraction bits.
    fractions = (25, 27) if preset.endswith("nvfp4") else (f - 1, f + 1)
    changes = [f"fraction_bits={changed}" for changed in fractions] + ["sum_rounding=nearest_even"]
    changes.append(f"block={unit.block // 2} scale_block={min(unit.scale_block, unit.block // 2)}")
    if preset.endswith("mxfp4"):
        changes.append("dot=4")
    counts = {}
    for change in changes:
        got, expected = _of_unit(key, cpd.Accumulator(f"{preset} {change}"))
        counts[change] = _differences(got, expected)
    print(f"{preset}: of 512 results differ: {counts}")
    assert all(counts.values()), counts


def _te_nvfp4(x: F32) -> tuple[F32, F32, np.float32]:
    """Returns TransformerEngine's 1 x 16 blocks: elements, block scales, and the tensor's amax."""
    one, most = np.float32(1), np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        amax = np.abs(x).max()
        encode = np.minimum(np.float32(2688) / amax, most) if amax != 0 else one
        encode = encode if encode != 0 else one
        of_block = np.abs(x.reshape(x.shape[0], -1, 16)).max(axis=2)
        wanted = of_block * (encode * (one / np.float32(6)))
        scales = cpd.cast(np.minimum(wanted, np.float32(448)), "e4m3fn")
        by = np.minimum(one / (scales * (one / encode)), most)
        elements = cpd.cast(x * np.repeat(by, 16, axis=1), "e2m1 overflow=saturate")
    return elements, scales, amax


@needs_data
@pytest.mark.parametrize("text", ["fp32", "fp32 fma", "e8m22", "e5m10 kahan"])
def test_replay_of_te_nvfp4(text: str) -> None:
    """Products give the results of TransformerEngine's NVFP4 reference.

    The reference's sums of 16 products are exact, so every accumulator that can hold them agrees.
    """
    with np.load(_DATA / "nvfp4.npz") as archive:
        x, pairs = archive["in.nv_x_bf16"], archive["te_nvfp4.gemm.pairs"]
        expected = archive["te_nvfp4.gemm.y"]
    for (i, j), y in zip(pairs, expected, strict=True):
        a, of_a, amax_a = _te_nvfp4(x[i])
        b, of_b, amax_b = _te_nvfp4(x[j])
        alpha = np.float32(amax_a * amax_b) / np.float32(36 * 448 * 448)
        factor = np.array([[alpha]], np.float32)
        got = _product(a, (of_a, 16, 1, factor), b.T, (of_b.T, 16, 1, None), cpd.Accumulator(text))
        assert _differences(got, y) == 0
        shifted = _product(
            a, (of_a, 16, 1, factor), b.T, (of_b.T, 16, 1, None), cpd.Accumulator("e4m3")
        )
        assert _differences(shifted, y) > 0


def test_a_replaced_unit_keeps_its_scales() -> None:
    unit = cpd.Accumulator("rtx-blackwell-nvfp4")
    assert unit.replace() == unit
    assert unit.replace(fraction_bits=30).scale == cpd.Format("e4m3fn")
    assert "scale=e4m3fn scale_block=16 dot=16')" in repr(unit)
