# SPDX-License-Identifier: Apache-2.0
"""matmul, linear and conv2d: torch's results with fp32 sums, to a tolerance; with narrow sums, bit
for bit, what cpd.cast and cpd.gemm give when they are called one by one."""

from __future__ import annotations

import functools
import itertools

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from cpd import functional  # noqa: E402
from tensors import NARROW, SOME, close, leaves_of, same  # noqa: E402
from tensors import normal as values  # noqa: E402

# ---- matmul --------------------------------------------------------------------------------------

SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((4, 5), (5, 3)),
    ((2, 4, 5), (5, 3)),
    ((2, 6, 4, 5), (5,)),
    ((5,), (2, 5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (6, 5, 3)),
    ((0, 4, 5), (5, 3)),
    ((4, 0), (0, 3)),
    ((2, 4, 0), (0, 3)),
]


@pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
def test_matmul_has_torchs_rules(of_a, of_b):
    a, b = leaves_of(of_a, of_b)
    got, wanted = functional.matmul(a, b, sums="fp32"), torch.matmul(a, b)
    assert close(got, wanted)
    g = values(*wanted.shape, seed=3)
    pairs = torch.autograd.grad(got, (a, b), g), torch.autograd.grad(wanted, (a, b), g)
    assert all(close(x, y) for x, y in zip(*pairs, strict=True))


def test_matmul_with_accumulators_of_its_own():
    a, b = leaves_of((2, 4, 5), (5, 3))
    g = values(2, 4, 3, seed=3)
    y = functional.matmul(a, b, sums=("e4m3", "e5m2 kahan", "e5m2 kahan"))
    assert same(y, cpd.gemm(a, b, "e4m3"))
    for_a, for_b = torch.autograd.grad(y, (a, b), g)
    assert same(for_a, cpd.gemm(g, b.detach().t(), "e5m2 kahan"))
    rows = a.detach().reshape(8, 5)
    assert same(for_b, cpd.gemm(rows.t(), g.reshape(8, 3), "e5m2 kahan"))


# ---- linear --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7), (0, 7), (2, 0, 7)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_torchs(shape, biased):
    x, w, bias = leaves_of(shape, (5, 7), (5,))
    leaves = (x, w, bias) if biased else (x, w)
    got, wanted = functional.linear(*leaves, recipe=cpd.Recipe(sums="fp32")), F.linear(*leaves)
    assert close(got, wanted)
    g = values(*wanted.shape, seed=3)
    pairs = torch.autograd.grad(got, leaves, g), torch.autograd.grad(wanted, leaves, g)
    assert all(close(p, q) for p, q in zip(*pairs, strict=True))


def test_linear_one_by_one():
    x, w, bias = leaves_of((2, 9, 7), (5, 7), (5,))
    y = functional.linear(x, w, bias, recipe=NARROW)
    cast_x = cpd.cast(x.detach(), "e4m3")
    cast_w = cpd.cast(w.detach(), "e3m2 toward_zero overflow=saturate")
    assert same(y, cpd.gemm(cast_x, cast_w.t(), "e4m3", bias.detach()))
    g = values(2, 9, 5, seed=3)
    cast_g = cpd.cast(g, "e5m2")
    for_x, for_w, for_bias = torch.autograd.grad(y, (x, w, bias), g)
    assert same(for_x, cpd.gemm(cast_g, cast_w, NARROW.grad_input))
    rows, columns = cast_x.reshape(18, 7), cast_g.reshape(18, 5)
    assert same(for_w, cpd.gemm(rows.t(), columns, NARROW.grad_weight).t())
    assert same(for_bias, cpd.sum(g.reshape(18, 5), "e5m3", 0))


