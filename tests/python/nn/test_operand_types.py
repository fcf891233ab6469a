# SPDX-License-Identifier: Apache-2.0
"""The types of a layer's operands: scales follow from the type in which an operand arrives, and
inputs of another type than the weights are refused where torch refuses them."""

from __future__ import annotations

import copy

import pytest

import cpd
from rationals import Fraction

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from cpd import functional  # noqa: E402
from cpd._torch.operands import (  # noqa: E402
    cast_operand,
    cast_operand_both,
    split_operand,
)


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- scales that follow from the operand's type --------------------------------------------------


def nearest(x, man, least):
    """A rational, rounded to nearest-even at `man` mantissa bits; `least`: the exponent of the
    least normal number."""
    if x == 0:
        return x
    exponent = abs(x).numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, least) - man)
    return round(x / step) * step


def te_cast(rows, largest):
    """TransformerEngine's E4M3 values of rows by a scale each, in exact rationals: the multiplier
    is fl(448 / max |x|), or `largest` where that is Inf."""
    found = []
    for row in rows:
        multiplier = nearest(448 / max(map(abs, row)), 23, -126)
        if multiplier >= 2**128:
            multiplier = largest
        scale = nearest(1 / multiplier, 23, -126)
        elements = (nearest(nearest(x * multiplier, 23, -126), 3, -6) for x in row)
        found.append([nearest(max(-448, min(e, 448)) * scale, 23, -126) for e in elements])
    return found


LARGEST = {
    torch.bfloat16: Fraction(2) ** 128 - Fraction(2) ** 120,
    torch.float32: Fraction(2) ** 128 - Fraction(2) ** 104,
}


@pytest.mark.parametrize("dtype", LARGEST)
def test_scales_of_tiny_blocks_follow_from_the_operands_type(dtype):
    """TransformerEngine's largest multiplier is that of the input's type. All values here are
    subnormal in bfloat16. A layer casts an operand as cpd.cast does, by each of its ways."""
    codes = torch.randint(1, 128, (8, 32), generator=torch.Generator().manual_seed(5))
    x = codes.to(torch.int16).view(torch.bfloat16).to(dtype)
    rows = [[Fraction(v) for v in row] for row in x.double().tolist()]
    wanted = torch.tensor(te_cast(rows, LARGEST[dtype]), dtype=torch.float64)
    text = "fp8-row arithmetic=te"
    recipe = cpd.Recipe("native", activation=text, gradient=text)
    assert torch.equal(cpd.cast(x, text, dtype=torch.float32).double(), wanted)
    of_numpy = cpd.cast(x.float().numpy(), text)  # NumPy has no bfloat16
    assert dtype != torch.float32 or (of_numpy == wanted.numpy()).all()
    assert torch.equal(cast_operand(x, text, -1).double(), wanted)
    assert all(torch.equal(y.double(), wanted) for y in cast_operand_both(x, text, (-1, -1)))
    values, scale, _ = split_operand(x, text, -1)
    assert torch.equal(values.double() * scale.double(), wanted)
    # 2^60 brings the products into float32's normal range.
    w = torch.eye(32, dtype=dtype) * 2.0**60
    made = [functional.linear(x, w, recipe=recipe, dtype=torch.float32)]
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", torch.bfloat16):
            made += [functional.linear(x, each, recipe=recipe) for each in (w, w.float())]
    for y in made:
        assert torch.equal(y, (wanted * 2.0**60).to(y.dtype))
    g = torch.ones_like(x).requires_grad_()
    functional.linear(g, w, recipe=recipe).backward(x)
    assert torch.equal(g.grad, (wanted * 2.0**60).to(dtype))


# ---- inputs of another type than the weights ----------------------------------------------------

IN = 8
KINDS = {
    "linear": (lambda **of: nn.Linear(IN, IN, **of), (4, IN)),
    "conv1d": (lambda **of: nn.Conv1d(IN, IN, 3, **of), (2, IN, 9)),
    "conv2d": (lambda **of: nn.Conv2d(IN, IN, 3, **of), (2, IN, 6, 6)),
    "conv3d": (lambda **of: nn.Conv3d(IN, IN, 3, **of), (1, IN, 4, 4, 4)),
    "transposed": (lambda **of: nn.ConvTranspose2d(IN, IN, 3, **of), (2, IN, 6, 6)),
    "lstm": (lambda **of: nn.LSTM(IN, IN, **of), (3, 2, IN)),
    "gru": (lambda **of: nn.GRU(IN, IN, **of), (3, 2, IN)),
    "lstm cell": (lambda **of: nn.LSTMCell(IN, IN, **of), (2, IN)),
    "gru cell": (lambda **of: nn.GRUCell(IN, IN, **of), (2, IN)),
    "rnn cell": (lambda **of: nn.RNNCell(IN, IN, **of), (2, IN)),
    "attention": (lambda **of: nn.MultiheadAttention(IN, 2, **of), (3, 2, IN)),
    "encoder": (lambda **of: nn.TransformerEncoderLayer(IN, 2, 16, **of), (3, 2, IN)),
    "bilinear": (lambda **of: nn.Bilinear(IN, IN, 4, **of), (4, IN)),
}
ARGUMENTS = {"attention": 3, "bilinear": 2}


@pytest.mark.few("", 8)
@pytest.mark.parametrize("recipe", ["te-current", "fp32 sums"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("of_weight", "of_input"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
)
def test_layers_refuse_inputs_that_torchs_layers_refuse(kind, recipe, of_weight, of_input):
    make, shape = KINDS[kind]
    how = cpd.Recipe(sums="fp32", output="bf16") if recipe == "fp32 sums" else cpd.recipe(recipe)
    plain = make(dtype=of_weight)
    layer = copy.deepcopy(plain)
    cpd.convert(layer, how, coverage=False)
    inputs = [values(*shape).to(of_input)] * ARGUMENTS.get(kind, 1)
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        plain(*inputs)
    with pytest.raises(theirs.type) as ours:
        layer(*inputs)
    assert str(ours.value) == str(theirs.value)
    if kind != "encoder":  # whose norms torch computes, and refuses
        with torch.autocast("cpu", torch.bfloat16):
            layer(*inputs)


def test_autocast_of_recipes_refuses_what_torch_refuses():
    x, w = values(4, 64), values(32, 64, seed=1).bfloat16()
    with (
        cpd.autocast(cpd.recipe("te-current")),
        pytest.raises(RuntimeError, match="have the same dtype"),
    ):
        F.linear(x, w)


def test_sums_that_autocasts_type_does_not_hold():
    """The error names the way out, and each of its ways is one."""
    layer = cpd.nn.Linear(8, 8, recipe=cpd.Recipe(sums="fp32"))
    x = values(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ValueError, match=r"output='bf16'.*dtype=.*turn torch\.autocast off"):
            layer(x)
        with torch.autocast("cpu", enabled=False):
            wanted = layer(x)
        layer.recipe = cpd.Recipe(sums="fp32", output="bf16")
        y = layer(x)
        functional.linear(x, layer.weight, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float32)
    assert wanted.dtype == torch.float32
    assert torch.equal(y, wanted.bfloat16())
    with pytest.raises(ValueError, match="give the recipe output='fp16'") as error:
        functional.linear(x, layer.weight, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float16)
    assert "autocast" not in str(error.value)
