# SPDX-License-Identifier: Apache-2.0
"""Accumulators of sums: `Accumulator`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, as_format, format_text, named
from cpd.numeric.numbers import int64
from cpd.numeric.shown import kind_of
from cpd.numeric.spec import KINDS, Kind, Spec, made

SCHEMES: tuple[str, ...] = _core.SCHEMES
SUM_SCHEMES: tuple[str, ...] = _core.SUM_SCHEMES
"""The schemes that `cpd.sum` supports: its terms are given, not products."""
REDUCE_SCHEMES: tuple[str, ...] = tuple(scheme for scheme in SUM_SCHEMES if scheme != "fixed")
"""The schemes that all-reduce supports: its sums are floating-point numbers."""
UNCUT = ("exact", "flushed_pairs")
"""Adders of matrix units that cut no term, and so refuse `fraction_bits` and `min_exponent`."""


def _product(text: str) -> Format | str:
    return text if text == "exact" else named(text)


KINDS["product"] = Kind(format_text, _product)


class Accumulator(Spec, native=_core.Accumulator):
    """The rule of a sum: its format and scheme, a matrix unit's rule, or an integer's width.

    There are three forms. Keys of one form do not go with another; `form` says which it is, and
    attributes that a form does not have are None.

    - `ordered`: a format and a scheme. The sum is rounded in every step.
    - `unit`: a matrix unit. A block of products is aligned, cut and summed at once.
    - `integer`: a two's complement integer in whole units of 2^-fraction.

    Args:
        format: the text of an accumulator, or an `Accumulator`; keywords replace its keys. Or a
            format (what `cpd.Format` takes). It is the format of an ordered sum, of a unit's result
            and promoted sums (default: its `sum`), and of an integer's result (default: fp32).
            Texts are:

            - A format, a scheme and keys: `e4m3`, `e4m3 kahan`, `e6m9 chunked chunk=32
              product=exact`.
            - The name of a matrix unit (`Accumulator.named()`) and keys: `h100-fp8 a=e5m2`; with
              the format of its results before it: `fp16 h100-fp16`.
            - A two's complement integer: `int8` … `int1024`, or `fixed<40,12>`, its width and
              fraction.
            - Keys of a unit or an integer alone: `a=fp16 b=fp16 block=4`, `width=40 fraction=12`.

        scheme: how the terms are added, or the name of a unit or an integer. In `cpd.gemm` the
            terms p are products, k ascending, and the sum s starts from c (+0 without c), rounded:

            - `sequential` (default): s = round(s + p).
            - `kahan`: y = p - c; t = s + y; c = (t - s) - y; s = t, each operation one exact result
              rounded once. Where s becomes infinite or NaN, c is +0 from there on.
            - `fma`: sequential with exact products: s + a * b is rounded once. The same as
              `product="exact"`, and stored as that.
            - `chunked`: t starts from +0 in each chunk, t = round_inner(t + p); after a chunk's
              last term s = round(s + t).
            - `pairwise`: a tree over all p: neighbors first, an odd one passes up, each sum
              rounded; then s = round(s + tree).
            - `block_fma`: as matrix units do; needs `a` and `b`.
            - `fixed`: in an integer. c, too, is rounded to units. A sum with a term that is NaN or
              infinite, or a product of one, is NaN; a zero is +0. Without stochastic rounding.

            `cpd.sum` takes all but `block_fma`, all-reduce neither that nor `fixed`. Sums there
            start from the first term, rounded (of each chunk, and of the chunks' sums); a tree's
            first sums are of unrounded terms.
        product: each product is rounded into this format first (default: `format`), or is "exact".
        inner: of `chunked`: the format within a chunk; default: `format`.
        chunk: of `chunked`: terms per chunk; default 64.
        rounding: as in `cpd.cast`, for each operation; default `nearest_even`. Of a unit and an
            integer: of the result.
        overflow: as in `cpd.cast`, for each operation; default `ieee`. Of an integer: of the
            result; `saturate` also of the integer, after each term, which else wraps.
        random_bits: as in `cpd.cast`, for each operation; default 24.
        variant: as in `cpd.cast`, for each operation; default "A".
        a: the format of a unit's first operand; its least exponent counts.
        b: the format of a unit's second operand; its least exponent counts.
        block: products per block, 1…64; default 16.
        fraction_bits: 1…30, default 25; below the greatest exponent E, as said below.
        addend: `aligned` (default): the running sum is one of the aligned terms; `separate`: it is
            added exactly later.
        min_exponent: E is at least this, -400…127; default -133.
        sum: the format of a unit's running sum; default fp32.
        sum_rounding: of a unit: into `sum`, `toward_zero` (default) or `nearest_even`. Of an
            integer: of terms to units, any but `stochastic`. (Two's complement's cut is `down`.)
        promote: after this number of k (a multiple of `block`) the unit's sum is added to the
            accumulator and starts again from +0; default 0: never.
        scale: the format of scales, for a unit that takes them. Each product is multiplied by its
            two scales' magnitudes, exactly, and its exponent is ea + eb plus the scales'; a scale
            that is NaN makes the sum NaN. Missing scales are 1. A sum beyond the range of `sum` is
            Inf, also toward zero. `fraction_bits` may be as many as binary64 holds a block's sum
            with.
        scale_block: values of k that share a scale: `block` or a divisor of it; default 32.
        dot: a divisor of `scale_block`: above 1 the terms are exact sums of `dot` scaled products,
            and a term's exponent is the scales' alone; default 1.
        adder: how a block's products and the running sum are added:

            - `aligned` (default): as said below.
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
            default 0: ascending. Indices of a last group beyond the last k hold 0.
        stride: in a group, k with k mod `stride` < `take` come first, ascending; default 4.
        take: then the next `take`, and so on; blocks are of successive k in that order; default 2.
        width: an integer's bits, 2…1024; default 32.
        fraction: an integer's unit is 2^-fraction, -1024…1024; default 0.

    Raises:
        ValueError: for an invalid text or key, or a key that changes no sum; the error names the
            key to use.
        TypeError: for an argument of another type.

    **A unit's sum.** Per block, each product is exact, with the exponent ea + eb of its operands
    (not normalized; subnormals keep the format's least exponent). E is the greatest of these, of
    the addend's (if aligned) and of `min_exponent`. Every term is cut toward zero to
    `fraction_bits` below 2^E; the exact sum of the cut terms is rounded once into `sum`. Blocks
    along k are chained through it. A sum of zeros is +0, also if all terms and the addend are -0; a
    sum that rounds to zero is +0, too. A NaN is the format's one positive quiet NaN, whatever the
    operands' (fp32: 0x7FC00000).

    **An integer's sum.** It is hardware's int32, or Kulisch's accumulator. Each term, an exact
    product, is rounded once to units; the integer sum is at last rounded once into `format`. A sum
    beyond the range wraps, right modulo 2^width in any order.

    `str()` returns the canonical text. Functions that take an accumulator also take such a text, or
    a format for its sequential sum. `smN` may be the format of a sum, `intN` not. Immutable,
    hashable, picklable; equal if their texts are.

    >>> Accumulator("e4m3 kahan").scheme, Accumulator("e4m3 rounding=stochastic").scheme
    ('kahan', 'sequential')
    >>> str(Accumulator("e6m9", scheme="chunked", product="exact", chunk=32))
    'e6m9 chunked chunk=32 product=exact'
    >>> Accumulator("e4m3 fma") == Accumulator("e4m3", product="exact")
    True
    >>> Accumulator("h100-fp8", a="e5m2").a, Accumulator("h100-fp8").scheme
    (cpd.Format('e5m2'), None)
    >>> Accumulator(a="fp16", b="fp16", block=4, fraction_bits=23).form
    'unit'
    >>> str(Accumulator("fixed<40,12> overflow=saturate"))
    'fp32 fixed width=40 fraction=12 overflow=saturate'
    """

    form: Literal["ordered", "unit", "integer"]
    """`ordered`, `unit` or `integer`."""
    format: Format
    scheme: str | None
    product: Format | str | None
    inner: Format | None
    chunk: int | None
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    a: Format | None
    b: Format | None
    block: int | None
    fraction_bits: int | None
    addend: str | None
    min_exponent: int | None
    sum: Format | None
    sum_rounding: str | None
    promote: int | None
    scale: Format | None
    scale_block: int | None
    dot: int | None
    adder: str | None
    group: int | None
    stride: int | None
    take: int | None
    width: int | None
    fraction: int | None
    _held: _core.Accumulator

    def __init__(
        self,
        format: AccumulatorLike | None = None,
        /,
        *,
        scheme: str | None = None,
        product: FormatLike | None = None,
        inner: FormatLike | None = None,
        chunk: int | None = None,
        rounding: str | None = None,
        overflow: str | None = None,
        random_bits: int | None = None,
        variant: str | None = None,
        a: FormatLike | None = None,
        b: FormatLike | None = None,
        block: int | None = None,
        fraction_bits: int | None = None,
        addend: str | None = None,
        min_exponent: int | None = None,
        sum: FormatLike | None = None,
        sum_rounding: str | None = None,
        promote: int | None = None,
        scale: FormatLike | None = None,
        scale_block: int | None = None,
        dot: int | None = None,
        adder: str | None = None,
        group: int | None = None,
        stride: int | None = None,
        take: int | None = None,
        width: int | None = None,
        fraction: int | None = None,
    ) -> None: ...

    @classmethod
    def _head(cls, spec: Any, keys: dict[str, Any]) -> str:
        if spec is None and not keys:
            raise TypeError(
                "Accumulator takes a text, a format, or the keys of a matrix unit or an integer"
            )
        if spec is None or isinstance(spec, str):
            return spec or ""
        return spec.text if isinstance(spec, Accumulator) else _text(spec)

    @classmethod
    def exact(cls, a: FormatLike, b: FormatLike, terms: int) -> Accumulator:
        """Returns the narrowest integer that sums this many products of a and b exactly.

        Args:
            a: the format of the first factor.
            b: the format of the second factor.
            terms: the number of products.

        Returns:
            The accumulator, of the form `fixed`. Its unit is the product of the factors' least
            spacings, and no sum leaves its range (Kulisch 1971).

        Raises:
            ValueError: if that takes more than 1024 bits.

        >>> Accumulator.exact("e4m3fn", "e4m3fn", 4096)
        cpd.Accumulator('fp32 fixed width=49 fraction=18')
        """
        return _exact(as_format(a).name, as_format(b).name, int64("terms", terms))

    def sum_integers(self, terms: int) -> int:
        """Returns the number of random integers that `cpd.sum` takes for each sum.

        Args:
            terms: the number of terms of a sum.

        Returns:
            The last dimension of `random=`, in the order of the sum's operations. 0 unless the
            rounding is stochastic.

        >>> Accumulator("e4m3 kahan rounding=stochastic").sum_integers(3)
        9
        """
        return self._held.sum_integers(_count("terms", terms))

    def gemm_integers(self, k: int) -> int:
        """Returns the number of random integers that `cpd.gemm` takes for each element.

        Args:
            k: the number of products of an element.

        Returns:
            The last dimension of `random=`: first the integer that rounds c (without effect if
            there is none), then those of products and sums in program order. 0 unless the rounding
            is stochastic.

        >>> Accumulator("e4m3 rounding=stochastic").gemm_integers(3)
        7
        """
        return self._held.gemm_integers(_count("k", k))

    @cached_property
    def slowdown(self) -> float:
        """About how many times a BLAS's time in fp32 `cpd.gemm` takes: a Xeon's figures, not timed.

        >>> Accumulator("e4m3").slowdown < 100 < Accumulator("e5m12 kahan").slowdown
        True
        """
        return self._held.slowdown

    @classmethod
    def named(cls) -> dict[str, dict[str, str]]:
        """Returns the matrix units by name.

        Each has a `summary`, a `source`, its `evidence` (`replayed`: it gives published results of
        the unit bit for bit; `literature`), and `nan`: the pattern of the unit's NaN, "7FFFFFFF",
        of fp16 results its first half, "" if unknown. CPD's own results hold its one quiet NaN.

        >>> Accumulator.named()["v100"]["evidence"]
        'replayed'
        """
        return _core.Accumulator.named()


if TYPE_CHECKING:

    class Unit(Accumulator):
        """An accumulator of form `unit`, whose keys are not None."""

        a: Format
        b: Format
        block: int
        fraction_bits: int
        addend: str
        min_exponent: int
        sum: Format
        sum_rounding: str
        promote: int
        scale_block: int
        dot: int
        adder: str
        group: int
        stride: int
        take: int

    class Integer(Accumulator):
        """An accumulator of form `integer`, whose keys are not None."""

        width: int
        fraction: int
        sum_rounding: str

else:
    Unit = Integer = Accumulator


AccumulatorLike: TypeAlias = "Accumulator | FormatLike"
"""An `Accumulator`, its text, or a format, whose sequential sum is then meant."""


def as_accumulator(acc: AccumulatorLike) -> Accumulator:
    """`acc` itself, what a text says, or the sequential accumulator of a format."""
    if isinstance(acc, Accumulator):
        return acc
    return parsed(acc if isinstance(acc, str) else _text(acc))


def sum_accumulator(acc: AccumulatorLike, schemes: tuple[str, ...] = SUM_SCHEMES) -> Accumulator:
    """`acc` where it can sum terms that are given, with one of these schemes."""
    accumulator = as_accumulator(acc)
    scheme = accumulator.scheme or scheme_of(accumulator)
    if scheme not in schemes:
        others = " and cpd.sum" if scheme in SUM_SCHEMES else ""
        raise ValueError(
            f"the scheme of a sum must be {', '.join(schemes[:-1])} or {schemes[-1]}, got "
            f"{scheme!r}, which is for cpd.gemm{others}"
        )
    return accumulator


def scheme_of(acc: Accumulator) -> str:
    """The scheme as a text has it, of a unit and an integer too."""
    return acc.scheme or ("block_fma" if acc.form == "unit" else "fixed")


def as_unit(acc: Accumulator) -> Unit | None:
    """`acc` if it is a matrix unit, else None."""
    return cast("Unit", acc) if acc.form == "unit" else None


def unit_fields(acc: Accumulator) -> dict[str, Any]:
    """The keys of a matrix unit that are not None, as the constructor takes them."""
    ordered = parsed("fp32")
    fields = {name: getattr(acc, name) for name in Accumulator._kinds}
    return {
        name: value
        for name, value in fields.items()
        if value is not None and getattr(ordered, name) is None
    }


def as_integer(acc: Accumulator) -> Integer | None:
    """`acc` if it is an integer, else None."""
    return cast("Integer", acc) if acc.form == "integer" else None


# ---- texts ---------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    try:
        return format_text("format", value)
    except TypeError:
        raise TypeError(
            "an accumulator must be a cpd.Accumulator, its text, a matrix unit's name, or a "
            f"format, got {kind_of(value)}"
        ) from None


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def parsed(text: str) -> Accumulator:
    """The accumulator of a text, a unit's or a format's name."""
    return made(Accumulator, text, ())


@constant
def _exact(a: str, b: str, terms: int) -> Accumulator:
    return Accumulator._of(_core.Accumulator.exact(named(a)._held, named(b)._held, terms))


def _count(name: str, value: Any) -> int:
    """A number of terms."""
    count = int64(name, value)
    if not 0 <= count < 2**58:  # a few integers each are still an int64
        raise ValueError(f"{name} must be 0…2^58 - 1, got {count}")
    return count


# ---- pickles of version 0.7 ----------------------------------------------------------------------


class BlockFma:
    """Reads a matrix unit: an accumulator is made of its text."""

    def __new__(cls) -> Any:
        """Returns an accumulator, which pickle then gives its text."""
        return object.__new__(Accumulator)


FixedPoint = BlockFma
