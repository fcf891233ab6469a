# SPDX-License-Identifier: Apache-2.0
"""`Ranks`: the nodes of a training, in one process or several, and their exchanges of data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "list[torch.Tensor]"

_BYTES = 9  # the size of an encoded integer


class RanksDiffer(RuntimeError):  # noqa: N818
    """Raised if the weights of the processes differ although they should be equal."""


class Ranks(Protocol):
    """All nodes of a training, and exchanges of their data. This process computes some of them."""

    @property
    def world(self) -> int:
        """The number of nodes in all processes."""

    @property
    def mine(self) -> range:
        """The numbers of the nodes that this process computes."""

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """Returns the float32 tensors of all nodes: result[n][i] is tensor i of node n.

        `tensors` has the tensors of this process's nodes, ascending by the node's number.
        """
        ...

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        """Returns the bytes of all nodes; `data` has the bytes of this process's nodes."""
        ...


def gather_integers(ranks: Ranks, numbers: list[list[int]]) -> list[list[int]]:
    """Returns the integers of all nodes: result[n][i] is integer i of node n.

    `numbers` has the integers of this process's nodes, 0 to 2^72 - 1, ascending by the node's
    number.
    """
    packed = [b"".join(n.to_bytes(_BYTES, "little") for n in row) for row in numbers]
    return [
        [int.from_bytes(row[i : i + _BYTES], "little") for i in range(0, len(row), _BYTES)]
        for row in ranks.gather_bytes(packed)
    ]
