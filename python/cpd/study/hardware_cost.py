# SPDX-License-Identifier: Apache-2.0
"""What a multiply-accumulate costs in hardware, by the model `cpd-2026`: counts of bits, from the
descriptors alone, and their sum in gates. For comparing formats and accumulators with each other.

Per product of operands a and b and its addition to the sum, with significands of p = man + 1 bits
(an int of N bits has N - 1), products of pp = pa + pb bits, and ceil(log2) stages of a shifter:

- multiplier: pa pb bits of partial products.
- aligner: w ceil(log2 w) bits of multiplexers, w the adder's width.
- adder: w bits. A float's sum of rounded products: w = ps + 3 (guard, round, sticky), ps that of
  the sum; of exact products: w = 2 ps + pp + 2, the window of a fused multiply-add; a matrix unit
  of N products and F fraction bits: each product is shifted in F + 2 bits, the tree adds N terms
  (N + 1 with the addend) of F + 2 + ceil(log2 N) bits; an integer accumulator: its width.
- normaliser: w to count leading zeros, w ceil(log2 w) to shift, ps to round unless toward zero,
  plus the random bits of stochastic rounding; of a rounded product pp + its format's p to round;
  a matrix unit has one for N products, an integer accumulator none.
- exponent: bits of the operands' exponents (their sum), and twice those of the sum (compared, and
  corrected); none for integers.
- scales: of operands in blocks of N values, 1/N of what multiplies two scales (a product of their
  significands, a sum of their exponents) and of one more product, of that with the block's sum.

kahan has four adders with all that belongs to them, chunked one and 1/chunk. A bit of a multiplier
counts 7 gates of two inputs (an AND and a full adder), of an adder 5, of a multiplexer 3, of a
leading-zero counter or an increment 2. Wires, registers, pipelines and timing are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cpd.numeric.accumulator import Accumulator, AccumulatorLike, BlockFma, accumulator
from cpd.numeric.formats import Format, FormatLike
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled

MODEL = "cpd-2026"
GATES = {"multiplier": 7, "aligner": 3, "adder": 5, "normaliser": 3, "exponent": 5, "scales": 7}
"""Gates of two inputs for each bit."""


@dataclass(frozen=True)
class HardwareCost:
    """Bits of each part of a unit, for one multiply-accumulate; parts that several share count by
    their share.

    >>> hardware_cost("e4m3fn", "fp32").multiplier
    16.0
    """

    multiplier: float
    aligner: float
    adder: float
    normaliser: float
    exponent: float
    scales: float = 0.0

    @property
    def gates(self) -> float:
        """The sum, each part's bits by `GATES`."""
        return math.fsum(getattr(self, name) * each for name, each in GATES.items())

    def json(self) -> dict[str, Any]:
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"model": MODEL, **parts, "gates": self.gates}


def hardware_cost(
    a: FormatLike | ScaledLike,
    acc: AccumulatorLike = "fp32",
    b: FormatLike | ScaledLike | None = None,
) -> HardwareCost:
    """The cost of multiplying values of formats `a` and `b` (default: a's) and adding the products
    up in `acc`, by the model `cpd-2026`.

    Raises ValueError or TypeError for what is no format or accumulator.

    >>> narrow, wide = hardware_cost("e2m1"), hardware_cost("e4m3fn")
    >>> narrow.gates < wide.gates
    True
    """
    first = format_or_scaled(a)
    second = first if b is None else format_or_scaled(b)
    total = accumulator(acc)
    left, right = _element(first), _element(second)
    if total.unit is not None:
        left, right = total.unit.a, total.unit.b
    product = _precision(left) + _precision(right)
    if total.unit is not None:
        aligner, adder, normaliser = _unit(total.unit)
    else:
        aligner, adder, normaliser = _sum(total, product)
    return HardwareCost(
        multiplier=float(_precision(left) * _precision(right)),
        aligner=aligner,
        adder=adder,
        normaliser=normaliser,
        exponent=float(max(_exponent(left), _exponent(right)) + 2 * _sum_exponent(total)),
        scales=_scales(first, second, total),
    )


def _element(q: Format | Scaled) -> Format:
    return q.element if isinstance(q, Scaled) else q


def _precision(f: Format) -> int:
    """Bits of the significand."""
    return f.man + 1


def _exponent(f: Format) -> int:
    """Bits of the exponent; integers have one that says nothing."""
    return f.exp if f.exp > 1 else 0


def _sum_exponent(total: Accumulator) -> int:
    return 0 if getattr(total, "fixed", None) is not None else total.format.exp


def _stages(width: float) -> int:
    return max(0, math.ceil(math.log2(width)))


def _round(precision: int, rounding: str, random_bits: int) -> int:
    if rounding == "toward_zero":
        return 0
    return precision + (random_bits if rounding == "stochastic" else 0)


def _sum(total: Accumulator, product: int) -> tuple[float, float, float]:
    """Aligner, adder and normaliser of an ordered sum."""
    fixed: Any = getattr(total, "fixed", None)
    if fixed is not None:
        return float(fixed.width * _stages(fixed.width)), float(fixed.width), 0.0
    outer = np.array(_float_adder(total, total.format, product))
    if total.scheme == "kahan":
        outer *= 4
    elif total.scheme == "chunked":
        outer = _float_adder(total, total.inner, product) + outer / total.chunk
    aligner, adder, normaliser = outer.tolist()
    if isinstance(total.product, Format):
        p = _precision(total.product)
        normaliser += product + _round(p, total.rounding, total.random_bits)
    return aligner, adder, normaliser


def _float_adder(total: Accumulator, f: Format, product: int) -> tuple[float, float, float]:
    p = _precision(f)
    width = p + 3 if isinstance(total.product, Format) else 2 * p + product + 2
    shifter = width * _stages(width)
    normaliser = width + shifter + _round(p, total.rounding, total.random_bits)
    return float(shifter), float(width), float(normaliser)


def _unit(unit: BlockFma) -> tuple[float, float, float]:
    """Of a matrix unit, for one of its products. With a dot of several products below the
    alignment, only their sums are aligned."""
    terms = unit.block // unit.dot + unit.aligns_addend
    kept = unit.fraction_bits + 2
    width = kept + _stages(unit.block)
    aligner = terms * kept * _stages(kept)
    p = _precision(unit.sum)
    normaliser = width + width * _stages(width) + _round(p, unit.rounding, 0)
    adders = terms * width + (unit.block - unit.block // unit.dot) * kept
    return aligner / unit.block, adders / unit.block, normaliser / unit.block


def _scales(a: Format | Scaled, b: Format | Scaled, total: Accumulator) -> float:
    """What both operands' scales take, by their share of a block; a whole tensor's or a row's is
    taken at the end of a sum and counts nothing."""
    blocks = [q for q in (a, b) if isinstance(q, Scaled) and q.block not in ("tensor", "row")]
    if not blocks:
        return 0.0
    precisions = [_precision(q.scale) for q in blocks]
    bits = max(_exponent(q.scale) for q in blocks) + total.format.exp
    if max(precisions) > 1:  # else powers of two
        bits += math.prod(precisions) + sum(precisions) * _precision(total.format)
    return bits / min(_run(q) for q in blocks)


def _run(q: Scaled) -> int:
    """Values of the sum that share a scale."""
    return int(q.block.rpartition("x")[2])
