# SPDX-License-Identifier: Apache-2.0
"""An oracle for top-k with error feedback, scaled integers and FP8 rows, value by value.

Layers are lists of Python floats with binary32 values. Integers and residuals are rational numbers,
rounded once. FP8 rows repeat the binary32 operations of torchft's kernels in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import oracle
from rationals import Fraction

BINARY32 = oracle.Spec(8, 23)
E4M3FN = oracle.Spec(4, 3, 7, "fn")
Layer = Sequence[float]


def to_float(v: oracle.Value) -> float:
    return oracle.float_from_bits(oracle.bits_from_value(v))


def binary32(x: Fraction) -> float:
    """Returns a rational number rounded once to binary32, to nearest even."""
    return to_float(oracle.round_value(BINARY32, oracle.number(x)))


def add(a: float, b: float) -> float:
    total = oracle.add_values(oracle.value_from_double(a), oracle.value_from_double(b))
    return to_float(oracle.round_value(BINARY32, total))


# --- scaled integers -----------------------------------------------------------------------------


def integer_bucket(x: Layer, most: int, random: Sequence[int] | None, bits: int) -> list[float]:
    """Returns the decoded values of a bucket of scaled integers.

    The scale is the bucket's largest magnitude divided by the greatest integer, `most`, in
    binary32. Without `random`, exact quotients x / scale are rounded to nearest even. With
    `random`, a quotient is rounded away from zero if the first `bits` bits of its fraction plus the
    random integer overflow.
    """
    if not all(map(math.isfinite, x)):
        return [math.nan] * len(x)
    scale = Fraction(binary32(Fraction(max(map(abs, x), default=0)) / most))
    if scale == 0:
        return [0.0] * len(x)
    values = []
    for i, v in enumerate(x):
        quotient = abs(Fraction(v)) / scale
        level = math.floor(quotient)
        if random is None:
            level = round(quotient)
        elif math.floor((quotient - level) * 2**bits) + random[i] >= 2**bits:
            level += 1
        value = binary32(min(level, most) * scale)
        values.append(math.copysign(value, v) if level else 0.0)  # integers have no -0
    return values


def integers(
    x: Layer, most: int, bucket: int, random: Sequence[int] | None = None, bits: int = 24
) -> list[float]:
    """Returns the decoded values of a layer, bucket by bucket."""
    values: list[float] = []
    for begin in range(0, len(x), bucket):
        end = begin + bucket
        given = None if random is None else random[begin:end]
        values += integer_bucket(x[begin:end], most, given, bits)
    return values


# --- torchft -------------------------------------------------------------------------------------


def fp8_row(x: Layer) -> list[float]:
    """Returns the values of a row after torchft's FP8 kernels have encoded and decoded it.

    Divisions are rounded to nearest. The source is `_kernel_calculate_scale` and its callers in
    torchft/quantization.py (commit 001d404).
    """
    row = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        row_max = np.float32(0)
        for v in np.abs(row):
            row_max = row_max if np.isnan(v) else max(row_max, v)
        scale = np.float32(448) / row_max
        if np.isinf(scale):
            scale = np.float32(1)
        saturating = oracle.Options(overflow="saturate")
        codes = [
            to_float(oracle.round_value(E4M3FN, oracle.value_from_double(float(v)), saturating))
            for v in row * scale
        ]
        return [float(v) for v in np.asarray(codes, np.float32) / scale]


def fp8_rows(x: Layer, row: int) -> list[float]:
    values: list[float] = []
    for begin in range(0, len(x), row):
        values += fp8_row(x[begin : begin + row])
    return values


# --- top-k ---------------------------------------------------------------------------------------


class Sent(NamedTuple):
    places: list[int]
    values: list[float]
    """The decoded values of the whole layer; values that were not sent are zero."""
    residual: list[float]


def count(fraction: str, n: int) -> int:
    return math.ceil(Fraction(fraction) * n)


def size_of(v: float) -> float:
    return math.inf if math.isnan(v) else abs(v)


def largest(v: Layer, k: int) -> list[int]:
    """Returns the indices that top-k selects, in ascending order.

    They are the indices of every NaN and infinity and of the largest magnitudes. Among equal
    magnitudes, lower indices come first.
    """
    order = sorted(range(len(v)), key=lambda i: (-size_of(v[i]), i))
    non_finite = sum(not math.isfinite(a) for a in v)
    return sorted(order[: max(k, non_finite)])


def top_k(
    x: Layer, residual: Layer, fraction: str, inner: Callable[[Layer], list[float]] = list
) -> Sent:
    """Computes one call of top-k. `inner` encodes and decodes the list of the selected values."""
    v = [add(a, r) for a, r in zip(x, residual, strict=True)]
    places = largest(v, count(fraction, len(v)))
    values, left = [0.0] * len(v), list(v)
    for i, sent in zip(places, inner([v[i] for i in places]), strict=True):
        values[i] = sent
        if not math.isfinite(v[i]):
            left[i] = 0.0
        elif math.isfinite(sent):
            left[i] = add(v[i], -sent)
    return Sent(places, values, left)
