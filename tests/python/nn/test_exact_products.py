# SPDX-License-Identifier: Apache-2.0
"""Tests 16-bit layers with torch's own sums ("native"). Each result is the float64 product of
the operands as cpd.cast gives them, rounded once. The last bits of torch's float32 sums may change
the rounding of a few results."""

from __future__ import annotations

import shutil
import threading

import pytest

import cpd
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from cpd import functional  # noqa: E402
from cpd._torch.operands import narrow_operand  # noqa: E402
from patience import scaled  # noqa: E402

ROWS, INPUTS, OUTPUTS = 256, 512, 384


def _of(activation, weight=None, gradient=None):
    return cpd.Recipe(
        "native",
        activation=activation,
        weight=weight or activation,
        gradient=gradient or activation,
    )


WEIGHT_ONLY = {
    "weight-only int8": cpd.Recipe("native", weight="int8 row"),
    "weight-only nvfp4": cpd.Recipe("native", weight="nvfp4"),
}
RECIPES = {
    "e5m9": _of("e5m9"),  # first, so that the quick tier runs its case autocast32
    "te-current": cpd.Recipe("te-current"),
    "te-delayed": cpd.Recipe("te-delayed"),
    "deepseek-v3": cpd.Recipe("deepseek-v3").replace(rules=()),
    "nvfp4": _of("nvfp4", "nvfp4 block=16x16"),
    "int8 row": _of("int8 row"),
    "int12 row": _of("int12 row"),
    "fp8-row": _of("fp8-row"),
    "mxfp8": cpd.Recipe("mxfp8"),
    "mxfp4": _of("mxfp4"),
    "e4m3fn": _of("e4m3fn", gradient="e5m2"),
    "factor": _of("mxfp4 factor=0.75"),
    **WEIGHT_ONLY,
}
NOISE = 4e-4
"""The largest fraction of results that may differ, because an inexact float32 sum lies on the other
side of a midpoint between two values. It is about 1e-4 in bfloat16 at K = 512."""


