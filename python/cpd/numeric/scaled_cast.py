# SPDX-License-Identifier: Apache-2.0
"""One cast to a scaled format: `ScaledCast`; and what an operand of a product may be cast to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cpd import _core
from cpd.numeric.cast import CastSpec, cast_spec, parsed_cast
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike
from cpd.numeric.numbers import Number, int32
from cpd.numeric.scaled import Scaled, ScaledLike, as_scaled, format_or_scaled, named_scaled
from cpd.numeric.shown import shown
from cpd.numeric.spec import Parsed


@dataclass(frozen=True, init=False, eq=False)
class ScaledCast(Parsed):
    """A cast to a scaled format: the format and how its elements round.

    Immutable, hashable, picklable; seed and stream count as in `CastSpec`.

    Args:
        scaled: a `Scaled` or its text.
        rounding: as for `cpd.cast`; default `nearest_even`.
        overflow: as for `cpd.cast`; default None: `saturate`.
        seed: as for `cpd.cast`; default 0.
        stream: as for `cpd.cast`; default 0.
        random_bits: as for `cpd.cast`; default 24.
        variant: as for `cpd.cast`; default "A".
        factor: above 0, at most 1 (default): scales follow from the values, elements from factor *
            value, so that none saturates (3/4 with rule `floor`). A product is multiplied by what
            its operands' factors leave out, fl(1 / (fa * fb)).
        history: the number of past steps whose largest magnitudes determine the next scale (delayed
            scaling, as in TransformerEngine); default 0: the tensor itself does. Only for one fp32
            scale a tensor.
        amax: with a history, the magnitude of it that is used: `max` (default), the largest, or
            `most_recent`.

    Raises:
        ValueError: for an invalid option, or options that do not fit.
        TypeError: for an argument of another type.

    >>> ScaledCast("nvfp4", "stochastic", random_bits=8)
    cpd.ScaledCast('nvfp4 rounding=stochastic random_bits=8')
    >>> operand_spec("mxfp4 rounding=stochastic factor=0.75").factor
    0.75
    """

    scaled: Scaled
    cast: CastSpec
    factor: float
    history: int
    amax: str
    text: str = field(init=False)
    """The text of the cast: `operand_spec(text)` is the cast but for seed and stream."""
    _held: _core.ScaledCast = field(init=False, repr=False, compare=False)
    _SPECS = {"scaled": named_scaled, "cast": parsed_cast}  # noqa: RUF012 - an annotation would make it a field
    _NUMBERS = ("seed", "stream")

    def __init__(
        self,
        scaled: ScaledLike,
        rounding: str = "nearest_even",
        overflow: str | None = None,
        *,
        seed: Number = 0,
        stream: Number = 0,
        random_bits: int = 24,
        variant: str = "A",
        factor: float = 1.0,
        history: int = 0,
        amax: str = "max",
    ) -> None:
        q = as_scaled(scaled)
        how = CastSpec(
            q.element,
            rounding,
            "saturate" if overflow is None else overflow,
            seed=seed,
            stream=stream,
            random_bits=random_bits,
            variant=variant,
        )
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            raise TypeError(f"factor must be a number, got {type(factor).__name__}")
        if amax not in _core.AMAX:
            raise ValueError(f"amax must be one of {', '.join(_core.AMAX)}, got {shown(amax)}")
        steps = int32("history", history)
        options = f"rounding={how.rounding} overflow={how.overflow} variant={how.variant}"
        drawn = f"random_bits={how.random_bits} factor={float(factor)!r}"
        text = f"{q.text} {options} {drawn} history={steps} amax={amax}"
        self._share(named_scaled_cast(text), cast=how)

    def _share(self, like: Any, **fields: Any) -> None:
        numbers = {name: fields.pop(name) for name in self._NUMBERS if name in fields}
        if numbers:
            fields["cast"] = with_numbers(like.cast, **numbers)
        super()._share(like, **fields)

    @property
    def format(self) -> Format:
        """The elements' format."""
        return self.scaled.element

    @property
    def rounding(self) -> str:
        """The options of the elements' rounding."""
        return self.cast.rounding

    @property
    def seed(self) -> Number:
        """That of the elements' random bits."""
        return self.cast.seed

    @property
    def stream(self) -> Number:
        """That of the elements' random bits."""
        return self.cast.stream

    def with_numbers(self, seed: Number, stream: Number) -> ScaledCast:
        """The same with these numbers."""
        made = object.__new__(ScaledCast)
        made._share(self, seed=seed, stream=stream)
        return made

    def __repr__(self) -> str:
        return f"cpd.ScaledCast('{self.text}')"


OperandSpec: TypeAlias = "CastSpec | ScaledCast"
"""The cast of an operand of a product."""
OperandLike: TypeAlias = "OperandSpec | Scaled | FormatLike"
"""The same, or a format, scaled or not, to which is then rounded to nearest-even, or a text."""


def operand_spec(given: OperandLike) -> OperandSpec:
    """Returns the cast of an operand: `given` itself, or the cast that it names.

    >>> operand_spec("e4m3fn rounding=stochastic").text, operand_spec("mxfp8").scaled.block
    ('e4m3fn rounding=stochastic', '32')
    """
    if isinstance(given, (CastSpec, ScaledCast)):
        return given
    if isinstance(given, str):
        return _named(given)
    to = format_or_scaled(given)
    return ScaledCast(to) if isinstance(to, Scaled) else cast_spec(to)


def refuse_e4m3(name: str, given: Any) -> None:
    """Raises ValueError for a text that begins with a bare `e4m3`, which readers take for OCP's."""
    if isinstance(given, str) and given.split()[:1] and given.split()[0].lower() == "e4m3":
        raise ValueError(f"{name}: {_core.E4M3_IS_AMBIGUOUS}")


def operand_text(spec: OperandSpec) -> str:
    """The text of a cast as recipes hold it, in which IEEE-like `e4m3` is `(4,3)`."""
    text = spec.text
    return f"(4,3){text[4:]}" if text.split(" ", 1)[0] == "e4m3" else text


def is_whole(spec: OperandSpec) -> bool:
    """Returns whether the result does not depend on the summed axis.

    It does not for a format without scales, one scale for a tensor, or square blocks, without a
    transform.
    """
    return _is_whole(spec.text)


def draws(spec: OperandSpec) -> bool:
    """Returns whether it rounds stochastically."""
    return spec.rounding == "stochastic"


def with_numbers(spec: CastSpec, seed: Number, stream: Number) -> CastSpec:
    """The same cast with these numbers."""
    options = spec.options
    return CastSpec(
        spec.format,
        spec.rounding,
        spec.overflow,
        seed=seed,
        stream=stream,
        random_bits=options.random_bits,
        variant=options.variant,
    )


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def named_scaled_cast(text: str) -> ScaledCast:
    """The cast to a scaled format of that text."""
    spec = _named(text)
    if not isinstance(spec, ScaledCast):
        raise ValueError(f"{shown(text)} names a format without scales")
    return spec


ScaledCast._parsed = named_scaled_cast


@constant
def _named(text: str) -> OperandSpec:
    held = _core.parse_operand_cast(" ".join(text.split()))
    return CastSpec._of(held) if isinstance(held, _core.CastSpec) else ScaledCast._of(held)


@constant
def _is_whole(text: str) -> bool:
    return _core.is_whole(_core.parse_operand_cast(text))
