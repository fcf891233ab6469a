# SPDX-License-Identifier: Apache-2.0
"""Whether a product's bits are right: sampled sums against exact rationals (tests/python), and the
backends' results against one another."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import cpd
from cpd import _core

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
import gemm_oracle
from arrays import spec_of
from oracle import Options

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

STEPS = 6_000  # of the oracle for one product: so many values of k in all its samples together
STRIP = 16  # rows of the result where a slow backend computes no more


def check(
    multiply: Multiply, acc: cpd.Accumulator, a: torch.Tensor, b: torch.Tensor, seed: int
) -> str:
    """What is wrong with the product on some backend; empty where nothing is."""
    first: torch.Tensor | None = None
    for backend in reversed(_core.backends()):
        _core.force_backend(backend)
        try:
            out = multiply(a[:STRIP] if backend == "scalar" else a, b)
        finally:
            _core.force_backend("")
        if first is None:
            first = out
            wrong = _wrong_sample(acc, a, b, out, seed)
            if wrong:
                return f"{backend} {wrong}"
        elif not equal(out, first[: len(out)]):
            return f"{backend} differs from another backend"
    return ""


def check_cuda(
    multiply: Multiply, acc: cpd.Accumulator, a: torch.Tensor, b: torch.Tensor, seed: int
) -> str:
    """What is wrong with the product on the GPU: samples, and its first rows beside the CPU's."""
    out = multiply(a.cuda(), b.cuda()).cpu()
    wrong = _wrong_sample(acc, a, b, out, seed)
    if wrong:
        return wrong
    return "" if equal(multiply(a[:STRIP], b), out[:STRIP]) else "differs from the CPU"


def check_near(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str:
    """For sums of any order in fp32: the error bound K · 2^-23 Σ|a·b|."""
    bound = a.shape[1] * 2.0**-23 * (a.double().abs() @ b.double().abs())
    near = (out.double() - a.double() @ b.double()).abs() <= bound
    return "" if near.all() else "is off by more than rounding"


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(x.view(torch.int32), y.view(torch.int32))


def _samples(m: int, k: int, n: int, seed: int) -> Iterator[tuple[int, int]]:
    """The corners, and some places more."""
    yield from ((0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1))
    draw = random.Random(seed)
    for _ in range(max(4, STEPS // k - 4)):
        yield draw.randrange(m), draw.randrange(n)


def _wrong_sample(
    acc: cpd.Accumulator, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, seed: int
) -> str:
    described = _described(acc)
    m, n = out.shape
    for i, j in _samples(m, a.shape[1], n, seed):
        right = gemm_oracle.element(_patterns(a[i]), _patterns(b[:, j]), None, described, i * n + j)
        if _patterns(out[i, j : j + 1]) != [right]:
            return f"differs from the oracle at {i}, {j}"
    return ""


def _patterns(x: torch.Tensor) -> list[int]:
    patterns: list[int] = (x.contiguous().view(torch.int32).long() & 0xFFFFFFFF).tolist()
    return patterns


# ---- an accumulator in the oracle's words ------------------------------------------------------


def _described(acc: cpd.Accumulator) -> gemm_oracle.Accumulation:
    return gemm_oracle.Accumulation(
        format=spec_of(acc.format),
        scheme=acc.scheme,
        product=acc.product if isinstance(acc.product, str) else spec_of(acc.product),
        inner=spec_of(acc.inner),
        chunk=acc.chunk,
        unit=None if acc.unit is None else _unit(acc.unit),
        options=Options(acc.rounding, acc.overflow, acc.variant, acc.random_bits),
        seed=int(acc.seed),
        stream=int(acc.stream),
    )


def _unit(unit: cpd.BlockFma) -> gemm_oracle.Unit:
    return gemm_oracle.Unit(
        a=spec_of(unit.a),
        b=spec_of(unit.b),
        block=unit.block,
        fraction_bits=unit.fraction_bits,
        sum=spec_of(unit.sum),
        rounding=unit.rounding,
        aligns_addend=unit.aligns_addend,
        min_exponent=unit.min_exponent,
        promote=unit.promote,
    )
