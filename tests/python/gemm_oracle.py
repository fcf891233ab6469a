# SPDX-License-Identifier: Apache-2.0
"""Matrix products in exact rational arithmetic, one rounding at a time: what `cpd.gemm` is compared
with. Numbers go in and out as binary32 patterns (ints), as in `oracle`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

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
from reduce_oracle import FP32, philox

ZERO = number(0, False)


@dataclass(frozen=True)
class Unit:
    """A matrix unit: blocks of products, cut to `fraction_bits` below the greatest exponent."""

    a: Spec
    b: Spec
    block: int
    fraction_bits: int
    sum: Spec = FP32
    rounding: str = "toward_zero"
    aligns_addend: bool = True
    min_exponent: int = -133
    promote: int = 0


@dataclass(frozen=True)
class Accumulation:
    """The oracle's own view of a `cpd.Accumulator`; `product` None is the format itself."""

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
    """Of each element of the result: the integer for c, then the others in program order."""


class _Roundings:
    """Rounds the values of one output element, taking its draws in program order."""

    def __init__(self, acc: Accumulation, index: int) -> None:
        self.acc, self.index = acc, index
        n = acc.options.random_bits
        self.per_word = 1 if n > 16 else 2 if n > 8 else 4
        self.next_draw = 4 * self.per_word if acc.given is None else 1

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
        words = _words(self.index, draw // (4 * self.per_word), self.acc.seed, self.acc.stream)
        word = words[draw // self.per_word % 4]
        mask = (1 << self.acc.options.random_bits) - 1
        return word >> (draw % self.per_word * (32 // self.per_word)) & mask


@functools.lru_cache(maxsize=1024)
def _words(index: int, block: int, seed: int, stream: int) -> list[int]:
    low, high = index & 0xFFFFFFFF, index >> 32 & 0xFF
    return philox((low, high | block << 8, stream & 0xFFFFFFFF, stream >> 32), seed)


def element(
    a: Sequence[int], b: Sequence[int], c: int | None, acc: Accumulation, index: int = 0
) -> int:
    """Element number `index` (row-major) of the result, from a row of a and a column of b."""
    pairs = [(value_from_bits(x), value_from_bits(y)) for x, y in zip(a, b, strict=True)]
    rounded = _Roundings(acc, index)
    start = ZERO if c is None else value_from_bits(c)
    if acc.unit is not None:
        return bits_from_value(_block_fma(pairs, start, acc, acc.unit, rounded))
    s = rounded.addend(acc.format, start)
    scheme = {
        "sequential": _sequential,
        "kahan": _kahan,
        "chunked": _chunked,
        "pairwise": _pairwise,
    }[acc.scheme]
    return bits_from_value(scheme(s, pairs, acc, rounded))


def gemm(
    a: Sequence[Sequence[int]],
    b: Sequence[Sequence[int]],
    c: Sequence[Sequence[int]] | None,
    acc: Accumulation,
) -> list[int]:
    """a (rows) times b (rows), row-major."""
    columns = list(zip(*b, strict=True)) if b else []
    return [
        element(row, column, None if c is None else c[i][j], acc, i * len(columns) + j)
        for i, row in enumerate(a)
        for j, column in enumerate(columns)
    ]


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
    """Recursion over [begin, begin + 2^level), so that a subtree is finished before its right
    neighbour begins and the merges cut off by the end come last, the smallest first."""
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
    pairs: Pairs, start: Value, acc: Accumulation, unit: Unit, rounded: _Roundings
) -> Value:
    if not unit.promote:
        s = _chain(round_value(unit.sum, start, Options(unit.rounding)), pairs, unit)
        return rounded(acc.format, s)
    total = rounded.addend(acc.format, start)
    for begin in range(0, len(pairs), unit.promote):
        part = _chain(ZERO, pairs[begin : begin + unit.promote], unit)
        total = rounded.add(acc.format, total, part)
    return total


def _chain(s: Value, pairs: Pairs, unit: Unit) -> Value:
    for begin in range(0, len(pairs), unit.block):
        s = _one_block(s, pairs[begin : begin + unit.block], unit)
    return s


def _exponent(x: Number, emin: int) -> int:
    return max(floor_log2(abs(x.value)), emin)


def _cut(x: Fraction, quantum: Fraction) -> Fraction:
    """Toward zero to a multiple of the quantum."""
    whole = abs(x) // quantum * quantum
    return -whole if x < 0 else whole


def _one_block(s: Value, pairs: Pairs, unit: Unit) -> Value:
    special = _special_sum([multiply_values(x, y) for x, y in pairs] + [s])
    if special is not None:
        return round_value(unit.sum, special, Options(unit.rounding))
    terms: list[tuple[Fraction, int]] = []
    for x, y in pairs:
        assert isinstance(x, Number)
        assert isinstance(y, Number)
        if x.value and y.value:
            e = _exponent(x, unit.a.emin) + _exponent(y, unit.b.emin)
            terms.append((x.value * y.value, e))
    assert isinstance(s, Number)
    if unit.aligns_addend and s.value:
        terms.append((s.value, _exponent(s, unit.sum.emin)))
    greatest = max([unit.min_exponent] + [e for _, e in terms])
    quantum = power_of_two(greatest - unit.fraction_bits)
    total = sum((_cut(value, quantum) for value, _ in terms), Fraction(0))
    if not unit.aligns_addend:
        total += s.value
    return round_value(unit.sum, number(total, False), Options(unit.rounding))


def _special_sum(values: Sequence[Value]) -> Value | None:
    """The sum, if one of the values is not finite."""
    signs = {v.negative for v in values if isinstance(v, Infinity)}
    if len(signs) == 2 or any(isinstance(v, NotANumber) for v in values):
        return NAN
    return Infinity(signs.pop()) if signs else None
