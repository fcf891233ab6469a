# SPDX-License-Identifier: Apache-2.0
"""Tests modules that are registered with CPD and do not come from torch: modules written by hand,
compiled or copied, and modules of transformers and timm."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cpd
import models_at_hand as at_hand
from cpd._torch.rounding import rounded

RECIPES = {
    "casts": cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8-e5m2"),
    "sums": cpd.Recipe(sums="e6m9 chunked", activation="e5m2", weight="(4,3)", gradient="e5m2"),
    "attention": cpd.Recipe(
        "native", weight="e4m3fn", softmax="(4,3)", attention=cpd.Recipe(sums="e6m9 chunked")
    ),
    "norms": cpd.Recipe("native", weight="e4m3fn", norm="bf16"),
}
DRAWING = cpd.Recipe(
    "native", activation="(4,3) rounding=stochastic", weight="(4,3)", gradient="e5m2"
)


class Scores(nn.Module):
    """A user-defined module with products by torch's functions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 8)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        y = F.linear(x, self.weight)
        return self.out((x @ y.mT) @ y)


cpd.nn.register(Scores, "products")


def _x(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def _gradients(module, x, run=None):
    """Returns the result of a module, and the gradients of the input and of the parameters."""
    x = x.clone().requires_grad_()
    y = module(x) if run is None else run(x)
    weights = list(module.parameters())
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(4))
    return [y, *torch.autograd.grad(y, [x, *weights], g)]


def _same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("how", RECIPES.values(), ids=RECIPES)
def test_ones_own_module_by_hand(how):
    module = Scores()
    cpd.convert(module, how, coverage=False)

    def by_hand(x):
        y = cpd.functional.linear(x, module.weight, recipe=how)
        z = cpd.functional.matmul(cpd.functional.matmul(x, y.mT, recipe=how), y, recipe=how)
        return cpd.functional.linear(z, module.out.weight, module.out.bias, recipe=how)

    assert _same(_gradients(module, _x(3, 5, 32)), _gradients(module, _x(3, 5, 32), by_hand))


def test_each_call_draws_from_its_own_position():
    module = Scores().train()
    cpd.convert(module, DRAWING, coverage=False)
    x = _x(3, 5, 32) / 8
    got = module(x)
    stream = module.cpd_clock << 36

    def at(layer, position):
        return {"recipe": DRAWING, "stream": stream ^ layer << 20 ^ position}

    y = cpd.functional.linear(x, module.weight, **at(0, 0))
    how = at(0, 256)
    z = cpd.functional.matmul(x, y.mT, **how)
    how = at(0, 512)
    z = cpd.functional.matmul(z, y, **how)
    assert torch.equal(
        got, cpd.functional.linear(z, module.out.weight, module.out.bias, **at(1, 0))
    )
    assert got.isfinite().all()
    assert not torch.equal(got, module(x))


@pytest.mark.few("", 3)
@pytest.mark.parametrize("how", [*RECIPES.values(), DRAWING], ids=[*RECIPES, "draws"])
def test_compiled_as_eager(how):
    module = Scores()
    cpd.convert(module, how, coverage=False)
    eager = _gradients(module, _x(3, 5, 32))
    if hasattr(module, "cpd_clock"):
        module.cpd_clock.zero_()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert _same(_gradients(module, _x(3, 5, 32), compiled), eager)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_compute_the_same(again):
    module = Scores()
    cpd.convert(module, RECIPES["sums"], coverage=False)
    assert torch.equal(again(module)(_x(2, 5, 32)), module(_x(2, 5, 32)))
    cpd.restore(module)
    assert type(module) is Scores


def test_within_autocast_a_converted_module_keeps_its_recipe():
    module = Scores()
    cpd.convert(module, RECIPES["sums"], coverage=False)
    alone = module(_x(2, 5, 32))
    with cpd.autocast(cpd.Recipe(sums="e3m0")):
        assert torch.equal(module(_x(2, 5, 32)), alone)


def test_a_rule_leaves_it_to_torch():
    module = nn.Sequential(Scores())
    plain = module(_x(2, 5, 32))
    report = cpd.convert(module, RECIPES["sums"], [(Scores, None)], coverage=False)
    assert "left in torch" in report[0].why_not
    assert torch.equal(module(_x(2, 5, 32)), plain)


def test_a_subclass_with_another_forward_is_not_known():
    class Other(Scores):
        def forward(self, x):
            return x @ self.weight

    assert "cpd.nn.register" in str(
        cpd.convert(Other(), cpd.Recipe(sums="e4m3"), coverage=False)[0].why_not
    ) or (
        "its own code" in cpd.convert(Other(), cpd.Recipe(sums="e4m3"), coverage=False)[0].why_not
    )


