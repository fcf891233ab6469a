# SPDX-License-Identifier: Apache-2.0
"""Accumulators of sums: `Accumulator`.

`BlockFma` is the rule of a matrix unit, `FixedPoint` an integer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, as_format, flag, format_text, named
from cpd.numeric.numbers import Number, int32, int64, integer, is_torch, number, plain_number
from cpd.numeric.options import Options
from cpd.numeric.spec import Option, Spec, named_word, options, texts, word

SCHEMES: tuple[str, ...] = _core.SCHEMES
SUM_SCHEMES: tuple[str, ...] = _core.SUM_SCHEMES
"""The schemes that `cpd.sum` supports: its terms are given, not products."""
REDUCE_SCHEMES: tuple[str, ...] = tuple(one for one in SUM_SCHEMES if one != "fixed")
"""The schemes that all-reduce supports: its sums are floating-point numbers."""
DEFAULT_CHUNK: int = _core.SCHEME_CHUNK
UNCUT = ("exact", "flushed_pairs")
"""Adders of matrix units that cut no term, and so refuse `fraction_bits` and `min_exponent`."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class BlockFma(Spec):
    """The rule of a matrix unit: a block of products is aligned, cut and summed at once.

    Per block, each product is exact, with the exponent ea + eb of its operands (not normalized;
    subnormals keep the format's least exponent). E is the greatest of these, of the addend's (if
    aligned) and of `min_exponent`. Every term is cut toward zero to `fraction_bits` below 2^E; the
    exact sum of the cut terms is rounded once into `sum`. Blocks along k are chained through it. A
    sum of zeros is +0, also if all terms and the addend are -0; a sum that rounds to zero is +0,
    too. A NaN is the format's one positive quiet NaN, whatever the operands' (fp32: 0x7FC00000).

    Args:
        a: the format of the first operand; its least exponent counts.
        b: the format of the second operand; its least exponent counts.
        block: products per block, 1…64.
        fraction_bits: 1…30.
        aligns_addend: True aligns the running sum with the terms; else it is added exactly later.
        min_exponent: E is at least this.
        sum: format of the unit's running sum.
        rounding: into `sum`: `toward_zero` or `nearest_even`.
        promote: after this number of k (a multiple of `block`) the unit's sum is added to the
            accumulator and starts again from +0; 0: never.
        scale: the format of scales, for a unit that takes them. Each product is multiplied by its
            two scales' magnitudes, exactly, and its exponent is ea + eb plus the scales'; a scale
            that is NaN makes the sum NaN. Missing scales are 1. A sum beyond the range of `sum` is
            Inf, also toward zero. `fraction_bits` may be as many as binary64 holds a block's sum
            with.
        scale_block: values of k that share a scale: `block` or a divisor of it.
        dot: a divisor of `scale_block`: above 1 the terms are exact sums of `dot` scaled products,
            and a term's exponent is the scales' alone.
        adder: how a block's products and the running sum are added:

            - `aligned` (default): as said above.
            - `exact`: the exact sum, rounded once (CDNA1).
            - `flushed_pairs`: in binary32 without subnormals, ((p0 + p1) + (p2 + p3)) + sum, or
              with a block of 2 (p0 + p1) + sum; subnormal operands and a subnormal sum count as +0,
              subnormal results as zeros of their sign (CDNA2).
            - `two_steps`: products, Inf beyond binary32's range, are cut below their own greatest
              exponent and summed; with E the greater of that exponent and the running sum's, their
              sum is cut down to `fraction_bits` + 8 below 2^E, the running sum to `fraction_bits`;
              the total is cut down to `fraction_bits` + 7 below its own exponent and rounded
              (CDNA3).
            - `two_steps_even`: the same with products of even and of odd k cut and summed apart,
              both sums cut down to `fraction_bits` below the greater of their exponents and added;
              a running sum with an exponent below E - `fraction_bits` - 1 counts as 0 (CDNA3 FP8).

            All but `aligned` take no scale; all but `aligned` and `exact` sum in fp32, rounded to
            `nearest_even`. `exact` and `flushed_pairs` cut no term, and refuse `fraction_bits` and
            `min_exponent`.
        group: the order of k is permuted within each `group` of k, a multiple of `block` up to 64;
            0: ascending. Indices of a last group beyond the last k hold 0.
        stride: in a group, k with k mod `stride` < `take` come first, ascending.
        take: then the next `take`, and so on; blocks are of successive k in that order.

    >>> BlockFma("fp16", "fp16", block=4, fraction_bits=23).sum
    cpd.Format('fp32')
    """

    a: Format
    b: Format
    block: int
    fraction_bits: int
    aligns_addend: bool
    min_exponent: int
    sum: Format
    rounding: str
    promote: int
    scale: Format | None
    scale_block: int
    dot: int
    adder: str
    group: int
    stride: int
    take: int
    text: str = field(init=False, repr=False, compare=False)
    """Its options as they stand in an accumulator's text."""
    _held: _core.BlockFma = field(init=False, repr=False, compare=False)
    _SPECS = {"a": named, "b": named, "sum": named, "scale": named}  # noqa: RUF012 - an annotation would make it a field

    def __init__(
        self,
        a: FormatLike,
        b: FormatLike,
        *,
        block: int = 16,
        fraction_bits: int = 25,
        aligns_addend: bool = True,
        min_exponent: int = -133,
        sum: FormatLike = "fp32",
        rounding: str = "toward_zero",
        promote: int = 0,
        scale: FormatLike | None = None,
        scale_block: int = 32,
        dot: int = 1,
        adder: str = "aligned",
        group: int = 0,
        stride: int = 4,
        take: int = 2,
    ) -> None:
        made = made_unit(
            options(
                a=as_format(a).name,
                b=as_format(b).name,
                block=int32("block", block),
                fraction_bits=int32("fraction_bits", fraction_bits),
                addend="aligned" if flag("aligns_addend", aligns_addend) else "separate",
                min_exponent=int32("min_exponent", min_exponent),
                sum=as_format(sum).name,
                sum_rounding=named_word("rounding", rounding),
                promote=int64("promote", promote),
                scale=None if scale is None else as_format(scale).name,
                scale_block=int32("scale_block", scale_block),
                dot=int32("dot", dot),
                adder=named_word("adder", adder),
                group=int32("group", group),
                stride=int32("stride", stride),
                take=int32("take", take),
            )
        )
        self._share(made)

    def __repr__(self) -> str:
        hidden: list[str] = []
        if self.scale is None:
            hidden += ["scale", "scale_block", "dot"]
        if self.adder == "aligned":
            hidden += ["adder"]
        if self.adder in UNCUT:
            hidden += ["fraction_bits", "min_exponent"]
        if self.group == 0:
            hidden += ["group", "stride", "take"]
        shown = [one.name for one in fields(self) if one.repr and one.name not in hidden]
        return f"BlockFma({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True, init=False, eq=False)
