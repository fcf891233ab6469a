# SPDX-License-Identifier: Apache-2.0
"""The layers of a call as C++ takes them: contiguous float32 arrays, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd import tensors
from cpd.comm import staging
from cpd.reduce import check_layer, host_values, layer_list

Values = npt.NDArray[np.float32]


class Inputs:
    """Layers of one device, and their values, row-major, 1-D: theirs where they are float32,
    contiguous and aligned on the CPU, else copies."""

    def __init__(self, layers: Any) -> None:
        self.layers = layer_list("layers", layers)
        for index, layer in enumerate(self.layers):
            check_layer(f"layer {index}", layer, ("cpu", "cuda"))
        self.device = _one_device("layers", self.layers)
        self.shapes = [tuple(layer.shape) for layer in self.layers]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        if self.device == "cpu":
            self.values = [host_values(layer) for layer in self.layers]
        else:
            self.values = staging.to_host(self.layers)


class Outputs:
    """Where a call's results go: into new layers of the inputs' kinds, or into `out`."""

    def __init__(
        self, inputs: Inputs, shapes: Sequence[tuple[int, ...]], out: Any | None = None
    ) -> None:
        self._inputs = inputs
        self._shapes = shapes
        self._out = None if out is None else layer_list("out", out)
        if self._out is None:
            self.values = [_room(math.prod(shape), inputs.device) for shape in shapes]
            return
        _check_out(self._out, shapes, inputs.device)
        if inputs.device == "cpu":
            self.values = [_written(layer) for layer in self._out]
            _check_apart(inputs.values, self.values)
        else:
            self.values = [_room(math.prod(shape), inputs.device) for shape in shapes]

    def take(self) -> list[Any]:
        """The layers, now that their values are there."""
        if self._out is not None:
            if self._inputs.device != "cpu":
                staging.to_device(self.values, self._out)
            return self._out
        shaped = [v.reshape(s) for v, s in zip(self.values, self._shapes, strict=True)]
        likes = self._inputs.layers
        if self._inputs.device != "cpu":
            return staging.new_on_device(shaped, self._inputs.device)
        return [_like(values, like) for values, like in zip(shaped, likes, strict=True)]


def _one_device(what: str, layers: Sequence[Any]) -> str:
    """The device's name; `cpu` where there are no layers."""
    first = "cpu"
    for index, layer in enumerate(layers):
        device = str(layer.device) if tensors.is_torch(layer) else "cpu"
        if index == 0:
            first = device
        elif device != first:
            raise ValueError(
                f"{what} must all be on one device, got layer 0 on {first}, layer {index} on "
                f"{device}"
            )
    return first


def _room(size: int, device: str) -> Values:
    return np.empty(size, np.float32) if device == "cpu" else staging.room(size)


def _like(values: Values, layer: Any) -> Any:
    if not tensors.is_torch(layer):
        return values
    import torch

    return torch.from_numpy(values)


def _check_out(out: Sequence[Any], shapes: Sequence[tuple[int, ...]], device: str) -> None:
    if len(out) != len(shapes):
        raise ValueError(f"out must have {len(shapes)} layers, got {len(out)}")
    for index, (layer, shape) in enumerate(zip(out, shapes, strict=True)):
        where = f"out, layer {index}"
        check_layer(where, layer, ("cpu", "cuda"))
        if str(layer.dtype).removeprefix("torch.") != "float32":
            raise TypeError(f"{where} must be of type float32, got {layer.dtype}")
        if tuple(layer.shape) != shape:
            raise ValueError(f"{where} must have shape {shape}, got {tuple(layer.shape)}")
        if not (_is_plain_tensor(layer) if tensors.is_torch(layer) else _is_plain_array(layer)):
            raise ValueError(f"{where} must be contiguous, aligned and writable")
    if len(out) > 0 and (of := _one_device("out", out)) != device:
        raise ValueError(f"out must be on the layers' device, {device}, got {of}")


def _is_plain_tensor(x: Any) -> bool:
    return x.is_contiguous() and x.data_ptr() % x.element_size() == 0 and not x.is_neg()


def _is_plain_array(x: npt.NDArray[Any]) -> bool:
    return x.flags.c_contiguous and x.flags.aligned and x.flags.writeable


def _written(layer: Any) -> Values:
    """The memory of a layer that _check_out has passed."""
    values: Values = layer.detach().numpy() if tensors.is_torch(layer) else layer
    return values.reshape(-1)


def _check_apart(inputs: Sequence[Values], outputs: Sequence[Values]) -> None:
    """Raises unless output l lies apart from the others and from all inputs but, maybe, l."""
    spans = [(*_span(y), index, True) for index, y in enumerate(outputs) if y.size > 0]
    for index, x in enumerate(inputs):
        if x.size > 0 and not (index < len(outputs) and _span(x) == _span(outputs[index])):
            spans.append((*_span(x), index, False))
    reach, owner = 0, -1  # of what has been seen: how far outputs go, and how far inputs
    in_reach, in_owner = 0, -1
    for low, high, index, is_out in sorted(spans):
        if low < reach:
            raise _overlap(index if is_out else owner, owner if is_out else index, is_out)
        if is_out and low < in_reach:
            raise _overlap(index, in_owner, False)
        if is_out:
            reach, owner = high, index
        elif high > in_reach:
            in_reach, in_owner = high, index


def _overlap(out: int, other: int, is_out: bool) -> ValueError:
    return ValueError(
        f"out, layer {out} overlaps {'out, ' if is_out else ''}layer {other}; it may be the input "
        "of the same number, else it must lie apart"
    )


def _span(values: Values) -> tuple[int, int]:
    address = int(values.__array_interface__["data"][0])
    return address, address + values.nbytes
