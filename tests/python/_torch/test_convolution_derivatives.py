# SPDX-License-Identifier: Apache-2.0
"""Tests convolutions beyond a plain backward pass: second gradients, forward mode, torch.vmap,
torch.compile, and torch.library.opcheck."""

from __future__ import annotations

import copy
import functools
import itertools

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.func import grad, jvp, vmap  # noqa: E402

import conv_oracle as oracle  # noqa: E402
from conv_oracle import CASES, PLAIN, SHORT, leaves_of, operands  # noqa: E402
from cpd import functional  # noqa: E402
from cpd.numeric.purposes import Purpose  # noqa: E402
from operand_cases import RECIPES  # noqa: E402
from tensors import NARROW, SOME, close, compiled, same  # noqa: E402
from tensors import normal as values  # noqa: E402


def second_gradients(f, args):
    def first(*args):
        gradients = torch.autograd.grad(f(*args).square().sum(), args, create_graph=True)
        return sum(g.square().sum() for g in gradients)

    return torch.autograd.grad(first(*args), args)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_second_gradients_of_native_sums_are_torchs(case):
    leaves = leaves_of(case)
    got = second_gradients(lambda *a: case.ours(*a, recipe="native"), leaves)
    assert close(got, second_gradients(case.torchs, leaves), 1e-3)


def test_second_gradients_pass_straight_through_casts():
    case = CASES["2d moved"]
    casts = {"activation": "e4m3fn block=2", "weight": "e4m3fn block=2", "gradient": "e5m2"}
    recipe = cpd.Recipe("native", grad_bias="native", **casts)
    x, w, b = leaves_of(case)
    (of_x,) = torch.autograd.grad(
        case.ours(x, w, b, recipe=recipe).square().sum(), x, create_graph=True
    )
    h = values(*of_x.shape, seed=9)
    (got,) = torch.autograd.grad(of_x, w, h)
    with torch.no_grad():
        y = case.ours(x, w, b, recipe=recipe)
        parts = w.unflatten(0, (2, 3))
        cast_w = cpd.cast(parts, "e4m3fn block=2", axis=1).flatten(0, 1)
        cast_g = cpd.cast(2 * y, "e5m2")
    asked = [False, True, False]
    through_w = torch.ops.aten.convolution_backward(cast_g, h, w, None, *case.moves, asked)[1]
    of_g = F.conv2d(
        h, cast_w, None, *(case.named[n] for n in ("stride", "padding")), case.named["dilation"], 2
    )
    cast_x = cpd.cast(x.detach().unflatten(1, (2, 2)), "e4m3fn block=2", axis=0).flatten(1, 2)
    through_y = torch.ops.aten.convolution_backward(
        cpd.cast(2 * of_g, "e5m2"), cast_x, w, None, *case.moves, asked
    )[1]
    assert close(got, through_w + through_y, 1e-5)


@pytest.mark.parametrize("name", ["1d moved", "2d", "3d transposed", "2d transposed, moved"])
def test_emulated_sums_have_no_second_gradients(name):
    case = CASES[name]
    with pytest.raises(RuntimeError, match=f"cpd's {case.name} has no gradients of its gradients"):
        second_gradients(lambda *a: case.ours(*a, recipe=cpd.Recipe(sums="fp32")), leaves_of(case))


@pytest.mark.parametrize(
    "recipe",
    [NARROW, PLAIN, cpd.Recipe("native", **SHORT)],
    ids=["narrow", "native", "native blocks"],
)
@pytest.mark.parametrize("name", ["1d moved", "2d transposed, moved", "3d"])
def test_tangents_pass_straight_through(name, recipe):
    case = CASES[name]
    args = operands(case)
    x, w, _ = args
    of_x, of_w, of_b = (t.cos() for t in args)
    _, tangent = jvp(lambda *a: case.ours(*a, recipe=recipe), args, (of_x, of_w, of_b))
    inner = 0 if case.transposed else 1
    cast_x, _ = oracle.images_cast(recipe, "activation", x, case.groups)
    if recipe == NARROW:
        cast_w = cpd.cast(w, "e3m2 toward_zero overflow=saturate")
    else:
        cast_w, _ = oracle.weight_cast(recipe, "weight", w, inner, case.groups)
    plain = cpd.Recipe(sums=recipe.forward)

    def product(x, w):
        return case.ours(x, w, recipe=plain)

    wanted = product(of_x, cast_w) + product(cast_x, of_w) + of_b.view(-1, *(1,) * case.rank)
    assert same(tangent, wanted)


