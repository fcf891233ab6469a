# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests of FSDP2's reduce-scatter (test_fsdp.py).

Every case compares the rank's part to the sums of virtual ranks.
"""

import copy
import pickle
import re
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import cpd
from cpd.comm import Communicator
from cpd.parallel.fsdp import ReduceScatter, fsdp_hook

STOCHASTIC = cpd.Reduce(
    "e4m3",
    accumulator=cpd.Accumulator("e4m3", rounding="stochastic"),
    aps=True,
    rounding="stochastic",
)


class Recorder(ReduceScatter):
    """Records FSDP's reduce-scatter calls: arguments, and results before FSDP divides them."""

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        self.given = input_tensor.clone()
        super().__call__(output_tensor, input_tensor, group, op, async_op)
        self.op, self.got = op, output_tensor.clone()


def sharded(**options) -> nn.Module:
    """Returns three FSDP modules with sizes that are not multiples of the number of ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 31), nn.ReLU(), nn.Linear(31, 7))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh, **options)
    return model


def backward(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    model.zero_grad()
    model(torch.randn(5, 8, generator=generator)).float().square().sum().backward()


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone


def run(
    spec: cpd.Reduce | cpd.Schedule,
    op: dist.ReduceOp.RedOpType,
    model: nn.Module,
    divide: str | None = None,
) -> None:
    """Asserts that every module's gradients are this rank's slice of the virtual ranks' sum."""
    made = fsdp_hook(model, spec, divide=divide, seed=3)
    assert list(made) == ["", "0", "2"]
    for one in made.values():
        one.__class__ = Recorder
    schedule = spec if isinstance(spec, cpd.Schedule) else cpd.Schedule(spec)
    states = {name: cpd.compress.States() for name in made}
    for step in range(3):
        if step == 2:  # a checkpoint
            for one in made.values():
                saved = pickle.loads(pickle.dumps(one.state_dict()))
                one.reset()
                one.load_state_dict(saved)
        backward(model, step)
        for number, name in enumerate(("0", "2"), start=1):
            one = made[name]
            assert one.op == op
            assert one.step == step + 1
            expected = schedule.spec_of(name, step, one.given.numel())
            averages = op == dist.ReduceOp.AVG
            expected = expected.replace(
                average=averages, divide=divide or "after", exchange="gather"
            )
            empty = [torch.empty(0)] * number
            per_rank = [[*empty, flat] for flat in gathered(one.given)]
            sums = cpd.simulate_all_reduce(
                per_rank, expected, seed=3, step=step, states=states[name]
            )
            whole = sums[number]
            slices = torch.chunk(whole, dist.get_world_size())
            assert torch.equal(one.got, slices[dist.get_rank()].to(one.got.dtype))


def average() -> None:
    run(STOCHASTIC, dist.ReduceOp.AVG, sharded())


def average_divided_before() -> None:
    run(STOCHASTIC, dist.ReduceOp.AVG, sharded(), "before")


def forced_sum() -> None:
    model = sharded()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(3.0)
    run(STOCHASTIC, dist.ReduceOp.SUM, model)
    made = fsdp_hook(model, cpd.Reduce("fp32"))
    for one in made.values():
        one.__class__ = Recorder
    backward(model, 0)
    ours = torch.cat([p.grad.to_local().flatten() for p in model[2].parameters()])
    kept = made["2"].got / 3
    assert set(ours.tolist()) <= set(kept.tolist())  # the rest is padding


def schedule() -> None:
    run(cpd.Schedule(STOCHASTIC, exempt=["2"], first_steps=1), dist.ReduceOp.AVG, sharded())


def codec() -> None:
    """Codecs sum the gradients; with min_size, a small module is summed in fp32 instead."""
    run(cpd.Reduce("feedback int4 bucket=64"), dist.ReduceOp.AVG, sharded())
    spec = cpd.Reduce("qsgd bits=4 bucket=64")
    run(cpd.Schedule(spec, min_size=260), dist.ReduceOp.AVG, sharded())


