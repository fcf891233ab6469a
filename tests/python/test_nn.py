# SPDX-License-Identifier: Apache-2.0
"""matmul, linear, conv2d and the layers: torch's results with fp32 sums, to a tolerance; with
narrow sums, bit for bit, what cpd.cast and cpd.gemm give when they are called one by one."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd import functional  # noqa: E402

NARROW = cpd.Recipe(
    "e4m3",
    "e5m2 kahan",
    "e6m9 chunked chunk=5 product=exact",
    grad_bias="e5m3",
    activation="e4m3",
    weight=cpd.CastSpec("e3m2", "toward_zero", "saturate"),
    gradient="e5m2",
)
SOME = "e4m3 sequential rounding=stochastic random_bits=8"


def values(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def leaves_of(*shapes, dtype=torch.float32):
    return [values(*s, seed=i, dtype=dtype).requires_grad_() for i, s in enumerate(shapes)]


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def close(a, b):
    assert a.shape == b.shape
    return torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-4)


def with_numbers(acc, seed, stream):
    return cpd.Accumulator.parse(str(acc), seed, stream)


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
    got, wanted = functional.matmul(a, b, "fp32"), torch.matmul(a, b)
    assert close(got, wanted)
    g = values(*wanted.shape, seed=3)
    pairs = torch.autograd.grad(got, (a, b), g), torch.autograd.grad(wanted, (a, b), g)
    assert all(close(x, y) for x, y in zip(*pairs, strict=True))


def test_matmul_with_accumulators_of_its_own():
    a, b = leaves_of((2, 4, 5), (5, 3))
    g = values(2, 4, 3, seed=3)
    y = functional.matmul(a, b, "e4m3", backward="e5m2 kahan")
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
    got, wanted = functional.linear(*leaves, recipe="fp32"), F.linear(*leaves)
    assert close(got, wanted)
    g = values(*wanted.shape, seed=3)
    pairs = torch.autograd.grad(got, leaves, g), torch.autograd.grad(wanted, leaves, g)
    assert all(close(p, q) for p, q in zip(*pairs, strict=True))


def test_linear_one_by_one():
    x, w, bias = leaves_of((2, 9, 7), (5, 7), (5,))
    y = functional.linear(x, w, bias, recipe=NARROW)
    cast_x = cpd.cast(x.detach(), "e4m3")
    cast_w = cpd.cast(w.detach(), "e3m2", "toward_zero", "saturate")
    assert same(y, cpd.gemm(cast_x, cast_w.t(), "e4m3", bias.detach()))
    g = values(2, 9, 5, seed=3)
    cast_g = cpd.cast(g, "e5m2")
    for_x, for_w, for_bias = torch.autograd.grad(y, (x, w, bias), g)
    assert same(for_x, cpd.gemm(cast_g, cast_w, NARROW.grad_input))
    rows, columns = cast_x.reshape(18, 7), cast_g.reshape(18, 5)
    assert same(for_w, cpd.gemm(rows.t(), columns, NARROW.grad_weight).t())
    assert same(for_bias, cpd.sum(g.reshape(18, 5), "e5m3"))


def test_each_rounding_draws_from_a_stream_of_its_own():
    """The table in cpd.Recipe's documentation."""
    seeds = iter(range(1, 9))
    accs = [cpd.Accumulator.parse(SOME, next(seeds), 9) for _ in range(4)]
    casts = [
        cpd.CastSpec("e5m2", "stochastic", random_bits=8, seed=next(seeds), stream=9)
        for _ in range(3)
    ]
    how = cpd.Recipe(
        *accs[:3], grad_bias=accs[3], activation=casts[0], weight=casts[1], gradient=casts[2]
    ).for_layer(11)
    x, w, bias = leaves_of((18, 7), (5, 7), (5,))
    y = functional.linear(x, w, bias, recipe=how)

    def stream(purpose):
        return 9 ^ (purpose << 60) ^ (11 << 20)

    def cast(t, spec, purpose):
        options = {"seed": spec.seed, "stream": stream(purpose), "random_bits": 8}
        return cpd.cast(t.detach(), "e5m2", "stochastic", **options)

    def drawing(acc, purpose):
        return with_numbers(acc, acc.seed, stream(purpose))

    cast_x, cast_w = cast(x, casts[0], 8), cast(w, casts[1], 9)
    assert same(y, cpd.gemm(cast_x, cast_w.t(), drawing(accs[0], 0), bias.detach()))
    g = values(18, 5, seed=3)
    for_x, for_w, for_bias = torch.autograd.grad(y, (x, w, bias), g)
    cast_g = cast(g, casts[2], 10)
    assert same(for_x, cpd.gemm(cast_g, cast_w, drawing(accs[1], 4)))
    assert same(for_w, cpd.gemm(cast_x.t(), cast_g, drawing(accs[2], 5)).t())
    of_terms = dataclasses.replace(accs[3], product="exact")
    assert same(for_bias, cpd.gemm(torch.ones(1, 18), g, drawing(of_terms, 6))[0])


