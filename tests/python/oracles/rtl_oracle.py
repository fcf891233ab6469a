# SPDX-License-Identifier: Apache-2.0
"""Makes golden vectors for the modules of `tests/rtl`, with exception flags, in rational numbers.

The functions here use `oracle.py` and `flags_oracle.py`, and share no code with `cpd vectors`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import flags_oracle
import oracle
from flags_oracle import COUNTS, NV, NX, OF, is_signalling
from oracle import Infinity, NotANumber, Number, Options, Spec, Value, power_of_two

SPECS = {
    "e4m3fn": Spec(4, 3, encoding="fn"),
    "e5m2": Spec(5, 2),
    "e3m2ieee": Spec(3, 2),
    "e2m2": Spec(2, 2),
    "e2m1": Spec(2, 1, encoding="finite"),
    "fp16": Spec(5, 10),
    "bf16": Spec(8, 7),
    "fp32": Spec(8, 23),
}


class Field(NamedTuple):
    name: str
    bits: int
    count: int = 1
    role: str = "input"
    signed: bool = False


@dataclass
class Vectors:
    """Golden vectors from which a test bench can be written. The class has the attributes and
    methods of `make_vectors`' result that this requires."""

    head: dict[str, Any]
    fields: tuple[Field, ...]
    lines: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.lines)

    def write(self, path: Path, kind: str) -> None:
        assert kind == "readmemh"
        digits = [-(-each.bits // 4) for each in self.fields]
        text = (
            "_".join(f"{x:0{n}X}" for x, n in zip(line, digits, strict=True)) for line in self.lines
        )
        path.write_text("\n".join(text) + "\n")


def code_of(spec: Spec, value: Value) -> int:
    code = oracle.encode(spec, oracle.bits_from_value(value))
    assert code is not None
    return code


def flags_of(spec: Spec, exact: Value, o: Options) -> int:
    """Returns the exception flags of rounding `exact` once to a format."""
    return flags_oracle.result("cast", (exact,), spec, o)[1]


def elements(
    operation: str,
    format: str,
    out: str | None = None,
    rounding: str = "nearest_even",
    random_bits: int = 8,
) -> Vectors:
    """Returns vectors of an element-wise operation, for all codes of the operands.

    Stochastic rounding adds a last operand, the random integer, with all its values.
    """
    a, to = SPECS[format], SPECS[out or format]
    n = COUNTS[operation]
    sr = rounding == "stochastic"
    widths = [a.bits] * n + [random_bits] * sr
    fields = (
        *map(Field, [*"abc"[:n], *["r"] * sr], widths),
        Field("result", to.bits, role="output"),
        Field("flags", 5, role="output"),
    )
    head = {
        "operation": operation,
        "formats": [format] * n,
        "result": out or format,
        "rounding": rounding,
        "overflow": "ieee",
    }
    made = Vectors(head, fields)
    for line in itertools.product(*(range(1 << width) for width in widths)):
        o = Options(rounding, "ieee", "A", random_bits, line[-1] if sr else 0)
        codes = line[:n]
        operands = [a.decode(code) for code in codes]
        signals = any(is_signalling(a, code) for code in codes)
        value, flags = flags_oracle.result(operation, operands, to, o, signals=signals)
        made.lines.append((*line, code_of(to, value), flags))
    return made


def corners(spec: Spec) -> list[int]:
    """Returns the codes of special values and of their neighbors.

    Special values are zeros, subnormals, the least normal number, one, the greatest number, Inf and
    NaN.
    """
    one = ((1 << (spec.exp - 1)) - 1) << spec.man
    near = [0, 1 << spec.man, one, spec.max_code, (1 << (spec.exp + spec.man)) - 1]
    codes = {
        (code + step) & ((1 << (spec.exp + spec.man)) - 1) for code in near for step in (-1, 0, 1)
    }
    return sorted(codes | {code | 1 << (spec.exp + spec.man) for code in codes})


# ---- blocks of products ------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A matrix unit that adds one block of products to c; see the options of `cpd.Accumulator`.

    With scales it computes an MX dot product.
    """

    operands: str = "fp16"
    products: int = 16
    fraction_bits: int = 25
    min_exponent: int = -133
    out: str = "fp32"
    rounding: str = "toward_zero"
    scales: bool = False

    @property
    def text(self) -> str:
        """The accumulator as a text that `cpd.Accumulator` reads."""
        scales = f"scale=e8m0 scale_block={self.products} " if self.scales else ""
        return (
            f"{self.out} block_fma a={self.operands} b={self.operands} block={self.products} "
            f"fraction_bits={self.fraction_bits} min_exponent={self.min_exponent} "
            f"sum={self.out} sum_rounding={self.rounding} {scales}"
        )


def _exponent(spec: Spec, code: int) -> int:
    return max((code >> spec.man & ((1 << spec.exp) - 1)) - 1, 0) + spec.emin


def block_line(unit: Block, a: Sequence[int], b: Sequence[int], c: int, scales: Any) -> Any:
    """Returns a matrix unit's result for one block of products plus c, and the flags."""
    spec, out = SPECS[unit.operands], SPECS[unit.out]
    power = sum(scale - 127 for scale in scales)
    products = [
        oracle.multiply_values(spec.decode(x), spec.decode(y)) for x, y in zip(a, b, strict=True)
    ]
    addend = out.decode(c)
    given = [spec.decode(x) for x in (*a, *b)] + [addend]
    signals = is_signalling(out, c) or any(is_signalling(spec, code) for code in (*a, *b))
    if 255 in scales or any(isinstance(x, NotANumber) for x in given):
        return out.nan_code, NV if signals else 0
    total: Value = addend
    for product in products:
        total = oracle.add_values(total, product)
    if isinstance(total, NotANumber):
        return out.nan_code, NV
    if isinstance(total, Infinity):
        return code_of(out, total), 0
    terms = [
        (x.value * power_of_two(power), _exponent(spec, i) + _exponent(spec, j) + power)
        for x, i, j in zip(products, a, b, strict=True)
    ]
    terms.append((addend.value, _exponent(out, c)))
    greatest = max([unit.min_exponent, *(e for value, e in terms if value)])
    step = power_of_two(greatest - unit.fraction_bits)
    kept = sum(int(value / step) for value, _ in terms)
    cut = any((value / step).denominator > 1 for value, _ in terms)
    exact = oracle.number(kept * step, negative=False if not kept else None)
    o = Options(unit.rounding)
    flags = flags_of(out, exact, o) | (NX if cut else 0)
    if flags & OF:
        return code_of(out, Infinity(exact.negative)), flags
    rounded = oracle.round_value(out, exact, o)
    return code_of(out, rounded) if rounded.value else 0, flags


def blocks(unit: Block, count: int) -> Vectors:
    """Returns `count` golden vectors of a matrix unit.

    Operands have similar exponents or are special, largest or least values. c is about as large as
    the sum, or arbitrary.
    """
    spec, out = SPECS[unit.operands], SPECS[unit.out]
    draw = random.Random(0)
    n = unit.products
    fields = (
        Field("a", n * spec.bits, n),
        Field("b", n * spec.bits, n),
        *(Field(f"{x}_scale", 8) for x in "ab" if unit.scales),
        Field("c", out.bits),
        Field("result", out.bits, role="output"),
        Field("flags", 5, role="output"),
    )
    head = {
        "operation": "mma" if unit.scales else "block_fma",
        "formats": [unit.operands, unit.operands, unit.out],
        "accumulator": unit.text,
        "length": n,
    }
    made = Vectors(head, fields)
    picks = corners(spec)
    finite = [code for code in picks if isinstance(spec.decode(code), Number)]

    def operands(way: int) -> list[int]:
        if way == 0:  # anything
            return [draw.choice(picks) for _ in range(n)]
        if way == 2:  # the greatest sum
            return [spec.max_code] * n
        if way == 3:  # below a floor: of fp16 a tie of its least value, and a bit further down
            sign = draw.randrange(2) << (spec.bits - 1)
            return [sign | (2 + draw.randrange(2)) << spec.man, sign | 1] + [0] * (n - 2)
        spread = draw.randrange(1, 1 << spec.exp)
        start = draw.randrange((1 << spec.exp) - spread)
        return [
            draw.choice(finite)
            if draw.random() < 0.1
            else draw.randrange(2) << (spec.bits - 1)
            | min(
                (start + draw.randrange(spread)) << spec.man | draw.randrange(1 << spec.man),
                spec.max_code,
            )
            for _ in range(n)
        ]

    for line in range(count):
        a, b = operands(line % 24), operands(line % 24)
        scales = [
            draw.choice([0, 1, 126, 127, 128, 254, 255, draw.randrange(256)])
            for _ in range(2 * unit.scales)
        ]
        if line % 6 == 1:  # a sum that cancels, or nearly
            half = n // 2
            a[half:] = [x ^ 1 << (spec.bits - 1) for x in a[:half]]
            b[half:] = b[:half]
        c = 0
        if line % 4 == 1:
            c = draw.choice(corners(out))
        elif line % 4 > 1 and line % 24 > 3:
            nothing, _ = block_line(unit, a, b, 0, scales)
            near = nothing + draw.randrange(-3, 4) * (1 << out.man) ^ draw.randrange(1 << out.man)
            c = (near ^ draw.randrange(2) << (out.bits - 1)) & ((1 << out.bits) - 1)
        result = block_line(unit, a, b, c, scales)
        packed = [sum(x << spec.bits * i for i, x in enumerate(each)) for each in (a, b)]
        made.lines.append((*packed, *scales, c, *result))
    return made
