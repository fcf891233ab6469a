# SPDX-License-Identifier: Apache-2.0
"""Tests the operands of a layer's three GEMMs. Each pass equals, bit for bit, a computation by hand
with cpd.cast and either cpd.gemm or torch's own product."""

from __future__ import annotations

import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from cpd import functional  # noqa: E402
from cpd.nn.delayed import Delayed  # noqa: E402
from cpd.numeric.cast import as_cast  # noqa: E402
from operand_cases import CURRENT, RECIPES, STREAM, by_hand  # noqa: E402
from tensors import NARROW, converted, same  # noqa: E402
from tensors import normal as values  # noqa: E402


def product(a, b, how):
    (a, fa), (b, fb) = a, b
    y = a @ b if how == "native" else cpd.gemm(a, b, how)
    return y if fa * fb == 1 else y * (1 / (fa * fb))


def turned(cast):
    return cast[0].mT, cast[1]


LINEAR = {
    f"{name}, {sums}": cpd.Recipe(sums=sums, **RECIPES[name])
    for name in RECIPES
    for sums in ("native", "e6m9 chunked")
}
LINEAR["sums that differ"] = NARROW


@pytest.mark.parametrize("way", ["functional", "converted", "autocast"])
@pytest.mark.parametrize("recipe", LINEAR.values(), ids=LINEAR)
def test_a_linear_layer_is_the_step_written_by_hand(recipe, way):
    """A linear layer has the bits of a training step written by hand. The layer is tested as a
    functional form, as a converted layer, and as torch's function within cpd.autocast."""
    x, w, b = values(5, 40, 48), values(24, 48, seed=1), values(24, seed=2)
    g = values(5, 40, 24, seed=3)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    number = 5 if way == "functional" else 0
    if way == "converted":
        layer = converted(torch.nn.Linear(48, 24), recipe)
        layer.weight.data, layer.bias.data = w.clone(), b.clone()
        cpd.set_step(layer, step=2)  # the call begins step 3
        y, leaves[1:] = layer(leaves[0]), [layer.weight, layer.bias]
    elif way == "autocast":
        with cpd.autocast(recipe, stream=STREAM):
            y = F.linear(*leaves)
    else:
        y = functional.linear(*leaves, recipe=recipe, stream=STREAM ^ number << 20)
    y.backward(g)
    rows, back = x.flatten(0, 1), g.flatten(0, 1)

    def cast(name, t, axis):
        return by_hand(recipe, name, t, axis, layer=number)

    qx, qw = cast("activation", rows, -1)[0], cast("weight", w, 1)[0]
    native = recipe.forward == "native"
    wanted = F.linear(qx, qw, b) if native else cpd.gemm(qx, qw.t(), recipe.forward, c=b)
    assert same(y.detach().flatten(0, 1), wanted)
    operands = cast("grad_input_gradient", back, -1), cast("grad_input_weight", w, 0)
    assert same(leaves[0].grad.flatten(0, 1), product(*operands, recipe.grad_input))
    operands = (
        turned(cast("grad_weight_gradient", back, 0)),
        cast("grad_weight_activation", rows, 0),
    )
    assert same(leaves[1].grad, product(*operands, recipe.grad_weight))
    of_b = back.sum(0) if native else cpd.sum(back, recipe.grad_bias, 0)
    assert same(leaves[2].grad, of_b)