def values(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * scale


def share(found, exact, noise=NOISE):
    """Returns the fraction of results that differ from the exact results, rounded once."""
    return (found != exact.to(found.dtype)).double().mean().item()


def cast(recipe, operand, x, axis, delayed=None):
    """Returns the exact values of the cast operand, in float64."""
    spec = recipe._operand(operand)
    x = x.detach()
    if spec is None:
        return x.double()
    if isinstance(spec.format, cpd.Format):
        return cpd.cast(x.float(), spec.format).double()
    if spec.history:
        scale = delayed.scale[("activation", "weight", "gradient").index(operand)]
        y = cpd.cast(x.float() * scale, cpd.Cast(spec.format.element, overflow="saturate"))
        return y.double() * scale.reciprocal().double()
    x = x.float().contiguous()
    if spec.factor == 1:
        return cpd.cast(x, spec.format, axis=axis).double()
    scales = cpd.encode(x, spec.format, axis=axis)[1]
    y = cpd.cast(x * spec.factor, spec.format, axis=axis, scales=scales)
    return y.double() / spec.factor


def gradient_cast(recipe, g, axis, delayed=None):
    return cast(recipe, "gradient", g, axis, delayed)


def step(layer, x, g, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = layer(x)
    y.backward(g.to(y.dtype))
    return y.detach()


CASES = [
    (name, mode) for name in RECIPES for mode in ("autocast32", "autocast", "bfloat16", "float16")
]


@pytest.mark.few("", 8)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_linear_layer_rounds_exact_products_once(name, mode):
    """A linear layer rounds each exact product sum once, in bfloat16, in float16 and under
    autocast. With `autocast32`, autocast gets the input in float32."""
    recipe, autocast = RECIPES[name], mode.startswith("autocast")
    half = torch.float16 if mode == "float16" else torch.bfloat16
    own = torch.float32 if autocast else half
    layer = nn.Linear(INPUTS, OUTPUTS, dtype=own)
    layer.weight.data = values(OUTPUTS, INPUTS, seed=1, scale=1 / 22).to(own)
    layer.bias.data = values(OUTPUTS, seed=2).to(own)
    cpd.convert(layer, recipe, coverage=False)
    x = values(ROWS, INPUTS).to(torch.float32 if mode == "autocast32" else half)
    g = values(ROWS, OUTPUTS, seed=3, scale=1e-3).to(half)
    delayed = getattr(layer, "cpd_delayed", None)
    if delayed is not None:
        step(layer, x.clone().requires_grad_(), g, autocast)
        layer.zero_grad()
    leaf = x.clone().requires_grad_()
    y = step(layer, leaf, g, autocast)
    w, b = layer.weight.detach(), layer.bias.detach().to(half)
    uncast = recipe._operand("activation") is None  # then the operand has autocast's dtype
    a = x.to(half) if uncast else x
    noise = NOISE * (8 if half == torch.float16 else 1)  # eight times as fine
    noise *= 4 if name == "factor" else 1  # few bits, often near a tie, times fl(1 / factor)
    exact = cast(recipe, "activation", a, -1, delayed) @ cast(recipe, "weight", w, 1, delayed).T
    assert y.dtype == half
    assert share(y, exact + b.double()) <= noise
    weight = cast(recipe, "weight", w, 0, delayed)
    exact = gradient_cast(recipe, g, -1, delayed) @ weight
    assert leaf.grad.dtype == x.dtype
    assert share(leaf.grad.to(half), exact) <= noise
    exact = gradient_cast(recipe, g, 0, delayed).T @ cast(recipe, "activation", a, 0, delayed)
    gradient = layer.weight.grad
    assert gradient.dtype == own
    assert torch.equal(gradient, gradient.to(half).to(own))  # rounded once to the 16-bit type
    assert share(gradient.to(half), exact) <= noise


IMAGES = {
    "conv1d": (nn.Conv1d, (8, 64, 40), (48, 64, 3), {}),
    "conv2d": (nn.Conv2d, (4, 64, 12, 12), (48, 64, 3, 3), {}),
    "strided": (nn.Conv2d, (4, 64, 12, 12), (48, 64, 3, 3), {"stride": 2}),
    "grouped": (nn.Conv2d, (4, 64, 12, 12), (48, 32, 3, 3), {"groups": 2}),
    "conv3d": (nn.Conv3d, (2, 32, 6, 6, 6), (32, 32, 3, 3, 3), {}),
    "transposed": (nn.ConvTranspose2d, (4, 64, 9, 9), (64, 48, 3, 3), {"stride": 2}),
}
OF_IMAGES = ("te-current", "int8 row", "mxfp8", "weight-only int8")


@pytest.mark.few("", 8)
@pytest.mark.parametrize("mode", ["bfloat16", "autocast"])
@pytest.mark.parametrize("recipe", OF_IMAGES)
@pytest.mark.parametrize("form", IMAGES)
def test_a_convolution_rounds_exact_products_once(form, recipe, mode):
    kind, size, kernel, more = IMAGES[form]
    how, transposed = RECIPES[recipe], kind is nn.ConvTranspose2d
    groups = more.get("groups", 1)
    if groups > 1 and "row" in str(how.weight):
        pytest.skip("rows of a group are cast by themselves")
    own = torch.bfloat16 if mode == "bfloat16" else torch.float32
    outputs = kernel[1] if transposed else kernel[0]
    layer = kind(size[1], outputs, kernel[2], **more, dtype=own)
    layer.weight.data = values(*kernel, seed=1, scale=1 / 24).to(own)
    layer.bias.data = values(outputs, seed=2).to(own)
    cpd.convert(layer, how, coverage=False)
    x = values(*size).bfloat16()
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        y = layer(leaf)
    g = values(*y.shape, seed=3, scale=1e-3).bfloat16()
    y.backward(g)
    w, b = layer.weight.detach(), layer.bias.detach().bfloat16().double()
    first = 0 if transposed else 1

    def both(qx, qw):
        """Computes the layer in float64, without bias. Returns both operands and the result."""
        qx, qw = qx.requires_grad_(), qw.requires_grad_()
        forward = getattr(F, kind.__name__.lower().replace("transpose", "_transpose"))
        return qx, qw, forward(qx, qw, None, **more)

    *_, exact = both(cast_channels(how, "activation", x, groups), cast(how, "weight", w, first))
    exact = exact.detach() + b.view(-1, *(1,) * (exact.dim() - 2))
    assert share(y.detach(), exact) <= 4 * NOISE
    qx, _, again = both(x.double(), cast(how, "weight", w, 1 - first))
    (exact,) = torch.autograd.grad(again, qx, cast_channels(how, "gradient", g, groups))
    assert share(leaf.grad, exact) <= 4 * NOISE
    _, qw, again = both(cast(how, "activation", x, 0), w.double())
    (exact,) = torch.autograd.grad(again, qw, cast(how, "gradient", g, 0))
    assert layer.weight.grad.dtype == own
    assert share(layer.weight.grad.bfloat16(), exact) <= 4 * NOISE


def cast_channels(recipe, operand, x, groups):
    if groups == 1:
        return cast(recipe, operand, x, 1)
    return cast(recipe, operand, x.unflatten(1, (groups, -1)), 2).flatten(1, 2)


@pytest.mark.parametrize("mode", ["bfloat16", "autocast"])
@pytest.mark.parametrize("name", ["te-current", "fp8-row", "mxfp8", "int8 row"])
def test_attention_casts_softmax_weights_in_float32(name, mode):
    recipe = RECIPES[name]
    q, k, v = (values(2, 4, 128, 64, seed=n).bfloat16() for n in range(3))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    g = values(2, 4, 128, 64, seed=4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        y = functional.scaled_dot_product_attention(
            *leaves, recipe=cpd.Recipe("native", attention=recipe)
        )
    y.backward(g)

    def operand(which, x, axis):
        return cast(recipe, which, x, axis)

    # The last bit of a float32 sum may change how an attention weight or a gradient rounds, which
    # changes a whole row of results. So the test takes the operands that the layer computed, and
    # checks that they are close to the exact ones.
    scores = functional.matmul(q, k.mT, recipe=recipe, dtype=torch.float32)
    exact = operand("activation", q, -1) @ operand("weight", k.mT, -2)
    assert (scores - exact).abs().max() <= 2e-6 * exact.abs().max()
    weights = torch.softmax(scores / 8, -1)
    assert torch.allclose(weights.double(), torch.softmax(exact / 8, -1), rtol=1e-5)
    exact = operand("activation", weights, -1) @ operand("weight", v, -2)
    assert y.dtype == torch.bfloat16
    assert share(y.detach(), exact) <= NOISE
    leaf = weights.clone().requires_grad_()
    functional.matmul(leaf, v, recipe=recipe, dtype=torch.bfloat16).backward(g)
    exact = operand("gradient", g, -1) @ operand("weight", v, -1).mT
    assert (leaf.grad - exact).abs().max() <= 2e-6 * exact.abs().max()
    of_scores = torch._softmax_backward_data(leaf.grad, weights, -1, torch.float32) / 8
    exact = operand("gradient", of_scores, -1) @ operand("weight", k.mT, -1).mT
    assert share(leaves[0].grad, exact) <= NOISE
    exact = operand("activation", q, -2).mT @ operand("gradient", of_scores, -2)
    assert share(leaves[1].grad, exact.mT) <= NOISE
    exact = operand("activation", weights, -2).mT @ operand("gradient", g, -2)
    assert share(leaves[2].grad, exact) <= NOISE


@pytest.mark.parametrize("name", ["fp8-row", "nvfp4 rows", "mxfp8", "te-current"])
def test_groups_round_exact_products_once(name):
    recipe = RECIPES.get(name) or _of("nvfp4")
    a, b = values(256, 256).bfloat16(), values(3, 256, 64, seed=1, scale=1 / 16).bfloat16()
    x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
    ends = torch.tensor([100, 120, 256], dtype=torch.int32)
    y = functional.grouped_mm(x, w, offs=ends, recipe=recipe)
    g = values(256, 64, seed=2).bfloat16()
    y.backward(g)
    start = 0
    for n, end in enumerate(ends.tolist()):
        rows, back, weight = a[start:end], g[start:end], b[n]
        exact = cast(recipe, "activation", rows, -1) @ cast(recipe, "weight", weight, 0)
        assert share(y[start:end].detach(), exact) <= 4 * NOISE  # 6400 results or more
        exact = gradient_cast(recipe, back, -1) @ cast(recipe, "weight", weight, 1).T
        assert share(x.grad[start:end], exact) <= 4 * NOISE
        exact = cast(recipe, "activation", rows, 0).T @ gradient_cast(recipe, back, 0)
        assert share(w.grad[n], exact) <= 4 * NOISE
        start = end


@pytest.mark.parametrize("mode", ["bfloat16", "autocast"])
@pytest.mark.parametrize("name", ["te-current", "int8 row", "mxfp8"])
def test_a_recurrent_cell_rounds_exact_products_once(name, mode):
    recipe = RECIPES[name]
    own = torch.bfloat16 if mode == "bfloat16" else torch.float32
    w, u = values(256, 128, seed=1, scale=0.1).to(own), values(256, 256, seed=2, scale=0.1).to(own)
    x, h = values(64, 128).bfloat16(), values(64, 256, seed=3).bfloat16()
    leaves = [t.clone().requires_grad_() for t in (x, h, w, u)]
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        y = functional.rnn_cell(*leaves, recipe=recipe, nonlinearity="relu")
    terms = [
        (cast(recipe, "activation", a, -1) @ cast(recipe, "weight", b, 1).T).bfloat16()
        for a, b in ((x, w), (h, u))
    ]
    assert share(y, (terms[0] + terms[1]).relu()) <= 2 * NOISE
    g = values(64, 256, seed=4).bfloat16()
    y.backward(g)
    g = g * (y.detach() > 0)
    for i, (a, b) in enumerate(((x, w), (h, u))):
        exact = gradient_cast(recipe, g, -1) @ cast(recipe, "weight", b, 0)
        assert share(leaves[i].grad, exact) <= 2 * NOISE
        exact = gradient_cast(recipe, g, 0).T @ cast(recipe, "activation", a, 0)
        assert share(leaves[i + 2].grad.bfloat16(), exact) <= 2 * NOISE


@pytest.mark.parametrize("mode", ["bfloat16", "autocast"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_is_its_cell_in_each_step(kind, mode):
    own = torch.bfloat16 if mode == "bfloat16" else torch.float32
    layer = getattr(nn, kind)(64, 64, dtype=own)
    cell = getattr(nn, f"{kind}Cell")(64, 64, dtype=own)
    cell.load_state_dict({name[:-3]: w for name, w in layer.state_dict().items()})
    for module in (layer, cell):
        cpd.convert(module, RECIPES["fp8-row"], coverage=False)  # each row with its own scale
    x = values(5, 16, 64).bfloat16()
    state, found = None, []
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        y, _ = layer(x)
        for step in x:
            state = cell(step, state)
            found.append(state[0] if kind == "LSTM" else state)
    assert torch.equal(y, torch.stack(found))


# ---- at the ends of the 16-bit types' range ------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_scaled_weights_outside_of_a_16_bit_types_range_are_not_rounded(large):
    """Scaled weights in float32 stay float32 if bfloat16 or float16 would round them. An element
    times its power of two may need a bit below 2^-133, bfloat16's least number. float16 holds
    neither very large nor very small numbers."""
    recipe = cpd.Recipe("native", weight="mxfp8")
    size = 2.0**20 if large else 2.0**-132
    half = torch.float16 if large else torch.bfloat16
    w = values(32, 64, seed=1) * size
    x = (values(16, 64) * (2.0**-20 if large else 2.0**120)).to(half)
    y = functional.linear(x, w, recipe=recipe, dtype=half)
    exact = x.double() @ cpd.cast(w, "mxfp8").double().T
    assert not torch.equal(cpd.cast(w, "mxfp8").to(half).float(), cpd.cast(w, "mxfp8"))
    assert share(y, exact) <= 8 * NOISE
    with torch.autocast("cpu", half):
        assert torch.equal(functional.linear(x, w, recipe=recipe), y)


def placed(shape, size):
    """Returns values of about magnitude `size`, some of them zero. With size 1, some are infinite
    or NaN."""
    x = values(*shape, seed=3) * size
    flat = x.view(-1)
    flat[::97] = 0.0
    if size == 1:
        flat[5::200], flat[40::200], flat[41::200] = float("inf"), float("nan"), -float("inf")
    return x


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shape", [(64, 96), (33, 41), (3, 70, 5), (1, 7), (0, 4)])
@pytest.mark.parametrize(
    "text", ["mxfp8", "mxfp4", "mxint8", "mxfp8 rule=rceil", "mxfp8 rounding=stochastic"]
)
def test_operands_are_bfloat16_where_it_holds_them(text, shape, axis):
    """If bfloat16 holds every value of a cast operand, the operand is a bfloat16 tensor. Otherwise
    it is float32, for example if a value is below 2^-133."""
    numbers = (None, None)
    options = {}
    if "stochastic" in text:
        numbers = torch.tensor(7), torch.tensor(3)
        options = {"rounding": "stochastic", "seed": 7, "stream": 3}
    for size in (1.0, 2.0**-90, 2.0**120, 2.0**-131):
        x = placed(shape, size)
        exact = by_keywords(cpd.cast, x, text.split(" rounding")[0], axis=axis, **options)
        y = narrow_operand(x, text, axis, numbers)
        held = torch.equal(exact.bfloat16().float().nan_to_num(3), exact.nan_to_num(3))
        assert y.dtype == (torch.bfloat16 if held else torch.float32)
        assert torch.equal(y.float().view(torch.int32), exact.view(torch.int32))
        if size >= 2.0**-90:
            assert held
    if x.numel() > 1000 and text.startswith("mxfp8"):
        assert not held


def test_float16_results_of_scales_that_are_rounded_up():
    """A float16 layer gives right results even if a cast rounds up beyond float16's range. Here
    the scale is 2^8: 65504 is 255.9 · 2^8 and rounds to 256 · 2^8 = 65536."""
    x = torch.full((2, 32), 65504.0, dtype=torch.float16)
    w = torch.full((3, 32), 2.0**-8, dtype=torch.float16)
    recipe = cpd.Recipe("native", activation="mxfp8 rule=rceil")
    y = functional.linear(x, w, recipe=recipe)
    assert y.eq(32 * 65536.0 * 2.0**-8).all()


def test_bfloat16_keeps_what_powers_of_two_scale():
    """bfloat16 holds the result of a cast of bfloat16 with power-of-two scales exactly, because
    elements have at most eight significant bits. The test casts every positive bfloat16 number, in
    a block with one other number."""
    codes = torch.arange(1, 0x7F80, dtype=torch.int32)
    x = torch.stack([codes, codes.roll(-300)], -1).to(torch.int16).view(torch.bfloat16)
    for text in ("mxfp8", "mxfp8-e5m2", "mxfp4", "mxint8", "mxfp8 rule=rceil", "mxfp6-e2m3"):
        exact = cpd.cast(x.float(), text)
        there = exact.isfinite()
        assert torch.equal(cpd.cast(x, text).float()[there], exact[there]), text


# ---- empty tensors, zeros, threads, derivatives --------------------------------------------------


@pytest.mark.parametrize("name", ["te-current", "mxfp8", "nvfp4", "int8 row", "deepseek-v3"])
def test_empty_tensors_and_zeros(name):
    for x in (torch.zeros(0, 64), torch.zeros(5, 64)):
        x = x.bfloat16().requires_grad_()
        w = values(32, 64).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = functional.linear(x, w, recipe=RECIPES[name])
        y.sum().backward()
        assert y.eq(0).all()
        assert w.grad.eq(0).all()
        assert x.grad.shape == x.shape
    none = functional.linear(torch.zeros(4, 0).bfloat16(), torch.zeros(3, 0).bfloat16(),
                             recipe=RECIPES[name])  # fmt: skip
    assert none.eq(0).all()
    assert none.shape == (4, 3)


def test_another_threads_products_keep_their_bits():
    """Torch's precision settings belong to the whole process, and a layer does not change them. So
    a float32 product of another thread keeps its bits while the layer runs."""
    x, w = values(256, 512).bfloat16(), values(512, 512, seed=1).bfloat16()
    image, kernel = values(2, 16, 12, 12).bfloat16(), values(16, 16, 3, 3, seed=1).bfloat16()
    a, b = values(256, 256, seed=2), values(256, 256, seed=3)
    recipe = RECIPES["te-current"]

    def layers():
        y = functional.linear(x, w, recipe=recipe)
        z = functional.conv2d(image, kernel, recipe=RECIPES["mxfp8"], dtype=torch.float32)
        return y, z

    wanted, alone = layers(), a @ b
    found = []
    done = threading.Event()

    def multiply():
        while not done.is_set():
            found.append(torch.equal(a @ b, alone))

    other = threading.Thread(target=multiply)
    other.start()
    try:
        for _ in range(60):
            assert all(map(torch.equal, layers(), wanted))
    finally:
        done.set()
        other.join(scaled(60))
    assert found
    assert all(found)


PROGRAMS = {n: RECIPES[n] for n in ("te-current", "mxfp8", "nvfp4", "int8 row", "deepseek-v3")}
PROGRAMS["emulated sums"] = cpd.Recipe(sums="fp32", output="bf16")


@pytest.mark.few("", 3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_and_checkpointed_bits_are_those_of_eager(name):
    x, g = values(64, 128).bfloat16(), values(64, 96, seed=3).bfloat16()
    w, b = values(96, 128, seed=1), values(96, seed=2)

    def layer(x, w, b):
        with torch.autocast("cpu", torch.bfloat16):
            return functional.linear(x, w, b, recipe=PROGRAMS[name])

    def checkpointed(x, w, b):
        return torch.utils.checkpoint.checkpoint(layer, x, w, b, use_reentrant=False)

    torch._dynamo.reset()
    found = []
    for f in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager"), checkpointed):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        y = f(*leaves)
        y.backward(g)
        found.append([y.detach(), *(t.grad for t in leaves)])
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductors_bits_are_those_of_eager():
    """A layer compiled by inductor has the bits of eager mode: its result, its gradients, and
    torch's operations around it."""
    layer = nn.Linear(128, 96)
    cpd.convert(layer, "te-current", coverage=False)
    x, g = values(64, 128), values(64, 96, seed=3).bfloat16()
    torch._dynamo.reset()
    found = []
    for f in (layer, torch.compile(layer, fullgraph=True, backend="inductor")):
        layer.zero_grad()
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = f(leaf).relu()
        y.backward(g)
        found.append([y.detach(), leaf.grad, *(p.grad for p in layer.parameters())])
    assert all(map(torch.equal, *found))


def test_transforms_of_16_bit_layers():
    """Under torch.func, the operands are the same, but the order of sums may differ. So the
    gradients agree to a tolerance."""
    x, w = values(8, 64).bfloat16(), values(32, 64, seed=1)

    def loss(w, x):
        return functional.linear(x, w, recipe=RECIPES["te-current"], dtype=torch.float32).sum()

    (wanted,) = torch.autograd.grad(loss(w.requires_grad_(), x), w)
    found = torch.func.grad(loss)(w.detach(), x)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
    half = w.detach().bfloat16()
    rows = torch.func.vmap(lambda x: functional.linear(x, half, recipe=RECIPES["mxfp8"]))(x)
    assert torch.equal(rows, functional.linear(x, half, recipe=RECIPES["mxfp8"]))


def test_a_weight_that_is_used_twice():
    layer = nn.Linear(128, 128, bias=False)
    cpd.convert(layer, "te-current", coverage=False)
    x = values(64, 128).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(layer(x))
    y.float().square().sum().backward()
    assert layer.weight.grad.isfinite().all()


def test_gradients_of_gradients_in_16_bits():
    x = values(8, 64).bfloat16().requires_grad_()
    w = values(32, 64, seed=1).bfloat16().requires_grad_()
    y = functional.linear(x, w, recipe=RECIPES["te-current"])
    (of_x,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
    (of_w,) = torch.autograd.grad(of_x.float().sum(), w)
    qx, qw = (cpd.cast(t.detach().float(), "fp8-tensor arithmetic=te") for t in (x, w))
    through = 2 * torch.ones(8, 64) @ qw.T
    wanted = through.T @ qx + (2 * qx @ qw.T).T @ torch.ones(8, 64)
    assert (of_w.float() - wanted).norm() <= 0.1 * wanted.norm()


@pytest.mark.parametrize("name", ["te-current", "mxfp8", "nvfp4"])
def test_a_nan_activation_gives_a_row_of_nan_as_in_float32(name):
    layer = nn.Linear(64, 32)
    cpd.convert(layer, RECIPES[name], coverage=False)
    x = values(16, 64)
    x[3, 5] = float("nan")
    with torch.no_grad():
        wanted = layer(x).isnan()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layer(x).isnan(), wanted)


def test_values_beyond_bfloat16s_range_are_not_put_apart_from_their_scale():
    layer = nn.Linear(64, 32, bias=False)
    cpd.convert(layer, _of("e2m1 16 scale=(8,3) tensor_scale=fp32"), coverage=False)
    x = values(16, 64)
    with torch.no_grad():
        wanted = layer(x.bfloat16().float())
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x.bfloat16())
    assert torch.isfinite(y).all()
    assert share(y, wanted.double()) <= 0.01
