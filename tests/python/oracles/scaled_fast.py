# SPDX-License-Identifier: Apache-2.0
"""A fast oracle of scaled formats for whole arrays.

The oracle `scaled_oracle` computes the scales; NumPy computes the elements. test_scaled_oracle.py
tests that the codes and the values equal the slow oracle's.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

import oracle
from oracle import Number, Options, power_of_two
from rationals import Fraction
from scaled_oracle import Array, Plan, Spec, plan, to_f32


@functools.cache
def _last_of_codes(element: oracle.Spec, rounding: str) -> Array:
    """Returns, for each code except the greatest, the greatest binary64 number rounded to it."""
    magnitudes = [element.magnitude(c) for c in range(element.max_code + 1)]
    last = []
    for code, (low, high) in enumerate(itertools.pairwise(magnitudes)):
        turn = high if rounding == "toward_zero" else (low + high) / 2
        assert Fraction(float(turn)) == turn
        stays = rounding == "nearest_even" and code % 2 == 0
        last.append(float(turn) if stays else np.nextafter(float(turn), 0))
    return np.array(last)


def fast_codes(element: oracle.Spec, quotients: Array, rounding: str = "nearest_even") -> Array:
    """Returns the codes of quotients (values divided by their scales) in the element format.

    Searches a table of the greatest quotient that is rounded to each code. The element format must
    be an integer or a signed format with negative zero. A NaN gets code 0 if the format has no NaN.
    """
    code = np.searchsorted(_last_of_codes(element, rounding), np.abs(quotients), side="left")
    if element.is_integer:
        code = np.where(np.signbit(quotients), -code % (1 << element.bits), code)
    else:
        code = code + np.signbit(quotients) * (1 << (element.exp + element.man))
    return np.where(np.isnan(quotients), element.nan_code or 0, code)


def fast_encode(x: Array, s: Spec, axis: int = -1, rounding: str = "nearest_even") -> Any:
    """Returns the codes and the binary32 values, both in x's shape, and the `Plan` of x's blocks:
    their scales and multipliers.

    Every multiplier must be a binary32 factor or a division by a power of two.
    """
    with np.errstate(all="ignore"):
        p = plan(x, s, axis, Options(rounding))
        flat, factor = x.reshape(-1).astype(np.float32), np.empty(len(p.multipliers))
        for b, m in enumerate(p.multipliers):
            factor[b] = np.float32(np.nan) if m.factor is None else m.factor
            if isinstance(m.divisor, Number):
                assert m.divisor.value == power_of_two(oracle.floor_log2(m.divisor.value))
                factor[b] = float(1 / m.divisor.value)
        if s.arithmetic == "exact":
            quotients = flat.astype(np.float64) * factor[p.block_of]
        else:
            quotients = (flat * factor.astype(np.float32)[p.block_of]).astype(np.float64)
        codes = fast_codes(s.element, quotients, rounding)
        table = [element_value(s.element, c) for c in range(1 << s.element.bits)]
        elements = np.where(np.isnan(quotients), np.nan, np.array(table)[codes])
        values = fast_product(elements, p)
    return codes.reshape(x.shape), values.reshape(x.shape), p


def element_value(element: oracle.Spec, code: int) -> float:
    return float(to_f32(element.decode(code)))


def fast_product(elements: Array, p: Plan) -> Array:
    """Decodes elements: multiplies them by their scales in binary64, then rounds to binary32.

    The products are exact for one e4m3 or e8m0 scale, and also if an outer binary32 scale follows.
    Other products with two scales are exact if their significands fit in 53 bits.
    """
    scales = np.array([float(to_f32(v)) for v in p.scales])
    outer = np.array([float(to_f32(v)) for v in p.outer])
    return (elements * scales[p.block_of] * outer[p.outer_of]).astype(np.float32)
