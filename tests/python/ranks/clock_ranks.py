# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests that find which ranks exchange magnitudes (test_clock_ranks.py)."""

import copy
import pickle
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import cpd

OWN = (448.0, 448 / 1000)
"""The scale of the activations on each of two ranks if the ranks do not exchange their largest
magnitudes, which are 1 and 1000."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).square().mean()


def made(**options):
    model = Net()
    return model, cpd.convert(model, "te-delayed", coverage=False, **options)


def x() -> torch.Tensor:
    return torch.full((2, 8), 1000.0 if dist.get_rank() else 1.0)


def train(call, steps=2) -> None:
    for _ in range(steps):
        call(x()).square().mean().backward()


def scale(model) -> float:
    """Returns the scale of the first layer's activation in the current step."""
    model.state_dict()
    return model.first.cpd_delayed.scale[0].item()


def close(found, wanted) -> None:
    assert abs(found - wanted) < 1e-5 * wanted, (found, wanted)


def alone() -> None:
    """Without DDP or FSDP2, each rank uses its own magnitudes.

    The ranks could have two separate models, or two stages of a pipeline.
    """
    model, report = made()
    train(model)
    close(scale(model), OWN[dist.get_rank()])
    assert "neither DDP nor FSDP2 wraps the model" in str(report)


def none() -> None:
    model, report = made(amax_group=False)
    train(model)
    train(model.forward)
    close(scale(model), OWN[dist.get_rank()])
    assert "between ranks" not in str(report)


def of_a_group() -> None:
    model, report = made(amax_group=dist.group.WORLD)
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        train(each)
        close(scale(each), OWN[1])
    assert "between ranks" not in str(report)


def of_one_rank() -> None:
    """If each rank exchanges magnitudes only with itself (`amax_group` has one rank), ranks may
    call the model different numbers of times."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    model, _ = made(amax_group=groups[dist.get_rank()])
    train(model, 2 + dist.get_rank())
    close(scale(model), OWN[dist.get_rank()])
    with pytest.raises(TypeError, match="that this rank is in"):
        made(amax_group=groups[1 - dist.get_rank()])


def ddp() -> None:
    model, report = made()
    train(DistributedDataParallel(model))
    close(scale(model), OWN[1])
    assert "between ranks" not in str(report)


def ddp_compiled() -> None:
    model, _ = made()
    train(torch.compile(DistributedDataParallel(model), backend="aot_eager"), 3)
    close(scale(model), OWN[1])


def ddp_of_what_is_around() -> None:
    """If DDP wraps a larger model than the converted part, ranks may call the part any number of
    times.

    The ranks exchange no magnitudes for delayed scaling, and no rank hangs.
    """

    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            for _ in range(dist.get_rank()):
                self.inner(x)
            return self.inner(x)

    model, report = made()
    train(DistributedDataParallel(Around(model), broadcast_buffers=False))
    close(scale(model), OWN[dist.get_rank()])
    assert "neither DDP nor FSDP2 wraps the model" in str(report)


def fsdp() -> None:
    model, report = made()
    mesh = init_device_mesh("cpu", (2,))
    for part in (model.first, model.second, model):
        fully_shard(part, mesh=mesh)
    train(model)
    close(scale(model), OWN[1])
    assert "between ranks" not in str(report)


def within_layers() -> None:
    """If a step of delayed scaling begins within a layer's forward, ranks exchange no largest
    magnitudes. The conversion report says so. Ranks may then take different numbers of steps.
    """
    for options in ({}, {"amax_group": dist.group.WORLD}):
        model, report = made(**options)
        train(model.forward, 2 + dist.get_rank())
        close(scale(model), OWN[dist.get_rank()])
        assert "where a step begins within a layer's forward" in str(report)
        assert "where a step begins within a layer's forward" in report.to_json()


def one_rank_calls_a_part() -> None:
    """If one rank calls a part of the model before all ranks call the model, no rank hangs.

    Each rank makes the same number of exchanges, but the ranks' histories then hold other
    magnitudes.
    """
    model, report = made(amax_group=dist.group.WORLD)
    for n in range(3):
        if dist.get_rank():
            model.first(x() * 0)
        train(model, 1)
        if n and not dist.get_rank():
            train(model.forward, 1)
    dist.barrier()
    close(scale(model), OWN[dist.get_rank()])
    assert "where a step begins within a layer's forward" in str(report)


CASES = (
    alone,
    none,
    of_a_group,
    of_one_rank,
    ddp,
    ddp_compiled,
    ddp_of_what_is_around,
    fsdp,
    within_layers,
    one_rank_calls_a_part,
)


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
