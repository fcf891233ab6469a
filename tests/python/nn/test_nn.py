# SPDX-License-Identifier: Apache-2.0
"""The layers of cpd.nn: torch's state, copies, streams of their own, compiled training, CUDA."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd.nn.ready import READY  # noqa: E402
from front_ends import GPU_IS_CPU  # noqa: E402
from tensors import NARROW, SOME, close, same  # noqa: E402
from tensors import normal as values  # noqa: E402

# ---- layers --------------------------------------------------------------------------------------


def network(recipe):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        cpd.nn.Conv2d(1, 4, 3, padding=1, stride=2, recipe=recipe, layer=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        cpd.nn.Linear(64, 10, recipe=recipe, layer=2),
    )


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


def test_from_torch_shares_the_parameters():
    torch.manual_seed(0)
    for layer, kind in (
        (torch.nn.Linear(4, 3), cpd.nn.Linear),
        (torch.nn.Linear(4, 3, bias=False, dtype=torch.bfloat16).eval(), cpd.nn.Linear),
        (torch.nn.Conv2d(4, 6, (3, 2), (2, 1), "valid", (1, 2), 2), cpd.nn.Conv2d),
        (torch.nn.Conv2d(4, 4, 3, padding=1, bias=False, padding_mode="circular"), cpd.nn.Conv2d),
    ):
        ours = kind.from_torch(layer, cpd.Recipe(sums="e4m3"), layer=3)
        assert isinstance(ours, type(layer))
        assert ours.weight is layer.weight
        assert ours.bias is layer.bias
        assert ours.training == layer.training
        assert ours.recipe.layer == 3
        shape = (2, 4) if kind is cpd.nn.Linear else (2, 4, 9, 9)
        x = values(*shape, dtype=layer.weight.dtype)
        wide = kind.from_torch(layer, "bf16" if x.dtype == torch.bfloat16 else "fp32")
        assert torch.allclose(wide(x), layer(x), rtol=2e-2, atol=2e-2)
        assert repr(ours).startswith(repr(layer)[:-1])
        assert "native sums='e4m3 sequential'" in repr(ours)
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Linear, got Conv2d"):
        cpd.nn.Linear.from_torch(torch.nn.Conv2d(1, 1, 1), cpd.Recipe(sums="fp32"))


def test_layers_copy_and_pickle():
    model = network(cpd.Recipe(sums=SOME, gradient="e5m2"))
    x = values(3, 1, 8, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(other(x), model(x))
        assert other[0].recipe == model[0].recipe


def test_layers_of_one_recipe_draw_different_bits():
    how = cpd.Recipe(sums=SOME)
    first = cpd.nn.Linear(30, 30, recipe=how, layer=1)
    second = cpd.nn.Linear.from_torch(first, how, layer=2)
    x = values(20, 30)
    assert same(first(x), first(x))
    assert not same(first(x), second(x))


def test_checkpointing_repeats_the_bits():
    stream = torch.tensor(3 << 36)
    model = network(cpd.Recipe(sums=cpd.Accumulator.parse(SOME, 1, stream)))
    x = values(3, 1, 8, 8).requires_grad_()
    leaves = [x, *model.parameters()]
    wanted = torch.autograd.grad(model(x).sum(), leaves)
    got = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).sum(), leaves)
    assert all(same(p, q) for p, q in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)]
)
def test_compiled_training(backend):
    """Steps with new streams do not recompile; loss and gradients have eager's bits."""
    torch._dynamo.reset()
    stream = torch.zeros((), dtype=torch.int64)
    acc = cpd.Accumulator.parse(SOME, 1, stream)
    cast = cpd.CastSpec("e5m2", "stochastic", random_bits=8, stream=stream)
    model = network(cpd.Recipe(sums=acc, grad_weight="e6m9 chunked", gradient=cast, weight="(4,3)"))
    counter = CompileCounterWithBackend(backend)
    program = torch.compile(model, fullgraph=True, backend=counter)
    x = values(3, 1, 8, 8)
    leaves = list(model.parameters())
    seen = set()
    for number in range(4):
        stream.fill_(number << 36)
        got, wanted = program(x), model(x)
        assert same(got, wanted)
        pairs = (
            torch.autograd.grad(got.sum(), leaves),
            torch.autograd.grad(wanted.sum(), leaves),
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
    """A step of three linear layers: on the CPU's stand-in to the bit, products by torch included;
    on a GPU, whose own products round otherwise, near."""
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
