# SPDX-License-Identifier: Apache-2.0
"""Makes the inputs of a probe: dot products with chosen or random terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cpd.numeric.cast import Cast
from cpd.numeric.formats import Format
from cpd.ops import cast

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dots:
    """The operands of n dot products of k products each, and their addends (None: no addends)."""

    a: F32
    b: F32
    c: F32 | None

    def __len__(self) -> int:
        return len(self.a)

    def each(self, change: Callable[[F32], F32]) -> Dots:
        """Returns the dot products with the function `change` applied to each array."""
        c = None if self.c is None else change(self.c)
        return Dots(change(self.a), change(self.b), c)

    def rows(self, which: slice | npt.NDArray[np.intp]) -> Dots:
        """Returns the dot products with these indices."""
        return self.each(lambda x: x[which])

    def shuffled(self, rng: np.random.Generator) -> Dots:
        """Returns the dot products in random order."""
        return self.rows(rng.permutation(len(self)))


def joined(parts: list[Dots]) -> Dots:
    """Returns one `Dots` with all dot products of the objects in `parts`, in order."""
    c = [dots.c for dots in parts if dots.c is not None]
    a, b = (np.concatenate([getattr(dots, name) for dots in parts]) for name in "ab")
    return Dots(a, b, np.concatenate(c) if c else None)


class Powers(NamedTuple):
    """The least and the greatest exponent of the powers of two in a format."""

    low: int
    high: int

    @classmethod
    def of(cls, f: Format) -> Powers:
        """Returns the exponents of the least and the greatest power of two in a format.

        Raises ValueError if the format has only zeros.
        """
        if f.min_subnormal is None:
            raise ValueError(f"a format of operands must hold numbers other than 0, got {f}")
        return cls(math.frexp(f.min_subnormal)[1] - 1, math.frexp(f.max)[1] - 1)


class Inputs:
    """Makes dot products of k products in given formats.

    The terms of a sum are called leaves, as in the tree of a sum. Leaves 0…k - 1 are the products;
    leaf k is the addend, if there is one.
    """

    def __init__(self, a: Format, b: Format, c: Format | None, k: int) -> None:
        self.a, self.b, self.c, self.k = a, b, c, k
        self.of_a, self.of_b = Powers.of(a), Powers.of(b)
        self.of_c = None if c is None else Powers.of(c)
        self.leaves = k + (c is not None)
        self.products = Powers(self.of_a.low + self.of_b.low, self.of_a.high + self.of_b.high)

    def zeros(self, n: int) -> Dots:
        """Returns n dot products of zeros."""
        a, b = (np.zeros((n, self.k), np.float32) for _ in range(2))
        return Dots(a, b, None if self.c is None else np.zeros(n, np.float32))

    def powers(self, leaf: int) -> Powers:
        """Returns the range of exponents e for which term `leaf` can be 2^e."""
        return self.of_c if leaf == self.k and self.of_c is not None else self.products

    def factors(self, exponent: int) -> tuple[float, float]:
        """Returns powers of two in the formats of a and b with the product 2^exponent."""
        low = max(self.of_a.low, exponent - self.of_b.high)
        high = min(self.of_a.high, exponent - self.of_b.low)
        x = min(max(exponent // 2, low), high)
        return 2.0**x, 2.0 ** (exponent - x)

    def put(self, dots: Dots, row: int, leaf: int, exponent: int, sign: int = 1) -> None:
        """Sets term `leaf` (a product or the addend) of dot product `row` to sign · 2^exponent."""
        if leaf == self.k:
            assert dots.c is not None
            dots.c[row] = sign * 2.0**exponent
            return
        x, y = self.factors(exponent)
        negative_a = self.a.signed
        dots.a[row, leaf] = x * (sign if negative_a else 1)
        dots.b[row, leaf] = y * (1 if negative_a else sign)

    def random(
        self,
        rng: np.random.Generator,
        n: int,
        windows: list[list[int]],
        exponents: tuple[int, int],
    ) -> Dots:
        """Returns sums of terms with random significands.

        The nonzero products of a sum are in one of `windows`, which are sets of indices. The
        greatest term has an exponent in the range `exponents`. Few or all terms of the window are
        nonzero. Their exponents are near each other or far apart. Often one or two terms cancel the
        greatest term. The addend is 0, random, or cancels the greatest term.
        """
        active, first, within = self._active(rng, n, windows)
        spread = rng.choice([0, 1, 3, 8, 16, 26, 34], n)
        low, high = exponents
        top = rng.integers(low, high + 1, n)
        e = top[:, None] - (rng.random((n, self.k)) * (spread[:, None] + 1)).astype(np.int64)
        e[np.arange(n), first] = top
        carry = rng.random(n) < 0.25
        e[carry] = top[carry, None]
        e[carry, first[carry]] -= rng.integers(4, 28, np.count_nonzero(carry))
        active[carry] = within[carry]
        x, y = self._significant(rng, np.clip(e, self.products.low, self.products.high))
        x[carry], y[carry] = abs(x[carry]), abs(y[carry])
        a, b = np.where(active, x, np.float32(0)), np.where(active, y, np.float32(0))
        for _ in range(2):
            self._cancel(rng, a, b, active)
        return Dots(a, b, self._addends(rng, a, b, top))

    def sparse(
        self,
        rng: np.random.Generator,
        n: int,
        windows: list[list[int]],
        exponents: tuple[int, int],
        gaps: list[int],
    ) -> Dots:
        """Returns sums of up to five powers of two, to provoke ties and borrows.

        The exponent of the greatest term is in the range `exponents`. Each other exponent is lower,
        by a random number from the list `gaps` or from 0…36. In half of the sums two terms cancel.
        """
        dots = self.zeros(n)
        terms = (n, 5)
        used = rng.integers(2, 6, n)
        below = np.where(
            rng.random(terms) < 0.5, rng.choice(gaps, terms), rng.integers(0, 37, terms)
        )
        below[:, 0] = 0
        signs = rng.choice([-1, 1], terms)
        cancels = rng.random(n) < 0.5
        below[cancels, 1], signs[cancels, 1] = 0, -signs[cancels, 0]
        exponent = rng.integers(exponents[0], exponents[1] + 1, n)[:, None] - below
        window = rng.integers(len(windows), size=n)
        for row in range(n):
            places = rng.permutation(windows[window[row]])[: used[row]].tolist()
            some = np.clip(exponent[row], *self.products).tolist()
            for place, e, sign in zip(places, some, signs[row].tolist(), strict=False):
                self.put(dots, row, place, e, sign)
        if self.of_c is not None:
            e = np.clip(exponent[np.arange(n), rng.integers(5, size=n)], *self.of_c)
            assert dots.c is not None
            dots.c[:] = np.where(rng.random(n) < 0.5, signs[:, -1] * np.ldexp(1.0, e), 0)
        return dots

    def floors(self, places: list[int], low: int) -> Dots:
        """Returns sums near the least sum, 2^low, and sums of the addend alone.

        One or two products add up to 1/2, 1 or 3/2 times 2^low. A tiny term of either sign breaks a
        tie or causes a borrow, unless the unit truncates this term. The addend alone is each power
        of two of its format.
        """
        least = self.products.low
        tiny = range(max(least, low - 40), low + 1)
        some = [(halves, sign, e) for halves in (0, 1, 2, 3) for sign in (1, -1) for e in tiny]
        dots = self.zeros(len(some))
        for row, (halves, sign, e) in enumerate(some):
            for place, bit in zip(places, (1, 2), strict=False):
                if halves & bit and low + bit - 2 >= least:
                    self.put(dots, row, place, low + bit - 2)
            self.put(dots, row, places[-1], e, sign)
        if self.of_c is None:
            return dots
        alone = self.zeros(self.of_c.high - self.of_c.low + 1)
        for row in range(len(alone)):
            self.put(alone, row, self.k, self.of_c.low + row)
        return joined([dots, alone])

    def cuts(self, places: list[int], high: int) -> Dots:
        """Returns sums that show at which bit a unit truncates a small term next to a great term.

        Each sum has the nonzero terms 2^high, -2^high and ±2^(high - gap), with a gap of 0…39.
        The terms are three products, or two products and the addend.
        """
        leaves = places[:3] if len(places) > 2 else []
        some = [leaves] if leaves else []
        if self.of_c is not None and len(places) > 1:
            some += [[places[0], self.k, places[1]], [places[0], places[1], self.k]]
        rows = [(triple, gap, sign) for triple in some for gap in range(40) for sign in (1, -1)]
        dots = self.zeros(len(rows))
        for row, ((up, down, rest), gap, sign) in enumerate(rows):
            for leaf, e, signed in ((up, high, 1), (down, high, -1), (rest, high - gap, sign)):
                powers = self.powers(leaf)
                self.put(dots, row, leaf, min(max(e, powers.low), powers.high), signed)
        return dots

    def specials(self) -> Dots:
        """Returns sums with infinities and NaNs that the formats can represent."""
        pairs = [(np.inf, 1), (-np.inf, 1), (np.inf, 0), (np.nan, 1), (1, np.inf), (1, np.nan)]
        dots = self.zeros(3 * len(pairs) + 3)
        dots.a[:, 1] = dots.b[:, 1] = 1
        for row, (x, y) in enumerate(pairs):
            dots.a[3 * row : 3 * row + 3, 0] = x
            dots.b[3 * row : 3 * row + 3, 0] = y
            if dots.c is not None:
                dots.c[3 * row : 3 * row + 3] = 0, np.inf, np.nan
        if dots.c is not None:
            dots.c[-3:] = np.inf, -np.inf, np.nan
        held = self._held(dots.a, self.a) & self._held(dots.b, self.b)
        if self.c is not None and dots.c is not None:
            held &= self._held(dots.c[:, None], self.c)
        return dots.rows(np.flatnonzero(held))

    def zeros_of_signs(self) -> Dots:
        """Returns sums of zeros of both signs, and sums in which 1 and -1 cancel."""
        dots = self.zeros(9)
        for row in range(9):
            dots.a[row] = (0.0, -0.0, 1.0)[row % 3] if self.a.signed else 0.0
            dots.b[row, 0] = 1
            if row % 3 == 2 and self.a.signed:
                dots.a[row, :2], dots.b[row, :2] = (1, -1), 1
            if dots.c is not None:
                dots.c[row] = (0.0, -0.0, 0.0)[row // 3]
        return dots.rows(np.flatnonzero(self._held(dots.a, self.a)))

    @staticmethod
    def _held(x: F32, f: Format) -> npt.NDArray[np.bool_]:
        """Returns for each row of x (one dot product) whether the format represents its values."""
        same = cast(x, f).view(np.uint32) == x.view(np.uint32)
        held: npt.NDArray[np.bool_] = (same & ~(np.isnan(x) & (f.encoding == "finite"))).all(axis=1)
        return held

    def _active(
        self, rng: np.random.Generator, n: int, windows: list[list[int]]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Chooses the nonzero products of n sums at random.

        Each sum gets a random one of `windows`, lists of the products that may be nonzero. Returns,
        for each sum, a mask of its nonzero products, the index of one of them, and a mask of the
        sum's window.
        """
        inside = np.zeros((len(windows), self.k), bool)
        for number, window in enumerate(windows):
            inside[number, window] = True
        within = inside[rng.integers(len(windows), size=n)]
        few = rng.choice([2.0, 3.0, 5.0, 1e9], n)[:, None] / within.sum(axis=1, keepdims=True)
        first = np.argmax(within * rng.random(within.shape), axis=1)
        active = within & (rng.random(within.shape) < few)
        active[np.arange(n), first] = True
        return active, first, within

    def _significant(self, rng: np.random.Generator, e: I64) -> tuple[F32, F32]:
        """Returns random operands whose products have exponents near the given exponents `e`.

        A third of the operands are powers of two.
        """
        drift = rng.integers(-3, 4, e.shape)
        low = np.maximum(self.of_a.low, e - self.of_b.high)
        high = np.minimum(self.of_a.high, e - self.of_b.low)
        ea = np.clip(e // 2 + drift, low, high)
        operands = []
        for f, exponent in ((self.a, ea), (self.b, e - ea)):
            plain = rng.random(e.shape) < 1 / 3
            significand = np.where(plain, 1.0, 1 + rng.random(e.shape))
            sign = rng.choice([-1.0, 1.0], e.shape) if f.signed else 1.0
            value = np.ldexp(sign * significand, exponent).astype(np.float32)
            operands.append(cast(value, Cast(f, rounding="toward_zero", overflow="saturate")))
        return operands[0], operands[1]

    def _cancel(
        self, rng: np.random.Generator, a: F32, b: F32, active: npt.NDArray[np.bool_]
    ) -> None:
        """In about half of the sums, makes another product the negative of the greatest product."""
        rows = np.arange(len(a))
        greatest = np.argmax(np.abs(a * b.astype(np.float64)), axis=1)
        target = np.argmax(np.where(active, rng.random(a.shape), 0), axis=1)
        where = (rng.random(len(a)) < 0.5) & (greatest != target)
        rows, greatest, target = rows[where], greatest[where], target[where]
        a[rows, target], b[rows, target] = a[rows, greatest], b[rows, greatest]
        (a if self.a.signed else b)[rows, target] *= -1

    def _addends(self, rng: np.random.Generator, a: F32, b: F32, top: I64) -> F32 | None:
        if self.c is None:
            return None
        n = len(a)
        products = a * b.astype(np.float64)
        greatest = np.take_along_axis(products, np.argmax(abs(products), axis=1)[:, None], 1)[:, 0]
        e = top + rng.integers(-30, 6, n)
        sign = rng.choice([-1.0, 1.0], n)
        kinds = np.stack(
            [np.zeros(n), -greatest, np.ldexp(sign * (1 + rng.random(n)), e), np.ldexp(sign, e)]
        )
        chosen = kinds[rng.integers(len(kinds), size=n), np.arange(n)]
        with np.errstate(over="ignore"):
            single = chosen.astype(np.float32)
        held: F32 = cast(single, Cast(self.c, rounding="toward_zero", overflow="saturate"))
        return held
