# SPDX-License-Identifier: Apache-2.0
"""Rounds parameters and optimizer state in place. Of a DTensor, rounds this rank's shard."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpd import _core
from cpd.numeric.cast import Cast, Drawing, drawing
from cpd.ops.casts import cast

_RUN = 256
"""The first index that is passed to `_core.random_integers` must be a multiple of this number."""


def round_(x: Tensor, spec: Cast, seed: int = 0, stream: int = 0) -> Tensor:
    """Rounds `x` in place and returns `x`, whose type must represent every value of the format.

    Random bits depend on `seed`, `stream` and an element's index in the whole tensor, even if this
    rank has only a shard of the tensor. Blocks of scaled formats run along the last axis and end at
    the shard's end.
    """
    values = local(x)
    random = None
    if spec.rounding == "stochastic" and values is not x:
        random = torch.from_numpy(_draws(x, drawing(spec, seed, stream))).to(values.device)
    cast(values, spec, out=values, seed=seed, stream=stream, random=random)
    return x


def local(x: Any) -> Tensor:
    """Returns this rank's shard of a DTensor, and any other tensor unchanged."""
    return x.to_local() if hasattr(x, "to_local") else x  # type: ignore[no-any-return]


def _draws(x: Any, drawing: Drawing) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Returns the random integers of the elements in this rank's shard of the DTensor `x`."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, begin = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    integers = np.empty(shape, np.uint32)
    whole = tuple(x.shape)
    cut = [d for d in range(len(whole)) if shape[d] != whole[d]]
    inner = cut[-1] if cut else 0  # a shard's rows are contiguous from this dimension on
    rows = integers.reshape(math.prod(shape[:inner]), -1)
    strides = [math.prod(whole[d + 1 :]) for d in range(len(whole))]
    for row, place in zip(rows, np.ndindex(*shape[:inner]), strict=True):
        at = [*place, *(0,) * (len(whole) - inner)]
        first = sum((a + b) * s for a, b, s in zip(at, begin, strides, strict=True))
        before = first % _RUN
        run = np.empty(before + row.size, np.uint32)
        _core.random_integers(
            drawing.native(), first - before, run, drawing.key or drawing.read_key()
        )
        row[:] = run[before:]
    return integers.view(np.int32)
