# SPDX-License-Identifier: Apache-2.0
"""Nodes that all live in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpd.numeric.numbers import at_least

if TYPE_CHECKING:
    from cpd.parallel.nodes.ranks import Tensors


class VirtualRanks:
    """All nodes in this process."""

    def __init__(self, nodes: int) -> None:
        at_least(1, "nodes", nodes)
        self.world = nodes
        self.mine = range(nodes)

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """Returns `tensors`, which are all nodes'."""
        return tensors

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        """Returns `data`, which is all nodes'."""
        return data
