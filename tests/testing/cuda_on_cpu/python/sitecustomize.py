# SPDX-License-Identifier: Apache-2.0
"""Gives a CPU build of torch the devices "cuda:0" and "cuda:1" of the CUDA emulation.

Python runs this file in every process that has its folder in PYTHONPATH. It completes torch.cuda
with functions of torch_cuda.cpp. Graphs and NCCL are missing. Random generators have states, but
nothing draws from them. Copies between host and device wait for all streams of the device.
`set_sync_debug_mode` detects no wait; test_operations.cpp counts them.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

library = ctypes.CDLL("libtorch_cuda.so", ctypes.RTLD_GLOBAL)  # before torch looks for its hooks
library.cuda_on_cpu_new_stream.restype = ctypes.c_void_p
library.cuda_on_cpu_stream.restype = ctypes.c_void_p
library.cuda_on_cpu_use_stream.argtypes = ctypes.c_int, ctypes.c_void_p
library.cuda_on_cpu_synchronize_stream.argtypes = ctypes.c_int, ctypes.c_void_p
library.cuda_on_cpu_wait_for.argtypes = 2 * (ctypes.c_int, ctypes.c_void_p)
library.cuda_on_cpu_refuse.argtypes = ctypes.c_int64, ctypes.c_int64
for count in ("asked", "allocated", "freed", "pieces"):
    getattr(library, f"cuda_on_cpu_{count}").restype = ctypes.c_int64

import torch  # noqa: E402


def number(device: Any = None) -> int:
    """Returns the index of a device. None and "cuda" mean the current device."""
    index = device if isinstance(device, int) else device and torch.device(device).index
    return current_device() if index is None else index


def device_count() -> int:
    return library.cuda_on_cpu_devices()


def current_device() -> int:
    return library.cuda_on_cpu_device()


def set_device(device: Any) -> None:
    if library.cuda_on_cpu_use_device(number(device)) != 0:
        raise RuntimeError("CUDA error: invalid device ordinal")


def exchange_device(device: int) -> int:
    """Makes a device current, unless its number is negative. Returns the previous current
    device."""
    before = current_device()
    if device >= 0:
        set_device(device)
    return before


class Event:
    """An event. Waiting for it does all work that is queued on its stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_stream(self.stream)

    def synchronize(self) -> None:
        synchronize(self.stream.device)


class Stream:
    def __init__(self, device: Any = None, *, address: int | None = None) -> None:
        self.device = torch.device("cuda", number(device))
        made = library.cuda_on_cpu_new_stream(self.device.index) if address is None else address
        self.cuda_stream: int = made or 0

    def wait_stream(self, other: Stream) -> None:
        places = self.device.index, self.cuda_stream, other.device.index, other.cuda_stream
        library.cuda_on_cpu_wait_for(*places)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        library.cuda_on_cpu_synchronize_stream(self.device.index, self.cuda_stream)


def current_stream(device: Any = None) -> Stream:
    index = number(device)
    return Stream(index, address=library.cuda_on_cpu_stream(index) or 0)


@contextlib.contextmanager
def using(stream: Stream) -> Iterator[None]:
    """Makes `stream` the current stream of its device, and its device the current one, in a `with`
    block."""
    index = stream.device.index
    before = library.cuda_on_cpu_stream(index)
    device = exchange_device(index)
    library.cuda_on_cpu_use_stream(index, stream.cuda_stream)
    try:
        yield
    finally:
        library.cuda_on_cpu_use_stream(index, before)
        set_device(device)


@contextlib.contextmanager
def refusing(count: int, after: int = 0) -> Iterator[None]:
    """Within a `with` block, torch's allocator grants `after` requests and then refuses `count`
    requests."""
    library.cuda_on_cpu_refuse(after, count)
    try:
        yield
    finally:
        library.cuda_on_cpu_refuse(0, 0)


def synchronize(device: Any = None) -> None:
    library.cuda_on_cpu_synchronize(number(device))


GENERATORS = [torch.Generator() for _ in range(device_count())]


def get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return GENERATORS[number(device)].get_state()


def set_rng_state(state: torch.Tensor, device: Any = "cuda") -> None:
    GENERATORS[number(device)].set_state(state)


STAND_INS: dict[str, Any] = {
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "device_count": device_count,
    "get_device_capability": lambda device=None: (9, 0),
    "current_device": current_device,
    "set_device": set_device,
    "_exchange_device": exchange_device,
    "_maybe_exchange_device": lambda device: exchange_device(device),  # dynamo: a function each
    "set_sync_debug_mode": lambda mode: None,
    "synchronize": synchronize,
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "current_stream": current_stream,
    "stream": using,
    "Stream": Stream,
    "Event": Event,
}
for name, stand_in in STAND_INS.items():
    setattr(torch.cuda, name, stand_in)
