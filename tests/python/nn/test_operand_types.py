# SPDX-License-Identifier: Apache-2.0
"""Tests the dtypes of a layer's operands. Scales depend on the dtype of the operand that the caller
passes. If inputs and weights differ in dtype, an error is raised wherever torch raises one."""

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
from tensors import converted  # noqa: E402


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- scales that follow from the operand's type --------------------------------------------------


def nearest(x, man, least):
    """Rounds a rational to nearest-even at `man` mantissa bits. `least` is the exponent of the
    least normal number."""
    if x == 0:
        return x
    exponent = abs(x).numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, least) - man)
    return round(x / step) * step


def te_cast(rows, largest):
    """Casts rows to E4M3 by TransformerEngine's rule, in exact rationals. A row is multiplied by
    fl(448 / max |x|), or by `largest` if that quotient overflows binary32."""
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
    """TransformerEngine's largest multiplier depends on the input's dtype. All values here are
    subnormal in bfloat16. All functions by which layers cast operands give cpd.cast's values."""
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
    # The factor 2^60 brings the products into float32's normal range.
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
    how = cpd.Recipe(sums="fp32", output="bf16") if recipe == "fp32 sums" else cpd.Recipe(recipe)
    plain = make(dtype=of_weight)
    layer = copy.deepcopy(plain)
    cpd.convert(layer, how, coverage=False)
    inputs = [values(*shape).to(of_input)] * ARGUMENTS.get(kind, 1)
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        plain(*inputs)
    with pytest.raises(theirs.type) as ours:
        layer(*inputs)
    assert str(ours.value) == str(theirs.value)
    if kind != "encoder":  # torch refuses the norms of an encoder
        with torch.autocast("cpu", torch.bfloat16):
            layer(*inputs)


# ---- other operands of another type: states, masks, biases, parameters of norms ------------------

B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TYPES = [(B16, F32), (F32, B16), (B16, F16)]
ROUNDED = cpd.Recipe("native", activation="e4m3fn", weight="e4m3fn", norm="(4,3)", softmax="(4,3)")


def outcome(call):
    """Runs a call. Returns the class and the text of its error, or the dtype of its result."""
    try:
        made = call()
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)
    while isinstance(made, tuple):
        made = made[0]
    return made.dtype


def with_bias(layer, dtype):
    layer.bias = nn.Parameter(layer.bias.detach().to(dtype))
    return layer


