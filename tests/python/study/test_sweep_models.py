# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.study.capture`, which stores the operands of the products in a model's layers."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import cpd  # noqa: E402
from cpd.study import capture, sweep  # noqa: E402


def test_linear_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(2, 4, 6)
    found = capture(
        model, x, lambda y: y.square().sum(), roles=("activation", "gradient", "output")
    )
    assert set(found) == {f"{n}/{r}" for n in "02" for r in ("activation", "gradient", "output")}
    assert torch.equal(found["0/activation"], x.reshape(8, 6))
    assert torch.equal(found["2/activation"], model[1](model[0](x)).reshape(8, 5))
    assert torch.equal(found["2/output"], model(x).reshape(8, 3))
    assert torch.equal(found["2/gradient"], 2 * model(x).detach().reshape(8, 3))
    assert all(p.grad is None for p in model.parameters())
    assert not model[0]._forward_hooks
    assert not model._forward_pre_hooks
    assert set(capture(model, x, layers="2")) == {"2/activation", "2/weight"}
    with torch.no_grad():
        assert "0/gradient" in capture(model, x, torch.sum)


def test_convolutions_have_channels_last():
    layer = nn.Conv2d(4, 6, 3, groups=2).bfloat16()
    x = torch.randn(2, 4, 5, 5, dtype=torch.bfloat16)
    found = capture(layer, (x,), lambda y: y.float().sum())
    assert tuple(found["activation"].shape) == (2, 2, 5, 5, 2)
    assert tuple(found["weight"].shape) == (6, 3, 3, 2)
    assert found["gradient"].shape[-1] == 3  # the channels of a group
    assert torch.equal(found["activation"][1, 0, :, :, 1], x[1, 1].float())
    assert torch.equal(found["weight"][5, :, :, 1], layer.weight[5, 1].float())


def test_a_layer_that_is_called_again():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, *, x):
            return self.layer(self.layer(x))

    model = Twice()
    found = capture(model, {"x": torch.ones(2, 3)})
    assert list(found) == ["layer/activation", "layer/weight", "layer/activation#2"]
    row = sweep(found, "e4m3").rows[0]
    assert [one.dots for one in row._tensors] == [2, 0, 2]


def test_what_is_captured_is_swept():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    found = sweep(capture(model, torch.randn(64, 32), torch.sum), "e[3-4]m3", "fp32,e5m6")
    assert len(found.tensors) == 6
    exact = found.best("relative_rms")
    converted = nn.Sequential(*(layer for layer in model))
    cpd.convert(converted, cpd.Recipe(cpd.Format(exact.operand), sums=exact.accumulator))
    assert converted(torch.ones(1, 32)).shape == (1, 4)


def test_what_cannot_be_captured():
    model = nn.Linear(3, 2)
    x = torch.ones(1, 3)
    with pytest.raises(ValueError, match="roles must be of activation"):
        capture(model, x, roles=("weights",))
    with pytest.raises(ValueError, match="roles must be of activation"):
        capture(model, x, roles="weight")
    with pytest.raises(TypeError, match="loss must be a function"):
        capture(model, x, 3)
    with pytest.raises(TypeError, match="loss must give a tensor of one value"):
        capture(model, x, lambda y: y)
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        capture(3, x)
    with pytest.raises(ValueError, match="no layer with products that matches 'decoder"):
        capture(model, x, layers="decoder*")
    with pytest.raises(ValueError, match="no parameter of the model requires one"):
        capture(nn.Linear(3, 2).requires_grad_(False), x, torch.sum)
    assert not model._forward_pre_hooks
    np.testing.assert_array_equal(model(x).shape, (1, 2))