def test_each_rounding_draws_from_a_stream_of_its_own():
    """The table in cpd.Recipe's documentation."""
    operand = "e5m2 stochastic random_bits=8"
    how = cpd.Recipe(operand, sums=(SOME,) * 4)
    x, w, bias = leaves_of((18, 7), (5, 7), (5,))
    y = functional.linear(x, w, bias, recipe=how, seed=5, stream=9)

    def numbers(purpose):
        return {"seed": 5, "stream": 9 ^ (purpose << 60)}

    def cast(t, purpose):
        return cpd.cast(t.detach(), operand, **numbers(purpose))

    cast_x, cast_w = cast(x, 8), cast(w, 9)
    assert same(y, cpd.gemm(cast_x, cast_w.t(), SOME, bias.detach(), **numbers(0)))
    g = values(18, 5, seed=3)
    for_x, for_w, for_bias = torch.autograd.grad(y, (x, w, bias), g)
    cast_g = cast(g, 10)
    assert same(for_x, cpd.gemm(cast_g, cast_w, SOME, **numbers(4)))
    assert same(for_w, cpd.gemm(cast_x.t(), cast_g, SOME, **numbers(5)).t())
    of_terms = cpd.Accumulator(SOME).replace(product="exact")
    assert same(for_bias, cpd.gemm(torch.ones(1, 18), g, of_terms, **numbers(6))[0])


def test_types_of_a_layer():
    for dtype in (torch.bfloat16, torch.float16):
        x, w, bias = leaves_of((4, 7), (5, 7), (5,), dtype=dtype)
        y = functional.linear(x, w, bias, recipe=cpd.Recipe(sums="e4m3"))
        assert y.dtype == dtype
        wide = functional.linear(x, w, bias, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float32)
        assert same(wide, cpd.gemm(x, w.t(), "fp32", bias, dtype=torch.float32))
        g = values(4, 5, seed=3)
        for t, grad in zip((x, w, bias), torch.autograd.grad(wide, (x, w, bias), g), strict=True):
            assert grad.dtype == dtype
            assert grad.shape == t.shape
        x, w = leaves_of((1, 2, 5, 5), (3, 2, 3, 3), dtype=dtype)
        y = functional.conv2d(x, w, recipe=NARROW)
        assert y.dtype == dtype
        assert torch.autograd.grad(y.sum(), w)[0].dtype == dtype


def test_output_is_rounded_once_more():
    x, w, bias = leaves_of((4, 7), (5, 7), (5,), dtype=torch.bfloat16)
    y = functional.linear(x, w, bias, recipe=cpd.Recipe(sums="fp32", output="bf16"))
    sums = cpd.gemm(x, w.t(), "fp32", bias, dtype=torch.float32)
    assert same(y, cpd.cast(sums, "bf16").bfloat16())
    for_x, for_w = torch.autograd.grad(y.float().sum(), (x, w))
    ones = torch.ones(4, 5)
    assert same(for_x, cpd.gemm(ones, w.detach(), "fp32").bfloat16())
    assert same(for_w, cpd.gemm(x.detach().t(), ones, "fp32", dtype=torch.float32).bfloat16().t())
    spec = cpd.Cast("e4m3", rounding="stochastic", overflow="saturate", random_bits=8)
    images, kernels = leaves_of((1, 2, 5, 5), (3, 2, 3, 3))
    how = cpd.Recipe(sums="e6m9", output=spec)
    y = functional.conv2d(images, kernels, recipe=how, seed=2, stream=3)
    options = {"seed": 2, "stream": 3 ^ (11 << 60)}
    sums = functional.conv2d(images, kernels, recipe=cpd.Recipe(sums="e6m9"))
    assert same(y, cpd.cast(sums, "e4m3 stochastic overflow=saturate random_bits=8", **options))
    y = functional.matmul(
        images, images.mT, recipe=cpd.Recipe(sums="fp32", output="(4,3)"), dtype=torch.half
    )
    assert same(y, cpd.cast(functional.matmul(images, images.mT, sums="fp32"), "e4m3").half())
    with pytest.raises(
        ValueError,
        match=r"float16, which cannot represent .* the recipe's output, bf16: give dtype=",
    ):
        functional.linear(x, w, recipe=cpd.Recipe(sums="fp32", output="bf16"), dtype=torch.half)


# ---- conv2d --------------------------------------------------------------------------------------

