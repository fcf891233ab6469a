# SPDX-License-Identifier: Apache-2.0
"""Tests that the oracles' fast rationals equal the standard library's fractions."""

from __future__ import annotations

import fractions
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest

from rationals import Fraction


def _drawn(generator: random.Random) -> fractions.Fraction:
    """Returns a random rational of any magnitude that a double can have. Many lie halfway between
    two doubles or close to such a midpoint."""
    middle = 2 * generator.getrandbits(53) + 1
    tail = generator.choice([0, 0, 1, -1])
    exact = fractions.Fraction(middle * 2**60 + tail, 2**61)
    sign = generator.choice([1, -1])
    return sign * exact * fractions.Fraction(2) ** generator.randint(-1135, 960)


def test_float_is_the_nearest_double() -> None:
    generator = random.Random(1)
    for _ in range(20_000):
        exact = _drawn(generator)
        ours = float(Fraction(exact))
        assert (ours, math.copysign(1, ours)) == (float(exact), math.copysign(1, float(exact)))


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "eq", "lt", "le"]
)
def test_operations(name: str) -> None:
    generator = random.Random(name)
    f = getattr(operator, name)
    for _ in range(2000):
        a, b = (fractions.Fraction(generator.randint(-99, 99), 2**k) for k in (7, 3))
        if b == 0:
            continue
        assert f(Fraction(a), Fraction(b)) == f(a, b)


@pytest.mark.parametrize("f", [math.floor, math.ceil, round, int, abs, hash, str])
def test_functions(f: Callable[[Any], Any]) -> None:
    for numerator in range(-40, 40):
        exact = fractions.Fraction(numerator, 8)
        assert f(Fraction(exact)) == f(exact)


@pytest.mark.parametrize("x", [0.1, -0.0, 5e-324, 2.0**-1074 * 3, 1.7976931348623157e308])
def test_of_a_double(x: float) -> None:
    assert Fraction(x) == fractions.Fraction(x)
    assert (Fraction(x).numerator, Fraction(x).denominator) == x.as_integer_ratio()
