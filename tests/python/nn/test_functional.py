# SPDX-License-Identifier: Apache-2.0
"""Tests matmul, linear and conv2d. With fp32 sums, they give torch's results to a tolerance. With
narrow sums, they give the bits of separate calls of cpd.cast and cpd.gemm."""

from __future__ import annotations

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


def test_each_rounding_draws_from_a_stream_of_its_own():
    """Each stochastic rounding uses the random stream that the table in cpd.Recipe's documentation
    lists."""
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


# ---- errors --------------------------------------------------------------------------------------


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
