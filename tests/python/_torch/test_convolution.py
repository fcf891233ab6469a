# SPDX-License-Identifier: Apache-2.0
"""Tests convolutions and transposed convolutions of one, two and three dimensions. The result and
each gradient equal, bit for bit, a computation written by hand: cpd.cast and cpd.gemm of unfolded
images, or torch's own kernels."""

from __future__ import annotations

import functools

import pytest

import cpd

torch = pytest.importorskip("torch")

import conv_oracle as oracle  # noqa: E402
from conv_oracle import CASES, PLAIN, SHORT, Case, leaves_of, operands  # noqa: E402
from cpd import functional  # noqa: E402
from cpd._torch import conv, unfolded  # noqa: E402
from cpd.nn.delayed import Delayed  # noqa: E402
from cpd.numeric.cast import is_whole  # noqa: E402
from operand_cases import RECIPES, STREAM  # noqa: E402
from tensors import NARROW, SOME, close, same  # noqa: E402
from tensors import normal as values  # noqa: E402

TILES = {
    "activation": "nvfp4 block=2x2",
    "weight": "nvfp4 block=2x2",
    "gradient": "mxfp8 block=2x2",
}
OBLONG = {"activation": "e4m3fn block=1x3", "weight": "e4m3fn block=2x3", "gradient": "mxfp8"}
ALL = {**RECIPES, "tiles": TILES, "short blocks": SHORT, "oblong tiles": OBLONG, "given": {}}


def run(case, leaves, **how):
    """Returns a list and a tensor. The list has the convolution's result and the gradients of its
    operands. The tensor is the random gradient of the result, from which backward starts."""
    y = case.ours(*leaves, **how)
    g = values(*y.shape, seed=7, dtype=y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)], g


# ---- against torch -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fp32_sums_are_torchs(case):
    leaves = leaves_of(case)
    got, g = run(case, leaves, recipe=cpd.Recipe(sums="fp32"))
    wanted = case.torchs(*leaves)
    assert all(t.is_contiguous() for t in got)
    assert close(got, [wanted, *torch.autograd.grad(wanted, leaves, g)])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sums_of_integers_are_exact(case):
    """For small integers, convolutions equal torch's in float64 exactly. The test shows that each
    sum contains the right products."""
    leaves = [t.mul(4).round().clamp(-8, 8).requires_grad_() for t in operands(case)]
    y = case.ours(*leaves, recipe=cpd.Recipe(sums="fp32"))
    g = values(*y.shape, seed=7).mul(4).round()
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    wanted = case.torchs(*doubles)
    pairs = zip(
        (y, *torch.autograd.grad(y, leaves, g)),
        (wanted, *torch.autograd.grad(wanted, doubles, g.double())),
        strict=True,
    )
    assert all(torch.equal(p.double(), q) for p, q in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_native_sums_without_casts_are_torchs_own_bits(case, last, dtype):
    leaves = leaves_of(case, dtype)
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(case.x))
    if last:
        if memory is None:
            pytest.skip("channels last is a layout of images and volumes")
        ordered = [t.detach().contiguous(memory_format=memory) for t in leaves[:2]]
        leaves[:2] = [t.requires_grad_() for t in ordered]
    y, wanted = case.ours(*leaves, recipe="native"), case.torchs(*leaves)
    assert same(y, wanted)
    assert y.stride() == wanted.stride()
    g = values(*y.shape, seed=7, dtype=dtype)
    g = g.contiguous(memory_format=memory) if last else g
    got = torch.autograd.grad(y, leaves, g)
    of_x, of_w, of_b = torch.autograd.grad(wanted, leaves, g)
    assert same(got[:2], (of_x, of_w))
    assert got[0].stride() == of_x.stride()
    assert close(got[2], of_b, 1e-1 if dtype == torch.bfloat16 else 1e-4)
    assert same(got[2], g.sum([0, *range(2, g.dim())]))


@pytest.mark.few("", 3)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("recipe", ["fp32", "native"])
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_paddings_are_torchs(rank, padding, mode, recipe):
    layer = getattr(torch.nn, f"Conv{rank}d")
    torch.manual_seed(rank)
    layer = layer(2, 3, (4, 3, 2)[:rank], padding=padding, padding_mode=mode, dilation=1)
    x = values(2, 2, *(6, 7, 5)[:rank]).requires_grad_()
    convolve = getattr(functional, f"conv{rank}d")
    how = {"padding": padding, "padding_mode": mode, "recipe": recipe}
    for each in (x, x[0]):
        leaves = each, layer.weight, layer.bias
        got, wanted = convolve(*leaves, **how), layer(each)
        assert same(got, wanted) if recipe == "native" else close(got, wanted)
        g = values(*wanted.shape, seed=4)
        pairs = torch.autograd.grad(got, leaves, g), torch.autograd.grad(wanted, leaves, g)
        assert close(*pairs)


