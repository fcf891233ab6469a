# SPDX-License-Identifier: Apache-2.0
"""Tests cpd.gemm on torch tensors: NumPy's bits, memory layouts, broadcasting, exact gradients,
torch's own checks of operators, and compilation. Other tests show that NumPy's bits are correct."""

from __future__ import annotations

import itertools

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd.numeric.purposes import Purpose  # noqa: E402
from cpd.numeric.streams import stream_tag  # noqa: E402
from front_ends import few_on_cpu, require_gpu_itself  # noqa: E402
from tensors import compiled, same  # noqa: E402

ACCUMULATORS = [
    "e4m3",
    "e4m3 sequential product=exact",
    "e5m2 kahan product=e5m3",
    "e6m9 chunked inner=e4m3 chunk=5",
    "e4m3 pairwise",
    "h100-fp16",
    "e4m3 sequential rounding=stochastic random_bits=8",
    "fp32",
]
# Matrix units whose results have another format than their sums.
UNITS = [
    "e4m3 block_fma a=bf16 b=bf16 sum=fp32",
    "e5m2 block_fma a=bf16 b=bf16 sum=fp16 sum_rounding=nearest_even promote=32",
]
STOCHASTIC = "e4m3 sequential product=exact rounding=stochastic random_bits=8"


def values(*shape, seed=0, dtype=torch.float32):
    """Returns random numbers that both fp16 and bf16 can represent. A matrix unit accepts only
    operands that are values of the unit's input format."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 2
    return (x * 32).round().div(32).clamp(-8, 8).bfloat16().to(dtype)


# ---- the bits ------------------------------------------------------------------------------------


TYPES = (torch.float32, torch.bfloat16, torch.float16)


def test_types():
    for of_a, of_b, of_c in itertools.product(TYPES, repeat=3):
        a, b, c = values(4, 9), values(9, 3, seed=1), values(4, 1, seed=2)
        wanted = cpd.gemm(a, b, "e4m3", c)
        operands = a.to(of_a), b.to(of_b)
        got = cpd.gemm(*operands, "e4m3", c.to(of_c))
        assert got.dtype == of_a
        assert same(got.float(), wanted)
        assert same(cpd.gemm(*operands, "e4m3", c.to(of_c), dtype=torch.float32), wanted)
        wide = cpd.gemm(*operands, "fp32", c.to(of_c), dtype=torch.float32)
        assert same(wide, cpd.gemm(a, b, "fp32", c))


def layouts():
    x = values(12, 18, 8)
    yield "transposed", x.permute(2, 1, 0)
    yield "matrices transposed", x.mT
    yield "strided", x[:, ::2, 1::3]
    yield "offset", x[1:, 2:, 3:]
    yield "expanded rows", x[:, :1].expand(12, 6, 8)
    yield "expanded columns", x[:, :, :1].expand(12, 18, 6)
    yield "expanded batch", x[:1].expand(5, 18, 8)
    yield "one scalar", x[:1, :1, :1].expand(2, 3, 4)


@pytest.mark.parametrize(("name", "x"), list(layouts()), ids=[n for n, _ in layouts()])
@pytest.mark.parametrize("acc", ["e4m3", "h100-fp16", STOCHASTIC])
def test_layouts(name, x, acc):
    y = values(x.shape[-1], 7, seed=5)
    z = values(6, x.shape[-2], seed=6)
    dense = x.clone(memory_format=torch.contiguous_format)
    before = dense.clone()
    assert same(cpd.gemm(x, y, acc), cpd.gemm(dense, y, acc))
    assert same(cpd.gemm(z, x, acc), cpd.gemm(z, dense, acc))
    assert same(cpd.gemm(x, x.mT, acc), cpd.gemm(dense, dense.mT.contiguous(), acc))
    c = dense.new_ones(1).expand(x.shape[-2], 7)
    assert same(cpd.gemm(x, y, acc, c), cpd.gemm(dense, y, acc, c.contiguous()))
    assert same(dense, before)
    assert cpd.gemm(x, y, acc).is_contiguous()


BATCHES = [
    ((), (), ()),
    ((3,), (), (1,)),
    ((), (3,), (3, 1, 1)),
    ((2, 1), (3,), (2, 1, 5, 4)),
    ((2, 3), (2, 3), (5, 1)),
    ((1, 3), (2, 1), (4,)),
    ((4, 1, 1), (1, 2, 3), ()),
    ((0,), (1,), ()),
]


@pytest.mark.parametrize(("of_a", "of_b", "of_c"), BATCHES)
@pytest.mark.parametrize("acc", ["e4m3", "e6m9 chunked chunk=3"])
def test_batches(of_a, of_b, of_c, acc):
    a, b, c = values(*of_a, 5, 7), values(*of_b, 7, 4, seed=1), values(*of_c, seed=2)
    got = cpd.gemm(a, b, acc, c)
    batch = torch.broadcast_shapes(of_a, of_b)
    assert got.shape == (*batch, 5, 4)
    each = [
        cpd.gemm(x, y, acc, z)
        for x, y, z in zip(
            a.expand(*batch, 5, 7).reshape(-1, 5, 7),
            b.expand(*batch, 7, 4).reshape(-1, 7, 4),
            c.expand(got.shape).reshape(-1, 5, 4),
            strict=True,
        )
    ]
    wanted = torch.stack(each).view(got.shape) if each else got
    assert same(got, wanted)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 1, 1)])
def test_empty(m, k, n):
    a, b, c = values(m, k), values(k, n, seed=1), torch.tensor([1.07])
    for acc in ACCUMULATORS + UNITS:
        got = cpd.gemm(a, b, acc, c)
        assert got.shape == (m, n)
        assert same(got, torch.from_numpy(cpd.gemm(a.numpy(), b.numpy(), acc, c.numpy())))
        if k == 0 and "stochastic" not in acc:
            start = cpd.cast(c, cpd.Accumulator(acc).format)
            assert same(got, start.expand(m, n))
            assert same(cpd.gemm(a, b, acc), torch.zeros(m, n))


def test_blas():
    a, b, c = torch.randn(30, 40), torch.randn(40, 20), torch.randn(20)
    if not cpd._core.cpu_blas():
        with pytest.raises(RuntimeError, match="BLAS"):
            cpd.gemm(a, b, "fp32", c, blas=True)
        return
    exact = a.double() @ b.double() + c.double()
    got = cpd.gemm(a, b, "fp32", c, blas=True)
    assert torch.allclose(got.double(), exact, rtol=1e-5, atol=1e-4)
    leaves = [x.clone().requires_grad_() for x in (a, b, c)]
    got = cpd.gemm(*leaves[:2], "fp32", leaves[2], blas=True)
    for x, y in zip(
        torch.autograd.grad(got.sum(), leaves), (b.sum(1), a.sum(0), None), strict=True
    ):
        if y is None:
            assert torch.equal(x, torch.full((20,), 30.0))
        else:
            assert torch.allclose(x, y if x.shape[1] == 40 else y[:, None], atol=1e-4)
    with pytest.raises(ValueError, match="fp32"):
        cpd.gemm(a, b, "e4m3", blas=True)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("acc", ["e4m3", "e4m3 kahan", "e6m9 chunked chunk=3", STOCHASTIC])
def test_gradients_are_gemms(acc):
    def product(a, b, purpose, *c):
        return cpd.gemm(a, b, acc, *c, seed=5, stream=77 ^ (purpose << 60))

    a, b, c = values(5, 7), values(7, 4, seed=1), values(4, seed=2)
    leaves = [x.clone().requires_grad_() for x in (a, b, c)]
    g = values(5, 4, seed=3)
    for_a, for_b, for_c = torch.autograd.grad(product(*leaves[:2], 0, leaves[2]), leaves, g)
    assert same(for_a, product(g, b.t(), 4))
    assert same(for_b, product(a.t(), g, 5))
    assert same(for_c, cpd.sum(g, "fp32", 0))


@pytest.mark.parametrize(("of_a", "of_b", "of_c"), BATCHES)
def test_gradients_of_broadcast_operands(of_a, of_b, of_c):
    """With sums in fp32, gradients of broadcast operands are close to gradients in float64. With
    sums in e4m3, each value of such a gradient is one ordered sum: over the matrices of the batch,
    and within each matrix over the dimension that the GEMM sums."""
    leaves = [
        values(*shape, seed=s).requires_grad_()
        for s, shape in enumerate(((*of_a, 5, 7), (*of_b, 7, 4), of_c))
    ]
    a, b, c = leaves
    got = cpd.gemm(a, b, "fp32", c)
    g = values(*got.shape, seed=4)
    grads = torch.autograd.grad(got, leaves, g)
    exact = torch.autograd.grad(a.double() @ b.double() + c.double(), leaves, g.double())
    for x, y in zip(grads, exact, strict=True):
        assert torch.allclose(x, y, rtol=1e-5, atol=1e-4)
    if len(of_b) == 0 and len(of_a) == 1:
        (for_b,) = torch.autograd.grad(cpd.gemm(a, b, "e4m3"), b, g)
        rows = a.detach().reshape(-1, 7)
        assert same(for_b, cpd.gemm(rows.t(), g.reshape(-1, 4), "e4m3"))


def test_gradients_asked_for_one_by_one():
    operands = values(5, 7), values(7, 4, seed=1), values(5, 1, seed=2)
    g = values(5, 4, seed=3)
    every = [x.clone().requires_grad_() for x in operands]
    wanted = torch.autograd.grad(cpd.gemm(*every[:2], "e4m3", every[2]), every, g)
    for asked in itertools.product((False, True), repeat=3):
        leaves = [x.clone().requires_grad_(r) for x, r in zip(operands, asked, strict=True)]
        y = cpd.gemm(*leaves[:2], "e4m3", leaves[2])
        assert y.requires_grad == any(asked)
        chosen = [x for x in leaves if x.requires_grad]
        expected = [w for w, r in zip(wanted, asked, strict=True) if r]
        if chosen:
            for x, w in zip(torch.autograd.grad(y, chosen, g), expected, strict=True):
                assert same(x, w)


def test_gradients_have_their_operands_types():
    for of_a, of_b, of_c in itertools.product(TYPES, repeat=3):
        a = values(4, 9, dtype=of_a).requires_grad_()
        b = values(9, 3, seed=1, dtype=of_b).requires_grad_()
        c = values(3, seed=2, dtype=of_c).requires_grad_()
        y = cpd.gemm(a, b, "fp32", c, dtype=torch.float32)
        g = values(4, 3, seed=3)
        for_a, for_b, for_c = torch.autograd.grad(y, (a, b, c), g)
        assert same(for_a, cpd.gemm(g, b.detach().t(), "fp32", dtype=torch.float32).to(of_a))
        assert same(for_b, cpd.gemm(a.detach().t(), g, "fp32", dtype=torch.float32).to(of_b))
        assert same(for_c, cpd.sum(g, "fp32", 0).to(of_c))


def test_checkpointing_repeats_the_bits():
    numbers = {"seed": 1, "stream": torch.tensor(3)}

    def block(x, w):
        y = torch.relu(cpd.gemm(x, w, STOCHASTIC, **numbers))
        return torch.relu(cpd.gemm(y, w, STOCHASTIC, **numbers))

    x, w = values(9, 6).requires_grad_(), values(6, 6, seed=1).requires_grad_()
    wanted = torch.autograd.grad(block(x, w).sum(), (x, w))
    got = torch.autograd.grad(checkpoint(block, x, w, use_reentrant=False).sum(), (x, w))
    assert all(same(p, q) for p, q in zip(got, wanted, strict=True))


def test_a_stream_changed_before_the_backward_pass_is_noticed():
    stream = torch.tensor(3)
    x, w = values(9, 6).requires_grad_(), values(6, 6, seed=1)
    y = cpd.gemm(x, w, STOCHASTIC, seed=1, stream=stream)
    stream += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("text", [*ACCUMULATORS, "h100-fp8 b=e5m2"])
def test_a_weights_gradient_has_its_layout_and_the_sums_of_the_transpose(text):
    x, w, g = values(2, 9, 5).round(), values(4, 5, seed=1), values(2, 9, 4, seed=2).round()
    recipe = cpd.Recipe(sums="fp32", grad_weight=text)
    w.requires_grad_()
    (of_w,) = torch.autograd.grad(cpd.functional.linear(x, w, recipe=recipe, stream=3), w, g)
    drawn = recipe.grad_weight.rounding == "stochastic"
    numbers = {"stream": 3 ^ stream_tag(Purpose.grad_weight, 0)}
    assert of_w.is_contiguous() != drawn
    assert same(of_w, cpd.gemm(x.flatten(0, 1).t(), g.flatten(0, 1), text, **numbers).t())


# ---- torch's own checks --------------------------------------------------------------------------


def operators():
    assert cpd.functional  # the import defines the operators
    a, b, c = values(2, 3, 5), values(5, 4, seed=1), values(4, seed=2)
    number = torch.tensor(5)
    numbers = torch.arange(2 * len(Purpose)).view(-1, 2)
    plain = "e5m2 chunked chunk=2 inner=e4m3"
    folded = f"native sums='{plain}'"
    gradient = "e5m2 rounding=stochastic random_bits=8"
    draws = f"native sums='{STOCHASTIC}' grad_input='e4m3 kahan' gradient='{gradient}'"
    blocks = (
        "native activation=mxfp8 weight=(4,3) gradient='nvfp4 rounding=stochastic' "
        "grad_input_weight='mxfp4 factor=0.75' grad_weight_gradient=mxfp4"
    )
    ops = torch.ops.cpd
    drawing = STOCHASTIC, number, number, torch.float16, False
    random = torch.full((2, 3, 4, cpd.Accumulator(STOCHASTIC).gemm_integers(5)), 5)
    yield ops.gemm, (a, b, None, "e4m3 sequential", None, None, torch.float32, False, None)
    yield ops.gemm, (a, b, c, plain, None, None, torch.bfloat16, False, None)
    yield ops.gemm, (a, b.t().contiguous().t(), c, *drawing, None)
    yield ops.gemm, (a, b, c, *drawing, random.to(torch.int32))
    yield ops.matmul, (a, b, c, False, draws, numbers, None, None, torch.float32)
    yield ops.matmul, (a, b.t(), None, True, folded, None, None, None, torch.float32)
    yield ops.matmul, (a, b.t(), c, True, "native", None, None, None, torch.float32)
    yield ops.matmul, (a, b[None], c, False, blocks, numbers, None, None, torch.float32)
    x, w, bias = values(2, 4, 5, 6), values(6, 2, 3, 2, seed=1), values(6, seed=2)
    moves = [2, 1], [0, 0], [1, 2], False, [0, 0], 2
    yield ops.convolution, (x, w, bias, *moves, draws, numbers, None, None, torch.float32)
    yield ops.convolution, (x, w, None, *moves, folded, None, None, None, torch.float32)
    g = values(2, 6, 2, 4, seed=3)
    rest = STOCHASTIC, number, number, torch.float32
    yield ops.convolution_input, (g, w, list(x.shape), None, *moves, *rest)
    yield ops.convolution_weight, (g, x, list(w.shape), None, *moves, *rest)


@pytest.mark.few("", 4)
@pytest.mark.parametrize("case", range(12))
def test_opcheck(case):
    cases = list(operators())
    assert len(cases) == 12
    operator, args = cases[case]
    torch.library.opcheck(operator.default, args)
    if operator in (torch.ops.cpd.gemm, torch.ops.cpd.matmul, torch.ops.cpd.convolution):
        leaves = [
            a.clone().requires_grad_()
            if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a
            for a in args
        ]
        torch.library.opcheck(operator.default, tuple(leaves))


def test_fake_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = torch.randn(2, 3, 5), torch.randn(5, 4)
        assert cpd.gemm(a, b, "e4m3", torch.randn(4), dtype=torch.bfloat16).shape == (2, 3, 4)
        with pytest.raises(ValueError, match="K is 4 in a, 5 in b"):
            cpd.gemm(a[..., 1:], b, "e4m3")
        x = torch.empty(3, 5, device="cuda:0")
        number = torch.zeros(1, dtype=torch.int64, device="cuda:0")
        y = cpd.gemm(x, x.t(), STOCHASTIC, seed=number, stream=number)
        assert y.device == x.device
        other = torch.zeros((), dtype=torch.int64, device="cuda:1")
        with pytest.raises(ValueError, match="on x's device, got cuda:1"):
            cpd.gemm(x, x.t(), STOCHASTIC, seed=other)
    x = torch.empty(4, 5, device="meta", requires_grad=True)
    y = cpd.gemm(x, x.t(), "e4m3", dtype=torch.float16)
    assert (y.device.type, y.shape, y.dtype) == ("meta", (4, 4), torch.float16)
    y.sum().backward()
    assert x.grad.shape == (4, 5)


# ---- compilation ---------------------------------------------------------------------------------


def step(x, w, stream):
    acc = cpd.Accumulator("e4m3 fma", rounding="stochastic", random_bits=8)
    return torch.relu(cpd.gemm(x, w, acc, x[:1, :1], seed=3, stream=stream))


def step_of_units(x, w, stream):
    unit = cpd.Accumulator(a="bf16", b="bf16", block=4, fraction_bits=20)
    y = cpd.gemm(x, w, cpd.Accumulator(unit)) + cpd.gemm(x, w, "h100-bf16")
    return y + cpd.gemm(x, w, STOCHASTIC, seed=3, stream=stream)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("run", [step, step_of_units], ids=lambda f: f.__name__)
def test_compiled_steps(run):
    """In a compiled program, eight stochastic steps compile at most twice. Each step gives new
    bits, in the forward and the backward pass, and these are the bits of eager mode."""
    x, w = values(6, 8).requires_grad_(), values(8, 5, seed=1).requires_grad_()
    g = values(6, 5, seed=2)
    for streams in (list(range(8)), [torch.tensor(i) for i in range(8)]):
        program, counter = compiled(run)
        seen = set()
        for stream in streams:
            got, wanted = program(x, w, stream), run(x, w, stream)
            assert same(got.detach(), wanted.detach())
            pairs = torch.autograd.grad(got, (x, w), g), torch.autograd.grad(wanted, (x, w), g)
            assert all(same(p, q) for p, q in zip(*pairs, strict=True))
            seen.add((got.detach().numpy().tobytes(), pairs[0][0].numpy().tobytes()))
        assert len(seen) == 8
        assert counter.frame_count <= 2


def test_compiled_by_inductor_with_dynamic_shapes():
    def loss(a, b, c):
        return cpd.gemm(torch.relu(a), b, "e4m3 kahan", c).square().sum()

    program, counter = compiled(loss, "inductor", dynamic=True)
    for m, k, n in ((3, 5, 4), (7, 9, 6), (12, 2, 8)):
        leaves = [values(*s, seed=i).requires_grad_() for i, s in enumerate(((m, k), (k, n), (n,)))]
        wanted = torch.autograd.grad(loss(*leaves), leaves)
        got = torch.autograd.grad(program(*leaves), leaves)
        assert all(same(p, q) for p, q in zip(got, wanted, strict=True))
    assert counter.frame_count <= 2


# ---- CUDA ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("acc", ACCUMULATORS)
def test_cuda_equals_cpu(acc):
    for of_a, of_b, of_c in few_on_cpu(BATCHES, ACCUMULATORS.index(acc)):
        of_c = [{5: 65, 4: 1}.get(size, size) for size in of_c]
        a, b, c = values(*of_a, 65, 130), values(*of_b, 130, 70, seed=1), values(*of_c, seed=2)
        assert same(cpd.gemm(a.cuda(), b.cuda(), acc, c.cuda()).cpu(), cpd.gemm(a, b, acc, c))
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        there = [x.detach().cuda().requires_grad_() for x in leaves]
        here = torch.autograd.grad(cpd.gemm(*leaves, "e4m3").sum(), leaves)
        for x, y in zip(
            torch.autograd.grad(cpd.gemm(*there, "e4m3").sum(), there), here, strict=True
        ):
            assert same(x.cpu(), y)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_cuda_graph_takes_new_streams():
    require_gpu_itself("graphs")
    a, b = values(33, 40).cuda(), values(40, 20, seed=1).cuda()
    stream = torch.zeros((), dtype=torch.int64, device="cuda")
    cpd.gemm(a, b, STOCHASTIC, seed=1, stream=stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = cpd.gemm(a, b, STOCHASTIC, seed=1, stream=stream)
    for number in (5, 6):
        stream.fill_(number)
        graph.replay()
        wanted = cpd.gemm(a.cpu(), b.cpu(), STOCHASTIC, seed=1, stream=number)
        assert same(y.cpu(), wanted)
