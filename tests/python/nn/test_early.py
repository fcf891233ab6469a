# SPDX-License-Identifier: Apache-2.0
"""What the first call of a converted model would refuse, `cpd.convert` refuses, with the layer's
name, and leaves the model as it was."""

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
    how = cpd.recipe("te-current", sums="h100-fp8 b=e4m3fn").replace(output=text)
    cpd.convert(model, how)
    assert model(torch.ones(1, 4, dtype=dtype)).dtype == dtype
    cpd.convert(_model(), "te-current", sums="h100-fp8")


class Packed(torch.Tensor):
    """A weight as quantization libraries store it, with a dispatch of its own."""

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
