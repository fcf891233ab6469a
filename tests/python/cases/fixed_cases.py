# SPDX-License-Identifier: Apache-2.0
"""Makes integer (fixed-point) accumulators for tests, and arrays of binary32 to sum by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cpd
import oracle

TO_UNITS = oracle.DETERMINISTIC_MODES


def floats(values: Any) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def accumulated(name: str, point: cpd.Accumulator, rounding: str, overflow: str) -> cpd.Accumulator:
    """Returns the accumulator `point` with a result format, rounding and overflow. If the format
    holds every sum exactly, the constructor refuses a rounding, so none is passed."""
    try:
        return point.replace(format=name, rounding=rounding, overflow=overflow)
    except ValueError as refused:
        if "rounding= has no effect" not in str(refused):
            raise
        return point.replace(format=name, overflow=overflow)


def fixed(width: int, fraction: int, rounding: str | None = None) -> cpd.Accumulator:
    return cpd.Accumulator(width=width, fraction=fraction, sum_rounding=rounding)
