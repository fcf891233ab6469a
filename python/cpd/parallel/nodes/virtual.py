# SPDX-License-Identifier: Apache-2.0
"""Nodes that are all in this process."""

from collections.abc import Sequence

from cpd.comm.schedule import Schedule
from cpd.comm.virtual import LayerReport
from cpd.parallel.nodes.ranks import Tensors


class VirtualRanks:
    """All nodes in this process."""

    def __init__(self, nodes: int) -> None:
        if nodes < 1:
            raise ValueError(f"nodes must be at least 1, got {nodes}")
        self.world = nodes
        self.mine = range(nodes)

    def all_reduce(
        self, schedule: Schedule, names: Sequence[str], gradients: list[Tensors], step: int
    ) -> tuple[Tensors, list[LayerReport]]:
        return schedule.simulate_all_reduce(names, gradients, step=step, report=True)

    def gather(self, tensors: list[Tensors]) -> list[Tensors]:
        return tensors

    def gather_bytes(self, data: list[bytes]) -> list[bytes]:
        return data
