# SPDX-License-Identifier: Apache-2.0
"""An oracle for the random inputs of golden vectors of element-wise operations.

It makes the inputs line by line, in Python's integers, from NumPy's PCG64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

INTEGERS = ("int", "int_full")
_MOST_WORDS = 40
"""An upper bound on the number of random words that one line of golden vectors needs."""


class Line:
    """Makes the random values of one line of golden vectors from random words."""

    def __init__(self, words: Iterator[int]) -> None:
        self._words = words

    def below(self, limit: int) -> int:
        return (next(self._words) >> 32) * limit >> 32

    def any(self, bits: int) -> int:
        return next(self._words) >> (64 - bits)

    def exponent(self, f: Any) -> int:
        return self.below(1 << f.exp) - f.bias

    def corner_exponent(self, f: Any) -> int:
        low = 1 - f.bias - f.man - 3 + self.below(f.man + 5)
        high = (1 << f.exp) - 1 - f.bias - 2 + self.below(4)
        return low if self.below(2) == 0 else high

    def code(self, f: Any, exponent: int) -> int:
        """Returns a code whose significand often has few ones or few zeros."""
        mantissa = self.any(24) >> (24 - f.man)
        kept = self.below(f.man + 1)
        style = self.below(4)
        if style == 0:
            mantissa = mantissa >> kept << kept
        elif style == 1:
            mantissa |= (1 << kept) - 1
        elif style == 2:
            mantissa = 1 << f.man >> (kept + 1)
        field = min(max(exponent + f.bias, 0), (1 << f.exp) - 1)
        magnitude = field << f.man | mantissa
        negative = bool(f.signed and self.below(2))
        if f.encoding in INTEGERS:
            return (-magnitude if negative else magnitude) % (1 << f.bits)
        return magnitude | negative << (f.exp + f.man)

    def meeting(self, f: Sequence[Any], result: Any, exponents: Sequence[int]) -> list[int]:
        reach = result.man + 3
        away = self.below(2 * reach + 1) - reach
        close = self.below(3) - 1
        last = sum(exponents) + (away if self.below(2) == 0 else close)
        return [self.code(each, e) for each, e in zip(f, (*exponents, last), strict=True)]

    def near(self, operation: str, f: Sequence[Any], result: Any) -> list[int]:
        first = self.exponent(f[0])
        if operation in ("cast", "sqrt"):
            free = self.below(2) == 0
            corner = self.corner_exponent(result)
            return [self.code(f[0], first if free else corner)]
        if operation == "add":
            return self.meeting(f, result, [first])
        second = self.exponent(f[1])
        if operation == "div":
            corner = self.corner_exponent(result)
            second = second if self.below(2) == 0 else first - corner
        else:
            free = self.below(2) == 0
            corner = self.corner_exponent(result)
            second = second if free else corner - first
        if operation == "fma":
            return self.meeting(f, result, [first, second])
        return [self.code(f[0], first), self.code(f[1], second)]

    def integer(self, bits: int) -> int:
        anything = self.any(bits)
        is_any = self.below(2) == 0
        middle = 1 << (bits - 1)
        end = [0, 1, middle - 1, middle, 2 * middle - 1][self.below(5)]
        return anything if is_any else end


def lines(
    operation: str,
    f: Sequence[Any],
    result: Any,
    random_bits: int,
    words: np.random.PCG64,
    n: int,
    which: Sequence[int] | None = None,
) -> list[list[int]]:
    """Returns n lines of golden vectors, or only the lines whose numbers are in `which`.

    A line has its operands and, with random_bits, its random integer. Line i takes the words i,
    n + i, 2 n + i, … of the generator. Afterwards `words` continues after the last word used.
    """
    there = np.random.PCG64()
    there.state = words.state
    raw = np.asarray(there.random_raw(_MOST_WORDS * n)).reshape(_MOST_WORDS, n)
    made = []
    for i in range(n) if which is None else which:
        column = iter(raw[:, i].tolist())
        line = Line(column)
        anything = [line.any(each.bits) for each in f]
        near = line.near(operation, f, result)
        codes = anything if line.below(2) == 0 else near
        made.append([*codes, *([line.integer(random_bits)] if random_bits else [])])
    words.advance((_MOST_WORDS - len(list(column))) * n)
    return made