# ---- written by hand -----------------------------------------------------------------------------


def narrow(acc):
    return lambda a, b, c: cpd.gemm(a, b, acc, c)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_narrow_sums_are_those_written_by_hand(case):
    leaves = leaves_of(case)
    (y, *grads), g = run(case, leaves, recipe=NARROW)
    x, w, b = (t.detach() for t in leaves)
    cast_x, cast_g = cpd.cast(x, "e4m3"), cpd.cast(g, "e5m2")
    cast_w = cpd.cast(w, "e3m2 toward_zero overflow=saturate")
    assert same(y, oracle.forward(case, cast_x, cast_w, b, narrow("e4m3")))
    wanted = oracle.of_input(case, cast_g, cast_w, x.shape, narrow(NARROW.grad_input))
    assert same(grads[0], wanted)
    wanted = oracle.of_weight(case, cast_g, cast_x, w.shape, narrow(NARROW.grad_weight))
    assert same(grads[1], wanted)
    assert same(grads[2], cpd.sum(g.movedim(1, -1).reshape(-1, case.outputs), "e5m3", 0))


def casts_by_hand(recipe, case, x, w, g, layer):
    """Returns three pairs of operands, for the forward product, the input's gradient and the
    weight's gradient. Each operand comes with the factor by which the cast multiplied it."""
    how, groups = {"layer": layer}, case.groups
    inner, outer = (0, 1) if case.transposed else (1, 0)
    image = functools.partial(oracle.images_cast, recipe, groups=groups, **how)
    batch = functools.partial(oracle.batch_cast, recipe, groups=groups, **how)

    def for_weight(name, usual, x):
        spec = recipe._operand(name)
        kept = spec is not None and is_whole(spec.text) and spec == recipe._operand(usual)
        return (image if kept else batch)(name, x=x)

    return (
        (image("activation", x=x), oracle.weight_cast(recipe, "weight", w, inner, groups, **how)),
        (
            image("grad_input_gradient", x=g),
            oracle.weight_cast(recipe, "grad_input_weight", w, outer, groups, **how),
        ),
        (
            for_weight("grad_weight_gradient", "grad_input_gradient", g),
            for_weight("grad_weight_activation", "activation", x),
        ),
    )


def unfactored(y, *factors):
    left_out = factors[0] * factors[1]
    return y if left_out == 1 else y * (1 / left_out)


WITH_CASTS = ("1d moved", "2d", "2d moved", "3d", "2d transposed, moved", "3d transposed")


@pytest.mark.parametrize("sums", ["native", "e6m9 chunked"])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", WITH_CASTS)
def test_operands_are_those_cast_by_hand(case, name, sums):
    case, recipe = CASES[case], cpd.Recipe(sums=sums, **ALL[name])
    leaves = leaves_of(case)
    (y, *grads), g = run(case, leaves, recipe=recipe, stream=STREAM ^ 5 << 20)
    x, w, b = (t.detach() for t in leaves)
    (fore_x, fore_w), (back_g, back_w), (late_g, late_x) = casts_by_hand(recipe, case, x, w, g, 5)
    moves = case.moves

    def torchs_backward(g, x, w, which):
        asked = [which == 0, which == 1, False]
        return torch.ops.aten.convolution_backward(g, x, w, None, *moves, asked)[which]

    factors = fore_x[1], fore_w[1]
    addend = b if factors == (1, 1) else None
    if sums == "native":
        wanted = case.torchs(fore_x[0], fore_w[0], addend)
        of_x = torchs_backward(back_g[0], x, back_w[0], 0)
        of_w = torchs_backward(late_g[0], late_x[0], w, 1)
        of_b = g.sum([0, *range(2, g.dim())])
    else:
        gemm = narrow(sums)
        wanted = oracle.forward(case, fore_x[0], fore_w[0], addend, gemm)
        of_x = oracle.of_input(case, back_g[0], back_w[0], x.shape, gemm)
        of_w = oracle.of_weight(case, late_g[0], late_x[0], w.shape, gemm)
        of_b = cpd.sum(g.movedim(1, -1).reshape(-1, case.outputs), "fp32", 0)
    wanted = unfactored(wanted, *factors)
    if addend is None:
        wanted = wanted + b.view(-1, *(1,) * case.rank)
    assert same(y, wanted)
    assert same(grads[0], unfactored(of_x, back_g[1], back_w[1]))
    assert same(grads[1], unfactored(of_w, late_g[1], late_x[1]))
    assert same(grads[2], of_b)


