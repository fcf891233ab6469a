# SPDX-License-Identifier: Apache-2.0
"""A slow oracle of scaled formats, written from their rules.

The arithmetic `exact` is rational, and each result is rounded once. `te`, `torchao`, `deepgemm` and
`microxcaling` are binary32 scalar operations in the order of the original programs. The module
`oracle` rounds the elements and the scales.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import oracle
from oracle import NAN, Infinity, Number, Options, Value, number, power_of_two
from rationals import Fraction
from scaled_blocks import Block, block_indices, grid_shape, members, rows_of

Array = npt.NDArray[Any]
F32 = np.float32

E8M0 = oracle.Spec(8, 0, None, "e8m0", signed=False)
BINARY32 = oracle.Spec(8, 23)
BFLOAT16 = oracle.Spec(8, 7)
FLT_MAX = F32(np.finfo(np.float32).max)
BF16_MAX = F32(float(BFLOAT16.max))
ONE = number(1)
NEAREST = Options()
POWERS_OF_TWO = ("floor", "ceil", "rceil", "even", "max_pow2")


def integer(bits: int) -> oracle.Spec:
    """Returns the integer format of `bits` bits in two's complement, without the least integer."""
    return oracle.Spec(1, bits - 2, 3 - bits, "int")


def signed_magnitude(bits: int) -> oracle.Spec:
    return oracle.Spec(1, bits - 2, 3 - bits, "finite")


@dataclass(frozen=True)
class Spec:
    """A scaled format, with the options of `cpd.Scaled`."""

    element: oracle.Spec
    block: Block = 32
    scale: oracle.Spec = E8M0
    rule: str | None = None
    tensor_scale: oracle.Spec | None = None
    arithmetic: str = "exact"
    outer: str = "tensor"
    margin: int = 0
    non_finite: str | None = None
    choose: str | None = None
    scale_max: Fraction | None = None

    @property
    def the_rule(self) -> str:
        rule = self.rule or ("floor" if self.scale == E8M0 else "max")
        return "max" if rule == "nearest" else rule

    @property
    def policy(self) -> str:
        """The text "block" if a NaN or Inf affects its whole block, else "element"."""
        return self.non_finite or ("element" if self.arithmetic == "te" else "block")

    @property
    def largest_scale(self) -> Fraction:
        return self.scale.max if self.scale_max is None else Fraction(self.scale_max)

    @property
    def element_exponent(self) -> int:
        return oracle.floor_log2(self.element.max)

    @property
    def headroom(self) -> Fraction:
        return power_of_two(self.margin)


@dataclass(frozen=True)
class Scaled:
    """An encoded array: elements in x's order, scales in the row-major order of the blocks.

    An entry of `codes` is None for a value that has no code.
    """

    elements: list[Value]
    scales: list[Value]
    outer: list[Value]  # the outer scales; empty if the format has none
    values: list[int]  # binary32 patterns

    def codes(self, element: oracle.Spec) -> list[int | None]:
        return [code_of(element, v) for v in self.elements]


def code_of(spec: oracle.Spec, v: Value) -> int | None:
    """Returns the code of a value of the format; None for NaN if the format has no NaN."""
    if isinstance(v, oracle.NotANumber):
        return spec.nan_code
    return oracle.encode(spec, oracle.bits_from_value(v))


# ---- largest magnitudes --------------------------------------------------------------------------


def amax(values: Iterable[float], policy: str) -> Value:
    """Returns the largest magnitude, which may be Inf.

    With policy `block` a NaN makes the result NaN; with policy `element` it is ignored.
    """
    magnitudes = [abs(v) for v in values]
    if policy == "block" and any(math.isnan(v) for v in magnitudes):
        return NAN
    return oracle.value_from_double(max((v for v in magnitudes if v == v), default=0.0))


# ---- binary32, one operation at a time -----------------------------------------------------------


def to_f32(v: Value) -> np.float32:
    if isinstance(v, oracle.NotANumber):
        return F32(np.nan)
    if isinstance(v, Infinity):
        return F32(-np.inf if v.negative else np.inf)
    return F32(math.copysign(float(v.value), -1.0 if v.negative else 1.0))


