# SPDX-License-Identifier: Apache-2.0
"""Defines `Sum`, the rule of a sum of products, and multiplies torch tensors by such a rule.

A `Sum` is an accumulator with the seed and stream of one call, or the sum of torch's own kernel.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cpd._torch.arguments import name_of
from cpd._torch.derivatives import run
from cpd._torch.library import ops
from cpd._torch.native import Factor, as_factor, product_of_factors
from cpd.numeric.accumulator import parsed
from cpd.numeric.compiling import constant
from cpd.numeric.purposes import Purpose
from cpd.numeric.streams import stream_tag
from cpd.ops.arguments import holds
from cpd.ops.slow import warn_if_slow

NATIVE = "native"
"""The text of a sum that torch's own kernel computes. Other sums have an accumulator's text."""

Ints = Sequence[int]


def tagged(stream: Tensor, purpose: Purpose) -> Tensor:
    """Returns the stream of random bits for `purpose`: the call's stream XOR the purpose's tag."""
    return stream ^ stream_tag(purpose)


class Sum(NamedTuple):
    """The rule of a product's sums: an accumulator's text or `NATIVE`, with seed and stream."""

    text: str
    seed: Tensor | None
    stream: Tensor | None

    def into(self, dtype: torch.dtype) -> torch.dtype:
        """Returns `dtype` if it represents all results of the accumulator, else float32."""
        if self.is_native():
            return dtype
        return dtype if holds(name_of(dtype), parsed(self.text).format.name) else torch.float32

    def is_native(self) -> bool:
        """Returns whether torch's own kernel (`NATIVE`) computes the product."""
        return self.text == NATIVE

    def is_stochastic(self) -> bool:
        return not self.is_native() and parsed(self.text).rounding == "stochastic"

    def drawing(self, purpose: Purpose) -> Sum:
        """Returns a copy of this rule with the random stream of `purpose`."""
        if self.stream is None:
            return self
        return self._replace(stream=tagged(self.stream, purpose))

    def swapped(self) -> Sum:
        """Returns the accumulator for the transposed product bᵀ aᵀ, with exchanged operands."""
        return self if self.is_native() else self._replace(text=_swapped(self.text))

    def of_terms(self) -> Sum:
        """Returns the accumulator for a sum of plain terms instead of products.

        Only additions are rounded.
        """
        return self if self.is_native() else self._replace(text=_of_terms(self.text))


@constant
def _of_terms(text: str) -> str:
    return parsed(text)._held.of_terms().text


@constant
def _swapped(text: str) -> str:
    return parsed(text)._held.swapped().text


def product(
    a: Tensor | Factor,
    b: Tensor | Factor,
    c: Tensor | None,
    summation: Sum,
    dtype: torch.dtype,
    blas: bool = False,
) -> Tensor:
    """Computes a @ b + c by the operator gemm, or by torch's own kernels (`cpd._torch.native`).

    If `dtype` does not represent all values of the accumulator, gemm's float32 result is rounded
    once more, to nearest-even. Only torch's own kernels support operands with a separate scale.
    """
    if summation.is_native():
        return product_of_factors(as_factor(a), as_factor(b), c, dtype)
    a, b = as_factor(a).values, as_factor(b).values
    if a.is_cpu:
        warn_if_slow(parsed(summation.text), a, b)
    y = run(
        "gemm",
        a,
        b,
        c,
        summation.text,
        summation.seed,
        summation.stream,
        summation.into(dtype),
        blas,
        None,
    )
    return of_type(y, dtype)


class Part(NamedTuple):
    """The position of a tile in a larger matrix product.

    The tile's random bits depend on the position.
    """

    element: int = 0
    """The index of the tile's first element, in row-major order of the larger product."""
    product: int = 0
    """The first summed index k of the tile, if the tile's sums continue from the partial sum c."""


def product_part(
    a: Tensor, b: Tensor, c: Tensor | None, summation: Sum, dtype: torch.dtype, part: Part
) -> Tensor:
    """Computes a tile of a larger matrix product; `part` is the tile's position.

    The results have the bits that they have in the larger product, also with stochastic rounding.
    """
    if not summation.is_stochastic():
        return product(a, b, c, summation, dtype)
    if a.is_cpu:
        warn_if_slow(parsed(summation.text), a, b)
    y = ops.gemm_part(
        a, b, c, summation.text, summation.seed, summation.stream, summation.into(dtype), *part
    )
    return y.to(dtype)


def of_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns `x` in the type `dtype`; `x` itself, without a call of torch, if it has this type."""
    return x if x.dtype == dtype else x.to(dtype)
