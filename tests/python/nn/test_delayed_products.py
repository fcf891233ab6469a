# SPDX-License-Identifier: Apache-2.0
"""Tests delayed scaling in layers with several products. Each product has its own scales, and the
layer equals one written by hand with a separate state for each product."""

from __future__ import annotations

import copy
import math

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from cpd import functional as ours  # noqa: E402
from cpd.nn.delayed import Delayed, at, update  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

SCALE = "e4m3fn block=tensor scale=fp32 arithmetic=te history=3"
GRADIENT = "e5m2 block=tensor scale=fp32 arithmetic=te history=3"
WITHIN = cpd.Recipe("native", activation=SCALE, weight=SCALE, gradient=GRADIENT)
HOW = cpd.Recipe("native", activation=SCALE, weight=SCALE, gradient=GRADIENT, attention=WITHIN)
STEPS = 4


class Hand(nn.Module):
    """A module written by hand, with a separate state for each product."""

    def __init__(self, module, products, forward):
        super().__init__()
        self.module = copy.deepcopy(module)
        self.products = nn.ModuleList(Delayed.of(WITHIN) for _ in range(products))
        self.compute = forward
        self.called = 0

    def linear(self, number, x, weight, bias=None):
        return ours.linear(x, weight, bias, recipe=WITHIN, delayed=self.products[number])

    def matmul(self, number, a, b):
        return ours.matmul(a, b, recipe=WITHIN, delayed=self.products[number])

    def forward(self, *inputs):
        if self.training:
            update(self.products)
        return self.compute(self, self.module, *inputs)


def steps_of(model, inputs, run=None):
    """Trains a model for some steps with growing inputs, then calls it in eval mode. Returns all
    results and gradients."""
    found = []
    run = model if run is None else run
    for step in range(STEPS):
        leaves = [(x * 3**step).requires_grad_() for x in inputs]
        y = run(*leaves)
        g = normal(*y.shape, seed=5) * 2.0**-step
        weights = [w for _, w in sorted(named_of(model))]
        found += [y, *torch.autograd.grad(y, [*leaves, *weights], g)]
    model.eval()
    found.append(run(*inputs))
    model.train()
    return found


def named_of(model):
    return [(name.removeprefix("module."), w) for name, w in model.named_parameters()]


def columns(state):
    """Returns the scales and histories of a delayed-scaling state, a row for each product."""
    history = state.amax_history.unflatten(1, (state.products, 3)).movedim(1, 0)
    return state.scale.view(state.products, 3), history


def check(module, inputs, products, forward, of_attention=0, model=None):
    """Asserts that a converted module, alone or within a model, equals the module written by
    hand in all steps. The last `of_attention` products belong to attention; their state is in
    `cpd_delayed.attention`."""
    hand, model = Hand(module, products, forward), model or module
    report = cpd.convert(model, HOW, coverage=False)
    assert not report.not_emulated
    assert same(steps_of(model, inputs), steps_of(hand, inputs))
    own = products - of_attention
    for part, of in (
        (module.cpd_delayed, hand.products[:own]),
        (module.cpd_delayed.attention, hand.products[own:]),
    ):
        if not len(of):
            continue
        scales, history = columns(part)
        assert scales[: len(of)].ne(1).any()
        for n, one in enumerate(of):
            if one.amax_history.any():  # a product that is computed
                assert same([scales[n], history[n]], [one.scale, one.amax_history])
            else:
                assert same(scales[n], torch.ones(3))


# ---- recurrent layers ----------------------------------------------------------------------------


def lstm_by_hand(hand, layer, x):
    rows, layers, directions = x, layer.num_layers, 1 + layer.bidirectional
    for depth in range(layers):
        outputs = []
        for direction in range(directions):
            end = f"_l{depth}" + "_reverse" * direction
            part = [
                getattr(layer, f"{n}_{k}{end}") for n in ("weight", "bias") for k in ("ih", "hh")
            ]
            first = 3 * (depth * directions + direction)
            of_input = hand.linear(first, rows, part[0], part[2])
            h = rows.new_zeros(rows.shape[1], layer.proj_size or layer.hidden_size)
            c = rows.new_zeros(rows.shape[1], layer.hidden_size)
            made = []
            for t in range(len(rows)) if not direction else reversed(range(len(rows))):
                total = of_input[t] + hand.linear(first + 1, h, part[1], part[3])
                i, f, g, o = total.chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                if layer.proj_size:
                    h = hand.linear(first + 2, h, getattr(layer, f"weight_hr{end}"))
                made.append(h)
            outputs.append(torch.stack(made if not direction else made[::-1]))
        rows = torch.cat(outputs, -1)
    return rows


