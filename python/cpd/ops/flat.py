# SPDX-License-Identifier: Apache-2.0
"""Converts an array or a tensor with the values of a layer to a flat float32 array."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd.numeric.formats import dtype_name
from cpd.numeric.numbers import is_torch
from cpd.ops.arguments import NARROW_FLOATS, check_type, check_whole

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


_FLOAT32 = np.dtype(np.float32)


def check_layer(where: str, layer: Any, devices: Sequence[str] = ("cpu",)) -> None:
    """Raises an error unless `layer` is an array or tensor of float32, bfloat16 or float16.

    `where` names the argument in the TypeError or ValueError. A tensor must be dense and on one of
    `devices`.
    """
    if type(layer) is np.ndarray and layer.dtype is _FLOAT32:
        return
    if is_torch(layer):
        if layer.device.type not in devices:
            allowed = " or ".join(device.upper() for device in devices)
            raise ValueError(f"{where} must be on the {allowed}, got {layer.device}")
        check_whole(where, layer)
        if is_plain(layer):
            return
        if str(layer.layout) != "torch.strided":
            raise TypeError(f"{where} must be a dense tensor, got {layer.layout}")
        name = dtype_name(layer.dtype)
    elif isinstance(layer, np.ndarray) and not isinstance(layer, np.ma.MaskedArray):
        name = layer.dtype.name if layer.dtype.isnative else layer.dtype.str
    else:
        raise TypeError(
            f"{where} must be a NumPy array or a torch tensor, got {type(layer).__name__}"
        )
    check_type(where, name, NARROW_FLOATS, name)


def host_values(layer: Any) -> npt.NDArray[np.float32]:
    """Returns the values of a layer on the CPU as a 1-D float32 array, in row-major order.

    The array is a view of the layer if the layer is contiguous, aligned float32; else a copy.
    """
    if type(layer) is not np.ndarray and is_torch(layer):
        if layer.requires_grad:
            layer = layer.detach()
        layer = (layer if is_plain(layer) else layer.resolve_neg().float()).numpy()
    values: npt.NDArray[np.float32] = layer
    if layer.dtype != _FLOAT32 or not (layer.flags.c_contiguous and layer.flags.aligned):
        values = np.require(layer, np.float32, ["C", "ALIGNED"])
    return values.reshape(-1)


def is_plain(layer: torch.Tensor) -> bool:
    """Returns whether a tensor is dense float32 and is not a lazily negated view."""
    torch = sys.modules["torch"]
    return layer.dtype is torch.float32 and layer.layout is torch.strided and not layer.is_neg()