def narrow() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    run(STOCHASTIC, dist.ReduceOp.AVG, sharded(mp_policy=policy))


def refused() -> None:
    one = ReduceScatter(STOCHASTIC)
    world, group = dist.get_world_size(), dist.group.WORLD
    out, sums = torch.empty(4), torch.ones(4 * world)
    for arguments, told in (
        ((out, sums, group, dist.ReduceOp.MAX), "SUM or AVG"),
        ((out, sums[1:], group, dist.ReduceOp.SUM), f"{world} (ranks) × 4 (output) values"),
        ((out, sums, group, dist.ReduceOp.SUM, True), "async_op"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            one(*arguments)
    assert one.step == 0
    one(out, sums, group, dist.ReduceOp.SUM)
    assert out.tolist() == [world] * 4
    with pytest.raises(ValueError, match="fully_shard"):
        fsdp_hook(nn.Linear(2, 2), STOCHASTIC)
    with pytest.raises(ValueError, match="'nothing' matches no tensor"):
        fsdp_hook(sharded(), cpd.Schedule(STOCHASTIC, exempt=["nothing"]))


def traffic() -> None:
    """A rank sends one byte for each value of another rank's slice, because e4m3 has 8 bits."""
    model = sharded()
    made = fsdp_hook(model, cpd.Reduce("e4m3"))
    assert all(one.traffic is None for one in made.values())
    for one in made.values():
        one.__class__ = Recorder
    for step in range(2):
        backward(model, step)
        for name in ("0", "2"):
            one = made[name]
            assert one.traffic.step == step
            assert one.traffic.bytes_sent == one.given.numel() - one.got.numel()
            assert one.traffic.seconds > 0
    found = cpd.track.Tracker(nn.Linear(1, 1), every=0, reducer=made).step()
    assert found["reduce/bytes"] == sum(made[name].traffic.bytes_sent for name in ("0", "2"))


def converted_layers_in_mixed_precision() -> None:
    """Steps of converted layers under FSDP2 in bfloat16 have the bits of a model cast by hand.

    A layer casts the bfloat16 weight that FSDP2 passes to it. All ranks have one batch, so the mean
    of their gradients, computed in float32, equals each gradient.
    """
    for recipe in ("te-current", "mxfp8"):
        torch.manual_seed(0)
        master = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
        model = copy.deepcopy(master)
        cpd.convert(model, recipe, coverage=False)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (model, master)]
        losses = []
        for step in range(3):
            generator = torch.Generator().manual_seed(step % 2)
            x = torch.randn(16, 64, generator=generator)
            by_hand = copy.deepcopy(master).bfloat16()
            cpd.convert(by_hand, recipe, coverage=False)
            y, wanted = model(x), by_hand(x.bfloat16())
            assert y.dtype == torch.bfloat16
            assert torch.equal(y, wanted), (recipe, step)
            for each in (y, wanted):
                each.float().square().mean().backward()
            losses.append(y.float().square().mean().item())
            for p, half in zip(master.parameters(), by_hand.parameters(), strict=True):
                p.grad = half.grad.float()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for p, own in zip(model.parameters(), master.parameters(), strict=True):
                assert p.dtype == torch.float32
                assert torch.equal(p.full_tensor(), own), (recipe, step)
        assert losses[2] < losses[0]


CASES = [
    *(average, average_divided_before, forced_sum, schedule, codec, narrow, refused, traffic),
    converted_layers_in_mixed_precision,
]


def run_all(comm: Communicator) -> dict[str, str]:
    """Returns the failure of each case on this rank; the text is empty for a case that passed."""
    del comm  # the cases make their own, of torch's default group
    torch.set_num_threads(1)
    told = {}
    for case in CASES:
        told[case.__name__] = ""
        try:
            case()
        except Exception:
            told[case.__name__] = traceback.format_exc()
    return told