def from_f32(x: np.float32) -> Value:
    assert type(x) is np.float32
    return oracle.value_from_double(float(x))


def f32(x: Fraction | int) -> np.float32:
    """Returns a rational as binary32, rounded once."""
    return to_f32(oracle.round_value(BINARY32, number(x)))


def rounded_log2(x: np.float32) -> int:
    """Returns floor(log2(x)); log2(x) is rounded to binary32, up just below some powers of two."""
    exponent = oracle.floor_log2(Fraction(float(x)))
    below = float(Fraction(float(x)) / power_of_two(exponent + 1))  # 1/2…1
    return exponent + bool(F32(exponent + 1 + math.log2(below)) == exponent + 1)


def rounded(scale: oracle.Spec, x: np.float32) -> Value:
    """Returns x rounded to nearest even to the scale's format, which saturates."""
    return oracle.round_value(scale, from_f32(x), Options(overflow="saturate"))


# ---- scales --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Multiplier:
    """Scales an element before it is rounded: `x / divisor` exactly, `x * factor` in binary32."""

    divisor: Value | None = None
    factor: np.float32 | None = None

    def __call__(self, x: Value) -> Value:
        if self.factor is not None:
            return from_f32(to_f32(x) * self.factor)
        assert self.divisor is not None
        if isinstance(self.divisor, oracle.NotANumber) or isinstance(x, oracle.NotANumber):
            return NAN
        negative = x.negative
        if isinstance(self.divisor, Infinity) or self.divisor.value == 0:
            return number(0, negative)
        return x if isinstance(x, Infinity) else number(x.value / self.divisor.value, negative)


def clamped_power(scale: oracle.Spec, exponent: int) -> Value:
    """Returns 2^exponent, limited to the powers of two that the scale's format can encode."""
    codes = 0 if scale.encoding == "e8m0" else (1 if scale.subnormals else 1 << scale.man)
    least = scale.magnitude(codes)
    most = power_of_two(oracle.floor_log2(scale.max))
    return number(min(max(power_of_two(exponent), least), most))


def ceil_log2(x: Fraction) -> int:
    exponent = oracle.floor_log2(x)
    return exponent + (x > power_of_two(exponent))


def exponent_of_rule(s: Spec, a: Fraction) -> int:
    """Returns the exponent of a power-of-two scale for the largest magnitude a > 0."""
    match s.the_rule:
        case "floor":
            return oracle.floor_log2(a) - s.element_exponent
        case "ceil":
            return ceil_log2(a) - s.element_exponent
        case "rceil" | "max_pow2":
            return ceil_log2(a / s.element.max)
        case "even":
            spacing = power_of_two(oracle.floor_log2(a) - s.element.man)
            up = math.floor(a / spacing + Fraction(1, 2)) * spacing
            return oracle.floor_log2(up) - s.element_exponent
    raise ValueError(s.the_rule)


def exact_scale(s: Spec, a: Value, outer: Value, more: Fraction = Fraction(1)) -> Value:
    """Returns a block's scale by the format's rule, computed from the exact quotient a / outer.

    `a` is the block's largest magnitude, `outer` its outer scale. `more` is a further factor:
    3/2 for the second of two candidate scales, which maps the largest value to 4, otherwise 1.
    """
    if isinstance(a, oracle.NotANumber) or not isinstance(outer, Number):
        return NAN
    if isinstance(a, Infinity) and s.policy == "block":
        return NAN
    if isinstance(a, Number) and a.value == 0:
        return oracle.round_value(s.scale, number(0), Options(overflow="saturate"))
    if isinstance(a, Infinity) or outer.value == 0:
        return clamped_power(s.scale, 1024) if s.the_rule in POWERS_OF_TWO else number(s.scale.max)
    quotient = a.value / outer.value * s.headroom
    if s.the_rule in POWERS_OF_TWO:
        return clamped_power(s.scale, exponent_of_rule(s, quotient))
    rounding = {"max": "nearest_even", "up": "up"}[s.the_rule]
    exact = number(quotient / s.element.max * more)
    return oracle.round_value(s.scale, exact, Options(rounding, "saturate"))