@pytest.mark.parametrize("name", ["1d", "2d moved", "1d transposed, moved", "2d transposed"])
@pytest.mark.parametrize(
    "recipe",
    [NARROW, cpd.Recipe(sums="e4m3", **SHORT), cpd.Recipe(sums="e4m3", **RECIPES["current"])],
    ids=["narrow", "blocks", "tensors"],
)
def test_each_sample_of_vmap_has_the_bits_it_has_alone(name, recipe):
    case = CASES[name]
    args = operands(case)

    def f(*args):
        return case.ours(*args, recipe=recipe)

    def gradients(*args):
        return grad(lambda *a: f(*a).square().sum(), (0, 1, 2))(*args)

    for dims in itertools.product((0, None), (1, None), (0, None)):
        if dims == (None, None, None):
            continue
        each = [
            [t if d is None else t * 2**i for t, d in zip(args, dims, strict=True)]
            for i in range(3)
        ]
        together = [
            args[k] if d is None else torch.stack([one[k] for one in each], d)
            for k, d in enumerate(dims)
        ]
        for call in (f, gradients):
            alone = [call(*one) for one in each]
            if call is f:
                wanted = torch.stack(alone)
            else:
                wanted = [torch.stack(parts) for parts in zip(*alone, strict=True)]
            assert same(vmap(call, dims)(*together), wanted), dims


def test_vmap_of_native_sums_is_torchs():
    case = CASES["2d moved"]
    x, w, b = operands(case)
    many = torch.stack([x, 2 * x, -x])
    f = functools.partial(case.ours, recipe=PLAIN)
    for call in (f, lambda x, w, b: grad(lambda w: f(x, w, b).sum())(w)):
        got = vmap(call, (0, None, None))(many, w, b)
        assert close(got, torch.stack([call(one, w, b) for one in many]))


# ---- torch.compile, layers -----------------------------------------------------------------------


@pytest.mark.few("", 4)
@pytest.mark.parametrize("name", ["1d moved", "2d moved", "2d transposed, moved", "3d transposed"])
@pytest.mark.parametrize("sums", ["native", "e4m3"])
@pytest.mark.parametrize("casts", ["nvfp4", "formats"])
def test_compiled_is_eager(name, sums, casts):
    case, recipe = CASES[name], cpd.Recipe(sums=sums, **RECIPES[casts])

    def step(f, stream):
        leaves = leaves_of(case)
        y = f(*leaves, stream)
        return y.detach(), *torch.autograd.grad(y.square().sum(), leaves)

    def convolve(x, w, b, stream):
        return case.ours(x, w, b, recipe=recipe, stream=stream)

    program, counter = compiled(convolve)
    for number in (1, 2):
        stream = torch.tensor(number << 36)
        assert same(step(program, stream), step(convolve, stream))
    assert counter.frame_count == 1


@pytest.mark.exhaustive
def test_compiled_for_any_number_of_images():
    case, recipe = CASES["2d moved"], cpd.Recipe("native", **SHORT)

    def convolve(x, w, b):
        return case.ours(x, w, b, recipe=recipe)

    program, counter = compiled(convolve, dynamic=True)
    _, w, b = leaves_of(case)
    for images in (9, 3, 5):
        x = values(images, *case.x[1:]).requires_grad_()
        got, wanted = program(x, w, b), convolve(x, w, b)
        assert same(got, wanted)
        pairs = (torch.autograd.grad(y.square().sum(), (x, w, b)) for y in (got, wanted))
        assert same(*pairs)
    assert counter.frame_count == 1


