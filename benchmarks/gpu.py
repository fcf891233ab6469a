# SPDX-License-Identifier: Apache-2.0
"""Measures rows on a GPU: casts, codes, sums and products of CUDA tensors. Compares them with
copies in GPU memory, or with torch's fp32 product (cuBLAS, without TF32). First compares the bits
on a part of the data with the CPU's. `differ` of an FP8 layer is the fraction of its results that
differ from torch._scaled_mm's.

    gpu.py [--device cuda] [--out FILE] [--repeats N] [--only TEXT] [--small]

--device cpu tries the same rows on the CPU. Times are measured by events on the stream; a row has
the median of the repeats. Exits 1 if bits are wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from gpu_layers import (
    STEPS,
    TOKENS,
    WIDTHS,
    activations_and_weights,
    fp8_layer,
    scaled_mm,
    share_that_differs,
    step,
    tokens,
)
from store import dumped, made
from timing import Row

import cpd
from cpd._files import write_text
from cpd._torch.operands import parts

Tensors = tuple[torch.Tensor, ...]
Inputs = Callable[[str, int], Tensors]


class Case(NamedTuple):
    """A call, and the amount of work of one call in the row's unit (GB, GMAC, Mtokens)."""

    name: str
    call: Callable[..., torch.Tensor]
    inputs: Callable[[str, int], Tensors]  # by device and size
    size: int
    amount: Callable[[int], float]
    unit: str
    against: str  # the name of another case
    checked: bool = True
    compared: bool = False  # with the results of `against`: the share of values that differ


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


def of_dtype(dtype: torch.dtype) -> Callable[[str, int], Tensors]:
    return lambda device, n: tuple(x.to(dtype) for x in values(device, n))