class FixedPoint(Spec):
    """A sum in a two's complement integer, in whole units of 2^-fraction.

    It is hardware's int32, or Kulisch's accumulator. Each term, an exact product, is rounded once
    to units; the integer sum is at last rounded once into the accumulator's format. A sum beyond
    the range wraps, right modulo 2^width in any order; with the accumulator's `overflow="saturate"`
    it becomes the range's nearest end, after each term.

    Args:
        width: bits, 2…1024.
        fraction: the unit is 2^-fraction; -1024…1024.
        rounding: of terms to units, any but `stochastic`. (Two's complement's cut is `down`.)

    >>> FixedPoint(width=40, fraction=12).text
    'width=40 fraction=12'
    """

    width: int
    fraction: int
    rounding: str
    text: str = field(init=False, repr=False, compare=False)
    """Its options as they stand in an accumulator's text."""
    _held: _core.FixedPoint = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        width: int = 32,
        fraction: int = 0,
        rounding: str = "toward_zero",
    ) -> None:
        made = made_fixed(
            options(
                width=int32("width", width),
                fraction=int32("fraction", fraction),
                sum_rounding=named_word("rounding", rounding),
            )
        )
        self._share(made)

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    def kulisch(cls, a: FormatLike, b: FormatLike, terms: int) -> FixedPoint:
        """Returns the integer in which a sum of `terms` products loses nothing (Kulisch 1971).

        Its unit is the product of the factors' least spacings, and no sum leaves its range.

        Args:
            a: the format of the first factor.
            b: the format of the second factor.
            terms: the number of products.

        Raises:
            ValueError: if that takes more than 1024 bits.

        >>> FixedPoint.kulisch("e4m3fn", "e4m3fn", 4096)
        FixedPoint(width=49, fraction=18, rounding='toward_zero')
        """
        return kulisch(as_format(a).name, as_format(b).name, int64("terms", terms))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Accumulator(Spec):
    """An ordered sum: its format, its scheme, and how each of its operations is rounded.

    Args:
        format: of the running sum (anything `cpd.Format` takes). With `preset` or `unit`: of the
            result and of promoted sums; default: the unit's own. With `fixed`: of the result;
            default: fp32. Or, alone: a `BlockFma` (the same as `unit`), a `FixedPoint` (the same as
            `fixed`), the name of a preset (the same as `preset`) or of an integer, or the text of
            an accumulator, with `seed` and `stream` only.
        scheme: how the terms are added; in `cpd.gemm` the terms p are products, k ascending, and
            the sum s starts from c (+0 without c), rounded:

            - `sequential` (default): s = round(s + p).
            - `kahan`: y = p - c; t = s + y; c = (t - s) - y; s = t, each operation one exact result
              rounded once. Where s becomes infinite or NaN, c is +0 from there on.
            - `fma`: sequential with exact products: s + a * b is rounded once. The same as
              `product="exact"`, and stored as that.
            - `chunked`: t starts from +0 in each chunk, t = round_inner(t + p); after a chunk's
              last term s = round(s + t).
            - `pairwise`: a tree over all p: neighbors first, an odd one passes up, each sum
              rounded; then s = round(s + tree).
            - `block_fma`: as matrix units do: see `BlockFma`; with `preset` or `unit`.
            - `fixed`: in an integer: see `FixedPoint`; with `fixed`. c, too, is rounded to units. A
              sum with a term that is NaN or infinite, or a product of one, is NaN; a zero is +0.
              Without stochastic rounding.

            `cpd.sum` takes all but `block_fma`, all-reduce neither that nor `fixed`. Sums there
            start from the first term, rounded (of each chunk, and of the chunks' sums); a tree's
            first sums are of unrounded terms.
        product: each product is rounded into this format first (default: `format`), or is "exact".
        inner: of `chunked`: the format within a chunk; default: `format`.
        chunk: of `chunked`: terms per chunk.
        preset: a matrix unit by name: see `presets`. It determines the rounding.
        unit: a matrix unit by its rule, a `BlockFma`.
        operands: with `preset`: the formats that a and b hold, if they are not the preset's.
        fixed: an integer, a `FixedPoint`.
        rounding: as in `cpd.cast`, for each operation. Of `fixed`: of the result.
        overflow: as in `cpd.cast`, for each operation. Of `fixed`: of the result; `saturate` also
            of the integer, after each term.
        seed: of stochastic rounding; an int or a one-element integer tensor; default 0.
        stream: as `seed`.
        random_bits: as in `cpd.cast`, for each operation; default 24.
        variant: as in `cpd.cast`, for each operation; default "A".

    Raises:
        ValueError: for an invalid text or option, or an option that changes no sum; the error names
            the option to use.
        TypeError: for an argument of another type.

    `str()` returns the canonical text (without seed and stream). A text is a format, a scheme and
    options, `e6m9 chunked chunk=32 product=exact`; options may also stand before the scheme. Or it
    is the name of a preset and options, `h100-fp8 a=e5m2`; or that of a two's complement integer
    and options: `int8` … `int1024`, or `fixed<40,12>`, its width and fraction; it wraps unless
    `overflow=saturate`. Functions that take an accumulator also take such a text, a `BlockFma`, a
    `FixedPoint`, or a format for its sequential sum. `smN` may be that of the sum, `intN` not.

    Immutable, hashable, picklable; equal if all fields are. Seed and stream count by their values,
    which may change in a tensor: they do not enter the hash. `dataclasses.replace` preserves
    `product` and `inner`: give them along with another `format`.

    >>> Accumulator("e4m3", "kahan").scheme
    'kahan'
    >>> str(Accumulator("e6m9", "chunked", product="exact", chunk=32))
    'e6m9 chunked chunk=32 product=exact'
    >>> Accumulator("e4m3", "fma") == Accumulator("e4m3", product="exact")
    True
    >>> Accumulator(preset="h100-fp16").unit.block
    16
    >>> Accumulator("h100-fp8") == Accumulator(preset="h100-fp8")
    True
    >>> str(Accumulator("e4m3 rounding=stochastic kahan", seed=7))
    'e4m3 kahan rounding=stochastic'
    >>> str(Accumulator("fixed<40,12> overflow=saturate"))
    'fp32 fixed width=40 fraction=12 overflow=saturate'
    """

    format: Format
    scheme: str
    product: Format | str
    inner: Format
    chunk: int
    unit: BlockFma | None
    fixed: FixedPoint | None
    rounding: str
    overflow: str
    seed: Number
    stream: Number
    random_bits: int
    variant: str
    text: str = field(init=False, compare=False)
    """The text that str() returns."""
    _held: _core.Accumulator = field(init=False, repr=False, compare=False)
    _NUMBERS = ("seed", "stream")

    def __init__(
        self,
        format: FormatLike | BlockFma | FixedPoint | None = None,
        scheme: str | None = None,
        *,
        product: FormatLike | None = None,
        inner: FormatLike | None = None,
        chunk: int = DEFAULT_CHUNK,
        preset: str | None = None,
        unit: BlockFma | None = None,
        operands: tuple[FormatLike, FormatLike] | None = None,
        fixed: FixedPoint | None = None,
        rounding: str = "nearest_even",
        overflow: str = "ieee",
        seed: Number = 0,
        stream: Number = 0,
        random_bits: int = 24,
        variant: str = "A",
    ) -> None:
        Options(rounding, overflow, seed, stream, random_bits, variant).check()
        if isinstance(format, BlockFma) and unit is None:
            format, unit = None, format
        if isinstance(format, FixedPoint) and fixed is None:
            format, fixed = None, format
        others = (format, preset, unit, operands, fixed)
        if all(one is None for one in others) and scheme not in ("block_fma", "fixed"):
            format_text("format", format)  # raises
        a, b = _pair(operands)
        made = resolved(
            options(
                format=None if format is None else format_text("format", format),
                scheme=word("scheme", scheme),
                product=None if product is None else format_text("product", product),
                inner=None if inner is None else format_text("inner", inner),
                chunk=int64("chunk", chunk),
                preset=word("preset", preset),
                unit=_unit_text(unit),
                a=a,
                b=b,
                fixed=_fixed_text(fixed),
                rounding=rounding,
                overflow=overflow,
                random_bits=integer("random_bits", random_bits),
                variant=variant,
            )
        )
        self._share(made, seed=plain_number("seed", seed), stream=plain_number("stream", stream))

    @classmethod
    def parse(cls, text: str, seed: Number = 0, stream: Number = 0) -> Accumulator:
        """The accumulator of which str() gave `text`.

        >>> Accumulator.parse("e6m9 chunked product=exact").chunk
        64
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        made = object.__new__(cls)
        made._share(
            parsed(text), seed=plain_number("seed", seed), stream=plain_number("stream", stream)
        )
        return made

    @property
    def options(self) -> Options:
        """The options of each operation's rounding."""
        return Options(
            self.rounding, self.overflow, self.seed, self.stream, self.random_bits, self.variant
        )

    def sum_draws(self, terms: int) -> int:
        """Returns the number of random integers that `cpd.sum` takes for each sum.

        It is the last dimension of `random=`, in the order of the sum's operations. 0 unless the
        rounding is stochastic.

        Args:
            terms: the number of terms of a sum.

        >>> Accumulator("e4m3", "kahan", rounding="stochastic").sum_draws(3)
        9
        """
        return self._held.sum_draws(_count("terms", terms))

    def gemm_draws(self, k: int) -> int:
        """Returns the number of random integers that `cpd.gemm` takes for each element.

        It is the last dimension of `random=`. The first integer is for the rounding of c (without
        effect if there is none), the others serve products and sums in program order. 0 unless the
        rounding is stochastic.

        Args:
            k: the number of products of an element.

        >>> Accumulator("e4m3", rounding="stochastic").gemm_draws(3)
        7
        """
        return self._held.gemm_draws(_count("k", k))

    @cached_property
    def slowdown(self) -> float:
        """About how many times a BLAS's time in fp32 `cpd.gemm` takes: a Xeon's figures, not timed.

        >>> Accumulator("e4m3").slowdown < 100 < Accumulator("e5m12", "kahan").slowdown
        True
        """
        return self._held.slowdown

    def _native(self) -> _core.Accumulator:
        """With seed and stream."""
        return self._seeded if type(self.seed) is type(self.stream) is int else self._with_numbers()

    @cached_property
    def _seeded(self) -> _core.Accumulator:
        return self._with_numbers()

    def _with_numbers(self) -> _core.Accumulator:
        return self._held.with_numbers(number("seed", self.seed), number("stream", self.stream))

    def __repr__(self) -> str:
        numbers = "".join(
            f", {name}={value!r}"
            for name, value in (("seed", self.seed), ("stream", self.stream))
            if is_torch(value) or value != 0
        )
        return f"cpd.Accumulator.parse({self.text!r}{numbers})"