MHA = nn.MultiheadAttention
"""Layers with one dtype that get a tensor of another dtype. Each entry has functions that make the
layer and its arguments."""
OTHERS = {
    "bilinear": (lambda p, q: nn.Bilinear(8, 8, 4, dtype=p), lambda x, y: (x(4, 8), y(4, 8))),
    "linear's bias": (lambda p, q: with_bias(nn.Linear(8, 8, dtype=p), q), lambda x, y: (x(4, 8),)),
    "conv's bias": (
        lambda p, q: with_bias(nn.Conv2d(8, 8, 3, dtype=p), q),
        lambda x, y: (x(2, 8, 4, 4),),
    ),
    "lstm cell": (
        lambda p, q: nn.LSTMCell(8, 8, dtype=p),
        lambda x, y: (x(2, 8), (y(2, 8), y(2, 8))),
    ),
    "gru cell": (lambda p, q: nn.GRUCell(8, 8, dtype=p), lambda x, y: (x(2, 8), y(2, 8))),
    "rnn cell": (lambda p, q: nn.RNNCell(8, 8, dtype=p), lambda x, y: (x(2, 8), y(2, 8))),
    "lstm": (
        lambda p, q: nn.LSTM(8, 8, dtype=p),
        lambda x, y: (x(3, 2, 8), (y(1, 2, 8), y(1, 2, 8))),
    ),
    "gru": (lambda p, q: nn.GRU(8, 8, dtype=p), lambda x, y: (x(3, 2, 8), y(1, 2, 8))),
    "rnn": (lambda p, q: nn.RNN(8, 8, dtype=p), lambda x, y: (x(3, 2, 8), y(1, 2, 8))),
    "key": (lambda p, q: MHA(8, 2, dtype=p), lambda x, y: (x(3, 2, 8), y(3, 2, 8), x(3, 2, 8))),
    "value": (lambda p, q: MHA(8, 2, dtype=p), lambda x, y: (x(3, 2, 8), x(3, 2, 8), y(3, 2, 8))),
    "padding": (lambda p, q: MHA(8, 2, dtype=p), lambda x, y: (*[x(3, 2, 8)] * 3, y(2, 3))),
    "mask": (
        lambda p, q: MHA(8, 2, dtype=p),
        lambda x, y: (*[x(3, 2, 8)] * 3, None, True, y(3, 3)),
    ),
    "layer norm": (lambda p, q: nn.LayerNorm(8, dtype=p), lambda x, y: (y(4, 8),)),
    "rms norm": (lambda p, q: nn.RMSNorm(8, dtype=p), lambda x, y: (y(4, 8),)),
    "group norm": (lambda p, q: nn.GroupNorm(2, 8, dtype=p), lambda x, y: (y(4, 8, 3),)),
    "batch norm": (lambda p, q: nn.BatchNorm1d(8, dtype=p), lambda x, y: (y(4, 8, 3),)),
    "batch norm, eval": (
        lambda p, q: nn.BatchNorm2d(8, dtype=p).eval(),
        lambda x, y: (y(2, 8, 3, 3),),
    ),
    "statistics": (
        lambda p, q: with_statistics(nn.BatchNorm1d(8, dtype=p), q),
        lambda x, y: (x(4, 8),),
    ),
    "instance norm": (
        lambda p, q: nn.InstanceNorm1d(8, affine=True, track_running_stats=True, dtype=p),
        lambda x, y: (y(2, 8, 5),),
    ),
    "norm without parameters": (
        lambda p, q: nn.LayerNorm(8, elementwise_affine=False),
        lambda x, y: (y(4, 8),),
    ),
}


def with_statistics(layer, dtype):
    layer.running_mean, layer.running_var = (
        x.to(dtype) for x in (layer.running_mean, layer.running_var)
    )
    return layer


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(("first", "second"), TYPES)
def test_layers_take_and_refuse_the_types_that_torchs_layers_do(kind, first, second):
    """Converted layers accept and refuse the same combinations of dtypes as torch's layers. One
    combination is accepted by torch only: an LSTM cell's c of another dtype than the rest."""
    make, arguments = OTHERS[kind]
    plain = make(first, second)
    layer = copy.deepcopy(plain)
    cpd.convert(layer, ROUNDED, coverage=False)
    assert type(layer) is not type(plain)
    given = arguments(*(lambda *shape, of=of: values(*shape).to(of) for of in (first, second)))
    wanted = outcome(lambda: plain(*given))
    assert outcome(lambda: layer(*given)) == wanted
    assert (
        kind in ("rms norm", "norm without parameters")
        or isinstance(wanted, tuple)
        or ("norm" in kind and first == F32)
    )
    with torch.autocast("cpu", B16):
        got = outcome(lambda: layer(*given))
        if "norm" in kind or kind == "statistics":  # torch.autocast does not change these
            assert got == outcome(lambda: plain(*given))
        else:
            assert got in (B16, F32)


