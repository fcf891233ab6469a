# SPDX-License-Identifier: Apache-2.0
"""The hardware cost of a multiply-accumulate, by the model `cpd-2026`.

The model counts the bits of each part of a unit and converts them to two-input gates. It uses only
the parameters of the formats and the accumulator. Use its numbers only to compare formats and
accumulators with each other.

Operands a and b have significands of pa and pb bits: man + 1 bits (sm8 has 7 bits, an int8 in two's
complement 8). Their product has pp = pa + pb bits. The significand of the sum has ps bits. A
shifter of w bits has s(w) = ceil(log2(w + 1)) stages. For one product and its addition:

- multiplier: pa · pb partial products.
- aligner: w (s(w) + 2) multiplexers, for the shifter and for the swap of the addends before it. w
  is the width of the adder: ps + 3 (guard, round, sticky) if products are rounded, max(pp, ps) + 3
  if products are exact.
- adder: 2 w bits, for the sum and its negation.
- normalizer: w to count zeros; w s(w) to shift up; another w s(w) to shift down if the format has
  subnormals; and ps to round. Rounding toward zero costs nothing; stochastic rounding also costs
  its random bits. If products are rounded, a second normalizer and the exponent bits of another
  rounding are added. They are computed from pp and the products' format.
- exponent, with e exponent bits: e + 1 bits for the sum of the operands' exponents, 3 (e + 2) for a
  rounding, 2 (e + 1) for an alignment. An integer has no exponent.
- scales: for blocks of N values, 1/N of the bits that add the exponents of two scales and add their
  sum to the result's exponent. If a scale has a mantissa, also 1/N of the bits of two multipliers:
  for the product of the scales, and for its product with the sum.

A matrix unit that adds N products with F fraction bits has a shifter of F + 2 bits per product. Its
adders have F + 2 + s(N) bits for each term, and twice that number for the final sum. It has 3 (e +
2) bits to compare and subtract exponents, and one normalizer for N products.

An integer accumulator of w bits has an adder of 3 w bits, for the sum and its carry-lookahead. It
has shifters only if products have exponents. Instead of a normalizer it has w / 2 bits to saturate.
A `kahan` accumulator has four adders with all their parts. A `chunked` accumulator has one, and a
second one that counts as 1 / chunk.

A partial product counts as 6 two-input gates (an AND and a full adder), a bit of an adder as 5, a
bit of any other part as 3. For the modules in tests/rtl, the model gives 0.8 to 1.6 times the gates
that yosys synthesizes. For integers it gives 0.9 to 1.3 times, and for 4-bit formats, which yosys
reduces to a small table, twice the gates. Wires, registers and timing are not modeled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd.numeric.accumulator import (
    Accumulator,
    AccumulatorLike,
    Unit,
    as_accumulator,
    as_integer,
    as_unit,
)
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, FormatLike
from cpd.numeric.renamed import refuses_old
from cpd.numeric.scaled import Scaled, ScaledLike, element_format, format_or_scaled

MODEL = "cpd-2026"
Parts: TypeAlias = npt.NDArray[np.float64]
GATES = {"multiplier": 6, "aligner": 3, "adder": 5, "normalizer": 3, "exponent": 5, "scales": 6}
"""The number of two-input gates per bit of each part."""


@refuses_old
@dataclass(frozen=True)
class Gates:
    """The bits of each part of a hardware unit, for one multiply-accumulate.

    If several multiply-accumulates share a part, each counts an equal fraction of its bits.

    Attributes:
        multiplier: partial products.
        aligner: multiplexers that align the addends.
        adder: bits of the sum, and of its negation or carry logic.
        normalizer: bits to normalize, round or saturate the sum.
        exponent: bits of the arithmetic with exponents.
        scales: bits of the arithmetic with block scales; default 0.

    >>> gates("e4m3fn", "fp32").multiplier
    16.0
    """

    multiplier: float
    aligner: float
    adder: float
    normalizer: float
    exponent: float
    scales: float = 0.0

    def __setstate__(self, state: dict[str, float]) -> None:
        for name, value in state.items():  # 0.7 spelled one of them otherwise
            object.__setattr__(self, name.replace("normaliser", "normalizer"), value)

    @property
    def total(self) -> float:
        """The cost in two-input gates: the bits of each part times its `GATES` per bit, summed."""
        return math.fsum(getattr(self, name) * weight for name, weight in GATES.items())

    def json(self) -> dict[str, Any]:
        """Returns the model's name, the bits of each part, and the gates, for JSON."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"model": MODEL, **parts, "gates": self.total}