AccumulatorLike: TypeAlias = "Accumulator | BlockFma | FixedPoint | FormatLike"
"""An `Accumulator`, its text, a preset's name, a matrix unit's rule, an integer, or a format, whose
sequential sum is then meant."""


def as_accumulator(acc: AccumulatorLike) -> Accumulator:
    """`acc` itself, what a text says, or the sequential accumulator of a format."""
    if isinstance(acc, Accumulator):
        return acc
    if isinstance(acc, str):
        return parsed(acc)
    if isinstance(acc, BlockFma):
        return Accumulator(unit=acc)
    if isinstance(acc, FixedPoint):
        return Accumulator(fixed=acc)
    try:
        return parsed(format_text("format", acc))
    except TypeError:
        raise TypeError(
            "an accumulator must be a cpd.Accumulator, its text, a preset's name, a cpd.BlockFma, "
            f"or a format, got {type(acc).__name__}"
        ) from None


def sum_accumulator(acc: AccumulatorLike, schemes: tuple[str, ...] = SUM_SCHEMES) -> Accumulator:
    """`acc` where it can sum terms that are given, with one of these schemes."""
    made = as_accumulator(acc)
    if made.scheme not in schemes:
        others = " and cpd.sum" if made.scheme in SUM_SCHEMES else ""
        raise ValueError(
            f"the scheme of a sum must be {', '.join(schemes[:-1])} or {schemes[-1]}, got "
            f"{made.scheme!r}, which is for cpd.gemm{others}"
        )
    return made


