# SPDX-License-Identifier: Apache-2.0
"""torch's device "cuda" on a CPU, in each Python process with this folder in PYTHONPATH: torch.cuda
of a CPU build with what torch_cuda.cpp brings. Without random generators, graphs and NCCL, with one
device; copies between host and device wait for all streams, and `set_sync_debug_mode` finds no wait
(test_operations_gpu.cpp counts them)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

library = ctypes.CDLL("libtorch_cuda.so", ctypes.RTLD_GLOBAL)  # before torch looks for its hooks
library.cuda_on_cpu_new_stream.restype = ctypes.c_void_p
library.cuda_on_cpu_stream.restype = ctypes.c_void_p
library.cuda_on_cpu_refuse.argtypes = ctypes.c_int64, ctypes.c_int64
for count in ("asked", "allocated", "freed", "pieces"):
    getattr(library, f"cuda_on_cpu_{count}").restype = ctypes.c_int64

import torch  # noqa: E402


class Event:
    """All that was queued when it was recorded is done at the next wait."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_stream(self.stream)

    def synchronize(self) -> None:
        library.cuda_on_cpu_synchronize()


class Stream:
    def __init__(self, device: Any = None, *, address: int | None = None) -> None:
        made = library.cuda_on_cpu_new_stream() if address is None else address
        self.cuda_stream: int = made or 0

    def wait_stream(self, other: Stream) -> None:
        addresses = ctypes.c_void_p(self.cuda_stream), ctypes.c_void_p(other.cuda_stream)
        library.cuda_on_cpu_wait_for(*addresses)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        library.cuda_on_cpu_synchronize_stream(ctypes.c_void_p(self.cuda_stream))


def current_stream(device: Any = None) -> Stream:
    return Stream(address=library.cuda_on_cpu_stream() or 0)


@contextlib.contextmanager
def using(stream: Stream) -> Iterator[None]:
    before = library.cuda_on_cpu_stream()
    library.cuda_on_cpu_use_stream(ctypes.c_void_p(stream.cuda_stream))
    try:
        yield
    finally:
        library.cuda_on_cpu_use_stream(ctypes.c_void_p(before))


@contextlib.contextmanager
def refusing(count: int, after: int = 0) -> Iterator[None]:
    """torch's allocator refuses memory `count` times, after it gave some `after` times."""
    library.cuda_on_cpu_refuse(after, count)
    try:
        yield
    finally:
        library.cuda_on_cpu_refuse(0, 0)


def synchronize(device: Any = None) -> None:
    library.cuda_on_cpu_synchronize()


STAND_INS: dict[str, Any] = {
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "set_sync_debug_mode": lambda mode: None,
    "synchronize": synchronize,
    "current_stream": current_stream,
    "stream": using,
    "Stream": Stream,
    "Event": Event,
}
for name, stand_in in STAND_INS.items():
    setattr(torch.cuda, name, stand_in)
