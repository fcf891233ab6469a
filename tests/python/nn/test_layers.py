# SPDX-License-Identifier: Apache-2.0
"""Tests converted layers: loaded in a new process, under torch.autocast, exported, and on CUDA."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cpd import functional  # noqa: E402
from cpd.nn.ready import READY  # noqa: E402
from front_ends import GPU_IS_CPU  # noqa: E402
from tensors import NARROW, SOME, close, converted, same  # noqa: E402
from tensors import normal as values  # noqa: E402

E4M3_SUMS = cpd.Recipe(sums="e4m3")


def linear(*shape, recipe=E4M3_SUMS, **options):
    torch.manual_seed(0)
    return converted(nn.Linear(*shape, **options), recipe)


@pytest.mark.parametrize(
    ("imports", "loads"),
    [
        ("import cpd, torch", True),
        *(
            pytest.param(imports, loads, marks=pytest.mark.exhaustive)
            for imports, loads in (
                ("import torch, cpd", True),
                ("import cpd, torch.nn", True),
                ("import torch", False),
            )
        ),
    ],
)
def test_torch_loads_a_recipe_in_a_fresh_process(imports, loads, tmp_path):
    path = tmp_path / "checkpoint.pt"
    layer = linear(4, 3)
    torch.save({"state": layer.state_dict(), "recipe": layer.cpd.recipe}, path)
    script = (
        f"{imports}\n"
        f"loaded = torch.load({str(path)!r})\n"
        "import cpd\n"
        "assert loaded['recipe'] == cpd.Recipe(sums='e4m3')\n"
        "layer = torch.nn.Linear(4, 3)\n"
        "cpd.convert(layer, loaded['recipe'])\n"
        "layer.load_state_dict(loaded['state'])\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode == 0) == loads, run.stderr
    if not loads:
        assert "add_safe_globals" in run.stderr


# ---- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_results_type(dtype):
    how = cpd.Recipe(sums="fp32", output="bf16" if dtype == torch.bfloat16 else "fp16")
    images = values(1, 2, 4, 4)
    convolution = converted(nn.Conv2d(2, 3, 3), how)
    layer = linear(8, 3, recipe=how)
    x, w = values(4, 8), values(3, 8, seed=1)
    calls = {
        "Linear": lambda: layer(x),
        "Conv2d": lambda: convolution(images),
        "linear": lambda: functional.linear(x, w, recipe=how),
        "matmul": lambda: functional.matmul(x, w.t(), recipe=how),
        "conv2d": lambda: functional.conv2d(images, convolution.weight, recipe=how),
        "narrow": lambda: functional.linear(x, w, recipe=cpd.Recipe(sums="e4m3")),
    }
    for name, call in calls.items():
        plain = call()
        assert plain.dtype == torch.float32
        with torch.autocast("cpu", dtype):
            got = call()
            assert got.dtype == dtype, name
            assert same(got.float(), plain)  # the operands are taken as they are
            with torch.autocast("cpu", enabled=False):
                assert same(call(), plain)
    with torch.autocast("cpu", dtype):
        wide = functional.linear(x, w, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float32)
        assert wide.dtype == torch.float32
        with pytest.raises(ValueError, match=r"cannot represent .*output="):
            linear(8, 3, recipe=cpd.Recipe(sums="fp32"))(x)


# ---- and the rest --------------------------------------------------------------------------------


def test_layers_under_torchs_other_ways():
    layer, x = linear(4, 3), values(2, 4)
    wanted = layer(x).detach()
    with torch.inference_mode():
        assert same(layer(x).clone(), wanted)
    meta = linear(4, 3, device="meta")
    assert meta(x.to("meta")).shape == (2, 3)
    assert meta(x.to("meta")).device.type == "meta"
    layer.share_memory()
    assert layer.weight.is_shared()
    assert same(layer(x).detach(), wanted)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert same(exported.module()(x).detach(), wanted)
    assert exported.module()(values(7, 4)).shape == (7, 3)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sums_of_nothing_are_the_bias():
    layer = linear(0, 3)
    bias = cpd.cast(layer.bias.detach(), "e4m3")
    assert same(layer(values(2, 0)).detach(), bias.expand(2, 3))


# ---- CUDA ----------------------------------------------------------------------------------------


def network(recipe):
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 4, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
    recipe = recipe if isinstance(recipe, cpd.Recipe) else cpd.Recipe(sums=recipe)
    return converted(nn.Sequential(*layers), recipe)


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
    """A training step of three linear layers on CUDA gives the CPU's results. On the CPU emulation
    of CUDA, all bits are equal. On a GPU, torch's own products round differently, so results are
    close."""
    torch.manual_seed(0)
    here = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3)))
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
