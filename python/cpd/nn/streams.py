# SPDX-License-Identifier: Apache-2.0
"""The random streams of a layer that computes several products.

Each product has a position, which is XORed into the lowest 20 bits of the layer's stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cpd.nn.recipe import Recipe, draws
from cpd.numeric.numbers import Number

MAX_POSITIONS = 1 << 20


def stream_of(how: Recipe, stream: Number | None) -> Number | None:
    """Returns the stream that positions are XORed into.

    It is `stream`, or the stream of the recipe's first stochastic rounding; None without such.
    """
    if not how._draws:
        return None
    if stream is None:
        stream = next(_drawing(how)).stream
    if isinstance(stream, Tensor) and stream.dtype == torch.uint64:
        return stream.view(torch.int64)  # for which torch has no XOR
    return stream


def at(stream: Number | None, position: int) -> Number | None:
    """The stream of the product at that position."""
    return None if stream is None else stream ^ position


def _drawing(how: Recipe) -> Iterator[Any]:
    """The sums and casts of a recipe that draw, those of its attention last."""
    yield from filter(draws, (*how._sums, *how._casts))
    if how.attention is not None:
        yield from _drawing(how.attention)
