# SPDX-License-Identifier: Apache-2.0
"""Makes inputs of lines (test vectors): all combinations, inputs near corner cases, random inputs.

Random numbers are computed from raw words of NumPy's PCG64, so a seed gives the same lines on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd.hardware.vectors.corners import CORNERS, FLAGS, is_integer, largest_code
from cpd.hardware.vectors.fields import Field
from cpd.numeric.formats import Format

BATCH = 1 << 17
"""The number of test vectors that are computed at a time."""
MOST_LINES = 1 << 40
_QUOTA = 128
"""The largest number of lines that are picked from a pool of random lines for each corner case."""

Codes = npt.NDArray[np.uint32]
Lines = dict[str, Codes]
Shape = int | tuple[int, ...]


class Words:
    """A stream of random 64-bit words."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def next(self, shape: Shape) -> npt.NDArray[np.uint64]:
        """Returns random 64-bit numbers in this shape."""
        return np.asarray(self._bits.random_raw(shape), np.uint64)

    def below(self, limit: int, shape: Shape) -> npt.NDArray[np.int64]:
        """Returns random integers in [0, limit). Their probabilities are equal up to 2^-30."""
        high = self.next(shape) >> np.uint64(32)
        return (high * np.uint64(limit) >> np.uint64(32)).astype(np.int64)

    def lines(self, oracle: Any, n: int) -> Lines:
        """Returns random test vectors of an element-wise operation.

        In one half all codes are equally likely; the other half has codes near corner cases.
        """
        state = self._bits.state["state"]
        halves = [divmod(state[name], 1 << 64) for name in ("state", "inc")]
        operands, random, words = oracle.draw(*halves, n)
        self._bits.advance(words * n)
        lines: Lines = dict(zip("abc", operands, strict=False))
        return lines if random is None else {**lines, "r": random}


def exhaustive_lines(fields: Sequence[Field]) -> int:
    """Returns the number of all combinations of input codes."""
    return 1 << sum(field.bits for field in fields)


def exhaustive(fields: Sequence[Field]) -> Iterator[Lines]:
    """Yields every combination of inputs in batches; the last field varies fastest."""
    total = exhaustive_lines(fields)
    for begin in range(0, total, BATCH):
        number = np.arange(begin, min(begin + BATCH, total), dtype=np.uint64)
        lines: Lines = {}
        for field in reversed(fields):
            mask, width = np.uint64((1 << field.width) - 1), np.uint64(field.width)
            elements = [number >> width * np.uint64(i) & mask for i in range(field.count)]
            codes: Codes = np.stack(elements, axis=1).astype(field.dtype)
            lines[field.name] = codes[:, 0] if field.count == 1 else codes
            number = number >> np.uint64(field.bits)
        yield {field.name: lines[field.name] for field in fields}