@pytest.mark.parametrize("sums", ["native", "e6m9 chunked"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_product_of_batches_is_the_one_written_by_hand(name, sums):
    recipe = cpd.Recipe(sums=sums, **RECIPES[name])
    a, b = values(3, 33, 40), values(3, 40, 17, seed=1)
    g = values(3, 33, 17, seed=2)
    x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
    c = functional.matmul(x, y, recipe=recipe, stream=STREAM)
    c.backward(g)

    def cast(name, t, axis):
        return by_hand(recipe, name, t, axis)

    assert same(c.detach(), product(cast("activation", a, -1), cast("weight", b, -2), sums))
    operands = cast("grad_input_gradient", g, -1), turned(cast("grad_input_weight", b, -1))
    assert same(x.grad, product(*operands, sums))
    operands = turned(cast("grad_weight_activation", a, -2)), cast("grad_weight_gradient", g, -2)
    assert same(y.grad, product(*operands, sums))


@pytest.mark.few("", 3)
@pytest.mark.parametrize("name", RECIPES)
def test_compiled_bits_are_those_of_eager(name):
    recipe = cpd.Recipe("native", **RECIPES[name])
    x, w, b = (t.requires_grad_() for t in (values(64, 48), values(32, 48), values(32)))

    def step(x, w, b, stream):
        return functional.linear(x, w, b, recipe=recipe, stream=stream)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for number in range(2):
        stream = torch.tensor(number << 36)
        found = []
        for f in (step, compiled):
            y = f(x, w, b, stream)
            found.append((y, *torch.autograd.grad(y.square().sum(), (x, w, b))))
        assert all(map(same, *found))


def test_gradients_of_gradients_go_through_torchs_own_kernels():
    """Second gradients pass through torch's own kernels. Let y = qx qwᵀ. The gradient of x is 2 y
    qv, where qv is the weight cast along its outputs. The sum of that gradient depends on w through
    y and through qv, so the derivative of the sum with respect to w has two terms."""
    x, w = values(6, 32).requires_grad_(), values(8, 32, seed=1).requires_grad_()
    recipe = cpd.Recipe("native", activation="mxfp8", weight="mxfp8")
    y = functional.linear(x, w, recipe=recipe)
    (of_x,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (of_w,) = torch.autograd.grad(of_x.sum(), w)
    ones, y = torch.ones(6, 32), y.detach()
    through_y = (2 * ones @ cpd.cast(w.detach(), "mxfp8", axis=0).t()).t()
    wanted = through_y @ cpd.cast(x.detach(), "mxfp8", axis=0) + (2 * y).t() @ ones
    assert torch.allclose(of_w, wanted, rtol=1e-5, atol=1e-5)  # torch's own sums, in its order


def test_samples_of_vmap_have_scales_of_their_own():
    recipe = cpd.Recipe(
        sums="e6m9", activation=CURRENT, weight="mxfp8", grad_weight_activation=None
    )
    x, w = values(4, 8, 64), values(16, 64, seed=1)
    x = x * torch.tensor([1.0, 100, 0.01, 3]).view(4, 1, 1)
    together = torch.vmap(lambda x: functional.linear(x, w, recipe=recipe))(x)
    assert same(together, torch.stack([functional.linear(one, w, recipe=recipe) for one in x]))


def test_autocast_gives_its_type():
    recipe = cpd.Recipe("native", activation="e4m3fn", weight="e4m3fn", gradient="e5m2")
    x, w = values(4, 8).requires_grad_(), values(3, 8, seed=1).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = functional.linear(x, w, recipe=recipe)
    assert y.dtype == torch.bfloat16
    qx, qw = (cpd.cast(t.detach(), "e4m3fn") for t in (x, w))  # casts of the unconverted tensors
    assert same(y.detach(), F.linear(qx, qw).bfloat16())
    y.sum().backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32


# ---- the specs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "nvfp4 rounding=stochastic random_bits=8",
        "mxfp4 rounding=stochastic factor=0.75",
        f"{cpd.Scaled(CURRENT).text} history=1024 amax=most_recent",
        "mxfp8 overflow=ieee",
        "e5m2 rounding=stochastic",
    ],
)
def test_texts_of_operands_parse_back(text):
    spec = as_cast(text)
    assert spec.text == text
    assert as_cast(spec.text) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert as_cast(spec) is spec


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mxfp8 history=4", "a history goes with one fp32 scale"),
        ("fp8-tensor factor=0.5", "a factor goes with one level of blocks"),
        ("mxfp8 factor=0", "factor must be above 0"),
        ("mxfp8 factor=x", "factor must be a number, got 'x'"),
        ("mxfp8 amax=mean", "amax must be max or most_recent, got 'mean'"),
        ("mxfp8 rounding=up rounding=down", "option 'rounding' of a cast is given twice"),
        ("fp8-tensor history=-1", "history must be 0…2\\^20"),
        ("e4m3 history=4", "a history goes with one fp32 scale"),
    ],
)
def test_what_does_not_go_together_says_so(given, message):
    with pytest.raises(ValueError, match=message):
        as_cast(given)


def test_a_history_without_its_state_is_an_error():
    delayed = f"{CURRENT} history=4"
    recipe = cpd.Recipe("native", activation=delayed, weight=delayed)
    with pytest.raises(ValueError, match=r"depend on past steps: use cpd\.convert"):
        functional.linear(values(2, 4), values(3, 4), recipe=recipe)


