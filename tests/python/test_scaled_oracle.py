# SPDX-License-Identifier: Apache-2.0
"""The oracle of scaled formats against the golden vectors of the original implementations."""

from __future__ import annotations

import collections
import functools
import itertools

import numpy as np
import pytest

import oracle
import scaled_cases
import scaled_fast
import scaled_oracle
from scaled_cases import Array, Case, Outcome, Result, to_float

CASES = {case.key: case for case in scaled_cases.cases()}

NOT_SCALED = {"te_nvfp4.gemm.pairs", "te_nvfp4.gemm.y"}  # a product of scaled operands

pytestmark = pytest.mark.skipif(
    not (scaled_cases.DATA / "mx.npz").exists(), reason=scaled_cases.REASON
)


def fast(case: Case, x: Array) -> Result:
    codes, values, p = scaled_fast.fast_encode(x, case.spec, case.axis, case.rounding)
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
    assert sum(outcome(name).differing.values()) == scaled_cases.DIFFERING.get(name, 0)


def test_counts() -> None:
    compared: collections.Counter[str] = collections.Counter()
    differing: collections.Counter[str] = collections.Counter()
    for name, case in CASES.items():
        if not case.about:
            compared[case.implementation] += sum(outcome(name).compared.values())
            differing[case.implementation] += sum(outcome(name).differing.values())
    assert {name: (n, differing[name]) for name, n in compared.items()} == scaled_cases.COUNTS


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
    at += [(a + b) / 2 for a, b in itertools.pairwise(at)]
    points = np.array([float(v) for v in at] + [2 * float(f.max), 1e300])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, np.inf)])
    points = np.concatenate([points, -points])
    o = oracle.Options(rounding, "saturate")
    rounded = [oracle.round_value(f, oracle.value_from_double(v), o) for v in points.tolist()]
    expected = [scaled_oracle.code_of(f, v) for v in rounded]
    assert scaled_fast.fast_codes(f, points, rounding).tolist() == expected
