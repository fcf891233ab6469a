# SPDX-License-Identifier: Apache-2.0
"""The exchanges of a training's nodes, in one process or in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "list[torch.Tensor]"

_BYTES = 9  # of an integer


class RanksDiffer(RuntimeError):  # noqa: N818
    """Processes that should have the same weights do not."""


class Ranks(Protocol):
    """The nodes of a training: `world` in all, of which this process computes `mine`."""

    @property
    def world(self) -> int:
        """The number of nodes."""

    @property
    def mine(self) -> range:
        """The numbers of the nodes in this process."""

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """Returns [node][tensor] of all nodes, from [my node][tensor]; fp32."""
        ...

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        """Returns all nodes' bytes, from the bytes of this process's nodes."""
        ...


def gather_integers(ranks: Ranks, numbers: list[list[int]]) -> list[list[int]]:
    """[node][i] of all nodes, from [my node][i]: integers from 0 to 2^72 - 1."""
    packed = [b"".join(n.to_bytes(_BYTES, "little") for n in row) for row in numbers]
    return [
        [int.from_bytes(row[i : i + _BYTES], "little") for i in range(0, len(row), _BYTES)]
        for row in ranks.gather_bytes(packed)
    ]
