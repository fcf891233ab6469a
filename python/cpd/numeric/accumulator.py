# SPDX-License-Identifier: Apache-2.0
"""Defines `Accumulator`: the rule by which a sum or a matrix product adds its terms."""

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
"""The schemes that `cpd.sum` supports. `cpd.sum` adds the values of an array, not products."""
UNCUT = ("exact", "flushed_pairs")
"""Adders of matrix units that add terms without truncating them. A unit with such an adder refuses
the keys `fraction_bits` and `min_exponent`."""


def _product(text: str) -> Format | str:
    return text if text == "exact" else named(text)


KINDS["product"] = Kind(format_text, _product)


class Accumulator(Spec, native=_core.Accumulator):
    """The rule of a sum: its format and scheme, a matrix unit's rule, or an integer's width.

    An accumulator has one of three forms, which the attribute `form` names. Keys of different forms
    cannot be combined. Attributes that belong to another form are None.

    - `ordered`: a format and a scheme. Each step of the sum is rounded.
    - `unit`: a matrix unit. The products of a block are aligned to the largest exponent, truncated
      and summed at once.
    - `integer`: a two's complement integer that counts multiples of 2^-fraction.

    Args:
        format: the text of an accumulator, or an `Accumulator`; keywords replace its keys. Or a
            format, in any form that `cpd.Format` takes. This format is the format of an ordered
            sum, of a unit's result and promoted sums (default: the unit's `sum`), or of an
            integer's result (default: fp32). Texts are:

            - A format, a scheme and keys: `e4m3`, `e4m3 kahan`, `e6m9 chunked chunk=32
              product=exact`.
            - The name of a matrix unit (`Accumulator.named()`) and keys: `h100-fp8 a=e5m2`. The
              format of its results may precede the name: `fp16 h100-fp16`.
            - A two's complement integer: `int8` … `int1024`, or `fixed<40,12>`, where 40 is `width`
              and 12 is `fraction`.
            - Only keys, for a unit or an integer: `a=fp16 b=fp16 block=4`, `width=40 fraction=12`.

        scheme: the way in which terms are added, or the name of a unit or an integer. In `cpd.gemm`
            the terms p are products in ascending order of k. The sum s starts from c rounded to
            `format`, or from +0 without c.

            - `sequential` (default): s = round(s + p).
            - `kahan`: y = p - c; t = s + y; c = (t - s) - y; s = t. Here c is the compensation and
              starts from +0. Each operation is computed exactly and rounded once. When s becomes
              infinite or NaN, c becomes +0 and remains +0.
            - `fma`: sequential with exact products: s + a * b is rounded once. `Accumulator` stores
              `fma` as `sequential` with `product="exact"`, which means the same.
            - `chunked`: in each chunk the sum t starts from +0, and t = round_inner(t + p), rounded
              to `inner`. After a chunk's last term, s = round(s + t).
            - `pairwise`: a binary tree over all p. Each level adds neighbors and rounds each sum; a
              last term without a neighbor moves to the next level unchanged. Then s = round(s +
              tree).
            - `block_fma`: the sum of a matrix unit; needs `a` and `b`.
            - `fixed`: a sum in an integer. c is also rounded to multiples of 2^-fraction. The sum
              is NaN if a term, or a factor of a product, is NaN or infinite. A result of zero is
              +0. Stochastic rounding is not supported.

            A keyword that replaces the scheme `chunked` also drops the text's `chunk` and `inner`.

            `cpd.sum` supports all schemes but `block_fma`. All-reduce supports neither `block_fma`
            nor `fixed`. In `cpd.sum` and all-reduce, a sum starts from its first term, rounded to
            the format, instead of +0. The sum within a chunk and the sum over the chunks start in
            this way, too. The first level of a `pairwise` tree adds the unrounded terms.
        product: the format into which each product is rounded first, or "exact"; default: `format`.
        inner: for `chunked`: the format of the sum within a chunk; default: `format`.
        chunk: for `chunked`: the number of terms of a chunk; default 64.
        rounding: the rounding of each operation of an ordered sum, or of the result of a unit or an
            integer. `cpd.cast` documents the names; default `nearest_even`.
        overflow: the rule for results beyond the format's range: `ieee` (default) or `saturate`, as
            in `cpd.cast`. The rule applies to each operation of an ordered sum, or to the result of
            an integer. With `saturate`, an integer also saturates after each term; otherwise it
            wraps.
        random_bits: for stochastic rounding: the number of random bits of each operation, 1 to 24;
            default 24.
        variant: for stochastic rounding: the rule of each operation, as in `cpd.cast`; default "A".
        a: the format of a unit's first operand. The exponent of a subnormal operand is the
            format's least exponent.
        b: the format of a unit's second operand. The exponent of a subnormal operand is the
            format's least exponent.
        block: the number of products that a unit adds at once (a block), 1…64; default 16.
        fraction_bits: the number of bits below 2^E to which a unit truncates its terms, 1…30;
            default 25. E is the greatest exponent (see **A unit's sum**).
        addend: `aligned` (default): the running sum is one of the aligned terms. `separate`: the
            running sum is added exactly after the aligned terms are summed.
        min_exponent: the least value of E, -400…127; default -133.
        sum: the format of a unit's running sum; default fp32.
        sum_rounding: for a unit: the rounding into `sum`, `toward_zero` (default) or
            `nearest_even`. For an integer: the rounding of terms to multiples of 2^-fraction, any
            but `stochastic`. (Hardware that drops the low bits of a two's complement number rounds
            `down`.)
        promote: a multiple of `block`. Each time the unit has added this number of products, its
            sum is added to a sum in `format`, and the unit's sum starts again from +0. Default 0:
            never.
        scale: the format of scales, for a unit that takes scales. Each product is multiplied
            exactly by the magnitudes of its two scales, and the product's exponent is ea + eb plus
            the exponents of the scales. A scale that is NaN makes the sum NaN. Missing scales are
            1. A sum beyond the range of `sum` is Inf, also toward zero. With scales,
            `fraction_bits` may exceed 30 as long as binary64 holds the sum of a block.
        scale_block: the number of consecutive k that share a scale: `block` or a divisor of
            `block`; default 32.
        dot: a divisor of `scale_block`; default 1. Above 1, each term is the exact sum of `dot`
            scaled products, and only the scales determine its exponent.
        adder: the rule by which a block's products and the running sum are added:

            - `aligned` (default): the rule of **A unit's sum** below.
            - `exact`: the exact sum of all terms, rounded once (AMD CDNA1).
            - `flushed_pairs`: in binary32 without subnormals, ((p0 + p1) + (p2 + p3)) + sum, or for
              a block of 2, (p0 + p1) + sum. Subnormal operands and a subnormal sum count as +0;
              subnormal results become zeros of their sign (CDNA2).
            - `two_steps` (CDNA3): products (Inf beyond binary32's range) are truncated below the
              greatest exponent of the products, and summed. E is the greater of this exponent and
              the running sum's exponent. The sum of the products is rounded down to `fraction_bits`
              + 8 bits below 2^E, the running sum to `fraction_bits` bits. The total is rounded down
              to `fraction_bits` + 7 bits below its own exponent, then rounded into fp32.
            - `two_steps_even` (CDNA3 FP8): like `two_steps`, but products of even k and of odd k
              are truncated and summed separately. The two sums are rounded down to `fraction_bits`
              bits below the greater of their exponents, and added. A running sum with an exponent
              below E - `fraction_bits` - 1 counts as 0.

            Only `aligned` supports `scale`. All adders but `aligned` and `exact` sum in fp32,
            rounded to `nearest_even`. `exact` and `flushed_pairs` truncate no term and refuse
            `fraction_bits` and `min_exponent`.
        group: a multiple of `block` up to 64. A unit permutes the order of k within each group of
            this number of consecutive k. Default 0: ascending order. Products beyond the last k
            count as 0 in the last group.
        stride: for `group`: the k with k mod `stride` < `take` come first, in ascending order;
            default 4.
        take: for `group`: after the first `take` of each `stride` consecutive k come the next
            `take`, and so on. Blocks consist of successive k in this permuted order. Default 2.
        width: the number of bits of an integer accumulator, 2…1024; default 32.
        fraction: the integer counts multiples of 2^-fraction, -1024…1024; default 0.

    Raises:
        ValueError: for an invalid text or key, or for a key without effect on the sum; the error
            names the key to use.
        TypeError: for an argument of another type.

    **A unit's sum.** Per block, each product is exact. Its exponent is ea + eb, the sum of its
    operands' exponents (not normalized; subnormals have the format's least exponent). E is the
    greatest of these exponents, the running sum's exponent (with `addend=aligned`) and
    `min_exponent`. Every term is truncated toward zero to `fraction_bits` bits below 2^E. The exact
    sum of the truncated terms is rounded once into `sum` and becomes the running sum for the next
    block along k. A sum of zeros is +0, even if all terms and the addend are -0. A sum that rounds
    to zero is +0, too. Every NaN becomes the format's one positive quiet NaN (fp32: 0x7FC00000).

    **An integer's sum.** An integer accumulator models the int32 accumulator of hardware, or
    Kulisch's exact accumulator. Each term (an exact product) is rounded once to a multiple of
    2^-fraction. The final integer is rounded once into `format`. A sum beyond the integer's range
    wraps, so modulo 2^width the sum is the same in any order.

    `str()` returns the canonical text. Functions that take an accumulator also take such a text, or
    a format, which means a sequential sum in that format. The formats `smN` can be the format of a
    sum, the formats `intN` cannot. An accumulator is immutable, hashable and picklable. Two
    accumulators are equal if their texts are equal.

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
    """The accumulator's form: `ordered`, `unit` (a matrix unit) or `integer`."""
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
            The accumulator, with scheme `fixed` and form `integer`. Its 2^-fraction is the product
            of the least spacings of a and b, and no sum of `terms` products overflows it (Kulisch
            1971).

        Raises:
            ValueError: if the integer needs more than 1024 bits.

        >>> Accumulator.exact("e4m3fn", "e4m3fn", 4096)
        cpd.Accumulator('fp32 fixed width=49 fraction=18')
        """
        return _exact(as_format(a).name, as_format(b).name, int64("terms", terms))

    def sum_integers(self, terms: int) -> int:
        """Returns the number of random integers that `cpd.sum` takes for each sum.

        Args:
            terms: the number of terms of a sum.

        Returns:
            The size of the last dimension of the argument `random` of `cpd.sum`. The integers are
            used in the order of the sum's operations. 0 unless the rounding is stochastic.

        >>> Accumulator("e4m3 kahan rounding=stochastic").sum_integers(3)
        9
        """
        return self._held.sum_integers(_count("terms", terms))

    def gemm_integers(self, k: int) -> int:
        """Returns the number of random integers that `cpd.gemm` takes for each element.

        Args:
            k: the number of products of an element.

        Returns:
            The size of the last dimension of the argument `random` of `cpd.gemm`. The first integer
            rounds c (without c it has no effect). The other integers round products and sums in the
            order of their computation. 0 unless the rounding is stochastic.

        >>> Accumulator("e4m3 rounding=stochastic").gemm_integers(3)
        7
        """
        return self._held.gemm_integers(_count("k", k))

    @cached_property
    def slowdown(self) -> float:
        """The estimated time of `cpd.gemm` on a Xeon, divided by the time of an fp32 BLAS.

        >>> Accumulator("e4m3").slowdown < 100 < Accumulator("e5m12 kahan").slowdown
        True
        """
        return self._held.slowdown

    @classmethod
    def named(cls) -> dict[str, dict[str, str]]:
        """Returns the matrix units by name.

        Each unit has a `summary`, a `source` and its `evidence`. `evidence` is `replayed` if CPD
        reproduces published results of the unit bit for bit, else `literature`. `nan` is the
        hexadecimal bit pattern of the hardware's NaN, such as "7FFFFFFF", or "" if it is unknown.
        For fp16 results, the NaN is the first half of the pattern. CPD's own results contain the
        quiet NaN of the format instead.

        >>> Accumulator.named()["v100"]["evidence"]
        'replayed'
        """
        return _core.Accumulator.named()


if TYPE_CHECKING:

    class Unit(Accumulator):
        """For mypy: an `Accumulator` of form `unit`, whose keys are never None."""

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
        """For mypy: an `Accumulator` of form `integer`, whose keys are never None."""

        width: int
        fraction: int
        sum_rounding: str

else:
    Unit = Integer = Accumulator


AccumulatorLike: TypeAlias = "Accumulator | FormatLike"
"""An `Accumulator`, its text, or a format. A format means a sequential sum in that format."""


def as_accumulator(acc: AccumulatorLike) -> Accumulator:
    """Returns an `Accumulator` unchanged, and makes one from a text or a format."""
    if isinstance(acc, Accumulator):
        return acc
    return parsed(acc if isinstance(acc, str) else _text(acc))


def sum_accumulator(acc: AccumulatorLike) -> Accumulator:
    """Returns the accumulator `acc`. Raises ValueError if `cpd.sum` does not support its scheme."""
    accumulator = as_accumulator(acc)
    scheme = accumulator.scheme or scheme_of(accumulator)
    if scheme not in SUM_SCHEMES:
        raise ValueError(
            f"the scheme of a sum must be {', '.join(SUM_SCHEMES[:-1])} or {SUM_SCHEMES[-1]}, got "
            f"{scheme!r}, which is for cpd.gemm"
        )
    return accumulator


def scheme_of(acc: Accumulator) -> str:
    """Returns acc's scheme; if it is None, `block_fma` for a matrix unit and else `fixed`."""
    return acc.scheme or ("block_fma" if acc.form == "unit" else "fixed")