def exact_outer(s: Spec, a: Value) -> Value:
    assert s.tensor_scale is not None
    if isinstance(a, oracle.NotANumber):
        return NAN
    if isinstance(a, Infinity):
        return NAN if s.policy == "block" else number(s.tensor_scale.max)
    exact = number(a.value * s.headroom / (s.element.max * s.largest_scale))
    return oracle.round_value(s.tensor_scale, exact, Options(overflow="saturate"))


def exact_multiplier(scale: Value, outer: Value) -> Multiplier:
    return Multiplier(divisor=oracle.multiply_values(scale, outer))


def te_scale(s: Spec, a: np.float32, storage: str) -> tuple[Value, Multiplier]:
    """Returns TransformerEngine's scale (fp32 or e8m0) of a block without an outer scale."""
    if s.scale == E8M0:
        assert s.the_rule == "rceil"
        return e8m0_ceiling(s, a)
    if np.isinf(a) and s.policy == "block":
        return lost()
    factor = f32(s.element.max) / a
    if np.isinf(factor):
        # If element max / a overflows, TransformerEngine uses the largest finite number instead:
        # bfloat16's if the tensor is bfloat16 and has several scales, otherwise binary32's.
        factor = BF16_MAX if storage == "bfloat16" and s.block != "tensor" else FLT_MAX
    if s.the_rule == "max_pow2":
        factor = F32(float(power_of_two(oracle.floor_log2(Fraction(float(factor))))))
    factor = factor / f32(s.headroom)
    if a == 0 or not np.isfinite(a):
        factor = F32(1)
    return from_f32(F32(1) / factor), Multiplier(factor=factor)


def e8m0_ceiling(s: Spec, a: np.float32) -> tuple[Value, Multiplier]:
    """Returns a block's amax a, times fl(1 / element max), rounded up to e8m0 (torchao's rceil)."""
    d = a * (F32(1) / f32(s.element.max)) * f32(s.headroom)
    if np.isinf(d):
        return lost() if s.policy == "block" and np.isinf(a) else power_of_two_scale(127)
    if d == 0:
        return power_of_two_scale(-127)
    return power_of_two_scale(ceil_log2(Fraction(float(d))))


def lost() -> tuple[Value, Multiplier]:
    """Returns a NaN scale and its multiplier, which makes all elements of a block NaN."""
    return NAN, Multiplier(divisor=NAN)


def power_of_two_scale(exponent: int) -> tuple[Value, Multiplier]:
    exponent = min(127, max(-127, exponent))
    return number(power_of_two(exponent)), Multiplier(factor=F32(2.0**-exponent))


def te_outer(s: Spec, a: np.float32) -> tuple[np.float32, Value]:
    """Returns a tensor's scale S, by which values are multiplied, and the stored scale 1 / S."""
    a = a * f32(s.headroom)
    encode = min(f32(s.element.max * s.largest_scale) / a, FLT_MAX)
    if encode == 0 or a == 0:
        encode = F32(1)
    return encode, from_f32(F32(1) / encode)


def te_block(s: Spec, a: np.float32, encode: np.float32, more: np.float32) -> Value:
    """Returns TransformerEngine's scale of a block in a format with outer scales.

    If the format chooses between two candidate scales, `a` (the block's largest magnitude) is first
    divided by the element format's max. `more` is 1 for the first candidate, 3/2 for the second.
    """
    a, top = a * f32(s.headroom), f32(s.element.max)
    if s.choose is None:
        return rounded(s.scale, min(a * (encode * (F32(1) / top)), f32(s.scale.max)))
    return rounded(s.scale, min(a / top * encode * more, f32(s.scale.max)))


def te_multiplier(scale: Value, outer: Value) -> Multiplier:
    """Returns a multiplier: 1 / (block's scale * tensor's scale) in binary32, at most FLT_MAX."""
    product = to_f32(scale) * to_f32(outer)
    return Multiplier(factor=min(F32(1) / product, FLT_MAX))


