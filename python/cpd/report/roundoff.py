# SPDX-License-Identifier: Apache-2.0
"""Round-off by group size: `cpd.study.roundoff` and the steps that each group size costs."""

from collections.abc import Sequence

import torch

import cpd
from cpd.report.results import RoundoffRow

DEFAULT_GROUP_SIZES = (4, 8, 16, 32, 64, 256)


def group_sizes_for(nodes: int) -> list[int]:
    """The default group sizes below `nodes`, and all nodes as one group."""
    return [size for size in DEFAULT_GROUP_SIZES if size < nodes] + [nodes]


def check_group_sizes(sizes: Sequence[int], nodes: int) -> None:
    for size in sizes:
        if not 1 <= size <= nodes:
            raise ValueError(f"group sizes must be 1…{nodes} (the nodes), got {size}")


def hierarchical_steps(nodes: int, group_size: int) -> int:
    """Steps of the hierarchical all-reduce of p nodes in groups of k: 4(k - 1) + 2(p/k - 1).

    A short last group counts as one. k = p means no groups: a ring of all, 2(p - 1).
    """
    if group_size == nodes:
        return 2 * (nodes - 1)
    groups = -(-nodes // group_size)
    return 4 * (group_size - 1) + 2 * (groups - 1)


def measure_roundoff(
    per_rank: Sequence[Sequence[torch.Tensor]], spec: cpd.ReduceSpec, sizes: Sequence[int]
) -> list[RoundoffRow]:
    """One row for each group size, all layers together."""
    table = cpd.study.roundoff(per_rank, spec, group_sizes=list(sizes))
    return [
        RoundoffRow(
            group_size=size,
            error=float(measured.error),
            relative_rms=float(measured.relative_rms),
            count=int(measured.count),
            zero_references=int(measured.zero_references),
            non_finite=int(measured.non_finite),
            steps=hierarchical_steps(len(per_rank), size),
        )
        for size, measured in table.items()
    ]
