# SPDX-License-Identifier: Apache-2.0
"""A slow exact oracle in rational numbers, written from the definition of the formats.

It shares no code with the C++ library or the C++ oracle. It finds neighbors by dividing by the
spacing, not by searching codes. Finite values are ``Number``: a ``Fraction`` and the sign of a
zero. Binary32 values go in and out as ``int`` bit patterns.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rationals import Fraction

NAN_BITS = 0x7FC00000
MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd", "stochastic")
DETERMINISTIC_MODES = MODES[:-1]
POLICIES = ("ieee", "saturate")


@dataclass(frozen=True)
class Number:
    """A finite number.

    ``negative`` is True if the number has a minus sign. It distinguishes -0 from +0; for all other
    numbers it repeats the sign of ``value``.
    """

    value: Fraction
    negative: bool


@dataclass(frozen=True)
class Infinity:
    negative: bool


@dataclass(frozen=True)
class NotANumber:
    pass


NAN = NotANumber()
Value = Number | Infinity | NotANumber


@functools.cache
def power_of_two(k: int) -> Fraction:
    return Fraction(1 << k) if k >= 0 else Fraction(1, 1 << -k)


def number(value: Fraction | int, negative: bool | None = None) -> Number:
    value = Fraction(value)
    return Number(value, value < 0 if negative is None or value else negative)


def float_from_bits(bits: int) -> float:
    result: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return result


def bits_from_float(x: float) -> int:
    """Returns the bit pattern of a Python float that has a binary32 value."""
    if math.isnan(x):
        return NAN_BITS
    result: int = struct.unpack("<I", struct.pack("<f", x))[0]
    return result


def value_from_double(x: float) -> Value:
    if math.isnan(x):
        return NAN
    if math.isinf(x):
        return Infinity(x < 0)
    return number(Fraction(*x.as_integer_ratio()), math.copysign(1.0, x) < 0)


@functools.lru_cache(1 << 17)
def value_from_bits(bits: int) -> Value:
    return value_from_double(float_from_bits(bits))


def bits_from_value(v: Value) -> int:
    """Returns the binary32 bit pattern of v, which must be a binary32 value."""
    if isinstance(v, NotANumber):
        return NAN_BITS
    if isinstance(v, Infinity):
        return 0xFF800000 if v.negative else 0x7F800000
    x = math.copysign(float(abs(v.value)), -1.0 if v.negative else 1.0)
    bits = bits_from_float(x)
    if value_from_bits(bits) != v:
        raise ValueError(f"{v} is not a binary32 value")
    return bits


@dataclass(frozen=True)
class Spec:
    """A format, described by six fields."""

    exp: int
    man: int
    bias: int | None = None
    encoding: str = "ieee"
    signed: bool = True
    subnormals: bool = True

    @property
    def emin(self) -> int:
        if self.encoding == "e8m0":
            return -127
        bias = self.bias
        if bias is None:
            if self.is_integer:
                return self.man  # steps of 1
            wide = self.encoding in ("fnuz", "p3109", "p3109finite")
            bias = (1 << (self.exp - 1)) - (0 if wide else 1)
        return 1 - bias

    @property
    def is_integer(self) -> bool:
        return self.encoding in ("int", "int_full")

    @property
    def bits(self) -> int:
        return self.exp + self.man + self.signed

    @property
    def specials(self) -> int:
        """The number of magnitude codes of NaN and infinity, which are the greatest codes."""
        if self.encoding == "ieee":
            return 1 << self.man
        if self.encoding == "p3109":
            return 1 if self.signed else 2
        if self.encoding == "p3109finite":
            return 0 if self.signed else 1
        return {"fn": 1, "fnuz": 0, "finite": 0, "e8m0": 1, "int": 0, "int_full": 0}[self.encoding]

    @property
    def max_code(self) -> int:
        return (1 << (self.exp + self.man)) - self.specials - 1

    @property
    def has_inf(self) -> bool:
        return self.encoding in ("ieee", "p3109")

    @property
    def has_nan(self) -> bool:
        if self.encoding == "finite" or self.is_integer:
            return False
        return self.encoding != "ieee" or self.man > 0

    @property
    def has_negative_zero(self) -> bool:
        return (
            self.signed and self.encoding not in ("fnuz", "int", "int_full") and not self.is_p3109
        )

    @property
    def is_p3109(self) -> bool:
        return self.encoding in ("p3109", "p3109finite")

    def magnitude(self, code: int) -> Fraction:
        """Returns the value of a magnitude code, as if codes continued beyond the greatest."""
        if self.encoding == "e8m0":
            return power_of_two(code - 127)
        if self.is_integer:
            return code * power_of_two(self.emin - self.man)
        field, low = divmod(code, 1 << self.man)
        if field == 0:
            return low * power_of_two(self.emin - self.man) if self.subnormals else Fraction(0)
        return (1 + Fraction(low, 1 << self.man)) * power_of_two(self.emin + field - 1)

    @property
    def max(self) -> Fraction:
        return self.magnitude(self.max_code)

    def largest(self, negative: bool) -> int:
        """Returns the magnitude code of the greatest finite value. If `negative` is True, returns
        the magnitude code of the least finite value."""
        return self.max_code + (negative and self.encoding == "int_full")

    @property
    def lowest(self) -> Fraction:
        return -self.magnitude(self.largest(True)) if self.signed else self.magnitude(0)

    def representable(self) -> bool:
        """True if every finite value is a binary32 value, as the library requires."""
        if self.is_integer:
            return (
                (self.exp, self.signed, self.subnormals) == (1, True, True)
                and self.emin - self.man >= -149
                and self.emin + 1 <= 127
            )
        if not self.signed and self.encoding == "fnuz":
            return False
        if self.max_code < 0:
            return False
        values = [self.magnitude(c) for c in (1, 1 << self.man, self.max_code)]
        if self.emin - self.man < -149 or self.emin > 127:
            return False
        return max(values[0], values[2]) < power_of_two(128)

    def signed_number(self, magnitude: Fraction, negative: bool) -> Number:
        negative = negative and self.signed
        if magnitude:
            return Number(-magnitude if negative else magnitude, negative)
        return Number(magnitude, negative and self.has_negative_zero)

    def decode(self, code: int) -> Value:
        negative, magnitude = divmod(code, 1 << (self.exp + self.man))
        if self.is_integer:  # the least code, too, has its value
            return number((code - (negative << self.bits)) * self.magnitude(1))
        if negative and not magnitude and not self.has_negative_zero:
            return NAN
        if magnitude <= self.max_code:
            return self.signed_number(self.magnitude(magnitude), bool(negative))
        if self.has_inf and magnitude == self.max_code + 1:
            return Infinity(bool(negative))
        return NAN

    @property
    def nan_code(self) -> int | None:
        """The code of NaN, positive and quiet; None if the format has no NaN."""
        if not self.has_nan:
            return None
        top = 1 << (self.exp + self.man)
        if self.encoding == "ieee":
            return self.max_code + 1 + (1 << (self.man - 1))
        if self.encoding == "fnuz" or (self.is_p3109 and self.signed):
            return top
        return top - 1

    def finite_values(self) -> list[Fraction]:
        """Returns all finite values in ascending order, with one zero."""
        positive = {self.magnitude(c) for c in range(self.max_code + 1)}
        negative = {-v for v in positive} | {self.lowest} if self.signed else set()
        return sorted(positive | negative)


@dataclass(frozen=True)
class Options:
    rounding: str = "nearest_even"
    overflow: str = "ieee"
    variant: str = "A"
    random_bits: int = 24
    random: int = 0


def floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if power_of_two(guess) <= x else guess - 1


def round_half_even(x: Fraction) -> int:
    return round(x)  # of a Fraction: exact, ties to even


def _goes_away(o: Options, negative: bool, part: Fraction, odd_below: bool) -> bool:
    """Returns True if a value between two neighbors is rounded to the neighbor further from zero.

    The value lies at the fraction 0 < part < 1 of the gap.
    """
    scale = 1 << o.random_bits
    match o.rounding:
        case "nearest_even":
            return part > Fraction(1, 2) or (part == Fraction(1, 2) and odd_below)
        case "nearest_away":
            return part >= Fraction(1, 2)
        case "toward_zero":
            return False
        case "up":
            return not negative
        case "down":
            return negative
        case "to_odd":
            return not odd_below
        case "stochastic":
            if o.variant == "A":
                return math.floor(part * scale) + o.random >= scale
            if o.variant == "B":
                return math.floor(part * 2 * scale) + 2 * o.random + 1 >= 2 * scale
            return round_half_even(part * scale) + o.random >= scale
    raise ValueError(o.rounding)


def _round_magnitude(spec: Spec, x: Fraction, o: Options, negative: bool) -> int:
    """Returns the code of a rounded finite magnitude; the code exceeds max_code on overflow."""
    if spec.encoding == "e8m0":
        if x <= power_of_two(-127):
            return 0
        exponent = floor_log2(x)
        part = x / power_of_two(exponent) - 1
        code = exponent + 127
        return code + (part > 0 and _goes_away(o, negative, part, code % 2 == 1))
    if x == 0:
        return 0
    if spec.is_integer:
        steps = x / spec.magnitude(1)
        whole = math.floor(steps)
        part = steps - whole
        return whole + (part > 0 and _goes_away(o, negative, part, whole % 2 == 1))
    exponent = max(floor_log2(x), spec.emin)
    if not spec.subnormals and x < power_of_two(spec.emin):
        part = x / power_of_two(spec.emin)
        return (1 << spec.man) if _goes_away(o, negative, part, False) else 0
    spacings = x / power_of_two(exponent - spec.man)
    whole = math.floor(spacings)
    code = whole + ((exponent - spec.emin) << spec.man)
    part = spacings - whole
    return code + (part > 0 and _goes_away(o, negative, part, code % 2 == 1))


def _unbounded(spec: Spec, negative: bool, overflow: str) -> Value:
    if overflow == "ieee":
        if spec.has_inf:
            return Infinity(negative)
        if spec.has_nan and spec.encoding != "p3109finite":
            return NAN
    return spec.signed_number(spec.magnitude(spec.largest(negative)), negative)


def _negative_in_unsigned(spec: Spec, o: Options, finite: bool) -> Value:
    """Returns the result of casting a negative value to an unsigned format.

    P3109 formats turn a finite negative value into zero if they round toward zero or up.
    """
    clips = finite and spec.is_p3109 and o.rounding in ("toward_zero", "up")
    is_nan = o.overflow == "ieee" and spec.has_nan and not clips
    return NAN if is_nan else number(spec.magnitude(0))


def _overflows_inward(spec: Spec, o: Options, negative: bool) -> bool:
    """Returns True if a finite value beyond the range becomes the greatest finite value.

    Rounding to odd gives the greatest finite value too, except in P3109 formats whose infinity has
    an odd code.
    """
    if o.rounding == "to_odd" and o.overflow == "ieee" and spec.encoding == "p3109":
        return spec.max_code % 2 == 1
    return o.rounding in {"toward_zero", "to_odd", "up" if negative else "down"}


def round_value(spec: Spec, x: Value, o: Options = Options()) -> Value:
    """Returns x rounded once to the format."""
    if isinstance(x, NotANumber):
        return NAN
    if isinstance(x, Infinity):
        if x.negative and not spec.signed:
            return _negative_in_unsigned(spec, o, False)
        return _unbounded(spec, x.negative, o.overflow)
    code = _round_magnitude(spec, abs(x.value), o, x.negative)
    rounds_to_zero = code == 0 and spec.encoding != "e8m0"
    if not spec.signed and x.value < 0 and not rounds_to_zero:
        return _negative_in_unsigned(spec, o, True)
    if code > spec.largest(x.negative):
        if _overflows_inward(spec, o, x.negative):
            return spec.signed_number(spec.magnitude(spec.largest(x.negative)), x.negative)
        return _unbounded(spec, x.negative, o.overflow)
    return spec.signed_number(spec.magnitude(code), x.negative)


def add_values(a: Value, b: Value, o: Options = Options()) -> Value:
    """Returns the exact sum of a and b.

    If finite terms cancel, the sum is +0, or -0 if the rounding is "down" (IEEE 754-2019, 6.3).
    """
    if isinstance(a, NotANumber) or isinstance(b, NotANumber):
        return NAN
    if isinstance(a, Infinity):
        return NAN if isinstance(b, Infinity) and a.negative != b.negative else a
    if isinstance(b, Infinity):
        return b
    total = a.value + b.value
    if not (a.value or b.value) and a.negative == b.negative:
        return a
    return number(total, o.rounding == "down")


def multiply_values(a: Value, b: Value) -> Value:
    if isinstance(a, NotANumber) or isinstance(b, NotANumber):
        return NAN
    negative = a.negative != b.negative
    if isinstance(a, Infinity) or isinstance(b, Infinity):
        zero = any(isinstance(v, Number) and v.value == 0 for v in (a, b))
        return NAN if zero else Infinity(negative)
    return number(a.value * b.value, negative)


def negate(a: Value) -> Value:
    if isinstance(a, Number):
        return Number(-a.value, not a.negative)
    return Infinity(not a.negative) if isinstance(a, Infinity) else NAN


def as_value(x: int | Value) -> Value:
    """Returns the value of a binary32 bit pattern; returns a value unchanged."""
    return value_from_bits(x) if isinstance(x, int) else x


def cast(spec: Spec, x: int | Value, o: Options = Options()) -> int:
    return bits_from_value(round_value(spec, as_value(x), o))


def cast_double(spec: Spec, x: float, o: Options = Options()) -> int:
    return bits_from_value(round_value(spec, value_from_double(x), o))


def add(spec: Spec, a: int | Value, b: int | Value, o: Options = Options()) -> int:
    exact = add_values(as_value(a), as_value(b), o)
    return bits_from_value(round_value(spec, exact, o))


def subtract(spec: Spec, a: int | Value, b: int | Value, o: Options = Options()) -> int:
    exact = add_values(as_value(a), negate(as_value(b)), o)
    return bits_from_value(round_value(spec, exact, o))


def mul(spec: Spec, a: int | Value, b: int | Value, o: Options = Options()) -> int:
    exact = multiply_values(as_value(a), as_value(b))
    return bits_from_value(round_value(spec, exact, o))


def fma(spec: Spec, a: int | Value, b: int | Value, c: int | Value, o: Options = Options()) -> int:
    product = multiply_values(as_value(a), as_value(b))
    return bits_from_value(round_value(spec, add_values(product, as_value(c), o), o))


def encode(spec: Spec, bits: int, o: Options = Options()) -> int | None:
    """Returns the code of the rounded value; None for NaN if the format has no code for NaN."""
    v = round_value(spec, value_from_bits(bits), o)
    if isinstance(v, NotANumber):
        return spec.nan_code
    top = 1 << (spec.exp + spec.man)
    if isinstance(v, Infinity):
        return spec.max_code + 1 + (top if v.negative else 0)
    code = _round_magnitude(spec, abs(v.value), Options(), False)
    if spec.is_integer:
        return -code % (1 << spec.bits) if v.negative else code
    return code + (top if v.negative else 0)


def fold(
    spec: Spec,
    terms: Sequence[int | Value],
    o: Options = Options(),
    kahan: bool = False,
    step: Callable[[Options], Options] = lambda o: o,
) -> int:
    """Returns an ordered sum. The first term and each later sum is rounded to the format."""
    if not terms:
        return 0
    s, c = cast(spec, terms[0], step(o)), 0
    for x in terms[1:]:
        if not kahan:
            s = add(spec, s, x, step(o))
            continue
        y = subtract(spec, x, c, step(o))
        t = add(spec, s, y, step(o))
        c = subtract(spec, subtract(spec, t, s, step(o)), y, step(o))
        if not isinstance(value_from_bits(t), Number):
            c = 0
        s = t
    return s


def fold_chunked(
    outer: Spec,
    inner: Spec,
    chunk: int,
    terms: Sequence[int | Value],
    o: Options = Options(),
    step: Callable[[Options], Options] = lambda o: o,
) -> int:
    """Returns a chunked sum.

    The terms of a chunk are added in order, rounded to `inner`. The chunks' sums are added in
    order, rounded to `outer`.
    """
    total: int | None = None
    for begin in range(0, len(terms), chunk):
        part = fold(inner, terms[begin : begin + chunk], o, step=step)
        total = cast(outer, part, step(o)) if total is None else add(outer, total, part, step(o))
    return 0 if total is None else total


def fold_pairwise(
    spec: Spec,
    terms: Sequence[int | Value],
    o: Options = Options(),
    step: Callable[[Options], Options] = lambda o: o,
) -> int:
    """Returns a pairwise sum.

    The left part has 2^k terms, where 2^k is the largest power of two below the number of terms.
    The left part is summed first, then the right part, then both are added. A single term is
    rounded.
    """

    def tree(terms: Sequence[int | Value]) -> int | Value:
        if len(terms) == 1:
            return terms[0]
        left = 1 << (len(terms) - 1).bit_length() - 1
        a, b = tree(terms[:left]), tree(terms[left:])
        return add(spec, a, b, step(o))

    if len(terms) == 1:
        return cast(spec, terms[0], step(o))
    left = 1 << (len(terms) - 1).bit_length() - 1
    a, b = tree(terms[:left]), tree(terms[left:])
    return add(spec, a, b, step(o))
