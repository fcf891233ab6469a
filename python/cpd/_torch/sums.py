# SPDX-License-Identifier: Apache-2.0
"""Sums of products on torch tensors.

A sum is an accumulator with the random bits of one call, or torch's own kernel.
"""

# torch's registries are untyped.
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
"""The text of the sum of torch's own kernel."""

Ints = Sequence[int]


def tagged(stream: Tensor, purpose: Purpose) -> Tensor:
    """Returns the stream for a purpose, made from a call's."""
    return stream ^ stream_tag(purpose)


class Sum(NamedTuple):
    """An accumulator, by its text, and the tensors of its random bits."""

    text: str
    seed: Tensor | None
    stream: Tensor | None

    def into(self, dtype: torch.dtype) -> torch.dtype:
        """`dtype` where it holds the sums, else float32."""
        if self.is_native():
            return dtype
        return dtype if holds(name_of(dtype), parsed(self.text).format.name) else torch.float32

    def is_native(self) -> bool:
        """Returns whether torch's own kernel forms them."""
        return self.text == NATIVE

    def is_stochastic(self) -> bool:
        return not self.is_native() and parsed(self.text).rounding == "stochastic"

    def drawing(self, purpose: Purpose) -> Sum:
        """Returns the sum with the random bits of another purpose."""
        if self.stream is None:
            return self
        return self._replace(stream=tagged(self.stream, purpose))

    def swapped(self) -> Sum:
        """Returns the sum for the transposed product, whose operands are exchanged."""
        return self if self.is_native() else self._replace(text=_swapped(self.text))

    def of_terms(self) -> Sum:
        """Returns the sum for terms that are not products: only the additions round them."""
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
    """Computes c + a b by gemm, or by torch's own kernels (`cpd._torch.native`).

    gemm's result is rounded once more to nearest-even if `dtype` does not hold its sums. Only
    torch's kernels take factors with a scale.
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
    """The place of a product in a larger one, on which its random bits depend."""

    element: int = 0
    """The number of the first element, in the whole's row-major order."""
    product: int = 0
    """The number of a sum's first product, where it goes on from c."""


def product_part(
    a: Tensor, b: Tensor, c: Tensor | None, summation: Sum, dtype: torch.dtype, part: Part
) -> Tensor:
    """`product` of a part of a larger product, with the bits that it has in the whole."""
    if not summation.is_stochastic():
        return product(a, b, c, summation, dtype)
    if a.is_cpu:
        warn_if_slow(parsed(summation.text), a, b)
    y = ops.gemm_part(
        a, b, c, summation.text, summation.seed, summation.stream, summation.into(dtype), *part
    )
    return y.to(dtype)


def of_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x.to(dtype), without the call where x has that type."""
    return x if x.dtype == dtype else x.to(dtype)
