# SPDX-License-Identifier: Apache-2.0
"""A program that reduces gradients over ranks. A type checker checks it, and it also runs."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import cpd
from cpd.comm import Communicator, ReduceReport, TensorReport, Traffic

Array = npt.NDArray[Any]


def reduces() -> None:
    spec = cpd.Reduce("feedback int4", exchange="gather", group_size=4, average=True)
    assert_type(spec.codec, cpd.Codec)
    assert_type(spec.format, cpd.Format | cpd.Scaled | None)
    assert_type(spec.accumulator, cpd.Accumulator)
    assert_type(spec.group_size, int | None)
    assert_type(spec.average, bool)
    assert_type(spec.replace(order="tree"), cpd.Reduce)
    schedule = cpd.Schedule(spec, exempt=["*bias"], exempt_spec="fp32")
    assert_type(schedule.spec_of("bias", 0), cpd.Reduce)
    ranks = [[torch.ones(8)] for _ in range(8)]
    states = cpd.compress.States()
    assert_type(cpd.simulate_all_reduce(ranks, spec, states=states), list[Tensor])
    arrays = [[np.ones(8, np.float32)] for _ in range(8)]
    sums, reports = cpd.simulate_all_reduce(arrays, "e5m2 aps", report=True)
    assert_type(sums, list[Array])
    assert_type(reports, list[TensorReport])
    assert_type(reports[0].overflowed, int)


def runs_ranks() -> None:
    def step(comm: Communicator) -> list[Tensor]:
        sums, report = comm.all_reduce([torch.ones(4)], "e4m3", report=True)
        assert_type(report, ReduceReport)
        assert_type(report.traffic, Traffic)
        assert_type(comm.all_reduce([np.ones(4, np.float32)], "e4m3"), list[Array])
        return sums

    with cpd.comm.local(2, seed=3) as group:
        assert_type(group, cpd.comm.LocalGroup)
        group.run(step)


def runs_nodes() -> None:
    model = nn.Linear(4, 2)
    nodes = cpd.VirtualNodes(model, 4, "e5m2 aps")
    assert_type(nodes.report, dict[str, TensorReport])


def encodes() -> None:
    packet = cpd.Codec("top_k 0.5").encode(torch.ones(4))
    assert_type(packet.values, Tensor)
    assert_type(cpd.compress.Packet.from_bytes(packet.data).values, Array)
    assert_type(packet.bits_a_value, float)


def studies() -> None:
    ranks = [[np.ones(8, np.float32)] for _ in range(4)]
    found = cpd.study.roundoff(ranks, "e5m2", [1, 2])
    assert_type(found, dict[int, cpd.study.Roundoff])
    machine = cpd.study.Machine("ec2-p2")
    assert_type(machine.alpha, float)
    assert_type(cpd.study.cost("e5m2", 4, [8]).bytes_sent, int)
    assert_type(cpd.study.step_time("resnet50", machine, 8), cpd.study.StepTime)
    choices = cpd.study.recommend(ranks, "e5m2 order=ring", [1, 2], machine)
    assert_type(choices.fastest, cpd.study.Choice)


def mistakes() -> None:
    """Each line misuses the package; a type checker must report the error in its comment."""
    ranks = [[torch.ones(8)] for _ in range(8)]
    cpd.simulate_all_reduce(ranks)  # type: ignore[call-overload]
    cpd.simulate_all_reduce(ranks, "e5m2", seeds=3)  # type: ignore[call-overload]
    cpd.simulate_all_reduce([torch.ones(8)], 3)  # type: ignore[call-overload]
    cpd.Reduce("e4m3", group_size="4")  # type: ignore[arg-type]
    cpd.Reduce("e4m3", seed=3)  # type: ignore[call-arg]
    cpd.comm.local("2")  # type: ignore[arg-type]
    cpd.comm.nccl_id()  # type: ignore[attr-defined]
    cpd.study.recommend(ranks, "e5m2", [1], alpha=1e-5)  # type: ignore[call-arg]
    cpd.study.measured_cost(ranks, "e5m2")  # type: ignore[attr-defined]
    cpd.VirtualNodes(nn.Linear(4, 2), world_size=4)  # type: ignore[call-arg]


if __name__ == "__main__":
    reduces()
    runs_ranks()
    runs_nodes()
    encodes()
    studies()
