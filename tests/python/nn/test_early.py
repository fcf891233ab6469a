# SPDX-License-Identifier: Apache-2.0
"""Tests that `cpd.convert` raises the errors that the first call of the converted model would
raise. The error names the layer, and the model stays unchanged."""

from __future__ import annotations

import pytest

import cpd

torch = pytest.importorskip("torch")
nn = torch.nn


def _model(dtype=None):
    return nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.Identity(), nn.Linear(4, 2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
@pytest.mark.parametrize("recipe", ["mxfp8", "int8 row", cpd.Recipe(sums="e4m3 kahan")], ids=str)
def test_types_without_emulation(dtype, recipe):
    model = _model(dtype)
    with pytest.raises(TypeError, match=rf"0\.weight is {str(dtype)[6:]}: .*float32, bfloat16"):
        cpd.convert(model, recipe)
    assert type(model[0]) is nn.Linear
    assert "cpd" not in model[0].__dict__
    cpd.convert(model, recipe, [("*", None)])
    assert model(torch.ones(1, 4, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_that_results_cannot_represent(dtype):
    text = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    model = _model(dtype)
    for recipe in ("te-current", "e4m3fn"):
        with pytest.raises(ValueError, match=rf"^0: .*fp32: give the recipe output='{text}'"):
            cpd.convert(model, recipe, sums="h100-fp8")
    assert type(model[0]) is nn.Linear
    how = cpd.Recipe("te-current", sums="h100-fp8 b=e4m3fn").replace(output=text)
    cpd.convert(model, how)
    assert model(torch.ones(1, 4, dtype=dtype)).dtype == dtype
    cpd.convert(_model(), "te-current", sums="h100-fp8")


LAZY = {
    "linear": (lambda: nn.LazyLinear(4), (3, 5)),
    "conv1d": (lambda: nn.LazyConv1d(4, 3), (2, 3, 8)),
    "conv2d": (lambda: nn.LazyConv2d(4, 3), (2, 3, 8, 8)),
    "conv3d": (lambda: nn.LazyConv3d(4, 2), (2, 3, 4, 4, 4)),
    "transposed": (lambda: nn.LazyConvTranspose2d(4, 3), (2, 3, 8, 8)),
    "batch_norm": (lambda: nn.LazyBatchNorm2d(), (2, 3, 8, 8)),
    "instance_norm": (lambda: nn.LazyInstanceNorm2d(affine=True), (2, 3, 8, 8)),
}


@pytest.mark.parametrize("kind", LAZY)
def test_lazy_modules(kind):
    """A lazy layer is refused before its first call, because it has no shapes. After the call it is
    emulated like any other layer."""
    make, shape = LAZY[kind]
    recipe = cpd.Recipe("e5m2").replace(norm="bf16")
    model = nn.Sequential(nn.Identity(), make())
    with pytest.raises(ValueError, match=r"^1 is a Lazy\w+ without shapes: call the model on an"):
        cpd.convert(model, recipe)
    assert "Emulated" not in type(model[1]).__name__
    cpd.convert(model, recipe, [("1", None)])
    model(torch.ones(shape))
    report = cpd.convert(model, recipe)
    assert [row.why_not for row in report if row.name == "1"] == [""]
    model(torch.ones(shape)).sum().backward()


def test_a_lazy_layer_without_a_format_stays():
    model = nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(4, 4))
    report = cpd.convert(model, "e5m2", coverage=False)
    assert [row.name for row in report if not row.why_not] == ["1"]
    model(torch.ones(3, 4)).sum().backward()


class Packed(torch.Tensor):
    """A weight in the form of quantization libraries: a tensor subclass with its own dispatch."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError("Packed dispatch")


def test_quantized_weights_of_another_library():
    model = _model()
    packed = torch.Tensor._make_subclass(Packed, torch.ones(2, 4))
    model[2].weight = nn.Parameter(packed, requires_grad=False)
    with pytest.raises(TypeError, match=r"2\.weight is a .*Packed, which CPD cannot read"):
        cpd.convert(model, "mxfp8")
    assert type(model[0]) is nn.Linear
