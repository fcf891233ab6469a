# SPDX-License-Identifier: Apache-2.0
"""Tests that calls release all their memory.

Each operation runs repeatedly on a few elements, forward and backward, while the C library's heap
and Python's memory blocks are measured.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import cpd
from by_keywords import by_keywords
from heap import ROUNDS, growth, has_mallinfo2

torch = pytest.importorskip("torch")

import cpd.functional as F  # noqa: E402

CALLS = 1_000
ALL_CALLS = 200_000
SPARE_BYTES = 16
"""The bytes by which the heap may grow for each measured call: half of malloc's least chunk. The
calls run in several rounds, and each round is measured."""
MOST_BYTES, MOST_BLOCKS = 16 * 1024, 500
"""The most that memory may grow in one round of calls: bytes of the heap, and Python's memory
blocks. With ALL_CALLS calls in all rounds, this is less than a byte for each call.
"""


def stochastic(f):
    return cpd.Accumulator(f, scheme="chunked", chunk=2, inner="e5m2", rounding="stochastic")


def forward():
    """Returns, by name, one call of each operation."""
    x, y, z = (torch.rand(2, 2) for _ in range(3))
    out, packed = torch.empty(2, 2), cpd.encode(x, "e4m3")
    a, b = x.numpy(), y.numpy()
    number = torch.tensor(5)
    integers = torch.ones(2, 2, dtype=torch.int32)
    codes, scales = cpd.encode(x, "nvfp4")
    amax = torch.tensor(2.0)
    image, kernel = torch.rand(1, 1, 2, 2), torch.rand(1, 1, 1, 1)
    drawn = {"rounding": "stochastic", "seed": 3, "stream": number}
    return {
        "cast": lambda: cpd.cast(x, "e4m3"),
        "cast stochastic": lambda: by_keywords(
            cpd.cast, x, "e4m3", overflow="saturate", variant="B", **drawn
        ),
        "cast random": lambda: cpd.cast(x, "e4m3 stochastic", random=integers),
        "cast out": lambda: cpd.cast(x, "e4m3", out=out),
        "encode": lambda: by_keywords(cpd.encode, x, "e4m3", **drawn),
        "decode": lambda: cpd.decode(packed, "e4m3", (2, 2)),
        "decode out": lambda: cpd.decode(packed, "e4m3", (2, 2), out=out),
        "cast scaled": lambda: cpd.cast(x, "mxfp8"),
        "cast scaled random": lambda: by_keywords(cpd.cast, x, "nvfp4", amax=amax, **drawn),
        "cast scaled out": lambda: cpd.cast(x, "nvfp4", scales=scales, out=out),
        "encode scaled": lambda: cpd.encode(x, "nvfp4", axis=0),
        "decode scaled": lambda: cpd.decode(codes, "nvfp4", (2, 2), scales=scales),
        "decode scaled out": lambda: cpd.decode(codes, "nvfp4", (2, 2), out=out, scales=scales),
        "add": lambda: cpd.add(x, y, "e4m3"),
        "mul": lambda: by_keywords(cpd.mul, x, y, "e4m3", **drawn),
        "mul out": lambda: cpd.mul(x, y, "e4m3", out=out),
        "fma": lambda: cpd.fma(x, y, z, "e4m3"),
        "sum": lambda: cpd.sum(x, "e4m3 chunked chunk=2"),
        "sum stochastic": lambda: cpd.sum(x, stochastic("e4m3"), seed=3),
        "gemm": lambda: cpd.gemm(x, y, "e4m3"),
        "div with flags": lambda: cpd.div(x, y, "e4m3", flags=True),
        "gemm with flags": lambda: cpd.gemm(x, y, "e4m3", flags=True),
        "gemm in integers": lambda: cpd.gemm(x, y, "int32"),
        "gemm stochastic": lambda: cpd.gemm(x, y, stochastic("e4m3"), z, seed=3),
        "hadamard": lambda: cpd.hadamard(x, "hadamard2:signs=0x1"),
        "hadamard out": lambda: cpd.hadamard(x, "hadamard2", axis=0, out=out),
        "linear": lambda: F.linear(x, y, recipe=cpd.Recipe(sums="e4m3")),
        "conv2d": lambda: F.conv2d(image, kernel, recipe=cpd.Recipe(sums="e4m3")),
        "numpy cast": lambda: cpd.cast(a, "e4m3"),
        "numpy encode": lambda: cpd.encode(a, "e4m3"),
        "numpy cast scaled": lambda: cpd.cast(a, "nvfp4"),
        "numpy encode scaled": lambda: cpd.encode(a, "nvfp4", amax=np.float32(3)),
        "numpy div with flags": lambda: cpd.div(a, b, "e4m3", flags=True),
        "numpy sum in integers": lambda: cpd.sum(a, "fixed<40,12>"),
        "numpy fma": lambda: cpd.fma(a, b, b, "e4m3"),
        "numpy sum": lambda: cpd.sum(a, "e4m3 chunked chunk=2"),
        "numpy hadamard": lambda: cpd.hadamard(a, "hadamard2"),
        "numpy gemm": lambda: cpd.gemm(a, b, "e4m3"),
    }


def backward():
    """Returns, by name, functions that compute a result and its gradients.

    There is one function for each differentiable operation.
    """
    x, y, z = (torch.rand(2, 2, requires_grad=True) for _ in range(3))
    image = torch.rand(1, 1, 2, 2, requires_grad=True)
    kernel = torch.rand(1, 1, 1, 1, requires_grad=True)
    t = torch.rand(2, 2)
    recipe = cpd.Recipe(sums="e4m3", gradient=cpd.Cast("e5m2", rounding="stochastic"))

    models = {}
    for name in ("nvfp4", "te-delayed"):
        torch.manual_seed(0)
        models[name] = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
        cpd.convert(models[name], name)
    rows, images = torch.rand(16, 16), torch.rand(1, 2, 2, 2, requires_grad=True)
    native = cpd.Recipe("mxfp8")
    kernels = torch.rand(2, 2, 1, 1, requires_grad=True)

    def trained(name):
        def run():
            models[name].zero_grad()
            models[name](rows).sum().backward()

        return run

    def gradient(run, *operands):
        return lambda: torch.autograd.grad(run().sum(), operands)

    return {
        "cast": gradient(lambda: cpd.cast(x, "e4m3"), x),
        "cast scaled": gradient(lambda: cpd.cast(x, "nvfp4"), x),
        "fma": gradient(lambda: cpd.fma(x, y, z, "e4m3"), x, y, z),
        "sum": gradient(lambda: cpd.sum(x, "e4m3"), x),
        "gemm": gradient(lambda: cpd.gemm(x, y, stochastic("e4m3"), z, seed=3), x, y, z),
        "linear": gradient(lambda: F.linear(x, y, recipe=recipe), x, y),
        "conv2d": gradient(lambda: F.conv2d(image, kernel, recipe=recipe), image, kernel),
        "native linear": gradient(lambda: F.linear(x, y, recipe=native), x, y),
        "native conv2d": gradient(lambda: F.conv2d(images, kernels, recipe=native), kernels),
        "attention": gradient(
            lambda: F.scaled_dot_product_attention(x, y, z, recipe=cpd.Recipe("bf16")), x, y, z
        ),
        "a model by nvfp4": trained("nvfp4"),
        "a model by te-delayed": trained("te-delayed"),
        "jvp of mul": lambda: torch.func.jvp(lambda x: cpd.mul(x, x, "e4m3"), (t,), (t,)),
        "jvp of gemm": lambda: torch.func.jvp(lambda x: cpd.gemm(x, x, "e4m3"), (t,), (t,)),
        "grad of cast": lambda: torch.func.grad(lambda x: cpd.cast(x, "e4m3").sum())(t),
        "vmap of cast scaled": lambda: torch.vmap(lambda x: cpd.cast(x, "nvfp4"))(t),
        "vmap of sum": lambda: torch.vmap(lambda x: cpd.sum(x, "e4m3"))(t),
    }


LONG = ("attention", "native conv2d", "a model by nvfp4", "a model by te-delayed")


def check(run, calls: int) -> None:
    heap, blocks = growth(run, calls)
    in_round = calls // ROUNDS
    assert heap < min(SPARE_BYTES * in_round, MOST_BYTES), f"{in_round} calls keep {heap} bytes"
    assert blocks < min(in_round / 2, MOST_BLOCKS), (
        f"{in_round} calls keep {blocks} of Python's blocks"
    )


pytestmark = pytest.mark.skipif(not has_mallinfo2(), reason="this C library has no mallinfo2")


ALL = pytest.param(ALL_CALLS, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)])


@pytest.mark.parametrize("calls", [CALLS, ALL])
@pytest.mark.parametrize("operation", list(forward()))
def test_calls_keep_no_memory(operation, calls):
    check(forward()[operation], calls)


@pytest.mark.few("", 4)
@pytest.mark.parametrize("calls", [CALLS, ALL])
@pytest.mark.parametrize("operation", list(backward()))
def test_gradients_keep_no_memory(operation, calls):
    fewer = 4 if operation in LONG and calls == CALLS else 1
    check(backward()[operation], calls // fewer)


def test_refused_calls_keep_no_memory():
    """A call that an operator refuses late releases the memory that it allocated before."""
    x = torch.full((2, 2), float("nan"))

    def run():
        with pytest.raises(ValueError, match="NaN"):
            cpd.encode(x, "e2m1")

    check(run, CALLS)


def test_the_heap_is_watched():
    """The measurement detects a leak: each call here leaks a few bytes on purpose."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    kept = []
    heap, blocks = growth(lambda: kept.append(libc.malloc(24)), 800)
    assert heap >= 100 * 32
    assert blocks > 50
    for address in kept:
        libc.free(address)
