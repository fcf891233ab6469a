# SPDX-License-Identifier: Apache-2.0
"""Tests loss scaling, LARS, and the options of a recipe for the optimizer."""

from __future__ import annotations

import math

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cpd.optim import LARS, LossScaler, LowPrecision, from_recipe  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

INFINITE = float("inf")


def weight(*values, **options):
    return nn.Parameter(torch.tensor(values, **options))


# ---- LossScaler ----------------------------------------------------------------------------------


def test_the_scale_follows_the_gradients():
    """LossScaler's scale equals the scale of torch.amp.GradScaler after each step."""
    p, q = weight(1.0, 2.0), weight(1.0, 2.0)
    ours = LossScaler(2.0**10, growth=4.0, backoff=0.25, interval=2)
    torchs = torch.amp.GradScaler("cpu", 2.0**10, 4.0, 0.25, 2)
    optimizers = torch.optim.SGD([p], lr=0.5), torch.optim.SGD([q], lr=0.5)
    for finite in (True, True, True, False, True, False, False, True, True, True):
        for x, scaler, optimizer in ((p, ours, optimizers[0]), (q, torchs, optimizers[1])):
            optimizer.zero_grad()
            loss = (x * (1.0 if finite else INFINITE)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert same(p.detach(), q.detach())
        assert ours.get_scale() == torchs.get_scale()


def test_the_scale_has_bounds():
    p = weight(1.0)
    sgd, scaler = torch.optim.SGD([p], lr=0.0), LossScaler(2.0, interval=1, least=1.0, most=4.0)
    scales = []
    for value in (1.0, 1.0, float("nan"), -INFINITE, INFINITE, INFINITE):
        p.grad = torch.tensor([value])
        scaler.step(sgd)
        scales.append(scaler.update())
    assert scales == [4.0, 4.0, 2.0, 1.0, 1.0, 1.0]


def test_static_scales_make_every_step():
    p = weight(1.0)
    sgd, scaler = torch.optim.SGD([p], lr=1.0), LossScaler(8.0, dynamic=False)
    p.grad = torch.tensor([16.0])
    scaler.step(sgd)
    assert scaler.update() == 8.0
    assert p.item() == -1
    p.grad = torch.tensor([INFINITE])
    scaler.step(sgd)
    assert p.item() == -INFINITE


def test_gradients_are_clipped_after_unscaling():
    p = weight(1.0, dtype=torch.bfloat16)
    sgd, scaler = torch.optim.SGD([p], lr=1.0), LossScaler(256.0)
    scaler.scale((4 * p).sum()).backward()
    assert p.grad.item() == 1024
    scaler.unscale_(sgd)
    assert p.grad.item() == 4
    with pytest.raises(RuntimeError, match="unscale_ was called already"):
        scaler.unscale_(sgd)
    nn.utils.clip_grad_value_([p], 0.5)
    scaler.step(sgd)
    assert p.item() == 0.5


def test_one_of_two_optimizers_and_sparse_gradients():
    layer = nn.Embedding(5, 2, sparse=True)
    p, before = weight(1.0), layer.weight.detach().clone()
    one, two = torch.optim.SGD(layer.parameters(), lr=1.0), torch.optim.SGD([p], lr=1.0)
    scaler = LossScaler(4.0)
    scaler.scale(layer(torch.tensor([1, 1])).sum()).backward()
    p.grad = torch.tensor([float("nan")])
    scaler.step(one)
    scaler.step(two)
    assert p.item() == 1
    assert same(before[1] - 2, layer.weight.detach()[1])
    assert scaler.update() == 2.0


def test_the_state_of_a_scaler():
    p = weight(1.0)
    sgd = torch.optim.SGD([p], lr=0.0)
    whole, before, after = (LossScaler(2.0, interval=3) for _ in range(3))

    def run(scaler, steps):
        for _ in range(steps):
            p.grad = torch.ones(1)
            scaler.step(sgd)
            scaler.update()
        return scaler.state_dict()

    run(before, 2)
    after.load_state_dict(before.state_dict())
    assert run(after, 2) == run(whole, 4) == {"scale": 4.0, "steps": 1}


def test_a_compiled_loss_stays_compiled():
    scaler = LossScaler(4.0)
    program, counter = compiled(lambda x: scaler.scale(x.sum()))
    for scale in (4.0, 2.0, 8.0):
        scaler.load_state_dict({"scale": scale, "steps": 0})
        assert program(torch.ones(2)) == 2 * scale
    assert counter.frame_count == 1


def test_errors_of_a_scaler():
    for options in ({"scale": 0.0}, {"scale": INFINITE}, {"scale": 2.0, "most": 1.0}):
        with pytest.raises(ValueError, match="scale must be finite, above 0, from least to most"):
            LossScaler(**options)
    for options in ({"growth": 1.0}, {"backoff": 1.0}):
        with pytest.raises(ValueError, match="growth must be above 1, backoff in"):
            LossScaler(**options)
    with pytest.raises(ValueError, match="interval must be at least 1"):
        LossScaler(interval=0)
    with pytest.raises(RuntimeError, match="call step or unscale_ before update"):
        LossScaler().update()
    p = weight(1.0, dtype=torch.float16)
    p.grad = torch.ones_like(p)
    sgd = torch.optim.SGD([p], lr=1.0)
    with pytest.raises(TypeError, match="must not be float16"):
        LossScaler().step(sgd)
    with pytest.raises(ValueError, match="closure is not supported"):
        LossScaler().step(sgd, lambda: None)


# ---- LARS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lars_written_by_hand(momentum, nesterov):
    how = {"lr": 2.0, "weight_decay": 0.1, "trust": 0.02, "eps": 1e-3}
    params = [nn.Parameter(normal(5, 4, seed=i)) for i in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "adaptive": False}]
    optimizer = LARS(groups, momentum=momentum, nesterov=nesterov, **how)
    weights = [p.detach().clone() for p in params]
    momenta = [torch.zeros(5, 4) for _ in params]
    for step in range(3):
        for i, p in enumerate(params):
            g = p.grad = normal(5, 4, seed=10 * step + i)
            w = weights[i]
            of_w, of_g = (math.sqrt(x.double().square().sum()) for x in (w, g))
            rate = 2.0 if i else 2.0 * 0.02 * of_w / (of_g + 0.1 * of_w + 1e-3)
            change = (g + 0.1 * w) * rate
            momenta[i] = momentum * momenta[i] + change
            if momentum:
                change = momenta[i] * momentum + change if nesterov else momenta[i]
            weights[i] = w - change
        optimizer.step()
        assert torch.allclose(torch.stack(weights), torch.stack([p.detach() for p in params]))