FORMS = {
    "linear": lambda x, y: ((x(4, 8), y(6, 8)), {}),
    "matmul": lambda x, y: ((x(4, 8), y(8, 6)), {}),
    "bilinear": lambda x, y: ((x(4, 8), x(4, 8), y(3, 8, 8)), {}),
    "conv1d": lambda x, y: ((x(2, 8, 5), y(8, 8, 3)), {}),
    "conv2d": lambda x, y: ((x(2, 8, 5, 5), y(8, 8, 3, 3)), {}),
    "conv3d": lambda x, y: ((x(2, 8, 4, 4, 4), y(8, 8, 3, 3, 3)), {}),
    "conv_transpose2d": lambda x, y: ((x(2, 8, 5, 5), y(8, 8, 3, 3)), {}),
    "scaled_dot_product_attention": lambda x, y: ((x(2, 4, 8), y(2, 4, 8), y(2, 4, 8)), {}),
    "scaled_dot_product_attention, value": lambda x, y: ((x(2, 4, 8), x(2, 4, 8), y(2, 4, 8)), {}),
    "scaled_dot_product_attention, mask": lambda x, y: ((*[x(2, 4, 8)] * 3, y(4, 4)), {}),
    "grouped_mm": lambda x, y: (
        (x(4, 16), y(2, 16, 16)),
        {"offs": torch.tensor([2, 4], dtype=torch.int32)},
    ),
    "layer_norm": lambda x, y: ((x(4, 8), (8,), y(8)), {}),
    "rms_norm": lambda x, y: ((x(4, 8), (8,), y(8)), {}),
    "group_norm": lambda x, y: ((x(4, 8), 2, y(8)), {}),
    "batch_norm": lambda x, y: ((x(4, 8), None, None, y(8), None, True), {}),
    "batch_norm, statistics": lambda x, y: ((x(4, 8), y(8), y(8).abs(), x(8)), {}),
    "instance_norm": lambda x, y: ((x(2, 8, 3), None, None, y(8)), {}),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("first", "second"), TYPES)
def test_functions_refuse_the_types_that_torchs_functions_do(name, first, second):
    """For dtypes that torch refuses, a functional form raises ValueError, as for every invalid
    argument. cpd.autocast raises torch's own error."""
    args, keywords = FORMS[name](
        *(lambda *shape, of=of: values(*shape).to(of) for of in (first, second))
    )
    which = name.partition(",")[0]
    theirs = getattr(F, which, None) or getattr(torch, which)
    wanted = outcome(lambda: theirs(*args, **keywords))
    with cpd.autocast(ROUNDED):
        assert outcome(lambda: theirs(*args, **keywords)) == wanted
    ours = getattr(functional, which)
    got = outcome(lambda: ours(*args, **keywords, recipe=ROUNDED))
    if not isinstance(wanted, tuple):
        assert got == wanted
        return
    assert isinstance(got, tuple), got
    assert got[0] is ValueError
    if "mask" in name:
        assert "attn_mask must be bool, float32 or of the query's type, " in got[1]
    if which in ("linear", "matmul") or "conv" in which:
        assert "the operands must have one type outside of torch.autocast, got" in got[1]
        y = ours(*args, **keywords, recipe=ROUNDED, dtype=torch.float32)
        assert y.dtype == torch.float32


def test_autocast_of_recipes_refuses_what_torch_refuses():
    x, w = values(4, 64), values(32, 64, seed=1).bfloat16()
    with (
        cpd.autocast(cpd.Recipe("te-current")),
        pytest.raises(RuntimeError, match="have the same dtype"),
    ):
        F.linear(x, w)


def test_an_output_that_autocasts_type_does_not_hold():
    layer = converted(torch.nn.Linear(8, 8), "fp16")
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(
            ValueError, match=r"bfloat16, which cannot represent .* the recipe's output, .*autocast"
        ),
    ):
        layer(values(4, 8))
    with torch.autocast("cpu", torch.float16):
        assert layer(values(4, 8)).dtype == torch.float16
    with pytest.raises(ValueError, match=r"output, .*give dtype=.* or another recipe$"):
        functional.linear(values(4, 8).bfloat16(), layer.weight.bfloat16(), recipe="fp16")


def test_sums_that_autocasts_type_does_not_hold():
    """If autocast's dtype cannot hold the sums, the error names several remedies. Each remedy
    works."""
    layer = converted(torch.nn.Linear(8, 8), cpd.Recipe(sums="fp32"))
    x = values(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ValueError, match=r"output='bf16'.*dtype=.*turn torch\.autocast off"):
            layer(x)
        with torch.autocast("cpu", enabled=False):
            wanted = layer(x)
        converted(layer, cpd.Recipe(sums="fp32", output="bf16"))
        y = layer(x)
        functional.linear(x, layer.weight, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float32)
    assert wanted.dtype == torch.float32
    assert torch.equal(y, wanted.bfloat16())
    with pytest.raises(ValueError, match="give the recipe output='fp16'") as error:
        functional.linear(x, layer.weight, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float16)
    assert "autocast" not in str(error.value)
