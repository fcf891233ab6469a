# SPDX-License-Identifier: Apache-2.0
"""Runs ranks of DistributedDataParallel for test_virtual_nodes.py; spawn.py starts them."""

from __future__ import annotations

import traceback
from typing import Any

import torch
import torch._dynamo  # which DDP imports: once, before the ranks are forked
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cpd
from cpd.comm import Communicator
from node_cases import (
    DDP_CASES,
    STEPS,
    batch_of,
    classifier,
    loss_of,
    model_of,
    optimizer_of,
    parts_of,
    state_hash,
)


def ddp_hash(comm: Communicator, case: dict[str, Any]) -> str:
    """Returns the hash of this rank's weights and of rank 0's buffers after some steps."""
    torch.manual_seed(0)
    unused = case.get("unused", False)
    model = model_of(case)
    broadcasts = case.get("broadcast_buffers", True)
    ddp = DistributedDataParallel(
        model, find_unused_parameters=unused, broadcast_buffers=broadcasts
    )
    state, hook = cpd.ddp_hook(case["spec"], comm, model=ddp)
    ddp.register_comm_hook(state, hook)
    optimizer = optimizer_of(model)
    torch.manual_seed(comm.rank)
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = batch_of(step, comm.size, comm.rank)
        if unused:
            nn.functional.cross_entropy(ddp(batch[0], comm.rank % 2 == 1), batch[1]).backward()
        elif case.get("accumulated", False):
            with ddp.no_sync():
                loss_of(ddp, (batch[0][:2], batch[1][:2])).backward()
            loss_of(ddp, (batch[0][2:], batch[1][2:])).backward()
        else:
            *accumulated, last = parts_of(batch, case.get("calls", 1))
            for part in accumulated:
                with ddp.no_sync():
                    loss_of(ddp, part).backward()
            loss_of(ddp, last).backward()
        optimizer.step()
    state.close()
    return state_hash(model)


def traffic_of(comm: Communicator) -> str:
    """Returns the bytes that the DDP hook sent in each of two backward passes, as a text."""
    ddp = DistributedDataParallel(classifier())
    state, hook = cpd.ddp_hook(cpd.Reduce("e4m3"), comm, model=ddp)
    ddp.register_comm_hook(state, hook)
    assert state.traffic is None
    told = []
    for step in range(2):
        loss_of(ddp, batch_of(step, comm.size, comm.rank)).backward()
        assert state.traffic.seconds > 0
        told.append(f"step {state.traffic.step}: {state.traffic.bytes_sent} bytes")
    state.close()
    return ", ".join(told)


def run_ranks(comm: Communicator) -> dict[str, str]:
    """Returns, for each case, the hash of this rank's results, or the error text."""
    torch.set_num_threads(1)
    told = {"traffic": traffic_of(comm)}
    for name, case in DDP_CASES.items():
        try:
            told[name] = ddp_hash(comm, case)
        except Exception:
            told[name] = traceback.format_exc()
    return told
