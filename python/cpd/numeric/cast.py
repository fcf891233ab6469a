# SPDX-License-Identifier: Apache-2.0
"""One cast: `CastSpec`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cpd import _core
from cpd.numeric import native
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, format
from cpd.numeric.options import Number, Options, integer, plain_number, same_number

_format = format  # the parameter of the same name hides it


@dataclass(frozen=True, init=False, eq=False)
class CastSpec:
    """A cast: the format and how it rounds; the arguments are those of `cpd.cast`.

    Equal and hashable as an `Accumulator` is: `seed` and `stream` count by their values, and leave
    the hash as it is.

    >>> CastSpec("e5m2", "stochastic", random_bits=8).format
    cpd.format('e5m2')
    """

    format: Format
    rounding: str
    overflow: str
    seed: Number
    stream: Number
    random_bits: int
    variant: str
    text: str = field(init=False, repr=False)
    """What str() gives; without seed and stream."""
    _held: _core.CastSpec = field(init=False, repr=False, compare=False)

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
        made = _made(
            _format(format).name, rounding, overflow, integer("random_bits", random_bits), variant
        )
        seed, stream = plain_number("seed", seed), plain_number("stream", stream)
        native.share(self, made, seed=seed, stream=stream)

    def __getstate__(self) -> dict[str, Any]:
        return native.arguments(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def options(self) -> Options:
        """How it rounds."""
        return Options(
            self.rounding, self.overflow, self.seed, self.stream, self.random_bits, self.variant
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CastSpec):
            return NotImplemented
        return (
            self.text == other.text
            and same_number(self.seed, other.seed)
            and same_number(self.stream, other.stream)
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def __copy__(self) -> CastSpec:
        return self

    def __deepcopy__(self, memo: Any) -> CastSpec:
        return self

    def __str__(self) -> str:
        return self.text


CastLike: TypeAlias = "CastSpec | FormatLike"
"""A `CastSpec`, or a format, to which is then rounded to nearest-even."""


def cast_spec(cast: CastLike) -> CastSpec:
    """`cast` itself, or the plain cast to a format."""
    return cast if isinstance(cast, CastSpec) else CastSpec(cast)


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def parsed_cast(text: str) -> CastSpec:
    """The cast of which str() gave `text`."""
    return native.showing(CastSpec, _core.CastSpec.parse(text))


@constant
def _made(*given: Any) -> CastSpec:
    """The arguments are those of _core.CastSpec."""
    return native.showing(CastSpec, _core.CastSpec(*given))