def test_lars_of_zeros():
    p = weight(0.0, 0.0)
    p.grad = torch.tensor([1.0, 2.0])
    LARS([p], lr=0.5).step()
    assert p.tolist() == [-0.5, -1.0]
    p.grad = torch.zeros(2)
    LARS([p], lr=0.5).step()
    assert p.tolist() == [-0.5, -1.0]


def test_lars_in_low_precision():
    p = nn.Parameter(normal(8, 8))
    optimizer = LowPrecision(LARS([p], lr=1.0), "bf16", momentum="e5m2")
    p.grad = normal(8, 8, seed=1)
    optimizer.step()
    assert same(p.detach(), cpd.cast(p.detach(), "bf16"))
    kept = optimizer.state[p]["momentum_buffer"]
    assert same(kept, cpd.cast(kept, "e5m2"))


def test_errors_of_lars():
    with pytest.raises(ValueError, match="trust must be at least 0, got -1"):
        LARS([weight(1.0)], lr=1.0, trust=-1)
    for lr in (math.nan, -1.0):
        with pytest.raises(ValueError, match="lr must be at least 0"):
            LARS([weight(1.0)], lr=lr)
    layer = nn.Embedding(5, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="LARS takes dense gradients"):
        LARS(layer.parameters(), lr=1.0).step()


# ---- recipes -------------------------------------------------------------------------------------


def made(optimizer=None, loss_scale=None, **options):
    adam = torch.optim.AdamW([weight(1.0)])
    recipe = cpd.Recipe("native", optimizer=optimizer, loss_scale=loss_scale)
    return from_recipe(adam, recipe, **options)


def test_a_recipe_without_words():
    adam = torch.optim.AdamW([weight(1.0)])
    optimizer, scaler = from_recipe(adam, "native")
    assert optimizer is adam
    assert scaler.scale(torch.tensor(3.0)) == 3
    assert not scaler.dynamic


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("bf16", "weight='bf16'"),
        ("bf16 update=kahan", "weight='bf16', update='kahan'"),
        (
            "e5m6 random_bits=16 overflow=saturate update=stochastic master=fp32",
            "weight='e5m6 rounding=stochastic overflow=saturate random_bits=16', master='fp32'",
        ),
        (
            "bf16 update=stochastic random_bits=16",
            "weight='bf16 rounding=stochastic random_bits=16'",
        ),
        (
            "momentum='bf16 rounding=stochastic' second_moment=\"e4m3fn 256\" gradient=e5m2",
            "momentum='bf16 rounding=stochastic', second_moment='mxfp8 256', gradient='e5m2'",
        ),
        ("master=e6m12 fp16 momentum=fp16", "weight='fp16', master='e6m12', momentum='fp16'"),
    ],
)
def test_texts_of_recipes(text, formats):
    optimizer, _ = made(text, seed=5)
    assert str(optimizer.formats) == formats
    assert optimizer.seed == 5


def test_loss_scales_of_recipes():
    assert made(loss_scale="dynamic")[1].get_scale() == 65536
    static = made(loss_scale=128)[1]
    assert static.get_scale() == 128
    assert not static.dynamic


@pytest.mark.parametrize("name", cpd.Recipe.named())
def test_ready_recipes(name):
    p = weight(1.0)
    recipe = cpd.Recipe(name)
    inner = torch.optim.AdamW([p])
    optimizer, scaler = from_recipe(inner, recipe)
    assert isinstance(optimizer, LowPrecision) == bool(recipe.optimizer)
    scaler.scale(2 * p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert p.grad.item() == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "optimizer='': an optimizer's text is empty"),
        ("update=kahan", "update= and master= need a weight format, got weight=None"),
        ("bf16 update=kahan update=kahan", "update is given twice"),
        ("blub", "optimizer='blub': weight: .*blub"),
        ("bf16 update=odd", "update must be one of nearest_even, stochastic, kahan"),
        ("momentum=blub", "optimizer='momentum=blub': momentum: .*blub"),
        ("bf16 momentun=bf16", "weight: .*momentun"),
        ("momentum='bf16", "a quote is not closed"),
        ("momentum=bf16 momentum=bf16", "momentum is given twice"),
    ],
)
def test_texts_that_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        made(text)