@pytest.mark.parametrize("name", ["2d moved", "1d transposed, moved"])
def test_delayed_scales(name):
    case = CASES[name]
    late = "e4m3fn block=tensor scale=fp32 arithmetic=te history=4"
    recipe = cpd.Recipe("native", activation=late, weight=late, gradient=late)
    state = Delayed.of(recipe)
    leaves = leaves_of(case)
    with pytest.raises(ValueError, match="give delayed="):
        case.ours(*leaves, recipe=recipe)
    for _ in range(2):
        scales = state.scale.tolist()
        (y, *grads), g = run(case, leaves, recipe=recipe, delayed=state)
        x, w, b = (t.detach() for t in leaves)
        x, w, g = (
            cpd.cast(t * s, "e4m3fn overflow=saturate") * torch.tensor(s).reciprocal()
            for t, s in zip((x, w, g), scales, strict=True)
        )
        assert same(y, case.torchs(x, w, b))
        asked = [True, True, False]
        wanted = torch.ops.aten.convolution_backward(g, x, w, None, *case.moves, asked)
        assert same(grads[:2], wanted[:2])
        state.update()
    assert state.scale.tolist() != [1, 1, 1]


def drawing(purpose):
    """Returns a GEMM with the accumulator SOME, which rounds stochastically. `purpose`, the number
    of a product within a layer, determines the random stream."""
    return lambda *a: cpd.gemm(*a[:2], SOME, *a[2:], seed=3, stream=9 ^ purpose << 60)


@pytest.mark.parametrize("name", ["1d moved", "2d transposed, moved", "3d"])
def test_stochastic_sums_draw_by_places_in_the_padded_result(name):
    case = CASES[name]
    leaves = leaves_of(case)
    (y, *grads), g = run(case, leaves, recipe=cpd.Recipe(sums=SOME), seed=3, stream=9)
    x, w, b = (t.detach() for t in leaves)
    assert same(y, oracle.forward(case, x, w, b, drawing(0)))
    assert same(grads[0], oracle.of_input(case, g, w, x.shape, drawing(4)))
    assert same(grads[1], oracle.of_weight(case, g, x, w.shape, drawing(5)))


