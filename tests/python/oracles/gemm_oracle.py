# SPDX-License-Identifier: Apache-2.0
"""An oracle for `cpd.gemm`: matrix products in exact rational arithmetic, rounded step by step.

Numbers go in and out as binary32 bit patterns (ints), as in `oracle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from oracle import (
    NAN,
    Infinity,
    NotANumber,
    Number,
    Options,
    Spec,
    Value,
    add_values,
    bits_from_value,
    floor_log2,
    multiply_values,
    negate,
    number,
    power_of_two,
    round_value,
    value_from_bits,
)
from rationals import Fraction
from reduce_oracle import FP32, draws_per_word, fold_integer

ZERO = number(0, False)


@dataclass(frozen=True)
class Unit:
    """A matrix unit, which adds a block of products that it first cuts to a common precision.

    Products are cut `fraction_bits` bits below the greatest exponent of the block.
    """

    a: Spec
    b: Spec
    block: int
    fraction_bits: int
    sum: Spec = FP32
    rounding: str = "toward_zero"
    aligns_addend: bool = True
    min_exponent: int = -133
    promote: int = 0
    scale: Spec | None = None
    scale_block: int = 32
    dot: int = 1
    adder: str = "aligned"
    group: int = 0
    stride: int = 4
    take: int = 2


@dataclass(frozen=True)
class Accumulation:
    """The options of a `cpd.Accumulator`, in the types of this oracle.

    If `product` is None, products are rounded to the accumulator's format.
    """

    format: Spec
    scheme: str = "sequential"
    product: Spec | str | None = None
    inner: Spec | None = None
    chunk: int = 64
    unit: Unit | None = None
    options: Options = field(default_factory=Options)
    seed: int = 0
    stream: int = 0
    given: Sequence[Sequence[int]] | None = None
    """The caller's integers for stochastic rounding (`random=`), for each element of the result, or
    None. An element's first integer rounds c; the others round the operations in their order."""


class _Roundings:
    """Rounds the intermediate values of one element of the result. Each rounding uses the element's
    next random integer."""

    def __init__(self, acc: Accumulation, index: int) -> None:
        self.acc, self.index = acc, index
        self.next_draw = 4 * draws_per_word(acc.options.random_bits) if acc.given is None else 1

    def addend(self, spec: Spec, x: Value) -> Value:
        return self._round(spec, x, 0)

    def __call__(self, spec: Spec, x: Value) -> Value:
        self.next_draw += 1
        return self._round(spec, x, self.next_draw - 1)

    def add(self, spec: Spec, x: Value, y: Value) -> Value:
        return self(spec, add_values(x, y, self.acc.options))

    def _round(self, spec: Spec, x: Value, draw: int) -> Value:
        o = self.acc.options
        if o.rounding == "stochastic":
            o = replace(o, random=self._integer(draw))
        return round_value(spec, x, o)

    def _integer(self, draw: int) -> int:
        if self.acc.given is not None:
            return self.acc.given[self.index][draw]
        acc = self.acc
        return fold_integer(self.index, draw, acc.options.random_bits, acc.seed, acc.stream)


def element(
    a: Sequence[int], b: Sequence[int], c: int | None, acc: Accumulation, index: int = 0
) -> int:
    """Returns element `index` (row-major) of a product, from a row of a and a column of b."""
    start = ZERO if c is None else value_from_bits(c)
    return bits_from_value(_sum(_pairs(a, b), start, acc, _Roundings(acc, index)))


def _pairs(a: Sequence[int], b: Sequence[int]) -> Pairs:
    return [(value_from_bits(x), value_from_bits(y)) for x, y in zip(a, b, strict=True)]


def _sum(
    pairs: Pairs, start: Value, acc: Accumulation, rounded: _Roundings, scales: Pairs | None = None
) -> Value:
    if acc.unit is not None:
        return _block_fma(pairs, start, acc, acc.unit, rounded, scales)
    s = rounded.addend(acc.format, start)
    scheme = {
        "sequential": _sequential,
        "kahan": _kahan,
        "chunked": _chunked,
        "pairwise": _pairwise,
    }[acc.scheme]
    return scheme(s, pairs, acc, rounded)


