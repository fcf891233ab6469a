# SPDX-License-Identifier: Apache-2.0
"""Tests derivatives of products and layers beyond a plain backward pass: forward mode, torch.func,
torch.vmap. With fp32 sums, the results equal torch's own to a tolerance. With narrow and stochastic
sums, the results have the bits of samples computed one by one."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import (  # noqa: E402
    grad,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves  # noqa: E402

import tensors  # noqa: E402
from cpd import functional  # noqa: E402
from tensors import SOME, same  # noqa: E402
from tensors import normal as values  # noqa: E402

NARROW = dataclasses.replace(tensors.NARROW, output="e5m3")
DRAWING = cpd.Recipe(
    sums=SOME,
    activation=cpd.Cast("e4m3", rounding="stochastic", random_bits=8),
    gradient=cpd.Cast("e5m2", rounding="stochastic", random_bits=8),
)
ALL = (0, 1, 2)


def linear(recipe):
    return lambda x, w, b: functional.linear(x, w, b, recipe=recipe)


def matmul(recipe):
    return lambda x, w, b: functional.matmul(x, w, recipe=recipe) + b


def conv2d(recipe, **moves):
    return lambda x, w, b: functional.conv2d(x, w, b, **moves, recipe=recipe)


MOVES = {"stride": (1, 2), "padding": 1, "dilation": (2, 1), "groups": 2}
LINEAR = linear, F.linear, ((3, 4), (5, 4), (5,))
PRODUCTS = {
    "linear": LINEAR,
    "linear of a vector": (linear, F.linear, ((4,), (5, 4), (5,))),
    "matmul": (
        matmul,
        lambda x, w, b: torch.matmul(x, w) + b,
        ((2, 1, 3, 4), (6, 4, 5), (5,)),
    ),
    "conv2d": (conv2d, F.conv2d, ((2, 3, 5, 4), (4, 3, 3, 2), (4,))),
    "conv2d, moved": (
        lambda recipe: conv2d(recipe, **MOVES),
        lambda x, w, b: F.conv2d(x, w, b, **MOVES),
        ((2, 4, 5, 4), (4, 2, 3, 2), (4,)),
    ),
    "conv2d of an image": (conv2d, F.conv2d, ((3, 5, 4), (4, 3, 3, 2), (4,))),
}


def operands(shapes):
    return tuple(values(*shape, seed=i) for i, shape in enumerate(shapes))


def loss(f):
    return lambda *args: f(*args).square().sum()


def close(a, b):
    return tensors.close(a, b, 1e-3)


def second_gradients(f, args):
    return grad(lambda *a: sum(g.square().sum() for g in grad(loss(f), ALL)(*a)), ALL)(*args)


TRANSFORMS = {
    "grad": lambda f, args: grad(loss(f), ALL)(*args),
    "vjp": lambda f, args: vjp(f, *args)[1](f(*args)),
    "jvp": lambda f, args: jvp(f, args, tuple(x.cos() for x in args)),
    "jacrev": lambda f, args: jacrev(f, ALL)(*args),
    "jacfwd": lambda f, args: jacfwd(f, ALL)(*args),
    "forward over reverse": lambda f, args: jacfwd(jacrev(loss(f), ALL), ALL)(*args),
    "reverse over forward": lambda f, args: jacrev(jacfwd(loss(f), ALL), ALL)(*args),
    "forward over forward": lambda f, args: jacfwd(jacfwd(loss(f), 0), 0)(*args),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize(("ours", "torchs", "shapes"), PRODUCTS.values(), ids=PRODUCTS)
def test_transforms_are_torchs(transform, ours, torchs, shapes):
    args = operands(shapes)
    assert close(transform(ours(cpd.Recipe(sums="fp32")), args), transform(torchs, args))


@pytest.mark.parametrize("name", PRODUCTS)
def test_second_gradients_are_torchs_or_an_error(name):
    ours, torchs, shapes = PRODUCTS[name]
    args = operands(shapes)
    if "conv2d" not in name:
        assert close(
            second_gradients(ours(cpd.Recipe(sums="fp32")), args), second_gradients(torchs, args)
        )
        return
    with pytest.raises(RuntimeError, match="no gradients of its gradients"):
        second_gradients(ours(cpd.Recipe(sums="fp32")), args)


# ---- forward mode --------------------------------------------------------------------------------


def tangent_by_hand(product, cast_x, cast_w, of_x, of_w, of_b):
    """Computes the tangent of a product: two products of cast operands with the forward
    accumulator, summed in binary32."""
    return product(of_x, cast_w) + product(cast_x, of_w) + of_b


def test_tangents_pass_straight_through():
    args = x, w, b = operands(LINEAR[2])
    tangents = of_x, of_w, of_b = tuple(t.cos() for t in args)
    cast_x, cast_w = cpd.cast(x, "e4m3"), cpd.cast(w, "e3m2 toward_zero overflow=saturate")

    def product(x, w):
        return cpd.gemm(x, w.t(), "e4m3")

    primal, tangent = jvp(linear(NARROW), args, tangents)
    assert same(primal, linear(NARROW)(*args))
    assert same(tangent, tangent_by_hand(product, cast_x, cast_w, of_x, of_w, of_b))
    with forward_ad.dual_level():
        dual = linear(NARROW)(x, forward_ad.make_dual(w, of_w), b)
        assert same(forward_ad.unpack_dual(dual).tangent, product(cast_x, of_w))


def test_tangents_draw_bits_of_their_own():
    """The products of a tangent use the random streams that the table in cpd.Recipe's documentation
    lists."""
    x, w, _ = operands(((6, 9), (5, 9), ()))
    of_x, of_w = x.cos(), w.cos()
    given = {"recipe": cpd.Recipe(sums=SOME), "seed": 3, "stream": 9}

    def product(a, b, purpose):
        return cpd.gemm(a, b, SOME, seed=3, stream=9 ^ purpose << 60)

    _, tangent = jvp(lambda *a: functional.linear(*a, **given), (x, w), (of_x, of_w))
    wanted = product(of_x, w.t(), 12) + product(x, of_w.t(), 13)
    assert same(tangent, wanted)
    images, kernels = x.view(1, 6, 3, 3), w.view(5, 1, 3, 3).expand(5, 6, 3, 3).contiguous()
    of_images, of_kernels = images.cos(), kernels.cos()

    def convolve(x, w, purpose):
        return product(w.flatten(1), x.view(54, 1), purpose).view(1, 5, 1, 1)

    _, tangent = jvp(
        lambda *a: functional.conv2d(*a, **given), (images, kernels), (of_images, of_kernels)
    )
    wanted = convolve(of_images, kernels, 12) + convolve(images, of_kernels, 13)
    assert same(tangent, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tangents_have_the_results_type(dtype):
    x, w = (t.to(dtype) for t in operands(((3, 4), (5, 4))))
    how = cpd.Recipe(sums="fp32", output="bf16" if dtype == torch.bfloat16 else "fp16")
    primal, tangent = jvp(lambda x: functional.linear(x, w, recipe=how), (x,), (x,))
    assert primal.dtype == tangent.dtype == dtype
    assert torch.allclose(tangent.float(), F.linear(x.float(), w.float()), rtol=1e-2, atol=1e-2)


def test_autocast_takes_no_part_in_tangents():
    x, w, b = operands(LINEAR[2])
    with torch.autocast("cpu", torch.bfloat16):
        _, tangent = jvp(
            lambda x: functional.linear(
                x, w, b, recipe=cpd.Recipe(sums="fp32"), dtype=torch.float32
            ),
            (x,),
            (x,),
        )
    assert torch.allclose(tangent, F.linear(x, w), rtol=1e-5, atol=1e-5)


def test_no_tangents_for_what_has_none():
    x, w, b = operands(LINEAR[2])
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(linear(NARROW)(x, w, b)).tangent is None


def test_operators_called_directly_have_tangents_too():
    x, w, _ = operands(LINEAR[2])
    for operator in (
        lambda x: torch.ops.cpd.gemm(
            x, w.t(), None, "fp32 sequential", None, None, torch.float32, False, None
        ),
        lambda x: torch.ops.cpd.matmul(
            x, w, None, True, "native sums=fp32", None, None, None, torch.float32
        ),
    ):
        assert close(jvp(operator, (x,), (x,))[1], F.linear(x, w))


# ---- torch.vmap ----------------------------------------------------------------------------------

DIMS = [
    dims
    for dims in itertools.product((0, None), (1, None), (-1, None))
    if any(d is not None for d in dims)
]


def stacked(args, dims, samples=3):
    """Returns the arguments with a batch of samples at the dimensions `dims`, and the samples one
    by one."""
    each = [
        [x if dim is None else x * 2**i for x, dim in zip(args, dims, strict=True)]
        for i in range(samples)
    ]
    together = [
        x if dim is None else torch.stack([one[k] for one in each], dim)
        for k, (x, dim) in enumerate(zip(args, dims, strict=True))
    ]
    return together, each


UNIT = cpd.Recipe(sums="h100-bf16")


@pytest.mark.parametrize("recipe", [NARROW, DRAWING, UNIT], ids=["narrow", "drawing", "unit"])
@pytest.mark.parametrize(("ours", "torchs", "shapes"), PRODUCTS.values(), ids=PRODUCTS)
def test_each_sample_has_the_bits_it_has_alone(recipe, ours, torchs, shapes):
    args = [x.bfloat16().float() for x in operands(shapes)]
    f = ours(recipe)
    functions = [f]
    if recipe is not UNIT:  # UNIT would need gradients in bf16
        functions.append(grad(loss(f), ALL))
    for dims, function in itertools.product(DIMS, functions):
        together, each = stacked(args, dims)
        got = vmap(function, dims, randomness="same")(*together)
        alone = [tree_leaves(function(*one)) for one in each]
        assert same(tree_leaves(got), [torch.stack(t) for t in zip(*alone, strict=True)]), dims


def test_a_batch_of_streams():
    x, w, b = operands(LINEAR[2])
    streams = torch.arange(4) << 36

    def f(stream):
        how = cpd.Recipe(sums=SOME, activation="(4,3)")
        return functional.linear(x, w, b, recipe=how, seed=1, stream=stream)

    got = vmap(f)(streams)
    assert same(got, torch.stack([f(stream) for stream in streams]))
    assert not torch.equal(got[0], got[1])


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_random_bits_of_a_batch(name):
    """Under torch.vmap, random bits raise an error unless `randomness` is set. The error also
    occurs if only the backward pass uses random bits."""
    ours, _, shapes = PRODUCTS[name]
    args = operands(shapes)
    for how in (DRAWING, cpd.Recipe(sums="e4m3", grad_weight=SOME)):
        f = ours(how)
        many = torch.stack([args[0]] * 3)
        with pytest.raises(RuntimeError, match="randomness='same'"):
            vmap(f, (0, None, None))(many, *args[1:])
        for randomness, alike in (("same", True), ("different", how != DRAWING)):
            y = vmap(f, (0, None, None), randomness=randomness)(many, *args[1:])
            assert torch.equal(y[0], y[1]) == alike

    def of_batch(w):
        f = ours(cpd.Recipe(sums="e4m3", grad_weight=SOME))
        y = vmap(lambda x: f(x, w, args[2]), randomness="same")(many)
        return y.square().sum()

    def one_by_one(w):
        f = ours(cpd.Recipe(sums="e4m3", grad_weight=SOME))
        return torch.stack([f(x, w, args[2]) for x in many]).square().sum()

    assert same(grad(of_batch)(args[1]), grad(one_by_one)(args[1]))


def test_vmap_of_vmap_and_of_nothing():
    x, w, b = operands(((2, 3, 6, 4), (5, 4), (5,)))
    f = linear(NARROW)
    got = vmap(vmap(f, (0, None, None)), (1, None, None))(x, w, b)
    assert same(got, f(x, w, b).transpose(0, 1))
    for recipe in (NARROW, DRAWING):
        empty = vmap(linear(recipe), (0, None, None), randomness="same")
        assert empty(x[:0], w, b).shape == (0, 3, 6, 5)


# ---- layers --------------------------------------------------------------------------------------


def tangent(f, x, w, b):
    """Returns the derivative of `f` along the direction x, in forward mode."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x), w, b)).tangent


PROGRAMS = {
    "grad": lambda f, args: grad(loss(f), ALL)(*args),
    "dual numbers": lambda f, args: tangent(f, *args),
    "jvp": lambda f, args: jvp(f, args, args)[1],
    "vmap": lambda f, args: vmap(f, (0, None, None), randomness="same")(
        torch.stack([args[0]] * 2), *args[1:]
    ),
    "per sample": lambda f, args: vmap(grad(loss(f), 1), (0, None, None), randomness="same")(
        torch.stack([args[0]] * 2), *args[1:]
    ),
}


@pytest.mark.few("", 3)
@pytest.mark.parametrize("transform", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("recipe", [NARROW, DRAWING], ids=["narrow", "drawing"])
def test_compiled_transforms(transform, recipe):
    torch._dynamo.reset()
    args = operands(LINEAR[2])
    program = torch.compile(
        lambda *args: transform(linear(recipe), args), fullgraph=True, backend="aot_eager"
    )
    assert same(program(*args), transform(linear(recipe), args))
