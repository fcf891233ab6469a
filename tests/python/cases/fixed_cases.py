# SPDX-License-Identifier: Apache-2.0
"""Accumulators of integers, and arrays of binary32 for them."""

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
    """With that rounding of the sum or, where the format holds every sum, without one."""
    try:
        return point.replace(format=name, rounding=rounding, overflow=overflow)
    except ValueError as refused:
        if "rounding= has no effect" not in str(refused):
            raise
        return point.replace(format=name, overflow=overflow)


def fixed(width: int, fraction: int, rounding: str | None = None) -> cpd.Accumulator:
    return cpd.Accumulator(width=width, fraction=fraction, sum_rounding=rounding)
