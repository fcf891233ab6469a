# SPDX-License-Identifier: Apache-2.0
"""Tests that casts of arrays in any memory layout have the bits of casts in row-major order.

The arrays are transposed, reversed, strided or broadcast. Results are new arrays, arrays of another
layout, or overwrite the operand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd
from by_keywords import by_keywords
from cpd.ops.arguments import holds_scaled

Array = npt.NDArray[Any]

PLAIN = ("e4m3", "e5m2", "bf16", "e3m0", "e4m3fn", "fp16", "e8m0")
SCALED = ("mxfp8", "mxfp4", "nvfp4", "int8 row", "fp8-tensor", "fp8-block")
EXTENTS = (1, 2, 3, 5, 16, 17, 32, 33, 64, 100, 257, 513, 600, 5000)
MOST = 300_000  # values


def array(rng: np.random.Generator) -> Array:
    shape = [int(n) for n in rng.choice(EXTENTS, rng.integers(1, 5))]
    while np.prod(shape) > MOST:
        shape[np.argmax(shape)] = 2
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4)
    return x.astype(rng.choice([np.float32, np.float32, np.float16]))


def turned(x: Array, rng: np.random.Generator) -> Array:
    """Returns a view of x with permuted dimensions; one may be reversed, strided or broadcast."""
    x = x.transpose(rng.permutation(x.ndim))
    d = int(rng.integers(x.ndim))
    before = (slice(None),) * d
    match rng.integers(6):
        case 0:
            return np.flip(x, d)
        case 1:
            return x[(*before, slice(None, None, 2))]
        case 2:
            return np.broadcast_to(x[(*before, slice(0, 1))], x.shape)
    return x


def in_any_order(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    order = rng.permutation(len(shape))
    memory = np.full([shape[d] for d in order], 7, np.float32)
    return memory.transpose(np.argsort(order))


def options(rng: np.random.Generator, x: Array, name: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"axis": int(rng.integers(x.ndim))} if name in SCALED else {}
    if rng.random() < 0.7:
        bits = int(rng.choice([1, 8, 13, 16, 24]))
        return chosen | {
            "rounding": "stochastic",
            "random_bits": bits,
            "seed": int(rng.integers(99)),
        }
    return chosen | {"rounding": str(rng.choice(["nearest_even", "up", "toward_zero", "to_odd"]))}


def same(a: Array, b: Array) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = turned(array(rng), rng)
    name = str(rng.choice([*PLAIN, *SCALED]))
    if name in ("bf16", "e8m0"):  # which fp16 does not hold
        x = x.astype(np.float32)
    how = options(rng, x, name)
    if name in SCALED and not holds_scaled(str(x.dtype), cpd.Scaled(name).text):
        how["dtype"] = "float32"
    about = (seed, name, how, x.shape, x.strides, x.dtype)
    wanted = by_keywords(cpd.cast, np.ascontiguousarray(x), name, **how)
    assert same(by_keywords(cpd.cast, x, name, **how), wanted), about
    if x.dtype == np.float32:
        out = in_any_order(x.shape, rng)
        assert same(by_keywords(cpd.cast, x, name, out=out, **how), wanted), (about, out.strides)
        own = x.copy(order="K")
        assert same(by_keywords(cpd.cast, own, name, out=own, **how), wanted), about


def test_some_layouts() -> None:
    for seed in range(150):
        check(seed)


@pytest.mark.exhaustive
def test_many_layouts() -> None:
    for seed in range(150, 20_000):
        check(seed)
