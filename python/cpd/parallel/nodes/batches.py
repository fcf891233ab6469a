# SPDX-License-Identifier: Apache-2.0
"""Divides a batch into equal parts for the nodes, or takes a micro-batch for each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


def split(batch: Any, world: int) -> list[Any]:
    """Returns `world` equal parts of a batch, cut along the first dimension of its tensors.

    A batch is a tensor, or a tuple, list or mapping of batches. A part has the batch's type (a dict
    for a mapping), and its tensors are views. Raises TypeError for any other type, and ValueError
    if the first dimension of a tensor is not a positive multiple of `world`.
    """
    if isinstance(batch, torch.Tensor):
        if batch.ndim == 0 or len(batch) == 0 or len(batch) % world != 0:
            raise ValueError(
                f"the first dimension of a batch must be a multiple of {world} (the nodes), got "
                f"shape {tuple(batch.shape)}; give micro_batches= where nodes have batches of "
                "their own"
            )
        return list(torch.split(batch, len(batch) // world))
    if isinstance(batch, Mapping):
        parts = {key: split(value, world) for key, value in batch.items()}
        return [{key: part[node] for key, part in parts.items()} for node in range(world)]
    if isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence):
        columns = [split(value, world) for value in batch]
        rows = [[column[node] for column in columns] for node in range(world)]
        make = getattr(type(batch), "_make", type(batch))  # a named tuple takes arguments
        return [make(row) for row in rows]
    raise TypeError(
        f"a batch must be a tensor, or a tuple, list or dict of such, got {type(batch).__name__}; "
        "give micro_batches= otherwise"
    )


def first(micro_batches: Iterable[Any], world: int) -> Iterator[Any]:
    """Yields the next `world` micro-batches. Raises ValueError if fewer micro-batches remain."""
    try:
        batches = iter(micro_batches)
    except TypeError:
        raise TypeError(
            f"micro_batches must be iterable, got {type(micro_batches).__name__}"
        ) from None
    for node in range(world):
        try:
            yield next(batches)
        except StopIteration:
            raise ValueError(f"there are {world} nodes but {node} micro_batches") from None
