# SPDX-License-Identifier: Apache-2.0
"""Tests the report of how much of a training step ran emulated. The counts are derived by hand, for
eager, compiled, traced and checkpointed steps."""

import copy
import gc
import pickle
import warnings

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import cpd
from cpd.numeric.warned import PrecisionWarning

WIDTH = 8


class Block(nn.Module):
    """Two linear layers with products between them that belong to no layer."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def _forward(self, x):
        y = self.second(self.first(x).relu())
        return y + (x @ x.mT) @ x

    def forward(self, x):
        if self.checkpointed is None:
            return self._forward(x)
        return checkpoint(self._forward, x, use_reentrant=self.checkpointed)


class Model(nn.Module):
    def __init__(self, checkpointed=None):
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(2))
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x, *, scale=1.0):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x) * scale}


BATCH, LENGTH = 4, 4  # 16 rows, as many as a Hadamard transform takes: it appends no zeros
ROWS = BATCH * LENGTH
EMBED = ROWS * WIDTH * WIDTH
LINEARS = 2 * (2 * ROWS * WIDTH * 2 * WIDTH)
HEAD = ROWS * WIDTH * 3
MATRICES = 2 * (2 * BATCH * LENGTH * LENGTH * WIDTH)
EMULATED = 3 * (EMBED + LINEARS + HEAD) - EMBED
"""The number of emulated multiply-accumulates of a training step. A layer's product counts three
times. The first layer's (EMBED) counts twice, because the gradient of the model's input is not
computed."""
ALL = EMULATED + 3 * MATRICES


def _converted(recipe="mxfp8", model=None, **options):
    torch.manual_seed(0)
    model = Model() if model is None else model
    return model, cpd.convert(model, recipe, **options)


def _x():
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def _step(model, **keywords):
    model(_x(), **keywords)["logits"].square().sum().backward()


def _quiet_step(model, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        _step(model, **keywords)


def test_counted_by_hand():
    model, report = _converted()
    _quiet_step(model)
    coverage = report.coverage()
    assert coverage.macs == ALL
    assert coverage.share == pytest.approx(EMULATED / ALL)
    assert coverage.by_recipe == {"mxfp8": pytest.approx(EMULATED / ALL)}
    left = {(p.module, p.operation): 0 for p in coverage.left}
    for p in coverage.left:
        left[p.module, p.operation] += p.macs
    each = 3 * MATRICES // 2
    assert left == {("blocks.0", "aten.bmm"): each, ("blocks.1", "aten.bmm"): each}
    assert coverage.never_called == ("unused",)
    weights = WIDTH * WIDTH + 4 * WIDTH * 2 * WIDTH + 3 * WIDTH
    assert (coverage.parameters, coverage.emulated_parameters) == (weights, weights)


@pytest.mark.parametrize(
    "recipe", ["mxfp8", cpd.Recipe(sums="e6m9 chunked"), "int8 row", "nvfp4", "te-delayed"], ids=str
)
def test_all_recipes_count_the_same_products(recipe):
    model, report = _converted(recipe)
    _quiet_step(model)
    assert report.coverage().macs == ALL
    assert 1 - report.coverage().share == pytest.approx(3 * MATRICES / ALL)


def test_recipes_by_their_names():
    model, report = _converted("mxfp8", rules=[("head", cpd.Recipe(sums="e4m3")), ("embed", None)])
    _quiet_step(model)
    shares = {"mxfp8": 3 * LINEARS / ALL, "native sums='e4m3 sequential'": 3 * HEAD / ALL}
    assert list(report.coverage().by_recipe.items()) == [
        (name, pytest.approx(share)) for name, share in shares.items()
    ]
    assert {p.module for p in report.coverage().left} == {"embed", "blocks.0", "blocks.1"}
    assert report.coverage().emulated_parameters == report.coverage().parameters - WIDTH**2


def _sums(coverage):
    """Sums the multiply-accumulates by module, direction and recipe."""
    sums = {}
    for p in coverage.products:
        key = p.module, p.backward, p.recipe
        sums[key] = sums.get(key, 0) + p.macs
    return sums


@pytest.mark.exhaustive
def test_compiled_as_eager():
    model, report = _converted("nvfp4")
    _quiet_step(model)
    other, of_compiled = _converted("nvfp4")
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    with pytest.warns(PrecisionWarning, match="not emulated"):
        _step(compiled, scale=2.0)
    assert _sums(of_compiled.coverage()) == _sums(report.coverage())
    with warnings.catch_warnings():  # torch warns of itself as it traces an autograd function
        warnings.simplefilter("error", PrecisionWarning)
        compiled(torch.randn(3, 7, WIDTH))["logits"].sum().backward()


@pytest.mark.parametrize("recipe", ["mxfp8", "te-delayed"])
def test_each_of_several_compiled_models_is_counted(recipe):
    """Two compiled models of the same class are both counted, although the second reuses compiled
    code of the first."""
    by_hand, report = _converted(recipe)
    _quiet_step(by_hand)
    for _ in range(2):
        model, of_compiled = _converted(recipe)
        _quiet_step(torch.compile(model, backend="eager"))
        assert _sums(of_compiled.coverage()) == _sums(report.coverage())


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_parts_that_are_compiled_run_eagerly_in_the_counted_step(backend):
    model, report = _converted("mxfp8")
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True)
    _quiet_step(model)
    assert report.coverage().macs == ALL
    assert counter.frame_count == 0
    _step(model)
    assert counter.frame_count > 0


def test_flex_attention_within_a_counted_step():
    from torch.nn.attention.flex_attention import flex_attention

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(8, 8)

        def forward(self, x):
            with torch.no_grad():  # the product has no backward pass on CPUs
                y = flex_attention(x, x, x)
            return self.out(y)

    model, report = _converted("mxfp8", Frozen(), coverage=0)
    model(torch.randn(1, 2, 128, 8)).sum().backward()
    (left,) = report.coverage().left
    assert (left.operation, left.macs) == ("flex_attention", 2 * 128 * 128 * 16)


def test_a_trace_computes_and_changes_nothing():
    model, report = _converted("te-delayed")
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    traced = report.coverage(_x(), scale=3.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    _quiet_step(model)
    assert _sums(traced) == _sums(report.coverage())


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_not_counted(reentrant):
    model, report = _converted("mxfp8", Model(reentrant))
    _quiet_step(model)
    assert report.coverage().macs == ALL
    assert report.coverage().share == pytest.approx(EMULATED / ALL)


def test_gradients_that_have_gradients():
    model, report = _converted("mxfp8")
    loss = model(_x())["logits"].square().sum()
    with pytest.warns(PrecisionWarning):
        torch.autograd.grad(loss, list(model.embed.parameters()), create_graph=True)
    coverage = report.coverage()
    assert {p.backward for p in coverage.products} == {False, True}
    assert coverage.share < 1


def test_it_warns_once_and_leaves_nothing_behind():
    model, report = _converted()
    hooks = len(model._forward_pre_hooks)
    with pytest.warns(PrecisionWarning, match=r"aten\.bmm in blocks\.\*") as seen:
        _step(model)
    assert len(seen) == 1
    assert len(model._forward_pre_hooks) == hooks - 1
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in list(model.modules())[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _step(model)
    assert report.coverage().macs == ALL


def test_bits_are_those_without_a_count():
    counted, _ = _converted("nvfp4")
    plain, _ = _converted("nvfp4", coverage=False)
    for _ in range(2):
        _quiet_step(counted)
        _quiet_step(plain)
    for a, b in zip(counted.parameters(), plain.parameters(), strict=True):
        assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("limit", [0, 0.5, False])
def test_limits_below_which_it_does_not_warn(limit):
    model, report = _converted(coverage=limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _step(model)
    if limit is False:
        with pytest.raises(ValueError, match="coverage=False"):
            report.coverage()


@pytest.mark.parametrize("limit", [-0.1, 1.1, "0.9", None])
def test_limits_that_are_none(limit):
    with pytest.raises((ValueError, TypeError), match="coverage"):
        cpd.convert(nn.Linear(2, 2), cpd.Recipe(sums="e4m3"), coverage=limit)


def test_a_recipe_that_rounds_nothing_in_layers():
    model, report = _converted("aps-e4m3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _step(model)
    assert report.coverage().share == 0
    assert str(report).startswith("coverage: 0 % emulated")


def test_before_a_step_there_is_nothing():
    model, report = _converted()
    model.eval()
    model(_x())
    model.train()
    with torch.no_grad():
        model(_x())
    with pytest.raises(ValueError, match="no training step was counted yet"):
        report.coverage()
    assert "coverage" not in str(report)
    _quiet_step(model)
    assert str(report).startswith(f"coverage: {100 * EMULATED / ALL:.1f} % emulated")


def _in_parts(model):
    x = model.embed(_x())
    for block in model.blocks:
        x = block(x)
    model.head(x).square().sum().backward()


@pytest.mark.parametrize("recipe", ["mxfp8", "te-delayed"])
@pytest.mark.parametrize("again", [None, copy.deepcopy])
def test_calls_of_parts_are_counted_as_one_step(again, recipe):
    model, report = _converted(recipe)
    if again is not None:
        model = again(model)
    with torch.no_grad():
        model.embed(_x())
    with pytest.warns(PrecisionWarning, match=r"aten\.bmm in blocks\.\*") as seen:
        _in_parts(model)
    assert len(seen) == 1
    coverage = cpd.nn.coverage.coverage_of(model)
    assert coverage.macs == ALL
    assert coverage.share == pytest.approx(EMULATED / ALL)
    assert coverage.never_called == ("unused",)
    assert not any(
        isinstance(getattr(hook, "__self__", None), cpd.nn.coverage.Census)
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _in_parts(model)
        _step(model)
    assert again or report.coverage() is coverage


def test_a_forward_that_is_called_by_itself_is_counted():
    model, report = _converted("mxfp8", coverage=0)
    model.forward(_x())["logits"].square().sum().backward()
    assert report.coverage().macs == ALL


def test_training_in_eval_mode_is_counted():
    model, report = _converted("mxfp8", coverage=0)
    model.eval()
    _step(model)
    assert report.coverage().macs == ALL


def test_parts_outlive_their_model():
    model, report = _converted("nvfp4", coverage=0)
    part = model.blocks[0]
    del model
    gc.collect()
    part(_x()).sum().backward()
    with pytest.raises(ValueError, match="no training step was counted yet"):
        report.coverage()


def test_parts_that_are_not_converted_are_counted():
    model, report = _converted("mxfp8", rules=[("embed", None)], coverage=0)
    for _ in range(2):
        _in_parts(model)
    assert {p.module for p in report.coverage().left} == {"embed", "blocks.0", "blocks.1"}
    assert report.coverage().macs == ALL


def test_a_part_that_fails_is_not_counted():
    model, report = _converted("mxfp8", coverage=0)
    with pytest.raises(ValueError, match="in"):
        model.head(torch.ones(2, WIDTH + 1))
    _in_parts(model)
    assert report.coverage().macs == ALL


def test_a_compiled_part_is_traced():
    model, report = _converted("mxfp8", coverage=0)
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    block = torch.compile(model.blocks[0], backend=counter, fullgraph=True)
    frames = []
    for _ in range(3):
        block(_x()).square().sum().backward()
        frames.append(counter.frame_count)
    assert frames[0] == frames[-1]
    assert {p.module for p in report.coverage().products} >= {"blocks.0.first", "blocks.0"}


def test_a_step_that_fails_is_not_counted():
    model, report = _converted()
    with pytest.raises(ValueError, match="in"):
        model(torch.ones(2, 3, WIDTH + 1))
    _quiet_step(model)
    assert report.coverage().macs == ALL


def test_without_a_backward_pass_the_forward_pass_is_counted():
    model, report = _converted()
    model(_x())
    with pytest.warns(PrecisionWarning):
        assert report.coverage().macs == EMBED + LINEARS + HEAD + MATRICES


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_count_for_themselves(again):
    model, report = _converted()
    copied = again(model)
    with pytest.warns(PrecisionWarning):
        _step(copied)
    with pytest.raises(ValueError, match="no training step was counted yet"):
        report.coverage()
    _quiet_step(model)
    assert report.coverage().macs == ALL


def test_restored_models_count_nothing():
    model, _ = _converted()
    cpd.restore(model)
    assert not model._forward_pre_hooks
    _step(model)


def test_autocast_within_a_model():
    class Within(Model):
        def forward(self, x):
            with cpd.autocast("mxfp8"):
                return super().forward(x)

    model, report = _converted("nvfp4", Within())
    _quiet_step(model)
    coverage = report.coverage()
    assert coverage.share == 1
    assert coverage.by_recipe["mxfp8"] == pytest.approx(3 * MATRICES / ALL)


def test_attention_that_the_recipe_leaves_to_torch():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    report = cpd.convert(model, "mxfp8", coverage=0)
    model(torch.randn(2, 5, 16)).sum().backward()
    assert {p.module for p in report.coverage().left} == {"self_attn"}
    with_attention = cpd.Recipe("mxfp8").replace(attention=cpd.Recipe("bf16"))
    report = cpd.convert(model, with_attention, coverage=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.randn(2, 5, 16)).sum().backward()
        assert report.coverage().share == 1
    assert set(report.coverage().by_recipe) == {"mxfp8", "bf16"}


def test_a_model_without_products():
    model, report = _converted("mxfp8", nn.Sequential(nn.LayerNorm(4), nn.ReLU()))
    model(torch.ones(2, 4)).sum().backward()
    assert report.coverage().share == 1
    assert "had no products" in str(report.coverage())


def test_as_plain_data():
    model, report = _converted()
    _quiet_step(model)
    data = report.coverage().to_dict()
    assert data["never_called"] == ["unused"]
    assert data["left"][0].keys() == {"module", "operation", "backward", "macs", "calls"}
    assert sum(p["macs"] for p in data["left"]) == 3 * MATRICES


def test_functional_products_of_ones_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return F.linear(
                cpd.functional.linear(x, self.weight, recipe=cpd.Recipe(sums="e4m3")), self.weight
            )

    model, report = _converted("mxfp8", Own(), coverage=0)
    model(torch.randn(2, 4)).sum().backward()
    recipes = {(p.operation, p.recipe) for p in report.coverage().products if not p.backward}
    assert recipes == {("cpd.matmul", "native sums='e4m3 sequential'"), ("aten.mm", "")}
    assert report.coverage().emulated_parameters == 0


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("recipe", ["mxfp8", "bf16"])
def test_each_parameter_counts_once(recipe):
    """The report counts each parameter once, also a tied weight. The four matrices of attention
    have 4 · 64² numbers, which count as emulated even if attention itself is not. A parametrized
    weight counts by its original parameters."""

    def counted(model, *x):
        report = cpd.convert(model, recipe, coverage=0)
        model(*x).square().sum().backward()
        found = report.coverage()
        assert found.emulated_parameters == found.parameters
        return found.parameters

    x = torch.randn(2, 8, 64)
    assert counted(Attending(), x) == 4 * 64 * 64
    norms = nn.utils.parametrizations
    assert counted(nn.Sequential(norms.spectral_norm(nn.Linear(64, 32))), x) == 64 * 32
    assert counted(nn.Sequential(norms.weight_norm(nn.Linear(64, 32))), x) == 64 * 32 + 32
    tied = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    tied[2].weight = tied[0].weight
    assert counted(tied, x) == 64 * 64


def test_a_parameter_in_a_product_that_torch_computes_is_not_emulated():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 16))
    report = cpd.convert(model, "mxfp8", [("1", None)], coverage=0)
    model(torch.randn(4, 64)).sum().backward()
    assert report.coverage().emulated_parameters == 64 * 64
    assert report.coverage().parameters == 64 * 64 + 64 * 16
