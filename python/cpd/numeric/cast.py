# SPDX-License-Identifier: Apache-2.0
"""Defines `Cast`: a format, scaled or not, and the rounding of values to it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeAlias

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, format_text
from cpd.numeric.numbers import Number, key_of, plain_number
from cpd.numeric.scaled import Scaled, element_format, format_or_scaled
from cpd.numeric.shown import shown
from cpd.numeric.spec import Spec, made


class Cast(Spec, native=_core.CastSpec):
    """A rounding to a format or a scaled format, with an optional history for its scale.

    Args:
        format: the text of a cast, or a `Cast`; keywords replace its options. Or the format that
            values are rounded to: a `Format`, a `Scaled`, or what `Format` takes. A text is a
            format or a scaled format, followed by a rounding and the options below, in any order:
            `e4m3fn`, `e5m2 stochastic random_bits=8`, `mxfp8 rule=rceil rounding=up`.
        rounding: `nearest_even` (default; ties to the even code), `nearest_away`, `toward_zero`,
            `up`, `down`, `to_odd` or `stochastic`. A text may give the name without `rounding=`.
        overflow: the result for a value beyond the format's range. `ieee`: Inf, or NaN in formats
            without Inf, or the largest finite value in formats without both. A rounding toward zero
            for the value's sign gives the largest finite value. `saturate`: always the largest
            finite value. Default: `saturate` for scaled formats, else `ieee`.
        random_bits: for stochastic rounding: the number of random bits N, 1 to 24 (default). Each
            rounding uses one random integer R in [0, 2^N).
        variant: for stochastic rounding: the rule of IEEE P3109 that decides from R whether a value
            is rounded away from zero. f in [0, 1) is the value's distance from its neighbor toward
            zero, as a fraction of the gap between its neighbors. A value is rounded away from zero
            if the inequality holds. `A` (default): ⌊f · 2^N⌋ + R ≥ 2^N. `B`: ⌊f · 2^(N + 1)⌋ + 2 R
            + 1 ≥ 2^(N + 1). `C`: f · 2^N, rounded to nearest-even, + R ≥ 2^N.
        factor: a number in (0, 1]; default 1. Scales are computed from the values, but elements
            from factor * value. With rule `floor`, a factor of 3/4 prevents saturation. A product
            is multiplied by 1 / (fa * fb), rounded to fp32, to undo the factors fa and fb of its
            operands. Only for scaled formats with one level of blocks.
        history: the number of past steps whose largest magnitudes determine the next scale (delayed
            scaling, as in TransformerEngine). Default 0: the tensor itself determines its scale.
            Only for formats with one fp32 scale for the whole tensor.
        amax: the magnitude of the history that determines the scale: `max` (default), the largest
            magnitude of all its steps, or `most_recent`, the magnitude of the last step.

    A factor and a history apply to operands of products: `cpd.Recipe` supports them, `cpd.cast`
    does not. A cast is immutable, hashable and picklable. Two casts are equal if their texts are
    equal.

    Raises:
        ValueError: if the text or an option is invalid, or if an option has no effect.
        TypeError: for an argument of another type.

    >>> c = Cast("e5m2 stochastic random_bits=8")
    >>> c, c.format, c.random_bits
    (cpd.Cast('e5m2 rounding=stochastic random_bits=8'), cpd.Format('e5m2'), 8)
    >>> Cast(c, random_bits=4), Cast("mxfp8", rounding="up").format
    (cpd.Cast('e5m2 rounding=stochastic random_bits=4'), cpd.Scaled('mxfp8'))
    >>> Cast("mxfp4 factor=0.75").factor, Cast("mxfp4").overflow, Cast("e2m1").overflow
    (0.75, 'saturate', 'ieee')
    """

    format: Format | Scaled
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    factor: float
    history: int
    amax: str
    _held: _core.CastSpec
    _options: _core.RoundingOptions
    _drawing: Drawing
    _reads: ClassVar[dict[str, Any]] = {"format": format_or_scaled}

    def __init__(
        self,
        format: CastLike,
        /,
        *,
        rounding: str | None = None,
        overflow: str | None = None,
        random_bits: int | None = None,
        variant: str | None = None,
        factor: float | None = None,
        history: int | None = None,
        amax: str | None = None,
    ) -> None: ...

    @classmethod
    def _head(cls, spec: Any, keys: dict[str, Any]) -> str:
        if isinstance(spec, str):
            return spec
        is_spec = isinstance(spec, (Cast, Format, Scaled))
        return spec.text if is_spec else format_text("a format", spec)

    @classmethod
    def _of(cls, held: _core.CastSpec) -> Cast:
        cast = super()._of(held)
        cast.__dict__["_options"] = _core.RoundingOptions(
            cast.rounding, cast.overflow, cast.random_bits, cast.variant
        )
        cast.__dict__["_drawing"] = Drawing(cast, cast.rounding, cast.random_bits, 0, 0, (0, 0))
        return cast


CastSpec = ScaledCast = Cast
"""The names that pickles of version 0.7 have for `Cast`."""

CastLike: TypeAlias = "Cast | Scaled | FormatLike"
"""A `Cast` or its text, or a format or scaled format, which means rounding to nearest-even."""


def as_cast(given: CastLike) -> Cast:
    """Returns the `Cast` of a text or a format. Returns a `Cast` unchanged.

    >>> as_cast("e4m3fn up").text, as_cast("mxfp8").format.block
    ('e4m3fn rounding=up', '32')
    """
    if isinstance(given, Cast):
        return given
    if isinstance(given, str):
        return named_cast(given)
    if isinstance(given, (Format, Scaled)):
        return named_cast(given.text)
    return named_cast(Cast._head(given, {}))


def scaled_of(cast: Cast | None) -> Scaled | None:
    """Returns the scaled format to which `cast` rounds; None if there is none."""
    return cast.format if cast is not None and isinstance(cast.format, Scaled) else None


def format_of(cast: Cast | None) -> Format | None:
    """Returns the format without scales to which `cast` rounds; None if there is none."""
    return cast.format if cast is not None and isinstance(cast.format, Format) else None


def element_of(cast: Cast) -> Format:
    """Returns the format of a cast, or for a scaled format the format of its elements."""
    return element_format(cast.format)


def rounding_of(how: Any) -> dict[str, Any]:
    """Returns the rounding options of a cast, `Options` or accumulator, as keywords of `Cast`."""
    return {name: getattr(how, name) for name in ("rounding", "overflow", "random_bits", "variant")}


def elements(cast: Cast) -> str:
    """Returns the text of a cast. For a scaled format, the text of its elements' cast."""
    return cast.text if isinstance(cast.format, Format) else _elements(cast.text)


