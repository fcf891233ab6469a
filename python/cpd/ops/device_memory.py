# SPDX-License-Identifier: Apache-2.0
"""Releases the GPU memory that operations keep."""

from __future__ import annotations

from cpd import _core
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32


def current_device() -> int:
    """Index of torch's current CUDA device. Raises RuntimeError where there is none."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA device here")
    return torch.cuda.current_device()


@checked
def release_cuda_memory(device: int | None = None) -> None:
    """Returns the device memory that CPD keeps for later calls to the device, for torch's
    allocator, say, which does not know of it. Waits for the device's work.

    CPD does so itself, and tries again, where it finds no memory.

    Args:
        device: index of the CUDA device; default: torch's current one.

    Raises ValueError for an index below 0, RuntimeError where CUDA reports an error.

    >>> import cpd, torch
    >>> if torch.cuda.is_available():
    ...     cpd.release_cuda_memory()
    """
    index = current_device() if device is None else int32("device", device)
    if index < 0:
        raise ValueError(f"device must be 0 or more, got {index}")
    _core.release_cuda_memory(index)
