# SPDX-License-Identifier: Apache-2.0
"""Tests scaled formats on torch tensors: derivatives, vmap, compiled programs, threads, and stored
objects. `test_scaled.py` tests the values on every front end."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import threading

import pytest

import cpd
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, hessian, jacfwd, jvp, vjp, vmap  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from cpd._torch import operands  # noqa: E402
from cpd._torch import scaled as scaled_operators  # noqa: E402
from cpd.numeric.scaled import named_scaled  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

FORMATS = (
    *("mxfp8", "nvfp4", "fp8-tensor", "fp8-row", "int8 row", "e4m3fn 4x8", "nvfp4 outer=row"),
    *("mxfp4 block=3", "nvfp4 8x4", "e5m2 2x2 scale=bf16"),
)
FEW = ("mxfp8", "nvfp4", "fp8-tensor")

# ---- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEW)
def test_straight_through(name):
    x, g = normal(3, 40), normal(3, 40, seed=1)
    leaf = x.clone().requires_grad_()
    for how in ({}, {"rounding": "stochastic", "seed": 3}, {"axis": 0}):

        def cast(x, how=how):
            return by_keywords(cpd.cast, x, name, **how)

        assert same(torch.autograd.grad(cast(leaf), leaf, g)[0], g)
        assert same(jvp(cast, (x,), (g,)), (cast(x), g))
        assert same(vjp(cast, x)[1](g)[0], g)
        assert same(jacfwd(lambda x, f=cast: f(x).sum())(x), torch.ones_like(x))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, g)
            assert same(forward_ad.unpack_dual(cast(dual)).tangent, g)


@pytest.mark.parametrize("name", FEW)
def test_gradients_of_gradients(name):
    x = normal(40)
    leaf = x.clone().requires_grad_()
    y = cpd.cast(leaf, name)
    (first,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
    assert torch.equal(first, 3 * y**2)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert torch.allclose(second, 6 * y)
    found = hessian(lambda x: (cpd.cast(x, name) ** 3).sum())(x)
    assert torch.allclose(found, torch.diag(6 * cpd.cast(x, name)))
    assert torch.equal(
        grad(grad(lambda x: (cpd.cast(x, name) ** 2).sum()))(x[0]), torch.tensor(2.0)
    )


@pytest.mark.parametrize("name", FEW)
def test_scales_from_elsewhere_have_no_gradient(name):
    x = normal(2, 32).requires_grad_()
    codes, scales = cpd.encode(x, name)
    assert not codes.requires_grad
    amax = x.detach().abs().amax()
    if name == "mxfp8":
        amax = amax.expand(2, 1)
    amax = amax.clone().requires_grad_()
    for given in ({"scales": scales}, {"amax": amax}):
        y = by_keywords(cpd.cast, x, name, **given)
        assert torch.autograd.grad(y.sum(), [x, amax], allow_unused=True)[1] is None
        assert not by_keywords(cpd.cast, x.detach(), name, **given).requires_grad
    fixed = x.detach()
    assert not grad(lambda a: cpd.cast(fixed, name, amax=a).sum())(amax.detach()).any()
    tangent = jvp(lambda a: cpd.cast(fixed, name, amax=a), (amax.detach(),), (amax.detach(),))[1]
    assert not tangent.any()


def test_codes_end_gradients():
    x = normal(2, 32).requires_grad_()
    encoded = cpd.Encoded(*cpd.encode(x, "nvfp4"), "nvfp4", x.shape)
    assert not cpd.decode(encoded).requires_grad
    with forward_ad.dual_level():
        codes, scales = cpd.encode(forward_ad.make_dual(x.detach(), normal(2, 32)), "nvfp4")
        values = cpd.decode(codes, "nvfp4", x.shape, scales=scales)
        assert forward_ad.unpack_dual(values).tangent is None


def test_out_takes_no_part():
    x, out = normal(2, 32), torch.empty(2, 32)
    leaf = x.clone().requires_grad_()
    with pytest.raises(ValueError, match="out= takes no part in autograd"):
        cpd.cast(leaf, "mxfp8", out=out)
    with pytest.raises(ValueError, match=r"torch\.func's transforms"):
        vmap(lambda x: cpd.cast(x, "mxfp8", out=out[0]))(x)
    with torch.no_grad():
        assert cpd.cast(leaf, "mxfp8", out=out) is out
    y = torch.exp(leaf)
    with torch.no_grad():
        cpd.cast(y, "mxfp8", out=y)  # overwrites y, which exp's derivative needs
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_negated_views():
    x = torch.complex(normal(2, 32), normal(2, 32, seed=1)).conj().imag
    assert x.is_neg()
    assert same(cpd.cast(x, "nvfp4"), cpd.cast(x.resolve_neg(), "nvfp4"))
    out = torch.empty(2, 32, dtype=torch.complex64).conj().imag
    assert same(cpd.cast(x, "nvfp4", out=out).resolve_neg(), cpd.cast(x.resolve_neg(), "nvfp4"))


# ---- casts along two axes ------------------------------------------------------------------------


def both(x, name, axes=(-1, -2), dtype=None):
    _, scaled, how, *_ = operands.parts(name)
    return torch.ops.cpd.cast_scaled_both(x, scaled, axes, how, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*FORMATS, "fp8-block"])
def test_both_axes_are_two_casts(name, dtype):
    x = normal(3, 160, 132).to(dtype)
    for y in (x, x.mT, x[:, ::3], x[:0]):
        for axes in ((-1, -2), (-2, -1), (0, 1), (2, 2)):
            casts = [cpd.cast(y, name, axis=axis, dtype=torch.float32) for axis in axes]
            wanted = torch.stack(casts).to(dtype)
            assert same(both(y, name, axes), wanted)


def test_derivatives_of_both():
    x, g = normal(4, 40), normal(2, 4, 40, seed=1)
    leaf = x.clone().requires_grad_()
    assert same(torch.autograd.grad(both(leaf, "mxfp8"), leaf, g)[0], g[0] + g[1])
    value, tangent = jvp(lambda x: both(x, "mxfp8"), (x,), (g[0],))
    assert same((value, tangent), (both(x, "mxfp8"), torch.stack((g[0], g[0]))))
    arguments = "mxfp8", (-1, 0), "e4m3fn overflow=saturate"
    of_half = x.bfloat16().requires_grad_(), *arguments, torch.float32
    for each in ((leaf, *arguments, None), of_half):
        torch.library.opcheck(torch.ops.cpd.cast_scaled_both.default, each)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize(("shape", "dim"), [((5, 3, 40), 0), ((3, 40, 5), 2), ((5, 40), 0)])
def test_vmap_of_both(name, shape, dim):
    x = normal(*shape)
    for axes in ((-1, 0), (0, -1)):
        check_batched(lambda x, axes=axes: both(x, name, axes), x, in_dims=(dim,))


def test_both_refuses():
    x = normal(4, 40)
    for axes, message in (
        ((-1,), "axes must be two, got 1"),
        ((-1, 2), "axis must be -2…1, got 2"),
        ((-1, 2**40), "axis must fit in 32 bits"),
    ):
        with pytest.raises(ValueError, match=message):
            both(x, "mxfp8", axes)


@pytest.mark.parametrize(
    ("recipe", "calls"), [("mxfp8", 1), ("deepseek-v3", 1), ("te-current", 0), ("nvfp4", 0)]
)
def test_a_layer_casts_its_gradient_along_both_axes_at_once(recipe, calls, monkeypatch):
    """With mxfp8 and deepseek-v3, a layer casts its gradient along both axes in one operation,
    `cast_scaled_both`. With te-current, an ordinary cast is valid for both axes. With nvfp4, there
    are two casts, because both are stochastic and take separate random integers."""
    made = []
    run = operands.run

    def counted(name, *arguments):
        made.append(name)
        return run(name, *arguments)

    monkeypatch.setattr(operands, "run", counted)
    how = cpd.Recipe(recipe)
    x = normal(64, 96).requires_grad_()
    weight = normal(32, 96, seed=1).requires_grad_()
    cpd.functional.linear(x, weight, recipe=how).backward(normal(64, 32, seed=2))
    assert made.count("cast_scaled_both") == calls


# ---- vmap ----------------------------------------------------------------------------------------

BATCHES = [
    *(((5, 3, 40), -1, 0), ((5, 3, 40), 0, 0), ((3, 5, 40), 1, 1), ((3, 40, 5), 0, 2)),
    *(((5, 40), -1, 0), ((5, 40), 0, 0), ((5,), -1, 0), ((2, 5, 7, 33), 1, 1)),
]


def check_batched(call, *batched, in_dims):
    """Asserts that vmap of `call` gives what a loop over the batch gives."""
    got = vmap(call, in_dims=in_dims, randomness="same")(*batched)
    parts = zip(*(x.unbind(d) for x, d in zip(batched, in_dims, strict=True)), strict=True)
    wanted = [tree_leaves(call(*part)) for part in parts]
    assert same(got, [torch.stack(leaves) for leaves in zip(*wanted, strict=True)])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("shape", "axis", "dim"), BATCHES)
def test_vmap(name, shape, axis, dim):
    q, x = cpd.Scaled(name), normal(*shape)
    one = x.unbind(dim)[0].shape
    numbers = torch.arange(shape[dim])
    integers = torch.randint(0, 8, shape, generator=torch.Generator().manual_seed(1))
    check_batched(lambda x: cpd.cast(x, q, axis=axis), x, in_dims=(dim,))
    check_batched(lambda x: cpd.encode(x, q, axis=axis), x, in_dims=(dim,))
    check_batched(
        lambda x: cpd.cast(x, cpd.Cast(q, rounding="stochastic"), axis=axis, seed=3),
        x,
        in_dims=(dim,),
    )

    def drawn(x, stream):
        return cpd.cast(x, cpd.Cast(q, rounding="stochastic"), axis=axis, stream=stream)

    check_batched(drawn, x, numbers, in_dims=(dim, 0))

    def given(x, random):
        return cpd.cast(
            x, cpd.Cast(q, rounding="stochastic", random_bits=3), axis=axis, random=random
        )

    check_batched(given, x, integers, in_dims=(dim, dim))
    grids = (
        q.scales_shape(one, axis),
        () if q.tensor_scale is None else q.tensor_scales_shape(one, axis),
    )
    amax = normal(shape[dim], *grids[q.tensor_scale is not None], seed=2).abs() + 1

    def below(x, amax):
        return cpd.cast(x, q, axis=axis, amax=amax)

    check_batched(below, x, amax, in_dims=(dim, 0))
    check_batched(below, x, amax.movedim(0, -1).contiguous(), in_dims=(dim, amax.dim() - 1))
    check_batched(lambda x: below(x, amax[0]), x, in_dims=(dim,))
    alone = x.unbind(dim)[0]
    check_batched(lambda amax: below(alone, amax), amax, in_dims=(0,))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_vmap_of_packed_scales(name):
    x = normal(5, 3, 40)
    codes, scales = vmap(lambda x: cpd.encode(x, name))(x)
    levels = scales if isinstance(scales, tuple) else (scales,)

    def decoded(codes, *levels):
        given = levels if len(levels) > 1 else levels[0]
        return cpd.decode(codes, name, (3, 40), scales=given)

    def cast(x, *levels):
        return cpd.cast(x, name, scales=levels if len(levels) > 1 else levels[0])

    zeros = (0,) * len(levels)
    check_batched(decoded, codes, *levels, in_dims=(0, *zeros))
    check_batched(decoded, codes.t().contiguous(), *levels, in_dims=(1, *zeros))
    check_batched(cast, x, *levels, in_dims=(0, *zeros))
    last = [level.t().contiguous() for level in levels]
    check_batched(cast, x, *last, in_dims=(0, *(1 for _ in last)))
    assert same(
        vmap(decoded)(codes, *levels),
        cpd.cast(x, name) if name == "mxfp4" else vmap(cast)(x, *levels),
    )


def test_vmap_says_how_to_draw():
    x = normal(4, 2, 32)

    def cast(x):
        return cpd.cast(x, "mxfp8 stochastic", seed=1)

    with pytest.raises(RuntimeError, match=r"cast_scaled rounds stochastically under torch\.vmap"):
        vmap(cast)(x)
    assert same(vmap(cast, randomness="different")(x), cast(x))
    with pytest.raises(
        RuntimeError, match="one by one and does not support randomness='different'"
    ):
        vmap(lambda x: cpd.cast(x, "nvfp4 stochastic"), randomness="different")(x)


def test_empty_batches():
    x = torch.zeros(0, 3, 40)
    assert vmap(lambda x: cpd.cast(x, "nvfp4"))(x).shape == x.shape
    codes, (scales, outer) = vmap(lambda x: cpd.encode(x, "nvfp4"))(x)
    assert (codes.shape, scales.shape, outer.shape) == ((0, 60), (0, 9), (0, 4))


def test_per_example_gradients():
    x, w = normal(4, 2, 32), normal(2, 32, seed=1)
    got = vmap(grad(lambda w, x: (cpd.cast(w, "nvfp4") * x).sum()), in_dims=(None, 0))(w, x)
    assert same(got, x)


# ---- compiled programs ---------------------------------------------------------------------------


cpd.cast(torch.zeros(1), "e4m3")  # loads the operations before a program is traced


def step(name):
    def call(x, number):
        y = cpd.cast(x, cpd.Cast(name, rounding="stochastic"), axis=0, seed=number)
        codes, scales = cpd.encode(x * 2, cpd.Cast(name, rounding="stochastic"), stream=number)
        return y, cpd.decode(codes, name, x.shape, scales=scales), codes, scales

    return call


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", [*FEW, "e4m3fn 4x8"])
def test_compiled_steps(name):
    """In a compiled program, 20 stochastic steps compile at most twice. Each step gives new bits,
    which are the bits that eager mode gives."""
    x, call = normal(6, 40), step(name)
    for numbers in (list(range(20)), [torch.tensor(i) for i in range(20)]):
        run, counter = compiled(call)
        seen = set()
        for number in numbers:
            got = run(x, number)
            assert same(got, call(x, number))
            seen.add(got[0].numpy().tobytes())
        assert len(seen) == 20
        assert counter.frame_count <= 2


@pytest.mark.few("", 3)
@pytest.mark.parametrize("name", FORMATS)
def test_dynamic_shapes(name):
    """One compiled program serves all sizes of x. The program itself computes the number of bytes
    of the codes."""
    run, counter = compiled(step(name), dynamic=True)
    for n in range(5, 9):
        x = normal(n, n + 1, 30 + 3 * n)
        assert same(run(x, 1), step(name)(x, 1))
    assert counter.frame_count == 1


@pytest.mark.exhaustive
def test_compiled_by_inductor():
    def loss(x, amax):
        y = cpd.cast(torch.relu(x), "nvfp4") + cpd.cast(x, "fp8-tensor", amax=amax)
        return (y * y).sum()

    x, amax = normal(4, 64).requires_grad_(), torch.tensor(2.0)
    run, _ = compiled(loss, "inductor")
    assert torch.allclose(run(x, amax), loss(x, amax))
    wanted = torch.autograd.grad(loss(x, amax), x)[0]
    assert torch.allclose(torch.autograd.grad(run(x, amax), x)[0], wanted)


def test_compiled_out():
    def call(x):
        y, out = x + 1, torch.empty_like(x)
        part = y[1:]
        cpd.cast(part, "mxfp8", out=part)
        codes, scales = cpd.encode(y, "mxfp8")
        encoded = cpd.Encoded(codes, scales, "mxfp8", x.shape)
        return y, cpd.cast(x, "nvfp4", out=torch.empty_like(x)), cpd.decode(encoded, out=out)

    run, counter = compiled(call)
    x = normal(3, 40)
    assert same(run(x), call(x))
    assert counter.frame_count == 1


BLOCKS = ("tensor", "row", "3", "2x3", "1x5", "7x1")


@pytest.mark.parametrize("block", BLOCKS)
def test_sizes_of_fake_kernels(block):
    """Fake kernels (for tensors without data) return scales of the same shape as the library."""
    q = cpd.Scaled("e4m3fn", block=int(block) if block.isdigit() else block)
    shapes = [(), (5,), (0,), (4, 9), (0, 4), (2, 3, 10), (1, 1, 1, 1)]
    for shape in shapes:
        for axis in range(-len(shape), len(shape)):
            wanted = q.scales_shape(shape, axis)
            assert tuple(scaled_operators._grid(q.block, shape, axis)) == wanted
    for outer, shape in itertools.product(("tensor", "row"), [(5,), (4, 9), (2, 3, 10)]):
        fake = cpd.encode(torch.empty(shape, device="meta"), f"nvfp4 outer={outer}")
        real = cpd.encode(torch.zeros(shape), f"nvfp4 outer={outer}")
        assert [y.shape for y in tree_leaves(fake)] == [y.shape for y in tree_leaves(real)]


# ---- devices, threads, storage -------------------------------------------------------------------


def test_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.empty(4, 40, device="meta")
    assert cpd.cast(x, "nvfp4").device.type == "meta"
    with FakeTensorMode():
        x, out = torch.empty(2, 4, 40, device="cuda:0").unbind()
        number = torch.zeros(1, dtype=torch.int64, device="cuda:0")
        assert cpd.cast(x, "nvfp4 stochastic", seed=number).device == x.device
        assert cpd.cast(x, "nvfp4", out=out) is out
        codes, (scales, outer) = cpd.encode(x, "nvfp4")
        assert (codes.shape, scales.shape, outer.shape) == ((80,), (12,), (4,))
        assert cpd.decode(codes, "nvfp4", x.shape, scales=(scales, outer)).device == x.device
        with pytest.raises(ValueError, match="scales must be on codes' device"):
            cpd.decode(codes, "nvfp4", x.shape, scales=(torch.empty(12, dtype=torch.uint8), outer))
        with pytest.raises(ValueError, match="amax must be on x's device"):
            cpd.cast(x, "mxfp8", amax=torch.ones(4, 2))


def test_the_library_takes_no_scales_of_another_tensor():
    """A direct call of an operator in torch.ops.cpd raises an error for wrong arguments. The
    operator must check them itself, because only CPD's Python functions check them before."""
    x = normal(2, 32)
    none = (None,) * 7
    operator = torch.ops.cpd.cast_scaled
    with pytest.raises(ValueError, match="elements of mxfp8 are not cast to e5m2"):
        operator(x, "mxfp8", -1, "e5m2", *none)
    with pytest.raises(ValueError, match="axis must be -2…1, got 2"):
        operator(x, "mxfp8", 2, "e4m3fn", *none)
    with pytest.raises(ValueError, match="axis must fit in 32 bits"):
        operator(x, "mxfp8", 2**40, "e4m3fn", *none)
    with pytest.raises(ValueError, match="scales must be 2 contiguous fp32 numbers"):
        operator(x, "mxfp8", -1, "e4m3fn", torch.ones(3), *none[1:])