class First(nn.Module):
    """Wraps a module that returns several results, and returns only the first."""

    def __init__(self, module, **how):
        super().__init__()
        self.module, self.how = module, how

    def forward(self, *inputs):
        return self.module(*inputs, **self.how)[0]


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}], ids=str
)
def test_a_recurrent_layer(options):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, **options)
    chains = layer.num_layers * (1 + layer.bidirectional)
    check(layer, [normal(5, 2, 3)], 3 * chains, lstm_by_hand, model=First(layer))


def test_a_cell():
    def forward(hand, cell, x, h):
        a = hand.linear(0, x, cell.weight_ih, cell.bias_ih)
        return (a + hand.linear(1, h, cell.weight_hh, cell.bias_hh)).tanh()

    torch.manual_seed(0)
    check(nn.RNNCell(3, 4), [normal(2, 3), normal(2, 4, seed=1)], 3, forward)


# ---- attention -----------------------------------------------------------------------------------


def attention_by_hand(hand, module, query, key, value):
    """Computes MultiheadAttention by hand. The time dimension is moved to the front, as in torch's
    own function."""
    heads = module.num_heads
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    parts = zip(module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3), strict=True)
    projected = [
        hand.linear(n, x, w, b).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
        for n, (x, (w, b)) in enumerate(zip((query, key, value), parts, strict=True))
    ]
    q, k, v = projected
    scores = hand.matmul(4, q, k.mT) * (1 / math.sqrt(q.shape[-1]))
    y = hand.matmul(5, torch.softmax(scores, -1), v).permute(2, 0, 1, 3).flatten(2)
    return hand.linear(3, y, module.out_proj.weight, module.out_proj.bias).transpose(0, 1)


