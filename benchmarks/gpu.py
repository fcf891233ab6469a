# SPDX-License-Identifier: Apache-2.0
"""Rows of a GPU: casts, codes, sums and products of its tensors, next to copies in its memory and
torch's fp32 product (cuBLAS, without TF32). Bits are compared with the CPU's first, on a part.

    gpu.py [--device cuda] [--out FILE] [--repeats N] [--only TEXT] [--small]

--device cpu tries the same rows on the CPU. Times are of events on the stream, medians of repeats.
Exits 1 where bits are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from store import dumped, made
from timing import Row

import cpd
from cpd._files import write_text

Tensors = tuple[torch.Tensor, ...]


class Case(NamedTuple):
    """A call, and what one call of it does of the unit, in 10⁹."""

    name: str
    call: Callable[..., torch.Tensor]
    inputs: Callable[[str, int], Tensors]  # by device and size
    size: int
    amount: Callable[[int], float]
    unit: str
    against: str  # the name of another case
    checked: bool = True


def values(device: str, n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    return (torch.randn(n, generator=generator).to(device),)


def codes(device: str, n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    return (torch.randint(0, 256, (n,), generator=generator, dtype=torch.uint8).to(device),)


def matrices(device: str, n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    return tuple(
        cpd.cast(torch.randn(n, n, generator=generator), "e4m3").to(device) for _ in range(2)
    )


def moved(bytes_a_value: float) -> Callable[[int], float]:
    return lambda n: bytes_a_value * n / 1e9


def products(n: int) -> float:
    return n**3 / 1e9


def cases(small: bool) -> list[Case]:
    n = 1 << (16 if small else 28)
    side = 96 if small else 4096
    seed = {"rounding": "stochastic", "seed": 1, "random_bits": 8}
    streams = [
        Case("gpu/copy", torch.clone, values, n, moved(8), "GB/s", "gpu/copy", checked=False),
        Case("gpu/cast/e4m3", lambda x: cpd.cast(x, "e4m3"), values, n, moved(8), "GB/s",
             "gpu/copy"),
        Case("gpu/cast/e4m3fnuz", lambda x: cpd.cast(x, "e4m3fnuz"), values, n, moved(8), "GB/s",
             "gpu/copy"),
        Case("gpu/cast/e4m3/stochastic", lambda x: cpd.cast(x, "e4m3", **seed), values, n, moved(8),
             "GB/s", "gpu/copy"),
        Case("gpu/cast/e4m3/bf16", lambda x: cpd.cast(x.bfloat16(), "e4m3"), values, n, moved(10),
             "GB/s", "gpu/copy"),
        Case("gpu/encode/e4m3", lambda x: cpd.encode(x, "e4m3"), values, n, moved(5), "GB/s",
             "gpu/copy"),
        Case("gpu/decode/e4m3", lambda x: cpd.decode(x, "e4m3", tuple(x.shape)), codes, n, moved(5),
             "GB/s", "gpu/copy"),
        Case("gpu/add/e4m3", lambda x: cpd.add(x, x, "e4m3"), values, n, moved(12), "GB/s",
             "gpu/copy"),
        Case("gpu/sum/e4m3/first", lambda x: cpd.sum(x.view(256, -1), "e4m3 sequential", dim=0),
             values, n, moved(4), "GB/s", "gpu/copy"),
        Case("gpu/sum/e4m3/last", lambda x: cpd.sum(x.view(-1, 256), "e4m3 sequential", dim=1),
             values, n, moved(4), "GB/s", "gpu/copy"),
    ]  # fmt: skip
    sums = {
        "e4m3": "e4m3 sequential",
        "e4m3/fma": "e4m3 fma",
        "e4m3/kahan": "e4m3 kahan",
        "e4m3/chunked": "fp32 chunked inner=e4m3",
        "e4m3/pairwise": "e4m3 pairwise",
        "e4m3/stochastic": "e4m3 sequential rounding=stochastic",
        "h100-fp8": "h100-fp8",
    }
    slow = {"e4m3/pairwise", "e4m3/stochastic"}
    multiplied = [
        Case(f"gpu/gemm/{name}", lambda a, b, acc=acc: cpd.gemm(a, b, acc), matrices,
             side // 4 if name in slow else side, products, "GMAC/s", "gpu/gemm/torch")
        for name, acc in sums.items()
    ]  # fmt: skip
    fp32 = [
        Case("gpu/gemm/torch", torch.matmul, matrices, side, products, "GMAC/s", "gpu/gemm/torch",
             checked=False),
        Case("gpu/gemm/blas", lambda a, b: cpd.gemm(a, b, "fp32 sequential", blas=True), matrices,
             side, products, "GMAC/s", "gpu/gemm/torch", checked=False),
    ]  # fmt: skip
    return [*streams, *fp32, *multiplied]


def is_right(case: Case, device: str) -> bool:
    """On a small part: the CPU's bits."""
    size = min(case.size, 160 if case.unit == "GMAC/s" else 256 * 257)
    expected = case.call(*case.inputs("cpu", size))
    got = case.call(*case.inputs(device, size)).cpu()
    return torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


def seconds(call: Callable[[], object], device: str) -> float:
    """Of one call."""
    if device == "cpu":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def rate(case: Case, device: str, repeats: int) -> float:
    inputs = case.inputs(device, case.size)

    def call() -> object:
        return case.call(*inputs)

    call()
    return case.amount(case.size) / median(seconds(call, device) for _ in range(repeats))


def rows(device: str, repeats: int, only: str, small: bool) -> Iterator[Row]:
    every = cases(small)
    rates: dict[str, float] = {}

    def rate_of(name: str) -> float:
        if name not in rates:
            rates[name] = rate(next(c for c in every if c.name == name), device, repeats)
        return rates[name]

    for case in every:
        if only not in case.name:
            continue
        row: Row = {"name": case.name, "unit": case.unit, "against": case.against}
        if case.checked and not is_right(case, device):
            yield row | {"wrong": "not the CPU's bits"}
            continue
        value, baseline = rate_of(case.name), rate_of(case.against)
        yield row | {
            "value": round(value, 3),
            "baseline": round(baseline, 3),
            "ratio": round(value / baseline, 4),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--small", action="store_true", help="sizes that only try the rows")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu.py: torch sees no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    found = []
    for row in rows(options.device, options.repeats, options.only, options.small):
        found.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.out, dumped(made({"device": name, "torch": torch.__version__}, found)))
    return int(any("wrong" in row for row in found))


if __name__ == "__main__":
    sys.exit(main())