class PresetInfo(NamedTuple):
    """The evidence of a preset."""

    name: str
    evidence: str
    """`replayed` against published results of the unit, or `literature`."""
    source: str
    nan: str = ""
    """The pattern of the unit's NaN, "7FFFFFFF", of fp16 results its first half; "" where nothing
    tells. CPD's own results hold its one quiet NaN."""


def presets() -> list[PresetInfo]:
    """The matrix units that `Accumulator(preset=…)` knows, each with its evidence.

    >>> [p.evidence for p in presets() if p.name == "v100"]
    ['replayed']
    """
    return [PresetInfo(*one) for one in _core.presets()]


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def parsed(text: str) -> Accumulator:
    """The accumulator of a text, a preset's or a format's name."""
    return resolved(options(format=text))


@constant
def resolved(options: tuple[Option, ...]) -> Accumulator:
    """The accumulator of these arguments of `Accumulator`, by name."""
    return Accumulator._of(_core.Accumulator(texts(options)))


@constant
def made_unit(options: tuple[Option, ...]) -> BlockFma:
    """The unit of these options, checked."""
    return BlockFma._of(_core.BlockFma(texts(options)))


@constant
def parsed_unit(text: str) -> BlockFma:
    """The unit of a text."""
    return BlockFma._of(_core.BlockFma.parse(text))