def test_threads():
    """Many threads that call at the same time, each with its own formats, get the right bits."""
    x = normal(16, 96)
    wanted = {name: cpd.cast(x, cpd.Cast(name, rounding="stochastic"), seed=5) for name in FORMATS}
    wrong = []

    def work(first):
        for i in range(40):
            name = FORMATS[(first + i) % len(FORMATS)]
            codes, scales = cpd.encode(x, cpd.Cast(name, rounding="stochastic"), seed=5)
            y = cpd.decode(codes, name, x.shape, scales=scales)
            if not (
                same(y, wanted[name])
                and same(cpd.cast(x, cpd.Cast(name, rounding="stochastic"), seed=5), y)
            ):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", [*FORMATS, "nvfp4 scale_max=256 choose=mae", "bfp6 margin=1"])
def test_stored(name):
    """A scaled format and encoded tensors survive copying, pickling, and torch.save with
    torch.load's default, weights_only=True."""
    q = cpd.Scaled(name)
    assert copy.deepcopy(q) is copy.copy(q) is q
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(q, protocol)) == q
    x = normal(3, 40)
    made = {"format": q, "weight": cpd.Encoded(*cpd.encode(x, q), q, x.shape)}
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["format"] == q
    assert type(loaded["weight"]) is cpd.Encoded
    assert same(cpd.decode(loaded["weight"]), cpd.cast(x, q))


