# SPDX-License-Identifier: Apache-2.0
"""Directed test vectors of element-wise operations near the points at which a result is rounded.

A line is a test vector. Its last operand is chosen so that the exact result is near a number of the
result's format, or halfway between two such numbers. Two more lines have the last operand's
neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd.hardware.vectors import inputs as generated
from cpd.hardware.vectors.corners import is_integer, largest_code
from cpd.hardware.vectors.inputs import Codes, Lines, Words
from cpd.hardware.vectors.values import encoded, values_of
from cpd.numeric.cast import Cast
from cpd.numeric.formats import Format

F64: TypeAlias = "npt.NDArray[np.float64]"

_ALL_TARGETS = 8
"""For result formats up to this number of bits, every number is a target: a line is made whose
exact result is near this number."""
_TARGETS = 192
"""The number of targets (numbers near which results lie) chosen at random in larger formats."""
_PAIRS = 96
"""The number of random pairs of a and b, in addition to the pairs of corner codes."""
_LEAST = 12
"""The number of random pairs in which operand a is the least number. In `_LEAST` other pairs,
operand b is the least number."""
_RECIPROCALS = 4
"""The number of pairs of operands a, b that are made for each of some powers of two, so that the
product is near it."""
STEPS = np.array([-1, 0, 1])
"""Added to a number's code, these give the lower neighbor, the number itself and the upper
neighbor."""


def codes_of(f: Format, values: F64) -> Codes:
    """Returns the codes of a format's numbers nearest to finite values."""
    return encoded(np.asarray(values, np.float64), Cast(f, overflow="saturate"))


def stepped(f: Format, codes: Codes, steps: Any) -> Codes:
    """Returns codes moved away from zero by `steps` numbers of the format, at most to the last."""
    if is_integer(f):
        unused = 32 - f.bits
        signed = (codes << np.uint32(unused)).view(np.int32).astype(np.int64) >> unused
        away = np.where(signed < 0, signed - steps, signed + steps)
        top = (1 << (f.bits - 1)) - 1
        moved: Codes = (np.clip(away, -top, top) & ((1 << f.bits) - 1)).astype(np.uint32)
        return moved
    size = np.uint32(1 << (f.exp + f.man))
    magnitude = (codes & (size - np.uint32(1))).astype(np.int64) + steps
    sign = codes & size if f.signed else np.uint32(0)
    clipped = np.clip(magnitude, 0, largest_code(f)).astype(np.uint32)
    return generated.finite_codes(f, clipped | sign)


def precise(f: Format, codes: Codes) -> F64:
    """Returns the values of codes as binary64."""
    with np.errstate(invalid="ignore"):
        values: F64 = values_of(f, codes).astype(np.float64)
    return values


def targets(f: Format, words: Words) -> F64:
    """Returns results near which test vectors are made: numbers, midpoints, and two thresholds.

    The thresholds are of overflow and of tininess. For a small format, all numbers and midpoints
    are targets. For other formats, corner codes, random codes and their midpoints are targets.
    Signs are random.
    """
    top = largest_code(f)
    if f.bits <= _ALL_TARGETS:
        codes = np.arange(top + 1, dtype=np.uint32)
    else:
        exponents = words.below(1 << f.exp, _TARGETS) - f.bias
        random = generated.biased_codes(f, words, exponents)
        size = np.uint32(1 << (f.exp + f.man))
        corners = generated.corner_codes(f)
        codes = np.unique(np.concatenate([random, corners]) & (size - np.uint32(1)))
        codes = codes[codes <= top]
    low = precise(f, codes)
    high = precise(f, np.minimum(codes + np.uint32(1), np.uint32(top)))
    high[codes == top] += low[codes == top] - precise(f, np.array([max(top - 1, 0)], np.uint32))
    half = 2.0 ** -(f.man + 1)
    tiny = np.array([f.min_normal or 0.0]) * (1 - half * np.array([[1.0], [0.5]]))
    both = np.concatenate([low, (low + high) / 2, tiny.reshape(-1)])
    if f.signed:
        both *= random_signs(words, len(both))
    finite: F64 = both[np.isfinite(both)]
    return finite


def exponents_of(values: F64) -> npt.NDArray[np.int64]:
    """Returns floor(log2 |x|); for zeros, the exponent of the least normal double."""
    magnitudes = np.maximum(np.abs(values), np.finfo(np.float64).tiny)
    return np.frexp(magnitudes)[1].astype(np.int64) - 1


