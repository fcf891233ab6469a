# SPDX-License-Identifier: Apache-2.0
"""Tests residual additions of converted models. An addition is rounded only in modules that name
residual additions: modules of transformers and timm, and registered ones."""

import copy
import pickle

import pytest
import torch
from torch import nn

import cpd
import models_at_hand as at_hand
from cpd._torch.rounding import rounded
from tensors import compiled, normal, same

HOW = cpd.Recipe("native", weight="e4m3fn", residual="e5m2")
DRAWING = cpd.Recipe("native", residual="(4,3) rounding=stochastic")


class Twice(nn.Module):
    """A module that adds x to itself, which is not a residual addition."""

    def forward(self, x):
        return x + x


class Block(nn.Module):
    def __init__(self, in_place=False):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.twice = Twice()
        self.in_place = in_place

    def forward(self, x):
        y = self.twice(self.layer(x))
        y = y + 1.0  # no residual: another shape
        if self.in_place:
            y += x
            return y
        return x + y


cpd.nn.register(Block, "residual")


def by_hand(block, x, how, layer, position=0):
    y = block.layer(x)
    y = x + ((y + y) + 1.0)
    return rounded(y, how.residual, how.residual, stream=layer << 20 ^ position)


def block(**options):
    torch.manual_seed(0)
    return Block(**options)


def with_gradients(run, x, weights):
    x = x.clone().requires_grad_()
    y = run(x)
    return [y, *torch.autograd.grad(y, [x, *weights], normal(*y.shape, seed=4))]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_block_is_the_one_by_hand(in_place):
    module, plain = block(in_place=in_place), block()
    report = cpd.convert(module, HOW, coverage=False)
    cpd.convert(plain.layer, HOW, coverage=False)
    assert [(row.name, row.what) for row in report.emulated] == [
        ("", "residual"),
        ("layer", "products"),
    ]
    assert report[0].how == "residual='e5m2'"
    x = normal(3, 8)
    wanted = with_gradients(lambda x: by_hand(plain, x, HOW, 1), x, list(plain.parameters()))
    assert same(with_gradients(module, x, list(module.parameters())), wanted)
    run, counter = compiled(module)
    assert same(with_gradients(run, x, list(module.parameters())), wanted)
    assert counter.frame_count == 1
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert same(with_gradients(copied, x, list(copied.parameters())), wanted)


def test_it_draws_by_its_own_number():
    """`convert` numbers residual blocks after all layers; the number determines random streams."""
    module = nn.Sequential(block(), nn.Linear(8, 8))
    report = cpd.convert(module, DRAWING, coverage=False)
    assert {row.name: row.layer for row in report if row.layer is not None} == {
        "0": 2,
        "0.layer": 0,
        "1": 1,
    }
    x = normal(3, 8)
    module.eval()  # a call of a part in training mode would begin the first step
    y = module[0](x)
    plain, second = block(), 256  # the position of the second addition: the first adds 1.0
    assert same(y, by_hand(plain, x, DRAWING, 2, second))
    assert not same(y, by_hand(plain, x, DRAWING, 1, second))


def test_blocks_within_blocks():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList(block() for _ in range(2))

        def forward(self, x):
            for one in self.inner:
                x = one(x)
            return x

    cpd.nn.register(Outer, "residual")
    module, plain = Outer(), block()
    cpd.convert(module, HOW, [(nn.Linear, None)], coverage=False)
    x = normal(3, 8)
    wanted = x
    for _ in range(2):
        wanted = by_hand(plain, wanted, HOW, 0)
    assert same(module(x), wanted)


def test_restored_modules_have_no_hooks():
    module = block()
    plain = module(normal(3, 8))
    cpd.convert(module, HOW, coverage=False)
    assert not same(module(normal(3, 8)), plain)
    cpd.restore(module)
    assert same(module(normal(3, 8)), plain)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in module.modules())


def test_recipes_without_it_do_not_name_blocks():
    for recipe in ("bf16", cpd.Recipe("native", weight="e4m3fn")):
        report = cpd.convert(block(), recipe, coverage=False)
        assert not any(row.name == "" and not row.why_not for row in report)
        assert not any("residual" in note for note in report.notes)
    left = cpd.convert(block(), HOW, [(Block, "bf16")], coverage=False)
    assert "" not in [row.name for row in left.emulated]


ADDITIONS = {
    "gpt2": 4,
    "llama": 4,
    "bert": 4,
    "t5": 10,
    "vit": 4,
    "gpt_neox": 4,
    "mamba": 2,
    "falcon": 4,
    "resnet50": 16,
    "vit_tiny_patch16_224": 4,
}
"""Maps a model's name to the number of residual additions that its forward pass rounds."""
QUICK = ("gpt2", "bert", "resnet50")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.exhaustive) for n in ADDITIONS]
)
def test_models_name_their_additions(name, monkeypatch):
    from cpd.nn import operations

    of = at_hand.of_transformers if name in at_hand.TRANSFORMERS else at_hand.of_timm
    model, inputs = of(name)
    cpd.convert(model, cpd.Recipe("native", residual="bf16"), coverage=False)
    rounds = []

    def counted(x, *casts, **how):
        rounds.append(x.shape)
        return rounded(x, *casts, **how)

    monkeypatch.setattr(operations, "rounded", counted)
    at_hand.loss_of(model(**inputs)).backward()
    assert len(rounds) == ADDITIONS[name]