def gemm(
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[int]] | None,
    acc: Accumulation,
) -> list[int]:
    """Returns the product of a and b, given by rows, in row-major order."""
    columns = list(zip(*b, strict=True)) if b else []
    return [
        element(row, column, None if c is None else c[i][j], acc, i * len(columns) + j)
        for i, row in enumerate(a)
        for j, column in enumerate(columns)
    ]


# ---- scaled operands -----------------------------------------------------------------------------

ONE = number(1, False)


@dataclass(frozen=True)
class Scales:
    """The scales of one element of a scaled product.

    `a` and `b` have a scale for each product, as bit patterns.
    """

    a: Sequence[int]
    b: Sequence[int]
    block: int
    epilogue: bool = False
    factors: tuple[int, int] | None = None


def scaled_element(
    a: Sequence[int],
    b: Sequence[int],
    c: int | None,
    acc: Accumulation,
    scales: Scales,
    index: int = 0,
) -> int:
    """Returns element number `index` of the product of scaled operands."""
    pairs, by = _pairs(a, b), _pairs(scales.a, scales.b)
    rounded = _Roundings(acc, index)
    addend = None if c is None else value_from_bits(c)
    if acc.unit is not None and acc.unit.scale is not None:
        start = ZERO
        if addend is not None and scales.factors is None:
            start, addend = addend, None
        total = _sum(pairs, start, acc, rounded, by)
    elif scales.epilogue:
        total = _scaled(by[0], _sum(pairs, ZERO, acc, rounded))
    else:
        total = ZERO
        for k in range(0, len(pairs), scales.block):
            part = _sum(pairs[k : k + scales.block], ZERO, acc, rounded)
            total = _fp32(add_values(total, _scaled(by[k], part), Options()))
    if scales.factors is not None:
        total = _scaled(_pairs(*[[x] for x in scales.factors])[0], total)
    if addend is not None:
        total = _fp32(add_values(total, addend, Options()))
    return bits_from_value(total)


def _fp32(x: Value) -> Value:
    return round_value(FP32, x, Options())


def _scaled(scales: tuple[Value, Value], x: Value) -> Value:
    return _fp32(multiply_values(_fp32(multiply_values(*scales)), x))


Pairs = Sequence[tuple[Value, Value]]


def _product(pair: tuple[Value, Value], acc: Accumulation, rounded: _Roundings) -> Value:
    exact = multiply_values(*pair)
    if acc.product == "exact":
        return exact
    spec = acc.product if isinstance(acc.product, Spec) else acc.format
    return rounded(spec, exact)


def _sequential(
    s: Value, pairs: Pairs, acc: Accumulation, rounded: _Roundings, spec: Spec | None = None
) -> Value:
    for pair in pairs:
        p = _product(pair, acc, rounded)
        s = rounded.add(spec or acc.format, s, p)
    return s


def _kahan(s: Value, pairs: Pairs, acc: Accumulation, rounded: _Roundings) -> Value:
    f = acc.format
    compensation: Value = ZERO
    for pair in pairs:
        p = _product(pair, acc, rounded)
        y = rounded.add(f, p, negate(compensation))
        t = rounded.add(f, s, y)
        grown = rounded.add(f, t, negate(s))
        compensation = rounded.add(f, grown, negate(y))
        if not isinstance(t, Number):
            compensation = ZERO
        s = t
    return s


def _chunked(s: Value, pairs: Pairs, acc: Accumulation, rounded: _Roundings) -> Value:
    for begin in range(0, len(pairs), acc.chunk):
        part = pairs[begin : begin + acc.chunk]
        t = _sequential(ZERO, part, acc, rounded, acc.inner or acc.format)
        s = rounded.add(acc.format, s, t)
    return s


