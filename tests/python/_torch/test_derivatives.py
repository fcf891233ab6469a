# SPDX-License-Identifier: Apache-2.0
"""Tests the derivatives of torch operations in forward and reverse mode, in nested modes, under
torch.func's transforms and under torch.vmap. No derivative may be silently zero."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import cpd.functional as F  # noqa: E402

W = torch.linspace(-1, 2, 12).view(3, 4)
"""A constant second operand."""
EXACT_SUMS = cpd.Recipe(sums="fp32")
H4 = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2


def cubed(mul, x):
    return mul(x, mul(x, x))


# Each row has a CPD operation in fp32 and torch's own operation. In fp32, CPD rounds as torch does,
# apart from the order of sums. Every function has degree two or three in x, a 3 x 4 matrix, so that
# its second derivative is not zero.
OPERATIONS = {
    "cast": (lambda x: cpd.cast(x * x * x, "fp32"), lambda x: x * x * x),
    "add": (
        lambda x: cpd.add(x * x, cpd.add(x[0], W * x, "fp32"), "fp32"),
        lambda x: x * x + (x[0] + W * x),
    ),
    "mul": (
        lambda x: cubed(lambda a, b: cpd.mul(a, b, "fp32"), x),
        lambda x: cubed(torch.mul, x),
    ),
    "mul by a row": (lambda x: cpd.mul(x, x[1] * x[1], "fp32"), lambda x: x * (x[1] * x[1])),
    "mul by a constant": (lambda x: cpd.mul(x * x, W, "fp32"), lambda x: x * x * W),
    "fma": (lambda x: cpd.fma(x, x * x, x, "fp32"), lambda x: x * x * x + x),
    "fma of a constant": (lambda x: cpd.fma(W, W, x * x, "fp32"), lambda x: W * W + x * x),
    "div": (
        lambda x: cpd.div(x * x * x, x * x + 1, "fp32"),
        lambda x: x * x * x / (x * x + 1),
    ),
    "div by a constant": (lambda x: cpd.div(x * x, W, "fp32"), lambda x: x * x / W),
    "sqrt": (
        lambda x: cpd.sqrt(x * x * x * x + 1, "fp32"),
        lambda x: (x * x * x * x + 1).sqrt(),
    ),
    "div with flags": (
        lambda x: cpd.div(W, x * x + 1, "fp32", flags=True)[0],
        lambda x: W / (x * x + 1),
    ),
    "sum": (lambda x: cpd.sum(x * x * x, "fp32 pairwise", -1), lambda x: (x * x * x).sum(-1)),
    "gemm": (lambda x: cpd.gemm(x, (x * x).mT, "fp32"), lambda x: x @ (x * x).mT),
    "gemm of a constant": (lambda x: cpd.gemm(W.mT, x * x, "fp32"), lambda x: W.mT @ (x * x)),
    "gemm with addend": (
        lambda x: cpd.gemm(W.mT, W, "fp32", x[0] * x[0]),
        lambda x: W.mT @ W + x[0] * x[0],
    ),
    "gemm of batches": (
        lambda x: cpd.gemm(x.view(2, 3, 2), x.view(2, 2, 3), "fp32"),
        lambda x: x.view(2, 3, 2) @ x.view(2, 2, 3),
    ),
    "hadamard": (
        lambda x: cpd.hadamard(x * x * x, "hadamard4:signs=0x6"),
        lambda x: (x * x * x * torch.tensor([1.0, -1, -1, 1])) @ H4,
    ),
    "linear": (
        lambda x: F.linear(x, x * x, x[0, :3], recipe=EXACT_SUMS),
        lambda x: torch.nn.functional.linear(x, x * x, x[0, :3]),
    ),
}


def of_dual(f):
    """Returns the tangent of `f` along a direction of ones, computed by
    torch.autograd.forward_ad."""

    def tangent(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    return tangent


def along(f, direction=0.5):
    """Returns the derivative of `f` along a vector whose elements all equal `direction`."""
    return lambda x: jvp(f, (x,), (torch.full_like(x, direction),))[1]


def gradient(f):
    return grad(lambda x: (f(x) * f(x)).sum())


def back(f):
    """Returns a function that computes a gradient through a gradient: it squares the gradient of
    f's sum and differentiates again by torch.autograd."""

    def run(x):
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]

    return run


