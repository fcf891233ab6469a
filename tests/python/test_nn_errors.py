# SPDX-License-Identifier: Apache-2.0
"""What matmul, linear and conv2d of `cpd.functional` refuse, and with which words."""

from __future__ import annotations

import pytest

import cpd

torch = pytest.importorskip("torch")

from cpd import functional  # noqa: E402


def values(*shape):
    return torch.randn(shape)


X, W, B = values(2, 4, 5, 5), values(6, 2, 3, 3), values(6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input": X.numpy()}, TypeError, "input must be a torch tensor"),
        ({"input": X.double()}, TypeError, "input must be of type float32.*float64"),
        ({"weight": W.numpy()}, TypeError, "weight must be a torch tensor like input"),
        (
            {"weight": W.to("meta")},
            ValueError,
            "weight must be on the first operand's device, cpu, got meta",
        ),
        ({"bias": 3.0}, TypeError, "bias must be a torch tensor"),
        ({"bias": values(5)}, ValueError, r"bias must have shape \(6,\), got \(5,\)"),
        ({"input": X[0, 0]}, ValueError, "input must be .* got shape"),
        ({"weight": W[0]}, ValueError, "weight must be"),
        ({"groups": 1}, ValueError, "groups must be.*got 1 with 4 channels in input"),
        ({"groups": 4}, ValueError, "groups must be"),
        ({"groups": 0}, ValueError, "groups must be"),
        ({"groups": 2.0}, TypeError, "groups must be an int"),
        ({"stride": 0}, ValueError, "stride must be at least 1, got 0"),
        ({"stride": (1, 2, 3)}, ValueError, "stride must be one number or two"),
        ({"stride": 1.5}, TypeError, "stride must be an int"),
        ({"dilation": -1}, ValueError, "dilation must be at least 1"),
        ({"padding": -1}, ValueError, "padding must be at least 0"),
        ({"padding": "full"}, ValueError, "padding must be numbers, 'same' or 'valid', got 'full'"),
        ({"padding": "same", "stride": 2}, ValueError, "padding='same' needs stride 1"),
        ({"padding_mode": "wrap"}, ValueError, "padding_mode must be one of zeros, reflect"),
        ({"dilation": 3}, ValueError, r"fit into the padded input, \(5, 5\); got \(3, 3\)"),
        ({"dtype": torch.float64}, TypeError, "dtype must be one of torch's float32"),
        ({"dtype": torch.float16}, ValueError, "does not hold fp32: give the recipe an output="),
        ({"recipe": None}, TypeError, "format"),
        ({"recipe": "e9m3"}, ValueError, "e9m3|exp"),
        ({"recipe": cpd.Recipe("fp32", activation="e8m0"), "input": X.half()}, ValueError, "e8m0"),
    ],
)
def test_conv2d_errors(arguments, error, message):
    good = {"input": X, "weight": W, "bias": B, "groups": 2, "recipe": "fp32"}
    with pytest.raises(error, match=message):
        functional.conv2d(**good | arguments)
    with pytest.raises(TypeError, match="recipe"):
        functional.conv2d(X, W, B)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input": [1.0]}, TypeError, "input must be a torch tensor"),
        ({"weight": None}, TypeError, "weight must be a torch tensor like input"),
        ({"weight": values(3, 4)}, ValueError, r"got shapes \(2, 5\), \(3, 4\)"),
        ({"weight": values(5)}, ValueError, "weight out × in"),
        ({"input": values()}, ValueError, "input must be"),
        ({"bias": values(1)}, ValueError, r"bias must have shape \(3,\), got \(1,\)"),
        ({"bias": values(3).to("meta")}, ValueError, "bias must be on the first operand's device"),
        ({"weight": values(3, 5).long()}, TypeError, "weight must be of type float32.*int64"),
        ({"dtype": torch.bfloat16}, ValueError, "the result's type, bfloat16, does not hold fp32"),
    ],
)
def test_linear_errors(arguments, error, message):
    good = {"input": values(2, 5), "weight": values(3, 5), "bias": values(3), "recipe": "fp32"}
    with pytest.raises(error, match=message):
        functional.linear(**good | arguments)


def test_matmul_errors():
    a, b = values(2, 3), values(3, 4)
    for bad, error, message in (
        ((a.numpy(), b, "fp32"), TypeError, "a must be a torch tensor"),
        ((a, b.numpy(), "fp32"), TypeError, "b must be a torch tensor like a"),
        ((a, values(), "fp32"), ValueError, "b must have at least one dimension"),
        ((a, a, "fp32"), ValueError, "K is 3 in a, 2 in b"),
        ((values(2, 2, 3), values(3, 3, 4), "fp32"), ValueError, "broadcast together"),
        ((a, b, 3), TypeError, "format"),
    ):
        with pytest.raises(error, match=message):
            functional.matmul(*bad)
    with pytest.raises(ValueError, match="a recipe has its own"):
        functional.matmul(a, b, cpd.Recipe("fp32"), backward="e4m3")
