# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints: weights of plain models load strictly into converted ones and back, and
training resumes with the same bits."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import cpd
import models_at_hand as at_hand

RECIPES = {
    "plain": cpd.Recipe(sums="e6m9 chunked", weight="(4,3)"),
    "drawing": cpd.Recipe("native", activation="(4,3) rounding=stochastic", weight="e4m3fn"),
    "delayed": cpd.Recipe("te-delayed"),
}
OF_RECIPES = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def _model(recipe=None, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    if recipe is not None:
        cpd.convert(model, recipe, coverage=False)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _train(model, optimizer, steps):
    for step in steps:
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def _same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@OF_RECIPES
def test_a_plain_models_into_a_converted_one(recipe):
    plain, _ = _model(seed=1)
    model, optimizer = _model(recipe)
    _train(model, optimizer, range(2))
    own = {n: x.clone() for n, x in model.state_dict().items() if "cpd" in n}
    model.load_state_dict(plain.state_dict())
    assert _same(cpd.plain_state_dict(model), plain.state_dict())
    assert all(torch.equal(model.state_dict()[name], x) for name, x in own.items())


@OF_RECIPES
def test_a_converted_models_into_a_plain_one(recipe):
    plain, _ = _model(seed=1)
    model, optimizer = _model(recipe)
    _train(model, optimizer, range(2))
    plain.load_state_dict(cpd.plain_state_dict(model))
    cpd.restore(model)
    assert _same(model.state_dict(), plain.state_dict())
    assert not model._load_state_dict_pre_hooks


@OF_RECIPES
def test_resumed_training_has_the_same_bits(recipe, tmp_path):
    whole, optimizer = _model(recipe)
    _train(whole, optimizer, range(6))
    model, optimizer = _model(recipe)
    _train(model, optimizer, range(3))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x")
    again, optimizer = _model(recipe, seed=9)
    state = torch.load(tmp_path / "x")
    again.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    _train(again, optimizer, range(3, 6))
    assert _same(again.state_dict(), whole.state_dict())


@OF_RECIPES
def test_distributed_checkpoints(recipe, tmp_path):
    model, optimizer = _model(recipe)
    _train(model, optimizer, range(3))
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=str(tmp_path))
    again, optimizer_again = _model(recipe, seed=9)
    weights, moments = get_state_dict(again, optimizer_again)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=str(tmp_path))
    set_state_dict(again, optimizer_again, model_state_dict=weights, optim_state_dict=moments)
    for each, of in ((model, optimizer), (again, optimizer_again)):
        _train(each, of, range(3, 6))
    assert _same(again.state_dict(), model.state_dict())


@OF_RECIPES
def test_accelerate(recipe, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    whole, optimizer = _model(recipe)
    _train(whole, optimizer, range(5))
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*_model(recipe))
    _train(model, optimizer, range(2))
    accelerator.save_state(str(tmp_path))
    _train(model, optimizer, range(7, 9))
    accelerator.load_state(str(tmp_path))
    _train(model, optimizer, range(2, 5))
    assert _same(accelerator.unwrap_model(model).state_dict(), whole.state_dict())


def test_what_is_missing_or_too_much_is_still_an_error():
    model, _ = _model(RECIPES["delayed"])
    state = model.state_dict()
    buffers = (f"{n}.cpd_delayed.{name}" for n in (0, 2, 4) for name in ("amax_history", "scale"))
    assert {name for name in state if "cpd" in name} == {"cpd_clock", *buffers}
    with pytest.raises(RuntimeError, match="Missing"):
        model.load_state_dict({n: x for n, x in state.items() if n != "0.cpd_delayed.scale"})
    with pytest.raises(RuntimeError, match="Missing"):
        model.load_state_dict({n: x for n, x in state.items() if n != "0.weight"})
    plain, _ = _model()
    with pytest.raises(RuntimeError, match="Unexpected"):
        plain.load_state_dict(state)


def test_a_copy_loads_as_its_original():
    model, _ = _model(RECIPES["drawing"])
    plain, _ = _model(seed=1)
    copied = copy.deepcopy(model)
    copied.load_state_dict(plain.state_dict())
    assert _same(cpd.plain_state_dict(copied), plain.state_dict())


@OF_RECIPES
def test_transformers_save_and_load(recipe, tmp_path):
    model, inputs = at_hand.of_transformers("gpt2")
    cpd.convert(model, recipe, coverage=False)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).train()
    assert not any("cpd" in name for name in again.state_dict())
    assert _same(cpd.plain_state_dict(model), again.state_dict())
    cpd.convert(again, recipe, coverage=False)
    assert torch.equal(model(**inputs).loss, again(**inputs).loss)
