# SPDX-License-Identifier: Apache-2.0
"""One cast: `CastSpec`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, as_format, named
from cpd.numeric.numbers import Number, integer, plain_number
from cpd.numeric.options import Options, cast_text
from cpd.numeric.spec import Parsed


@dataclass(frozen=True, init=False, eq=False)
class CastSpec(Parsed):
    """A cast: the format and how it rounds; the arguments are those of `cpd.cast`.

    Equal and hashable as an `Accumulator` is: `seed` and `stream` count by their values, and do not
    enter the hash.

    Args:
        format: the format, or its text.
        rounding: as for `cpd.cast`; default "nearest_even".
        overflow: as for `cpd.cast`; default "ieee".
        seed: as for `cpd.cast`; default 0.
        stream: as for `cpd.cast`; default 0.
        random_bits: as for `cpd.cast`; default 24.
        variant: as for `cpd.cast`; default "A".

    Raises:
        ValueError: for an invalid option.
        TypeError: for an argument of another type.

    >>> CastSpec("e5m2", "stochastic", random_bits=8).format
    cpd.Format('e5m2')
    """

    format: Format
    rounding: str
    overflow: str
    seed: Number
    stream: Number
    random_bits: int
    variant: str
    text: str = field(init=False, repr=False)
    """The text that str() returns; without seed and stream."""
    _held: _core.CastSpec = field(init=False, repr=False, compare=False)
    _SPECS = {"format": named}  # noqa: RUF012 - an annotation would make it a field
    _NUMBERS = ("seed", "stream")

    def __init__(
        self,
        format: FormatLike,
        rounding: str = "nearest_even",
        overflow: str = "ieee",
        *,
        seed: Number = 0,
        stream: Number = 0,
        random_bits: int = 24,
        variant: str = "A",
    ) -> None:
        Options(rounding, overflow, seed, stream, random_bits, variant).check()
        made = parsed_cast(
            cast_text(
                as_format(format).name,
                rounding,
                overflow,
                integer("random_bits", random_bits),
                variant,
            )
        )
        self._share(made, seed=plain_number("seed", seed), stream=plain_number("stream", stream))

    @property
    def options(self) -> Options:
        """The options of its rounding."""
        return Options(
            self.rounding, self.overflow, self.seed, self.stream, self.random_bits, self.variant
        )


CastLike: TypeAlias = "CastSpec | FormatLike"
"""A `CastSpec`, or a format, to which is then rounded to nearest-even."""


def cast_spec(cast: CastLike) -> CastSpec:
    """`cast` itself, or the plain cast to a format."""
    return cast if isinstance(cast, CastSpec) else CastSpec(cast)


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def parsed_cast(text: str) -> CastSpec:
    """The cast of which str() gave `text`."""
    return CastSpec._of(_core.CastSpec.parse(text))


CastSpec._parsed = parsed_cast
