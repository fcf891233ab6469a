# SPDX-License-Identifier: Apache-2.0
"""Golden cases of torch alone: products forward and backward, and derivatives of the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import cpd
from golden import Cases, Make, floats

STOCHASTIC = "e5m2 sequential rounding=stochastic random_bits=8"


def recipes() -> dict[str, Any]:
    """Each with the seed and the stream of its calls, where it draws."""
    drawing = cpd.Accumulator(STOCHASTIC)
    kahan = "e4m3 kahan rounding=stochastic random_bits=4"
    numbers = {"drawing": {"seed": 5, "stream": 9 ^ 3 << 20}, "casts": {"seed": 6}}
    made = {
        "fp32": cpd.Recipe(sums="fp32"),
        "e4m3": cpd.Recipe(sums="e4m3"),
        "e4m3 kahan": cpd.Recipe(sums="e4m3 kahan"),
        "e6m9 chunked": cpd.Recipe(sums="e6m9 chunked chunk=4 inner=e5m5"),
        "e6m9 fma": cpd.Recipe(sums="e6m9 fma"),
        "e5m2 pairwise": cpd.Recipe(sums="e5m2 pairwise"),
        "drawing": cpd.Recipe(
            forward=drawing, grad_input=kahan, grad_weight=drawing, grad_bias=drawing
        ),
        "casts": cpd.Recipe(
            forward="e6m9 kahan",
            grad_input="e5m10 chunked chunk=8",
            grad_weight="fp32",
            grad_bias="e8m11",
            activation="e4m3fn",
            weight=cpd.Cast("e4m3fn", rounding="up", overflow="saturate"),
            gradient=cpd.Cast("e5m2", rounding="stochastic", random_bits=8),
            output=cpd.Cast("e5m5", rounding="stochastic"),
        ),
        "unit": cpd.Recipe(
            forward="h100-fp8",
            grad_input="h100-fp8 a=e5m2",
            grad_weight="h100-fp8",
            activation="e4m3fn",
            weight="e4m3fn",
            gradient="e5m2",
        ),
    }
    return {name: {"recipe": one, **numbers.get(name, {})} for name, one in made.items()}


def _with_gradients(call: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """The result of `call`, and the gradients of its operands."""
    import torch

    operands = [x.clone().requires_grad_() for x in given]
    y = call(*operands)
    g = torch.from_numpy(floats(tuple(y.shape), 99, -2, 1)).to(y.dtype)
    names = ("y", *(f"gradient {i}" for i in range(len(operands))))
    return dict(zip(names, (y, *torch.autograd.grad(y, operands, g)), strict=True))


def _all(name: str, results: dict[str, Any]) -> Cases:
    for part, value in results.items():
        yield f"{name}: {part}", value


def matmul_cases(make: Make) -> Cases:
    from cpd.functional import matmul

    for name, how in recipes().items():
        if name == "unit":
            continue
        a, b = make(floats((6, 33), 100)), make(floats((33, 5), 101))
        yield from _all(name, _with_gradients(lambda a, b, r=how: matmul(a, b, **r), a, b))
    shapes = ((33,), (33,)), ((33,), (33, 4)), ((4, 33), (33,)), ((2, 1, 3, 9), (5, 9, 2))
    sums = ("e4m3", "e5m2 kahan", "e5m2 kahan")
    for one, other in shapes:
        a, b = make(floats(one, 102)), make(floats(other, 103))
        results = _with_gradients(lambda a, b: matmul(a, b, sums=sums), a, b)
        yield from _all(f"{one} {other}", results)


def linear_cases(make: Make) -> Cases:
    import torch

    from cpd.functional import linear

    x, w, b = make(floats((2, 7, 40), 104)), make(floats((6, 40), 105)), make(floats((6,), 106))
    for name, how in recipes().items():
        results = _with_gradients(lambda x, w, b, r=how: linear(x, w, b, **r), x, w, b)
        yield from _all(name, results)
    yield from _all(
        "no bias", _with_gradients(lambda x, w: linear(x, w, recipe=cpd.Recipe(sums="e4m3")), x, w)
    )
    for dtype in (torch.bfloat16, torch.float16):
        given = [x.to(dtype), w.to(dtype), b.to(dtype)]
        how = cpd.Recipe(sums="fp32", output="(4,3)")
        results = _with_gradients(lambda x, w, b, r=how: linear(x, w, b, recipe=r), *given)
        yield from _all(str(dtype).removeprefix("torch."), results)
    for number, stream in enumerate((0, 2 << 20)):
        how = cpd.Recipe(sums=STOCHASTIC)
        yield f"layer {number}", linear(x, w, b, recipe=how, stream=stream)


def conv2d_cases(make: Make) -> Cases:
    from cpd.functional import conv2d

    x, w, b = (
        make(floats((2, 4, 7, 6), 107)),
        make(floats((6, 4, 3, 2), 108)),
        make(floats((6,), 109)),
    )
    for name, how in recipes().items():
        results = _with_gradients(lambda x, w, b, r=how: conv2d(x, w, b, padding=1, **r), x, w, b)
        yield from _all(name, results)
    ways: dict[str, dict[str, Any]] = {
        "stride": {"stride": (2, 1), "padding": (1, 0)},
        "dilation": {"dilation": 2, "padding": 2},
        "same": {"padding": "same"},
        "groups": {"groups": 2},
        "circular": {"padding": 1, "padding_mode": "circular"},
        "reflect": {"padding": 1, "padding_mode": "reflect"},
    }
    for name, way in ways.items():
        kernel = w[:, :2].contiguous() if name == "groups" else w
        results = _with_gradients(
            lambda x, w, b, way=way: conv2d(x, w, b, recipe=cpd.Recipe(sums="e4m3 kahan"), **way),
            x,
            kernel,
            b,
        )
        yield from _all(name, results)
    yield "one image", conv2d(x[0], w, recipe=cpd.Recipe(sums="e4m3"))


def derivatives_cases(make: Make) -> Cases:
    """Yields derivatives, in reverse and forward mode, of elementwise operations, sums and
    products."""
    import torch

    x, y, z = (make(floats((5, 6), 110 + i)) for i in range(3))
    b = make(floats((6, 4), 113))
    drawing = {"accumulator": STOCHASTIC, "seed": 5, "stream": 9}
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "cast": (lambda x: cpd.cast(x, "e4m3 stochastic", seed=1), (x,)),
        "add": (lambda x, y: cpd.add(x, y, "e4m3"), (x, y)),
        "mul": (lambda x, y: cpd.mul(x, y, "e4m3"), (x, y)),
        "fma": (lambda x, y, z: cpd.fma(x, y, z, "e4m3"), (x, y, z)),
        "sum": (lambda x: cpd.sum(x, "e4m3 kahan", 1), (x,)),
        "gemm": (lambda x, b: cpd.gemm(x, b, "e4m3 kahan"), (x, b)),
        "gemm drawing": (lambda x, b: cpd.gemm(x, b, **drawing), (x, b)),
    }
    for name, (call, given) in calls.items():
        yield from _all(name, _with_gradients(call, *given))
        tangents = tuple(make(floats(tuple(one.shape), 120)) for one in given)
        yield f"{name}: tangent", torch.func.jvp(call, given, tangents)[1]
    batch = make(floats((3, 5, 6), 121))
    for randomness in ("same", "different"):
        draw = torch.vmap(lambda x: cpd.gemm(x, b, **drawing), randomness=randomness)
        yield f"vmap {randomness}", draw(batch)
    seed = torch.tensor(-3)
    yield "seed tensor", cpd.cast(x, "e4m3 stochastic", seed=seed, stream=torch.tensor(8))
    assert np.array_equal(x.numpy(), floats((5, 6), 110))
