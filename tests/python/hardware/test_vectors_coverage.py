# SPDX-License-Identifier: Apache-2.0
"""Tests the coverage of test vectors. It distinguishes cases (such as an infinite result) that
cannot happen from cases that the vectors do not reach."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cpd.hardware import make_vectors
from cpd.hardware.vectors import coverage
from cpd.hardware.vectors.coverage import cannot_happen
from cpd.hardware.vectors.vectors import Vectors


def counted(made: Vectors) -> Counter[str]:
    for _ in made.batches():
        pass
    return made.coverage


@pytest.mark.parametrize(
    ("operation", "formats", "how"),
    [
        ("mul", "e3m2ieee", {}),
        ("mul", "e4m3fn", {}),
        ("mul", "e2m1", {"rounding": "toward_zero"}),
        ("mul", "e3m2ieee", {"nan_signals": True}),
        ("mul", "e4m3fn", {"nan_signals": True}),
        ("add", "e3m2ieee", {}),
        ("add", "e4m3fnuz", {"rounding": "down"}),
        ("add", "e4m3:nosub", {}),
        ("div", "e3m2ieee", {}),
        ("div", ("int4", "binary8p3ue"), {}),
        ("sqrt", "fp16", {}),
        ("sqrt", "e8m0", {}),
        ("fma", "e2m2", {}),
        ("fma", "e2m1", {"result": "e4m3fn"}),
        ("cast", ("fp16", "e4m3fn"), {}),
        ("cast", ("e5m2", "int8"), {}),
        ("cast", ("e4m3", "e2m1"), {"rounding": "stochastic", "random_bits": 4}),
        ("sum", "e2m1", {"accumulator": "e3m2ieee", "length": 3}),
        ("dot", "e2m1", {"accumulator": "e3m2ieee", "length": 1}),
        ("dot", "int2", {"accumulator": "int3", "length": 2}),
    ],
)
def test_cases_that_no_input_has(operation: str, formats: Any, how: dict[str, Any]) -> None:
    """`cannot_happen` names the cases, such as an infinite result, that no input gives: exactly
    those missing in a file of all inputs. It names the same if all cases have a count of zero."""
    every = make_vectors(operation, formats, exhaustive=True, **how)
    counts = counted(every)
    never = {name for name, count in counts.items() if count == 0}
    assert cannot_happen(every.rule, counts, is_exhaustive=True) == never
    assert cannot_happen(every.rule, dict.fromkeys(counts, 0)) == never
    assert cannot_happen(every.rule, counts) == never


@pytest.mark.parametrize(
    ("operation", "formats", "never"),
    [
        ("mul", "fp16", {"cancellation", "DZ"}),
        ("div", "bf16", {"cancellation"}),
        ("add", "fp32", {"DZ"}),
        ("fma", ("e4m3fn", "e4m3fn", "fp32"), {"infinity_out", "DZ"}),
        ("cast", ("fp32", "e2m1"), {"cancellation", "infinity_out", "nan_out", "DZ"}),
    ],
)
def test_many_inputs_are_not_tried(
    operation: str, formats: Any, never: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "exhaustive", lambda _: pytest.fail("inputs were tried"))
    made = make_vectors(operation, formats, random=1)
    assert cannot_happen(made.rule, dict.fromkeys(counted(made), 0)) == never


def test_inputs_are_tried_until_every_case_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    every = coverage.exhaustive
    monkeypatch.setattr(
        coverage, "exhaustive", lambda fields: (tried.append(1) or each for each in every(fields))
    )
    rule = make_vectors("fma", "e4m3", random=1).rule
    assert cannot_happen(rule, {"exact": 0, "positive_zero": 0, "NX": 3}) == set()
    assert len(tried) == 1  # the first of 128 batches suffices


def test_the_sum_of_a_unit_is_never_negative_zero() -> None:
    made = make_vectors("block_fma", accumulator="h100-fp8", random=9)
    never = cannot_happen(made.rule, dict.fromkeys(counted(made), 0))
    assert "negative_zero" in never


@pytest.mark.parametrize(
    ("operation", "unit", "field", "case", "is_case"),
    [
        ("block_fma", "h100-fp8", "c", "infinity_in", lambda c: c & 0x7FFFFFFF == 0x7F800000),
        ("mma", "rtx-blackwell-nvfp4", "c", "infinity_in", lambda c: c & 0x7FFFFFFF == 0x7F800000),
        ("mma", "rtx-blackwell-mxfp4", "a_scale", "nan_in", lambda scale: scale == 0xFF),
    ],
)
def test_cases_of_addends_and_scales_are_counted(
    operation: str, unit: str, field: str, case: str, is_case: Any
) -> None:
    """Coverage counts kinds of numbers, such as subnormals, also for the addend c and for scales.
    The test recognizes these kinds by their codes in binary32 and in OCP's E8M0."""
    made = make_vectors(operation, accumulator=unit, directed=True)
    lines = 0
    for batch in made.batches():
        found = is_case(batch[field]).reshape(len(batch["result"]), -1)
        lines += int(found.any(axis=1).sum())
    assert 0 < lines <= made.coverage[case]
    assert case not in cannot_happen(made.rule, dict.fromkeys(made.coverage, 0))
