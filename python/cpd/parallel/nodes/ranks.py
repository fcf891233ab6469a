# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a training do together, wherever they are."""

from collections.abc import Sequence
from typing import Protocol

import torch

from cpd.comm.schedule import Schedule
from cpd.comm.virtual import LayerReport

Tensors = list[torch.Tensor]

_LIMB = 1 << 24  # integers below it are exact in fp32
_LIMBS = 3


class Ranks(Protocol):
    """The nodes of a training: `world` in all, of which this process computes `mine`."""

    @property
    def world(self) -> int: ...
    @property
    def mine(self) -> range: ...

    def all_reduce(
        self, schedule: Schedule, names: Sequence[str], gradients: list[Tensors], step: int
    ) -> tuple[Tensors, list[LayerReport]]:
        """The sums over all nodes of [my node][layer], and what happened to all nodes' values."""
        ...

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """[node][tensor] of all nodes, from [my node][tensor]; fp32."""
        ...


def gather_integers(ranks: Ranks, numbers: list[list[int]]) -> list[list[int]]:
    """[node][i] of all nodes, from [my node][i]: integers from 0 to 2^72 - 1."""
    limbs = [
        [torch.tensor([float(n >> 24 * i & _LIMB - 1) for i in range(_LIMBS) for n in row])]
        for row in numbers
    ]
    return [
        [sum(int(limb) << 24 * i for i, limb in enumerate(split)) for split in whole.tolist()]
        for whole in (row[0].reshape(_LIMBS, -1).T for row in ranks.gather(limbs))
    ]
