# SPDX-License-Identifier: Apache-2.0
"""How an ordered sum is kept: see `Accumulator`."""

from __future__ import annotations

from dataclasses import dataclass

from cpd import _core
from cpd.formats import Format, FormatLike, format
from cpd.tensors import Number, Options

SCHEMES = ("sequential", "kahan")


@dataclass(frozen=True, init=False)
class Accumulator:
    """An ordered sum: its format, its scheme, and how each of its operations is rounded.

    Args:
        format: of the running sum (a `Format` or its name).
        scheme: `sequential`, s = round(s + x); or `kahan`, y = x - c; t = s + y; c = (t - s) - y;
            s = t, each operation one exact result rounded once. Either starts from the first term,
            rounded; where s becomes infinite or NaN, Kahan's c is +0 from there on.
        rounding, overflow, random_bits, variant: as in `cpd.cast`, for each operation.
        seed, stream: of stochastic rounding; ints or one-element integer tensors.

    Raises ValueError or TypeError for anything else.

    >>> Accumulator("e4m3", "kahan").scheme
    'kahan'
    """

    format: Format
    scheme: str
    rounding: str
    overflow: str
    seed: Number
    stream: Number
    random_bits: int
    variant: str

    def __init__(
        self,
        format: FormatLike,
        scheme: str = "sequential",
        *,
        rounding: str = "nearest_even",
        overflow: str = "ieee",
        seed: Number = 0,
        stream: Number = 0,
        random_bits: int = 24,
        variant: str = "A",
    ) -> None:
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
        Options(rounding, overflow, seed, stream, random_bits, variant).check()
        object.__setattr__(self, "format", _format(format))
        object.__setattr__(self, "scheme", scheme)
        object.__setattr__(self, "rounding", rounding)
        object.__setattr__(self, "overflow", overflow)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "stream", stream)
        object.__setattr__(self, "random_bits", random_bits)
        object.__setattr__(self, "variant", variant)

    @property
    def options(self) -> Options:
        """How each operation is rounded."""
        return Options(
            self.rounding, self.overflow, self.seed, self.stream, self.random_bits, self.variant
        )

    def _native(self) -> _core.Accumulator:
        return _core.Accumulator(self.format._native, self.scheme, self.options.native())


AccumulatorLike = Accumulator | Format | str
"""An `Accumulator`, or a format, whose plain sequential sum is then meant."""

_format = format  # the parameter of the same name hides it


def accumulator(acc: AccumulatorLike) -> Accumulator:
    """`acc` itself, or the sequential accumulator of a format."""
    return acc if isinstance(acc, Accumulator) else Accumulator(acc)
