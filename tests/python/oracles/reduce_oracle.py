# SPDX-License-Identifier: Apache-2.0
"""An oracle for `cpd.simulate_all_reduce` and for the integers of stochastic rounding.

It computes an all-reduce in exact rational arithmetic, one value at a time, and the random integers
in plain Python.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from oracle import (
    Number,
    Options,
    Spec,
    Value,
    bits_from_value,
    floor_log2,
    fold,
    fold_chunked,
    fold_pairwise,
    number,
    power_of_two,
    round_value,
    value_from_bits,
)
from rationals import Fraction

FP32 = Spec(8, 23)
ACROSS = 0xFFFFF


# ---- random integers ---------------------------------------------------------------------------


@functools.lru_cache(1 << 12)
def philox(counter: tuple[int, ...], seed: int) -> list[int]:
    """Returns four words of the random generator Philox4x32-10 (Salmon et al., SC 2011)."""
    c = list(counter)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [
            (p1 >> 32) ^ c[1] ^ key[0],
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c[3] ^ key[1],
            p0 & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def draws_per_word(bits: int) -> int:
    return 1 if bits > 16 else 2 if bits > 8 else 4


def _word(index: int, block: int, word: int, seed: int, stream: int) -> int:
    counter = (
        index & 0xFFFFFFFF,
        (index >> 32) & 0xFF | block << 8,
        stream & 0xFFFFFFFF,
        stream >> 32,
    )
    return philox(counter, seed)[word]


def elementwise_integer(i: int, bits: int, seed: int, stream: int) -> int:
    """Returns the random integer of element i of a cast."""
    s = draws_per_word(bits)
    word = _word(16 * (i // (64 * s)) + i % 16, 0, (i // 16) % 4, seed, stream)
    return word >> ((i // 64) % s * (32 // s)) & ((1 << bits) - 1)


def fold_integer(i: int, draw: int, bits: int, seed: int, stream: int) -> int:
    """Returns the integer that rounds operation number `draw` of element i in an ordered sum."""
    s = draws_per_word(bits)
    word = _word(i, draw // (4 * s), draw % (4 * s) // s, seed, stream)
    return word >> (draw % s * (32 // s)) & ((1 << bits) - 1)


# ---- all-reduce --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduce:
    """The options of a `cpd.Reduce`, in the types of this oracle."""

    wire: Spec
    sum: Spec
    result: Spec
    scheme: str = "sequential"
    inner: Spec | None = None
    chunk: int = 64
    order: str = "sequential"
    group_size: int = 0
    aps: bool | str = False
    loss_scale: Fraction = Fraction(1)
    average: bool = False
    divide: str = "after"
    wire_options: Options = field(default_factory=Options)
    sum_options: Options = field(default_factory=Options)
    wire_seed: int = 0
    sum_seed: int = 0
    step: int = 0


def _stream(purpose: int, step: int, layer: int, position: int) -> int:
    return purpose << 60 | step << 36 | layer << 20 | position


def all_reduce(ranks: Sequence[Sequence[int]], spec: Reduce, layer: int = 0) -> list[int]:
    """Returns the sum of one layer over all ranks, from and to binary32 bit patterns."""
    if spec.average and spec.divide == "before":
        ranks = [[_divided(bits, len(ranks)) for bits in rank] for rank in ranks]
        spec = replace(spec, average=False)
    shift = layer_shift(ranks, spec)
    wire = [_to_wire(rank, values, spec, shift, layer) for rank, values in enumerate(ranks)]
    size = len(ranks[0])
    columns = ([values[i] for values in wire] for i in range(size))
    sums = [_reduce_one(i, size, column, spec, layer) for i, column in enumerate(columns)]
    return [_finish(bits, spec, shift, len(ranks)) for bits in sums]


def layer_shift(ranks: Sequence[Sequence[int]], spec: Reduce) -> int:
    if not spec.aps:
        return math.frexp(spec.loss_scale)[1] - 1
    values = [value_from_bits(bits) for rank in ranks for bits in rank]
    largest = max((abs(v.value) for v in values if isinstance(v, Number)), default=Fraction(0))
    if largest == 0:
        return 0
    each, total = _ceil_log2(largest), _ceil_log2(largest * len(ranks))

    def outward(target: Spec, options: Options) -> bool:
        return options.rounding in ("stochastic", "up", "down") or (
            options.rounding == "nearest_away" and target.exp <= 2
        )

    sums = [spec.sum, spec.result]
    if spec.scheme == "chunked":
        sums.append(spec.inner or spec.sum)
    if spec.aps == "paper":
        return min(floor_log2(target.max) for target in [spec.wire, *sums]) - total
    rounds_terms = outward(spec.wire, spec.wire_options)
    shift = floor_log2(spec.wire.max) - each
    for target in sums:
        reserve = rounds_terms or outward(target, spec.sum_options)
        shift = min(shift, floor_log2(target.max) - reserve - total)
    wider = [one for one in sums if one != spec.wire] if spec.sum == spec.wire else sums
    if rounds_terms or not wider:
        return shift
    term = round_value(
        spec.wire, number(largest * power_of_two(shift)), replace(spec.wire_options, random=0)
    )
    return shift - any(term.value * len(ranks) > target.max for target in wider)


def _ceil_log2(x: Fraction) -> int:
    return -floor_log2(1 / x)


def _scaled(v: Value, factor: Fraction) -> Value:
    return number(v.value * factor, v.negative) if isinstance(v, Number) else v


def _to_wire(rank: int, values: Sequence[int], spec: Reduce, shift: int, layer: int) -> list[int]:
    stream = _stream(1, spec.step, layer, rank)
    o = spec.wire_options
    return [
        bits_from_value(
            round_value(
                spec.wire,
                _scaled(value_from_bits(bits), power_of_two(shift)),
                replace(o, random=elementwise_integer(i, o.random_bits, spec.wire_seed, stream)),
            )
        )
        for i, bits in enumerate(values)
    ]


def _reduce_one(i: int, size: int, terms: list[int], spec: Reduce, layer: int) -> int:
    """Returns the sum of element i. The ranks of a group are added in rank order.

    The groups' sums are added in the spec's order. Without groups, this is the order of the ranks.
    """
    if spec.group_size == len(terms):  # the sum of the only group is the result
        return _level(i, terms, spec, spec.scheme, layer, ACROSS)
    if spec.group_size:
        starts = range(0, len(terms), spec.group_size)
        groups = [terms[start : start + spec.group_size] for start in starts]
        terms = [_level(i, group, spec, spec.scheme, layer, g) for g, group in enumerate(groups)]
    if spec.order == "ring":
        first = (_slice_of(i, size, len(terms)) + 1) % len(terms)
        terms = terms[first:] + terms[:first]
    scheme = "pairwise" if spec.order == "tree" else spec.scheme
    return _level(i, terms, spec, scheme, layer, ACROSS)


def _slice_of(i: int, size: int, slices: int) -> int:
    ends = [size // slices + (s < size % slices) for s in range(slices)]
    for s in range(1, slices):
        ends[s] += ends[s - 1]
    return next(s for s in range(slices) if i < ends[s])


def _level(i: int, terms: list[int], spec: Reduce, scheme: str, layer: int, position: int) -> int:
    """Returns one sum of terms, rounded to the format of the result."""
    o, seed = spec.sum_options, spec.sum_seed
    step = _draws(i, seed, _stream(2, spec.step, layer, position))
    match scheme:
        case "chunked":
            bits = fold_chunked(spec.sum, spec.inner or spec.sum, spec.chunk, terms, o, step)
        case "pairwise":
            bits = fold_pairwise(spec.sum, terms, o, step)
        case _:
            bits = fold(spec.sum, terms, o, scheme == "kahan", step)
    if spec.result == spec.sum:
        return bits
    stream = _stream(3, spec.step, layer, position)
    rounding = replace(o, random=elementwise_integer(i, o.random_bits, seed, stream))
    return bits_from_value(round_value(spec.result, value_from_bits(bits), rounding))


def _draws(i: int, seed: int, stream: int) -> Callable[[Options], Options]:
    count = 0

    def step(o: Options) -> Options:
        nonlocal count
        count += 1
        if o.rounding != "stochastic":
            return o
        return replace(o, random=fold_integer(i, count - 1, o.random_bits, seed, stream))

    return step


def _divided(bits: int, world: int) -> int:
    value = value_from_bits(bits)
    return bits_from_value(round_value(FP32, _scaled(value, Fraction(1, world))))


def _finish(bits: int, spec: Reduce, shift: int, world: int) -> int:
    value = round_value(FP32, _scaled(value_from_bits(bits), power_of_two(-shift)))
    if spec.average:
        value = round_value(FP32, _scaled(value, Fraction(1, world)))
    return bits_from_value(value)
