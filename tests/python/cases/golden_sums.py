# SPDX-License-Identifier: Apache-2.0
"""Golden cases of ordered sums and matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

import cpd
from golden import Cases, Make, bfloat16, floats, halves, integers, points

SCHEMES = ("sequential", "kahan", "chunked chunk=3", "chunked chunk=16 inner=e5m2", "pairwise")
FORMATS = (
    "e4m3",
    "e3m0",
    "e4m3fn",
    "e5m2fnuz",
    "binary8p4se",
    "e5m2:nosub",
    "e6m9",
    "bf16",
    "fp32",
)
ROUNDINGS = ("toward_zero", "up", "to_odd", "nearest_away", "stochastic random_bits=8")


def sum_cases(make: Make) -> Cases:
    x = floats((37, 5), 50, -3, 1)
    for name in FORMATS:
        for scheme in SCHEMES:
            yield f"{name} {scheme}", cpd.sum(make(x), f"{name} {scheme}", 0)
    for scheme in SCHEMES:
        for rounding in ROUNDINGS:
            acc = cpd.Accumulator(f"e4m3 {scheme} rounding={rounding}")
            yield f"{acc}", cpd.sum(make(x), acc, 0, seed=3, stream=2**40)
        acc = cpd.Accumulator(f"e3m4 {scheme} rounding=stochastic random_bits=5 variant=B")
        given = make(integers((5, acc.sum_integers(37)), 51, 5))
        yield f"{acc} random given", cpd.sum(make(x), acc, 0, random=given)
        yield f"{scheme} specials", cpd.sum(make(points(cpd.Format("e4m3"))), f"e4m3 {scheme}")
        yield f"{scheme} saturate", cpd.sum(make(x * 64), f"e4m3fn {scheme} overflow=saturate", 0)
        for kind in (np.float16, bfloat16(), np.float64):
            narrow = make(x.astype(kind))
            yield f"{scheme} {np.dtype(kind).name}", cpd.sum(narrow, f"e4m3 {scheme}", 0)
    for dim in (0, 1, -1):
        y = make(floats((6, 9, 8), 52)[:, ::2].transpose(2, 0, 1))
        yield f"strided {dim}", cpd.sum(y, "e5m2 kahan", dim)
    for n in (0, 1, 2):
        yield f"{n} terms", cpd.sum(make(x[:n]), "e4m3", 0)


def accumulators() -> list[Any]:
    """Returns what products are summed in."""
    texts = [f"{name} {scheme}" for name in FORMATS for scheme in (*SCHEMES, "fma")]
    texts += [f"e4m3 {scheme} rounding={rounding}" for scheme in SCHEMES for rounding in ROUNDINGS]
    texts += [f"e6m9 fma rounding={rounding}" for rounding in ROUNDINGS]
    texts += [
        *("e5m10 sequential product=e4m3", "e6m9 chunked product=exact chunk=8 inner=e5m5"),
        *("e8m11 kahan product=exact", "e4m3fn sequential overflow=saturate", "fp16 pairwise"),
        *("tf32 sequential product=bf16", "e8m0 sequential", "e4m3:unsigned sequential"),
    ]
    return texts


def gemm_cases(make: Make) -> Cases:
    a, b, c = floats((3, 70), 60, -3, 1), floats((70, 5), 61, -3, 1), floats((3, 5), 62)
    for text in accumulators():
        yield f"{text}", cpd.gemm(make(a), make(b), text, make(c), seed=7, stream=11)
    for f in ("e4m3", "e6m9", "fp32"):
        for scheme in ("sequential", "fma", "kahan", "chunked", "pairwise"):
            large = make(floats((17, 129), 63)), make(floats((129, 33), 64))
            yield f"17x129x33 {f} {scheme}", cpd.gemm(*large, f"{f} {scheme}")
    yield from _units(make)
    yield from _layouts(make)


def _units(make: Make) -> Cases:
    """Matrix units."""
    for preset in cpd.Accumulator.named():
        for outputs in ("fp32", "fp16"):
            try:
                acc = cpd.Accumulator(outputs, scheme=preset)
            except ValueError:
                continue
            assert acc.form == "unit"
            a = cpd.cast(floats((4, 200), 65, -8, 4), acc.a)
            b = cpd.cast(floats((200, 3), 66, -8, 4), acc.b)
            yield f"{preset} {outputs}", cpd.gemm(make(a), make(b), acc)
    a, b = cpd.cast(floats((4, 96), 67), "e5m2"), cpd.cast(floats((96, 3), 68), "e4m3fn")
    mixed = cpd.Accumulator("h100-fp8", a="e5m2", b="e4m3fn")
    yield "h100-fp8 e5m2 e4m3fn", cpd.gemm(make(a), make(b), mixed, make(floats((4, 3), 69)))
    for index, options in enumerate(
        (
            {"block": 8, "fraction_bits": 12},
            {"block": 5, "fraction_bits": 9, "addend": "separate", "sum_rounding": "nearest_even"},
            {"block": 16, "fraction_bits": 20, "min_exponent": -5, "promote": 32, "sum": "e8m11"},
        )
    ):
        unit = cpd.Accumulator(a="e5m2", b="e4m3fn", **options)  # type: ignore[arg-type]
        yield f"unit {index}", cpd.gemm(make(a), make(b), unit)


def _layouts(make: Make) -> Cases:
    yield (
        "broadcast",
        cpd.gemm(make(floats((2, 1, 4, 6), 70)), make(floats((3, 6, 5), 71)), "e4m3 kahan"),
    )
    a, b = floats((14, 12), 72)[::2].T, floats((5, 14), 73).T[::2]
    yield "strided", cpd.gemm(make(a), make(b), "e5m2 chunked chunk=2", make(floats((5,), 74)))
    for m, k, n in ((0, 3, 2), (2, 0, 3), (1, 1, 1), (1, 64, 1)):
        y = cpd.gemm(make(floats((m, k), 75)), make(floats((k, n), 76)), "e4m3")
        yield f"{m}x{k}x{n}", y
    for kind in (np.float16, bfloat16()):
        a, b = (np.nan_to_num(halves(60, seed, kind).astype(np.float32)) for seed in (77, 78))
        a, b = (np.clip(x, -8, 8).astype(kind) for x in (a, b))
        y = cpd.gemm(make(a.reshape(6, 10)), make(b.reshape(10, 6)), "e4m3 kahan")
        yield f"{np.dtype(kind).name}", y
    f = cpd.Format("e4m3")
    a, b = points(f, 79)[:240], points(f, 80)[:240]
    for scheme in SCHEMES:
        y = cpd.gemm(make(a.reshape(24, 10)), make(b.reshape(10, 24)), f"e4m3 {scheme}")
        yield f"points {scheme}", y
        acc = cpd.Accumulator(f"e3m4 {scheme} rounding=stochastic random_bits=5 variant=C")
        x, y = floats((3, 9), 81), floats((9, 2), 82)
        given = make(integers((3, 2, acc.gemm_integers(9)), 83, 5))
        yield f"{acc} random given", cpd.gemm(make(x), make(y), acc, random=given)
