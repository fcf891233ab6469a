# SPDX-License-Identifier: Apache-2.0
"""The layers among torch's other things: within its modules, made from its layers, copied, saved
and loaded, under autocast."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402

from cpd import functional  # noqa: E402
from tensors import SOME, same  # noqa: E402
from tensors import normal as values  # noqa: E402

OF_BF16 = cpd.Recipe(sums="fp32", output="bf16")


E4M3_SUMS = cpd.Recipe(sums="e4m3")


def linear(*shape, recipe=E4M3_SUMS, **options):
    torch.manual_seed(0)
    return cpd.nn.Linear(*shape, recipe=recipe, **options)


# ---- torch's modules that pass over the layers within them ---------------------------------------


@pytest.mark.parametrize("kind", ["cpd.nn", "from_torch"])
def test_attention_does_not_take_a_layer_that_it_would_pass_over(kind):
    attention = nn.MultiheadAttention(8, 2)
    before = attention.out_proj

    def replace():
        if kind == "from_torch":
            attention.out_proj = cpd.nn.Linear.from_torch(before, cpd.Recipe(sums="e4m3"))
        else:
            attention.out_proj = linear(8, 8)

    with pytest.raises(TypeError, match=r"MultiheadAttention reads .* four cpd.nn.Linear"):
        replace()
    assert attention.out_proj is before
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1)
    with pytest.raises(TypeError, match="scaled_dot_product_attention"):
        encoder.set_submodule("layers.0.self_attn.out_proj", linear(8, 8))


def test_a_loss_does_not_take_a_layer_that_it_would_pass_over():
    if not hasattr(nn, "LinearCrossEntropyLoss"):
        pytest.skip("this torch has no LinearCrossEntropyLoss")
    loss = nn.LinearCrossEntropyLoss(4, 3)
    with pytest.raises(TypeError, match="call a cpd"):
        loss.linear = linear(4, 3, bias=False)


def test_an_attention_that_calls_its_layers_takes_them():
    class Attention(nn.MultiheadAttention):
        def forward(self, x):
            return self.out_proj(x)

    attention = Attention(8, 2)
    attention.out_proj = linear(8, 8)
    assert same(attention(values(3, 8)), attention.out_proj(values(3, 8)))


def block(kind):
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True}
    if kind == "encoder":
        return nn.TransformerEncoderLayer(8, 2, 16, **options)
    return nn.TransformerDecoderLayer(8, 2, 16, **options)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_transformer_layers_call_theirs_in_eval_mode_too(kind):
    layer = block(kind).eval()
    plain = copy.deepcopy(layer)
    for name in ("linear1", "linear2"):
        setattr(
            layer,
            name,
            cpd.nn.Linear.from_torch(getattr(layer, name), cpd.Recipe(sums="e4m3"), layer=1),
        )
    x = values(2, 5, 8)
    given = (x,) if kind == "encoder" else (x, values(2, 3, 8, seed=1))

    def by_hand():
        handles = [
            one.register_forward_hook(
                lambda m, i, o: functional.linear(
                    *i, m.weight, m.bias, recipe=cpd.Recipe(sums="e4m3")
                )
            )
            for one in (plain.linear1, plain.linear2)
        ]
        y = plain(*given)
        for handle in handles:
            handle.remove()
        return y

    for other in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            assert same(other(*given), by_hand())
            assert not torch.equal(other(*given), plain(*given))
        with torch.inference_mode():
            assert same(other(*given).clone(), by_hand())
    torch._dynamo.reset()
    program = torch.compile(layer, backend="eager")
    with torch.no_grad():
        assert torch.allclose(program(*given), by_hand(), atol=1e-5)


def test_an_encoder_of_padded_batches_calls_its_layers_or_says_why_not():
    def replaced(layer):
        for name in ("linear1", "linear2"):
            setattr(
                layer, name, cpd.nn.Linear.from_torch(getattr(layer, name), cpd.Recipe(sums="e4m3"))
            )
        return layer

    x, padding = values(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with pytest.warns(UserWarning, match="activation_relu_or_gelu"):
        before = nn.TransformerEncoder(replaced(block("encoder")), 2).eval()
    plain = nn.TransformerEncoder(block("encoder"), 2).eval()
    with torch.no_grad():
        y = before(x, src_key_padding_mask=padding)
        assert y.shape == x.shape
        assert not torch.allclose(y[0], plain(x, src_key_padding_mask=padding)[0], atol=1e-3)
        after = nn.TransformerEncoder(block("encoder"), 2).eval()
        for layer in after.layers:
            replaced(layer)
        with pytest.raises(TypeError, match="enable_nested_tensor=False"):
            after(x, src_key_padding_mask=padding)
        after.use_nested_tensor = False
        assert same(after(x, src_key_padding_mask=padding), y)


# ---- from torch's layers -------------------------------------------------------------------------


def test_from_torch_keeps_hooks():
    module = nn.Linear(4, 3)
    calls = []
    module.register_forward_pre_hook(lambda m, i: calls.append(("pre", m)))
    module.register_forward_hook(
        lambda m, i, k, o: calls.append(("forward", m)), with_kwargs=True, always_call=True
    )
    module.register_full_backward_pre_hook(lambda m, g: calls.append(("backward pre", m)))
    module.register_full_backward_hook(lambda m, gi, go: calls.append(("backward", m)))
    module.register_state_dict_pre_hook(lambda m, *rest: calls.append(("state pre", m)))
    module.register_state_dict_post_hook(lambda m, *rest: calls.append(("state", m)))
    module.register_load_state_dict_pre_hook(lambda m, *rest: calls.append(("load pre", m)))
    module.register_load_state_dict_post_hook(lambda m, keys: calls.append(("load", m)))
    names = ["pre", "forward", "backward pre", "backward", "state pre", "state", "load pre", "load"]
    ours = cpd.nn.Linear.from_torch(module, cpd.Recipe(sums="e4m3"))
    for layer in (ours, module):
        calls.clear()
        layer(values(2, 4).requires_grad_()).sum().backward()
        layer.load_state_dict(layer.state_dict())
        assert calls == [(name, layer) for name in names]
    ours.register_forward_hook(lambda m, i, o: calls.append("later"))
    calls.clear()
    module(values(2, 4))
    assert "later" not in calls


def test_from_torch_keeps_the_rest():
    module = nn.Conv2d(2, 4, 3, dtype=torch.bfloat16).eval()
    module.weight.requires_grad_(False)
    module.note = ["mine"]
    module.register_buffer("scale", torch.ones(2), persistent=False)
    module.child = nn.Identity()
    ours = cpd.nn.Conv2d.from_torch(module, cpd.Recipe(sums="e4m3"))
    assert ours.note is module.note
    assert ours.scale is module.scale
    assert ours.child is module.child
    assert list(ours.state_dict()) == list(module.state_dict())
    assert not ours.training
    assert not ours.weight.requires_grad
    assert ours.bias.requires_grad
    again = cpd.nn.Conv2d.from_torch(ours, cpd.Recipe(sums="e5m2"))
    assert str(again.recipe) == "forward='e5m2 sequential'"
    assert str(ours.recipe) == "forward='e4m3 sequential'"
    ours.register_parameter("more", nn.Parameter(torch.ones(1)))
    assert "more" not in dict(module.named_parameters())


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"embedding": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    model["head"].weight = model["embedding"].weight
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model["head"] = cpd.nn.Linear.from_torch(model["head"], cpd.Recipe(sums="e4m3"))
    assert model["head"].weight is model["embedding"].weight
    before = model["head"].weight.detach().clone()
    model["head"](model["embedding"](torch.tensor([1, 2]))).sum().backward()
    optimizer.step()
    assert not torch.equal(model["head"].weight, before)
    assert len(list(model.parameters())) == 1


def subclass():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    return Scaled(4, 3)


def weighted():
    class Weighted(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return super()._conv_forward(x, 2 * weight, bias)

    return Weighted(4, 3, 1)


def patched():
    module = nn.Linear(4, 3)
    module.forward = lambda x: x
    return module


def compiled():
    module = nn.Linear(4, 3)
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (subclass, TypeError, "Scaled has its own forward.*cpd.functional"),
        (weighted, TypeError, "Weighted has its own _conv_forward"),
        (patched, TypeError, "Linear has its own forward"),
        (compiled, ValueError, "compiled by itself"),
        (lambda: nn.LazyLinear(3), ValueError, "lazy.*call it on an input first"),
        (lambda: nn.LazyConv2d(3, 1), ValueError, "lazy"),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), ValueError, "parametrized"),
        (lambda: parametrizations.spectral_norm(nn.Conv2d(4, 3, 1)), ValueError, "parametrized"),
    ],
)
def test_from_torch_refuses_what_it_cannot_keep(make, error, message):
    module = make()
    kind = cpd.nn.Linear if isinstance(module, nn.Linear) else cpd.nn.Conv2d
    with pytest.raises(error, match=message):
        kind.from_torch(module, cpd.Recipe(sums="e4m3"))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_from_torch_takes_what_computes_alike():
    class Named(nn.Linear):
        def __init__(self, *args):
            super().__init__(*args)
            self.name = "named"

    lazy = nn.LazyLinear(3)
    lazy(values(2, 4))
    modules = [
        Named(4, 3),
        lazy,
        torch.nn.utils.weight_norm(nn.Linear(4, 3)),
        torch.nn.utils.spectral_norm(nn.Linear(4, 3)).eval(),
        prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5),
    ]
    for module in modules:
        ours = cpd.nn.Linear.from_torch(module, cpd.Recipe(sums="fp32"))
        assert list(ours.state_dict()) == list(module.state_dict())
        for _ in range(2):
            assert torch.allclose(ours(values(2, 4)), module(values(2, 4)), atol=1e-6)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.5)


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


def test_a_deep_copy_goes_on_with_its_stream():
    stream = torch.zeros((), dtype=torch.int64)
    how = cpd.Recipe(
        sums=cpd.Accumulator.parse(SOME, 1, stream),
        activation=cpd.CastSpec("e4m3", "stochastic", stream=stream, random_bits=4),
    )
    model = nn.Sequential(linear(40, 30, recipe=how))
    twin = copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    assert twin[0].weight is not model[0].weight
    x, seen = values(20, 40), set()
    for step in range(4):
        stream.fill_(step << 36)
        wanted = model(x)
        assert same(twin(x), wanted)
        assert same(average(x), wanted)
        seen.add(wanted.detach().numpy().tobytes())
    assert len(seen) == 4


def test_copies_of_specs_look_at_the_same_stream():
    stream = torch.zeros((), dtype=torch.int64)
    acc = cpd.Accumulator.parse(SOME, 1, stream)
    cast = cpd.CastSpec("e4m3", "stochastic", stream=stream)
    for spec in (acc, cast, cpd.Recipe(sums=acc, weight=cast)):
        assert copy.copy(spec) is spec
        assert copy.deepcopy({"spec": spec})["spec"] is spec


def test_a_loaded_layer_gets_a_stream_of_its_own():
    stream = torch.tensor(5 << 36)
    layer = linear(40, 30, recipe=cpd.Recipe(sums=cpd.Accumulator.parse(SOME, 1, stream)))
    loaded = pickle.loads(pickle.dumps(layer))
    x = values(20, 40)
    assert same(loaded(x), layer(x))
    stream.fill_(6 << 36)
    assert not torch.equal(loaded(x), layer(x))
    loaded.recipe = loaded.recipe.with_stream(stream)
    assert loaded.recipe.forward.stream is stream
    assert loaded.recipe.forward.seed == 1
    assert same(loaded(x), layer(x))
    with pytest.raises(TypeError, match="stream"):
        layer.recipe.with_stream(1.5)


SPECS = {
    "format": cpd.Format("e4m3fn:bias=11"),
    "accumulator": cpd.Accumulator("e6m9", "chunked", product="exact"),
    "unit": cpd.Accumulator(preset="h100-fp8"),
    "rule": cpd.BlockFma("e4m3", "e5m2"),
    "cast": cpd.CastSpec("e5m2", "stochastic", seed=3),
    "recipe": cpd.Recipe(
        sums="h100-fp8", grad_weight=SOME, weight="e4m3fn", output="bf16", layer=3
    ),
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


def test_torch_loads_a_recipe_with_a_tensor():
    stream = torch.tensor(7 << 36)
    file = io.BytesIO()
    torch.save(cpd.Recipe(sums=cpd.Accumulator.parse(SOME, 1, stream)), file)
    file.seek(0)
    assert torch.load(file).forward.stream == stream


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
    torch.save({"state": layer.state_dict(), "recipe": layer.recipe}, path)
    script = (
        f"{imports}\n"
        f"loaded = torch.load({str(path)!r})\n"
        "import cpd\n"
        "assert loaded['recipe'] == cpd.Recipe(sums='e4m3')\n"
        "layer = cpd.nn.Linear(4, 3, recipe=loaded['recipe'])\n"
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
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded[0].recipe == model[0].recipe
    assert same(loaded(values(2, 4)), model(values(2, 4)))
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.ReLU, cpd.nn.Linear, set]):
        assert same(torch.load(file)(values(2, 4)), model(values(2, 4)))


# ---- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_results_type(dtype):
    how = cpd.Recipe(sums="fp32", output="bf16" if dtype == torch.bfloat16 else "fp16")
    images = values(1, 2, 4, 4)
    convolution = cpd.nn.Conv2d(2, 3, 3, recipe=how)
    layer = linear(8, 3, recipe=how)
    x, w = values(4, 8), values(3, 8, seed=1)
    calls = {
        "Linear": lambda: layer(x),
        "Conv2d": lambda: convolution(images),
        "linear": lambda: functional.linear(x, w, recipe=how),
        "matmul": lambda: functional.matmul(x, w.t(), how),
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
        with pytest.raises(ValueError, match=r"does not hold .*output="):
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
    made = torch.nn.utils.skip_init(cpd.nn.Linear, 4, 3, recipe=cpd.Recipe(sums="e4m3"))
    made.load_state_dict(layer.state_dict())
    assert same(made(x).detach(), wanted)
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
    convolution = cpd.nn.Conv2d(4, 3, 2, recipe=cpd.Recipe(sums="e4m3"))
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
    layer = cpd.nn.Conv2d(2, 4, 3, recipe=cpd.Recipe(sums="e4m3"))
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
