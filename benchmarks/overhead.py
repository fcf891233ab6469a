# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `overhead/…`: the time of a call whose arrays are small. Checks the bits, then
compares the time in µs with torch's own multiplication of 8 elements."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from timing import Row, Work, seconds

import cpd

UNIT = "µs"
MULTIPLICATION = 1.1  # µs: what bars are compared with
SHORT = 0.001  # seconds of one try; so short, the machine's other work falls between tries
TRIES = 20
LONGEST = 6.0  # seconds of a row's turns

GIVEN = [0.3, 1.0, 1.0625, -3.3, 17.0, 100.0, 1e-9, -240.0]
ROUNDED = [0.3125, 1.0, 1.0, -3.25, 16.0, 96.0, 0.0, -240.0]  # to e4m3


@dataclass(frozen=True)
class Call:
    """One row."""

    name: str
    work: Callable[[], Any]
    wanted: list[Any]
    bar: float | None = None  # µs
    above: Work | None = None  # its time does not count


def numpy_calls() -> Iterator[Call]:
    x, a = np.array(GIVEN, np.float32), np.ones((8, 8), np.float32)
    out = np.empty_like(x)
    yield from eager_calls("numpy", x, a, out, cast=3, into=10, gemm=3)
    codec, reduce, comm = cpd.Codec("e4m3"), cpd.Reduce("e4m3"), cpd.comm.local(1).ranks[0]
    twice = [2 * value for value in ROUNDED[:-1]] + [-math.inf]
    yield Call("numpy/codec/encode", lambda: codec.encode(x).values, ROUNDED)
    yield Call("numpy/all_reduce", lambda: comm.all_reduce([x], reduce)[0], ROUNDED)
    yield Call(
        "numpy/all_reduce/virtual",
        lambda: cpd.simulate_all_reduce([[x], [x]], reduce)[0],
        twice,
    )


def torch_calls() -> Iterator[Call]:
    x, a = torch.tensor(GIVEN), torch.ones(8, 8)
    yield from eager_calls("torch", x, a, torch.empty_like(x), cast=8, into=10, gemm=8)
    leaf = torch.tensor(GIVEN, requires_grad=True)
    f = cpd.Format("e4m3")
    yield Call("torch/cast/grad", lambda: cpd.cast(leaf, f).detach(), ROUNDED)
    quantize = cpd.quantizer("e4m3", "e5m2")
    yield Call("torch/quantizer", lambda: quantize(leaf).detach(), ROUNDED)
    layer = torch.nn.Linear(8, 8, bias=False)
    torch.nn.init.ones_(layer.weight)
    cpd.convert(layer, "mxfp8")
    rows = torch.ones(8, 8, requires_grad=True)
    eights = [[8.0] * 8] * 8

    def step() -> torch.Tensor:
        return torch.autograd.grad(layer(rows).sum(), (rows, layer.weight))[0]

    product = cpd.functional.matmul
    yield Call("torch/matmul", lambda: product(a, a, sums="e6m9"), eights)
    yield Call("torch/linear", lambda: layer(rows).detach(), eights)
    yield Call("torch/linear/step", step, eights)
    rounding = torch.compile(lambda x: cpd.cast(x, f) + 0, fullgraph=True)
    trivial = torch.compile(lambda x: x + 0, fullgraph=True)
    yield Call("compiled/cast", lambda: rounding(x), ROUNDED, 14, lambda: trivial(x))


def eager_calls(
    front_end: str, x: Any, a: Any, out: Any, cast: float, into: float, gemm: float
) -> Iterator[Call]:
    """Yields the calls to measure on the arrays of one library. `cast`, `into` and `gemm` are
    limits in µs for a cast, a cast with `out=` and a product."""
    f, acc, drawing = cpd.Format("e4m3"), cpd.Accumulator("e6m9"), cpd.Cast("e4m3 stochastic")
    eights = [[8.0] * 8] * 8
    values = np.array(GIVEN, np.float32)
    codes, drawn = cpd.encode(values, f).tolist(), cpd.cast(values, drawing, seed=3).tolist()
    scaled, mx = cpd.cast(values, "mxfp8").tolist(), cpd.Scaled("mxfp8")
    yield Call(f"{front_end}/cast", lambda: cpd.cast(x, f), ROUNDED, cast)
    yield Call(f"{front_end}/cast/text", lambda: cpd.cast(x, "e4m3"), ROUNDED, cast)
    yield Call(f"{front_end}/cast/out", lambda: cpd.cast(x, f, out=out), ROUNDED, into)
    yield Call(f"{front_end}/cast/seed", lambda: cpd.cast(x, drawing, seed=3), drawn)
    yield Call(f"{front_end}/cast/scaled", lambda: cpd.cast(x, mx), scaled)
    yield Call(f"{front_end}/gemm", lambda: cpd.gemm(a, a, acc), eights, gemm)
    yield Call(f"{front_end}/gemm/text", lambda: cpd.gemm(a, a, "e6m9"), eights, gemm)
    yield Call(f"{front_end}/encode", lambda: cpd.encode(x, f), codes)
    yield Call(f"{front_end}/sum", lambda: cpd.sum(a, f, 0), [8.0] * 8)
    yield Call(f"{front_end}/mul", lambda: cpd.mul(a, a, f), [[1.0] * 8] * 8)


def fastest(work: Work) -> float:
    """Returns the time of one call in µs: the minimum of some short tries."""
    calls = max(1, round(SHORT / max(seconds(work), 1e-6)))
    return min(seconds(work, calls) for _ in range(TRIES)) * 1e6


def row(call: Call, options: Namespace) -> Row:
    name = f"overhead/{call.name}"
    if call.work().tolist() != call.wanted:
        return {"name": name, "wrong": "the result is not the known one"}
    x = torch.tensor(GIVEN)
    values, baselines, ratios = [], [], []
    begin = time.perf_counter()
    for turn in range(options.repeats):
        if turn >= 3 and time.perf_counter() - begin > LONGEST:
            break
        baselines.append(fastest(lambda: x * x))
        values.append(fastest(call.work) - (fastest(call.above) if call.above else 0))
        ratios.append(baselines[-1] / values[-1])
    fields = {
        "name": name,
        "value": round(median(values), 3),
        "unit": UNIT,
        "against": "torch's multiplication",
        "baseline": round(median(baselines), 3),
        "ratio": round(median(ratios), 4),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
        "best": round(min(values), 3),
    }
    if call.bar is not None:
        fields["bar"] = round(MULTIPLICATION / call.bar, 4)
    return fields


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, measured on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for calls in (numpy_calls, torch_calls):
            for call in calls():
                if options.selection.wants(f"overhead/{call.name}"):
                    yield row(call, options)
    finally:
        torch.set_num_threads(threads)
