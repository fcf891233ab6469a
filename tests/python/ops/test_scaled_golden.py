# SPDX-License-Identifier: Apache-2.0
"""Compares the public operations to golden vectors of the original implementations.

It also compares all values that the operations return to the oracle.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import cpd
import oracle
import scaled_cases
import scaled_fast
from arrays import unpack
from by_keywords import by_keywords
from scaled_cases import Array, Case, Outcome, Result, to_float

CASES = {case.key: case for case in scaled_cases.cases()}

if not CASES:
    pytest.skip(scaled_cases.REASON, allow_module_level=True)


def descriptor(case: Case) -> Any:
    return cpd.Scaled(**case.arguments)


@functools.cache
def table(f: oracle.Spec) -> Array:
    """Returns the value of each code of a format of up to 8 bits."""
    return np.array([to_float(f.decode(code)) for code in range(1 << f.bits)])


def decoded(f: oracle.Spec, packed: Array, n: int) -> Array:
    """Returns the values of n packed codes; the code of a binary32 is its bit pattern."""
    assert packed.dtype == np.uint8
    assert packed.shape == ((n * f.bits + 7) // 8,)
    if f.bits == 32:
        return packed.view(np.float32).astype(np.float64)
    return table(f)[unpack(packed, f.bits, n)]


@functools.cache
def results(name: str) -> list[Result]:
    """Returns the result of the public operations for each tensor of a case."""
    case = CASES[name]
    return [(with_nan if has_no_code(case, x) else encoded)(case, x) for x in case.inputs()]


def encoded(case: Case, x: Array) -> Result:
    q, s = descriptor(case), case.spec
    grid = int(np.prod(q.scales_shape(x.shape, case.axis)))
    how: dict[str, Any] = {"rounding": case.rounding, "axis": case.axis}
    codes, scales = by_keywords(cpd.encode, x, q, **how)
    blocks, outer = (scales, np.zeros(0, np.uint8)) if s.tensor_scale is None else scales
    tensors = 0 if s.tensor_scale is None else x.size // x.shape[-1] if s.outer == "row" else 1
    values = cpd.decode(codes, q, x.shape, axis=case.axis, scales=scales)
    cast = by_keywords(cpd.cast, x, q, dtype="float32", **how)
    assert cast.dtype == np.float32
    assert scaled_cases.same(cast, values.astype(np.float32)).all()
    elements = np.array(unpack(codes, s.element.bits, x.size)).reshape(x.shape)
    second = decoded(s.tensor_scale, outer, tensors) if s.tensor_scale else np.zeros(0)
    return Result(elements, decoded(s.scale, blocks, grid), second, values)


def has_no_code(case: Case, x: Array) -> bool:
    """Returns True if x has a NaN that the element format cannot encode.

    This happens if the block's scale does not become NaN and the format has no code for NaN.
    """
    return bool(
        case.element.nan_code is None and case.spec.policy == "element" and np.isnan(x).any()
    )


def with_nan(case: Case, x: Array) -> Result:
    """Returns the cast of a tensor that has a NaN without a code, so cpd.encode refuses it. The
    codes and scales come from the oracle."""
    how: dict[str, Any] = {"rounding": case.rounding, "axis": case.axis}
    with pytest.raises(ValueError, match="NaN"):
        by_keywords(cpd.encode, x, descriptor(case), **how)
    codes, values, p = scaled_fast.fast_encode(x, case.spec, case.axis, case.rounding)
    cast = by_keywords(cpd.cast, x, descriptor(case), dtype="float32", **how)
    assert scaled_cases.same(cast, values.astype(np.float32)).all()
    scales, outer = (np.array([to_float(v) for v in of]) for of in (p.scales, p.outer))
    return Result(codes, scales, outer if case.spec.tensor_scale else outer[:0], values)


@functools.cache
def outcome(name: str) -> Outcome:
    return scaled_cases.compare(CASES[name], results(name))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """CPD differs from the library that made a case in a known number of values.

    DIFFERING has these numbers. Each difference has a known reason.
    """
    assert sum(outcome(name).differing.values()) == scaled_cases.DIFFERING.get(name, 0)


def test_counts() -> None:
    assert scaled_cases.counts({name: outcome(name) for name in CASES}) == scaled_cases.COUNTS


def test_every_reason_is_needed() -> None:
    assert not scaled_cases.unneeded(outcome(name) for name in CASES)


def oracle_cases() -> list[Any]:
    """Returns the cases for test_oracle.

    The quick tier has the cases in which CPD's results differ from the original implementation's:
    in these cases, only the oracle shows that CPD is right. Formats that choose among candidate
    scales are slow: test_oracle_of_candidates has some of their tensors in the quick tier.
    """
    differing = CASES.keys() & scaled_cases.DIFFERING
    quick = {name for name in differing if CASES[name].spec.choose is None}
    marks = {name: [] if name in quick else [pytest.mark.exhaustive] for name in CASES}
    return [pytest.param(name, marks=marks[name]) for name in CASES]


@pytest.mark.parametrize("name", oracle_cases())
def test_oracle(name: str) -> None:
    """CPD's codes, scales, values and signs of zeros equal the oracle's in every element."""
    assert_oracle(name, 1)


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.spec.choose is not None])
def test_oracle_of_candidates(name: str) -> None:
    assert_oracle(name, 16)


def assert_oracle(name: str, step: int) -> None:
    case = CASES[name]
    for x, ours in zip(case.inputs()[::step], results(name)[::step], strict=True):
        if has_no_code(case, x):
            continue
        codes, values, p = scaled_fast.fast_encode(x, case.spec, case.axis, case.rounding)
        known = np.array([not isinstance(p.scales[b], oracle.NotANumber) for b in p.block_of])
        known = known.reshape(x.shape) | (case.element.nan_code is not None)
        assert scaled_cases.same(ours.values, values).all()
        number = ~np.isnan(values)
        assert (np.signbit(ours.values) == np.signbit(values))[number].all()
        assert (ours.codes == codes)[known].all()
        assert scaled_cases.same(ours.scales, np.array([to_float(v) for v in p.scales])).all()
        if case.spec.tensor_scale:
            assert scaled_cases.same(ours.outer, np.array([to_float(v) for v in p.outer])).all()


def test_names() -> None:
    """The named scaled formats equal the formats whose golden vectors the tests compare."""
    names = {
        "mxfp8": {"element": "e4m3fn"},
        "mxfp8-e5m2": {"element": "e5m2"},
        "mxfp6-e3m2": {"element": "e3m2"},
        "mxfp6-e2m3": {"element": "e2m3"},
        "mxfp4": {"element": "e2m1"},
        "mxint8": {"element": scaled_cases.ELEMENTS["int8"]},
        "nvfp4": CASES["te_nvfp4.1x16"].arguments,
        "fp8-block": CASES["deepgemm.1x128_fp32.e4m3"].arguments,
        "fp8-block 128x128": CASES["deepgemm.128x128_fp32.e4m3"].arguments,
    }
    for name, arguments in names.items():
        assert cpd.Scaled(name) == cpd.Scaled(**arguments), name
