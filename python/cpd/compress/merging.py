# SPDX-License-Identifier: Apache-2.0
"""Merges what codecs kept of one job's ranks for a job with another number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cpd.numeric.shown import shown

_RESIDUALS = ("feedback", "one_bit", "top_k")
"""The codecs that keep errors of a layer's values, which later sums make good."""


class Kept(NamedTuple):
    """What is kept of one layer, as the native object returns it."""

    rank: int
    number: int
    stage: str
    codec: str
    size: int
    values: npt.NDArray[np.float32]


def merged(kept: Sequence[Kept], old: int, world: int, average: bool) -> Iterator[Kept]:
    """The contributions' residuals of `world` ranks, from all that `old` ranks kept: the sums that
    `States.merge` describes. Raises ValueError where something kept is not an error of a sum."""
    factor = world / old if average else 1.0
    by_layer: dict[int, list[Kept]] = defaultdict(list)
    for one in sorted(kept, key=lambda one: (one.number, one.stage, one.rank)):
        by_layer[one.number].append(one)
    for number, layers in by_layer.items():
        size, codec = _common(number, layers)
        owed: dict[int, npt.NDArray[np.float64]] = {}
        for one in layers:
            if one.stage == "contribution":
                to = owed.setdefault(one.rank % world, np.zeros(size))
                to += one.values
        # rank r owns slice (r - number) mod old; virtual ranks keep the whole layer as rank 0's
        slices = {(one.rank - number) % old: one.values for one in layers if one.stage == "result"}
        results = [slices[index] for index in sorted(slices)]
        if results:
            whole = np.concatenate(results)
            _check_size(number, len(whole), size)
            owed.setdefault(0, np.zeros(size))
            owed[0] += whole
        for rank, total in sorted(owed.items()):
            yield Kept(rank, number, "contribution", codec, size, (total * factor).astype("f4"))


def _common(number: int, layers: Sequence[Kept]) -> tuple[int, str]:
    """The size and the codec of a layer on all ranks."""
    for one in layers:
        if one.codec.split(" ", 1)[0] not in _RESIDUALS:
            raise ValueError(
                f"layer {number} cannot be merged: what {shown(one.codec)} keeps of it is no error "
                "that is owed to the sum; reset() the layer"
            )
    found = {(one.size, one.codec) for one in layers if one.stage == "contribution"}
    if len(found) != 1:
        raise ValueError(
            f"layer {number} cannot be merged: all ranks must keep it by one codec with one size, "
            f"got {shown(sorted(found))}"
        )
    return found.pop()


def _check_size(number: int, kept: int, size: int) -> None:
    if kept != size:
        raise ValueError(
            f"layer {number} cannot be merged: owners kept {kept} of its {size} results' errors; "
            "reset() it on all ranks"
        )
