# SPDX-License-Identifier: Apache-2.0
"""An oracle for quotients, square roots and exception flags, in rational numbers.

It follows the definitions and extends `oracle`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from oracle import (
    NAN,
    Infinity,
    NotANumber,
    Number,
    Options,
    Spec,
    Value,
    _goes_away,
    _round_magnitude,
    add_values,
    floor_log2,
    multiply_values,
    number,
    power_of_two,
    round_value,
)
from rationals import Fraction

NX, UF, OF, DZ, NV = 1, 2, 4, 8, 16
COUNTS = {"cast": 1, "add": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1}
_DIGITS = 400
"""An irrational square root of a is computed with _DIGITS - floor(log2(a)) fraction bits, at least
0. So a root has 200 significant bits or more. Rounding needs at most 79 of them: 53 bits of the
result and 26 below, which decide the rounding.
"""


def divide_values(a: Value, b: Value) -> Value:
    if isinstance(a, NotANumber) or isinstance(b, NotANumber):
        return NAN
    negative = a.negative != b.negative
    if isinstance(a, Infinity):
        return NAN if isinstance(b, Infinity) else Infinity(negative)
    if isinstance(b, Infinity):
        return number(0, negative)
    if b.value == 0:
        return NAN if a.value == 0 else Infinity(negative)
    return number(a.value / b.value, negative)


def root_value(a: Value) -> Value:
    """Returns the square root of a, or a rational number that every format rounds like the root.

    An irrational root lies between two neighboring fractions with a limited number of bits, and the
    result for such a root is the middle of these fractions.
    """
    if isinstance(a, NotANumber) or (isinstance(a, Number) and a.value == 0):
        return a
    if a.negative:
        return NAN
    if isinstance(a, Infinity):
        return a
    scale = max(0, _DIGITS - floor_log2(a.value))
    scaled = a.value * power_of_two(2 * scale)
    whole = math.isqrt(math.floor(scaled))
    ends = whole * whole == scaled
    return number((whole if ends else whole + Fraction(1, 2)) / power_of_two(scale))


def exact(operation: str, operands: Sequence[Value], o: Options) -> Value:
    match operation, *operands:
        case "cast", x:
            return x
        case "add", x, y:
            return add_values(x, y, o)
        case "mul", x, y:
            return multiply_values(x, y)
        case "fma", x, y, z:
            return add_values(multiply_values(x, y), z, o)
        case "div", x, y:
            return divide_values(x, y)
        case "sqrt", x:
            return root_value(x)
    raise ValueError(operation)


def is_nan(x: Value) -> bool:
    return isinstance(x, NotANumber)


def is_tiny(spec: Spec, x: Fraction, o: Options, negative: bool, tininess: str) -> bool:
    """Returns True if a nonzero magnitude is tiny, detected before or after rounding (`tininess`).

    After rounding means: rounded with an unbounded exponent range.
    """
    if spec.is_integer:
        return False  # one grid: what is inexact is no less precise near zero
    if tininess == "before":
        return x < power_of_two(spec.emin)
    exponent = floor_log2(x)
    places = x / power_of_two(exponent - spec.man)
    below = math.floor(places)
    first = 0 if spec.encoding == "e8m0" else 1  # the code of 2^emin, in units of 2^man
    code = below + ((exponent - spec.emin + first - 1) << spec.man)
    away = places != below and _goes_away(o, negative, places - below, code % 2 == 1)
    return (below + away) * power_of_two(exponent - spec.man) < power_of_two(spec.emin)


def signalling(x: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns a mask of the signaling NaNs in x, whose first fraction bit is 0."""
    info = np.finfo(x.dtype)
    bits = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    quiet = bits >> bits.dtype.type(info.nmant - 1) & bits.dtype.type(1)
    return np.isnan(x) & (quiet == 0)


def is_signalling(spec: Spec, code: int) -> bool:
    """Returns True if a code is a signaling NaN.

    Only NaNs of IEEE formats can signal; a NaN signals if its first mantissa bit is 0.
    """
    of_ieee = spec.encoding == "ieee" and is_nan(spec.decode(code))
    return of_ieee and not code >> (spec.man - 1) & 1


def result(
    operation: str,
    operands: Sequence[Value],
    spec: Spec,
    o: Options,
    tininess: str = "after",
    signals: bool = False,
) -> tuple[Value, int]:
    """Returns the value of one operation, rounded once, and its flags.

    `signals`: whether an operand is a signaling NaN.
    """
    x = exact(operation, operands, o)
    made = round_value(spec, x, o)
    if is_nan(x):
        given = any(map(is_nan, operands))
        return made, 0 if given and spec.has_nan and not signals else NV
    if isinstance(x, Infinity):
        if operation == "div" and isinstance(operands[0], Number):
            return made, DZ
        if x.negative and not spec.signed:
            return made, NV if is_nan(made) else OF | NX
        return made, 0 if made == x else OF | NX
    if x.value < 0 and is_nan(made) and not spec.signed:
        return made, NV
    flags = 0
    if not isinstance(made, Number) or made.value != x.value:
        flags |= NX
    magnitude = abs(x.value)
    if flags and magnitude and is_tiny(spec, magnitude, o, x.negative, tininess):
        flags |= UF
    exceeds = _round_magnitude(spec, magnitude, o, x.negative) > spec.largest(x.negative)
    if exceeds and (spec.signed or not x.negative):
        flags |= OF
    return made, flags
