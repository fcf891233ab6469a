# SPDX-License-Identifier: Apache-2.0
"""Compares the oracle of scaled formats to the golden vectors of the original implementations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oracle
import scaled_cases
import scaled_fast
import scaled_oracle
from scaled_cases import Array, Case, Outcome, Result, to_float

CASES = {case.key: case for case in scaled_cases.cases()}

NOT_SCALED = {"te_nvfp4.gemm.pairs", "te_nvfp4.gemm.y"}  # a product of scaled operands

vectors = pytest.mark.skipif(not CASES, reason=scaled_cases.REASON)


def some_in_quick() -> Any:
    """Returns a decorator that runs a test for each case of golden vectors, by the case's name.

    The quick tier has the cases of E4M3 and NVFP4 whose formats have neither candidate scales nor
    Hadamard transforms.
    test_scaled_golden.py compares the public operations to every case in the quick tier.
    """
    slow = pytest.mark.exhaustive

    def is_quick(case: Case) -> bool:
        two_levels = case.spec.tensor_scale is not None
        plain = case.spec.choose is None and "_rht" not in case.name
        return plain and (two_levels or case.arguments["element"] == "e4m3fn")

    names = [pytest.param(n, marks=() if is_quick(c) else slow) for n, c in CASES.items()]
    return pytest.mark.parametrize("name", names or ["absent"])


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


@vectors
def test_every_array_belongs_to_a_case() -> None:
    stored = {n for file in ("mx", "nvfp4", "fp8") for n in scaled_cases.load(file)}
    inputs = {n for n in stored if n.startswith("in.") or n.endswith(".rht_bf16")}
    of_cases = {f"{case.name}.{what}" for case in CASES.values() for what in case.arrays()}
    assert of_cases == stored - inputs - NOT_SCALED


@vectors
@some_in_quick()
def test_golden(name: str) -> None:
    """The oracle differs from the library that made a case in a known number of values.

    DIFFERING has these numbers. Each difference has a known reason.
    """
    assert sum(outcome(name).differing.values()) == scaled_cases.DIFFERING.get(name, 0)


def assert_fast_is_slow(case: Case, x: Array) -> None:
    ours, exact = fast(case, x), slow(case, x)
    for a, b in ((ours.scales, exact.scales), (ours.outer, exact.outer)):
        assert scaled_cases.same(a, b).all()
    known = ~np.isnan(ours.values) | (case.element.nan_code is not None)
    assert (ours.codes == exact.codes)[known].all()
    assert scaled_cases.same(ours.values, exact.values).all()
    finite = np.isfinite(ours.values)
    assert (np.signbit(ours.values) == np.signbit(exact.values))[finite].all()


@vectors
@some_in_quick()
def test_fast_is_slow(name: str) -> None:
    case = CASES[name]
    few = {1: slice(3, None, 48), 16: slice(0, 6), 128: slice(0, 4)}
    for x in case.inputs()[:: 11 if case.apart else 1]:
        tall = 128 if x.ndim == 3 else 16 if case.apart else 1
        assert_fast_is_slow(case, x[..., few[tall], :])


@vectors
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES or ["absent"])
def test_fast_is_slow_in_all(name: str) -> None:
    for x in CASES[name].inputs():
        assert_fast_is_slow(CASES[name], x)


@pytest.mark.parametrize("element", scaled_cases.ELEMENTS.values())
@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero"])
def test_fast_codes(element: str, rounding: str) -> None:
    """fast_codes gives the slow oracle's codes for all values of the element format, for the
    midpoints between them, and for the binary64 neighbors of both."""
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


# ---- known disagreements -------------------------------------------------------------------------


NVFP4: dict[str, Any] = {
    "element": "e2m1",
    "block": 2,
    "scale": "e4m3fn",
    "tensor_scale": "fp32",
}


@dataclass(frozen=True)
class Row:
    """The encoding of a single row: elements, scales and decoded values, as floats."""

    elements: list[float]
    scales: list[float]
    values: list[float]


def row(x: Sequence[float], dtype: Any = np.float32, **arguments: Any) -> Row:
    made = scaled_oracle.encode(np.array([x]).astype(dtype), scaled_cases.spec_of(arguments))
    values = np.array(made.values, np.uint32).view(np.float32).tolist()
    return Row([to_float(v) for v in made.elements], [to_float(v) for v in made.scales], values)


def test_logarithms_round_up() -> None:
    """For a largest value just below a power of two, microxcaling's scale is twice OCP's scale.

    With OCP's rule (floor), the value saturates.
    """
    below_eight, largest = float.fromhex("0x1.fffffep+2"), float(scaled_oracle.FLT_MAX)
    theirs = {"element": "e4m3fn", "arithmetic": "microxcaling"}
    assert row([below_eight], **theirs).values == [8]
    assert row([below_eight], element="e4m3fn").values == [7]
    assert row([largest], **theirs).values == [np.inf]
    assert row([largest], element="e4m3fn").values == [448 * 2.0**119]


@pytest.mark.parametrize("arithmetic", ["exact", "torchao"])
def test_rounding_up_of_the_scale(arithmetic: str) -> None:
    """For a value just above max * 2^k, the rule rceil takes a larger scale than 2^k.

    With the rule floor, the value saturates.
    """
    of = {"rule": "rceil", "arithmetic": arithmetic}
    assert row([float.fromhex("0x1.c00002p+8")], element="e3m2", **of).scales == [2.0**5]
    assert row([float.fromhex("0x1.e00002p+8")], element="e2m3", **of).scales == [2.0**7]
    assert row([1.9375], element="e4m3fn", rule="floor", arithmetic=arithmetic).values == [1.75]
    assert row([1.9375], element="e4m3fn", **of).values == [2]


def test_carry_of_the_largest() -> None:
    """With the rule `even`, the scale doubles if the largest value rounds up to a power of two.

    If the rounded value exceeds binary32, torchao's block becomes NaN.
    """
    largest = float(scaled_oracle.FLT_MAX)
    of = {"element": "e4m3fn", "rule": "even"}
    assert row([1.9375], **of).scales == [2.0**-7]
    assert row([float.fromhex("0x1.effffep+0")], **of).scales == [2.0**-8]
    assert row([largest], **of).scales == [2.0**120]
    assert np.isnan(row([largest], **of, arithmetic="torchao").values).all()


def test_order_of_operations_decides_ties_of_scales() -> None:
    x = [3.0, 0.0, 9 / 1024, 0.0]  # 1.3125, between 1.25 and 1.375
    for arithmetic, scale in (("exact", 1.25), ("torchao", 1.25), ("te", 1.375)):
        assert row(x, **NVFP4, arithmetic=arithmetic).scales == [448, scale], arithmetic
    x = [float.fromhex("0x1.4510bep+1"), 0.0, float.fromhex("0x1.b92902p-2"), 0.034]
    for arithmetic in ("exact", "torchao", "te"):  # 76, or a little more
        assert row(x, **NVFP4, arithmetic=arithmetic).scales == [448, 80], arithmetic
    assert row(x, **NVFP4, arithmetic="te", choose="mae").scales == [448, 72]  # 75.99999


def test_order_of_operations_decides_ties_of_elements() -> None:
    x = [float.fromhex("0x1.3fefep+1"), 0.0, 0.145, float.fromhex("0x1.ef24p-5")]
    for arithmetic, element in (("te", 3), ("torchao", 2)):
        made = row(x, **NVFP4, arithmetic=arithmetic)
        assert (made.scales[1], made.elements[3]) == (26, element)


def test_blocks_that_are_tiny_in_their_tensor() -> None:
    x = [1.0, 0.0, 1e-6, 0.0]
    te, torchao, exact = (row(x, **NVFP4, arithmetic=a) for a in ("te", "torchao", "exact"))
    assert (te.scales[1], te.elements[2], te.values[2]) == (0, 6, 0)
    assert (torchao.scales[1], torchao.elements[2]) == (2.0**-6, 0)
    assert (exact.scales[1], exact.elements[2]) == (0, 0)


def test_zeros() -> None:
    zeros = [0.0, -0.0]
    assert np.isnan(row(zeros, **NVFP4, arithmetic="torchao").values).all()
    one_level = {**NVFP4, "tensor_scale": None, "arithmetic": "torchao"}
    assert row(zeros, **one_level).scales == [2.0**-6]
    assert row(zeros, **NVFP4, arithmetic="te").scales == [0]
    assert row(zeros, **NVFP4).scales == [0]
    assert row(zeros, element="e4m3fn").scales == [2.0**-127]
    assert row(zeros, element="e4m3fn", scale="fp32", arithmetic="te").scales == [1]
    assert np.signbit(row(zeros, element="e4m3fn").values).tolist() == [False, True]


def test_least_amax() -> None:
    """Blocks with a tiny largest magnitude (amax) get the scale of a fixed least amax.

    DeepGEMM, torchao and TransformerEngine have such a limit, each with its own least amax.
    """
    of = {"element": "e4m3fn", "scale": "fp32"}
    assert row([1e-10], **of, arithmetic="deepgemm").values == [0]
    torchao = row([1e-13], **of, arithmetic="torchao").scales
    assert torchao == [float(1 / np.float32(448 / np.float32(1e-12).astype(float)))]
    for block, most in (("row", scaled_oracle.BF16_MAX), ("tensor", scaled_oracle.FLT_MAX)):
        made = row([1e-36], ml_dtypes.bfloat16, **of, block=block, arithmetic="te")
        assert made.scales == [float(1 / most)]


def test_the_better_candidate() -> None:
    """The rule that tries two scales takes the scale with the smaller error.

    If the scale maps the largest value to 6, the value 5 is a tie between 4 and 6. If the scale
    maps the largest value to 4, the errors are smaller.
    """
    x = [6.0, 5.0, 5.0, 5.0]
    of = {**NVFP4, "block": 4, "scale_max": 256}
    for arithmetic, error in itertools.product(("exact", "te"), ("mae", "mse")):
        assert row(x, **of, arithmetic=arithmetic).scales == [256]
        assert row(x, **of, arithmetic=arithmetic, choose=error).scales == [384], arithmetic
        assert row([6.0, 4.0, 4.0, 4.0], **of, arithmetic=arithmetic, choose=error).scales == [256]
