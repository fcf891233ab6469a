# SPDX-License-Identifier: Apache-2.0
"""Tests that observers measure the operands that layers multiply, for layers of every type. Casts
in float32 and errors in float64 give the expected values."""

from __future__ import annotations

import math

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tensors import normal  # noqa: E402

MX = cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8")
SCALED = ("int8 row", "int12 row", "fp8-row", "nvfp4", "mxfp8", "mxfp4 factor=0.75")
OPERANDS = {  # each operand of a linear layer: tensor and summed axis
    ("activation", "forward"): -1,
    ("activation", "grad_weight"): 0,
    ("weight", "forward"): 1,
    ("weight", "grad_input"): 0,
    ("gradient", "grad_input"): -1,
    ("gradient", "grad_weight"): 0,
}


def multiplied(x, text, axis):
    """Returns the cast of `x` that a product multiplies, as float64. The cast is computed in
    float32, which holds the cast values exactly."""
    x = x.detach().float().contiguous()
    name, _, factor = text.partition(" factor=")
    if not factor:
        return cpd.cast(x, text, axis=axis).double()
    scales = cpd.encode(x, name, axis=axis)[1]
    y = cpd.cast(x * float(factor), name, axis=axis, scales=scales)
    return y.double() / float(factor)


def sqnr(x, y):
    """Returns the ratio of signal power to error power in dB."""
    x = x.detach().double()
    return 10 * math.log10(float(x.square().sum() / (y - x).square().sum()))


@pytest.mark.parametrize("mode", ["bfloat16", "float16", "autocast", "float32"])
@pytest.mark.parametrize("text", SCALED)
def test_the_operand_that_is_multiplied_is_judged(text, mode):
    own = torch.float32 if mode == "autocast" else getattr(torch, mode)
    layer = nn.Linear(64, 48, dtype=own)
    recipe = cpd.Recipe("native", activation=text, weight=text, gradient=text)
    cpd.convert(layer, recipe, coverage=False)
    x = normal(32, 64, dtype=own).requires_grad_()
    with cpd.observe(layer, every=1) as watch:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            y = layer(x)
        g = normal(32, 48, seed=1, dtype=y.dtype)
        y.backward(g)
    rows = {(row.role, row.gemm): row for row in watch if row.recipe == "own"}
    assert set(rows) == set(OPERANDS)
    tensors = {"activation": x, "weight": layer.weight, "gradient": g}
    for (role, gemm), row in rows.items():
        assert not row.why
        operand = multiplied(tensors[role], text, OPERANDS[role, gemm])
        assert row.sqnr == pytest.approx(sqnr(tensors[role], operand), abs=1e-4), (role, gemm)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_operands_of_delayed_scaling_are_judged_unrounded(dtype):
    layer = nn.Linear(64, 48, dtype=dtype)
    cpd.convert(layer, "te-delayed", coverage=False)
    for seed in range(2):
        layer(3.1 * normal(32, 64, seed=seed, dtype=dtype)).sum().backward()
    x = 2.9 * normal(32, 64, seed=2, dtype=dtype)
    with cpd.observe(layer, every=1) as watch:
        layer(x).sum().backward()
        scale = layer.cpd_delayed.scale[0]
    codes = cpd.cast(x.float() * scale, "e4m3fn overflow=saturate")
    expected = sqnr(x, codes.double() / scale.double())
    (row,) = [row for row in watch if (row.recipe, row.role) == ("own", "activation")]
    assert row.sqnr == pytest.approx(expected, abs=1e-4)


def test_storage_dtypes():
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        layer = nn.Linear(64, 4, dtype=dtype)
        with cpd.observe(
            layer, what_if={"mx": MX, "bf16": cpd.Recipe("native", weight="bf16")}
        ) as w:
            layer(normal(3, 64, dtype=dtype)).sum().backward()
        assert {r.role for r in w} == {"activation", "weight", "output", "gradient"}
        assert not any(r.why for r in w)


def test_delayed_scales_are_those_of_the_layer():
    model = nn.Sequential(nn.Linear(16, 8))
    cpd.convert(model, cpd.Recipe("te-delayed"))
    for seed in range(2):
        model(normal(4, 16, seed=seed)).sum().backward()
    with cpd.observe(model, what_if=("te-delayed",)) as watch:
        x = 100 * normal(4, 16, seed=9)
        model(x).sum().backward()
        scale = model[0].cpd_delayed.scale[0]
    rows = {row.recipe: row for row in watch if row.role == "activation"}
    assert rows["own"].scale_min == rows["own"].scale_max == float(scale.reciprocal())
    assert rows["own"].overflow == float((x.abs() > 448 * scale.reciprocal()).sum()) / 64 * 100 > 0
    assert rows["te-delayed"].overflow == 0  # the scale comes from the tensor itself
