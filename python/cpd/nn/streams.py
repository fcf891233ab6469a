# SPDX-License-Identifier: Apache-2.0
"""`Bits`: the random streams of a layer that computes several products.

Each product has a position, which is XORed into the lowest 20 bits of the layer's stream.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd.nn.recipe import Recipe
from cpd.numeric.numbers import Number

MAX_POSITIONS = 1 << 20


class Bits(NamedTuple):
    """Seed and stream of a call that computes several products."""

    seed: Number = 0
    stream: Number = 0
    """The call's stream. A product's stream is the call's stream XOR the product's position."""

    @classmethod
    def of(cls, how: Recipe, seed: Number, stream: Number) -> Bits:
        """Returns the `Bits` of a call; seed and stream are 0 if no rounding is stochastic."""
        if not how._kept.draws:
            return cls()
        if isinstance(stream, Tensor) and stream.dtype == torch.uint64:
            stream = stream.view(torch.int64)  # torch has no XOR of uint64
        return cls(seed, stream)

    def at(self, position: int) -> dict[str, Any]:
        """Returns a dict with the `seed` and the `stream` of the product at `position`."""
        return {"seed": self.seed, "stream": self.stream ^ position}
