# SPDX-License-Identifier: Apache-2.0
"""Tests the sign of a zero sum and the code of a NaN, as HARDWARE.md documents them. The oracle and
the kernels agree on both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd
from cpd.hardware import make_vectors
from cpd.hardware.vectors.values import values_of
from vector_cases import columns

GUIDE = Path(__file__).parents[3] / "python" / "HARDWARE.md"


def is_minus_zero(values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    return (values == 0) & np.signbit(values)


@pytest.mark.parametrize(
    ("operation", "formats", "accumulator", "ordered"),
    [
        ("dot", "e4m3fn", "fp32", True),
        ("dot", "fp16", "fp32 kahan", True),
        ("dot", "e5m2", "fp16 fma", True),
        ("sum", "fp16", "fp16", True),
        ("dot", "e4m3fn", "fp32 chunked chunk=4", False),
        ("block_fma", (), "h100-fp16", False),
        ("block_fma", (), "h100-fp8", False),
        ("block_fma", (), "v100", False),
        ("block_fma", (), "deepseek-promoted", False),
        ("block_fma", (), "cdna1-fp16", False),
        ("block_fma", (), "cdna2-bf16", False),
        ("block_fma", (), "cdna3-fp16", False),
        ("block_fma", (), "fp16 block_fma a=e5m2 b=e5m2 block=4 fraction_bits=9 sum=fp16", False),
        (
            "block_fma",
            (),
            "bf16 block_fma a=fp16 b=fp16 block=4 fraction_bits=20 addend=separate sum=bf16 "
            "sum_rounding=nearest_even",
            False,
        ),
        ("mma", (), "rtx-blackwell-mxfp8", False),
    ],
)
def test_the_sign_of_a_sum_of_zeros(
    operation: str, formats: Any, accumulator: str, ordered: bool
) -> None:
    """A sum of zeros is -0 if c and all terms are -0 and the terms are added one by one. Otherwise
    the sum is +0."""
    made = make_vectors(operation, formats, accumulator=accumulator, directed=True)
    lines, rule = columns(made), made.rule
    with np.errstate(invalid="ignore"):
        terms = values_of(rule.formats[0], lines["a"]).astype(np.float64)
        if "b" in lines:
            terms = terms * values_of(rule.formats[1], lines["b"])
    every = terms
    if "c" in lines:
        every = np.column_stack([values_of(rule.formats[2], lines["c"]), terms])
    zero = (every == 0).all(axis=1)
    for name in ("a_scale", "b_scale"):
        if name in lines:
            zero &= (lines[name] != 0xFF).reshape(len(zero), -1).all(axis=1)
    results = values_of(rule.result, lines["result"])[zero]
    negative = np.signbit(every[zero]).all(axis=1)
    assert negative.sum() > 0
    assert (~negative).sum() > 10
    assert (results == 0).all()
    np.testing.assert_array_equal(is_minus_zero(results), negative & ordered)


@pytest.mark.parametrize("preset", ["h100-fp16", "v100", "turing-fp16"])
def test_a_block_that_rounds_to_zero_is_positive(preset: str) -> None:
    """If a matrix unit's sum of a block of products rounds to zero, the result is +0, even for a
    negative sum. Here a single negative product lies below half of fp16's least number."""
    unit = cpd.Accumulator(preset)
    assert unit is not None
    accumulator = cpd.Accumulator("fp16", scheme=preset)
    a, b = np.zeros((1, unit.block), np.float32), np.zeros((unit.block, 1), np.float32)
    a[0, 0], b[0, 0] = -(2.0**-14), 2.0**-14
    assert -(2.0**-25) < float(a[0] @ b[:, 0]) < 0
    result = cpd.gemm(a, b, accumulator)
    assert result.item() == 0
    assert not np.signbit(result).any()


@pytest.mark.parametrize("name", ["fp16", "e5m2", "e4m3fn"])
def test_a_sum_with_exact_products_raises_flags_as_fma_does(name: str) -> None:
    """A sum with exact products raises the flags that fma raises. The test vectors include Inf · 0
    plus a quiet NaN, which raises no flag."""
    fma = make_vectors("fma", name, directed=True)
    lines = columns(fma)
    dot = make_vectors("dot", name, accumulator=f"{name} fma", length=1, random=1).rule
    given = {key: lines[key] for key in "abc"}
    outputs, _ = dot.results(given)
    nan = np.isnan(values_of(fma.rule.result, lines["c"]))
    invalid = np.isinf(values_of(fma.rule.result, lines["a"]))
    invalid &= values_of(fma.rule.result, lines["b"]) == 0
    assert (nan & invalid).any() == (name != "e4m3fn")
    np.testing.assert_array_equal(outputs["result"], lines["result"])
    np.testing.assert_array_equal(outputs["flags"], lines["flags"])


def table() -> dict[str, int]:
    """Returns the code of NaN for each format in HARDWARE.md's table."""
    rows = re.findall(r"^\| (`.*`) \| `0x([0-9A-F]+)` \|", GUIDE.read_text(), re.M)
    return {name: int(code, 16) for names, code in rows for name in re.findall(r"`(.+?)`", names)}


def test_the_table_has_every_kind_of_format() -> None:
    encodings = {cpd.Format(name).encoding for name in table()}
    assert encodings == {"ieee", "fn", "fnuz", "p3109", "p3109finite", "e8m0"}


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32", "e4m3", "e5m2", *table()])
def test_the_code_of_a_nan(name: str) -> None:
    """Every operation returns the documented code of NaN for NaN operands, for invalid operations
    and, in `fn` formats, for overflow."""
    f = cpd.Format(name)
    expected = table()[name]
    for operation in ("cast", "add", "mul", "fma", "div", "sqrt"):
        lines = columns(
            make_vectors(operation, (f, f) if operation == "cast" else f, directed=True)
        )
        values = values_of(f, lines["result"])
        assert set(lines["result"][np.isnan(values)].tolist()) == {expected}
    if f.encoding != "e8m0":
        lines = columns(
            make_vectors("dot", f, accumulator=cpd.Accumulator(f), length=4, directed=True)
        )
        values = values_of(f, lines["result"])
        assert set(lines["result"][np.isnan(values)].tolist()) == {expected}
