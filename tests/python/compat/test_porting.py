# SPDX-License-Identifier: Apache-2.0
"""What docs/porting.md says of torchao 0.18, against torchao's own emulation: results and both
gradients of a layer."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path

import pytest

import cpd

torch = pytest.importorskip("torch")
float8 = pytest.importorskip("torchao.float8")
mx_linear = pytest.importorskip("torchao.prototype.moe_training.mxfp8_linear")
mx_config = pytest.importorskip("torchao.prototype.mx_formats.config")
nn = torch.nn

PAGE = Path(__file__).parents[3] / "python" / "docs" / "porting.md"
TENSORWISE = "block=tensor scale=fp32 arithmetic=torchao"
ROWWISE = cpd.Recipe("fp8-row rule=max_pow2 arithmetic=torchao")


def _step(model, dtype):
    """The result of a step and the gradients of input and weight."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 96, generator=generator).to(dtype).requires_grad_()
    y = model(x)
    y.backward(torch.randn(64, 32, generator=generator).to(dtype))
    return y.detach(), x.grad, model[0].weight.grad


def _model(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 32, bias=False)).to(dtype)


def _float8(name, dtype):
    config = dataclasses.replace(float8.Float8LinearConfig.from_recipe_name(name), emulate=True)
    return _step(float8.convert_to_float8_training(_model(dtype), config=config), dtype)


def _ours(recipe, dtype):
    model = _model(dtype)
    cpd.convert(model, recipe, coverage=False)
    return _step(model, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rowwise_bit_for_bit(dtype):
    """Its scales are powers of two, so that no later rounding can differ."""
    for got, wanted in zip(_ours(ROWWISE, dtype), _float8("rowwise", dtype), strict=True):
        assert torch.equal(got, wanted)
    high = ROWWISE.replace(grad_weight_activation=None, grad_weight_gradient=None)
    theirs = _float8("rowwise_with_gw_hp", dtype)
    for got, wanted in zip(_ours(high, dtype), theirs, strict=True):
        assert torch.equal(got, wanted)
    other = _ours("fp8-row arithmetic=torchao", dtype)  # scales that are not powers of two
    assert (other[0] != _float8("rowwise", dtype)[0]).double().mean() > 0.5


def test_tensorwise():
    """The same codes; the scales multiply operands here, sums there."""
    how = cpd.Recipe(f"e4m3fn {TENSORWISE}", gradient=f"e5m2 {TENSORWISE}")
    theirs = _float8("tensorwise", torch.float32)
    for got, wanted in zip(_ours(how, torch.float32), theirs, strict=True):
        assert (got - wanted).abs().max() <= 1e-6 * wanted.abs().max()


@pytest.mark.parametrize("rule", ["RCEIL", "FLOOR"])
def test_mxfp8_bit_for_bit(rule):
    kernel = mx_linear.KernelPreference.EMULATED
    mode = getattr(mx_config.ScaleCalculationMode, rule)
    theirs = copy.deepcopy(_model(torch.bfloat16))
    layer = mx_linear.MXFP8Linear(
        96, 32, bias=False, kernel_preference=kernel, scale_calculation_mode=mode
    )
    layer.weight = theirs[0].weight
    theirs[0] = layer
    wanted = _step(theirs, torch.bfloat16)
    for got, one in zip(_ours(f"mxfp8 rule={rule.lower()}", torch.bfloat16), wanted, strict=True):
        assert torch.equal(got, one)


def test_the_page_has_these_recipes():
    text = PAGE.read_text(encoding="utf-8")
    for recipe in re.findall(r'`cpd\.Recipe\("(fp8-row [^"]*)"\)`', text):
        assert cpd.Recipe(recipe) == ROWWISE
    assert '"mxfp8 rule=rceil"' in text
    assert '"mxfp8 rule=floor"' in text
    assert all(hasattr(mx_linear, name) for name in re.findall(r"`(MXFP8Linear)`", text))


def test_a_model_that_torchao_quantized_is_refused():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = _model(torch.bfloat16)
    quantize_(model, Int8WeightOnlyConfig())
    with pytest.raises(TypeError, match=r"0\.weight is a torchao .*convert the model before"):
        cpd.convert(model, "mxfp8")