def torchao_scale(s: Spec, a: np.float32) -> tuple[Value, Multiplier]:
    """Returns a block's scale and multiplier, as torchao computes them without an outer scale."""
    if s.scale == E8M0:
        return torchao_mx(s, a)
    if s.scale != BINARY32:
        scale = torchao_block(s, a, None)
        return scale, Multiplier(factor=F32(1) / to_f32(scale))
    factor = F32(float(s.element.max) / float(max(a, F32(1e-12))))
    if s.the_rule == "max_pow2" and factor > 0:
        factor = F32(2.0 ** rounded_log2(factor))
    factor = factor / f32(s.headroom)
    return from_f32(F32(1) / factor), Multiplier(factor=factor)


def torchao_mx(s: Spec, a: np.float32) -> tuple[Value, Multiplier]:
    if s.the_rule == "rceil":
        return e8m0_ceiling(s, a)
    word = int(np.array(a).view(np.uint32))
    if s.the_rule == "even":
        word += 1 << (22 - s.element.man)
    field, low = word >> 23, word & 0x7FFFFF
    if field == 255:
        return lost()
    field += s.the_rule == "ceil" and low != 0
    return power_of_two_scale(field - 127 - s.element_exponent + s.margin)


def torchao_block(s: Spec, a: np.float32, outer: np.float32 | None) -> Value:
    quotient = a * f32(s.headroom) / f32(s.element.max)
    if outer is not None:
        quotient = quotient / outer
    least = f32(s.scale.magnitude(1 << s.scale.man))
    return rounded(s.scale, np.minimum(np.maximum(quotient, least), f32(s.scale.max)))


def torchao_outer(s: Spec, a: np.float32) -> Value:
    return from_f32(a * f32(s.headroom) / f32(s.element.max * s.largest_scale))


def torchao_multiplier(scale: Value, outer: Value) -> Multiplier:
    return Multiplier(factor=F32(1) / to_f32(outer) / to_f32(scale))


def deepgemm_scale(s: Spec, a: np.float32) -> tuple[Value, Multiplier]:
    scale = max(a, F32(1e-4)) / f32(s.element.max) * f32(s.headroom)
    if s.scale == E8M0 or s.the_rule in POWERS_OF_TWO or s.the_rule == "up":
        exponent = 127 if np.isinf(scale) else ceil_log2(Fraction(float(scale)))
        scale = F32(2.0 ** min(127, max(-126, exponent)))
    return from_f32(scale), Multiplier(factor=F32(1) / scale)


def microxcaling_scale(s: Spec, a: np.float32) -> tuple[Value, Multiplier]:
    log = -126 if a == 0 else 128 if np.isinf(a) else rounded_log2(a)
    shared = log - s.element_exponent + s.margin
    if np.isinf(a) or shared > 127:
        return lost()
    return power_of_two_scale(shared)


def one_level(s: Spec, a: Value, storage: str) -> tuple[Value, Multiplier]:
    """Returns a block's scale in a format without outer scales, and its elements' multiplier."""
    if isinstance(a, oracle.NotANumber):
        return lost()
    match s.arithmetic:
        case "exact":
            scale = exact_scale(s, a, number(1))
            return scale, exact_multiplier(scale, number(1))
        case "te":
            return te_scale(s, to_f32(a), storage)
        case "torchao":
            return torchao_scale(s, to_f32(a))
        case "deepgemm":
            return deepgemm_scale(s, to_f32(a))
        case "microxcaling":
            return microxcaling_scale(s, to_f32(a))
    raise ValueError(s.arithmetic)


def outer_scale(s: Spec, a: Value) -> Value:
    if isinstance(a, oracle.NotANumber):
        return NAN
    match s.arithmetic:
        case "exact":
            return exact_outer(s, a)
        case "te":
            return te_outer(s, to_f32(a))[1]
        case "torchao":
            return torchao_outer(s, to_f32(a))
    raise ValueError(f"{s.arithmetic} has one level")


