# SPDX-License-Identifier: Apache-2.0
"""Measurements that need no training: a multiplication by a factor, and a dot product."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpd import ops


def scale_factor(format: str, factor: float, values: list[float]) -> dict[str, Any]:
    """Tests which values survive a multiplication by a factor, a cast, and a division by it.

    Products and quotients are computed in binary32. Returns three lists: `values`, the values
    rounded to the format; `scaled`, the same values after multiplication, cast and division;
    `same`, whether the two are equal.
    """
    x = ops.cast(np.asarray(values, np.float32), format)
    product = ops.cast(x * np.float32(factor), format)
    back = product / np.float32(factor)
    return {"values": x.tolist(), "scaled": back.tolist(), "same": (x == back).tolist()}


def dot_product(format: str, a: list[float], b: list[float]) -> dict[str, Any]:
    """Computes a dot product in a format in two ways: rounded once at the end, and at each step.

    QPyTorch emulates a format in the first way. CPD emulates it in the second way: it rounds each
    product and each sum. In the result, `steps` has the rounded sum after each term, and `exact` is
    the sum in binary64.
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
