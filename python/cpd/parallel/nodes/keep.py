# SPDX-License-Identifier: Apache-2.0
"""Stores nodes' gradients, in memory or on disk, until the sum needs them again."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from cpd.numeric.shown import byte_size
from cpd.parallel.nodes.gradients import Gradients


class Keep(Protocol):
    """A store of each node's gradients."""

    def put(self, node: int, gradients: Gradients) -> None:
        """Stores a node's gradients."""

    def get(self, node: int) -> Gradients:
        """Returns a node's gradients."""

    def close(self) -> None:
        """Deletes all stored gradients."""


class Memory:
    """A store of gradients in the host's memory."""

    def __init__(self) -> None:
        self._kept: dict[int, Gradients] = {}

    def put(self, node: int, gradients: Gradients) -> None:
        """Stores a node's gradients."""
        self._kept[node] = gradients

    def get(self, node: int) -> Gradients:
        """Returns a node's gradients."""
        return self._kept[node]

    def close(self) -> None:
        """Deletes all stored gradients."""
        self._kept.clear()


class Disk:
    """A store of gradients in a temporary file, deleted by `close` or when the process ends."""

    def __init__(self, folder: str | None) -> None:
        self._file = tempfile.TemporaryFile(prefix="cpd-nodes-", dir=folder)  # noqa: SIM115
        self._kept: dict[int, list[_Place | None]] = {}

    def put(self, node: int, gradients: Gradients) -> None:
        """Appends a node's gradients to the file."""
        self._file.seek(0, 2)
        self._kept[node] = [None if g is None else self._write(g) for g in gradients]

    def get(self, node: int) -> Gradients:
        """Reads a node's gradients."""
        return [None if place is None else self._read(*place) for place in self._kept[node]]

    def close(self) -> None:
        """Closes the file, which deletes it."""
        self._file.close()

    def _write(self, gradient: torch.Tensor) -> _Place:
        begin = self._file.tell()
        self._file.write(_bytes(gradient.detach().contiguous()))
        return begin, gradient.dtype, gradient.shape

    def _read(self, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        values = torch.empty(shape, dtype=dtype)
        into = _bytes(values)
        self._file.seek(begin)
        if self._file.readinto(into) != into.nbytes:
            raise OSError(errno.EIO, "kept gradients could not be read back")
        return values


def _bytes(values: torch.Tensor) -> memoryview:
    """Returns the bytes in the memory of a contiguous CPU tensor, without a copy."""
    return values.reshape(-1).view(torch.uint8).numpy().data


_Place = tuple[int, torch.dtype, Sequence[int]]


def check_room(keep: str, needed: int, folder: str | None) -> None:
    """Raises MemoryError or OSError if `needed` bytes exceed the free memory or disk space."""
    if keep == "disk":
        folder = tempfile.gettempdir() if folder is None else folder
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(errno.ENOSPC, f"{_needs(needed, free)} free on disk", folder)
    elif keep == "memory":
        available = _available_memory()
        if available is not None and needed > available:
            raise MemoryError(
                f"{_needs(needed, available)} of memory available: keep them on 'disk', or "
                "'recompute' them"
            )


def _needs(needed: int, there: int) -> str:
    return f"the nodes' gradients take {byte_size(needed)}, and there are {byte_size(there)}"


def _available_memory() -> int | None:
    """Returns the bytes of memory that Linux reports as available; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None
