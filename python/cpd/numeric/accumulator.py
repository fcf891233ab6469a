# SPDX-License-Identifier: Apache-2.0
"""How sums are kept: `Accumulator`, and `BlockFma`, the rule of a matrix unit."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, flag, format, format_text
from cpd.numeric.options import (
    Number,
    Options,
    integer,
    is_torch,
    number,
    plain_number,
    same_number,
)

SCHEMES = ("sequential", "kahan", "fma", "chunked", "pairwise", "block_fma")
SUM_SCHEMES = ("sequential", "kahan", "chunked", "pairwise")
"""Those that sums of given terms (`cpd.sum`, all-reduce) can have."""
DEFAULT_CHUNK = 64

_format = format  # parameters of the same name hide it


@dataclass(frozen=True, init=False)
class BlockFma:
    """The rule of a matrix unit: a block of products is aligned, cut and summed at once.

    Per block, each product is exact, with the exponent ea + eb of its operands (not normalised;
    subnormals keep the format's least exponent). E is the greatest of these, of the addend's (if
    aligned) and of `min_exponent`. Every term is cut toward zero to `fraction_bits` below 2^E; the
    sum of what is left is exact and rounded once into `sum`. Blocks along k are chained through it.

    Args:
        a, b: the formats that the operands hold; their least exponents count.
        block: products per block, 1…64.
        fraction_bits: 1…30.
        aligns_addend: whether the running sum is one of the aligned terms; else it is added exactly
            to the block's sum, before the one rounding.
        min_exponent: E is at least this.
        sum: format of the unit's running sum.
        rounding: into `sum`: `toward_zero` or `nearest_even`.
        promote: every so many k (a multiple of `block`) the unit's sum is added to the accumulator
            and starts anew from +0; 0: never.

    >>> BlockFma("fp16", "fp16", block=4, fraction_bits=23).sum
    cpd.format('fp32')
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
    ) -> None:
        if not isinstance(rounding, str):
            raise TypeError(f"rounding must be a str, got {type(rounding).__name__}")
        put = functools.partial(object.__setattr__, self)
        put("a", format(a))
        put("b", format(b))
        put("block", _int32("block", block))
        put("fraction_bits", _int32("fraction_bits", fraction_bits))
        put("aligns_addend", flag("aligns_addend", aligns_addend))
        put("min_exponent", _int32("min_exponent", min_exponent))
        put("sum", format(sum))
        put("rounding", rounding)
        put("promote", _int64("promote", promote))
        check_unit(*self._key())

    def _key(self) -> tuple[Any, ...]:
        """The fields of a _UnitKey."""
        return (
            self.a.name,
            self.b.name,
            self.block,
            self.fraction_bits,
            self.aligns_addend,
            self.min_exponent,
            self.sum.name,
            self.rounding,
            self.promote,
        )

    @classmethod
    def _of(cls, native: _core.BlockFma) -> BlockFma:
        return cls(
            Format._of(native.a),
            Format._of(native.b),
            block=native.block,
            fraction_bits=native.fraction_bits,
            aligns_addend=native.aligns_addend,
            min_exponent=native.min_exponent,
            sum=Format._of(native.sum),
            rounding=native.rounding,
            promote=native.promote,
        )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Accumulator:
    """An ordered sum: its format, its scheme, and how each of its operations is rounded.

    Args:
        format: of the running sum (what `cpd.format` takes). With `preset` or `unit`: of the result
            and of promoted sums; default: the unit's own. Or, alone: a `BlockFma` (the same as
            `unit`), the name of a preset (the same as `preset`), or the text of an accumulator,
            with `seed` and `stream` only.
        scheme: how the terms are added; in `cpd.gemm` the terms p are products, k ascending, and
            the sum s starts from c (+0 where there is none), rounded:

            - `sequential` (default): s = round(s + p).
            - `kahan`: y = p - c; t = s + y; c = (t - s) - y; s = t, each operation one exact result
              rounded once. Where s becomes infinite or NaN, c is +0 from there on.
            - `fma`: sequential with exact products: s + a * b is rounded once. The same as
              `product="exact"`, and kept as that.
            - `chunked`: t starts from +0 in each chunk, t = round_inner(t + p); after a chunk's
              last term s = round(s + t).
            - `pairwise`: a tree over all p: neighbours first, an odd one passes up, each sum
              rounded; then s = round(s + tree).
            - `block_fma`: as matrix units do: see `BlockFma`; goes with `preset` or `unit`.

            `cpd.sum` and all-reduce take all but `block_fma`. Sums there start from the
            first term, rounded (of each chunk, and of the chunks' sums); a tree's first sums are
            of terms as they are.
        product: each product is rounded into this format first (default: `format`), or is "exact".
        inner: of `chunked`: the format within a chunk; default: `format`.
        chunk: of `chunked`: terms per chunk.
        preset: a matrix unit by name: see `presets`. It says how it rounds.
        unit: a matrix unit by its rule, a `BlockFma`.
        operands: with `preset`: the formats that a and b hold, where they are not the preset's.
        rounding, overflow, random_bits, variant: as in `cpd.cast`, for each operation.
        seed, stream: of stochastic rounding; ints or one-element integer tensors.

    `str()` gives its canonical text (without seed and stream). A text is a format, a scheme and
    options, `e6m9 chunked chunk=32 product=exact`, of which options may also stand before the
    scheme; or the name of a preset and options, `h100-fp8 a=e5m2`. Functions that take an
    accumulator take such a text too, a `BlockFma`, or a format, whose plain sequential sum is then
    meant.

    Immutable, hashable, picklable; equal if all of its fields are. A seed or stream counts by its
    value, be it an int or a tensor, whose value may change: so these two leave the hash as it is.
    `dataclasses.replace` keeps `product` and `inner`, which are formats of their own: give them
    along with another `format`.

    Raises ValueError or TypeError for anything else.

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
    """

    format: Format
    scheme: str
    product: Format | str
    inner: Format
    chunk: int
    unit: BlockFma | None
    rounding: str
    overflow: str
    seed: Number
    stream: Number
    random_bits: int
    variant: str
    text: str = field(init=False, compare=False)
    """What str() gives."""

    def __init__(
        self,
        format: FormatLike | BlockFma | None = None,
        scheme: str | None = None,
        *,
        product: FormatLike | None = None,
        inner: FormatLike | None = None,
        chunk: int = DEFAULT_CHUNK,
        preset: str | None = None,
        unit: BlockFma | None = None,
        operands: tuple[FormatLike, FormatLike] | None = None,
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
        parts = resolved(
            _name("format", format),
            _text("scheme", scheme),
            _name("product", product),
            _name("inner", inner),
            _int64("chunk", chunk),
            _text("preset", preset),
            _unit_key(unit),
            _names(operands),
            rounding,
            overflow,
            integer("random_bits", random_bits),
            variant,
        )
        for name, value in zip(parts._fields, parts, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "seed", plain_number("seed", seed))
        object.__setattr__(self, "stream", plain_number("stream", stream))

    @classmethod
    def parse(cls, text: str, seed: Number = 0, stream: Number = 0) -> Accumulator:
        """The accumulator of which str() gave `text`.

        >>> Accumulator.parse("e6m9 chunked product=exact").chunk
        64
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        return _with_numbers(parsed(text), seed, stream)

    @property
    def options(self) -> Options:
        """How each operation is rounded."""
        return Options(
            self.rounding, self.overflow, self.seed, self.stream, self.random_bits, self.variant
        )

    def sum_draws(self, terms: int) -> int:
        """How many random integers `cpd.sum` of so many terms takes for each sum: the last
        dimension of its `random=`, in the order of the sum's operations. 0 unless the rounding is
        stochastic.

        >>> Accumulator("e4m3", "kahan", rounding="stochastic").sum_draws(3)
        9
        """
        return _core.parse_accumulator(self.text, 0, 0).sum_draws(_count("terms", terms))

    def gemm_draws(self, k: int) -> int:
        """How many random integers `cpd.gemm` of so many products takes for each element of the
        result: the last dimension of its `random=`. The first is for the rounding of c (without
        effect where there is none), the others serve products and sums in program order. 0 unless
        the rounding is stochastic.

        >>> Accumulator("e4m3", rounding="stochastic").gemm_draws(3)
        7
        """
        return _core.parse_accumulator(self.text, 0, 0).gemm_draws(_count("k", k))

    def _native(self) -> _core.Accumulator:
        seed, stream = number("seed", self.seed), number("stream", self.stream)
        return _core.parse_accumulator(self.text, seed, stream)

    def __copy__(self) -> Accumulator:
        return self

    def __deepcopy__(self, memo: Any) -> Accumulator:
        return self  # with its stream, if that is a tensor: whoever holds it looks at the same one

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Accumulator):
            return NotImplemented
        return (
            self.text == other.text
            and same_number(self.seed, other.seed)
            and same_number(self.stream, other.stream)
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        numbers = "".join(
            f", {name}={value!r}"
            for name, value in (("seed", self.seed), ("stream", self.stream))
            if is_torch(value) or value != 0
        )
        return f"cpd.Accumulator.parse({self.text!r}{numbers})"


AccumulatorLike: TypeAlias = "Accumulator | BlockFma | FormatLike"
"""An `Accumulator`, its text, a preset's name, a matrix unit's rule, or a format, whose sequential
sum is then meant."""


def accumulator(acc: AccumulatorLike) -> Accumulator:
    """`acc` itself, what a text says, or the sequential accumulator of a format."""
    if isinstance(acc, Accumulator):
        return acc
    if isinstance(acc, str):
        return Accumulator.parse(acc)
    if isinstance(acc, BlockFma):
        return Accumulator(unit=acc)
    try:
        return Accumulator(format_text("format", acc))
    except TypeError:
        raise TypeError(
            "an accumulator must be a cpd.Accumulator, its text, a preset's name, a cpd.BlockFma, "
            f"or a format, got {type(acc).__name__}"
        ) from None


def sum_accumulator(acc: AccumulatorLike) -> Accumulator:
    """`acc` where it can sum terms that are given."""
    made = accumulator(acc)
    if made.scheme not in SUM_SCHEMES:
        raise ValueError(
            f"the scheme of a sum must be {', '.join(SUM_SCHEMES[:-1])} or {SUM_SCHEMES[-1]}, got "
            f"{made.scheme!r}, which is for cpd.gemm"
        )
    return made


class PresetInfo(NamedTuple):
    """What a preset stands on."""

    name: str
    evidence: str
    """`replayed` against published results of the unit, or `literature`."""
    source: str


def presets() -> list[PresetInfo]:
    """The matrix units that `Accumulator(preset=…)` knows, each with its evidence.

    >>> [p.evidence for p in presets() if p.name == "v100"]
    ['replayed']
    """
    return [PresetInfo(*one) for one in _core.presets()]


# ---- the parts of an accumulator, by plain values: constants to torch.compile --------------------


class _UnitKey(NamedTuple):
    """A BlockFma."""

    a: str
    b: str
    block: int
    fraction_bits: int
    aligns_addend: bool
    min_exponent: int
    sum: str
    rounding: str
    promote: int

    def native(self) -> _core.BlockFma:
        formats = {name: _format(getattr(self, name))._native for name in ("a", "b", "sum")}
        return _core.BlockFma(**self._asdict() | formats)

    def unit(self) -> BlockFma:
        return BlockFma(
            self.a, self.b, **{k: v for k, v in self._asdict().items() if k not in "ab"}
        )


class _Given(NamedTuple):
    """The arguments of an Accumulator, but for seed and stream."""

    format: str | None = None
    scheme: str | None = None
    product: str | None = None
    inner: str | None = None
    chunk: int = DEFAULT_CHUNK
    preset: str | None = None
    unit: tuple[Any, ...] | None = None
    operands: tuple[str, str] | None = None
    rounding: str = "nearest_even"
    overflow: str = "ieee"
    random_bits: int = 24
    variant: str = "A"


class _Parts(NamedTuple):
    """What they mean."""

    format: Format
    scheme: str
    product: Format | str
    inner: Format
    chunk: int
    unit: BlockFma | None
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    text: str


@constant
def resolved(*given: Any) -> _Parts:
    """What the fields of _Given mean. Raises ValueError where they do not fit together."""
    return _resolved(_Given(*given))


@constant
def parsed(text: str) -> Accumulator:
    """The accumulator of a text."""
    return _parsed(text)


@constant
def check_unit(*key: Any) -> None:
    """Raises ValueError where the fields of a _UnitKey do not fit together."""
    _check_unit(_UnitKey(*key))


@functools.lru_cache(maxsize=1024)
def _resolved(given: _Given) -> _Parts:
    if given.format is not None and _is_text(given.format):
        if given != _Given(given.format):
            raise ValueError(
                f"{given.format!r} is a whole accumulator, besides which there may be seed and "
                "stream: write the other options in it"
            )
        whole_text = _parsed(given.format)
        return _Parts(*(getattr(whole_text, name) for name in _Parts._fields))
    if given.format is not None and given.preset is None and _core.names_preset(given.format):
        given = given._replace(format=None, preset=given.format)
    scheme = _scheme(given)
    exact = scheme in ("fma", "block_fma")
    if exact and given.product not in (None, "exact"):
        raise ValueError(f"scheme {scheme!r} has exact products, got product={given.product!r}")
    scheme = "sequential" if scheme == "fma" else scheme
    whole, unit, rounding = _unit_of(given)
    product: Format | str = whole
    if exact or given.product == "exact":
        product = "exact"
    elif given.product is not None:
        product = _format(given.product)
    inner = whole if given.inner is None else _format(given.inner)
    if scheme != "chunked" and (inner != whole or given.chunk != DEFAULT_CHUNK):
        raise ValueError(
            f"inner and chunk are for scheme 'chunked' only, got {scheme!r} with inner {inner} "
            f"(format: {whole}), chunk {given.chunk}"
        )
    native = _core.Accumulator(
        format=whole._native,
        scheme=scheme,
        rounding=_core.RoundingOptions(
            rounding, given.overflow, 0, 0, given.random_bits, given.variant
        ),
        product=None if isinstance(product, str) or product == whole else product._native,
        exact_products=product == "exact" and unit is None,
        inner=None if inner == whole else inner._native,
        chunk=given.chunk,
        unit=None if unit is None else _UnitKey(*unit._key()).native(),
    )
    return _Parts(
        whole,
        scheme,
        product,
        inner,
        given.chunk,
        unit,
        rounding,
        given.overflow,
        given.random_bits,
        given.variant,
        native.text,
    )


def _scheme(given: _Given) -> str:
    """The scheme meant, checked against preset, unit and operands."""
    scheme = given.scheme
    if scheme is not None and scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    if given.preset is not None and given.unit is not None:
        raise ValueError("preset and unit both name a matrix unit: give one of them")
    if given.operands is not None and given.preset is None:
        raise ValueError("operands goes with preset, the matrix unit that it is about")
    if given.preset is None and given.unit is None:
        if scheme == "block_fma":
            raise ValueError("scheme 'block_fma' needs preset (a matrix unit's name) or unit")
        return "sequential" if scheme is None else scheme
    if scheme not in (None, "block_fma"):
        raise ValueError(f"preset and unit go with scheme 'block_fma', got {scheme!r}")
    return "block_fma"


def _unit_of(given: _Given) -> tuple[Format, BlockFma | None, str]:
    """The accumulator's format, its matrix unit, and how it rounds."""
    if given.preset is None:
        unit = None if given.unit is None else _UnitKey(*given.unit).unit()
        if given.format is not None:
            return _format_or_text(given.format), unit, given.rounding
        if unit is None:
            format_text("format", None)  # raises
        assert unit is not None
        return unit.sum, unit, given.rounding
    if given.rounding != "nearest_even":
        raise ValueError(
            f"preset {given.preset!r} says how it rounds, got rounding={given.rounding!r}"
        )
    whole = _format("fp32" if given.format is None else given.format)
    native = _core.preset(given.preset, whole._native)
    assert native.unit is not None  # so are all presets
    unit = BlockFma._of(native.unit)
    if given.operands is not None:
        unit = replace(unit, a=_format(given.operands[0]), b=_format(given.operands[1]))
    return whole, unit, native.rounding


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Accumulator:
    if not _is_text(text):
        return Accumulator(text)
    native = _core.parse_accumulator(text, 0, 0)
    chunked = native.scheme == "chunked"
    return Accumulator(
        Format._of(native.format),
        native.scheme,
        product="exact" if native.exact_products else _format_of(native.product),
        inner=_format_of(native.inner),
        chunk=native.chunk if chunked else DEFAULT_CHUNK,
        unit=None if native.unit is None else BlockFma._of(native.unit),
        rounding=native.rounding,
        overflow=native.overflow,
        random_bits=native.random_bits,
        variant=native.variant,
    )


def _is_text(text: str) -> bool:
    """Whether there is more than one word, so that it is no format and no preset's name."""
    return re.fullmatch(r"[^ (]*(\([^)]*\)[^ ]*)?", text) is None


def _format_or_text(name: str) -> Format:
    """The format of one word, which might have been meant as a text or a preset."""
    try:
        return _format(name)
    except ValueError as error:
        if not str(error).startswith("unknown format"):
            raise
        raise ValueError(
            f"{error}; an accumulator may also be a text such as 'e4m3 kahan', or a preset such as "
            "'h100-fp8' (see cpd.presets)"
        ) from None


def _format_of(native: _core.Format | None) -> Format | None:
    return None if native is None else Format._of(native)


@functools.lru_cache(maxsize=256)
def _check_unit(key: _UnitKey) -> None:
    _core.Accumulator(
        format=_format(key.sum)._native,
        scheme="block_fma",
        rounding=_core.RoundingOptions("nearest_even", "ieee", 0, 0, 24, "A"),
        product=None,
        exact_products=False,
        inner=None,
        chunk=DEFAULT_CHUNK,
        unit=key.native(),
    )


# ---- arguments by plain values -------------------------------------------------------------------


def _name(what: str, value: Any) -> str | None:
    """A format by its text."""
    return None if value is None else format_text(what, value)


def _names(operands: Any) -> tuple[str, str] | None:
    if operands is None:
        return None
    if not isinstance(operands, (tuple, list)) or len(operands) != 2:
        raise TypeError(f"operands must be a pair of formats, got {operands!r}")
    first, second = _name("operands", operands[0]), _name("operands", operands[1])
    if first is None or second is None:
        raise TypeError(f"operands must be a pair of formats, got {operands!r}")
    return first, second


def _text(what: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} must be a str, got {type(value).__name__}")
    return value


def _unit_key(unit: Any) -> tuple[Any, ...] | None:
    if unit is not None and not isinstance(unit, BlockFma):
        raise TypeError(f"unit must be a cpd.BlockFma, got {type(unit).__name__}")
    return None if unit is None else unit._key()


def _with_numbers(acc: Accumulator, seed: Number, stream: Number) -> Accumulator:
    made = object.__new__(Accumulator)
    for name in Accumulator.__dataclass_fields__:
        object.__setattr__(made, name, getattr(acc, name))
    object.__setattr__(made, "seed", plain_number("seed", seed))
    object.__setattr__(made, "stream", plain_number("stream", stream))
    return made


def _int32(name: str, value: Any) -> int:
    return _ranged(name, value, 31)


def _count(name: str, value: Any) -> int:
    """A number of terms."""
    count = _int64(name, value)
    if not 0 <= count < 2**58:  # a few draws each are still an int64
        raise ValueError(f"{name} must be 0…2^58 - 1, got {count}")
    return count


def _int64(name: str, value: Any) -> int:
    return _ranged(name, value, 63)


def _ranged(name: str, value: Any, bits: int) -> int:
    number = integer(name, value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError(f"{name} must fit in {bits + 1} bits, got {number}")
    return number
