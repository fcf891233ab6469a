# SPDX-License-Identifier: Apache-2.0
"""Converted layers: torch's state, copies, random bits, compiled training, CUDA."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from cpd.nn.ready import READY  # noqa: E402
from front_ends import GPU_IS_CPU  # noqa: E402
from tensors import NARROW, SOME, close, converted, same  # noqa: E402
from tensors import normal as values  # noqa: E402

# ---- layers --------------------------------------------------------------------------------------


def network(recipe):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    return converted(model, recipe if isinstance(recipe, cpd.Recipe) else cpd.Recipe(sums=recipe))


def test_layers_exchange_their_state_with_torchs():
    ours = network(NARROW)
    torch.manual_seed(2)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    fine = network("fp32")
    fine.load_state_dict(theirs.state_dict())
    x = values(3, 1, 8, 8)
    assert close(fine(x), theirs(x))
    assert not close(ours(x), theirs(x))


def test_layers_copy_and_pickle():
    model = network(cpd.Recipe(sums=SOME, gradient="e5m2")).eval()
    x = values(3, 1, 8, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(other(x), model(x))
        assert other[0].cpd.recipe == model[0].cpd.recipe


def test_layers_of_one_recipe_draw_different_bits():
    first = torch.nn.Linear(30, 30)
    model = torch.nn.Sequential(first, copy.deepcopy(first)).eval()
    converted(model, cpd.Recipe(sums=SOME))
    x = values(20, 30)
    assert same(first(x), first(x))
    assert not same(first(x), model[1](x))


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)]
)
def test_compiled_training(backend):
    """New steps do not recompile; loss and gradients have eager's bits."""
    torch._dynamo.reset()
    drawing = {"gradient": "e5m2 rounding=stochastic random_bits=8", "weight": "(4,3)"}
    model = network(cpd.Recipe(sums=SOME, grad_weight="e6m9 chunked", **drawing))
    twin = copy.deepcopy(model)
    counter = CompileCounterWithBackend(backend)
    program = torch.compile(twin, fullgraph=True, backend=counter)
    x = values(3, 1, 8, 8)
    seen = set()
    for _ in range(4):
        got, wanted = program(x), model(x)
        assert same(got, wanted)
        pairs = (
            torch.autograd.grad(got.sum(), list(twin.parameters())),
            torch.autograd.grad(wanted.sum(), list(model.parameters())),
        )
        assert all(same(p, q) for p, q in zip(*pairs, strict=True))
        seen.add(got.detach().numpy().tobytes())
    assert len(seen) == 4
    assert counter.frame_count == 1


def test_training_learns():
    torch.manual_seed(0)
    x = torch.randn(64, 1, 8, 8)
    target = (x.mean((1, 2, 3)) > 0).long()
    model = network(
        cpd.Recipe(forward="e5m6", grad_input="e5m6", grad_weight="e6m9 chunked", gradient="e5m2")
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.exhaustive  # as _torch/test_compiled.py does by a cast
def test_first_use_may_be_compiled():
    import subprocess
    import sys

    script = (
        "import cpd, torch\n"
        "how = cpd.Recipe(sums='e4m3')\n"
        "run = torch.compile(lambda x: cpd.functional.linear(x, x, recipe=how),\n"
        "                    fullgraph=True, backend='eager')\n"
        "assert run(torch.ones(1, 40)).item() == 16\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# ---- CUDA ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("recipe", [NARROW, SOME, "e4m3 kahan"], ids=str)
def test_cuda_equals_cpu(recipe):
    here, there = network(recipe), network(recipe).cuda()
    x = values(3, 1, 8, 8)
    got, wanted = there(x.cuda()), here(x)
    assert same(got.cpu(), wanted)
    pairs = (
        torch.autograd.grad(got.sum(), list(there.parameters())),
        torch.autograd.grad(wanted.sum(), list(here.parameters())),
    )
    assert all(same(p.cpu(), q) for p, q in zip(*pairs, strict=True))


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", READY)
def test_named_recipes_on_cuda(name):
    check_step_on_cuda(name)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_blocks_of_128_on_cuda():
    check_step_on_cuda("deepseek-v3")


def check_step_on_cuda(name):
    """A step of three linear layers: on the CPU emulation of CUDA to the bit, products by torch
    included; on a GPU, whose own products round otherwise, near."""
    torch.manual_seed(0)
    here = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(3)))
    cpd.convert(here, name, coverage=False)
    there = copy.deepcopy(here).cuda()
    x = values(128, 128)
    results = []
    for model, input in ((here, x), (there, x.cuda())):
        y = model(input)
        y.square().mean().backward()
        results.append([z.detach().cpu() for z in (y, *(p.grad for p in model.parameters()))])
    equal = same if GPU_IS_CPU else functools.partial(close, tolerance=0.1)
    assert equal(*results)