class Drawing(NamedTuple):
    """The rounding of one call: a cast, and the seed and the stream of its random bits."""

    cast: Cast
    rounding: str
    random_bits: int
    seed: Number
    stream: Number
    key: tuple[int, int] | None
    """The seed and the stream as ints for C++. None if the seed or the stream is a tensor."""

    def native(self) -> _core.RoundingOptions:
        """Returns the options of the rounding as the C++ object."""
        return self.cast._options

    def read_key(self) -> tuple[int, int]:
        """Returns the call's seed and stream as ints. Reads the values if they are tensors."""
        return key_of(self.seed, self.stream)


def drawing(cast: Cast, seed: Number, stream: Number) -> Drawing:
    """Returns the rounding of a call: the cast, and the seed and stream of its random bits.

    Raises ValueError or TypeError for an invalid seed or stream.
    """
    if type(seed) is type(stream) is int and not (seed or stream):
        return cast._drawing
    seed, stream = plain_number("seed", seed), plain_number("stream", stream)
    key: tuple[int, int] | None = (0, 0)
    if cast.rounding == "stochastic":
        key = (seed, stream) if isinstance(seed, int) and isinstance(stream, int) else None
    return Drawing(cast, cast.rounding, cast.random_bits, seed, stream, key)


def unscaled(to: CastLike, seed: Number, stream: Number) -> tuple[Format, Drawing]:
    """Returns the format and the rounding of a cast. Raises ValueError for a scaled format."""
    spec = as_cast(to)
    if isinstance(spec.format, Scaled):
        raise ValueError(
            f"{shown(spec.text)} is a scaled format (cpd.Scaled); here one without scales is needed"
        )
    return spec.format, drawing(spec, seed, stream)


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def named_cast(text: str) -> Cast:
    """Returns the cast of a text."""
    return made(Cast, text, ())


@constant
def _elements(text: str) -> str:
    cast = named_cast(text)
    return Cast(element_of(cast), **rounding_of(cast)).text


@constant
def is_whole(text: str) -> bool:
    """Returns whether a cast gives the same values for every axis along which blocks may run.

    True for formats without scales, with one scale for a tensor, and with square blocks. False for
    a format with a transform.
    """
    return named_cast(text)._held.is_whole()


# ---- in recipes, where a bare e4m3 is refused ----------------------------------------------------


def refuse_e4m3(name: str, given: Any) -> None:
    """Raises ValueError for a text that begins with a bare `e4m3`.

    Readers take this name for OCP's E4M3, which CPD calls `e4m3fn`. `name` is the argument's name
    for the error.
    """
    if isinstance(given, str) and given.split()[:1] and given.split()[0].lower() == "e4m3":
        raise ValueError(f"{name}: {_core.E4M3_IS_AMBIGUOUS}")


def operand_text(spec: Cast) -> str:
    """Returns the text of a cast for a recipe, in which `(4,3)` stands for the IEEE-like `e4m3`."""
    text = spec.text
    return f"(4,3){text[4:]}" if text.split(" ", 1)[0] == "e4m3" else text


# ---- pickles of version 0.7 ----------------------------------------------------------------------


class _Options(NamedTuple):
    rounding: str
    overflow: str
    random_bits: int
    variant: str


class Options(_Options):
    """The rounding options of version 0.7. Unpickling them drops their seed and stream."""

    def __new__(cls, *fields: Any) -> Options:
        """Makes options from a pickle's fields, without the third and fourth (seed and stream)."""
        return super().__new__(cls, *fields[:2], *fields[-2:])
