# SPDX-License-Identifier: Apache-2.0
"""The random streams of a layer that computes several products.

Each product has a position, which is XORed into the lowest 20 bits of the layer's stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch.arguments import check_seed
from cpd.nn.recipe import Recipe, draws
from cpd.numeric.numbers import Number

MAX_POSITIONS = 1 << 20


class Bits(NamedTuple):
    """The random bits of a call that computes several products."""

    seed: Number = 0
    stream: Number = 0
    """The stream that positions are XORed into."""

    @classmethod
    def of(cls, how: Recipe, seed: Number, stream: Number) -> Bits:
        """Returns a call's bits. For stream 0: of the recipe's first stochastic rounding."""
        if not how._draws:
            return cls()
        if not isinstance(stream, Tensor) and stream == 0:
            stream = next(_drawing(how)).stream
        if isinstance(stream, Tensor) and stream.dtype == torch.uint64:
            stream = stream.view(torch.int64)  # for which torch has no XOR
        return cls(seed, stream)

    def at(self, position: int) -> dict[str, Any]:
        """The keywords of the product at that position."""
        return {"seed": self.seed, "stream": self.stream ^ position}


def check_seeds(how: Recipe, seed: Number) -> None:
    """Raises ValueError where a part of a recipe has another seed, and neither is 0."""
    for part in _drawing(how):
        check_seed(part.seed, seed)


def _drawing(how: Recipe) -> Iterator[Any]:
    """The sums and casts of a recipe that draw, those of its attention last."""
    yield from filter(draws, (*how._sums, *how._casts))
    if how.attention is not None:
        yield from _drawing(how.attention)
