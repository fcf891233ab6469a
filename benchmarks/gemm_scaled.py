# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `gemm/scaled/block<B>/<format>/<size>`: products whose operands have one scale
for every B values of k. Checks the bits, then compares the rate in GMAC/s with the same scheme
without scales."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

import gemm
import gemm_bits
import torch
from timing import Row, Side, timed

import cpd
import gemm_oracle
from arrays import accumulation_of
from cpd import _core

BARS = {128: 0.85, 32: 0.7}  # against the scheme without scales


@dataclass(frozen=True)
class Case:
    """One row: a product of gemm.py, and the number of values of k that share a scale."""

    plain: gemm.Case
    block: int
    bar: float | None = None

    @property
    def name(self) -> str:
        return self.plain.name.replace(
            f"gemm/{self.plain.scheme}",
            f"gemm/scaled/block{self.block}"
            + ("" if self.plain.scheme == "sequential" else f"/{self.plain.scheme}"),
        )


def cases() -> Iterator[Case]:
    for block, bar in BARS.items():
        for n in (512, 1024):
            for f in ("e4m3", "e5m2"):
                yield Case(gemm.Case("sequential", f, gemm.cube(n)), block, bar)
        for scheme in ("fma", "kahan", "stochastic8", "h100-fp8"):
            yield Case(gemm.Case(scheme, "e4m3", gemm.cube(512)), block)


@dataclass(frozen=True)
class Scaled:
    """The operands and their scales."""

    case: Case
    a: torch.Tensor
    b: torch.Tensor
    a_scales: torch.Tensor
    b_scales: torch.Tensor

    @classmethod
    def make(cls, case: Case, seed: int) -> Scaled:
        a, b = gemm.operands(case.plain, seed)
        random = torch.Generator().manual_seed(seed + 1)
        parts = -(-a.shape[1] // case.block)
        shapes = (a.shape[0], parts), (parts, b.shape[1])
        return cls(case, a, b, *(torch.rand(shape, generator=random) + 0.5 for shape in shapes))

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Returns the product of some rows of a with all of b."""
        out = torch.empty(a.shape[0], b.shape[1])
        _core.gemm_scaled(
            a.numpy(),
            (self.a_scales[: a.shape[0]].numpy(), self.case.block, 1, None),
            b.numpy(),
            (self.b_scales.numpy(), self.case.block, 1, None),
            self.case.plain.accumulator._held,
            False,
            out.numpy(),
        )
        return out

    def right(self, i: int, j: int) -> int:
        """Returns the bits that the oracle gives for element (i, j) of the product."""
        block = self.case.block
        a, b = (
            gemm_bits.patterns(x.repeat_interleave(block)[: self.a.shape[1]])
            for x in (self.a_scales[i], self.b_scales[:, j])
        )
        return gemm_oracle.scaled_element(
            gemm_bits.patterns(self.a[i]),
            gemm_bits.patterns(self.b[:, j]),
            None,
            accumulation_of(self.case.plain.accumulator),
            gemm_oracle.Scales(a, b, block),
            i * self.b.shape[1] + j,
        )

    def wrong_bits(self, seed: int) -> str:
        acc = self.case.plain.accumulator
        with gemm.setting("", 1):
            return gemm_bits.check(self.multiply, acc, self.a, self.b, seed, self.right)


def row(case: Case, options: Namespace) -> Row:
    scaled = Scaled.make(case, options.seed)
    wrong = scaled.wrong_bits(options.seed)
    if wrong:
        return {"name": case.name, "wrong": wrong}
    macs = case.plain.macs
    with gemm.setting("", 1):
        work = Side(lambda: scaled.multiply(scaled.a, scaled.b), macs)
        baseline = Side(lambda: case.plain.multiply(scaled.a, scaled.b), macs)
        timing = timed(case.name, gemm.UNIT, work, "without scales", baseline, options.repeats)
        timing |= {"backend": cpd.backend(), "like": case.plain.name}
    if case.bar is not None and timing["backend"] == "avx512":
        timing["bar"] = case.bar
    return timing


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows as soon as each is measured."""
    for case in cases():
        if options.selection.wants(case.name):
            yield row(case, options)
