# SPDX-License-Identifier: Apache-2.0
"""An oracle for QSGD and TernGrad in rational numbers, value by value.

Norms and deviations are binary64 operations in the documented order; everything else is exact.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from rationals import Fraction

PARTIAL_SUMS = 16
INFINITY = Fraction(2) ** 128


def binary32(value: Fraction) -> float:
    """Returns the nearest binary32 number, ties to even; infinite beyond binary32's range."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(magnitude / unit) * unit  # Python rounds halves to even
    result = math.inf if rounded >= INFINITY else float(rounded)
    return math.copysign(result, value)


def root_in_binary32(value: Fraction) -> float:
    """Returns the square root, rounded once to binary32."""
    if value == 0:
        return 0.0
    # Truncate the root to 400 fractional bits. If the root is inexact, add half of the last bit:
    # the result is not a tie of binary32, and it is rounded like the exact root.
    scale = 2**400
    root = Fraction(math.isqrt(value.numerator * scale * scale // value.denominator), scale)
    if root * root != value:
        root += Fraction(1, 2 * scale)
    return binary32(root)


def _folded(sums: list[float]) -> float:
    half = PARTIAL_SUMS // 2
    while half > 0:
        for i in range(half):
            sums[i] += sums[i + half]
        half //= 2
    return sums[0]


def _fused(square: float, total: float) -> float:
    """Returns fma(square, square, total): the exact value, rounded once to binary64."""
    exact = Fraction(square) ** 2 + Fraction(total)
    return exact.numerator / exact.denominator  # CPython rounds true division once


def moments(x: np.ndarray, mean: float) -> tuple[float, float, int]:
    """Returns the sum of x - mean, the sum of (x - mean)^2, and the number of finite values.

    Both sums are over the finite values of x.
    `mean` may be any number.
    """
    sums, squares, finite = [0.0] * PARTIAL_SUMS, [0.0] * PARTIAL_SUMS, 0
    for i, value in enumerate(x.tolist()):
        if not math.isfinite(value):
            continue
        away = value - mean
        sums[i % PARTIAL_SUMS] += away
        squares[i % PARTIAL_SUMS] = _fused(away, squares[i % PARTIAL_SUMS])
        finite += 1
    return _folded(sums), _folded(squares), finite


def norm(x: np.ndarray, kind: str) -> float:
    """Returns a bucket's norm of kind 'max' or '2'; NaN if a value is NaN or infinite."""
    if not np.isfinite(x).all():
        return math.nan
    if kind == "max":
        return float(np.abs(x).max(initial=0))
    result = root_in_binary32(Fraction(moments(x, 0.0)[1]))
    return result if math.isfinite(result) else math.nan


def steps_of(bits: int, levels: str) -> int:
    """Returns the number of levels above zero. For `levels="intervals"`, returns the number of
    intervals."""
    return (1 << (bits if levels == "intervals" else bits - 1)) - 1


def code_bits(s: int) -> int:
    """Returns the least number of bits that can encode `s` levels above zero, `s` below, and 0."""
    bits = 0
    while 2**bits < 2 * s + 1:
        bits += 1
    return bits


def code_of(number: int, steps: int, levels: str, bits: int) -> int:
    """Returns the code of the QSGD level `number`, whose value is number * scale / steps.

    The code is `number` in two's complement. With `levels="intervals"`, the levels are -steps,
    -steps + 2, …, steps, and the code is the index of `number` among these.
    """
    return (number + steps) // 2 if levels == "intervals" else number % 2**bits


def packed(codes: list[int], bits: int) -> bytes:
    """Returns packed codes; the first code is in the lowest bits of the first byte."""
    word = sum(code << bits * i for i, code in enumerate(codes))
    return word.to_bytes(-(-len(codes) * bits // 8), "little")


def level(value: float, scale: float, steps: int, levels: str, random: int, bits: int) -> int:
    """Returns the level, in units of scale / steps, to which a value is rounded stochastically.

    `random` is the random integer, of `bits` bits.
    """
    if scale == 0:
        return 0
    place = Fraction(value) * steps / Fraction(scale)
    draws = 1 << bits
    if levels == "intervals":
        end = (place + steps) / 2
        below = math.floor(end)
        up = math.floor((end - below) * draws) + random >= draws
        return 2 * min(max(below + up, 0), steps) - steps
    below = math.floor(abs(place))
    up = math.floor((abs(place) - below) * draws) + random >= draws
    return min(below + up, steps) * (-1 if value < 0 else 1)


def value_of(number: int, scale: float, steps: int) -> float:
    """Returns number * scale / steps, the value of the QSGD level `number`, rounded once to
    binary32. A zero is never -0."""
    return binary32(Fraction(number) * Fraction(scale) / steps) if scale else 0.0


def qsgd(
    x: np.ndarray,
    random: np.ndarray,
    *,
    bits: int = 4,
    s: int | None = None,
    bucket: int | None = 512,
    norm_kind: str = "max",
    levels: str = "signed",
    random_bits: int = 24,
) -> np.ndarray:
    """Returns the values to which QSGD rounds a layer.

    If `bucket` is None, the layer is one bucket. `s` is the number of levels above zero; it
    replaces the number that follows from `bits`.
    """
    steps = s or steps_of(bits, levels)
    result = np.empty(x.size, np.float32)
    size = bucket or max(x.size, 1)
    for begin in range(0, x.size, size):
        part = x[begin : begin + size]
        scale = norm(part, norm_kind)
        for i, value in enumerate(part.tolist(), begin):
            if math.isnan(scale):
                result[i] = np.nan
                continue
            number = level(value, scale, steps, levels, int(random[i]), random_bits)
            result[i] = value_of(number, scale, steps)
    return result


def qsgd_bytes(
    x: np.ndarray, random: np.ndarray, *, steps: int, bits: int, bucket: int, levels: str = "signed"
) -> bytes:
    """Returns the bytes of a layer: the norms of all buckets, then codes of `bits` bits.

    A norm is the largest magnitude of a bucket. Rounding uses 24 random bits.
    """
    scales = [norm(x[begin : begin + bucket], "max") for begin in range(0, x.size, bucket)]
    codes = [
        code_of(
            level(value, scales[i // bucket], steps, levels, int(random[i]), 24),
            steps,
            levels,
            bits,
        )
        for i, value in enumerate(x.tolist())
    ]
    return np.array(scales, "<f4").tobytes() + packed(codes, bits)


def buckets_of_runs(n: int, bucket: int, whole: int) -> list[slice]:
    """Divides n values into groups of `whole` values, and the groups into buckets.

    Returns the range of values of each bucket. Each bucket gets groups until the next one would
    exceed `bucket` values. The last group may have fewer than `whole` values.
    """
    buckets, begin, end = [], 0, 0
    while end < n:
        if end + whole - begin > bucket:
            buckets.append(slice(begin, end))
            begin = end
        end += whole
    return [*buckets, slice(begin, n)]


def by_columns(x: np.ndarray, axis: int) -> list[int]:
    """Returns the row-major indices of x's values in the order of columns: a column has all values
    along `axis`."""
    axis %= x.ndim
    others = [range(n) for i, n in enumerate(x.shape) if i != axis]
    return [
        int(np.ravel_multi_index((*place[:axis], k, *place[axis:]), x.shape))
        for place in itertools.product(*others)
        for k in range(x.shape[axis])
    ]


def scaler(x: np.ndarray, clip: float | None) -> float:
    """Returns TernGrad's scaler of a layer.

    It is the largest finite magnitude, limited to `clip` population standard deviations if `clip`
    is given.
    """
    finite = x[np.isfinite(x)]
    largest = float(np.abs(finite).max(initial=0))
    if clip is None or finite.size == 0:
        return largest
    total, squares, count = moments(x, float(finite[0]))
    sigma = math.sqrt(max(squares - total * (total / count), 0.0) / count)
    return min(largest, binary32(Fraction(clip) * Fraction(sigma)))


def terngrad(
    x: np.ndarray, random: np.ndarray, scale: float, *, random_bits: int = 24
) -> np.ndarray:
    """Rounds a layer to TernGrad's levels -1, 0 and 1 of `scale`; NaN if a value is not finite."""
    result = np.empty(x.size, np.float32)
    for i, value in enumerate(x.tolist()):
        if not math.isfinite(value):
            result[i] = np.nan
        elif scale == 0:
            result[i] = 0
        else:
            result[i] = level(value, scale, 1, "signed", int(random[i]), random_bits)
    return result


def clipped(x: np.ndarray, limit: float) -> np.ndarray:
    """Returns the values with finite ones limited to ±limit, as section 3.3 of TernGrad does."""
    bound = np.float32(limit)
    return np.array([max(-bound, min(bound, v)) if np.isfinite(v) else v for v in x], np.float32)


def trits(levels: np.ndarray) -> bytes:
    """Packs ternary levels: five in a byte, the first in the lowest digit of base 3.

    The levels 0, 1 and -1 become the digits 0, 1 and 2.
    """
    digits = [int(v) % 3 for v in levels]
    return bytes(
        sum(digit * 3**place for place, digit in enumerate(digits[i : i + 5]))
        for i in range(0, len(digits), 5)
    )