def test_encoded_is_a_tree():
    """A `cpd.Encoded` is a tree of its tensors for torch.utils._pytree, so compiled programs and
    torch.func accept it."""
    x = normal(3, 40)
    encoded = cpd.Encoded(*cpd.encode(x, "nvfp4"), cpd.Scaled("nvfp4"), (3, 40))
    assert sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(encoded)) == 3
    run, _ = compiled(lambda e: cpd.decode(e) * 2)
    assert same(run(encoded), cpd.decode(encoded) * 2)
    bits = 8 * sum(leaf.numel() for leaf in tree_leaves(encoded[:2]))
    assert math.isclose(bits / x.numel(), encoded.format.bits_per_value((3, 40)), rel_tol=0.02)


# ---- casts apart from the outermost scales -------------------------------------------------------

APART = (
    *("fp8-tensor arithmetic=te", "e5m2 tensor scale=fp32 arithmetic=te", "int8 row", "nvfp4"),
    *("nvfp4 16x16", "nvfp4 outer=row", "nvfp4 transform=hadamard16:te", "fp8-row", "mxfp8"),
)


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("name", APART)
def test_values_and_scales_apart_are_those_of_the_codes(name, draws):
    q = named_scaled(name)
    how = q.element.name + " rounding=stochastic" * draws
    scale = q.scale if q.tensor_scale is None else q.tensor_scale
    numbers = (torch.tensor([5]), torch.tensor([9])) if draws else (None, None)
    ops = torch.ops.cpd
    for shape, axis in (((48, 160), -1), ((160, 48), 0), ((3, 32, 64), 1), ((2, 16, 5, 3), 1)):
        for x in (normal(*shape), normal(*shape).bfloat16(), normal(*shape[::-1]).permute(
            *reversed(range(len(shape))))):  # fmt: skip
            levels = (None,) * 3
            codes, blocks, outer = ops.encode_scaled(x, name, axis, how, *levels, *numbers, None)
            packed = blocks if q.tensor_scale is None else outer
            for dtype in (torch.float32, torch.bfloat16):
                values, scales = ops.cast_scaled_apart(x, name, axis, how, *numbers, dtype)
                if q.tensor_scale is None:
                    expected = ops.decode(codes, q.element.name, list(shape), torch.float32)
                else:
                    ones = torch.ones(scales.numel()).view(torch.uint8)
                    expected = ops.decode_scaled(
                        codes, name, axis, blocks, ones, list(shape), torch.float32
                    )
                assert values.dtype == dtype
                assert same(values.float(), expected)
                grid = list(scales.shape)
                assert same(scales, ops.decode(packed, scale.name, grid, torch.float32))