@pytest.mark.parametrize(
    "recipe",
    [
        NARROW,
        cpd.Recipe(sums="e4m3"),
        cpd.Recipe(forward=SOME, grad_input="e4m3", grad_weight="e4m3 pairwise"),
        cpd.Recipe(sums="h100-bf16"),
        cpd.Recipe(sums="e4m3 sequential rounding=stochastic"),
        cpd.Recipe(sums="e5m4 chunked chunk=8 rounding=stochastic random_bits=8"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["1d moved", "2d", "2d transposed, moved", "3d transposed"])
def test_unfolding_in_parts_changes_nothing(name, recipe, monkeypatch):
    case = CASES[name]._replace(x=(7, *CASES[name].x[1:]))
    leaves = [t.bfloat16().float().requires_grad_() for t in operands(case)]  # values in bf16
    calls = []

    def results():
        y = case.ours(*leaves, recipe=recipe)
        g = values(*y.shape, seed=7).bfloat16().float()
        return [y, *torch.autograd.grad(y, leaves, g)]

    wanted = results()
    monkeypatch.setattr(conv, "reads_images", lambda *operands: False)
    assert same(results(), wanted)
    product = unfolded.product_part
    monkeypatch.setattr(unfolded, "_COLUMN_BYTES", 500)
    monkeypatch.setattr(unfolded, "product_part", lambda *a: (calls.append(1), product(*a))[1])
    assert same(results(), wanted)
    assert len(calls) > 4


def test_operands_of_a_matrix_unit_keep_their_places():
    """A gradient is cast to e5m2, and a matrix unit accepts it if the accumulator names e5m2 as the
    format of that operand. The gradient here is 2^-14, which e5m2 has and e4m3fn lacks."""
    casts = {"activation": "e4m3fn", "weight": "e4m3fn", "gradient": "e5m2"}
    how = cpd.Recipe(
        forward="h100-fp8", grad_input="h100-fp8 a=e5m2", grad_weight="h100-fp8 b=e5m2", **casts
    )
    for case in CASES.values():
        leaves = leaves_of(case)
        y = case.ours(*leaves, recipe=how)
        torch.autograd.grad(y, leaves, torch.full(y.shape, 2.0**-14))


@pytest.mark.parametrize("name", ["1d", "2d moved", "3d transposed"])
def test_one_image_is_a_batch_of_one(name):
    case = CASES[name]
    x, w, b = operands(case)
    for recipe in (NARROW, PLAIN, cpd.Recipe("native", **SHORT)):
        wanted = case.ours(x[:1], w, b, recipe=recipe)
        assert same(case.ours(x[0], w, b, recipe=recipe), wanted[0])


@pytest.mark.parametrize("name", ["1d", "2d moved", "2d transposed, moved", "3d"])
@pytest.mark.parametrize("recipe", [NARROW, PLAIN], ids=["narrow", "native"])
def test_no_images(name, recipe):
    case = CASES[name]._replace(x=(0, *CASES[name].x[1:]))
    leaves = leaves_of(case)
    (y, *grads), _ = run(case, leaves, recipe=recipe)
    assert y.shape == case.torchs(*leaves).shape
    assert [g.shape for g in grads] == [t.shape for t in leaves]
    assert not grads[1].any()


@pytest.mark.parametrize("sums", ["native", "fp32"])
def test_types(sums):
    case = CASES["2d moved"]
    for dtype, output in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        leaves = leaves_of(case, dtype)
        recipe = cpd.Recipe(sums=sums, activation="mxfp8", output=output)
        got, _ = run(case, leaves, recipe=recipe)
        assert {t.dtype for t in got} == {dtype}
    x, w, b = operands(case)
    how = {"recipe": cpd.Recipe(sums=sums), "dtype": torch.float32}
    y = case.ours(x.bfloat16(), w, b.half(), **how)
    assert close(y, case.torchs(x.bfloat16().float(), w, b.half().float()))
    wanted = case.ours(x, w, b, recipe=cpd.Recipe(sums=sums))
    with torch.autocast("cpu", torch.bfloat16):
        assert same(case.ours(x, w, b, **how), wanted)
        if sums == "native":
            assert same(case.ours(x, w, b, recipe=sums), case.torchs(x, w, b))


# ---- errors --------------------------------------------------------------------------------------

AT_BLOCKS = cpd.Recipe(sums="fp32", activation="mxfp8", weight="mxfp8", scales_at="block")
FP32 = cpd.Recipe(sums="fp32")
X1, W1 = values(2, 4, 5), values(6, 4, 3)
X2, W2 = values(2, 4, 5, 5), values(6, 2, 3, 3)
X3, W3 = values(1, 4, 3, 4, 5), values(6, 4, 2, 2, 2)
GOOD = {
    "conv1d": {"input": X1, "weight": W1, "recipe": FP32},
    "conv2d": {"input": X2, "weight": W2, "bias": values(6), "groups": 2, "recipe": FP32},
    "conv3d": {"input": X3, "weight": W3, "recipe": FP32},
    "conv_transpose2d": {
        "input": values(1, 4, 4, 4), "weight": values(4, 3, 3, 3), "groups": 2, "recipe": FP32
    },
}  # fmt: skip
WRONG = [
    ("conv1d", {"input": X1[0, 0]}, r"input must be \(N ×\) C × L, got shape \(5,\)"),
    ("conv1d", {"input": X1.numpy()}, TypeError, "input must be a torch tensor"),
    ("conv1d", {"weight": W1[0]}, r"weight must be out × in/groups × kernel, got shape"),
    ("conv1d", {"bias": values(5)}, r"bias must have shape \(6,\), got \(5,\)"),
    ("conv1d", {"stride": (1, 2)}, r"stride must be one number, got \(1, 2\)"),
    ("conv1d", {"stride": 0}, "stride must be at least 1, got 0"),
    ("conv1d", {"padding": "full"}, "padding must be numbers, 'same' or 'valid', got 'full'"),
    ("conv1d", {"padding": "same", "stride": 2}, r"padding='same' needs stride 1, got \(2,\)"),
    ("conv1d", {"padding_mode": "wrap"}, "padding_mode must be one of zeros, reflect"),
    ("conv1d", {"dilation": 3}, r"fit into the padded input, \(5,\), got \(3,\)"),
    ("conv1d", {"groups": 3}, "weight's 6 outputs a multiple of groups, got groups=3"),
    ("conv1d", {"recipe": None}, TypeError, "give recipe="),
    ("conv1d", {"recipe": AT_BLOCKS}, "scales to each operand, got scales_at='block'"),
    ("conv2d", {"input": X2.double()}, TypeError, "input must be of type float32.*float64"),
    ("conv2d", {"weight": W2.numpy()}, TypeError, "weight must be a torch tensor like input"),
    ("conv2d", {"weight": W2.to("meta")}, "weight must be on input's device, cpu, got meta"),
    ("conv2d", {"bias": 3.0}, TypeError, "bias must be a torch tensor"),
    (
        "conv2d",
        {"groups": 1},
        "input's 4 channels must be groups × weight's 2 channels.* got groups=1 ",
    ),
    ("conv2d", {"groups": 0}, "a multiple of groups, got groups=0"),
    ("conv2d", {"groups": 2.0}, TypeError, "groups must be an int"),
    ("conv2d", {"stride": (1, 2, 3)}, "stride must be one number or two"),
    ("conv2d", {"stride": 1.5}, TypeError, "stride must be an int"),
    ("conv2d", {"dilation": -1}, "dilation must be at least 1"),
    ("conv2d", {"padding": -1}, "padding must be at least 0"),
    ("conv2d", {"dtype": torch.float64}, TypeError, "dtype must be torch's float32"),
    ("conv2d", {"dtype": torch.float16}, "sums' format, fp32: give the recipe output='fp16'"),
    ("conv2d", {"recipe": "e9m3"}, "e9m3|exp"),
    ("conv3d", {"input": X3[0, 0]}, r"input must be \(N ×\) C × D × H × W"),
    (
        "conv3d",
        {"weight": W3[0]},
        "weight must be out × in/groups × kernel planes × rows × columns",
    ),
    ("conv3d", {"stride": (1, 2)}, r"stride must be one number or three, got \(1, 2\)"),
    ("conv3d", {"dilation": 4}, r"1 × 1 × 1 and fit .* \(3, 4, 5\), .* dilation \(4, 4, 4\)"),
    ("conv_transpose2d", {"weight": W1}, "weight must be in × out/groups × kernel rows × columns"),
    ("conv_transpose2d", {"bias": values(4)}, r"bias must have shape \(6,\), got \(4,\)"),
    ("conv_transpose2d", {"groups": 3}, "input's 4 channels must be .* got groups=3 "),
    ("conv_transpose2d", {"groups": 0}, "a multiple of groups, got groups=0"),
    (
        "conv_transpose2d",
        {"input": values(1, 3, 4, 4)},
        "weight's first dimension and a multiple of groups, got groups=2",
    ),
    ("conv_transpose2d", {"padding": "same"}, TypeError, "padding must be an int"),
    ("conv_transpose2d", {"padding": -1}, "padding must be at least 0"),
    (
        "conv_transpose2d",
        {"padding": 9},
        r"the result of an input \(4, 4\) too; .* result \(-12, -12\)",
    ),
    ("conv_transpose2d", {"output_padding": 1}, r"must be smaller than stride or dila"),
    ("conv_transpose2d", {"output_padding": (1, 0, 0)}, "must be one number or two"),
    ("conv_transpose2d", {"output_padding": -1}, "output_padding must be at least 0"),
    ("conv_transpose2d", {"stride": 0}, "stride must be at least 1"),
]


@pytest.mark.parametrize("row", WRONG, ids=lambda row: f"{row[0]}-{', '.join(row[1])}")
def test_errors(row):
    name, wrong, *error, message = row
    with pytest.raises(*error or [ValueError], match=message):
        getattr(functional, name)(**GOOD[name] | wrong)


def test_output_padding_may_exceed_the_stride_below_the_dilation():
    case = Case((1, 2, 3, 3), (2, 2, 2, 2), True, (1, 1), dilation=(3, 3), more=(2, 1))
    leaves = leaves_of(case)
    got, _ = run(case, leaves, recipe=cpd.Recipe(sums="fp32"))
    assert close(got[0], case.torchs(*leaves))
