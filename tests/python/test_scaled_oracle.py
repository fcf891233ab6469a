# SPDX-License-Identifier: Apache-2.0
"""The oracle of scaled formats against the golden vectors of the original implementations."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest

import oracle
import scaled_cases
import scaled_oracle
from scaled_cases import Array, Case, Outcome, Result, to_float

CASES = {case.key: case for case in scaled_cases.cases()}

# Values that were compared, of each implementation, and how many of them differ, as
# `scaled_cases.DIFFERENCES` says.
COUNTS = {
    "torchao_main": (158223, 0),
    "torchao_release": (158223, 9736),
    "te_mxfp8": (9471, 0),
    "microxcaling": (229600, 167),
    "microxcaling_cpp": (91840, 0),
    "torchao_nvfp4": (67826, 130),
    "te_nvfp4": (220626, 9662),
    "torchao_float8": (178228, 4336),
    "te_current": (52275, 3073),
    "te_block": (266530, 3106),
    "torchao_blockwise": (52120, 256),
    "deepgemm": (157064, 5228),
}
DIFFERING = {
    "torchao_release.floor.e4m3": 792,
    "torchao_release.ceil.e4m3": 760,
    "torchao_release.even.e4m3": 858,
    "torchao_main.even.e4m3(exact)": 66,
    "torchao_release.rceil.e4m3": 1048,
    "microxcaling.floor.e4m3": 39,
    "torchao_release.floor.e5m2": 962,
    "torchao_release.even.e5m2": 1061,
    "torchao_main.even.e5m2(exact)": 99,
    "torchao_release.rceil.e5m2": 1280,
    "microxcaling.floor.e5m2": 47,
    "torchao_release.floor.e3m2": 370,
    "torchao_release.ceil.e3m2": 370,
    "torchao_release.even.e3m2": 373,
    "torchao_main.even.e3m2(exact)": 97,
    "microxcaling.nearest.e3m2": 2,
    "microxcaling.nearest_flush.e3m2": 2,
    "microxcaling.even_flush.e3m2": 2,
    "microxcaling.floor.e3m2": 33,
    "torchao_release.floor.e2m3": 281,
    "torchao_release.ceil.e2m3": 281,
    "torchao_release.rceil.e2m3": 459,
    "microxcaling.nearest.e2m3": 4,
    "microxcaling.nearest_flush.e2m3": 4,
    "microxcaling.even.e2m3": 4,
    "microxcaling.even_flush.e2m3": 4,
    "torchao_release.floor.e2m1": 172,
    "torchao_release.ceil.e2m1": 172,
    "torchao_release.even.e2m1": 176,
    "torchao_main.even.e2m1(exact)": 125,
    "torchao_release.rceil.e2m1": 321,
    "microxcaling.nearest.e2m1": 6,
    "microxcaling.nearest_flush.e2m1": 6,
    "microxcaling.even.e2m1": 6,
    "microxcaling.even_flush.e2m1": 6,
    "microxcaling.floor.e2m1": 2,
    "torchao_nvfp4.two_level": 128,
    "torchao_nvfp4.one_level": 2,
    "te_nvfp4.1x16": 1941,
    "te_nvfp4.16x16": 1865,
    "te_nvfp4.1x16_rowscaled": 959,
    "te_nvfp4.4over6_mae": 1930,
    "te_nvfp4.4over6_mae448": 1934,
    "te_nvfp4.1x16_rht": 1033,
    "torchao_float8.tensor.e4m3": 1024,
    "torchao_float8.row.e4m3": 64,
    "torchao_float8.col.e4m3": 16,
    "te_current.tensor.e4m3": 1024,
    "te_block.1x128_fp32.e4m3": 388,
    "te_block.1x128_bf16.e4m3": 646,
    "torchao_float8.tensor_pow2.e4m3": 1024,
    "torchao_float8.row_pow2.e4m3": 64,
    "torchao_float8.col_pow2.e4m3": 16,
    "te_current.tensor_pow2.e4m3": 1024,
    "te_block.1x128_pow2_fp32.e4m3": 260,
    "te_block.1x128_pow2_bf16.e4m3": 518,
    "torchao_float8.tensor.e5m2": 1024,
    "torchao_float8.col.e5m2": 16,
    "te_current.tensor.e5m2": 1025,
    "te_block.1x128_fp32.e5m2": 388,
    "te_block.1x128_bf16.e5m2": 646,
    "torchao_float8.tensor_pow2.e5m2": 1024,
    "torchao_float8.row_pow2.e5m2": 64,
    "te_block.1x128_pow2_fp32.e5m2": 260,
    "torchao_blockwise.1x128.e4m3": 256,
    "deepgemm.1x128_fp32.e4m3": 256,
    "deepgemm.1x128_ue8m0.e4m3": 2,
    "deepgemm.1x32_ue8m0.e2m1": 4970,
}
NOT_SCALED = {"te_nvfp4.gemm.pairs", "te_nvfp4.gemm.y"}  # a product of scaled operands

pytestmark = pytest.mark.skipif(
    not (scaled_cases.DATA / "mx.npz").exists(), reason=scaled_cases.REASON
)


def fast(case: Case, x: Array) -> Result:
    codes, values, p = scaled_oracle.fast_encode(x, case.spec, case.axis, case.rounding)
    return Result(codes, *scales(case, p.scales, p.outer), values)


def slow(case: Case, x: Array) -> Result:
    o = oracle.Options(case.rounding)
    made = scaled_oracle.encode(x, case.spec, case.axis, o)
    codes = np.array([c or 0 for c in made.codes(case.element)]).reshape(x.shape)
    values = np.array(made.values, np.uint32).view(np.float32).reshape(x.shape)
    return Result(codes, *scales(case, made.scales, made.outer), values)


def scales(
    case: Case, of_blocks: list[oracle.Value], outer: list[oracle.Value]
) -> tuple[Array, Array]:
    second = outer if case.spec.tensor_scale else []
    return np.array([to_float(v) for v in of_blocks]), np.array([to_float(v) for v in second])


@functools.cache
def outcome(name: str) -> Outcome:
    case = CASES[name]
    return scaled_cases.compare(case, [fast(case, x) for x in case.inputs()])


def test_every_array_belongs_to_a_case() -> None:
    stored = {n for file in ("mx", "nvfp4", "fp8") for n in scaled_cases.load(file)}
    inputs = {n for n in stored if n.startswith("in.") or n.endswith(".rht_bf16")}
    of_cases = {f"{case.name}.{what}" for case in CASES.values() for what in case.arrays()}
    assert of_cases == stored - inputs - NOT_SCALED


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """Equal, or different where a reason says, in as many values as ever."""
    assert sum(outcome(name).differing.values()) == DIFFERING.get(name, 0)


def test_counts() -> None:
    compared: collections.Counter[str] = collections.Counter()
    differing: collections.Counter[str] = collections.Counter()
    for name, case in CASES.items():
        if not case.about:
            compared[case.implementation] += sum(outcome(name).compared.values())
            differing[case.implementation] += sum(outcome(name).differing.values())
    assert {name: (n, differing[name]) for name, n in compared.items()} == COUNTS


def test_every_reason_is_needed() -> None:
    needed = set().union(*(outcome(name).reasons for name in CASES))
    unneeded = set(range(len(scaled_cases.DIFFERENCES))) - needed
    assert not unneeded, [scaled_cases.DIFFERENCES[i] for i in unneeded]


def assert_fast_is_slow(case: Case, x: Array) -> None:
    ours, exact = fast(case, x), slow(case, x)
    for a, b in ((ours.scales, exact.scales), (ours.outer, exact.outer)):
        assert scaled_cases.same(a, b).all()
    known = ~np.isnan(ours.values) | (case.element.nan_code is not None)
    assert (ours.codes == exact.codes)[known].all()
    assert scaled_cases.same(ours.values, exact.values).all()
    finite = np.isfinite(ours.values)
    assert (np.signbit(ours.values) == np.signbit(exact.values))[finite].all()


@pytest.mark.parametrize("name", CASES)
def test_fast_is_slow(name: str) -> None:
    case = CASES[name]
    few = {1: slice(3, None, 24), 16: slice(0, 16), 128: slice(0, 12)}
    for x in case.inputs()[:: 11 if case.apart else 1]:
        tall = 128 if x.ndim == 3 else 16 if case.apart else 1
        assert_fast_is_slow(case, x[..., few[tall], :])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_fast_is_slow_in_all(name: str) -> None:
    for x in CASES[name].inputs():
        assert_fast_is_slow(CASES[name], x)


@pytest.mark.parametrize("element", scaled_cases.ELEMENTS.values())
@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero"])
def test_fast_codes(element: str, rounding: str) -> None:
    """At every value, tie and their neighbours in binary64, of both signs."""
    f = scaled_cases.FORMATS[element]
    at = [f.magnitude(c) for c in range(f.max_code + 1)]
    at += [(a + b) / 2 for a, b in zip(at, at[1:], strict=False)]
    points = np.array([float(v) for v in at] + [2 * float(f.max), 1e300])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, np.inf)])
    points = np.concatenate([points, -points])
    o = oracle.Options(rounding, "saturate")
    rounded = [oracle.round_value(f, oracle.value_from_double(v), o) for v in points.tolist()]
    expected = [scaled_oracle.code_of(f, v) for v in rounded]
    assert scaled_oracle.fast_codes(f, points, rounding).tolist() == expected
