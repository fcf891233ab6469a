# SPDX-License-Identifier: Apache-2.0
"""Makes Hadamard transforms from their texts: `transform_of`."""

from __future__ import annotations

from typing import Any

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.spec import Spec


class Hadamard(Spec):
    """A Hadamard transform, made from its text.

    The class was public in version 0.7, and pickles of that version name it by this module.
    """

    size: int
    signs: str
    bf16: bool
    _held: _core.Hadamard

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._share(parsed_hadamard(state["text"]))


def transform_of(transform: Any) -> Hadamard:
    """Returns the transform of a text, or `transform` itself if it is a `Hadamard`.

    Raises ValueError for an invalid text, and TypeError for a value of another type.
    """
    if isinstance(transform, str):
        return parsed_hadamard(transform)
    if isinstance(transform, Hadamard):
        return transform
    raise TypeError(
        f'transform must be a text such as "hadamard16:te", got {type(transform).__name__}'
    )


def linear_text(text: str) -> str:
    """Returns a transform's text without `:bf16` (the rounding of results), for derivatives."""
    return text.removesuffix(":bf16")


# ---- by plain values: constants to torch.compile -------------------------------------------------


@constant
def parsed_hadamard(text: str) -> Hadamard:
    """Returns the transform of a text."""
    return Hadamard._of(_core.Hadamard.parse(text))
