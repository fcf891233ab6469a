# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `gemm/bf16-products/<type>/<size>`: products of bf16 numbers summed in float32.
Layers with 16-bit operands and native sums use these products on a CPU with AVX-512 BF16.

Checks the bits, then compares the rate in GMAC/s with torch's `mm` of the same operands: bfloat16
tensors, whose product torch rounds to bfloat16, and float32 tensors with the same numbers.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import gemm_bits
import torch
from gemm import UNIT, on_threads, setting
from timing import Row, Side, timed

import cpd
import cpd._torch

SIZES = (512, 1024)
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
BAR = 1.0


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Returns the product in float32, or None if the CPU has no AVX-512 BF16."""
    out = torch.empty(a.shape[0], b.shape[1])
    supported = torch.ops.cpd.product_of_bf16(a[None], b[None], None, None, None, out[None])
    return out if supported else None


def defined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns the product as defined: exact products, and each addition rounded to float32. Adds
    the terms from +0 in the order of k, with each pair of neighbors exchanged. Products of bf16
    numbers are exact in float32, so a fused operation changes no bit."""
    a, b = a.float(), b.float()
    sums = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        j = k ^ 1  # an even depth has no lone last product
        sums += a[:, j : j + 1] * b[j]
    return sums


def row(name: str, dtype: torch.dtype, size: int, options: Namespace) -> Row:
    random = torch.Generator().manual_seed(options.seed)
    a, b = (torch.randn(size, size, generator=random).bfloat16().to(dtype) for _ in range(2))
    with setting("", 1):
        sums = product(a, b)
        if sums is None:
            return {"name": name, "skipped": "this CPU has no AVX-512 BF16"}
        if not gemm_bits.equal(sums, defined(a, b)):
            return {"name": name, "wrong": "sums differ from their definition"}
        work = Side(on_threads(1, lambda: product(a, b)), float(size**3))
        baseline = Side(lambda: torch.mm(a, b), float(size**3))
        against = f"torch {'bf16' if dtype == torch.bfloat16 else 'fp32'} mm"
        measured = timed(name, UNIT, work, against, baseline, options.repeats)
    return measured | {"backend": cpd.backend(), "bar": BAR}


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows. A row with `skipped` gives the reason why it did not
    run."""
    for kind, dtype in TYPES.items():
        for size in SIZES:
            name = f"gemm/bf16-products/{kind}/{size}"
            if options.selection.wants(name):
                yield row(name, dtype, size, options)