@constant
def made_fixed(options: tuple[Option, ...]) -> FixedPoint:
    """The integer of these options, checked."""
    return FixedPoint._of(_core.FixedPoint(texts(options)))


@constant
def parsed_fixed(text: str) -> FixedPoint:
    """The integer of a text."""
    return FixedPoint._of(_core.FixedPoint.parse(text))


@constant
def kulisch(a: str, b: str, terms: int) -> FixedPoint:
    """`FixedPoint.kulisch` of formats by their names."""
    return FixedPoint._of(_core.FixedPoint.kulisch(named(a)._held, named(b)._held, terms))


def _product(text: str) -> Format | str:
    return text if text == "exact" else named(text)


BlockFma._parsed, FixedPoint._parsed = parsed_unit, parsed_fixed
Accumulator._parsed = parsed
Accumulator._SPECS = {
    "format": named,
    "product": _product,
    "inner": named,
    "unit": parsed_unit,
    "fixed": parsed_fixed,
}


def _unit_text(unit: Any) -> str | None:
    if unit is not None and not isinstance(unit, BlockFma):
        raise TypeError(f"unit must be a cpd.BlockFma, got {type(unit).__name__}")
    return None if unit is None else unit.text


def _fixed_text(fixed: Any) -> str | None:
    if fixed is not None and not isinstance(fixed, FixedPoint):
        raise TypeError(f"fixed must be a cpd.FixedPoint, got {type(fixed).__name__}")
    return None if fixed is None else fixed.text


def _pair(operands: Any) -> tuple[str, str] | tuple[None, None]:
    """Two formats by their texts."""
    if operands is None:
        return None, None
    if not isinstance(operands, (tuple, list)) or len(operands) != 2:
        raise TypeError(f"operands must be a pair of formats, got {operands!r}")
    a, b = operands
    if a is None or b is None:
        raise TypeError(f"operands must be a pair of formats, got {operands!r}")
    return format_text("operands", a), format_text("operands", b)


def _count(name: str, value: Any) -> int:
    """A number of terms."""
    count = int64(name, value)
    if not 0 <= count < 2**58:  # a few draws each are still an int64
        raise ValueError(f"{name} must be 0…2^58 - 1, got {count}")
    return count
