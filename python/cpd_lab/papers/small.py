# SPDX-License-Identifier: Apache-2.0
"""Measurements that take no training: what one factor or one dot product comes to."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpd import ops


def scale_factor(format: str, factor: float, values: list[float]) -> dict[str, Any]:
    """Values of a format, multiplied by a factor in binary32, cast to the format, divided again.

    Returns lists: `values`, cast to the format, `scaled`: after the way there and back, and `same`:
    which are as before.
    """
    x = ops.cast(np.asarray(values, np.float32), format)
    product = ops.cast(x * np.float32(factor), format)
    back = product / np.float32(factor)
    return {"values": x.tolist(), "scaled": back.tolist(), "same": (x == back).tolist()}


def dot_product(format: str, a: list[float], b: list[float]) -> dict[str, Any]:
    """Computes a dot product in a format: cast once at the end, and rounded at each step.

    QPyTorch emulates by the first way, CPD by the second: each product and sum is rounded. `steps`
    are the sums after each term, `exact` is in binary64.
    """
    x, y = (ops.cast(np.asarray(v, np.float32), format) for v in (a, b))
    exact = float(np.dot(x.astype(np.float64), y.astype(np.float64)))
    steps = [float(ops.gemm(x[None, :n], y[:n, None], format).item()) for n in range(1, len(x) + 1)]
    return {
        "a": x.tolist(),
        "b": y.tolist(),
        "exact": exact,
        "cast_at_the_end": float(ops.cast(np.asarray([exact], np.float32), format)[0]),
        "steps": steps,
        "each_step": steps[-1],
    }