def stream_calls() -> Iterator[tuple[str, Callable[..., torch.Tensor], Inputs, float]]:
    """Yields one tuple for each benchmark row of an operation on arrays.

    The tuple holds the row's name, the call to measure, a function that makes the call's tensors,
    and the bytes of memory traffic for each value of these tensors."""
    drawn = {f"stochastic{bits}": f"e4m3 stochastic random_bits={bits}" for bits in (8, 24)}
    for form in ("e4m3", "e4m3fnuz", "e4m3:nosub"):
        yield f"cast/{form}", lambda x, f=form: cpd.cast(x, f), values, 8
    for name, to in drawn.items():
        yield f"cast/e4m3/{name}", lambda x, to=to: cpd.cast(x, to, seed=1), values, 8
    for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        yield f"cast/e4m3/{kind}", lambda x: cpd.cast(x, "e4m3"), of_dtype(dtype), 4
        name, to = f"cast/e4m3/{kind}/stochastic8", drawn["stochastic8"]
        yield name, lambda x, to=to: cpd.cast(x, to, seed=1), of_dtype(dtype), 4
    yield "encode/e4m3", lambda x: cpd.encode(x, "e4m3"), values, 5
    yield "decode/e4m3", lambda x: cpd.decode(x, "e4m3", tuple(x.shape)), codes, 5
    for form in ("mxfp8", "nvfp4"):
        yield f"cast/{form}", lambda x, f=form: cpd.cast(in_rows(x), f), values, 8
    for form in ("mxfp8", "fp8-block"):
        yield f"cast/{form}/first", lambda x, f=form: cpd.cast(in_rows(x), f, axis=0), values, 8
        yield f"cast/{form}/both", lambda x, f=form: cast_both(in_rows(x), f), values, 12
    yield "cast/nvfp4/first/stochastic", stochastic_columns, values, 8
    yield "encode/mxfp8", lambda x: cpd.encode(in_rows(x), "mxfp8")[0], values, 5
    yield "add/e4m3", lambda x: cpd.add(x, x, "e4m3"), values, 8
    yield "sum/e4m3/first", lambda x: cpd.sum(x.view(256, -1), "e4m3", axis=0), values, 4
    yield "sum/e4m3/last", lambda x: cpd.sum(x.view(-1, 256), "e4m3", axis=1), values, 4
    yield "all_reduce/e4m3/kahan/16", folded_16, values, 4


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` as a matrix with 4096 columns, or fewer if x is too small."""
    return x.view(-1, 4096 if x.numel() % 4096 == 0 else 257)


def cast_both(x: torch.Tensor, form: str) -> torch.Tensor:
    """Casts x in blocks of a row and in blocks of a column, in one pass. A layer's backward pass
    needs both casts of a gradient."""
    _, scaled, element_cast, *_ = parts(form)
    both: torch.Tensor = torch.ops.cpd.cast_scaled_both(x, scaled, (-1, -2), element_cast, None)
    return both


def stochastic_columns(x: torch.Tensor) -> torch.Tensor:
    """Casts to NVFP4 in blocks of a column with stochastic rounding."""
    return cpd.cast(in_rows(x), "nvfp4 stochastic random_bits=8", axis=0)


def folded_16(x: torch.Tensor) -> torch.Tensor:
    """Splits x into sixteen ranges of equal length, one for each virtual rank, and returns their
    all-reduce."""
    ranks = [[share] for share in x.view(16, -1)]
    spec = cpd.Reduce("e4m3", accumulator="e4m3 kahan")
    sums: torch.Tensor = cpd.simulate_all_reduce(ranks, spec)[0]
    return sums


def cases(small: bool) -> list[Case]:
    n = 1 << (16 if small else 28)
    side = 96 if small else 4096
    streams = [
        Case("gpu/copy", torch.clone, values, n, moved(8), "GB/s", "gpu/copy", checked=False),
        *(Case(f"gpu/{name}", call, inputs, n, moved(moves), "GB/s", "gpu/copy")
          for name, call, inputs, moves in stream_calls()),
    ]  # fmt: skip
    sums = {
        "e4m3": "e4m3 sequential",
        "e4m3/fma": "e4m3 fma",
        "e4m3/kahan": "e4m3 kahan",
        "e4m3/chunked": "e4m3 chunked",
        "e4m3/pairwise": "e4m3 pairwise",
        "e4m3/stochastic": "e4m3 sequential rounding=stochastic",
        "e4m3/stochastic16": "e4m3 sequential rounding=stochastic random_bits=16",
        "h100-fp8": "h100-fp8",
    }
    slow = {"e4m3/pairwise"}
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
    return [*streams, *fp32, *multiplied, *fp8_cases(side), *step_cases(small)]


def fp8_cases(side: int) -> list[Case]:
    """Returns the cases that time an FP8 layer: by CPD, and by torch._scaled_mm."""
    theirs = "gpu/layer/torch._scaled_mm"
    return [
        Case(name, call, activations_and_weights, side, products, "GMAC/s", theirs, checked=False,
             compared=name != theirs)
        for name, call in (("gpu/layer/te-current", fp8_layer), (theirs, scaled_mm))
    ]  # fmt: skip


def step_cases(small: bool) -> list[Case]:
    """Returns the cases that time training steps, also under autocast. With `small`, layers have
    width 128."""
    count = TOKENS if small else 8192
    steps = [
        Case(f"gpu/step/{recipe}", lambda x, r=recipe: step(x, r), tokens, count,
             lambda n: n / 1e6, "Mtokens/s", "gpu/step/plain", checked=False)
        for recipe in STEPS
    ]  # fmt: skip
    for width in WIDTHS:
        inputs = functools.partial(tokens, width=128 if small else width)
        steps += [
            Case(f"gpu/step/autocast/{width}/{recipe}", lambda x, r=recipe: step(x, r, True),
                 inputs, count, lambda n: n / 1e6, "Mtokens/s",
                 f"gpu/step/autocast/{width}/plain", checked=False)
            for recipe in STEPS
        ]  # fmt: skip
    return steps


def is_right(case: Case, device: str) -> bool:
    """Returns whether the result on a small part of the data has the CPU's bits."""
    size = min(case.size, 160 if case.unit == "GMAC/s" else 256 * 257)
    expected = case.call(*case.inputs("cpu", size))
    actual = case.call(*case.inputs(device, size)).cpu()
    return torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


def seconds(call: Callable[[], object], device: str) -> float:
    """Returns the time of one call, in seconds."""
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
        if case.compared:
            other = next(c for c in every if c.name == case.against)
            results = (c.call(*c.inputs(device, c.size)) for c in (case, other))
            row["differ"] = float(f"{share_that_differs(*results):.3g}")
        value, baseline = rate_of(case.name), rate_of(case.against)
        yield row | {
            "value": float(f"{value:.4g}"),
            "baseline": float(f"{baseline:.4g}"),
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
    all_rows = []
    for row in rows(options.device, options.repeats, options.only, options.small):
        all_rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(
            options.out, dumped(made({"device": name, "torch": torch.__version__}, all_rows))
        )
    return int(any("wrong" in row for row in all_rows))


if __name__ == "__main__":
    sys.exit(main())
