# SPDX-License-Identifier: Apache-2.0
"""One Hadamard transform: `Hadamard`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cpd import _core
from cpd.numeric.checked import checked
from cpd.numeric.compiling import constant
from cpd.numeric.formats import flag
from cpd.numeric.numbers import int32, integer
from cpd.numeric.spec import Spec, named_word


@functools.partial(checked, own=("signs",))
@dataclass(frozen=True, init=False, eq=False)
class Hadamard(Spec):
    """A Hadamard transform of groups of `size` neighboring values: x' = 1/√size · H · diag(s) · x.

    H is Sylvester's matrix: entry (i, j) is −1 to the number of ones that i and j share in binary.
    The inverse transform is the transpose, 1/√size · diag(s) · H.

    Args:
        size: a power of two, 2…128.
        signs: an int; if bit i is set, input i is multiplied by −1. Or the same as a text
            (`"0x…"`), None for no such input, or `"te"`: Transformer Engine's of 16 inputs.
        bf16: whether to compute in binary64 and round once into bf16, to nearest-even; an exact
            zero is +0. For bf16 inputs and size 16 that is the exact sum rounded once, if the
            exponents of a group's nonzero values differ by at most 41: Transformer Engine's random
            Hadamard transform.

    The roundings, in binary32, have this order. First the signs. Then log2(size) stages at
    distances d = 1, 2, 4, …: of values i and i + d (bit d of i clear) the first becomes their sum,
    the second the first minus the second. Then the multiplication by 1/√size, rounded to nearest (a
    power of two if log2(size) is even). The inverse transform applies the signs only here.

    >>> str(Hadamard(16, "te", bf16=True)), str(Hadamard(32, signs=0b1001))
    ('hadamard16:te:bf16', 'hadamard32:signs=0x9')
    >>> Hadamard.parse("hadamard16:te")
    Hadamard(size=16, signs=55272, bf16=False)
    """

    size: int
    signs: int
    bf16: bool
    text: str = field(init=False, repr=False)
    """The text that str() returns."""
    _held: _core.Hadamard = field(init=False, repr=False, compare=False)
    _reads = {"signs": lambda digits: int(digits, 16)}  # noqa: RUF012 - an annotation would make it a field

    def __init__(self, size: int, signs: int | str | None = None, bf16: bool = False) -> None:
        made = _made(int32("size", size), _signs_text(signs), flag("bf16", bf16))
        self._share(made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._share(parsed_hadamard(state["text"]))

    @classmethod
    def parse(cls, text: str) -> Hadamard:
        """Returns the transform of a text.

        Args:
            text: `hadamardN`, then its options: `"hadamard16:te"`, `"hadamard32:signs=0x9:bf16"`.

        Returns:
            The transform.

        Raises:
            ValueError: for an invalid text.
            TypeError: for an argument that is not a text.
        """
        return parsed_hadamard(named_word("text", text))


HadamardLike: TypeAlias = "Hadamard | str"
"""A `Hadamard`, or its text."""


def hadamard_spec(transform: HadamardLike) -> Hadamard:
    """`transform` itself, or the one of its text."""
    if isinstance(transform, Hadamard):
        return transform
    if isinstance(transform, str):
        return parsed_hadamard(transform)
    raise TypeError(f"transform must be a cpd.Hadamard or its text, got {type(transform).__name__}")


def linear_text(text: str) -> str:
    """The text of the transform without the rounding into bf16, for derivatives."""
    return text.removesuffix(":bf16")


def _signs_text(signs: Any) -> str:
    if signs is None or isinstance(signs, str):
        return signs or ""
    mask = integer("signs", signs)
    if mask < 0:
        raise ValueError(f"signs must not be negative, got {mask}")
    return hex(mask)


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def parsed_hadamard(text: str) -> Hadamard:
    """The transform of which str() gave `text`."""
    return Hadamard._of(_core.Hadamard.parse(text))


@constant
def _made(size: int, signs: str, bf16: bool) -> Hadamard:
    return Hadamard._of(_core.Hadamard(size, signs, bf16))
