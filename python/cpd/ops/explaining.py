# SPDX-License-Identifier: Apache-2.0
"""Marks threads that run `cpd.ops.explain`, and makes results that occupy no physical memory."""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd.ops import on_numpy

_local = threading.local()
_lock = threading.Lock()
_depth = 0


def explains() -> bool:
    """Returns True while this thread runs a call in `cpd.ops.explain`, which computes nothing."""
    return getattr(_local, "explains", False)


@contextmanager
def explaining() -> Iterator[None]:
    """A context for `cpd.ops.explain`: NumPy results of this thread's calls occupy no memory."""
    global _depth
    with _lock:
        _depth += 1
        on_numpy.new, on_numpy.new_like = _new, _new_like
    before, _local.explains = explains(), True
    try:
        yield
    finally:
        _local.explains = before
        with _lock:
            _depth -= 1
            if not _depth:
                on_numpy.new, on_numpy.new_like = np.empty, np.empty_like


def _new(shape: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
    """Returns `np.empty(shape, dtype)`, but without memory if this thread is explaining a call."""
    return without_memory(shape, dtype) if explains() else np.empty(shape, dtype)


def _new_like(x: npt.NDArray[Any], dtype: Any = None, subok: bool = True) -> npt.NDArray[Any]:
    """Returns `np.empty_like(x, …)`, but without memory if this thread is explaining a call."""
    if not explains():
        return np.empty_like(x, dtype, subok=subok)
    element = x.dtype if dtype is None else np.dtype(dtype)
    order = sorted(range(x.ndim), key=lambda d: -abs(x.strides[d]))
    y = without_memory([x.shape[d] for d in order], element)
    return y.transpose([order.index(d) for d in range(x.ndim)])


def without_memory(shape: Any, dtype: Any) -> npt.NDArray[Any]:
    """Returns a read-only array of zeros that occupies addresses but no physical memory."""
    element = np.dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    size = math.prod(sizes) * element.itemsize
    if size == 0:
        return np.empty(sizes, element)
    addresses = mmap.mmap(
        -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ
    )
    return np.ndarray(sizes, element, addresses)
