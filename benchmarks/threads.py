# SPDX-License-Identifier: Apache-2.0
"""Measures how much faster operations on arrays are with two threads than with one.

These are the benchmark rows named `…/threads2`. The same call runs with two threads and with one
thread in turn. The results of the two calls must have the same bits. gemm.py measures the rows
`…/threads2` of matrix products."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gemm
import numpy as np
from timing import Row, Side, timed

import cpd

THREADS = 2
BAR = 1.7
RANKS = 256
COLUMNS = 4096
CODECS = ("int8_rows", "qsgd bits=4 bucket=512", "one_bit", "top_k 0.01")


@dataclass(frozen=True)
class Call:
    """One row: its name, the call to time, and bytes for each value of the array. The row's rate
    counts `counted` bytes; the call reads and writes at least `moved` bytes."""

    name: str
    work: Callable[[], Any]
    counted: float
    moved: float

    @property
    def row(self) -> str:
        return f"{self.name}/threads{THREADS}"


def calls(x: np.ndarray[Any, np.dtype[np.float32]]) -> Iterator[Call]:
    """Yields a call of each measured operation. All calls take the array x."""
    out, codes = np.empty_like(x), cpd.encode(x, "e4m3")
    drawn = {"seed": 1, "stream": 2}
    yield Call("cast/nearest_even/e4m3", lambda: cpd.cast(x, "e4m3", out=out), 8, 8)
    yield Call("cast/nearest_even/bf16", lambda: cpd.cast(x, "bf16", out=out), 8, 8)
    yield Call(
        "cast/stochastic8/e4m3",
        lambda: cpd.cast(x, "e4m3 stochastic random_bits=8", out=out, **drawn),
        8,
        8,
    )  # type: ignore[type-var]
    yield Call("encode/e4m3", lambda: cpd.encode(x, "e4m3"), 5, 5)
    yield Call("decode/e4m3", lambda: cpd.decode(codes, "e4m3", x.shape, out=out), 5, 5)
    rows = x.reshape(-1, COLUMNS)
    yield Call(
        "scaled/cast/mxfp8", lambda: cpd.cast(rows, "mxfp8", out=out.reshape(rows.shape)), 8, 8
    )
    terms = x.reshape(RANKS, -1)
    yield Call(f"fold/{RANKS}", lambda: cpd.sum(terms, "e4m3", 0), 4, 4)
    yield Call("sum/last_axis", lambda: cpd.sum(rows, "e4m3", -1), 4, 4)
    yield Call("add/e4m3", lambda: cpd.add(x, x, "e4m3"), 8, 8)
    for text in CODECS:
        codec = cpd.Codec(text)
        packet = codec.encode(x)
        bytes_each = 4 + packet.bits_a_value / 8
        name = text.replace(" ", "_")
        yield Call(f"compress/encode/{name}", lambda c=codec: c.encode(x).data, 8, bytes_each)  # type: ignore[misc]
        yield Call(
            f"compress/decode/{name}",
            lambda p=packet: cpd.compress.Packet.from_bytes(p.data).values,  # type: ignore[misc]
            8,
            bytes_each,
        )


def names() -> list[str]:
    return [call.row for call in calls(np.zeros(RANKS * COLUMNS, np.float32))]


def wrong(call: Call) -> str:
    """Returns a text if one and two threads give different bits, else an empty text."""
    results = []
    for threads in (1, THREADS):
        os.environ["CPD_NUM_THREADS"] = str(threads)
        result = call.work()
        results.append(result if isinstance(result, bytes) else result.tobytes())
    return "" if results[0] == results[1] else f"{THREADS} threads differ from one"


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, measured on one and on two threads."""
    selected = [name for name in names() if options.selection.wants(name)]
    if not selected:
        return
    if len(os.sched_getaffinity(0)) < THREADS:
        yield from ({"name": name, "skipped": f"fewer than {THREADS} cores"} for name in selected)
        return
    piece = RANKS * COLUMNS
    n = max(1, options.floats // piece) * piece
    rng = np.random.default_rng(options.seed)
    x = np.resize(rng.standard_normal(1 << 20, dtype=np.float32), n)
    with gemm.setting("", 1):
        for call in calls(x):
            if call.row in selected:
                yield row(call, n, options)


def row(call: Call, n: int, options: Namespace) -> Row:
    fault = wrong(call)
    if fault:
        return {"name": call.row, "wrong": fault}
    amount = call.counted * n
    work = Side(gemm.on_threads(THREADS, call.work), amount)
    baseline = Side(gemm.on_threads(1, call.work), amount)
    measured = timed(call.row, "GB/s", work, "one thread", baseline, options.repeats)
    more = {"backend": cpd.backend(), "bar": BAR, "counted": call.counted, "moved": call.moved}
    return measured | more
