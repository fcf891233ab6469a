# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests of the DDP hook (test_ddp.py).

Every case compares gradients to the sums of virtual ranks.
"""

import io
import pickle
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cpd
from cpd.comm import Communicator
from patience import scaled

STOCHASTIC = cpd.Reduce(
    "e4m3",
    accumulator=cpd.Accumulator("e4m3", rounding="stochastic"),
    aps=True,
    rounding="stochastic",
)
SEED = 3


def perceptron() -> nn.Module:
    """Returns a model that is wide enough for three of DDP's smallest buckets."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 3))


def convolution() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Conv2d(5, 3, 1))
    return model.to(memory_format=torch.channels_last)


def images(step: int, rank: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, *shape, generator=generator)


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    first = next(model.parameters())
    shape = (8,) if first.ndim == 2 else (2, 6, 5)
    return model(images(step, rank, *shape).to(first)).float().square().sum()


def gradients(make: Callable[[], nn.Module], step: int) -> list[list[torch.Tensor]]:
    """Returns every rank's gradients, by [rank][parameter], computed without DDP."""
    model = make()
    parameters = list(model.parameters())
    per_rank = [
        torch.autograd.grad(loss_of(model, step, rank), parameters)
        for rank in range(dist.get_world_size())
    ]
    return [[gradient.cpu() for gradient in rank] for rank in per_rank]


def run(
    make: Callable[[], nn.Module],
    spec: cpd.Reduce | cpd.Schedule,
    *,
    knows_module: bool = False,
    average: bool = True,
    divide: str | None = None,
    steps: int = 3,
    **options: object,
) -> None:
    """Asserts that backward passes of a hooked model give the virtual ranks' sums, bit for bit."""
    model = make()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.3, **options)
    module = ddp if knows_module else None
    state, hook = cpd.ddp_hook(spec, model=module, average=average, divide=divide, seed=SEED)
    ddp.register_comm_hook(state, hook)
    for step in range(steps):
        assert state.step == step
        ddp.zero_grad()
        loss_of(ddp, step, dist.get_rank()).backward()
        check(model, spec, average, make, step, divide or "after")
    state.close()


def check(model, spec, average, make, step, divide="after") -> None:
    schedule = spec if isinstance(spec, cpd.Schedule) else cpd.Schedule(spec)
    specs = ("spec", "exempt_spec", "first_spec")
    if average:
        how = {"average": True, "divide": divide}
        averaged = {name: getattr(schedule, name).replace(**how) for name in specs}
        schedule = replace(schedule, **averaged)
    names = [name for name, _ in model.named_parameters()]
    sums = cpd.simulate_all_reduce(
        gradients(make, step), schedule, names=names, seed=SEED, step=step
    )
    for name, parameter, expected in zip(names, model.parameters(), sums, strict=True):
        same = torch.equal(parameter.grad.cpu(), expected.to(parameter.dtype))
        assert same, f"{name} at step {step}: {parameter.grad} is not {expected}"


def plain() -> None:
    run(perceptron, cpd.Reduce("e4m3", aps=True, order="ring"))


def scaled_format() -> None:
    run(perceptron, cpd.Reduce("mxfp8", rounding="stochastic", result="bf16"))


def stochastic() -> None:
    run(perceptron, STOCHASTIC)


def known_module() -> None:
    run(perceptron, STOCHASTIC, knows_module=True)


def initial_buckets() -> None:
    """With find_unused_parameters, DDP divides the gradients into several buckets already in the
    first backward pass."""
    run(perceptron, STOCHASTIC, find_unused_parameters=True)


def bucket_views() -> None:
    run(perceptron, STOCHASTIC, gradient_as_bucket_view=True)


def sums_instead_of_averages() -> None:
    run(perceptron, STOCHASTIC, average=False)


def divided_before() -> None:
    run(perceptron, cpd.Reduce("e4m3", aps=True), divide="before")


def schedule() -> None:
    spec = cpd.Schedule(STOCHASTIC, exempt=["*.bias"], first_steps=1)
    run(perceptron, spec, knows_module=True)


def channels_last() -> None:
    run(convolution, STOCHASTIC)


def bfloat16() -> None:
    run(lambda: perceptron().bfloat16(), STOCHASTIC)


def accumulated() -> None:
    """A pass under no_sync is not a step. The next pass outside no_sync adds its own gradients, and
    reduces the sums."""
    model = perceptron()
    ddp = DistributedDataParallel(model)
    state, hook = cpd.ddp_hook(STOCHASTIC, seed=SEED)
    ddp.register_comm_hook(state, hook)
    with ddp.no_sync():
        loss_of(ddp, 0, dist.get_rank()).backward()
    assert state.step == 0
    loss_of(ddp, 1, dist.get_rank()).backward()
    assert state.step == 1
    both = [gradients(perceptron, step) for step in range(2)]
    per_rank = [[a + b for a, b in zip(*rank, strict=True)] for rank in zip(*both, strict=True)]
    sums = cpd.simulate_all_reduce(per_rank, STOCHASTIC.replace(average=True), seed=SEED)
    assert all(torch.equal(p.grad, s) for p, s in zip(model.parameters(), sums, strict=True))


