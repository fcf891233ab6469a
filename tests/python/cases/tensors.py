# SPDX-License-Identifier: Apache-2.0
"""Helpers that the tests of tensors share: comparison, compilation, random values and recipes."""

from __future__ import annotations

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

NARROW = cpd.Recipe(
    forward="e4m3",
    grad_input="e5m2 kahan",
    grad_weight="e6m9 chunked chunk=5 product=exact",
    grad_bias="e5m3",
    activation="(4,3)",
    weight=cpd.Cast("e3m2", rounding="toward_zero", overflow="saturate"),
    gradient="e5m2",
)
SOME = "e4m3 sequential rounding=stochastic random_bits=8"
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x):
    """Returns the tensor's bits as integers, on the CPU."""
    return x.detach().cpu().contiguous().view(INTEGERS[x.element_size()])


def same(a, b):
    """Returns True if two tensors, or trees of tensors, have equal types, shapes and bits. NaNs
    with the same bits are equal; CPD makes a single NaN pattern."""
    pairs = list(zip(tree_leaves(a), tree_leaves(b), strict=True))
    return bool(pairs) and all(
        p.dtype == q.dtype and p.shape == q.shape and torch.equal(bits(p), bits(q))
        for p, q in pairs
    )


def close(a, b, tolerance=1e-4):
    """Returns True if two tensors, or trees of tensors, have equal shapes and close values. The
    tolerance is both relative and absolute."""
    pairs = list(zip(tree_leaves(a), tree_leaves(b), strict=True))
    return bool(pairs) and all(
        p.shape == q.shape
        and torch.allclose(p.double(), q.double(), rtol=tolerance, atol=tolerance)
        for p, q in pairs
    )


def converted(module, recipe, **options):
    """Converts the module in place, and returns the module."""
    cpd.convert(module, recipe, coverage=False, **options)
    return module


def compiled(function, backend="aot_eager", **options):
    """Returns the function compiled as one graph, and a counter of its compilations."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


def normal(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def wide(*shape, seed=0):
    """Returns random values over many binades, some of them zero."""
    made = normal(*shape, seed=seed) * torch.exp2(7 * normal(*shape, seed=seed + 1))
    return made.masked_fill(normal(*shape, seed=seed + 2) > 1.5, 0)


def leaves_of(*shapes, dtype=torch.float32):
    return [normal(*s, seed=i, dtype=dtype).requires_grad_() for i, s in enumerate(shapes)]