def test_types_of_a_layer():
    for dtype in (torch.bfloat16, torch.float16):
        x, w, bias = leaves_of((4, 7), (5, 7), (5,), dtype=dtype)
        y = functional.linear(x, w, bias, recipe="e4m3")
        assert y.dtype == dtype
        wide = functional.linear(x, w, bias, recipe="fp32", dtype=torch.float32)
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
    y = functional.linear(x, w, bias, recipe=cpd.Recipe("fp32", output="bf16"))
    sums = cpd.gemm(x, w.t(), "fp32", bias, dtype=torch.float32)
    assert same(y, cpd.cast(sums, "bf16").bfloat16())
    for_x, for_w = torch.autograd.grad(y.float().sum(), (x, w))
    ones = torch.ones(4, 5)
    assert same(for_x, cpd.gemm(ones, w.detach(), "fp32").bfloat16())
    assert same(for_w, cpd.gemm(x.detach().t(), ones, "fp32", dtype=torch.float32).bfloat16().t())
    spec = cpd.CastSpec("e4m3", "stochastic", "saturate", random_bits=8, seed=2, stream=3)
    images, kernels = leaves_of((1, 2, 5, 5), (3, 2, 3, 3))
    y = functional.conv2d(images, kernels, recipe=cpd.Recipe("e6m9", output=spec, layer=4))
    options = {"seed": 2, "stream": 3 ^ (11 << 60) ^ (4 << 20), "random_bits": 8}
    sums = functional.conv2d(images, kernels, recipe="e6m9")
    assert same(y, cpd.cast(sums, "e4m3", "stochastic", "saturate", **options))
    y = functional.matmul(images, images.mT, cpd.Recipe("fp32", output="e4m3"), dtype=torch.half)
    assert same(y, cpd.cast(functional.matmul(images, images.mT, "fp32"), "e4m3").half())
    with pytest.raises(ValueError, match="fp16 does not hold"):
        functional.linear(x, w, recipe=cpd.Recipe("fp32", output="bf16"), dtype=torch.half)


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
        got = functional.conv2d(*leaves, **moves, recipe="fp32")
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
    ours = cpd.nn.Conv2d.from_torch(layer, "fp32")
    for x in (values(2, 2, 6, 7), values(2, 6, 7)):
        leaves = x.requires_grad_(), layer.weight, layer.bias
        got, wanted = ours(x), layer(x)
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
    cast_w = cpd.cast(w.detach(), "e3m2", "toward_zero", "saturate")
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
    assert same(for_bias, cpd.sum(g.permute(0, 2, 3, 1).reshape(-1, 6), "e5m3"))

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
    "recipe", [NARROW, "e4m3", cpd.Recipe(SOME, "e4m3", "e4m3 pairwise"), "h100-bf16"], ids=str
)
def test_unfolding_in_parts_changes_nothing(recipe, monkeypatch):
    from cpd._torch import conv as torch_conv

    x, w, bias = (
        t.detach().bfloat16().float() for t in leaves_of((7, 4, 6, 5), (6, 4, 3, 2), (6,))
    )
    leaves = [t.requires_grad_() for t in (x, w, bias)]
    g = values(7, 6, 4, 4, seed=4).bfloat16().float()

    def run():
        y = functional.conv2d(*leaves, recipe=recipe)
        return [y, *torch.autograd.grad(y, leaves, g)]

    wanted = run()
    calls = []
    monkeypatch.setattr(torch_conv, "_COLUMN_BYTES", 5000)
    product = torch_conv.product
    monkeypatch.setattr(torch_conv, "product", lambda *a: (calls.append(1), product(*a))[1])
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
        "h100-fp8",
        "h100-fp8 a=e5m2",
        "h100-fp8 b=e5m2",
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
        functional.linear(x, w, recipe="fp32").square().sum(), x, create_graph=True
    )
    got = torch.autograd.grad(for_x.square().sum(), (x, w))
    (for_x,) = torch.autograd.grad(F.linear(x, w).square().sum(), x, create_graph=True)
    wanted = torch.autograd.grad(for_x.square().sum(), (x, w))
    assert all(close(p, q) for p, q in zip(got, wanted, strict=True))
    x, w = leaves_of((1, 2, 4, 4), (2, 2, 3, 3))
    y = functional.conv2d(x, w, recipe="fp32")
    (for_x,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients of its gradients"):
        for_x.sum().backward()


# ---- layers --------------------------------------------------------------------------------------


def network(recipe):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        cpd.nn.Conv2d(1, 4, 3, padding=1, stride=2, recipe=recipe, layer=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        cpd.nn.Linear(64, 10, recipe=recipe, layer=2),
    )


def test_layers_exchange_their_state_with_torchs():
    ours = network(NARROW)
    torch.manual_seed(2)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    fine = network("fp32")
    fine.load_state_dict(theirs.state_dict())
    x = values(3, 1, 8, 8)
    assert close(fine(x), theirs(x))
    assert not close(ours(x), theirs(x))


def test_from_torch_shares_the_parameters():
    torch.manual_seed(0)
    for layer, kind in (
        (torch.nn.Linear(4, 3), cpd.nn.Linear),
        (torch.nn.Linear(4, 3, bias=False, dtype=torch.bfloat16).eval(), cpd.nn.Linear),
        (torch.nn.Conv2d(4, 6, (3, 2), (2, 1), "valid", (1, 2), 2), cpd.nn.Conv2d),
        (torch.nn.Conv2d(4, 4, 3, padding=1, bias=False, padding_mode="circular"), cpd.nn.Conv2d),
    ):
        ours = kind.from_torch(layer, "e4m3", layer=3)
        assert isinstance(ours, type(layer))
        assert ours.weight is layer.weight
        assert ours.bias is layer.bias
        assert ours.training == layer.training
        assert ours.recipe.layer == 3
        shape = (2, 4) if kind is cpd.nn.Linear else (2, 4, 9, 9)
        x = values(*shape, dtype=layer.weight.dtype)
        wide = kind.from_torch(layer, "bf16" if x.dtype == torch.bfloat16 else "fp32")
        assert torch.allclose(wide(x), layer(x), rtol=2e-2, atol=2e-2)
        assert repr(ours).startswith(repr(layer)[:-1])
        assert "forward='e4m3 sequential'" in repr(ours)
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Linear, got Conv2d"):
        cpd.nn.Linear.from_torch(torch.nn.Conv2d(1, 1, 1), "fp32")


def test_layers_copy_and_pickle():
    model = network(cpd.Recipe(SOME, gradient="e5m2"))
    x = values(3, 1, 8, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(other(x), model(x))
        assert other[0].recipe == model[0].recipe


def test_layers_of_one_recipe_draw_different_bits():
    first = cpd.nn.Linear(30, 30, recipe=SOME, layer=1)
    second = cpd.nn.Linear.from_torch(first, SOME, layer=2)
    x = values(20, 30)
    assert same(first(x), first(x))
    assert not same(first(x), second(x))


def test_checkpointing_repeats_the_bits():
    stream = torch.tensor(3 << 36)
    model = network(cpd.Accumulator.parse(SOME, 1, stream))
    x = values(3, 1, 8, 8).requires_grad_()
    leaves = [x, *model.parameters()]
    wanted = torch.autograd.grad(model(x).sum(), leaves)
    got = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).sum(), leaves)
    assert all(same(p, q) for p, q in zip(got, wanted, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training(backend):
    """Steps with new streams do not recompile; loss and gradients have eager's bits."""
    torch._dynamo.reset()
    stream = torch.zeros((), dtype=torch.int64)
    acc = cpd.Accumulator.parse(SOME, 1, stream)
    cast = cpd.CastSpec("e5m2", "stochastic", random_bits=8, stream=stream)
    model = network(cpd.Recipe(acc, grad_weight="e6m9 chunked", gradient=cast, weight="e4m3"))
    counter = CompileCounterWithBackend(backend)
    program = torch.compile(model, fullgraph=True, backend=counter)
    x = values(3, 1, 8, 8)
    leaves = list(model.parameters())
    seen = set()
    for number in range(4):
        stream.fill_(number << 36)
        got, wanted = program(x), model(x)
        assert same(got, wanted)
        pairs = (
            torch.autograd.grad(got.sum(), leaves),
            torch.autograd.grad(wanted.sum(), leaves),
        )
        assert all(same(p, q) for p, q in zip(*pairs, strict=True))
        seen.add(got.detach().numpy().tobytes())
    assert len(seen) == 4
    assert counter.frame_count == 1


def test_training_learns():
    torch.manual_seed(0)
    x = torch.randn(64, 1, 8, 8)
    target = (x.mean((1, 2, 3)) > 0).long()
    model = network(cpd.Recipe("e5m6", "e5m6", "e6m9 chunked", gradient="e5m2"))
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_first_use_may_be_compiled():
    import subprocess
    import sys

    script = (
        "import cpd, torch\n"
        "run = torch.compile(lambda x: cpd.functional.linear(x, x, recipe=cpd.Recipe('e4m3')),\n"
        "                    fullgraph=True, backend='eager')\n"
        "assert run(torch.ones(1, 40)).item() == 16\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# ---- CUDA ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("recipe", [NARROW, SOME, "e4m3 kahan"], ids=str)
def test_cuda_equals_cpu(recipe):
    here, there = network(recipe), network(recipe).cuda()
    x = values(3, 1, 8, 8)
    got, wanted = there(x.cuda()), here(x)
    assert same(got.cpu(), wanted)
    pairs = (
        torch.autograd.grad(got.sum(), list(there.parameters())),
        torch.autograd.grad(wanted.sum(), list(here.parameters())),
    )
    assert all(same(p.cpu(), q) for p, q in zip(*pairs, strict=True))
