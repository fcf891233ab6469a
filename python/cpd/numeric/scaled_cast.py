# SPDX-License-Identifier: Apache-2.0
"""One cast to a scaled format: `ScaledCast`; and what an operand of a product may be cast to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cpd.numeric.cast import CastSpec, cast_spec, parsed_cast
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike
from cpd.numeric.options import Number, integer, same_number
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled, scaled
from cpd.numeric.shown import shown

_scaled = scaled  # the parameter of the same name hides it

MAX_HISTORY = 1 << 20
AMAX = ("max", "most_recent")


@dataclass(frozen=True, init=False, eq=False)
class ScaledCast:
    """A cast to a scaled format: the format and how its elements round.

    Args:
        scaled: a `Scaled` or its text.
        rounding, seed, stream, random_bits, variant: as for `cpd.cast`.
        overflow: as for `cpd.cast`; None: `saturate`.
        factor: above 0, at most 1: scales follow from the values, elements from factor * value, so
            that none saturates (3/4 with rule `floor`); a product is multiplied by what its
            operands' factors leave out, fl(1 / (fa * fb)).
        history: of how many steps largest magnitudes are kept, of which the scale of the next step
            follows (delayed scaling, as TransformerEngine has it); 0: from the tensor itself. Only
            for one fp32 scale a tensor.
        amax: with a history, which of it: `max`, the largest, or `most_recent`.

    Immutable, hashable, picklable; seed and stream count as in `CastSpec`. Raises ValueError or
    TypeError for what does not exist or does not go together.

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
    """What str() gives: `operand_spec(text)` is the cast but for seed and stream."""

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
        q = _scaled(scaled)
        how = CastSpec(
            q.element,
            rounding,
            "saturate" if overflow is None else overflow,
            seed=seed,
            stream=stream,
            random_bits=random_bits,
            variant=variant,
        )
        _check(q, factor, history, amax)
        values = {
            "scaled": q,
            "cast": how,
            "factor": float(factor),
            "history": integer("history", history),
            "amax": amax,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "text", _text(self))

    @property
    def format(self) -> Format:
        """The elements' format."""
        return self.scaled.element

    @property
    def rounding(self) -> str:
        """How elements round."""
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
        for name, value in vars(self).items():
            object.__setattr__(made, name, value)
        object.__setattr__(made, "cast", with_numbers(self.cast, seed, stream))
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "seed": self.seed, "stream": self.stream}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = named_scaled_cast(state["text"]).with_numbers(state["seed"], state["stream"])
        for name, value in vars(made).items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledCast):
            return NotImplemented
        return (
            self.text == other.text
            and same_number(self.seed, other.seed)
            and same_number(self.stream, other.stream)
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def __copy__(self) -> ScaledCast:
        return self

    def __deepcopy__(self, memo: Any) -> ScaledCast:
        return self

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"cpd.ScaledCast('{self.text}')"


OperandSpec: TypeAlias = "CastSpec | ScaledCast"
"""What an operand of a product is cast to."""
OperandLike: TypeAlias = "OperandSpec | Scaled | FormatLike"
"""The same, or a format, scaled or not, to which is then rounded to nearest-even, or a text."""


def operand_spec(given: OperandLike) -> OperandSpec:
    """What an operand is cast to: `given` itself, or the cast that it names.

    >>> operand_spec("e4m3fn rounding=stochastic").text, operand_spec("mxfp8").scaled.block
    ('e4m3fn rounding=stochastic', '32')
    """
    if isinstance(given, (CastSpec, ScaledCast)):
        return given
    if isinstance(given, str):
        return _named(given)
    to = format_or_scaled(given)
    return ScaledCast(to) if isinstance(to, Scaled) else cast_spec(to)


def is_whole(spec: OperandSpec) -> bool:
    """Whether the result hangs not on the axis that is summed over: a format without scales, one
    scale for a tensor, or square blocks; and no transform."""
    if isinstance(spec, CastSpec):
        return True
    q = spec.scaled
    if q.transform is not None or (q.tensor_scale is not None and q.outer == "row"):
        return False
    rows, _, columns = q.block.partition("x")
    return q.block == "tensor" or (columns != "" and rows == columns)


def draws(spec: OperandSpec) -> bool:
    """Whether it rounds stochastically."""
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


_OPTIONS = ("rounding", "overflow", "random_bits", "variant", "factor", "history", "amax")


def _check(q: Scaled, factor: float, history: int, amax: str) -> None:
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        raise TypeError(f"factor must be a number, got {type(factor).__name__}")
    if not (0 < factor <= 1 and math.isfinite(factor)):
        raise ValueError(f"factor must be above 0 and at most 1, got {factor}")
    number = integer("history", history)
    if not 0 <= number <= MAX_HISTORY:
        raise ValueError(f"history must be 0…2^20 steps, got {number}")
    if amax not in AMAX:
        raise ValueError(f"amax must be one of {', '.join(AMAX)}, got {shown(amax)}")
    whole = q.block == "tensor" and q.tensor_scale is None and q.scale.name == "fp32"
    if number and (not whole or q.transform is not None or factor != 1):
        raise ValueError(
            "a history goes with one fp32 scale a tensor, without transform and factor "
            f"(e4m3fn block=tensor scale=fp32), got {q}"
        )
    if factor != 1 and (q.block == "tensor" or q.tensor_scale is not None):
        raise ValueError(f"a factor goes with one level of blocks, got {q}")


def _text(spec: ScaledCast) -> str:
    how = spec.cast.text.removeprefix(spec.cast.format.name).split()
    words = [spec.scaled.text, *(w for w in how if w != "overflow=saturate")]
    if spec.cast.overflow == "ieee":
        words.append("overflow=ieee")
    if spec.factor != 1:
        words.append(f"factor={spec.factor!r}")
    if spec.history:
        words.append(f"history={spec.history}")
    if spec.amax != "max":
        words.append(f"amax={spec.amax}")
    return " ".join(words)


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def named_scaled_cast(text: str) -> ScaledCast:
    """The cast to a scaled format of that text."""
    spec = _named(text)
    if not isinstance(spec, ScaledCast):
        raise ValueError(f"{shown(text)} names a format without scales")
    return spec


@constant
def _named(text: str) -> OperandSpec:
    words = text.split()
    ours = [w for w in words if w.partition("=")[0] in _OPTIONS]
    format_text = " ".join(w for w in words if w not in ours)
    to = format_or_scaled(format_text)
    if isinstance(to, Format):
        return parsed_cast(" ".join([to.name, *ours]))
    options: dict[str, Any] = {}
    for word in ours:
        name, _, value = word.partition("=")
        if name in options:
            raise ValueError(f"{name} is given twice in {shown(text)}")
        options[name] = _value(name, value, text)
    return ScaledCast(to, **options)


def _value(name: str, value: str, text: str) -> Any:
    """Of an option. Raises ValueError, naming it."""
    if name not in ("random_bits", "history", "factor"):
        return value
    try:
        return float(value) if name == "factor" else int(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {shown(value)} in {shown(text)}") from None
