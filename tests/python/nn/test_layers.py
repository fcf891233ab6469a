# SPDX-License-Identifier: Apache-2.0
"""Converted layers among torch's other things: parametrized, saved and loaded, under autocast."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

from cpd import functional  # noqa: E402
from tensors import SOME, converted, same  # noqa: E402
from tensors import normal as values  # noqa: E402

OF_BF16 = cpd.Recipe(sums="fp32", output="bf16")


E4M3_SUMS = cpd.Recipe(sums="e4m3")


def linear(*shape, recipe=E4M3_SUMS, **options):
    torch.manual_seed(0)
    return converted(nn.Linear(*shape, **options), recipe)


def test_layers_can_be_parametrized():
    layer = parametrizations.weight_norm(linear(4, 3))
    assert parametrize.is_parametrized(layer)
    layer.parametrizations.weight.original0.data.mul_(2)
    assert same(
        layer(values(2, 4)),
        functional.linear(values(2, 4), layer.weight, layer.bias, recipe=cpd.Recipe(sums="e4m3")),
    )
    layer(values(2, 4)).sum().backward()
    assert layer.parametrizations.weight.original1.grad is not None


# ---- copies and checkpoints ----------------------------------------------------------------------


SPECS = {
    "format": cpd.Format("e4m3fn:bias=11"),
    "accumulator": cpd.Accumulator("e6m9 chunked", product="exact"),
    "unit": cpd.Accumulator("h100-fp8"),
    "rule": cpd.Accumulator(a="e4m3", b="e5m2"),
    "cast": cpd.Cast("e5m2", rounding="stochastic"),
    "recipe": cpd.Recipe(sums="h100-fp8", grad_weight=SOME, weight="e4m3fn", output="bf16"),
    "reduce": cpd.Reduce("e4m3", aps=True),
    "schedule": cpd.Schedule(cpd.Reduce("e4m3"), exempt=["*.bias"], first_steps=3),
}


@pytest.mark.parametrize("name", SPECS)
def test_torch_loads_specs_by_default(name):
    file = io.BytesIO()
    torch.save({"spec": SPECS[name], "state": linear(3, 4).state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["spec"] == SPECS[name]
    assert str(loaded["spec"]) == str(SPECS[name])


@pytest.mark.few("", 2)
@pytest.mark.parametrize(
    ("imports", "loads"),
    [
        ("import cpd, torch", True),
        ("import torch, cpd", True),
        ("import cpd, torch.nn", True),
        ("import torch", False),
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


def test_importing_cpd_leaves_torch_alone():
    script = "import sys, cpd; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_whole_models_save_and_load():
    model = nn.Sequential(linear(4, 3, recipe=cpd.Recipe(sums=SOME, weight="(4,3)")), nn.ReLU())
    model.eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded[0].cpd.recipe == model[0].cpd.recipe
    assert same(loaded(values(2, 4)), model(values(2, 4)))


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


def test_autocast_mixes_with_torchs_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), linear(6, 4, recipe=OF_BF16), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before = model[1].weight.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(values(5, 8))
        assert y.dtype == torch.bfloat16
    scaler.scale(y.float().square().mean()).backward()
    assert model[1].weight.grad.dtype == torch.float32
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model[1].weight, before)


@pytest.mark.exhaustive
def test_autocast_compiled():
    torch._dynamo.reset()
    layer = linear(8, 3, recipe=OF_BF16)
    program = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = values(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert same(program(x), layer(x))
    assert program(x).dtype == torch.float32


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


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_empty_batches(shape):
    layer, x = linear(4, 3), values(*shape).requires_grad_()
    y = layer(x)
    assert y.shape == (*shape[:-1], 3)
    y.sum().backward()
    assert x.grad.shape == shape
    assert not layer.weight.grad.any()
    convolution = converted(nn.Conv2d(4, 3, 2), E4M3_SUMS)
    y = convolution(values(0, 4, 3, 3))
    assert y.shape == (0, 3, 2, 2)
    y.sum().backward()
    assert not convolution.weight.grad.any()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sums_of_nothing_are_the_bias():
    layer = linear(0, 3)
    bias = cpd.cast(layer.bias.detach(), "e4m3")
    assert same(layer(values(2, 0)).detach(), bias.expand(2, 3))


def test_channels_last_models():
    torch.manual_seed(0)
    layer = converted(nn.Conv2d(2, 4, 3), E4M3_SUMS)
    x = values(2, 2, 5, 5)
    wanted = layer(x)
    last = layer.to(memory_format=torch.channels_last)
    assert same(last(x.to(memory_format=torch.channels_last)), wanted)


def test_layers_in_ddp(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        layer = linear(4, 3)
        wanted = torch.autograd.grad(layer(values(2, 4)).sum(), list(layer.parameters()))
        nn.parallel.DistributedDataParallel(layer)(values(2, 4)).sum().backward()
        got = [parameter.grad for parameter in layer.parameters()]
        assert all(same(p, q) for p, q in zip(got, wanted, strict=True))
    finally:
        dist.destroy_process_group()


def test_weights_may_be_used_without_the_layer():
    layer = linear(4, 3)
    x = values(2, 4)
    assert torch.allclose(F.linear(x, layer.weight, layer.bias), x @ layer.weight.t() + layer.bias)
