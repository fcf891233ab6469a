# SPDX-License-Identifier: Apache-2.0
"""Checks the bits of a product: compares sampled sums with exact rational numbers (tests/python),
and the results of all backends with each other."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import cpd
from cpd import _core

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python/oracles"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python/cases"))
import fixed_oracle
import gemm_oracle
from arrays import accumulation_of, fixed_of

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Right = Callable[[int, int], int]

# The oracle computes about STEPS multiply-accumulates to check one product. An element of the
# product takes k of them. At least eight elements are checked.
STEPS = 6_000
STRIP = 16  # rows of the result where a slow backend computes no more


def check(
    multiply: Multiply,
    acc: cpd.Accumulator,
    a: torch.Tensor,
    b: torch.Tensor,
    seed: int,
    right: Right | None = None,
) -> str:
    """Describes what is wrong with the product on some backend. Returns an empty text if nothing is
    wrong. `right` returns the expected element; by default, the element of the plain product."""
    first: torch.Tensor | None = None
    for backend in reversed(_core.backends()):
        _core.force_backend(backend)
        try:
            out = multiply(a[:STRIP] if backend == "scalar" else a, b)
        finally:
            _core.force_backend("")
        if first is None:
            first = out
            wrong = _wrong_sample(right or _plain(acc, a, b, out.shape[1]), a, out, seed)
            if wrong:
                return f"{backend} {wrong}"
        elif not equal(out, first[: len(out)]):
            return f"{backend} differs from another backend"
    return ""


def check_cuda(
    multiply: Multiply, acc: cpd.Accumulator, a: torch.Tensor, b: torch.Tensor, seed: int
) -> str:
    """Describes what is wrong with the product on the GPU. Checks samples, and compares the first
    rows with the CPU's."""
    out = multiply(a.cuda(), b.cuda()).cpu()
    wrong = _wrong_sample(_plain(acc, a, b, out.shape[1]), a, out, seed)
    if wrong:
        return wrong
    return "" if equal(multiply(a[:STRIP], b), out[:STRIP]) else "differs from the CPU"


def check_near(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str:
    """Checks sums in fp32 that may be added in any order, against the error bound K · 2^-23 Σ|a·b|.
    Returns a description of what is wrong, or an empty text."""
    bound = a.shape[1] * 2.0**-23 * (a.double().abs() @ b.double().abs())
    near = (out.double() - a.double() @ b.double()).abs() <= bound
    return "" if near.all() else "is off by more than rounding"


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(x.view(torch.int32), y.view(torch.int32))


def _samples(m: int, k: int, n: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yields the indices of the corners of the m x n result, and of some random elements."""
    yield from ((0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1))
    draw = random.Random(seed)
    for _ in range(max(4, STEPS // k - 4)):
        yield draw.randrange(m), draw.randrange(n)


def _plain(acc: cpd.Accumulator, a: torch.Tensor, b: torch.Tensor, n: int) -> Right:
    if acc.form == "integer":
        integer = fixed_of(acc)
        return lambda i, j: fixed_oracle.dot(patterns(a[i]), patterns(b[:, j]), None, integer)[0]
    described = accumulation_of(acc)
    return lambda i, j: gemm_oracle.element(
        patterns(a[i]), patterns(b[:, j]), None, described, i * n + j
    )


def _wrong_sample(right: Right, a: torch.Tensor, out: torch.Tensor, seed: int) -> str:
    m, n = out.shape
    for i, j in _samples(m, a.shape[1], n, seed):
        if patterns(out[i, j : j + 1]) != [right(i, j)]:
            return f"differs from the oracle at {i}, {j}"
    return ""


def patterns(x: torch.Tensor) -> list[int]:
    """Returns the elements' bit patterns."""
    bits: list[int] = (x.contiguous().view(torch.int32).long() & 0xFFFFFFFF).tolist()
    return bits
