# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of tests in which ranks share a GPU (test_comm_gpu.py)."""

from __future__ import annotations

from typing import Any

import torch

import comm_cases


def on_gpu(layers: list[Any]) -> list[Any]:
    return [torch.from_numpy(layer).cuda() for layer in layers]


def on_cpu(layers: list[Any]) -> list[Any]:
    assert all(layer.is_cuda and layer.dtype == torch.float32 for layer in layers)
    return [layer.cpu().numpy() for layer in layers]


def reduce(comm: Any) -> list[str]:
    """Returns the specs whose sums on GPUs differ from the sums of virtual ranks."""
    wrong = []
    for index in range(0, 24, 3):
        spec, step = comm_cases.spec_at(comm.size, index)
        wanted, _ = comm_cases.virtual(spec, comm.size, (30_000, 5), index, step=step)
        mine = on_gpu(comm_cases.layers_of(comm.rank, (30_000, 5), index))
        if not comm_cases.same(on_cpu(comm.all_reduce(mine, spec, step=step)), wanted):
            wrong.append(repr(spec))
    return wrong
