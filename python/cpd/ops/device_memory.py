# SPDX-License-Identifier: Apache-2.0
"""Frees the memory that operations keep on a GPU, and raises errors that their kernels found."""

from __future__ import annotations

from cpd import _core
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32


def current_device() -> int:
    """Returns the index of torch's current CUDA device. Raises RuntimeError if there is none."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA device here")
    return torch.cuda.current_device()


@checked
def release_cuda_memory(device: int | None = None) -> None:
    """Frees the device memory that CPD keeps for later calls.

    Other users of the device, such as torch's allocator, can then allocate this memory. The call
    waits for the device's work. If CPD itself runs out of device memory, it frees this memory and
    tries again, without a call of this function.

    Args:
        device: the index of the CUDA device; default None: torch's current device.

    Raises:
        ValueError: for an index below 0.
        RuntimeError: if CUDA reports an error, or if torch has no CUDA device and `device` is None.

    >>> import cpd, torch
    >>> if torch.cuda.is_available():
    ...     cpd.release_cuda_memory()
    """
    _core.release_cuda_memory(_index(device))


@checked
def check_cuda(device: int | None = None) -> None:
    """Waits for the device's work, and raises the errors that its kernels found.

    Kernels find errors that depend on values: a random integer out of range, an operand that is not
    a value of a matrix unit's format, or a NaN that the format cannot encode. Calls on CUDA tensors
    do not wait for their kernels. Such an error is raised by a later call on the device, or by this
    function. The results of the faulty call are undefined. With the environment variable
    CPD_CHECK=sync, each call waits for its kernels and raises its own errors.

    Args:
        device: the index of the CUDA device; default None: torch's current device.

    Raises:
        ValueError: for an error that a kernel found, or an index below 0.
        RuntimeError: if torch has no CUDA device and `device` is None.

    >>> import cpd, torch
    >>> if torch.cuda.is_available():
    ...     cpd.check_cuda()
    """
    import torch

    index = _index(device)
    if torch.cuda.is_available():
        torch.cuda.synchronize(index)
    _core.check_cuda(index)


def _index(device: int | None) -> int:
    index = current_device() if device is None else int32("device", device)
    if index < 0:
        raise ValueError(f"device must be 0 or more, got {index}")
    return index