def _pairwise(s: Value, pairs: Pairs, acc: Accumulation, rounded: _Roundings) -> Value:
    """Returns s plus the sum of the products, which are added as a binary tree of 2^n leaves.

    The left half of each subtree is computed before the right half. Leaves beyond the last product
    are left out, without an addition.
    """
    if not pairs:
        return s

    def tree(begin: int, size: int) -> Value:
        if size == 1:
            return _product(pairs[begin], acc, rounded)
        left = tree(begin, size // 2)
        if begin + size // 2 >= len(pairs):
            return left
        right = tree(begin + size // 2, size // 2)
        return rounded.add(acc.format, left, right)

    size = 1
    while size < len(pairs):
        size *= 2
    return rounded.add(acc.format, s, tree(0, size))


# ---- matrix units --------------------------------------------------------------------------------


def _block_fma(
    pairs: Pairs,
    start: Value,
    acc: Accumulation,
    unit: Unit,
    rounded: _Roundings,
    scales: Pairs | None,
) -> Value:
    pairs = _in_order(pairs, unit)
    scales = scales or [(ONE, ONE)] * len(pairs)
    if not unit.promote:
        s = _chain(round_value(unit.sum, start, Options(unit.rounding)), pairs, scales, unit)
        return rounded(acc.format, s)
    total = rounded.addend(acc.format, start)
    for begin in range(0, len(pairs), unit.promote):
        stretch = slice(begin, begin + unit.promote)
        part = _chain(ZERO, pairs[stretch], scales[stretch], unit)
        total = rounded.add(acc.format, total, part)
    return total


def _in_order(pairs: Pairs, unit: Unit) -> Pairs:
    """Returns the pairs of operands in the order in which the matrix unit adds their products.

    Pairs of zeros complete the last group of `unit.group` pairs.
    """
    if unit.group == 0:
        return pairs
    padded = [*pairs, *[(ZERO, ZERO)] * (-len(pairs) % unit.group)]
    order = sorted(
        range(len(padded)),
        key=lambda k: (k // unit.group, k % unit.group % unit.stride // unit.take, k),
    )
    return [padded[k] for k in order]


def _chain(s: Value, pairs: Pairs, scales: Pairs, unit: Unit) -> Value:
    for begin in range(0, len(pairs), unit.block):
        block = slice(begin, begin + unit.block)
        s = _one_block(s, pairs[block], scales[block], unit)
    return s


def _exponent(x: Number, emin: int) -> int:
    return max(floor_log2(abs(x.value)), emin)


def _finite(x: Value) -> Number:
    assert isinstance(x, Number)
    return x


def _magnitude(x: Value) -> Value:
    return negate(x) if getattr(x, "negative", False) else x


def _term_exponent(pair: tuple[Value, Value], scales: tuple[Value, Value], unit: Unit) -> int:
    e = 0
    if unit.dot == 1:
        e += _exponent(_finite(pair[0]), unit.a.emin) + _exponent(_finite(pair[1]), unit.b.emin)
    if unit.scale is not None:
        e += sum(_exponent(_finite(scale), unit.scale.emin) for scale in scales)
    return e


def _cut(x: Fraction, quantum: Fraction) -> Fraction:
    """Returns x rounded toward zero to a multiple of `quantum`."""
    whole = abs(x) // quantum * quantum
    return -whole if x < 0 else whole


def _one_block(s: Value, pairs: Pairs, scales: Pairs, unit: Unit) -> Value:
    if unit.adder == "flushed_pairs":
        return _flushed_pairs(s, pairs, unit)
    values = [
        multiply_values(multiply_values(x, y), multiply_values(_magnitude(u), _magnitude(v)))
        for (x, y), (u, v) in zip(pairs, scales, strict=True)
    ]
    if unit.adder.startswith("two_steps"):
        values = [_limited(value) for value in values]
    special = _special_sum([*values, s])
    if special is not None:
        return round_value(unit.sum, special, Options(unit.rounding))
    if unit.adder != "aligned":
        total = _other_total(_finite(s), [_finite(x).value for x in values], pairs, unit)
        return round_value(unit.sum, number(total, False), Options(unit.rounding))
    terms: list[tuple[Fraction, int]] = []
    for begin in range(0, len(pairs), unit.dot):
        value = sum((_finite(x).value for x in values[begin : begin + unit.dot]), Fraction(0))
        if value:
            terms.append((value, _term_exponent(pairs[begin], scales[begin], unit)))
    assert isinstance(s, Number)
    if unit.aligns_addend and s.value:
        terms.append((s.value, _exponent(s, unit.sum.emin)))
    greatest = max([unit.min_exponent] + [e for _, e in terms])
    quantum = power_of_two(greatest - unit.fraction_bits)
    total = sum((_cut(value, quantum) for value, _ in terms), Fraction(0))
    if not unit.aligns_addend:
        total += s.value
    if unit.sum.has_inf and abs(total) >= _beyond(unit.sum):
        return Infinity(total < 0)
    rounded = round_value(unit.sum, number(total, False), Options(unit.rounding))
    return ZERO if isinstance(rounded, Number) and rounded.value == 0 else rounded


# ---- other adders than the aligned one


def _other_total(s: Number, values: list[Fraction], pairs: Pairs, unit: Unit) -> Fraction:
    if unit.adder == "exact":
        return sum(values, s.value)
    f = unit.fraction_bits
    terms = [
        (value, _term_exponent(pair, (ONE, ONE), unit))
        for value, pair in zip(values, pairs, strict=True)
    ]
    halves = unit.adder == "two_steps_even"
    if halves:
        (even, e_even), (odd, e_odd) = _cut_sum(terms[::2], f), _cut_sum(terms[1::2], f)
        e = max(e_even, e_odd)
        dot = _floor(even, e - f) + _floor(odd, e - f)
    else:
        dot, e = _cut_sum(terms, f)
    e_s = _exponent(s, unit.sum.emin) if s.value else unit.min_exponent
    greatest = max(e, e_s, unit.min_exponent)
    kept = s.value if not halves or e_s >= greatest - f - 1 else Fraction(0)
    total = _floor(dot, greatest - f - 8) + _floor(kept, greatest - f)
    return _floor(total, max(floor_log2(abs(total)), unit.sum.emin) - f - 7) if total else total


def _cut_sum(terms: Sequence[tuple[Fraction, int]], f: int) -> tuple[Fraction, int]:
    """Adds the terms (values with exponents), cut to f fraction bits. Returns the sum and e.

    e is the greatest exponent of the nonzero terms. Each term is truncated to a multiple of
    2^(e - f).
    """
    greatest = max((e for value, e in terms if value), default=-999)
    quantum = power_of_two(greatest - f)
    return sum((_cut(value, quantum) for value, _ in terms), Fraction(0)), greatest


def _floor(x: Fraction, exponent: int) -> Fraction:
    return x // power_of_two(exponent) * power_of_two(exponent)


def _limited(x: Value) -> Value:
    """Returns a product, or an infinity if the product exceeds binary32's range."""
    is_beyond = isinstance(x, Number) and abs(x.value) >= power_of_two(128)
    return Infinity(_finite(x).value < 0) if is_beyond else x


def _flushed_pairs(s: Value, pairs: Pairs, unit: Unit) -> Value:
    def flushed(x: Value, spec: Spec, keeps_sign: bool = False) -> Value:
        if isinstance(x, Number) and abs(x.value) < power_of_two(spec.emin):
            return number(0, keeps_sign and x.negative)
        return x

    def result(x: Value) -> Value:
        return flushed(round_value(unit.sum, x, Options()), unit.sum, keeps_sign=True)

    sums = [result(multiply_values(flushed(x, unit.a), flushed(y, unit.b))) for x, y in pairs]
    sums += [ZERO] * (unit.block - len(sums))
    while len(sums) > 1:
        sums = [
            result(add_values(x, y, Options())) for x, y in zip(sums[::2], sums[1::2], strict=True)
        ]
    return result(add_values(flushed(s, unit.sum), sums[0], Options()))


def _beyond(spec: Spec) -> Fraction:
    """Returns the next number after a format's greatest, if the exponents had no limit."""
    largest = _finite(spec.decode(spec.max_code)).value
    return largest + power_of_two(max(floor_log2(largest), spec.emin) - spec.man)


def _special_sum(values: Sequence[Value]) -> Value | None:
    """Returns the sum of the values if one is NaN or infinite; None if all are finite."""
    signs = {v.negative for v in values if isinstance(v, Infinity)}
    if len(signs) == 2 or any(isinstance(v, NotANumber) for v in values):
        return NAN
    return Infinity(signs.pop()) if signs else None