def of_batch(f):
    return lambda x: vmap(f)(torch.stack([x, 2 * x, x.flip(0)]))


TRANSFORMS = {
    "dual": of_dual,
    "jvp": along,
    "vjp": lambda f: lambda x: vjp(f, x)[1](torch.ones_like(f(x)))[0],
    "grad": gradient,
    "double backward": back,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "hessian": hessian,
    "jvp of jvp": lambda f: along(along(f)),
    "jvp of jvp of jvp": lambda f: along(along(along(f))),
    "jvp of grad": lambda f: along(gradient(f)),
    "grad of jvp": lambda f: gradient(along(f)),
    "grad of grad": lambda f: gradient(gradient(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
    "vmap": of_batch,
    "vmap of vmap": lambda f: lambda x: vmap(of_batch(f))(torch.stack([x, x + 1])),
    "vmap of grad": lambda f: of_batch(gradient(f)),
    "vmap of jvp": lambda f: of_batch(along(f)),
    "grad of vmap": lambda f: gradient(of_batch(f)),
    "jvp of vmap": lambda f: along(of_batch(f)),
}


@pytest.mark.few("", 2)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_transforms(operation, transform):
    """Each transform of a CPD operation equals the same transform of torch's operation. At least
    one value of the result is not zero; only the third derivative along a direction may be all
    zeros."""
    ours, exact = (TRANSFORMS[transform](f) for f in OPERATIONS[operation])
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    got, wanted = ours(x), exact(x)
    assert got.shape == wanted.shape
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert wanted.count_nonzero() > 0 or transform == "jvp of jvp of jvp"


# ---- what a derivative is ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounding", ["nearest_even", "up", "stochastic"])
def test_cast_is_straight_through(dtype, rounding):
    x, t = (torch.randn(5, 7).to(dtype) for _ in range(2))

    def cast(x):
        return cpd.cast(x, cpd.Cast("e4m3", rounding=rounding), seed=4)

    y, tangent = jvp(cast, (x,), (t,))
    assert torch.equal(y, cast(x))
    assert torch.equal(tangent, t)
    assert tangent.dtype == dtype
    assert torch.equal(jacfwd(cast)(x[0]), torch.eye(7, dtype=dtype))
    assert torch.equal(jacrev(cast)(x[0]), torch.eye(7, dtype=dtype))


def test_tangents_where_autograd_is_off():
    """Under torch.no_grad, tangents are still computed, because no_grad turns off reverse mode
    alone. A separate switch controls forward mode."""
    x, t = torch.randn(4), torch.randn(4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        with torch.no_grad():
            assert torch.equal(forward_ad.unpack_dual(cpd.cast(dual, "e4m3")).tangent, t)
        with forward_ad._set_fwd_grad_enabled(False):
            assert forward_ad.unpack_dual(cpd.cast(dual, "e4m3")).tangent is None
        assert forward_ad.unpack_dual(cpd.cast(x, "e4m3")).tangent is None
    outer = grad(lambda x: jvp(lambda y: cpd.mul(y, y, "fp32"), (x,), (t,))[1].sum())(x)
    assert torch.allclose(outer, 2 * t)


def test_both_modes_at_once():
    x, t = torch.randn(2, 2), torch.randn(2, 2)
    for ours, exact in ((cpd.mul, torch.mul), (cpd.gemm, torch.matmul)):
        results = []
        for run in (lambda x, f=ours: f(x, x, "fp32"), lambda x, f=exact: f(x, x)):
            leaf = x.clone().requires_grad_()
            with forward_ad.dual_level():
                dual = forward_ad.unpack_dual(run(forward_ad.make_dual(leaf, t)))
                results.append(torch.autograd.grad(dual.tangent.sum(), leaf, retain_graph=True)[0])
                results.append(dual.tangent.detach())
        assert torch.allclose(results[0], results[2])
        assert torch.allclose(results[1], results[3])


@pytest.mark.parametrize(
    "text",
    [
        "e4m3",
        "e5m2 chunked chunk=3 inner=e4m3 product=exact",
        "fp16 kahan rounding=stochastic random_bits=8",
        "h100-fp16",
    ],
)
def test_tangents_of_products_are_products(text):
    """The tangent of a product is the sum, in float32, of two products with the same accumulator.
    The random streams of the two products are the call's stream XOR 12 << 60 and XOR 13 << 60."""
    generator = torch.Generator().manual_seed(3)
    a, b, c, of_a, of_b, of_c = (
        torch.randn(shape, generator=generator).half().float()
        for shape in ((2, 5, 9), (9, 4), (4,)) * 2
    )
    stream = 5 << 40

    def product(a, b, purpose, *c, **how):
        return cpd.gemm(a, b, text, *c, seed=2, stream=stream ^ (purpose << 60), **how)

    y, tangent = jvp(
        lambda a, b, c: product(a, b, 0, c, dtype=torch.float32),
        (a, b, c),
        (of_a, of_b, of_c),
    )
    assert torch.equal(y, product(a, b, 0, c))
    products = product(of_a, b, 12) + product(a, of_b, 13)
    assert torch.equal(tangent, products + of_c)
    _, of_y = jvp(lambda b: product(a, b, 0), (b,), (of_b,))
    assert torch.equal(of_y, product(a, of_b, 13))


def test_codes_have_no_derivative():
    """Codes are integers: like the result of x.to(torch.int64), they carry neither a gradient nor a
    tangent."""
    x, t = torch.randn(4), torch.randn(4)
    codes, tangent = jvp(lambda x: cpd.encode(x, "e4m3"), (x,), (t,))
    assert codes.dtype == torch.uint8
    assert not tangent.any()
    codes = cpd.encode(x.clone().requires_grad_(), "e4m3")
    assert not codes.requires_grad
    assert not cpd.decode(codes, "e4m3", 4).requires_grad
    with forward_ad.dual_level():
        codes = cpd.encode(forward_ad.make_dual(x, t), "e4m3")
        assert forward_ad.unpack_dual(codes).tangent is None
        assert forward_ad.unpack_dual(cpd.decode(codes, "e4m3", 4)).tangent is None


def test_flags_have_no_derivative():
    x, t = torch.randn(4), torch.randn(4)

    def both(x):
        return cpd.mul(x, x, "e4m3 stochastic", seed=1, flags=True)

    (values, flags), tangents = jvp(both, (x,), (t,))
    assert flags.dtype == torch.uint8
    assert not tangents[1].any()
    assert torch.equal(tangents[0], 2 * x * t)
    x.requires_grad_()
    values, flags = both(x)
    assert not flags.requires_grad
    values.sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_out_takes_no_part_in_derivatives():
    x, t = torch.randn(4), torch.randn(4)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="forward-mode"):
        cpd.cast(forward_ad.make_dual(x, t), "e4m3", out=torch.empty(4))
    with forward_ad.dual_level(), pytest.raises(ValueError, match="takes no part in forward-mode"):
        torch.ops.cpd.cast_out(
            forward_ad.make_dual(x, t), "e4m3", None, None, None, out=torch.empty(4)
        )
    with pytest.raises(ValueError, match=r"torch\.func"):
        vmap(lambda x: cpd.mul(x, x, "e4m3", out=torch.empty(())))(x)
    with pytest.raises(ValueError, match=r"takes no part in torch\.func"):
        jvp(lambda x: cpd.cast(x, "e4m3", out=torch.empty(4)), (x,), (t,))
    with pytest.raises(ValueError, match="takes no part"):
        grad(lambda x: cpd.cast(x, "e4m3", out=torch.empty(4)).sum())(x)
    x.requires_grad_()
    for call in (
        lambda: torch.ops.cpd.cast_out(x, "e4m3", None, None, None, out=torch.empty(4)),
        lambda: cpd.cast(x, "e4m3", out=torch.empty(4)),
    ):
        with pytest.raises(ValueError, match="takes no part in autograd"):
            call()
    with torch.no_grad():
        cpd.cast(x, "e4m3", out=x)
    assert torch.equal(x, cpd.cast(x, "e4m3"))


# ---- vmap ----------------------------------------------------------------------------------------


def calls():
    """Yields tuples of a name, an operation, and its operands' shapes. The shapes describe one
    example, without the batch dimension."""
    yield "cast", lambda x: cpd.cast(x, "e4m3"), [(3, 4)]
    yield "add", lambda x, y: cpd.add(x, y, "e4m3"), [(3, 4), (4,)]
    yield "mul", lambda x, y: cpd.mul(x, y, "e4m3"), [(3, 1), (2, 1, 4)]
    yield "fma", lambda x, y, z: cpd.fma(x, y, z, "e4m3"), [(3, 4), (), (3, 4)]
    yield "div", lambda x, y: cpd.div(x, y, "e4m3"), [(3, 4), (4,)]
    yield "sqrt", lambda x: cpd.sqrt(x * x, "e4m3"), [(3, 4)]
    yield "flags", lambda x, y: cpd.div(x, y, "e4m3", flags=True)[1], [(3, 1), (2, 1, 4)]
    yield "sum", lambda x: cpd.sum(x, "e4m3 chunked chunk=2", -2), [(3, 4)]
    yield "gemm", lambda a, b, c: cpd.gemm(a, b, "e4m3", c), [(3, 4), (4, 2), (2,)]
    yield "gemms", lambda a, b, c: cpd.gemm(a, b, "e4m3", c), [(2, 1, 3, 4), (5, 4, 2), (5, 1, 2)]
    yield "linear", lambda x, w: F.linear(x, w, recipe=EXACT_SUMS), [(3, 4), (2, 4)]
    yield "encode", lambda x: cpd.encode(x, "e2m1"), [(3, 3)]
    yield (
        "hadamard",
        lambda x: cpd.hadamard(x, "hadamard4:signs=0x6", axis=-2, inverse=True),
        [(4, 3)],
    )


CALLS = {name: (f, shapes) for name, f, shapes in calls()}


def operands(shapes, dims, size=3):
    """Yields a random tensor for each shape. `dims` has an entry for each tensor: the index of
    a batch dimension of `size` examples, or None for no batch dimension."""
    generator = torch.Generator().manual_seed(7)
    for shape, dim in zip(shapes, dims, strict=True):
        whole = shape if dim is None else (*shape[:dim], size, *shape[dim:])
        yield torch.randn(whole, generator=generator)


@pytest.mark.parametrize("operation", CALLS)
def test_vmap_is_a_loop(operation):
    f, shapes = CALLS[operation]
    for dims in itertools.product(*((None, *range(len(s) + 1)) for s in shapes)):
        if all(dim is None for dim in dims):
            continue
        xs = list(operands(shapes, dims))
        got = vmap(f, dims)(*xs)
        for i in range(3):
            each = [x if d is None else x.select(d, i) for x, d in zip(xs, dims, strict=True)]
            assert torch.equal(got[i], f(*each))


def test_vmap_of_decode():
    codes = torch.arange(12, dtype=torch.uint8).view(4, 3) * 19
    got = vmap(lambda c: cpd.decode(c, "e2m1", (2, 3)))(codes)
    assert torch.equal(got, torch.stack([cpd.decode(c, "e2m1", (2, 3)) for c in codes]))


def test_vmap_of_an_empty_batch():
    assert vmap(lambda x: cpd.encode(x, "e2m1"))(torch.empty(0, 5)).shape == (0, 3)


DRAWING = {
    "cast": lambda x: cpd.cast(x, "e4m3 stochastic", seed=3),
    "mul": lambda x: cpd.mul(x, x, "e4m3 stochastic", seed=3),
    "div": lambda x: cpd.div(x, x * x, "e4m3 stochastic", seed=3),
    "sum": lambda x: cpd.sum(x, cpd.Accumulator("e4m3 kahan", rounding="stochastic"), 0),
    "gemm": lambda x: cpd.gemm(x, x.mT, cpd.Accumulator("e4m3", rounding="stochastic")),
    "linear": lambda x: F.linear(
        x, x, recipe=cpd.Recipe(sums=cpd.Accumulator("e4m3", rounding="stochastic"))
    ),
    "encode": lambda x: cpd.encode(x, "e2m1 stochastic"),
}


@pytest.mark.parametrize("operation", DRAWING)
def test_random_bits_under_vmap(operation):
    """With randomness="error", vmap of a stochastic operation raises an error, as it does for
    torch's own random functions. With "same", all examples get the same random bits; with
    "different", each example gets its own."""
    f = DRAWING[operation]
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(8))
    with pytest.raises(RuntimeError, match="randomness='same'"):
        vmap(f)(x)
    same = vmap(f, randomness="same")(x)
    assert torch.equal(same, torch.stack([f(one) for one in x]))
    if operation == "encode":
        with pytest.raises(RuntimeError, match="one by one"):
            vmap(f, randomness="different")(x)
        return
    different = vmap(f, randomness="different")(torch.stack([x[0], x[0]]))
    assert torch.equal(different[0], f(x[0]))
    assert not torch.equal(different[1], different[0])
    if operation in ("cast", "mul", "div"):
        assert torch.equal(vmap(f, randomness="different")(x), f(x))


def test_examples_with_streams_or_integers_of_their_own():
    x = torch.randn(3, 50)
    streams = torch.tensor([4, 5, 6])

    def drawn(x, stream):
        return cpd.cast(x, "e4m3 stochastic", stream=stream)

    wanted = torch.stack([drawn(one, stream) for one, stream in zip(x, streams, strict=True)])
    assert torch.equal(vmap(drawn)(x, streams), wanted)
    text = "e4m3 sequential rounding=stochastic"
    for call in (
        lambda s: cpd.sum(x, text, stream=s),
        lambda s: cpd.sum(x, "e5m2 kahan rounding=stochastic", 0, seed=s, stream=4),
        lambda s: cpd.gemm(x, x.mT, text, seed=2, stream=s),
    ):
        assert torch.equal(vmap(call)(streams), torch.stack([call(int(s)) for s in streams]))
    random = torch.randint(0, 2**24, (3, 50))

    def given(x, random):
        return cpd.cast(x, "e4m3 stochastic", random=random)

    wanted = given(x, random)
    assert torch.equal(vmap(given)(x, random), wanted)
    assert torch.equal(vmap(given, (None, 0))(x[0], random)[0], wanted[0])
    with pytest.raises(ValueError, match="random must be"):
        vmap(given)(x, random + 2**24)


# ---- compiled and exported -----------------------------------------------------------------------


@pytest.mark.few("", 2)
@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap", "vmap of grad", "dual"])
def test_compiled_transforms(transform):
    def f(x):
        return cpd.gemm(cpd.mul(cpd.cast(x, "e5m2"), x, "fp16"), x.mT, "fp32")

    x = torch.randn(3, 4)
    wanted = TRANSFORMS[transform](f)(x)
    torch._dynamo.reset()
    run = torch.compile(TRANSFORMS[transform](f), fullgraph=True, backend="aot_eager")
    assert torch.allclose(run(x), wanted)


def test_an_exported_program_runs_in_another_process(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, stream):
            y = cpd.cast(x, "e4m3 stochastic", seed=3, stream=stream)
            y = cpd.gemm(y, x.mT, "e5m2 chunked chunk=2 inner=e4m3")
            codes = cpd.encode(cpd.sum(y, "e4m3 kahan", 0), "e2m1 up")
            return cpd.fma(y, y, cpd.decode(codes, "e2m1", (3,)), "fp16")

    x, stream = torch.randn(3, 4), torch.tensor(6)
    program = torch.export.export(Model(), (x, stream))
    assert torch.equal(program.module()(x, stream), Model()(x, stream))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save([x, stream, Model()(x, stream)], tmp_path / "tensors.pt")
    script = (
        "import sys, torch, cpd._torch.operators\n"
        "program = torch.export.load(sys.argv[1])\n"
        "x, stream, wanted = torch.load(sys.argv[2])\n"
        "assert torch.equal(program.module()(x, stream), wanted)\n"
    )
    files = [str(tmp_path / "program.pt2"), str(tmp_path / "tensors.pt")]
    subprocess.run([sys.executable, "-c", script, *files], check=True)
