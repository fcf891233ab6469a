# SPDX-License-Identifier: Apache-2.0
"""`VirtualRanks`: the nodes of a training that are all in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpd.numeric.numbers import at_least

if TYPE_CHECKING:
    from cpd.parallel.nodes.ranks import Tensors


class VirtualRanks:
    """The nodes of a training, all in this process, which need no messages."""

    def __init__(self, nodes: int) -> None:
        at_least(1, "nodes", nodes)
        self.world = nodes
        self.mine = range(nodes)

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        """Returns `tensors` unchanged, because this process has the tensors of all nodes."""
        return tensors

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        """Returns `data` unchanged, because this process has the bytes of all nodes."""
        return data