MOVES = [
    {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    for stride, padding, dilation, groups in itertools.product(
        (1, (2, 3)), (0, (2, 1), "same", "valid"), (1, (2, 1)), (1, 2)
    )
    if not (padding == "same" and stride != 1)
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("moves", MOVES, ids=str)
def test_conv2d_is_torchs(moves):
    for kernel, biased in (((3, 2), True), ((1, 1), False)):
        x, w, bias = leaves_of((2, 4, 7, 8), (6, 4 // moves["groups"], *kernel), (6,))
        leaves = (x, w, bias) if biased else (x, w)
        got = functional.conv2d(*leaves, **moves, recipe=cpd.Recipe(sums="fp32"))
        wanted = F.conv2d(*leaves, **moves)
        assert close(got, wanted)
        assert got.is_contiguous()
        g = values(*wanted.shape, seed=4)
        pairs = torch.autograd.grad(got, leaves, g), torch.autograd.grad(wanted, leaves, g)
        assert all(close(p, q) for p, q in zip(*pairs, strict=True))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(2, 1), "same"])
def test_padding_modes_are_torchs(mode, padding):
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(2, 3, (4, 3), padding=padding, padding_mode=mode)
    ours = functools.partial(functional.conv2d, padding=padding, padding_mode=mode, sums="fp32")
    for x in (values(2, 2, 6, 7), values(2, 6, 7)):
        leaves = x.requires_grad_(), layer.weight, layer.bias
        got, wanted = ours(*leaves), layer(x)
        assert close(got, wanted)
        g = values(*wanted.shape, seed=4)
        pairs = torch.autograd.grad(got, leaves, g), torch.autograd.grad(wanted, leaves, g)
        assert all(close(p, q) for p, q in zip(*pairs, strict=True))


def unfolded(x, w, stride, dilation, groups):
    """Columns by torch's own unfold: images x groups x terms x places."""
    columns = F.unfold(x, w.shape[2:], dilation, 0, stride)
    return columns.view(x.shape[0], groups, columns.shape[1] // groups, columns.shape[2])


@pytest.mark.parametrize("moves", [m for m in MOVES if not isinstance(m["padding"], str)], ids=str)
def test_conv2d_one_by_one(moves):
    groups, dilation = moves["groups"], moves["dilation"]
    down, across = (moves["padding"],) * 2 if moves["padding"] == 0 else moves["padding"]
    x, w, bias = leaves_of((2, 4, 7, 8), (6, 4 // groups, 3, 2), (6,))
    y = functional.conv2d(x, w, bias, **moves, recipe=NARROW)
    cast_x = F.pad(cpd.cast(x.detach(), "e4m3"), (across, across, down, down))
    cast_w = cpd.cast(w.detach(), "e3m2 toward_zero overflow=saturate")
    columns = unfolded(cast_x, w, moves["stride"], dilation, groups)
    matrices = cast_w.reshape(groups, 6 // groups, -1)
    addend = bias.detach().view(groups, -1, 1)
    assert same(y, cpd.gemm(matrices, columns, "e4m3", addend).view(y.shape))

    g = values(*y.shape, seed=4)
    cast_g = cpd.cast(g, "e5m2")
    for_x, for_w, for_bias = torch.autograd.grad(y, (x, w, bias), g)
    rows = (
        cast_g.view(2, groups, 6 // groups, -1).permute(1, 2, 0, 3).reshape(groups, 6 // groups, -1)
    )
    gathered = columns.permute(1, 2, 0, 3).reshape(groups, columns.shape[2], -1)
    wanted = cpd.gemm(rows, gathered.mT, NARROW.grad_weight)
    assert same(for_w, wanted.view(w.shape))
    assert same(for_bias, cpd.sum(g.permute(0, 2, 3, 1).reshape(-1, 6), "e5m3", 0))

    strides = (moves["stride"],) * 2 if moves["stride"] == 1 else moves["stride"]
    dilations = (dilation,) * 2 if dilation == 1 else dilation
    reach = [d * (k - 1) for d, k in zip(dilations, (3, 2), strict=True)]
    spread = torch.zeros(2, 6, cast_x.shape[2] + reach[0], cast_x.shape[3] + reach[1])
    for i, j in itertools.product(range(y.shape[2]), range(y.shape[3])):
        spread[:, :, reach[0] + i * strides[0], reach[1] + j * strides[1]] = cast_g[:, :, i, j]
    turned = cast_w.flip(2, 3).view(groups, 6 // groups, 4 // groups, 6).transpose(1, 2)
    columns = unfolded(spread, w, 1, dilation, groups)
    wanted = cpd.gemm(turned.reshape(groups, 4 // groups, -1), columns, NARROW.grad_input)
    wanted = wanted.view(cast_x.shape)[:, :, down : down + 7, across : across + 8]
    assert same(for_x, wanted)


@pytest.mark.parametrize(
    "recipe",
    [
        NARROW,
        "e4m3",
        cpd.Recipe(forward=SOME, grad_input="e4m3", grad_weight="e4m3 pairwise"),
        "h100-bf16",
        cpd.Recipe(sums="e4m3 sequential rounding=stochastic"),
        cpd.Recipe(sums="e5m4 chunked chunk=8 rounding=stochastic random_bits=8"),
    ],
    ids=str,
)
def test_unfolding_in_parts_changes_nothing(recipe, monkeypatch):
    from cpd._torch import conv, unfolded

    x, w, bias = (
        t.detach().bfloat16().float() for t in leaves_of((7, 4, 6, 5), (6, 4, 3, 2), (6,))
    )
    leaves = [t.requires_grad_() for t in (x, w, bias)]
    g = values(7, 6, 4, 4, seed=4).bfloat16().float()

    def run():
        y = functional.conv2d(*leaves, recipe=cpd.nn.recipe.product_recipe(recipe))
        return [y, *torch.autograd.grad(y, leaves, g)]

    wanted = run()
    calls = []
    monkeypatch.setattr(conv, "reads_images", lambda *operands: False)
    assert all(same(p, q) for p, q in zip(run(), wanted, strict=True))
    monkeypatch.setattr(unfolded, "_COLUMN_BYTES", 5000)
    product = unfolded.product_part
    monkeypatch.setattr(unfolded, "product_part", lambda *a: (calls.append(1), product(*a))[1])
    assert all(same(p, q) for p, q in zip(run(), wanted, strict=True))
    assert len(calls) > 4


def test_conv2d_takes_any_layout():
    x, w, bias = (t.detach() for t in leaves_of((3, 4, 6, 5), (6, 2, 3, 2), (6,)))
    g = values(3, 6, 4, 4, seed=4)

    def run(*leaves, grad=g):
        leaves = [t.requires_grad_() for t in leaves]
        y = functional.conv2d(*leaves, groups=2, recipe=NARROW)
        return [y, *torch.autograd.grad(y, leaves, grad)]

    wanted = run(x.clone(), w.clone(), bias.clone())
    last = torch.channels_last
    wide = torch.zeros(3, 5, 9, 12)
    wide[:, 1:, 2:8, 1::2][..., :5] = x
    twice = torch.stack([bias, bias], 1)
    for operands in (
        (x.to(memory_format=last), w.to(memory_format=last), bias.clone()),
        (wide[:, 1:, 2:8, 1::2][..., :5], w.mT.contiguous().mT, twice[:, 1]),
    ):
        detached = [t.detach() for t in operands]
        assert not detached[0].is_contiguous()
        for grad in (g, g.to(memory_format=last)):
            got = run(*detached, grad=grad)
            assert all(same(p, q) for p, q in zip(got, wanted, strict=True))


def test_operands_of_a_matrix_unit_keep_their_places():
    """Gradients may be values of e5m2 that are none of e4m3fn; weights and activations are not."""
    how = cpd.Recipe(
        forward="h100-fp8",
        grad_input="h100-fp8 a=e5m2",
        grad_weight="h100-fp8 b=e5m2",
        activation="e4m3fn",
        weight="e4m3fn",
        gradient="e5m2",
    )
    for y, leaves in (
        (lambda x, w: functional.linear(x, w, recipe=how), leaves_of((3, 8), (5, 8))),
        (lambda x, w: functional.conv2d(x, w, recipe=how), leaves_of((2, 3, 5, 5), (4, 3, 3, 3))),
    ):
        out = y(*leaves)
        torch.autograd.grad(out, leaves, torch.full(out.shape, 2.0**-14))


def test_second_gradients():
    x, w = leaves_of((3, 4), (2, 4))
    (for_x,) = torch.autograd.grad(
        functional.linear(x, w, recipe=cpd.Recipe(sums="fp32")).square().sum(), x, create_graph=True
    )
    got = torch.autograd.grad(for_x.square().sum(), (x, w))
    (for_x,) = torch.autograd.grad(F.linear(x, w).square().sum(), x, create_graph=True)
    wanted = torch.autograd.grad(for_x.square().sum(), (x, w))
    assert all(close(p, q) for p, q in zip(got, wanted, strict=True))
    x, w = leaves_of((1, 2, 4, 4), (2, 2, 3, 3))
    y = functional.conv2d(x, w, recipe=cpd.Recipe(sums="fp32"))
    (for_x,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients of its gradients"):
        for_x.sum().backward()


# ---- errors --------------------------------------------------------------------------------------

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
            "weight must be on input's device, cpu, got meta",
        ),
        ({"bias": 3.0}, TypeError, "bias must be a torch tensor"),
        ({"bias": values(5)}, ValueError, r"bias must have shape \(6,\), got \(5,\)"),
        ({"input": X[0, 0]}, ValueError, "input must be .* got shape"),
        ({"weight": W[0]}, ValueError, "weight must be"),
        (
            {"groups": 1},
            ValueError,
            "input's 4 channels must be groups × weight's 2 channels.* got groups=1 ",
        ),
        ({"groups": 4}, ValueError, "weight's 6 outputs a multiple of groups, got groups=4"),
        ({"groups": 0}, ValueError, "a multiple of groups, got groups=0"),
        ({"groups": 2.0}, TypeError, "groups must be an int"),
        ({"stride": 0}, ValueError, "stride must be at least 1, got 0"),
        ({"stride": (1, 2, 3)}, ValueError, "stride must be one number or two"),
        ({"stride": 1.5}, TypeError, "stride must be an int"),
        ({"dilation": -1}, ValueError, "dilation must be at least 1"),
        ({"padding": -1}, ValueError, "padding must be at least 0"),
        ({"padding": "full"}, ValueError, "padding must be numbers, 'same' or 'valid', got 'full'"),
        ({"padding": "same", "stride": 2}, ValueError, "padding='same' needs stride 1"),
        ({"padding_mode": "wrap"}, ValueError, "padding_mode must be one of zeros, reflect"),
        ({"dilation": 3}, ValueError, r"fit into the padded input, \(5, 5\), got \(3, 3\)"),
        ({"dtype": torch.float64}, TypeError, "dtype must be torch's float32"),
        ({"dtype": torch.float16}, ValueError, "sums' format, fp32: give the recipe output='fp16'"),
        ({"recipe": None}, TypeError, "give recipe="),
        ({"recipe": "e9m3"}, ValueError, "e9m3|exp"),
    ],
)
def test_conv2d_errors(arguments, error, message):
    good = {"input": X, "weight": W, "bias": B, "groups": 2, "recipe": cpd.Recipe(sums="fp32")}
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
        ({"bias": values(3).to("meta")}, ValueError, "bias must be on input's device"),
        ({"weight": values(3, 5).long()}, TypeError, "weight must be of type float32.*int64"),
        (
            {"dtype": torch.bfloat16},
            ValueError,
            "bfloat16, which cannot represent every value of the sums' format, fp32",
        ),
    ],
)
def test_linear_errors(arguments, error, message):
    good = {
        "input": values(2, 5),
        "weight": values(3, 5),
        "bias": values(3),
        "recipe": cpd.Recipe(sums="fp32"),
    }
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
            functional.matmul(*bad[:2], sums=bad[2])
    refused = "matmul takes two operands: give accumulators by sums=, .* or a recipe by recipe="
    for old in (
        lambda: functional.matmul(a, b, "fp32"),
        lambda: functional.matmul(a, b, acc="fp32"),
        lambda: functional.matmul(a, b, sums="fp32", backward="e4m3"),
    ):
        with pytest.raises(TypeError, match=refused):
            old()
    with pytest.raises(
        TypeError, match="give recipe=, such as recipe='mxfp8', or sums=, got neither"
    ):
        functional.matmul(a, b)
