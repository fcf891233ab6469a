# SPDX-License-Identifier: Apache-2.0
"""The memory that operations keep on a GPU, and the faults that their kernels found."""

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
    """Returns the device memory that CPD keeps for later calls to the device.

    Others then have it, such as torch's allocator, which does not know of it. Waits for the
    device's work.

    CPD does so itself, and tries again, where it finds no memory.

    Args:
        device: index of the CUDA device; default: torch's current one.

    Raises ValueError for an index below 0, RuntimeError where CUDA reports an error.

    >>> import cpd, torch
    >>> if torch.cuda.is_available():
    ...     cpd.release_cuda_memory()
    """
    _core.release_cuda_memory(_index(device))


@checked
def check_cuda(device: int | None = None) -> None:
    """Waits for the device's work, and raises the errors that it found.

    Only values show them: a random integer out of range, an operand that a matrix unit does not
    take, a NaN without a code. Calls on CUDA tensors do not wait for that: such an error is raised
    by a later call on the device, or here, and results of the call that it is of are undefined.
    With the environment variable CPD_CHECK=sync each call waits and raises its own.

    Args:
        device: index of the CUDA device; default: torch's current one.

    Raises ValueError for what was found, or an index below 0.

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