def partners(f: Format, products: F64, man: int) -> tuple[npt.NDArray[np.int64], Codes]:
    """Returns addends for which product + addend is hard to round to P = man + 1 bits.

    For each product p, the addends are:

    - ±p · 2^-(P + i) with i = -2…2, which is about half an ulp of p;
    - ±p · 2^-2P and ±p · 2^-3P, which are far below an ulp of p;
    - the two addends for which the sum is the nearest midpoint of two numbers above or below p;
    - ±p · 2^(P + i) with i = -2…2, so that p is about half an ulp of the addend;
    - ±p.

    For each addend, its two neighbors in the format f are returned, too.

    Returns the indices of products and the codes of addends.
    """
    near = np.arange(-2, 3)
    far = np.array([-2, -3]) * (man + 1)
    factors = np.ldexp(1.0, np.concatenate([-(man + 1 + near), man + 1 + near, far, [0]]))
    quantum = np.ldexp(1.0, exponents_of(products) - man)
    below = np.floor(products / quantum) * quantum
    middles = [below + (0.5 + k) * quantum - products for k in (0, -1)]
    scaled = products[:, None] * factors
    addends = np.concatenate([scaled, -scaled, np.stack(middles, axis=1)], axis=1)
    which = np.broadcast_to(np.arange(len(products))[:, None], addends.shape)
    within = np.isfinite(addends) & (np.abs(addends) <= f.max) & (addends != 0)
    if not f.signed:
        within &= addends > 0
    codes = codes_of(f, addends[within])
    index = np.repeat(which[within].astype(np.int64), len(STEPS))
    return index, stepped(f, codes[:, None], STEPS).reshape(-1)