@torch._functorch.config.patch(
    enable_autograd_cache=False
)  # a cached graph may be from another version of CPD
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_inductor_keeps_bits_and_layouts(last):
    case = CASES["2d moved"]
    recipe = cpd.Recipe("native", **RECIPES["mxfp8"])
    memory = torch.channels_last if last else torch.contiguous_format

    def convolve(x, w, b):
        return case.ours(torch.relu(x), w, b, recipe=recipe)

    def step(f):
        x, w, b = operands(case)
        ordered = x.contiguous(memory_format=memory), w.contiguous(memory_format=memory), b
        leaves = [t.requires_grad_() for t in ordered]
        y = f(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))

    program, _ = compiled(convolve, "inductor")
    assert same(step(program), step(convolve))


def operators():
    """Yields convolution operators with arguments, to be passed to torch.library.opcheck."""
    ops = torch.ops.cpd
    assert functional  # importing `functional` defines the operators
    numbers = torch.arange(2 * len(Purpose)).view(-1, 2)
    gradient = "e5m2 rounding=stochastic random_bits=8"
    blocks = (
        "native activation=mxfp8 weight=(4,3) gradient='nvfp4 rounding=stochastic' "
        "grad_input_weight='mxfp4 factor=0.75' grad_weight_gradient=mxfp4"
    )
    draws = f"native sums='{SOME}' grad_input='e4m3 kahan' gradient='{gradient}'"
    for name in ("1d moved", "2d", "2d transposed, moved", "3d transposed"):
        case = CASES[name]
        x, w, b = operands(case)
        g = values(*case.torchs(x, w).shape, seed=3)
        yield ops.convolution, (x, w, b, *case.moves, draws, numbers, None, None, torch.float32)
        yield ops.convolution, (x, w, None, *case.moves, "native", None, None, None, torch.float32)
        yield ops.convolution, (x, w, b, *case.moves, blocks, numbers, None, None, torch.float32)
        for rest in ((SOME, *numbers[0], torch.float32), ("native", None, None, torch.float32)):
            yield ops.convolution_input, (g, w, list(x.shape), None, *case.moves, *rest)
            yield ops.convolution_weight, (g, x, list(w.shape), None, *case.moves, *rest)


@pytest.mark.few("", 8)
@pytest.mark.parametrize("number", range(28))
def test_opcheck(number):
    cases = list(operators())
    assert len(cases) == 28
    operator, args = cases[number]
    torch.library.opcheck(operator.default, args)
    if operator == torch.ops.cpd.convolution or "native" in args:
        tensors = [
            a.clone().requires_grad_()
            if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a
            for a in args
        ]
        torch.library.opcheck(operator.default, tuple(tensors))


@pytest.mark.parametrize("sums", ["native", "e4m3"])
def test_meta_tensors_have_shapes(sums):
    for case in CASES.values():
        leaves = [t.to("meta").requires_grad_() for t in operands(case)]
        y = case.ours(*leaves, recipe=cpd.Recipe(sums=sums, **SHORT))
        assert y.shape == case.torchs(*leaves).shape
        got = torch.autograd.grad(y.sum(), leaves)
        assert [g.shape for g in got] == [t.shape for t in leaves]


def test_frozen_operands_are_not_kept():
    case = CASES["2d"]
    x, w, b = leaves_of(case)
    for frozen, other in ((x, w), (w, x)):
        y = case.ours(*(t.detach() if t is frozen else t for t in (x, w, b)), recipe=PLAIN)
        saved = [t for t in y.grad_fn.saved_tensors if t is not None]
        assert sum(t.numel() for t in saved) == frozen.numel()
        torch.autograd.grad(y.sum(), other)


def test_an_exported_program_gives_the_same_bits():
    case = CASES["2d transposed, moved"]

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(operands(case)[1])

        def forward(self, x):
            return case.ours(x, self.weight, recipe=PLAIN)

    layer, x = Layer(), operands(case)[0]
    program = torch.export.export(copy.deepcopy(layer), (x,))
    assert same(program.module()(x), layer(x))
