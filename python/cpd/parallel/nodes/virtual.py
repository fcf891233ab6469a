# SPDX-License-Identifier: Apache-2.0
"""Nodes that are all in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpd.parallel.nodes.ranks import Tensors


class VirtualRanks:
    """All nodes in this process."""

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        self.world = nodes
        self.mine = range(nodes)

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """Returns `tensors`, which are all nodes'."""
        return tensors

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        """Returns `data`, which is all nodes'."""
        return data