def as_unit(acc: Accumulator) -> Unit | None:
    """Returns `acc` if its form is `unit`, else None."""
    return cast("Unit", acc) if acc.form == "unit" else None


def unit_fields(acc: Accumulator) -> dict[str, Any]:
    """Returns the keys of `acc` that only matrix units have, as arguments of `Accumulator`."""
    ordered = parsed("fp32")
    fields = {name: getattr(acc, name) for name in Accumulator._kinds}
    return {
        name: value
        for name, value in fields.items()
        if value is not None and getattr(ordered, name) is None
    }


def as_integer(acc: Accumulator) -> Integer | None:
    """Returns `acc` if its form is `integer`, else None."""
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
    """Returns the accumulator of a text, or of the name of a unit or a format."""
    return made(Accumulator, text, ())


@constant
def _exact(a: str, b: str, terms: int) -> Accumulator:
    return Accumulator._of(_core.Accumulator.exact(named(a)._held, named(b)._held, terms))


def _count(name: str, value: Any) -> int:
    """Returns `value` as a number of terms. Raises ValueError unless it is in [0, 2^58)."""
    count = int64(name, value)
    if not 0 <= count < 2**58:  # at 2^58, a few integers each would exceed an int64
        raise ValueError(f"{name} must be 0…2^58 - 1, got {count}")
    return count


# ---- pickles of version 0.7 ----------------------------------------------------------------------


class BlockFma:
    """The class of matrix units in version 0.7. Unpickling it makes an `Accumulator`."""

    def __new__(cls) -> Any:
        """Returns an empty accumulator. Pickle then sets its state, which is its text."""
        return object.__new__(Accumulator)


FixedPoint = BlockFma