@checked
def gates(
    a: FormatLike | ScaledLike,
    accumulator: AccumulatorLike = "fp32",
    b: FormatLike | ScaledLike | None = None,
) -> Gates:
    """Estimates the hardware cost of a multiply-accumulate, by the model `cpd-2026`.

    The unit multiplies a value of format `a` by a value of format `b` and adds the product in
    `accumulator`. `help(cpd.hardware.gate_counts)` defines the model: it counts the bits of each
    part. A bit of the multiplier counts as 6 two-input gates, a bit of an adder as 5, and a bit of
    any other part as 3.

    Args:
        a: the format of the first operand, plain or scaled (`"e4m3fn"`, `"mxfp8"`). If
            `accumulator` is a matrix unit, the unit's own operand formats are used instead of the
            element formats of a and b. The block scales of a and b count in any case.
        accumulator: the accumulator that adds the products; default fp32.
        b: the format of the second operand; default None: the format of a.

    Returns:
        The bits of each part; the property `total` is their sum in two-input gates.

    Raises:
        ValueError: for an invalid format or accumulator.
        TypeError: for an argument of another type.

    >>> narrow, wide = gates("e2m1"), gates("e4m3fn")
    >>> narrow.total < wide.total
    True
    """
    first = format_or_scaled(a)
    second = first if b is None else format_or_scaled(b)
    total = as_accumulator(accumulator)
    left, right = element_format(first), element_format(second)
    unit = as_unit(total)
    if unit is not None:
        left, right = unit.a, unit.b
        parts = _of_unit(unit, left, right)
    else:
        parts = _of_sum(total, left, right)
    multiplier = float(_precision(left) * _precision(right))
    aligner, adder, normalizer, exponent = parts.tolist()
    scales = _scales(first, second, total)
    return Gates(multiplier, aligner, adder, normalizer, exponent, scales)


def _precision(f: Format) -> int:
    """Returns the width of the significand in bits. An integer's width includes the sign."""
    return f.man + (2 if f.encoding in ("int", "int_full") else 1)


def _exponent(*formats: Format) -> int:
    """Returns the largest number of exponent bits of the formats; 0 for integers."""
    return max(f.exp if f.exp > 1 else 0 for f in formats)


def _stages(width: int) -> int:
    return math.ceil(math.log2(width + 1))


# The functions below return the widths, in bits, of four parts of the hardware: the aligner, the
# adder, the normalizer and the exponent logic.


def _of_sum(total: Accumulator, a: Format, b: Format) -> Parts:
    e, product = _exponent(a, b), _precision(a) + _precision(b)
    integer = as_integer(total)
    if integer is not None:
        width = integer.width
        ends = width / 2 if total.overflow == "saturate" else 0
        shifter = width * _stages(width) if e else 0
        return np.array([shifter, 3 * width, ends, e + 1 if e else 0.0])
    parts: Parts = _addition(total, total.format, product)
    if total.scheme == "kahan":
        parts = 4 * parts
    elif total.scheme == "chunked" and total.inner is not None and total.chunk is not None:
        parts = _addition(total, total.inner, product) + parts / total.chunk
    if isinstance(total.product, Format):
        parts += _rounding(product, total.product, total.rounding, total.random_bits)
    parts += [0, 0, 0, e + 1 if e else 0]
    return parts


def _addition(total: Accumulator, f: Format, product: int) -> Parts:
    p, rounded = _precision(f), isinstance(total.product, Format)
    width = (p if rounded else max(p, product)) + 3
    parts = np.array([width * (_stages(width) + 2), 2 * width, 0, 2 * (f.exp + 1)], np.float64)
    return parts + _rounding(width, f, total.rounding, total.random_bits)


def _rounding(width: int, f: Format, rounding: str, random_bits: int = 0) -> Parts:
    p = _precision(f)
    width = max(width, p + 1)
    bits = width + width * _stages(width) * (2 if f.subnormals else 1)
    if rounding != "toward_zero":
        bits += p + (random_bits if rounding == "stochastic" else 0)
    return np.array([0, 0, bits, 3 * (f.exp + 2)], np.float64)


def _of_unit(unit: Unit, a: Format, b: Format) -> Parts:
    """Returns the bits of a matrix unit's parts, divided by the number of products of the unit.

    A unit that forms short dot products before the alignment aligns each dot product once.
    """
    term_bits = unit.fraction_bits + 2
    width = term_bits + _stages(unit.block)
    shifter = term_bits * _stages(term_bits)
    aligned = unit.block // unit.dot
    exponents = unit.block * (_exponent(a, b) + 1) + 3 * aligned * (_exponent(a, b) + 2)
    parts = np.array([aligned * shifter, unit.block * width, 0, exponents], np.float64)
    parts += [
        term_bits * _stages(term_bits) * (unit.addend == "aligned"),
        2 * width,
        0,
        2 * (unit.sum.exp + 2),
    ]
    return (parts + _rounding(width, unit.sum, unit.sum_rounding)) / unit.block


def _scales(a: Format | Scaled, b: Format | Scaled, total: Accumulator) -> float:
    """Returns the number of bits that apply both operands' block scales, per product of the sum.

    The scales are applied once in each block of the operand with the smaller blocks.
    The scale of a tensor or of a row is applied once at the end of a sum, so it is not counted.
    """
    blocks = [q for q in (a, b) if isinstance(q, Scaled) and q.block not in ("tensor", "row")]
    if not blocks:
        return 0.0
    precisions = [_precision(q.scale) for q in blocks]
    bits = max(_exponent(q.scale) for q in blocks) + total.format.exp
    if max(precisions) > 1:  # else powers of two
        bits += math.prod(precisions) + sum(precisions) * _precision(total.format)
    return bits / min(_run(q) for q in blocks)


def _run(q: Scaled) -> int:
    """Returns the number of values along a sum that share a scale."""
    return int(q.block.rpartition("x")[2])


HardwareCost = Gates  # as pickles of 0.7 name it
