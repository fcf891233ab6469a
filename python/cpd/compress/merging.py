# SPDX-License-Identifier: Apache-2.0
"""Converts the codec states of a job's ranks to states for another number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cpd.numeric.shown import shown

_RESIDUALS = ("feedback", "one_bit", "top_k")
"""The codecs with error feedback: they store errors, which are added to later values."""


class Kept(NamedTuple):
    """The state that a codec stored for one tensor, as the C++ object returns it."""

    rank: int
    number: int
    stage: str
    codec: str
    size: int
    begin: int | None
    """The index of `values[0]` in the flat tensor. None for a state from version 0.7, which did not
    store this index: `values` is then slice `rank` of the tensor."""
    values: npt.NDArray[np.float32]


def merged(kept: Sequence[Kept], old: int, world: int, average: bool) -> Iterator[Kept]:
    """Yields the residuals of `world` new ranks, computed from the states of `old` ranks.

    `States.merge` defines which residuals are summed. Raises ValueError for a state that is not a
    residual of error feedback, if the states of a tensor differ in its size or codec, and if the
    ranks' slices do not cover a tensor exactly once.
    """
    factor = world / old if average else 1.0
    by_layer: dict[int, list[Kept]] = defaultdict(list)
    for state in sorted(kept, key=lambda state: (state.number, state.stage, state.rank)):
        by_layer[state.number].append(state)
    for number, layers in by_layer.items():
        size, codec = _common(number, layers)
        owed: dict[int, npt.NDArray[np.float64]] = {}
        for state in layers:
            if state.stage == "contribution":
                to = owed.setdefault(state.rank % world, np.zeros(size))
                to += state.values
        results = [state for state in layers if state.stage == "result"]
        if results:
            owed.setdefault(0, np.zeros(size))
            owed[0] += _whole(number, size, results)
        for rank, total in sorted(owed.items()):
            values = (total * factor).astype("f4")
            yield Kept(rank, number, "contribution", codec, size, 0, values)


def _common(number: int, layers: Sequence[Kept]) -> tuple[int, str]:
    """Returns a tensor's size and codec. Raises ValueError unless all ranks agree on them."""
    for state in layers:
        if state.codec.split(" ", 1)[0] not in _RESIDUALS:
            raise ValueError(
                f"tensor {number} cannot be merged: what {shown(state.codec)} stores is not an "
                "error that is owed to the sum; reset() the tensor"
            )
    sizes_and_codecs = {
        (state.size, state.codec) for state in layers if state.stage == "contribution"
    }
    if len(sizes_and_codecs) != 1:
        raise ValueError(
            f"tensor {number} cannot be merged: all ranks must keep it by one codec with one size, "
            f"got {shown(sorted(sizes_and_codecs))}"
        )
    return sizes_and_codecs.pop()


def _whole(number: int, size: int, slices: Sequence[Kept]) -> npt.NDArray[np.float32]:
    """Returns the residual of a tensor's sum, joined from the slices that the ranks store.

    Virtual ranks store the residual as one slice. Raises ValueError unless the slices cover the
    tensor exactly once.
    """
    stored = {state.begin is not None for state in slices}
    if len(stored) != 1:
        raise ValueError(
            f"tensor {number} cannot be merged: version 0.7 stored the states of some ranks, a "
            "later one those of others; reset() it on all ranks"
        )
    ordered = sorted(slices, key=lambda state: state.rank if state.begin is None else state.begin)
    ends = np.cumsum([len(state.values) for state in ordered]).tolist()
    begins = [0, *ends[:-1]]
    if ends[-1] != size or (stored == {True} and [state.begin for state in ordered] != begins):
        raise ValueError(
            f"tensor {number} cannot be merged: owners kept {ends[-1]} of its {size} results' "
            f"errors, in slices from {shown([state.begin for state in ordered])} on; reset() it on "
            "all ranks"
        )
    return np.concatenate([state.values for state in ordered])
