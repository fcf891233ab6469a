# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests of optimizers with sharded parameters (test_optim.py)."""

import copy
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cpd
from cpd.comm import Communicator
from cpd.optim import LARS, LossScaler, LowPrecision
from cpd.optim.rounding import round_


def low_precision(**options):
    given = {
        "weight": "bf16",
        "momentum": "e5m6 rounding=stochastic",
        "gradient": "e5m2",
        "seed": 3,
    }

    def make(params):
        return LowPrecision(torch.optim.AdamW(params, lr=0.01), **(given | options))

    return make


CASES = {
    "stochastic": low_precision(update="stochastic"),
    "master": low_precision(update="stochastic", master="fp32"),
    "kahan": low_precision(update="kahan"),
    "second": low_precision(second_moment="e4m3fn 8"),
}


def run(comm: Communicator) -> str:
    try:
        for make in CASES.values():
            _check(make)
        _check_columns()
        _check_lars()
        _check_scaler()
    except BaseException:
        return traceback.format_exc()
    return ""


def _models() -> tuple[nn.Module, nn.Module]:
    """Returns the same model twice, whole and sharded."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(8, 31), nn.ReLU(), nn.Linear(31, 7))
    sharded = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (sharded[0], sharded[2], sharded):
        fully_shard(part, mesh=mesh)
    return whole, sharded


def _give_gradients(whole: nn.Module, sharded: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p, q in zip(whole.parameters(), sharded.parameters(), strict=True):
        p.grad = torch.randn(p.shape, generator=generator)
        q.grad = distribute_tensor(p.grad, q.device_mesh, q.placements)


def _equal(whole: nn.Module, sharded: nn.Module) -> None:
    for p, q in zip(whole.parameters(), sharded.parameters(), strict=True):
        assert torch.equal(p, q.full_tensor())


def _check(make) -> None:
    whole, sharded = _models()
    first, second = make(whole.parameters()), make(sharded.parameters())
    for step in range(4):
        _give_gradients(whole, sharded, step)
        first.step()
        second.step()
        _equal(whole, sharded)
        if step == 1 and isinstance(second, LowPrecision):
            second = _saved_and_loaded(make, sharded, second)


def _saved_and_loaded(make, model: nn.Module, optimizer):
    """Saves an optimizer's state with torch's distributed checkpoints. Returns a new optimizer with
    this state."""
    held = states.get_optimizer_state_dict(model, optimizer)
    weights = [p.detach().clone() for p in model.parameters()]
    made = make(model.parameters())
    states.set_optimizer_state_dict(model, made, held)
    for p, x in zip(model.parameters(), weights, strict=True):
        p.data.copy_(x)
    return made


def _check_columns() -> None:
    """Stochastic rounding of a shard uses the random bits of the shard's values in the tensor.

    This holds for shards along every dimension, which may not be contiguous in the tensor.
    """
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    spec = cpd.Cast("e5m2", rounding="stochastic")
    wanted = cpd.cast(x, "e5m2 stochastic", seed=3, stream=4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for place in (Shard(0), Shard(1), Shard(2), Replicate()):
        made = round_(distribute_tensor(x.clone(), mesh, [place]), spec, 3, 4)
        assert torch.equal(made.full_tensor(), wanted), place


def _check_lars() -> None:
    whole, sharded = _models()
    both = [LARS(model.parameters(), lr=1.0, weight_decay=0.01) for model in (whole, sharded)]
    for step in range(3):
        _give_gradients(whole, sharded, step)
        for optimizer in both:
            optimizer.step()
        for p, q in zip(whole.parameters(), sharded.parameters(), strict=True):
            assert torch.allclose(p, q.full_tensor(), rtol=1e-6)


def _check_scaler() -> None:
    """If one rank has an infinite gradient, all ranks skip the step."""
    whole, sharded = _models()
    scaler, sgd = LossScaler(4.0), torch.optim.SGD(sharded.parameters(), lr=1.0)
    _give_gradients(whole, sharded, 0)
    if dist.get_rank() == 1:
        next(sharded.parameters()).grad.to_local()[0, 0] = float("inf")
    scaler.step(sgd)
    _equal(whole, sharded)
    assert scaler.update() == 2.0
