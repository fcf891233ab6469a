# SPDX-License-Identifier: Apache-2.0
"""Converts codes to values and values to codes, in arrays of any shape."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd import _core, ops
from cpd.numeric.cast import Cast, element_of
from cpd.numeric.formats import Format


def values_of(f: Format, codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Returns the values of codes of any shape, as binary32.

    A signaling NaN stays signaling.
    """
    if f.bits <= 16:
        values: npt.NDArray[np.float32] = _core.look_up(_table(f), codes)
        return values
    return _decoded(f, codes.reshape(-1)).reshape(codes.shape)


@functools.lru_cache(maxsize=64)
def _table(f: Format) -> npt.NDArray[np.float32]:
    return _decoded(f, np.arange(1 << f.bits, dtype=np.uint32))


def has_signalling(f: Format) -> bool:
    """Returns whether the format has signaling NaNs, marked by the first fraction bit."""
    return f.encoding == "ieee" and f.man > 0


def _decoded(f: Format, codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = ops.decode(packed(codes, f.bits), f, codes.shape)
    if has_signalling(f):
        signalling = np.isnan(values) & (codes >> np.uint32(f.man - 1) & np.uint32(1) == 0)
        values.view(np.uint32)[signalling] = 0x7F800001
    return values


def packed(codes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint8]:
    """Returns the codes packed into bytes, as `cpd.decode` takes them."""
    if bits in (8, 16, 32):
        return codes.astype(f"<u{bits // 8}").view(np.uint8)
    word_bytes = codes.astype("<u4").view(np.uint8).reshape(-1, 4)
    wide = np.unpackbits(word_bytes, axis=1, bitorder="little")[:, :bits]
    return np.packbits(wide.reshape(-1), bitorder="little")


def encoded(values: npt.NDArray[Any], to: Format | Cast) -> npt.NDArray[np.uint32]:
    """Returns the codes of values of any shape, rounded to a format."""
    bits = to.bits if isinstance(to, Format) else element_of(to).bits
    unpacked = np.unpackbits(ops.encode(np.ascontiguousarray(values), to), bitorder="little")
    digits = unpacked[: values.size * bits].reshape(-1, bits).astype(np.uint64)
    weights = np.uint64(1) << np.arange(bits, dtype=np.uint64)
    codes: npt.NDArray[np.uint32] = (digits @ weights).astype(np.uint32)
    return codes.reshape(values.shape)