def test_as_a_class_of_torch():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 32))
            self.bias = None

        def forward(self, x):
            return x @ self.weight.T

    cpd.nn.register(Mine, nn.Linear)
    module = Mine()
    cpd.convert(module, RECIPES["sums"], coverage=False)
    wanted = cpd.functional.linear(_x(2, 32), module.weight, recipe=RECIPES["sums"])
    assert torch.equal(module(_x(2, 32)), wanted)


def test_a_norm_of_ones_own():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.randn(8))

        def forward(self, x):
            return self.gain * x / x.square().mean(-1, keepdim=True).sqrt()

    cpd.nn.register(Norm, "norm")
    module, plain = Norm(), Norm()
    plain.load_state_dict(module.state_dict())
    cpd.convert(module, cpd.Recipe("native", norm="(4,3)"), coverage=False)
    spec = cpd.Cast("e4m3")
    by_hand = _gradients(plain, _x(3, 8), lambda x: rounded(plain(x), spec, spec))
    assert _same(_gradients(module, _x(3, 8)), by_hand)
    assert torch.equal(module(_x(3, 8)), cpd.cast(plain(_x(3, 8)), "e4m3"))
    report = cpd.convert(Norm(), "mxfp8", coverage=False)
    assert "no format for it (norm=)" in report[0].why_not


@pytest.mark.parametrize(
    ("cls", "how", "error"),
    [
        (Scores, "product", "'products', 'attention', 'norm'"),
        (Scores, nn.ReLU, "class of torch that cpd.convert knows"),
        (Scores, "norm", "registered already"),
        (nn.Linear, "products", "torch's own"),
        (torch.Tensor, "products", "class of modules"),
        (Scores(), "products", "class of modules"),
    ],
)
def test_bad_registrations(cls, how, error):
    with pytest.raises((ValueError, TypeError), match=error):
        cpd.nn.register(cls, how)


# ---- torch's that compute by functions of their own ----------------------------------------------


def test_bilinear():
    module = nn.Bilinear(32, 32, 4)
    cpd.convert(module, RECIPES["sums"], coverage=False)
    x, y = _x(3, 32), _x(3, 32) + 1
    wanted = cpd.functional.bilinear(x, y, module.weight, module.bias, recipe=RECIPES["sums"])
    assert torch.equal(module(x, y), wanted)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows(mode):
    module = nn.EmbeddingBag(9, 8, mode=mode)
    plain = copy.deepcopy(module)
    cpd.convert(module, cpd.Recipe("native", embedding="(4,3)"), coverage=False)
    rows, starts = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 4])
    assert torch.equal(module(rows, starts), cpd.cast(plain(rows, starts), "e4m3"))


def test_synchronised_norms():
    module, plain = nn.SyncBatchNorm(4).eval(), nn.SyncBatchNorm(4).eval()
    report = cpd.convert(module, RECIPES["norms"], coverage=False)
    assert report[0].what == "norm"
    assert torch.equal(module(_x(2, 4, 3)), cpd.cast(plain(_x(2, 4, 3)), "bf16"))


# ---- transformers --------------------------------------------------------------------------------


def test_conv1d_is_a_linear_layer_of_the_transposed_weight():
    at_hand.transformers()
    from transformers.pytorch_utils import Conv1D

    module = Conv1D(6, 32)
    for how in RECIPES.values():
        cpd.convert(module, how, coverage=False)

        def by_hand(x, how=how):
            return cpd.functional.linear(x, module.weight.t(), module.bias, recipe=how)

        assert _same(_gradients(module, _x(2, 5, 32)), _gradients(module, _x(2, 5, 32), by_hand))


@pytest.mark.few("", 4)
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3", "bert", "vit"])
@pytest.mark.parametrize("recipe", ["bf16", RECIPES["attention"]], ids=["bf16", "attention"])
def test_implementations_of_attention_have_the_same_bits(name, recipe):
    losses = []
    flex = ["flex_attention"] if name != "gpt2" else []  # transformers has no flex for gpt2
    for implementation in ("sdpa", "eager", *flex):
        model, inputs = at_hand.of_transformers(name, attn_implementation=implementation)
        cpd.convert(model, recipe, coverage=False)
        loss = at_hand.loss_of(model(**inputs))
        loss.backward()
        losses.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(_same(losses[0], each) for each in losses[1:])


def test_flex_attention_with_a_score_function_is_refused():
    model, inputs = at_hand.of_transformers("gemma2", attn_implementation="flex_attention")
    cpd.convert(model, "bf16", coverage=False)
    with pytest.raises(ValueError, match="flex_attention with softcap is not emulated"):
        model(**inputs)


