# SPDX-License-Identifier: Apache-2.0
"""Runs the group-size study on each rank, for every transport (spawn.py starts the ranks)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import cpd
from cpd.comm import Communicator

SHAPES = ((40,), (3, 5), (), (0,), (257,))


def layers_of(rank: int) -> list[Any]:
    rng = np.random.default_rng([9, rank])
    return [np.asarray(rng.normal(size=shape) * 1e-4, np.float32) for shape in SHAPES]


def specs() -> list[cpd.Reduce]:
    return [
        cpd.Reduce("e4m3", aps=True),
        cpd.Reduce("e5m2", aps=True, order="tree", average=True, exchange="gather"),
        cpd.Reduce("e5m2 accumulator='e5m2 kahan' aps order=ring exchange=hierarchical group_size=2"),  # noqa: E501
        cpd.Reduce("e4m3 order=ring exchange=ring loss_scale=4096 rounding=stochastic"),
    ]  # fmt: skip


def group_sizes(world: int) -> list[int]:
    return sorted({1, 2, world - 1, world} & set(range(1, world + 1)))


def as_json(table: dict[int, Any]) -> list[Any]:
    """Returns a table as JSON, without loss: Python's floats survive JSON exactly."""
    return [
        [size, [dataclasses.asdict(one) for one in (row if isinstance(row, list) else [row])]]
        for size, row in table.items()
    ]


def tables(comm: Communicator) -> list[Any]:
    """Returns the round-off tables that all ranks compute together, each from its own layers."""
    layers = layers_of(comm.rank)
    sizes = group_sizes(comm.size)
    return [
        as_json(cpd.study.roundoff(layers, spec, sizes, comm=comm, per_tensor=per_tensor))
        for spec in specs()
        for per_tensor in (False, True)
    ]


def virtual_tables(world: int) -> list[Any]:
    ranks = [layers_of(rank) for rank in range(world)]
    return [
        as_json(cpd.study.roundoff(ranks, spec, group_sizes(world), per_tensor=per_tensor))
        for spec in specs()
        for per_tensor in (False, True)
    ]


def traffic(comm: Communicator, sizes: list[int]) -> list[Any]:
    """Runs an all-reduce by each exchange. Returns this rank's counted and predicted traffic."""
    layers = [np.full(size, 1 / comm.size, np.float32) for size in sizes]
    found = []
    for exchange, group_size in (("owner", None), ("gather", None), ("ring", None),
                                 ("hierarchical", min(2, comm.size))):  # fmt: skip
        spec = cpd.Reduce(
            "e2m1",
            accumulator="e5m4",
            result="e4m3",
            order="ring",
            exchange=exchange,
            group_size=group_size,
        )
        _, report = comm.all_reduce(layers, spec, report=True, step=0)
        moved = report.traffic
        cost = cpd.study.cost(
            spec, comm.size, sizes, comm.rank, chunk=comm.chunk, largest=1 / comm.size
        )
        found.append(
            [
                [moved.bytes_sent, moved.bytes_received, moved.steps],
                [cost.bytes_sent, cost.bytes_received, cost.steps],
            ]
        )
    return found
