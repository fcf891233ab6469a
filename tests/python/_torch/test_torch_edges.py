# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of operators on tensors: shapes of additional operands, factors, padding, saved
tensors."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
from cpd._torch import library  # noqa: E402
from cpd._torch.kept import kept  # noqa: E402
from cpd._torch.on_torch import check_place  # noqa: E402
from cpd._torch.operands import cast_operand, split_operand  # noqa: E402

X = torch.linspace(-4, 4, 24).reshape(4, 6)


@pytest.mark.parametrize("shape", [(6, 4), (24,), (4, 5), (1, 6)])
def test_random_integers_have_xs_shape(shape):
    random = torch.zeros(shape, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"random must have x's shape, \(4, 6\), got"):
        cpd.cast(X, "e4m3 stochastic", random=random)


def test_codes_are_a_vector():
    (codes, *_) = (cpd.encode(X, "e4m3"),)
    assert cpd.decode(codes, "e4m3", X.shape).shape == X.shape
    with pytest.raises(TypeError, match="codes must be a 1-D uint8 tensor"):
        cpd.decode(codes.reshape(2, -1), "e4m3", X.shape)


@pytest.mark.parametrize("more", [1, -1])
def test_codes_are_as_many_as_the_shape_needs(more):
    codes = cpd.encode(X, "e4m3")
    with pytest.raises(ValueError, match=r"codes must have 24 bytes for \(4, 6\) of e4m3"):
        cpd.decode(torch.zeros(len(codes) + more, dtype=torch.uint8), "e4m3", X.shape)


def test_a_bool_is_no_scale():
    with pytest.raises(TypeError, match="amax must be of float32 numbers"):
        cpd.cast(X, "int8 tensor", amax=True)
    assert cpd.cast(X, "int8 tensor", amax=4).abs().max() == 4


def test_the_oldest_torch_is_taken(monkeypatch):
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    monkeypatch.setattr(library, "OLDEST", version)
    library._load()
    monkeypatch.setattr(library, "OLDEST", (version[0], version[1] + 1))
    with pytest.raises(ImportError, match=r"cpd takes tensors of torch .* or newer"):
        library._load()


def test_a_delayed_cast_needs_state():
    text = "e4m3fn tensor scale=fp32 history=3"
    with pytest.raises(ValueError, match=r"depend on past steps: use cpd\.convert"):
        cast_operand(X, text, -1)
    assert cast_operand(X, text, -1, multiplier=torch.tensor([2.0])).shape == X.shape


@pytest.mark.parametrize("rows", [16, 20])
def test_split_operands_are_padded_to_whole_transforms(rows):
    """Operands are padded with zeros to a multiple of 16, the size of the Hadamard transform. The
    zeros add nothing to the product."""
    text = "int4 tensor scale=fp32 transform=hadamard16"
    x = torch.rand(rows, 3)
    made = split_operand(x, text, 0, (None, None), None)
    padded = torch.cat([x, x.new_zeros(-rows % 16, 3)])
    wanted = cpd.cast(padded, text, axis=0)
    assert torch.equal(made.values * made.scale, wanted)


@pytest.mark.parametrize("factors", [(0.5, 1), (1, 0.5), (0.5, 0.25)])
def test_factors_of_both_operands_are_taken_back(factors):
    """A cast may multiply each operand by a factor; the product is then divided by both factors.
    With small integers the result is exact, because mxint8 represents the multiplied integers."""
    a, w = torch.randint(-4, 5, (3, 32)).float(), torch.randint(-4, 5, (5, 32)).float()
    texts = [f"mxint8 factor={factor}" for factor in factors]
    for sums in ("native", "fp32"):
        how = cpd.Recipe(sums=sums, activation=texts[0], weight=texts[1])
        assert torch.equal(cpd.functional.linear(a, w, recipe=how), a @ w.mT)
        image, kernel = a.reshape(3, 32, 1, 1), w.reshape(5, 32, 1, 1)
        z = cpd.functional.conv2d(image, kernel, recipe=how)
        assert torch.equal(z.flatten(1), a @ w.mT)


def test_the_weights_gradient_takes_its_own_cast_of_the_gradient():
    """The incoming gradient is cast twice: to e4m3fn elements for the gradient of the input, and to
    e2m1 elements for the gradient of the weight. With scales_at="block", the sum of each block is
    multiplied by the scales of its operands."""
    a, w = torch.randn(8, 32, requires_grad=True), torch.randn(16, 32, requires_grad=True)
    g = torch.randn(8, 16)
    common = {"sums": "fp32", "activation": "mxfp8", "weight": "mxfp8", "gradient": "mxfp8"}
    found = {}
    for own in ("mxfp8", "mxfp4"):
        how = cpd.Recipe(**common, grad_weight_gradient=own, scales_at="block")
        y = cpd.functional.linear(a, w, recipe=how)
        found[own] = torch.autograd.grad(y, (a, w), g)
    assert torch.equal(found["mxfp8"][0], found["mxfp4"][0])
    assert not torch.equal(found["mxfp8"][1], found["mxfp4"][1])
    whole = cpd.Recipe(**{**common, "gradient": "mxfp4"}, scales_at="block")
    y = cpd.functional.linear(a, w, recipe=whole)
    assert torch.equal(torch.autograd.grad(y, (a, w), g)[1], found["mxfp4"][1])


def test_a_result_written_into_a_saved_tensor_is_noticed():
    """Autograd notices that `out=` overwrote a tensor that it saved for the backward pass. The
    backward pass of sin needs x as it was before the call."""
    x = torch.rand(8)
    y = (x.clone().requires_grad_() * 1).sin()
    saved = torch.rand(8)
    leaf = torch.rand(8, requires_grad=True)
    product = leaf * saved
    cpd.cast(x, "e4m3", out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.no_grad():
        other = torch.rand(8)
    product = leaf * other
    torch.ops.cpd.cast_out(x, cpd.Cast("e4m3").text, None, None, None, out=other)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    assert y.grad_fn is not None


@kept
def _two(x, *, sizes, numbers):
    return [x * 2, x * x]


def test_unused_results_of_a_stored_function_give_no_gradient():
    """In a compiled program, an output that nobody uses adds nothing to the gradient. Afterwards
    autograd works as before."""
    x = torch.rand(6, requires_grad=True)

    @torch.compile(backend="aot_eager")
    def first(x):
        return _two(x)[0]

    (gradient,) = torch.autograd.grad(first(x).sum(), x)
    assert torch.equal(gradient, torch.full((6,), 2.0))
    (again,) = torch.autograd.grad((x * 3).sum(), x)
    assert torch.equal(again, torch.full((6,), 3.0))


def test_gradients_of_a_stored_function_leave_dispatch_as_it_was():
    from cpd._torch.private import above_autograd

    key = torch._C.DispatchKey.AutogradFunctionality
    for excluded in (True, False):
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)
        try:
            with above_autograd():
                assert not torch._C._dispatch_tls_is_dispatch_key_excluded(key)
            assert torch._C._dispatch_tls_is_dispatch_key_excluded(key) == excluded
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)


def test_devices_of_other_kinds_are_refused():
    fake = importlib.import_module("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode():
        x = torch.empty(3, device="xla")
        with pytest.raises(ValueError, match="x must be on the CPU or a CUDA device, got xla"):
            check_place("x", x)