def test_operands_are_split_where_bfloat16_holds_their_values():
    x = normal(2, 32)
    for name in ("nvfp4 16x16", "fp8-tensor arithmetic=te", "int8 row", "(8,3) tensor scale=fp32"):
        assert operands.parts(name).splits_at(2)
        for narrow, dtype in ((True, torch.bfloat16), (False, torch.float32)):
            values, scale, short = operands.split_operand(x, name, -1, narrow=narrow)
            assert values.dtype == dtype
            assert short == (dtype == torch.float32)
            assert same(values.float() * scale, cpd.cast(x, name, axis=-1))
    for wide in (
        "e4m3fn 16 scale=(8,3) tensor_scale=fp32",  # 2^-138 … 2^136
        "(8,3) 16 scale=e2m1 tensor_scale=fp32",  # 2^-130 … 2^130
    ):
        assert not operands.parts(wide).splits_at(2)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    "text", ["mxfp8", "mxfp8-e5m2", "mxfp4", "mxfp8 rule=rceil arithmetic=te", "mxfp8 rule=even"]
)
def test_bfloat16_has_the_values_of_float32(text: str, axis: int) -> None:
    """A cast of bfloat16 gives the values of the same cast of float32. The input has ordinary
    blocks, blocks of zeros, subnormal elements, values at both ends of bfloat16's range, NaN and
    infinity."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(96, 1100, generator=draw)
    x *= torch.exp2(torch.randint(-20, 1, x.shape, generator=draw).float())
    x[32:64, :700] *= 2.0**99
    x[64:, 1024:] *= 2.0**-100
    x[:32, :64] = 0
    x[40, 5], x[90, 1099] = torch.inf, torch.nan
    x = x.bfloat16()
    wide = cpd.cast(x.float(), text, axis=axis)
    narrow = cpd.cast(x, text, axis=axis).float()
    assert torch.equal(narrow.isnan(), wide.isnan())
    numbers = ~wide.isnan()
    assert torch.equal(narrow[numbers].view(torch.int32), wide[numbers].view(torch.int32))
