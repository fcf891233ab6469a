# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors by way of pinned host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]


def room(size: int) -> Values:
    """Pinned memory for so many values."""
    import torch

    values: Values = torch.empty(size, dtype=torch.float32, pin_memory=True).numpy()
    return values


def to_host(layers: Sequence[Any]) -> list[Values]:
    """The values of tensors of one device, row-major, 1-D, float32."""
    import torch

    hosts = [room(layer.numel()) for layer in layers]
    for host, layer in zip(hosts, layers, strict=True):
        torch.from_numpy(host).copy_(layer.detach().reshape(-1), non_blocking=True)
    if layers:
        torch.cuda.current_stream(layers[0].device).synchronize()
    return hosts


def to_device(values: Sequence[Values], out: Sequence[Any]) -> None:
    """Writes values into tensors of one device, on its current stream."""
    import torch

    for host, layer in zip(values, out, strict=True):
        layer.detach().copy_(torch.from_numpy(host).reshape(layer.shape), non_blocking=True)
    if out:
        torch.cuda.current_stream(out[0].device).synchronize()  # then `values` may go


def new_on_device(values: Sequence[Values], device: str) -> list[Any]:
    """New tensors of the values' shapes."""
    import torch

    made = [torch.empty(host.shape, dtype=torch.float32, device=device) for host in values]
    to_device(values, made)
    return made