def inner_scale(
    s: Spec, a: Value, outer_amax: Value, outer: Value, more: Fraction = Fraction(1)
) -> Value:
    """Returns a block's scale in a format with outer scales, exactly or as TE or torchao do."""
    if isinstance(a, oracle.NotANumber) or isinstance(outer, oracle.NotANumber):
        return NAN
    match s.arithmetic:
        case "exact":
            return exact_scale(s, a, outer, more)
        case "te":
            return te_block(s, to_f32(a), te_outer(s, to_f32(outer_amax))[0], f32(more))
        case "torchao":
            return torchao_block(s, to_f32(a), to_f32(outer))
    raise ValueError(f"{s.arithmetic} has one level")


def multiplier_of(s: Spec, scale: Value, outer: Value) -> Multiplier:
    """Returns the multiplier of a block's elements, from the block's scale and the outer scale."""
    if isinstance(scale, oracle.NotANumber) or isinstance(outer, oracle.NotANumber):
        return Multiplier(divisor=NAN)
    if s.arithmetic == "exact":
        return exact_multiplier(scale, outer)
    if s.tensor_scale is None:
        return Multiplier(factor=F32(1) / to_f32(scale))
    return {"te": te_multiplier, "torchao": torchao_multiplier}[s.arithmetic](scale, outer)


# ---- elements and values -------------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 16)
def element_of(element: oracle.Spec, quotient: Value, o: Options) -> Value:
    """Returns an element divided by its scales (`quotient`), rounded once to the element format."""
    return oracle.round_value(element, quotient, o)


def dequantise(element: Value, scale: Value, outer: Value = ONE) -> int:
    """Returns element * scale * outer, rounded once to binary32 or Inf, as a bit pattern."""
    product = oracle.multiply_values(oracle.multiply_values(element, scale), outer)
    return oracle.bits_from_value(oracle.round_value(BINARY32, product))


def error(
    s: Spec,
    rows: Sequence[Sequence[Value]],
    scale: Value,
    outer: Value,
    outer_amax: Value,
    multiply: Multiplier,
) -> float:
    """Returns the sum of the errors that a candidate scale causes in the elements of a block.

    Elements are rounded to nearest even. The errors of each row of the block are added in order;
    the rows' sums are added pairwise. Arithmetic `te` decodes an element in binary32: times its
    scale and the tensor's amax, then divided once. `exact` computes the errors in binary64.
    """
    te, down = s.arithmetic == "te", f32(s.element.max * s.largest_scale)
    kind = np.float32 if te else np.float64
    sums = []
    for row in rows:
        amount = kind(0)
        for v in row:
            q = element_of(s.element, multiply(v), Options(overflow="saturate"))
            if te:
                value = to_f32(q) * to_f32(scale) * to_f32(outer_amax) / down
            else:
                value = kind(oracle.float_from_bits(dequantise(q, scale, outer)))
            e = value - kind(to_f32(v))
            amount = amount + (e * e if s.choose == "mse" else abs(e))
        sums.append(amount)
    half = 1 << (len(sums) - 1).bit_length() >> 1
    while half:
        sums = [
            v + sums[i + half] if i + half < len(sums) else v for i, v in enumerate(sums[:half])
        ]
        half //= 2
    return float(sums[0])


@dataclass(frozen=True)
class Plan:
    """The blocks of an array: scales, multipliers of the elements, and each element's block."""

    scales: list[Value]
    multipliers: list[Multiplier]
    outer: list[Value]  # the outer scales; a single 1 if the format has none
    block_of: Array  # of each element, flat
    outer_of: Array


def encode(
    x: Array,
    s: Spec,
    axis: int = -1,
    o: Options = NEAREST,
    *,
    random: Array | None = None,
    **given: Any,
) -> Scaled:
    """Returns the elements, scales and values of an array of binary32, bfloat16 or float16.

    `random` has the integers of stochastic rounding, of x's shape. `given` has the caller's amax
    and scales, which replace computed ones (see `plan`).
    """
    with np.errstate(all="ignore"):
        p = plan(x, s, axis, o, random=random, **given)
        multiply = [p.multipliers[b] for b in p.block_of]
        options = saturating(o, x.size, random)
        elements = [
            element_of(s.element, m(v), mode)
            for m, v, mode in zip(multiply, values_of(x), options, strict=True)
        ]
        values = [
            dequantise(v, p.scales[b], p.outer[t])
            for v, b, t in zip(elements, p.block_of, p.outer_of, strict=True)
        ]
    return Scaled(elements, p.scales, p.outer if s.tensor_scale else [], values)


