# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests of converted models under DDP and FSDP2 (test_convert_torch.py)."""

import copy
import traceback
from itertools import compress

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import cpd
from tensors import normal, same

HOW = cpd.Recipe(
    "native",
    activation="e4m3fn rounding=stochastic random_bits=8",
    weight="e4m3fn",
    gradient="e5m2 rounding=stochastic random_bits=8",
)


class Model(nn.Module):
    """A model that uses one of its layers only in even steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 31), nn.Linear(31, 31), nn.Linear(31, 7)

    def forward(self, x: torch.Tensor, twice: bool = True) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last(self.second(x).relu() if twice else x)


def made(recipe=HOW) -> nn.Module:
    torch.manual_seed(0)
    model = Model()
    cpd.convert(model, recipe)
    return model


def data(step: int, rank: int) -> torch.Tensor:
    return normal(5, 8, seed=10 * step + rank)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [p.grad for p in model.parameters()]


def averaged(step: int, model: nn.Module, twice: bool = True) -> list[torch.Tensor]:
    """Returns the gradients of the converted model without DDP, averaged over ranks as DDP does."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    alone(data(step, dist.get_rank()), twice).square().sum().backward()
    for p in alone.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    return gradients(alone)


def ddp() -> None:
    model = made()
    wrapped = DistributedDataParallel(model)
    rank = dist.get_rank()
    for step in range(3):
        wanted = averaged(step, model)
        wrapped.zero_grad()
        wrapped(data(step, rank)).square().sum().backward()
        assert same(gradients(model), wanted)
    assert model.cpd_clock == 3
    cpd.set_step(wrapped, step=1)
    cpd.restore(wrapped)  # the model within
    assert type(model.first) is nn.Linear


def ddp_unused() -> None:
    model = made()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(2):
        wanted = averaged(step, model, step % 2 == 0)
        wrapped.zero_grad()
        wrapped(data(step, dist.get_rank()), step % 2 == 0).square().sum().backward()
        used = [g is not None for g in gradients(model)]
        assert used == [True, True, step == 0, step == 0, True, True]
        assert same([g for g in gradients(model) if g is not None], list(compress(wanted, used)))


def ddp_accumulates() -> None:
    """Under no_sync each rank has its own gradients. Each call of the converted model adds one to
    the model's step count (`cpd_clock`), as without no_sync."""
    model = made()
    wrapped, rank = DistributedDataParallel(model), dist.get_rank()
    alone = copy.deepcopy(model)
    for step in range(2):
        alone(data(step, rank)).square().sum().backward()
    with wrapped.no_sync():
        for step in range(2):
            wrapped(data(step, rank)).square().sum().backward()
    assert same(gradients(model), gradients(alone))
    assert model.cpd_clock == 2


def ddp_delayed() -> None:
    """With delayed scaling, scales follow from the largest magnitudes of all ranks."""
    model = made("te-delayed")
    wrapped = DistributedDataParallel(model)
    for step in range(3):
        wrapped(data(step, dist.get_rank())).square().sum().backward()
    scale = model.first.cpd_delayed.scale
    everyone = [torch.empty_like(scale) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, scale)
    assert all(same(one, everyone[0]) for one in everyone)
    assert scale.ne(1).all()


def shard(model: nn.Module) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.first, model.last, model):
        fully_shard(part, mesh=mesh)


def fsdp(before: bool) -> None:
    """A model converted before or after sharding by FSDP2 has the bits of a whole model."""
    rank = dist.get_rank()
    whole = made()
    model = made()
    if not before:
        cpd.restore(model)
    shard(model)
    if not before:
        cpd.convert(model, HOW)
    assert isinstance(model.first, FSDPModule)
    assert type(model.first).__name__ == "FSDPEmulatedLinear"
    for step in range(3):
        wanted = averaged(step, whole)
        whole(data(step, rank))  # its clock goes on
        model.zero_grad()
        model(data(step, rank)).square().sum().backward()
        got = [g.full_tensor() for g in gradients(model)]
        assert same(got, wanted)
    assert model.cpd_clock == 3
    cpd.restore(model)
    assert isinstance(model.first, FSDPModule)
    assert type(model.first).__name__ == "FSDPLinear"
    y = model(data(0, rank))
    cpd.restore(whole)
    assert same(y, whole(data(0, rank)))


def fsdp_before() -> None:
    fsdp(before=True)


def fsdp_after() -> None:
    fsdp(before=False)


CASES = (ddp, ddp_unused, ddp_accumulates, ddp_delayed, fsdp_before, fsdp_after)


def run_all(_: object) -> dict[str, str]:
    """Returns the failure of each case by name; the text is empty for a case that passed."""
    torch.set_num_threads(1)
    told = {}
    for case in CASES:
        try:
            case()
            told[case.__name__] = ""
        except Exception:
            told[case.__name__] = traceback.format_exc()
    return told
