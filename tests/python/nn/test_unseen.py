# SPDX-License-Identifier: Apache-2.0
"""Tests products outside layers, in a module's own forward: which products are emulated, and how
the report describes them."""

from __future__ import annotations

import contextlib

import pytest

import cpd

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

RECIPE = cpd.Recipe("mxfp8").replace(attention="bf16")
NOTE = "products that the forward of {} computes itself"


class Multiply(torch.autograd.Function):
    """A matrix product with a backward pass written by hand."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w.mT, x.mT @ gradient


class Mul(Multiply):
    """Computes the same product as `Multiply`. The autograd node of this class is called
    MulBackward, a name similar to the name of the node of torch's multiplication."""


class Emulated(Multiply):
    """Computes the same product as `Multiply`, with cpd.autocast in its own backward pass. The
    backward pass runs outside the module's forward."""

    @staticmethod
    def backward(ctx, gradient):
        with cpd.autocast(RECIPE):
            return Multiply.backward(ctx, gradient)


PRODUCTS = {
    "linear": lambda x, w: F.linear(x, w),
    "matmul": lambda x, w: x @ w,
    "mm": torch.mm,
    "addmm": lambda x, w: torch.addmm(x, x, w),
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "conv1d": lambda x, w: F.conv1d(x[:, None], w[:1, None, :3]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]),
    "function": Multiply.apply,
    "mul": Mul.apply,
    "emulated": Emulated.apply,
}


def model_of(product):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8, bias=False)
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return product(self.layer(x), self.weight)

    return Written()


def step(model):
    model(torch.randn(8, 8)).sum().backward()


def emulated_backward(report):
    """Returns two booleans: True if all products outside layers ran emulated in the forward pass,
    and True if they did in the backward pass."""
    own = [one for one in report.coverage().products if one.module == ""]
    assert {one.backward for one in own} == {False, True}
    return tuple(
        all(one.recipe for one in own if one.backward == backward) for backward in (False, True)
    )


@pytest.mark.parametrize("name", PRODUCTS)
def test_convert_leaves_them_in_torch_and_says_so(name):
    model = model_of(PRODUCTS[name])
    report = cpd.convert(model, RECIPE, coverage=0)
    assert NOTE.format("Written") in str(report)
    step(model)
    assert emulated_backward(report) == (False, name == "emulated")
    assert NOTE.format("Written") in str(report)
    assert report.coverage().share < 1


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_registered_module_emulates_them(name):
    """In a registered module, all products are emulated. The exception is the backward pass of a
    torch.autograd.Function, which needs cpd.autocast of its own."""
    model = model_of(PRODUCTS[name])
    cpd.nn.register(type(model), "products")
    report = cpd.convert(model, RECIPE, coverage=0)
    assert NOTE.format("Written") not in str(report)
    step(model)
    assert emulated_backward(report) == (True, name not in ("function", "mul"))


@pytest.mark.parametrize("name", PRODUCTS)
def test_autocast_emulates_them(name):
    model = model_of(PRODUCTS[name])
    report = cpd.convert(model, RECIPE, coverage=0)
    with cpd.autocast(RECIPE) as context:
        step(model)
    assert not context.left
    assert emulated_backward(report)[0]


def test_a_forward_without_products_worries_nobody():
    """The report has a note about products outside layers until it has counted a training step. If
    that step had no such products, the note disappears."""
    model = model_of(lambda x, w: x.relu() * w)
    report = cpd.convert(model, RECIPE)
    assert NOTE.format("Written") in str(report)
    step(model)
    assert report.coverage().share == 1
    assert NOTE.format("Written") not in str(report)


def test_a_note_names_what_a_step_has_had():
    """The report lists a layer that a rule leaves to torch. The note about products outside layers
    does not name this layer."""

    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.head = inner, nn.Linear(8, 8)

        def forward(self, x):
            return self.head(self.inner(x))

    model = Outer(model_of(lambda x, w: x @ w))
    report = cpd.convert(model, RECIPE, {"head": None}, coverage=0)
    assert NOTE.format("Outer, Written") in str(report)
    step(model)
    assert NOTE.format("Written") in str(report)
    model = Outer(nn.Sequential(nn.Linear(8, 8)))
    report = cpd.convert(model, RECIPE, {"head": None}, coverage=0)
    step(model)
    assert report.coverage().left
    assert not report.notes


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.mm(x, x.bfloat16()),
        lambda x: x.bfloat16() @ x,
        lambda x: F.linear(x, x.bfloat16()),
        lambda x: torch.addmm(x, x.bfloat16(), x.bfloat16()),
        lambda x: F.conv1d(x[None], x.bfloat16()[..., None]),
    ],
)
def test_autocast_refuses_operands_of_two_types_as_torch_does(call):
    x = torch.ones(4, 4)
    with pytest.raises(RuntimeError):
        call(x)
    with cpd.autocast(RECIPE), pytest.raises(RuntimeError):
        call(x)
    with cpd.autocast(RECIPE), torch.autocast("cpu", torch.bfloat16):
        assert call(x).dtype == torch.bfloat16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        x = self.project(x)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("attention", [None, "bf16"])
def test_attention_in_a_forward_needs_autocast_and_its_own_recipe(attention):
    recipe = cpd.Recipe("mxfp8", attention=attention)
    for emulates in (False, True):
        model = Attention()
        report = cpd.convert(model, recipe, coverage=0)
        with cpd.autocast(recipe) if emulates else contextlib.nullcontext():
            y = model(torch.randn(1, 2, 4, 8))
        y.sum().backward()
        assert (report.coverage().share == 1) == (emulates and attention is not None)
        assert emulates or "scaled_dot_product_attention" in str(report)