def plan(
    x: Array,
    s: Spec,
    axis: int = -1,
    o: Options = NEAREST,
    *,
    random: Array | None = None,
    amax_given: Array | None = None,
    scales: Sequence[Value] | None = None,
    outer_scales: Sequence[Value] | None = None,
) -> Plan:
    """Divides an array into blocks. Returns their scales and the multipliers of their elements.

    `amax_given` has, in row-major order, the amax of each block with an outer scale (of each block,
    if there are no outer scales). `scales` and `outer_scales` replace the scales by the rule.
    """
    flat = x.reshape(-1).astype(np.float64).tolist()
    block_of = block_indices(x.shape, s.block, axis).reshape(-1)
    blocks = members(block_of, grid_shape(x.shape, s.block, axis))
    own = [amax((flat[i] for i in g), s.policy) for g in blocks]
    if s.tensor_scale is None:
        outer_of = np.zeros_like(block_of)
        outers, outer_amax = [number(1)], [number(0)]
        own = given_amax(amax_given, own)
    else:
        outer_of = block_indices(x.shape, s.outer, axis).reshape(-1)
        groups = members(outer_of, grid_shape(x.shape, s.outer, axis))
        outer_amax = given_amax(amax_given, [amax((flat[i] for i in g), s.policy) for g in groups])
        outers = list(outer_scales or [outer_scale(s, a) for a in outer_amax])
    result = []
    for b, group in enumerate(blocks):
        t = int(outer_of[group[0]])
        if scales is not None:
            result.append((scales[b], multiplier_of(s, scales[b], outers[t])))
        elif s.choose is not None:
            rows = rows_of(group, x.shape, axis)
            values = [[oracle.value_from_double(flat[i]) for i in row] for row in rows]
            result.append(better(s, values, own[b], outer_amax[t], outers[t]))
        elif s.tensor_scale is not None:
            scale = inner_scale(s, own[b], outer_amax[t], outers[t])
            result.append((scale, multiplier_of(s, scale, outers[t])))
        else:
            result.append(one_level(s, own[b], x.dtype.name))
    return Plan([d for d, _ in result], [m for _, m in result], outers, block_of, outer_of)


def values_of(x: Array) -> list[Value]:
    return [oracle.value_from_double(float(v)) for v in x.reshape(-1)]


def saturating(o: Options, n: int, random: Array | None) -> list[Options]:
    if random is None:
        return [Options(o.rounding, "saturate", o.variant, o.random_bits, o.random)] * n
    return [
        Options(o.rounding, "saturate", o.variant, o.random_bits, int(r))
        for r in random.reshape(-1)
    ]


def given_amax(given: Array | None, own: list[Value]) -> list[Value]:
    if given is None:
        return own
    values = np.broadcast_to(np.asarray(given, np.float32).reshape(-1), len(own))
    return [oracle.value_from_double(float(v)) for v in values]


def better(
    s: Spec, rows: Sequence[Sequence[Value]], a: Value, outer_amax: Value, outer: Value
) -> tuple[Value, Multiplier]:
    """Returns the candidate scale with the smaller error; the first one if the errors are equal.

    The candidates map the largest value to the element's max or to 2/3 of it (e2m1: 6 or 4).
    """
    candidates = []
    for more in (Fraction(1), Fraction(3, 2)):
        scale = inner_scale(s, a, outer_amax, outer, more)
        multiply = multiplier_of(s, scale, outer)
        lost = error(s, rows, scale, outer, outer_amax, multiply)
        candidates.append((lost, scale, multiply))
    six, four = candidates
    return four[1:] if four[0] < six[0] else six[1:]