@pytest.mark.parametrize("weights", [False, True])
def test_attention(weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    x = [normal(2, 5, 8, seed=n) for n in range(3)]
    check(module, x, 6, attention_by_hand, 2, First(module, need_weights=weights))


class Own(nn.Module):
    """A user-defined attention that calls torch's functions."""

    def __init__(self, written):
        super().__init__()
        self.written = written
        self.weight = nn.Parameter(normal(8, 8, seed=3))

    def forward(self, x):
        q = F.linear(x, self.weight)
        if not self.written:
            return F.scaled_dot_product_attention(q, x, x)
        scores = q @ x.mT * (1 / math.sqrt(8))
        return torch.softmax(scores, -1) @ x


cpd.nn.register(Own, "attention")


def own_by_hand(hand, module, x):
    q = hand.linear(0, x, module.weight)
    weights = torch.softmax(hand.matmul(1, q, x.mT) * (1 / math.sqrt(8)), -1)
    return hand.matmul(2, weights, x)


@pytest.mark.parametrize("written", [False, True])
def test_attention_of_ones_own(written):
    hand, model = Hand(Own(written), 3, own_by_hand), Own(written)
    cpd.convert(model, HOW, coverage=False)
    x = [normal(2, 5, 8)]
    assert same(steps_of(model, x), steps_of(hand, x))


# ---- modules of several products -----------------------------------------------------------------


def test_bilinear():
    def forward(hand, module, a, b):
        outputs, rows, columns = module.weight.shape
        matrix = module.weight.transpose(0, 1).reshape(rows, outputs * columns)
        inner = hand.matmul(0, a, matrix).reshape(*a.shape[:-1], outputs, columns)
        return hand.matmul(1, inner, b.unsqueeze(-1)).squeeze(-1) + module.bias

    torch.manual_seed(0)
    check(nn.Bilinear(3, 4, 5), [normal(6, 3), normal(6, 4, seed=1)], 2, forward)


def test_groups():
    state = Delayed.of(WITHIN, products=3)
    singles = [Delayed.of(WITHIN) for _ in range(3)]
    offs = torch.tensor([4, 4, 9], dtype=torch.int32)
    for step in range(STEPS):
        update([state])
        update(singles)
        a, b = (normal(*s, seed=step).requires_grad_() for s in ((9, 8), (3, 8, 5)))
        parts = zip((a[:4], a[4:4], a[4:]), b, singles, strict=True)
        wanted = torch.cat([ours.matmul(x, w, recipe=WITHIN, delayed=one) for x, w, one in parts])
        y = ours.grouped_mm(a, b, offs=offs, recipe=WITHIN, delayed=state)
        g = normal(*y.shape, seed=9)
        assert same(y, wanted)
        assert same(*(torch.autograd.grad(one, (a, b), g) for one in (y, wanted)))
    assert same(columns(state)[0], torch.stack([one.scale for one in singles]))


class Loop(nn.Module):
    """A module with 19 products. Delayed scaling has separate scales for 16 of them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(normal(4, 4, seed=3) / 2)

    def forward(self, x):
        for _ in range(19):
            x = F.linear(x, self.weight).tanh()
        return x


cpd.nn.register(Loop, "products")


def test_products_beyond_the_last_share_the_first_ones_scales():
    def forward(hand, module, x):
        for n in range(19):
            x = hand.linear(n % 16, x, module.weight).tanh()
        return x

    check(Loop(), [normal(3, 4)], 16, forward)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_experts(implementation):
    pytest.importorskip("transformers")
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config = MixtralConfig(hidden_size=8, intermediate_size=12, num_local_experts=3)
    config._experts_implementation = implementation
    torch.manual_seed(0)
    module = MixtralExperts(config)
    with torch.no_grad():
        for w in module.parameters():
            w.copy_(normal(*w.shape, seed=w.dim() + w.shape[1]) / 3)
    to = torch.tensor([0, 2, 2, 0, 2])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module(x, to[:, None], torch.ones(5, 1))

    def forward(hand, own, x):
        made = torch.zeros(5, 8)
        for expert in range(3):
            rows = (to == expert).nonzero()[:, 0]
            gate, up = hand.matmul(expert, x[rows], own.gate_up_proj[expert].mT).chunk(2, -1)
            y = hand.matmul(3 + expert, F.silu(gate) * up, own.down_proj[expert].mT)
            made = made.index_add(0, rows, y)
        return made

    model, hand = Model(), Hand(module, 6, forward)
    cpd.convert(model, HOW, coverage=False)
    assert same(steps_of(model, [normal(5, 8)]), steps_of(hand, [normal(5, 8)]))
    scales = columns(module.cpd_delayed)[0]
    assert same(scales, torch.stack([one.scale for one in hand.products]))
    assert scales[[1, 4]][:, [0, 2]].eq(1).all()  # the expert that no token chose
    assert scales[[0, 2, 3, 5]].ne(1).all()


# ---- the state -----------------------------------------------------------------------------------


def stack():
    torch.manual_seed(0)
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2
    )


@pytest.mark.exhaustive
def test_compiled_steps_have_the_same_bits():
    models = [stack(), stack()]
    for model in models:
        cpd.convert(model, HOW, coverage=False)
    x = [normal(2, 5, 8)]
    program, _ = compiled(models[1])
    assert same(steps_of(models[0], x), steps_of(models[1], x, program))


def test_it_is_saved_and_training_resumes():
    models = [stack(), stack()]
    for model in models:
        cpd.convert(model, HOW, coverage=False)
    x = [normal(2, 5, 8)]
    steps_of(models[0], x)
    state = models[0].state_dict()
    assert "layers.0.self_attn.cpd_delayed.attention.amax_history" in state
    models[1].load_state_dict(copy.deepcopy(state))
    assert same(steps_of(models[0], x), steps_of(models[1], x))
    plain = cpd.plain_state_dict(models[0])
    assert set(plain) == set(stack().state_dict())
    models[1].load_state_dict(plain)  # keeps its own
    assert same(models[1].state_dict(), models[0].state_dict())


def test_attention_alone_delays():
    model = stack()
    cpd.convert(model, cpd.Recipe("native", weight="(4,3)", attention=WITHIN), coverage=False)
    steps_of(model, [normal(2, 5, 8)])
    state = model.layers[0].self_attn.cpd_delayed
    assert state.scale.numel() == 0
    assert state.attention.scale.ne(1).all()
    assert not hasattr(model.layers[0].linear1, "cpd_delayed")


def test_errors():
    x = normal(2, 3)
    with pytest.raises(ValueError, match="Delayed of the recipe"):
        ours.gru_cell(x, normal(2, 4), normal(12, 3), normal(12, 4), recipe=WITHIN)
    with pytest.raises(ValueError, match="Delayed of the recipe"):
        ours.scaled_dot_product_attention(x, x, x, recipe=HOW)
    with pytest.raises(ValueError, match=r"which cpd\.autocast does not store"):
        cpd.autocast(cpd.Recipe("native", attention=WITHIN))
    with pytest.raises(TypeError, match=r"delayed must be a cpd\.nn\.delayed\.Delayed, got int"):
        at(3, 0)
    assert Delayed.of(cpd.Recipe(sums="e4m3")) is None