def near_roundings(rule: Any, words: Words) -> Lines:
    """Returns test vectors with an exact result near a rounding point of the result's format."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        lines = _lines(rule, words)
        parts = [lines]
        if rule.operation in ("mul", "fma") and not is_integer(rule.formats[0]):
            parts += [_near_subnormals(rule, words)]
        if rule.operation == "fma":
            parts += [_near_products(rule, words), _near_addends(rule, words)]
    lines = generated.joined(parts)
    names = list(lines)
    rows = np.unique(np.stack([lines[name] for name in names], axis=1), axis=0)
    distinct = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(names)}
    if rule.to.rounding == "stochastic":
        distinct["r"] = generated.random_integers(rule.to.random_bits, words, len(rows))
    return distinct


def random_signs(words: Words, n: int) -> F64:
    """Returns n random signs, 1 or -1."""
    signs: F64 = 1.0 - 2.0 * words.below(2, n).astype(np.float64)
    return signs


def _codes_at(f: Format, words: Words, exponents: npt.NDArray[np.int64]) -> Codes:
    return generated.finite_codes(f, generated.biased_codes(f, words, exponents))


def _lines(rule: Any, words: Words) -> Lines:
    """Returns test vectors in which the last operand brings the exact result near a target.

    The other operands are random.
    """
    goal = targets(rule.result, words)
    formats: Sequence[Format] = rule.formats
    operation = rule.operation
    repeats = {"cast": 1, "sqrt": 1}.get(operation, 4)
    goal = np.repeat(goal, repeats)
    n, reach = len(goal), rule.result.man + 4
    at = exponents_of(goal)
    others: list[Codes] = []
    if operation == "cast":
        solved = goal
    elif operation == "sqrt":
        solved = goal * goal
    elif operation == "add":
        others = [_codes_at(formats[0], words, at + words.below(2 * reach, n) - reach)]
        solved = goal - precise(formats[0], others[0])
    else:
        last = formats[0] if operation == "div" else formats[1]
        exponent = words.below(1 << last.exp, n) - last.bias
        first = formats[1] if operation == "div" else formats[0]
        if operation == "mul":
            others = [_codes_at(first, words, at - exponent)]
            solved = goal / precise(first, others[0])
        elif operation == "div":
            others = [_codes_at(first, words, exponent - at)]
            solved = goal * precise(first, others[0])
        else:
            away = words.below(3 * reach, n) - 2 * reach
            others = [
                _codes_at(first, words, at + away - exponent),
                _codes_at(last, words, exponent),
            ]
            solved = goal - precise(first, others[0]) * precise(last, others[1])
    f = formats[0] if operation in ("cast", "sqrt", "div") else formats[-1]
    within = np.isfinite(solved)
    codes = stepped(f, codes_of(f, solved[within])[:, None], STEPS).reshape(-1)
    rest = [np.repeat(operand[within], len(STEPS)) for operand in others]
    columns = [codes, *rest] if operation == "div" else [*rest, codes]
    return dict(zip("abc", columns, strict=False))


def _near_products(rule: Any, words: Words) -> Lines:
    """Returns test vectors of fma in which the addend brings the result near a rounding point.

    The factors a and b are corner codes, random numbers, or the least number and a power of two.
    """
    of_a, of_b, of_c = rule.formats
    corners = [_positive(f) for f in (of_a, of_b)]
    a, b = (grid.reshape(-1) for grid in np.meshgrid(*corners, indexing="ij"))
    exponents = [words.below(1 << f.exp, _PAIRS) - f.bias for f in (of_a, of_b)]
    random = [_codes_at(f, words, e) for f, e in zip((of_a, of_b), exponents, strict=True)]
    for side, f in enumerate((of_b, of_a)):
        rows = slice(side, None, _PAIRS // _LEAST)
        random[side][rows] = 1
        random[1 - side][rows] &= ~np.uint32((1 << f.man) - 1)
    a, b = np.concatenate([a, random[0]]), np.concatenate([b, random[1]])
    a, b = (_any_sign(f, codes, words) for f, codes in ((of_a, a), (of_b, b)))
    products = precise(of_a, a) * precise(of_b, b)
    fit = np.isfinite(products) & (products != 0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        which, c = partners(of_c, products[fit], rule.result.man)
    return {"a": a[fit][which], "b": b[fit][which], "c": c}


def _near_addends(rule: Any, words: Words) -> Lines:
    """Returns test vectors of fma with corner codes as c and with small products.

    A product is near 1/4, 1/2 or 1 ulp. The ulp is the spacing of the result's format at c.
    """
    corners = _positive(rule.formats[2])
    unit = (
        np.maximum(exponents_of(precise(rule.formats[2], corners)), _least(rule)) - rule.result.man
    )
    at = (unit[:, None] - np.arange(3)).reshape(-1)
    which, a, b = _near_powers(rule, words, at)
    c = _any_sign(rule.formats[2], np.repeat(corners, 3)[which], words)
    return {"a": a, "b": b, "c": c}


def _near_subnormals(rule: Any, words: Words) -> Lines:
    """Returns test vectors with products near 1 and where results become subnormal or 0; c is 0."""
    least = _least(rule)
    unit = least - rule.result.man
    _, a, b = _near_powers(rule, words, np.array([unit - 2, unit - 1, unit, least - 1, least, 0]))
    return {"a": a, "b": b, **({"c": np.zeros_like(a)} if rule.operation == "fma" else {})}


def _near_powers(
    rule: Any, words: Words, at: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Codes, Codes]:
    """Returns pairs a, b with products very near the powers of two 2^n, for each n in `at`.

    For each power, one pair is a = 1 + 2^-h and b = 1 - 2^-h + 2^-2h, both times powers of two: the
    product of the significands is 1 + 2^-3h. In the other pairs a is random, and b is nearest to
    2^n / a. Each pair is repeated with the two neighbors of b.

    Returns for each pair: the index of n in `at`, and the codes of a and b. Powers that the formats
    cannot reach have no pairs.
    """
    of_a, of_b = rule.formats[:2]
    which = np.repeat(np.arange(len(at)), _RECIPROCALS)
    low = np.maximum(at - of_b.bias, 1 - of_a.bias)[which]
    span = np.maximum(np.minimum(at + of_b.bias - 1, of_a.bias)[which] - low, 0) + 1
    a = _codes_at(of_a, words, low + (words.below(1 << 30, len(which)) * span >> 30))
    h = min(of_a.man, (of_b.man + 1) // 2)
    if h > 0:
        first = np.arange(len(a)) % _RECIPROCALS == 0
        fraction = np.uint32((1 << of_a.man) - 1)
        a = np.where(first, a & ~fraction | np.uint32(1 << (of_a.man - h)), a)
        a = generated.finite_codes(of_a, a)
    solved = np.ldexp(1.0, at[which]) / precise(of_a, a)
    fit = np.flatnonzero(np.isfinite(solved) & (np.abs(solved) <= of_b.max))
    b = stepped(of_b, codes_of(of_b, solved[fit])[:, None], STEPS).reshape(-1)
    a, which = np.repeat(a[fit], len(STEPS)), np.repeat(which[fit], len(STEPS))
    reached = exponents_of(precise(of_a, a) * precise(of_b, b))
    near = np.abs(reached - at[which]) <= 1
    return which[near], a[near], b[near]


def _least(rule: Any) -> int:
    """Returns the exponent of the result's least normal number."""
    f = rule.result
    return int(exponents_of(np.array([f.min_normal or f.max]))[0])


def _positive(f: Format) -> Codes:
    """Returns the corner codes that are positive finite numbers."""
    codes = generated.corner_codes(f)
    values = precise(f, codes)
    return codes[np.isfinite(values) & (values > 0)]


def _any_sign(f: Format, codes: Codes, words: Words) -> Codes:
    """Returns the codes with random signs."""
    if not f.signed:
        return codes
    flips = words.below(2, len(codes)) == 1
    return generated.finite_codes(f, np.where(flips, generated.negated(f, codes), codes))