def test_attention_that_the_recipe_leaves_to_torch_is_named():
    model, _ = at_hand.of_transformers("llama")
    report = cpd.convert(model, "mxfp8", coverage=False)
    reasons = {row.why_not for row in report if row.kind == "LlamaAttention"}
    assert reasons == {"the recipe leaves attention's products to torch (attention=)"}


@pytest.mark.few("", 3)
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("how", [RECIPES["casts"], RECIPES["sums"]], ids=["casts", "sums"])
def test_all_implementations_of_experts_have_the_same_bits(name, how):
    steps = []
    for implementation in ("eager", "batched_mm", "grouped_mm"):
        model, inputs = at_hand.of_transformers(name, experts_implementation=implementation)
        cpd.convert(model, how, coverage=False)
        loss = at_hand.loss_of(model(**inputs))
        loss.backward()
        steps.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert _same(steps[0], steps[1])
    assert _same(steps[0], steps[2])


def test_experts_by_hand():
    model, _ = at_hand.of_transformers("mixtral")
    cpd.convert(model, RECIPES["sums"], coverage=False)
    experts = model.model.layers[0].mlp.experts
    tokens, chosen = _x(6, 64), torch.tensor([[0, 1], [2, 0], [0, 3], [3, 1], [1, 0], [0, 2]])
    weights = torch.rand(6, 2)
    result = torch.zeros(6, 2, 64)
    for expert in range(4):
        where = (chosen == expert).nonzero()  # sorted by token, then by index
        x = tokens[where[:, 0]]
        up = cpd.functional.linear(x, experts.gate_up_proj[expert], recipe=RECIPES["sums"])
        gate, up = up.chunk(2, -1)
        y = cpd.functional.linear(
            experts.act_fn(gate) * up, experts.down_proj[expert], recipe=RECIPES["sums"]
        )
        result[where[:, 0], where[:, 1]] = y * weights[where[:, 0], where[:, 1], None]
    assert torch.equal(experts(tokens, chosen, weights), result.sum(1))


def test_a_mixer_multiplies_by_weights_of_layers_that_it_does_not_call():
    model, inputs = at_hand.of_transformers("mamba")
    report = cpd.convert(model, RECIPES["sums"])
    at_hand.loss_of(model(**inputs)).backward()
    assert report.coverage().share == 1
    assert not report.coverage().never_called
    within = {row.name for row in report if row.how == "within backbone.layers.0.mixer"}
    assert within == {f"backbone.layers.0.mixer.{name}" for name in ("conv1d", "dt_proj")}


def test_norms_of_transformers():
    model, _ = at_hand.of_transformers("llama")
    norm = model.model.norm
    plain = copy.deepcopy(norm)
    cpd.convert(model, RECIPES["norms"], coverage=False)
    spec = RECIPES["norms"].norm
    by_hand = _gradients(plain, _x(2, 5, 64), lambda x: rounded(plain(x), spec, spec))
    assert _same(_gradients(norm, _x(2, 5, 64)), by_hand)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])  # mamba's scan is another one there
def test_models_of_transformers_compiled_as_eager(name):
    steps = []
    for compiled in (False, True):
        torch.compiler.reset()
        model, inputs = at_hand.of_transformers(name)
        cpd.convert(
            model,
            RECIPES["casts"].replace(attention=cpd.Recipe(sums="e6m9 chunked")),
            coverage=False,
        )
        run = torch.compile(model, backend="aot_eager") if compiled else model
        loss = at_hand.loss_of(run(**inputs))
        loss.backward()
        steps.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert _same(*steps)


# ---- timm ----------------------------------------------------------------------------------------


def test_standardized_convolutions_of_timm():
    package = at_hand.timm()
    module = package.layers.ScaledStdConv2d(3, 4, 3, padding=1)
    how = RECIPES["sums"]
    cpd.convert(module, how, coverage=False)

    def by_hand(x):
        weight = F.batch_norm(
            module.weight.reshape(1, 4, -1), None, None, (module.gain * module.scale).view(-1),
            training=True, momentum=0.0, eps=module.eps,
        ).reshape_as(module.weight)  # fmt: skip
        return cpd.functional.conv2d(x, weight, module.bias, padding=1, recipe=how)

    assert _same(_gradients(module, _x(2, 3, 6, 6)), _gradients(module, _x(2, 3, 6, 6), by_hand))


def test_norms_of_timm():
    package = at_hand.timm()
    module, plain = package.layers.LayerNorm2d(4), package.layers.LayerNorm2d(4)
    cpd.convert(module, RECIPES["norms"], coverage=False)
    assert torch.equal(module(_x(2, 4, 3, 3)), cpd.cast(plain(_x(2, 4, 3, 3)), "bf16"))