def checkpoint() -> None:
    """A DDP hook that was pickled at step 5 continues at step 5, with a new communicator."""
    spec = cpd.Schedule(STOCHASTIC, exempt=["*.bias"])
    state, hook = cpd.ddp_hook(spec, model=perceptron(), seed=SEED)
    state.step = 5
    state, hook = pickle.loads(pickle.dumps((state, hook)))
    model = perceptron()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.3)
    ddp.register_comm_hook(state, hook)
    loss_of(ddp, 5, dist.get_rank()).backward()
    assert state.step == 6
    check(model, spec, True, perceptron, 5)


def codec_checkpoint() -> None:
    """A pickled hook contains the codec's state. `reset` deletes the state of a named parameter."""
    spec, states = cpd.Reduce("one_bit", average=True), cpd.compress.States()
    state, hook = cpd.ddp_hook(spec, model=perceptron())
    for step in range(4):
        if step == 2:
            pickled = pickle.dumps((state, hook))
            state.close()
            state, hook = pickle.loads(pickled)
        if step == 3:
            state.reset("0.weight")
            states.reset(0)
        model = perceptron()
        ddp = DistributedDataParallel(model)
        state.attach(model=ddp)
        ddp.register_comm_hook(state, hook)
        loss_of(ddp, step, dist.get_rank()).backward()
        given = gradients(perceptron, step)
        sums = cpd.simulate_all_reduce(given, spec, step=step, states=states)
        for parameter, expected in zip(model.parameters(), sums, strict=True):
            assert torch.equal(parameter.grad, expected), f"step {step}"
    with pytest.raises(ValueError, match="there is no tensor 'x'"):
        state.reset("x")
    state.close()


def state_dicts() -> None:
    """A hook's checkpoint is plain data; a new hook continues from it, with the codec's state."""
    spec, states = cpd.Reduce("one_bit", average=True), cpd.compress.States()
    saved = io.BytesIO()
    for step in range(4):
        model = perceptron()
        if step in (0, 2):
            state, hook = cpd.ddp_hook(spec, model=model)
        if step == 2:
            saved.seek(0)
            state.load_state_dict(torch.load(saved, weights_only=True))
        state.attach(model=model)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(state, hook)
        loss_of(ddp, step, dist.get_rank()).backward()
        given = gradients(perceptron, step)
        sums = cpd.simulate_all_reduce(given, spec, step=step, states=states)
        for parameter, expected in zip(model.parameters(), sums, strict=True):
            assert torch.equal(parameter.grad, expected), f"step {step}"
        if step == 1:
            torch.save(state.state_dict(), saved)
            state.close()
    assert state.state_dict()["step"] == 4
    state.close()


def double_gradients() -> None:
    """A hook made without `model=` raises an error when DDP passes float64 gradients to it."""
    state, hook = cpd.ddp_hook(cpd.Reduce("fp32"))
    ddp = DistributedDataParallel(nn.Linear(3, 2).double())
    ddp.register_comm_hook(state, hook)
    with pytest.raises(Exception, match=r"gradient of parameter 0 must be .* got torch\.float64"):
        ddp(torch.ones(1, 3).double()).sum().backward()
    state.close()


class Held:
    """A communicator whose all-reduce waits until `go` is set."""

    def __init__(self) -> None:
        self.comm = cpd.comm.distributed()
        self.go = threading.Event()

    def all_reduce(self, *arguments, **options):
        assert self.go.wait(scaled(30))
        return self.comm.all_reduce(*arguments, **options)


def asynchronous() -> None:
    """The hook returns before its bucket is reduced, for all buckets of a pass."""
    held = Held()
    model = perceptron()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.3, find_unused_parameters=True)
    state, hook = cpd.ddp_hook(STOCHASTIC, held, model=model, seed=SEED)
    futures = []

    def watched(state, bucket):
        futures.append(hook(state, bucket))
        if bucket.is_last():
            assert len(futures) > 1
            assert not any(future.done() for future in futures)
            held.go.set()
        return futures[-1]

    ddp.register_comm_hook(state, watched)
    loss_of(ddp, 0, dist.get_rank()).backward()
    check(model, STOCHASTIC, True, perceptron, 0)


def error_reaches_backward() -> None:
    ddp = DistributedDataParallel(perceptron())
    state, hook = cpd.ddp_hook(STOCHASTIC, seed=dist.get_rank())
    ddp.register_comm_hook(state, hook)
    with pytest.raises(RuntimeError) as caught:
        loss_of(ddp, 0, dist.get_rank()).backward()
    assert isinstance(state.error, cpd.comm.Mismatch)
    assert f"Mismatch: {state.error}" in str(caught.value)


def on_the_gpu() -> None:
    """Gradients on a GPU are reduced over gloo, whose messages go through host memory."""
    run(lambda: perceptron().cuda(), STOCHASTIC)
    run(lambda: convolution().cuda().half(), STOCHASTIC, knows_module=True)


CASES = [
    plain,
    scaled_format,
    stochastic,
    known_module,
    initial_buckets,
    bucket_views,
    sums_instead_of_averages,
    divided_before,
    schedule,
    channels_last,
    bfloat16,
    accumulated,
    checkpoint,
    codec_checkpoint,
    state_dicts,
    double_gradients,
    asynchronous,
    error_reaches_backward,
]


def run_all(comm: Communicator, gpu: bool = False) -> dict[str, str]:
    """Returns the failure of each case on this rank; the text is empty for a case that passed."""
    del comm  # the cases make their own, of torch's default group
    torch.set_num_threads(1)
    told = {}
    for case in [on_the_gpu] if gpu else CASES:
        told[case.__name__] = ""
        try:
            case()
        except Exception:
            told[case.__name__] = traceback.format_exc()
    return told
