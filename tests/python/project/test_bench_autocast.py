# SPDX-License-Identifier: Apache-2.0
"""Tests the benchmark of training under autocast, without timing.

The benchmark compares a training step with a recipe to a step without it. The products of the step
without the recipe must have the data types that the recipe's operands need, and correct results.
"""

from __future__ import annotations

import copy
import importlib
import sys
from argparse import Namespace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
cpd = pytest.importorskip("cpd")
from cpd._torch.operands import parts  # noqa: E402

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
autocast, selection = map(importlib.import_module, ("autocast", "selection"))


@pytest.mark.parametrize("name", autocast.PEERS)
def test_a_recipes_peer_has_the_products_of_its_operands(name):
    texts = {spec.text for spec in cpd.Recipe(name)._kept.operands if spec is not None}
    assert texts
    kinds = {
        autocast.PLAIN: all(parts(text).narrows for text in texts),
        autocast.FLOAT32: all(parts(text).splits_at(2) for text in texts),
        autocast.WIDE: not any(parts(text).narrows or parts(text).splits_at(2) for text in texts),
    }
    assert [kind for kind, fits in kinds.items() if fits] == [autocast.PEERS[name]]


def gradients(layer, x, g):
    layer.zero_grad()
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.backward(g)
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


def share(x, exact):
    """Returns the share of values that are not the exact values rounded once to bfloat16."""
    return float((x.bfloat16() != exact.bfloat16()).double().mean())


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (torch.nn.Linear(96, 64), (4, 32, 96)),
        (torch.nn.Conv2d(8, 16, 3, padding=1, stride=2, bias=False), (4, 8, 12, 12)),
    ],
    ids=["linear", "convolution"],
)
def test_the_peers_products_are_exact_and_rounded_once(layer, shape):
    torch.manual_seed(1)
    peer = autocast.peer(torch.nn.Sequential(layer), autocast.FLOAT32)
    assert type(peer[0]) in (autocast.Float32Linear, autocast.Float32Conv2d)
    exact = copy.deepcopy(layer)
    with torch.no_grad():
        for p in exact.parameters():
            p.copy_(p.bfloat16())
    exact = exact.double()
    x = torch.randn(shape).bfloat16()
    y = exact(x.double())
    g = torch.randn(y.shape).bfloat16()
    found = gradients(peer, x, g)
    x = x.double().requires_grad_()
    y = exact(x)
    y.backward(g.double())
    wanted = [y.detach(), x.grad, *(p.grad for p in exact.parameters())]
    for made, right in zip(found[:3], wanted, strict=False):
        assert share(made, right) < 2e-3


def test_a_step_of_each_row(monkeypatch):
    """The benchmark of a small model has a row without a recipe and a row for each recipe. Each row
    names the training step to which the row's own step is compared."""
    torch.manual_seed(2)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    options = Namespace(selection=selection.EVERY, repeats=1)

    def converted(name):
        model = copy.deepcopy(plain)
        cpd.convert(model, name, coverage=False)
        return model

    def in_float32(model, x):
        return model(x).sum()

    x = torch.randn(32, 64)
    rows = list(autocast.rows("m", plain, x, converted, in_float32, 1000, options))
    assert [row["name"] for row in rows] == [
        f"model/m/autocast/{name}" for name in ("plain", *autocast.PEERS)
    ]
    assert [row["against"] for row in rows] == ["float32", *autocast.PEERS.values()]
    assert [row.get("bar") for row in rows] == [None, 0.85, 0.85, 0.85, 0.85]
    monkeypatch.setattr(autocast, "step", lambda model, x: torch.tensor(float("nan")))
    rows = list(autocast.rows("m", plain, x, converted, in_float32, 1000, options))
    assert ["wrong" in row for row in rows] == [False, True, True, True, True]
