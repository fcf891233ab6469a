# SPDX-License-Identifier: Apache-2.0
"""Measures whether calls leak memory, on the C library's heap and on Python's."""

from __future__ import annotations

import ctypes
import gc
import sys

ROUNDS = 8
"""The number of rounds of a measurement. A heap may grow by chance in some rounds; a leak grows the
heap in every round."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int:
    """Returns the bytes that the process has allocated by malloc, including mapped memory."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def has_mallinfo2() -> bool:
    return hasattr(ctypes.CDLL(None), "mallinfo2")


def growth(run, calls: int) -> tuple[int, int]:
    """Runs ROUNDS rounds of calls // ROUNDS calls each. Returns the least growth of all rounds, as
    two numbers: bytes of malloc and blocks of Python's allocator."""
    for _ in range(min(200, calls)):
        run()
    gc.freeze()  # excludes older objects (torch has a million) from collections
    rounds = []
    for _ in range(ROUNDS):
        gc.collect()
        before = heap_bytes(), sys.getallocatedblocks()
        for _ in range(calls // ROUNDS):
            run()
        gc.collect()
        after = heap_bytes(), sys.getallocatedblocks()
        rounds.append((after[0] - before[0], after[1] - before[1]))
    gc.unfreeze()
    return min(r[0] for r in rounds), min(r[1] for r in rounds)