def corner_codes(f: Format) -> Codes:
    """Returns a format's corner codes, and the codes next to them.

    Corner codes encode zeros, the least and largest numbers, 1, infinities and NaN.
    """
    size = 1 << f.bits
    half = size >> 1 if f.signed else size
    if is_integer(f):
        return _corner_integers(f)
    if f.encoding == "e8m0":
        return np.array([0, 1, 2, 126, 127, 128, 253, 254, 255], np.uint32)
    normal = 1 << f.man
    one = f.bias << f.man
    near = [0, 1, 2, normal - 1, normal, normal + 1, one - 1, one, one + 1, one + normal // 2]
    near += [one + normal - 1, one + normal]
    top = [half - 1, half - 2, half - 3, half - 4, half - normal, half - normal - 1]
    top += [half - normal - 2, half - normal + 1, half - normal + normal // 2]
    codes = {code for code in near + top if 0 <= code < half}
    signs = {code + half for code in codes} if f.signed else set()
    return np.array(sorted(codes | signs), np.uint32)


def _corner_integers(f: Format) -> Codes:
    """Returns the ends of an integer's range, and 0 and powers of two with their neighbors."""
    powers = [1 << k for k in range(f.bits - 1)]
    near = {code for power in powers for code in (power - 1, power, power + 1)}
    least = [1 << (f.bits - 1)] if f.encoding == "int_full" else []
    codes = {code for code in near if code <= largest_code(f)}
    return np.array(sorted({*codes, *(-code % (1 << f.bits) for code in codes), *least}), np.uint32)


def _complemented(f: Format, codes: Codes) -> Codes:
    """Converts sign-and-magnitude codes to two's complement if f is an integer format."""
    if not is_integer(f):
        return codes
    size = np.uint32(1 << (f.bits - 1))
    converted: Codes = np.where(codes & size != 0, 2 * size - (codes & (size - 1)), codes)
    return (converted & (2 * size - 1)).astype(np.uint32)


def random_codes(f: Format, words: Words, shape: Shape) -> Codes:
    """Returns random codes, all equally likely."""
    return (words.next(shape) >> np.uint64(64 - f.bits)).astype(np.uint32)


def biased_codes(f: Format, words: Words, exponents: npt.NDArray[np.int64]) -> Codes:
    """Returns random codes of f with the given exponents, clipped to f's range.

    Many of the random mantissas end in a run of ones or zeros, or have a single 1.
    """
    shape = exponents.shape
    mantissa = (words.next(shape) >> np.uint64(40)).astype(np.int64) >> (24 - f.man)
    cut = words.below(f.man + 1, shape)
    low = (1 << cut) - 1
    style = words.below(4, shape)
    mantissa = np.where(style == 0, mantissa & ~low, mantissa)
    mantissa = np.where(style == 1, mantissa | low, mantissa)
    mantissa = np.where(style == 2, (1 << f.man) >> (cut + 1), mantissa)
    field = np.clip(exponents + f.bias, 0, (1 << f.exp) - 1)
    codes = (field << f.man) | mantissa
    if f.signed:
        codes |= words.below(2, shape) << (f.exp + f.man)
    return _complemented(f, codes.astype(np.uint32))


def random_integers(bits: int, words: Words, shape: Shape) -> Codes:
    """Returns random integers of `bits` bits.

    One half of them has any value. The other half is 0, 1, -1, or the least or largest integer.
    """
    anything = (words.next(shape) >> np.uint64(64 - bits)).astype(np.uint32)
    middle = 1 << (bits - 1)
    ends = np.array([0, 1, middle - 1, middle, 2 * middle - 1], np.uint32)
    return np.where(words.below(2, shape) == 0, anything, ends[words.below(5, shape)])


def finite_codes(f: Format, codes: Codes) -> Codes:
    """Returns the codes, with infinities and NaNs replaced by the largest value."""
    if is_integer(f):
        least = np.uint32(1 << (f.bits - 1))
        if f.encoding == "int_full":
            return codes
        spared: Codes = np.where(codes == least, least + np.uint32(1), codes)
        return spared
    size = 1 << (f.exp + f.man)
    magnitude = np.minimum(codes & (size - 1), largest_code(f)).astype(np.uint32)
    sign = codes & size if f.signed else np.uint32(0)
    if f.encoding in ("fnuz", "p3109", "p3109finite"):
        sign = np.where(magnitude == 0, np.uint32(0), sign)
    finite: Codes = magnitude | sign
    return finite


def sum_lines(rule: Any, words: Words, n: int) -> Lines:
    """Returns random test vectors of a sum, of four styles with equal probability.

    A line has: any finite codes; some corner codes; exponents near each other; or exponents near
    each other and terms that cancel in pairs.
    """
    style = words.below(4, n)[:, None]
    lines: dict[str, Any] = {}
    for field, f in zip(rule.inputs, rule.formats, strict=False):
        if not field.signed:
            lines[field.name] = _operand(f, field.count, style, words, cancels=field.name == "a")
    if rule.fixed is not None and rule.operation != "sum":
        lines["c"] = _integers(rule.fixed.width, words, n)[:, None]
    if rule.scale is not None:
        for name in ("a_scale", "b_scale"):
            lines[name] = _operand(rule.scale, rule.scales, style, words, spread=5, rarity=4)
    if "c" in lines:
        lines["c"] = lines["c"][:, 0]
    return completed(rule, words, lines)


def alike(rule: Any, words: Words) -> Lines:
    """Returns test vectors of a sum in which all terms of one vector are equal.

    There is one vector for each pair of an extreme code of operand a and one of operand b. The
    operation "sum" has no b, so it has one vector for each extreme code of a. The addend c is +0,
    and scales are 1. The largest terms cause the longest carries.
    """
    operands = [extremes(f) for f in rule.formats[: 1 if rule.operation == "sum" else 2]]
    grids = (grid.reshape(-1, 1) for grid in np.meshgrid(*operands, indexing="ij"))
    terms = [np.repeat(grid, rule.length, axis=1) for grid in grids]
    return completed(rule, words, dict(zip("ab", terms, strict=False)))


def completed(rule: Any, words: Words, lines: dict[str, Any]) -> Lines:
    """Completes test vectors of a sum: adds the input fields that `lines` does not have.

    A missing addend c is 0, and missing scales are 1. The field `r`, the random integers of
    stochastic rounding, is always replaced by new ones.
    """
    n = len(lines["a"])
    for field in rule.inputs:
        if field.name == "r":
            bits = rule.accumulator.random_bits
            lines["r"] = random_integers(bits, words, (n, rule.draws))
        elif field.name == "c":
            lines.setdefault("c", np.zeros(n))
        elif field.name not in lines:
            one = rule.scale.bias << rule.scale.man
            lines[field.name] = np.full((n, field.count), one)
    return {field.name: lines[field.name].astype(field.dtype, copy=False) for field in rule.inputs}


def joined(parts: Sequence[Lines]) -> Lines:
    """Concatenates several sets of test vectors, in order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _integers(bits: int, words: Words, n: int) -> npt.NDArray[np.uint64]:
    """Returns random two's complement numbers.

    A quarter has any value, half have a random number of bits, a quarter is near an end of the
    range.
    """
    mask = np.uint64((1 << bits) - 1)
    style = words.below(4, n)
    anything = words.next(n) >> np.uint64(64 - bits)
    few = words.next(n).view(np.int64) >> (63 - words.below(bits, n))
    ends = np.uint64(1 << (bits - 1)) + (words.below(17, n) - 8).view(np.uint64)
    chosen = np.where(style == 0, anything, np.where(style == 3, ends, few.view(np.uint64)))
    numbers: npt.NDArray[np.uint64] = chosen & mask
    return numbers


def extremes(f: Format) -> Codes:
    """Returns the codes of ±0, ±1, and ± the least, least normal and largest numbers."""
    top = largest_code(f)
    one = min(max(f.bias, 0) << f.man, top)  # the largest number if the format has no 1
    magnitudes = np.array([0, 1, 1 << f.man, one, top], np.uint32)
    signs = [0, 1 << (f.exp + f.man)] if f.signed else [0]
    both = np.concatenate([magnitudes + np.uint32(sign) for sign in signs])
    if f.encoding == "int_full":
        return np.unique(np.append(_complemented(f, both), np.uint32(signs[1])))
    return np.unique(finite_codes(f, _complemented(f, both)))


def negated(f: Format, codes: Codes) -> Codes:
    """Returns the codes of the negatives of values."""
    if is_integer(f):
        return (-codes.astype(np.int64) & ((1 << f.bits) - 1)).astype(np.uint32)
    return codes ^ np.uint32(1 << (f.exp + f.man))


def _operand(
    f: Format,
    count: int,
    style: Any,
    words: Words,
    *,
    cancels: bool = False,
    spread: int = 8,
    rarity: int = 0,
) -> Codes:
    """Returns the elements of one field of n random test vectors, (n, count).

    Args:
        f: the format of the elements.
        count: the number of elements of a line.
        style: the style of each line: 0 for any finite codes, 1 and 2 for exponents near each
            other, 3 for some corner codes.
        words: random words.
        cancels: whether elements of style 2 cancel in pairs.
        spread: the size of the range of exponents in styles 1 and 2.
        rarity: in style 3, one element in `rarity` elements has a corner code; default 0: 2 * count
            + 6.

    Returns:
        The codes.
    """
    n, shape = len(style), (len(style), count)
    anything = finite_codes(f, random_codes(f, words, shape))
    centre = words.below(1 << f.exp, n)[:, None] - f.bias
    exponents = centre + words.below(spread, shape) - spread // 2
    near = finite_codes(f, biased_codes(f, words, exponents))
    if cancels and f.signed and count > 1:
        opposite = near.copy()
        paired = count // 2 * 2
        opposite[:, 1:paired:2] = negated(f, near[:, :paired:2])
        near = np.where(style == 2, finite_codes(f, opposite), near)
    corners = corner_codes(f)
    picked = corners[words.below(len(corners), shape)]
    rare = words.below(rarity or 2 * count + 6, shape) == 0
    special = np.where(rare, picked, anything)
    return np.where(style == 0, anything, np.where(style == 3, special, near))


def crossed(rule: Any, words: Words) -> Lines:
    """Returns test vectors with every combination of corner codes: zeros, extremes, Inf, NaN."""
    grids = np.meshgrid(*(corner_codes(f) for f in rule.formats), indexing="ij")
    lines = {name: grid.reshape(-1) for name, grid in zip("abc", grids, strict=False)}
    if rule.to.rounding == "stochastic":
        lines["r"] = random_integers(rule.to.random_bits, words, grids[0].size)
    return lines


def directed(rule: Any, seed: int) -> Iterator[Lines]:
    """Yields directed test vectors: lines that are chosen to reach rare cases.

    First come combinations of corner codes. Then come lines of each corner case and each flag, from
    a pool of random lines. Then come lines near rounding points (`near.py`); for sums also lines
    with zeros, padding and special values in each term (`near_sums.py`).
    """
    words = Words(seed)
    yield from rule.corner_lines(words)
    pool = rule.random_lines(words, rule.pool)
    outputs, corners = rule.results(pool)
    picked = _picked(corners, len(CORNERS))
    if "flags" in outputs:
        picked |= _picked(outputs["flags"], len(FLAGS))
    yield {name: values[picked] for name, values in pool.items()}
    yield from rule.near_lines(words)


def _picked(bits: npt.NDArray[Any], kinds: int) -> npt.NDArray[np.bool_]:
    chosen = np.zeros(len(bits), bool)
    for kind in range(kinds):
        chosen[np.flatnonzero(bits >> kind & 1)[:_QUOTA]] = True
    return chosen


def in_batches(rule: Any, n: int, seed: int) -> Iterator[Lines]:
    """Yields n random test vectors, in batches."""
    words = Words(seed)
    for begin in range(0, n, rule.batch):
        yield rule.random_lines(words, min(rule.batch, n - begin))