@pytest.mark.parametrize("other", [{"amax": "most_recent"}, {"history": 5}])
@pytest.mark.parametrize("tensor", ["weight", "gradient"])
def test_a_history_belongs_to_the_tensor(tensor, other):
    name = {"weight": "grad_input_weight", "gradient": "grad_weight_gradient"}[tensor]
    how = {"rounding": "stochastic", "history": 4}
    delayed, another = (cpd.Cast(CURRENT, **how | more) for more in ({}, other))
    assert getattr(cpd.Recipe("native", **{tensor: delayed, name: delayed}), name) is not None
    with pytest.raises(ValueError, match=rf"{name}: a history belongs to {tensor} itself"):
        cpd.Recipe("native", **{tensor: delayed, name: another})


# ---- scales at blocks of sums, or at the end -----------------------------------------------------


def encoded(spec, x, axis):
    """Returns the cast operand as codes and scales, in the form that `cpd.gemm` accepts."""
    to = spec.format
    if isinstance(to, cpd.Format):
        return cpd.ops.Encoded(cpd.encode(x, to), None, to, x.shape, axis)
    return cpd.ops.Encoded(*cpd.encode(x.contiguous(), to, axis=axis), to, x.shape, axis)


AT = {
    "unit": (
        cpd.Recipe(forward="h100-fp8", grad_input="h100-fp8 a=e5m2", grad_weight="h100-fp8 b=e5m2"),
        {"activation": CURRENT, "weight": CURRENT, "gradient": CURRENT.replace("e4m3fn", "e5m2")},
        "epilogue",
    ),
    "deepseek": (
        cpd.Recipe(sums="deepseek-promoted"),
        {"activation": "fp8-block", "weight": "fp8-block 128x128", "gradient": "fp8-block"},
        "block",
    ),
    "formats": (
        cpd.Recipe(sums="e6m9 chunked"),
        {"activation": "e4m3fn", "weight": "mxfp8", "gradient": "mxfp8"},
        "block",
    ),
}


@pytest.mark.parametrize("name", AT)
def test_scales_of_sums_are_those_of_encoded_products(name):
    sums, operands, at = AT[name]
    recipe = sums.replace(scales_at=at, **operands)
    x, w = values(2, 128, 256), values(128, 256, seed=1)
    g = values(2, 128, 128, seed=2)
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    y = functional.linear(*leaves, recipe=recipe)
    y.backward(g)
    rows, back = x.flatten(0, 1), g.flatten(0, 1)

    def hand(first, a, second, b, acc):
        left, right = (
            encoded(recipe._operand(first), a, -1),
            encoded(recipe._operand(second), b, -2),
        )
        return cpd.gemm(left, right, acc, scales_at=at)

    wanted = hand("activation", rows, "weight", w.t(), recipe.forward)
    assert same(y.detach().flatten(0, 1), wanted)
    wanted = hand("gradient", back, "weight", w, recipe.grad_input)
    assert same(leaves[0].grad.flatten(0, 1), wanted)
    wanted = hand("activation", rows.t(), "gradient", back, recipe.grad_weight)
    assert same(leaves[1].grad, wanted.t())


def test_delayed_scales_at_the_end():
    recipe = cpd.Recipe("te-delayed", sums=AT["unit"][0])
    state = Delayed.of(recipe)
    x, w = values(64, 32).requires_grad_(), values(16, 32, seed=1).requires_grad_()
    for _ in range(2):
        state.update()
        y = functional.linear(x, w, recipe=recipe, delayed=state)
        y.sum().backward()
    of_x, of_w = state.scale[0], state.scale[1]
    q = [cpd.cast(t.detach() * s, "e4m3fn overflow=saturate") for t, s in ((x, of_x), (w, of_w))]
    p = cpd.gemm(q[0], q[1].t(), recipe.forward)
    assert same(y.detach(), p * (of_x.reciprocal() * of_w.reciprocal()))
    assert state.amax_history[0].tolist() == [x.abs().max(), w.abs().max(), 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scales_at": "end"}, "scales_at must be one of operand, block, epilogue"),
        ({"scales_at": "block"}, "takes accumulators, got forward='native'"),
    ],
)
def test_where_scales_cannot_be_applied(arguments, message):
    with pytest.raises(ValueError, match=message):
        cpd.Recipe("native", **arguments)
    with pytest.raises(ValueError, match="takes no factor, got one in weight"):
        cpd.Recipe(sums="fp32", weight="mxfp4 factor=0.75", scales_at="block")
