# SPDX-License-Identifier: Apache-2.0
"""Tests the statements of docs/porting.md about torchao 0.18: the results and both gradients of a
layer, compared with torchao's own emulation."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import cpd

torch = pytest.importorskip("torch")
float8 = pytest.importorskip("torchao.float8")
mx_linear = pytest.importorskip("torchao.prototype.moe_training.mxfp8_linear")
mx_config = pytest.importorskip("torchao.prototype.mx_formats.config")
mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
moe_config = pytest.importorskip("torchao.prototype.moe_training.config")
quantize_ = pytest.importorskip("torchao.quantization").quantize_
nn = torch.nn

PAGE = Path(__file__).parents[3] / "python" / "docs" / "porting.md"
TENSORWISE = "block=tensor scale=fp32 arithmetic=torchao"
ROWWISE = cpd.Recipe("fp8-row rule=max_pow2 arithmetic=torchao")


def _step(model, dtype):
    """Returns the result of a training step, and the gradients of the input and the weight."""
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
    """With the rowwise recipe, scales are powers of two, so the order of scaling and rounding does
    not matter. CPD and torchao give equal bits."""
    for got, wanted in zip(_ours(ROWWISE, dtype), _float8("rowwise", dtype), strict=True):
        assert torch.equal(got, wanted)
    high = ROWWISE.replace(grad_weight_activation=None, grad_weight_gradient=None)
    theirs = _float8("rowwise_with_gw_hp", dtype)
    for got, wanted in zip(_ours(high, dtype), theirs, strict=True):
        assert torch.equal(got, wanted)
    other = _ours("fp8-row arithmetic=torchao", dtype)  # scales that are not powers of two
    assert (other[0] != _float8("rowwise", dtype)[0]).double().mean() > 0.5


def test_tensorwise():
    """With tensorwise scaling, CPD and torchao have the same codes. CPD multiplies the operands by
    the scales, torchao multiplies the sums. The results therefore agree to a tolerance only."""
    how = cpd.Recipe(f"e4m3fn {TENSORWISE}", gradient=f"e5m2 {TENSORWISE}")
    theirs = _float8("tensorwise", torch.float32)
    for got, wanted in zip(_ours(how, torch.float32), theirs, strict=True):
        assert (got - wanted).abs().max() <= 1e-6 * wanted.abs().max()


EMULATED = mx_linear.KernelPreference.EMULATED


@pytest.mark.parametrize("high", [False, True])
def test_mxfp8_training_bit_for_bit(high):
    """CPD and torchao give the same bits in MXFP8 training. With `wgrad_with_hp=True`, the weight's
    gradient takes operands that are not cast."""
    theirs = _model(torch.bfloat16)
    config = moe_config.MXFP8TrainingOpConfig(kernel_preference=EMULATED, wgrad_with_hp=high)
    quantize_(theirs, config)
    ours = cpd.Recipe("mxfp8 rule=rceil")
    if high:
        ours = ours.replace(grad_weight_activation=None, grad_weight_gradient=None)
    wanted = _step(theirs, torch.bfloat16)
    for got, one in zip(_ours(ours, torch.bfloat16), wanted, strict=True):
        assert torch.equal(got, one)


@pytest.mark.parametrize("mode", mx_config.ScaleCalculationMode, ids=lambda mode: mode.name)
def test_mx_tensors_bit_for_bit(mode):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 64, generator=generator)
    x *= torch.exp2(8 * torch.randn(64, 64, generator=generator))
    theirs = mx_tensor.MXTensor.to_mx(x, torch.float8_e4m3fn, 32, scaling_mode=mode)
    spec = f"mxfp8 rule={mode.name.lower()}"
    codes, scales = cpd.encode(x, spec)
    assert torch.equal(codes, theirs.qdata.view(torch.uint8).flatten())
    assert torch.equal(scales, theirs.scale.view(torch.uint8).flatten())
    values = theirs.dequantize(torch.float)
    assert torch.equal(cpd.decode(codes, spec, x.shape, scales=scales), values)
    assert torch.equal(cpd.cast(x, spec), values)


@pytest.mark.parametrize("rule", ["RCEIL", "FLOOR"])
def test_mxfp8_bit_for_bit(rule):
    mode = getattr(mx_config.ScaleCalculationMode, rule)
    theirs = copy.deepcopy(_model(torch.bfloat16))
    layer = mx_linear.MXFP8Linear(
        96, 32, bias=False, kernel_preference=EMULATED, scale_calculation_mode=mode
    )
    layer.weight = theirs[0].weight
    theirs[0] = layer
    wanted = _step(theirs, torch.bfloat16)
    for got, one in zip(_ours(f"mxfp8 rule={rule.lower()}", torch.bfloat16), wanted, strict=True):
        assert torch.equal(got, one)


def test_the_page_has_these_recipes():
    text = PAGE.read_text(encoding="utf-8")
    (recipe,) = re.findall(r'`cpd\.Recipe\("(fp8-row [^"]*)"\)`', text)
    assert cpd.Recipe(recipe) == ROWWISE
    assert f'float8 = "{TENSORWISE}"' in text
    assert 'cpd.convert(model, "mxfp8 rule=rceil")' in text


def test_the_pages_names_of_torchao_are_there():
    text = PAGE.read_text(encoding="utf-8").partition("## torchao\n")[2].partition("\n## ")[0]
    left = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    for owner, name in (
        (float8, "convert_to_float8_training"),
        (float8.Float8LinearConfig, "from_recipe_name"),
        (moe_config, "MXFP8TrainingOpConfig"),
        (mx_linear, "MXFP8Linear"),
        (mx_tensor.MXTensor, "to_mx"),
        (mx_tensor.MXTensor, "dequantize"),
    ):
        assert hasattr(owner, name)
        assert name in left
    assert "module_filter_fn" in inspect.signature(float8.convert_to_float8_training).parameters
    modes = re.findall(r"\b[A-Z]+\b", left.partition("ScaleCalculationMode.")[2])
    assert set(modes) >= {mode.name for mode in mx_config.ScaleCalculationMode}


def test_a_model_that_torchao_quantized_is_refused():
    from torchao.quantization import Int8WeightOnlyConfig

    model = _model(torch.bfloat16)
    quantize_(model, Int8WeightOnlyConfig())
    with pytest.raises(TypeError, match=r"0\.weight is a torchao .*convert the model before"):
        cpd.convert(model, "mxfp8")
