# SPDX-License-Identifier: Apache-2.0
"""Directed lines (test vectors) of sums, which are chosen to reach rare cases.

The cases are zeros, padding, subnormals, alignment, ties, cancellation, overflow and special values
in each term. To choose the last input, sums are computed in binary64. Their rounding does not
matter, because the oracle computes the results of lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd.hardware.vectors import inputs as generated
from cpd.hardware.vectors.corners import CORNERS, corner_of, is_integer, largest_code
from cpd.hardware.vectors.inputs import Codes, Lines, Words
from cpd.hardware.vectors.near import (
    F64,
    STEPS,
    codes_of,
    exponents_of,
    partners,
    precise,
    random_signs,
    stepped,
    targets,
)
from cpd.numeric.accumulator import Integer
from cpd.numeric.formats import Format

I64: TypeAlias = "npt.NDArray[np.int64]"

_LANES = 32
"""The largest number of indices of terms at which special values are placed. In longer sums, these
indices are evenly spaced."""


def special_codes(f: Format) -> Codes:
    """Returns codes of ±0, ±1, least, least normal and largest numbers, infinities and NaN."""
    size = 1 << (f.exp + f.man)
    kinds = corner_of(f, generated.corner_codes(f), "in")
    beyond = generated.corner_codes(f)[kinds & _NOT_FINITE != 0]
    least = generated.extremes(f)
    zeros = np.array([0, size] if f.signed and not is_integer(f) else [0], np.uint32)
    largest = largest_code(f)
    next_to_largest = np.array([largest - 1], np.uint32)
    both = np.concatenate([zeros, least, beyond, generated.finite_codes(f, next_to_largest)])
    return np.unique(both)


_NOT_FINITE = np.uint16(sum(1 << CORNERS.index(n) for n in ("infinity_in", "nan_in")))


class SumLines:
    """Makes the directed test vectors of one sum, which are chosen to reach rare cases."""

    def __init__(self, rule: Any, words: Words) -> None:
        self.rule = rule
        self.words = words
        self.length: int = rule.length
        self.formats: tuple[Format, ...] = rule.formats[: 1 if rule.operation == "sum" else 2]
        self.fixed: Integer | None = rule.fixed
        self.of_c: Format | None = None
        if rule.operation != "sum" and self.fixed is None:
            self.of_c = rule.formats[2]
        self.sum: Format = rule.result if rule.unit is None else rule.unit.sum
        self.window: int = self.sum.man + 1 if rule.unit is None else rule.unit.fraction_bits

    # ---- parts of lines -------------------------------------------------------------------------

    def line(self, terms: list[Codes], c: Any = None) -> Lines:
        """Makes test vectors from the terms' codes and the addend's codes `c` (None: 0).

        Scales are 1. The integers for stochastic rounding are random.
        """
        lines: dict[str, Any] = dict(zip("ab", terms, strict=False))
        if c is not None and self.rule.operation != "sum":
            lines["c"] = np.asarray(c)
        return generated.completed(self.rule, self.words, lines)

    def specials(self) -> npt.NDArray[Any]:
        """Returns the codes of all special values of the addend c; +0 alone for a sum without c."""
        if self.of_c is not None:
            return special_codes(self.of_c)
        if self.fixed is None or self.rule.operation == "sum":
            return np.zeros(1, np.uint32)
        mask, half = (1 << self.fixed.width) - 1, 1 << (self.fixed.width - 1)
        one = 1 << max(self.fixed.fraction, 0)
        numbers = [0, 1, -1, 2, -2, half - 1, half - 2, half, half + 1, one, -one]
        return np.unique(np.array([number & mask for number in numbers], np.uint64))

    def some_c(self, n: int) -> npt.NDArray[Any]:
        """Returns n codes of the addend c, which cycle through the codes of `specials`."""
        values = self.specials()
        return values[np.arange(n) % len(values)]

    def zero_terms(self, n: int, kinds: int) -> list[Codes]:
        """Returns terms that are all zero, for n sums of each kind 0…kinds - 1.

        A kind is a choice of signs and factors, which the method `zeros` defines.
        """
        parts = [self.zeros(kind, n) for kind in range(kinds)]
        return [np.concatenate(codes) for codes in zip(*parts, strict=True)]

    def zeros(self, kind: int, n: int) -> list[Codes]:
        """Returns terms that are all zero, for n sums: zeros of the kind with the number `kind`.

        The kinds of zeros are, in order: +0, -0, alternating signs and, for products, ±0 · ±x, ±x ·
        ±0 and ±0 · ±0.
        """
        shape = (n, self.length)
        f = self.formats[0]
        sign = np.uint32(1 << (f.exp + f.man)) if self._has_minus_zero(f) else np.uint32(0)
        ones = [np.zeros(shape, np.uint32), np.full(shape, sign, np.uint32)]
        ones.append(np.where(np.arange(self.length) % 2 == 0, *ones))
        any_sign = np.where(self.words.below(2, shape) == 0, ones[0], ones[1])
        if len(self.formats) == 1:
            return [[*ones, any_sign, any_sign, any_sign][kind]]
        other = self.formats[1]
        positive = generated.finite_codes(other, np.full(shape, self._one(other), np.uint32))
        if kind < len(ones):
            return [ones[kind], positive]
        if kind == len(ones):
            return [any_sign, self._any(other, shape)]
        second = np.zeros(shape, np.uint32)
        if self._has_minus_zero(other):
            flips = np.uint32(1 << (other.exp + other.man))
            second = np.where(self.words.below(2, shape) == 0, second, flips)
        if kind == len(ones) + 1:
            return [self._any(f, shape), second.astype(np.uint32)]
        return [any_sign, second.astype(np.uint32)]

    _ZEROS = 6
    """The number of kinds of `zeros`."""

    def _has_minus_zero(self, f: Format) -> bool:
        special = ("fnuz", "p3109", "p3109finite", "e8m0")
        return f.signed and not is_integer(f) and f.encoding not in special

    def _one(self, f: Format) -> int:
        return min(max(f.bias, 0) << f.man, largest_code(f)) if not is_integer(f) else 1

    def _any(self, f: Format, shape: tuple[int, int]) -> Codes:
        return generated.finite_codes(f, generated.random_codes(f, self.words, shape))

    def terms_at(self, exponents: I64, exact: Any = False) -> list[Codes]:
        """Returns random terms with the given exponents, clipped if out of range.

        If `exact`, the terms are powers of two.
        """
        shape = exponents.shape
        if len(self.formats) == 1:
            return [self._codes(self.formats[0], exponents, exact)]
        first, second = self.formats
        low = np.maximum(exponents - _greatest(second), _least(first))
        high = np.minimum(exponents - _least(second), _greatest(first))
        span = np.maximum(high - low, 0) + 1
        share = self.words.below(1 << 30, shape)
        of_first = low + (share * span >> 30)
        return [
            self._codes(first, of_first, exact),
            self._codes(second, exponents - of_first, exact),
        ]

    def _codes(self, f: Format, exponents: I64, exact: Any) -> Codes:
        random = generated.finite_codes(f, generated.biased_codes(f, self.words, exponents))
        if not np.any(exact):
            return random
        powers = codes_of(f, np.ldexp(1.0, np.clip(exponents, _least(f) - f.man, _greatest(f))))
        if f.signed:
            flips = self.words.below(2, exponents.shape) == 1
            powers = np.where(flips, generated.negated(f, powers), powers)
        return np.where(exact, generated.finite_codes(f, powers), random)

    def total(self, terms: list[Codes]) -> F64:
        """Returns the sum of the terms of each test vector, in binary64."""
        products = precise(self.formats[0], terms[0])
        if len(terms) > 1:
            products = products * precise(self.formats[1], terms[1])
        total: F64 = products.sum(axis=1)
        return total

    def nearest_c(self, values: F64) -> npt.NDArray[Any]:
        """Returns the codes of the addend c nearest to `values`."""
        if self.of_c is not None:
            return codes_of(self.of_c, np.where(np.isfinite(values), values, 0.0))
        if self.fixed is None:
            return np.zeros(len(values), np.uint32)
        units = np.ldexp(np.where(np.isfinite(values), values, 0.0), self.fixed.fraction)
        most = float(1 << (self.fixed.width - 1)) * (1 - 2.0**-52)
        numbers = np.rint(np.clip(units, -most, most)).astype(np.int64).view(np.uint64)
        masked: npt.NDArray[Any] = numbers & np.uint64((1 << self.fixed.width) - 1)
        return masked

    def with_neighbors(self, terms: list[Codes], c: npt.NDArray[Any]) -> Lines:
        """Makes three test vectors of each sum: with c, and with the two addends next to c."""
        terms = [np.repeat(codes, len(STEPS), axis=0) for codes in terms]
        if self.of_c is not None:
            near = stepped(self.of_c, c[:, None], STEPS).reshape(-1)
        elif self.fixed is not None:
            mask = np.uint64((1 << self.fixed.width) - 1)
            near = (c[:, None] + STEPS.astype(np.uint64)).reshape(-1) & mask
        else:
            near = np.repeat(c, len(STEPS))
        return self.line(terms, near)

    # ---- kinds of lines -------------------------------------------------------------------------

    def all_zero(self) -> Lines:
        """Returns test vectors in which all terms are zero, with every special addend c."""
        c = self.specials()
        n = len(c) * self._ZEROS
        return self.line(self.zero_terms(len(c), self._ZEROS), self.some_c(n))

    def scales_of_zero(self) -> Lines:
        """Returns test vectors in which all terms are zero and a scale is special, such as NaN.

        Each operand gets each corner code as its scale. A NaN scale gives a NaN result.
        """
        corners = generated.corner_codes(self.rule.scale)
        m, kinds = len(corners), 4
        n = 2 * m * kinds
        row = np.arange(n)
        terms = self.zero_terms(2 * m, kinds)
        c = np.where(row // (2 * m) % 2 == 0, np.uint32(0), self.some_c(n))
        lines = self.line(terms, c)
        every = corners[row % m][:, None]
        first = (row // m % 2 == 0)[:, None]
        lines["a_scale"] = np.where(first, every, lines["a_scale"])
        lines["b_scale"] = np.where(first, lines["b_scale"], every)
        return lines

    def padded(self) -> Lines:
        """Returns test vectors in which only the first or only the last terms are nonzero."""
        k = self.length
        sizes = sorted({n for n in (1, 2, 3, k // 4, k // 2, 3 * k // 4, k - 1) if 0 < n < k})
        repeats = 2 * self._ZEROS
        n = max(len(sizes), 1) * repeats
        filled = np.repeat(sizes or [k], repeats)[:, None]
        kind = np.arange(n) % self._ZEROS
        lane = np.where(
            (np.arange(n) // self._ZEROS % 2 == 0)[:, None], np.arange(k), k - 1 - np.arange(k)
        )
        centre = self._centres(n)
        values = self.terms_at(centre[:, None] + self.words.below(8, (n, k)) - 4)
        zero = [self.zeros(i, n) for i in range(self._ZEROS)]
        terms = []
        for side, codes in enumerate(values):
            padding = np.select(
                [(kind == i)[:, None] for i in range(self._ZEROS)],
                [zero[i][side] for i in range(self._ZEROS)],
            )
            terms.append(np.where(lane < filled, codes, padding).astype(np.uint32))
        near = self.nearest_c(np.ldexp(random_signs(self.words, n), centre))
        return self.line(terms, np.where(self.words.below(2, n) == 0, near, self.some_c(n)))

    def subnormal(self) -> Lines:
        """Returns test vectors with subnormal sums.

        In some, all terms are zero and the addend c is subnormal. In others, few terms are nonzero.
        """
        n = 48
        f = self.rule.result
        if self.fixed is not None or is_integer(f) or f.encoding == "e8m0":
            return self.line(self.zeros(0, 0))
        least = f.min_subnormal or f.min_normal or 1.0
        significands = 1.0 + (self.words.next(n) >> np.uint64(12)).astype(np.float64) * 2.0**-52
        places = self.words.below(f.man + 3, n)
        signs = random_signs(self.words, n)
        values: F64 = np.ldexp(least * significands, places - 1) * signs
        terms = self.zero_terms(n // self._ZEROS, self._ZEROS)
        alone = self.line(terms, self.nearest_c(values))
        at = np.full((n, self.length), int(exponents_of(np.array([least]))[0]), np.int64)
        at += self.words.below(f.man + 4, at.shape) - 2
        few = self._sparse(self.terms_at(at), self.words.below(3, n) + 1)
        c = np.where(
            np.arange(n) % 2 == 0, self.nearest_c(values - self.total(few)), self.some_c(n)
        )
        return generated.joined([alone, self.line(few, c)])

    def aligned(self) -> Lines:
        """Returns test vectors in which one term is about 2^window times as great as the others.

        `window` is the number of bits that the unit keeps below the greatest term, or the precision
        of the sum.
        """
        window, precision = self.window, self.sum.man + 1
        distances = sorted(
            {d for at in (window, precision, window // 2) for d in range(at - 2, at + 4) if d > 0}
        )
        repeats = 8
        n, k = len(distances) * repeats, self.length
        low = np.repeat(distances, repeats)
        top = self._tops(n, low)
        at = np.repeat((top - low)[:, None], k, axis=1)
        at -= np.maximum(self.words.below(5, (n, k)) - 2, 0)
        place = self.words.below(k, n)
        by_c = np.arange(n) % 2 == 0
        rows = np.flatnonzero(~by_c)
        at[rows, place[rows]] = top[rows]
        terms = self._sparse(self.terms_at(at), self.words.below(k, n) + 1, place)
        signs = random_signs(self.words, n)
        significand = 1.0 + self.words.below(1 << 23, n) * 2.0**-23
        c = np.ldexp(signs * significand, np.where(by_c, top, top - low))
        return self.line(terms, self.nearest_c(c))

    def ties(self) -> Lines:
        """Returns test vectors with a large term, a term of half its ulp, and a tiny term."""
        n, k = 96, self.length
        precision = self.sum.man + 1
        top = self._tops(n, np.full(n, precision + 2))
        at = np.repeat((top - precision)[:, None], k, axis=1)
        exact = np.ones((n, k), bool)
        if k > 1:
            far = 1 + self.words.below(max(self.window - precision, 0) + 3, n)
            at[:, 1] -= far
        if k > 2:
            at[:, 2] = top
            exact[:, 2] = False
        terms = self.terms_at(at, exact)
        counts = 1 + np.arange(n) % min(k, 3)
        terms = self._sparse(terms, counts)
        signs = random_signs(self.words, n)
        significand = 1.0 + self.words.below(1 << self.sum.man, n) * 2.0**-self.sum.man
        c = self.nearest_c(np.ldexp(signs * significand, top))
        order = np.argsort(self.words.next((n, k)), axis=1)
        return self.line([np.take_along_axis(codes, order, axis=1) for codes in terms], c)

    def cancelled(self) -> Lines:
        """Returns test vectors in which the addend c cancels the sum of the terms, or nearly so."""
        n, k = 24, self.length
        at = self._centres(n)[:, None] + self.words.below(4, (n, k))
        terms = self._sparse(self.terms_at(at), 1 + np.arange(n) % min(k, 3))
        return self.with_neighbors(terms, self.nearest_c(-self.total(terms)))

    def straddling(self) -> Lines:
        """Returns test vectors in which the addend c brings the sum near a rounding point.

        The result's format determines the rounding points. The overflow threshold counts as a
        rounding point.
        """
        k = self.length
        if self.fixed is not None:
            half = np.ldexp(float(1 << (self.fixed.width - 1)), -self.fixed.fraction)
            goal = np.tile([half, -half], 16)
        else:
            goal = targets(self.rule.result, self.words)
            largest = np.flatnonzero(np.abs(goal) >= self.rule.result.max)
            some = self.words.below(len(goal), 64)
            goal = goal[np.concatenate([np.repeat(largest, 4), some])]
        n = len(goal)
        away = self.words.below(2 * self.window + 4, n) - 4
        at = np.repeat((exponents_of(goal) - away)[:, None], k, axis=1)
        terms = self._sparse(self.terms_at(at), 1 + self.words.below(k, n))
        with np.errstate(over="ignore"):
            c = self.nearest_c(goal - self.total(terms))
        return self.with_neighbors(terms, c)

    def near_products(self) -> Lines:
        """Returns test vectors in which product + c is near a rounding point of the sum.

        One product is nonzero; c is the addend.
        """
        n, k = 8, self.length
        terms = self._sparse(
            self.terms_at(np.repeat(self._centres(n)[:, None], k, axis=1)), np.ones(n, np.int64)
        )
        products = self.total(terms)
        fit = np.flatnonzero(np.isfinite(products) & (products != 0))
        assert self.of_c is not None
        with np.errstate(over="ignore", under="ignore"):
            which, c = partners(self.of_c, products[fit], self.sum.man)
        place = self.words.below(k, len(c))
        moved = []
        for operand in terms:
            codes = operand[fit][which]
            first = codes[:, 0].copy()
            codes[:, 0] = codes[np.arange(len(c)), place]
            codes[np.arange(len(c)), place] = first
            moved.append(codes)
        return self.line(moved, c)

    def special_lanes(self) -> Iterator[Lines]:
        """Yields test vectors with NaN and infinities in each term, or in 32 terms of a longer sum.

        The special value is multiplied by 1, -1 or 0. The other terms and the addend c are finite,
        or c is special, too, or another term has the negative of the special value.
        """
        k = self.length
        lanes = np.unique(np.linspace(0, k - 1, min(k, _LANES)).astype(np.int64))
        beyond = [
            codes[corner_of(f, codes, "in") & _NOT_FINITE != 0]
            for f, codes in ((f, generated.corner_codes(f)) for f in self.formats)
        ]
        for side, codes in enumerate(beyond):
            if not len(codes):
                continue
            lane, code = (x.reshape(-1) for x in np.meshgrid(lanes, codes, indexing="ij"))
            yield self._alone(side, lane, code)
            c, special = (x.reshape(-1) for x in np.meshgrid(self.specials(), codes, indexing="ij"))
            yield self._alone(side, lanes[np.arange(len(c)) % len(lanes)], special, c)
            yield self._together(side, lane, code)

    def _with_special(self, side: int, lane: I64, code: Codes) -> list[Codes]:
        """Returns random terms. In sum i, term lane[i] has the code code[i] as operand `side`."""
        n, k = len(lane), self.length
        at = self._centres(n)[:, None] + self.words.below(4, (n, k))
        terms = self.terms_at(at)
        terms[side][np.arange(n), lane] = code
        return terms

    def _alone(self, side: int, lane: I64, code: Codes, c: Any = None) -> Lines:
        """Returns test vectors with the given code in one term, multiplied by 1, -1 and 0.

        The addend c is 0 by default.
        """
        if len(self.formats) == 1:
            return self.line(self._with_special(side, lane, code))
        other = self.formats[1 - side]
        one = np.array([self._one(other)], np.uint32)
        minus_one = generated.negated(other, one) if other.signed else one
        factors = np.concatenate([one, minus_one, np.zeros(1, np.uint32)])
        lane, code = np.repeat(lane, len(factors)), np.repeat(code, len(factors))
        c = None if c is None else np.repeat(c, len(factors))
        terms = self._with_special(side, lane, code)
        terms[1 - side][np.arange(len(lane)), lane] = np.resize(factors, len(lane))
        return self.line(terms, c)

    def _together(self, side: int, lane: I64, code: Codes) -> Lines:
        """Returns test vectors with the given code in one term and a special addend c.

        In some lines the code is multiplied by 0; in some lines another term has the negated code.
        """
        n, k = len(lane), self.length
        rows = np.arange(n)
        terms = self._with_special(side, lane, code)
        opposite = terms[side][rows, lane]
        if self.formats[side].signed:
            opposite = generated.negated(self.formats[side], opposite)
        paired = rows[rows % 3 == 0]
        terms[side][paired, self.words.below(k, n)[paired]] = opposite[paired]
        if len(terms) > 1:
            zeros = rows[rows % 5 == 0]
            terms[1 - side][zeros, lane[zeros]] = 0
        return self.line(terms, self.some_c(n))

    def batches(self) -> Iterator[Lines]:
        """Yields the directed test vectors of a sum, as far as they apply to its operation."""
        yield self.all_zero()
        yield self.padded()
        yield self.subnormal()
        yield self.aligned()
        yield self.ties()
        yield from self.special_lanes()
        if self.rule.scale is not None:
            yield self.scales_of_zero()
        if self.rule.operation != "sum":
            yield self.cancelled()
            yield self.straddling()
        if self.of_c is not None:
            yield self.near_products()

    # ---- exponents ------------------------------------------------------------------------------

    def _reach(self) -> tuple[int, int]:
        """Returns the least and the greatest exponent that a term can have."""
        return sum(map(_least, self.formats)), sum(map(_greatest, self.formats))

    def _centres(self, n: int) -> I64:
        least, greatest = self._reach()
        return least + self.words.below(greatest - least + 1, n)

    def _tops(self, n: int, distances: I64) -> I64:
        """Returns random exponents for the greatest term of each test vector.

        If possible, each exponent exceeds the least exponent of a term by at least `distances`.
        """
        least, greatest = self._reach()
        low = np.minimum(least + distances, greatest)
        spread = self.words.below(1 << 30, n) * (greatest - low + 1) >> 30
        tops: I64 = low + spread
        return tops

    def _sparse(self, terms: list[Codes], counts: I64, also: I64 | None = None) -> list[Codes]:
        """Sets all terms of sum i to zero, except the first counts[i] terms and term also[i]."""
        lanes = np.arange(self.length)
        held = lanes < np.asarray(counts)[:, None]
        if also is not None:
            held |= lanes == also[:, None]
        first, *others = terms
        return [np.where(held, first, np.uint32(0)), *others]


def _least(f: Format) -> int:
    """Returns the exponent of a format's least normal number; 0 for integers."""
    return 0 if is_integer(f) else 1 - f.bias


def _greatest(f: Format) -> int:
    """Returns the exponent of a format's largest number."""
    return int(exponents_of(np.array([f.max]))[0])
