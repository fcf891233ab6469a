# SPDX-License-Identifier: Apache-2.0
"""Converts a call's tensors (layers) to the contiguous float32 values that C++ takes, and back."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.compress.codecs import Codec
from cpd.compress.rows import RowLayout
from cpd.numeric.formats import dtype_name
from cpd.numeric.numbers import integer, is_torch
from cpd.numeric.warned import PrecisionWarning, warn
from cpd.ops.arguments import Array
from cpd.ops.flat import check_layer, host_values

if TYPE_CHECKING:
    import torch

Layer: TypeAlias = "Array | torch.Tensor"
Layers: TypeAlias = Sequence[Layer]
PerRank: TypeAlias = Sequence[Layers | Callable[[], Layers]]
"""Each rank's tensors, or a function that returns the rank's tensors."""
Shapes = Sequence[tuple[int, ...]]


class Inputs:
    """The input tensors (layers) of a call, all on one device."""

    layers: list[Any]
    plain: list[Any]
    """Each tensor's values, float32, row-major. The values share the memory of a contiguous and
    aligned tensor; the values of any other tensor are a copy."""
    values: list[npt.NDArray[np.float32] | _core.CudaValues]
    """The arguments for C++. They refer to the memory of `plain`, which must stay alive."""

    numbers: list[int]
    """The tensors' numbers, which select random streams and appear in error messages."""
    layouts: list[RowLayout]
    """The row layout of each tensor; an empty list unless the codec encodes rows."""

    def __init__(
        self, layers: Any, numbers: Sequence[int] | None = None, wire: Codec | None = None
    ) -> None:
        self.layers = layer_list("tensors", layers)
        self.numbers = layer_numbers(numbers, len(self.layers))
        for number, layer in zip(self.numbers, self.layers, strict=True):
            check_layer(f"tensor {number}", layer, ("cpu", "cuda"))
        self.device = _one_device("tensors", self.layers, self.numbers)
        self.shapes = [tuple(layer.shape) for layer in self.layers]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.layouts = row_layouts(wire, self.shapes, self.numbers)
        moved = self.layers
        if self.layouts:
            pairs = zip(self.layouts, self.layers, strict=True)
            moved = [layout.move(layer) for layout, layer in pairs]
        self.plain = [plain_values(layer) for layer in moved]
        self.values = [native_values(array) for array in self.plain]

    @property
    def rows(self) -> list[int]:
        """The row length of each tensor, for C++; empty if the codec does not encode rows."""
        return [layout.row for layout in self.layouts]

    @property
    def dimensions(self) -> list[int]:
        """Each tensor's number of dimensions, then its dimensions; ranks compare this list."""
        return [n for shape in self.shapes for n in (len(shape), *shape)]


class Outputs:
    """The result tensors of a call: new tensors of the inputs' kinds, or the argument `out`."""

    layers: list[Any]
    values: list[npt.NDArray[np.float32] | _core.CudaValues]
    """The arguments for C++ that refer to the results' memory, which this object keeps alive."""

    def __init__(self, inputs: Inputs, shapes: Shapes, out: Any | None = None) -> None:
        if out is None:
            self.layers = [_new(s, like) for s, like in zip(shapes, inputs.layers, strict=True)]
        else:
            self.layers = layer_list("out", out)
            _check_out(self.layers, shapes, inputs)
        plain = [_memory(layer) for layer in self.layers]
        if out is not None:
            _check_apart(inputs.plain, plain, inputs.numbers)
        self._moved: list[tuple[RowLayout, Any, Any]] = []
        if shapes is inputs.shapes:
            plain = [self._memory_of(*pair) for pair in zip_longest(plain, inputs.layouts)]
        self.values = [native_values(array) for array in plain]

    def put_back(self) -> None:
        """Copies results from memory in the codec's layout to the result tensors."""
        for layout, layer, values in self._moved:
            layer[...] = layout.back(values)

    def _memory_of(self, layer: Any, layout: RowLayout | None) -> Any:
        """Returns the memory into which C++ writes a result.

        It is new memory if the codec needs another layout than the result tensor `layer`.
        """
        if layout is None or layout.axis is None:
            return layer
        values = _new(tuple(layout.move(layer).shape), layer)
        self._moved.append((layout, layer, values))
        return values


def layer_list(what: str, layers: Any) -> list[Any]:
    """Returns `layers` as a new list. Raises TypeError if `layers` is not a sequence of tensors."""
    if is_torch(layers) or isinstance(layers, (np.ndarray, str, bytes)):
        raise TypeError(f"{what} must be a list of tensors, got {type(layers).__name__}")
    try:
        return list(layers)
    except TypeError:
        raise TypeError(f"{what} must be a list of tensors, got {type(layers).__name__}") from None


def layer_numbers(numbers: Sequence[int] | None, count: int) -> list[int]:
    """Returns the numbers of `count` tensors as a new list; None stands for 0, 1, …, count - 1."""
    if numbers is None:
        return list(range(count))
    checked = [integer("numbers", number) for number in numbers]
    if len(checked) != count:
        raise ValueError(f"there are {count} tensors but {len(checked)} numbers")
    return checked


def check_in_place(given: Inputs, codec: Codec) -> None:
    """Raises ValueError if the codec encodes a tensor along an axis other than the last.

    A rank's slice consists of consecutive values of the tensor. Along another axis these values do
    not form encoded rows.
    """
    for tensor, layout in zip(given.numbers, given.layouts, strict=False):
        if layout.axis is not None:
            raise ValueError(
                f"tensor {tensor} is encoded along axis {layout.axis} by {codec}, so that a "
                "slice is not of consecutive values: give axis=-1, or tensors of one dimension"
            )


def row_layouts(
    wire: Codec | None,
    shapes: Shapes,
    numbers: Sequence[int],
    names: Sequence[str] | None = None,
) -> list[RowLayout]:
    """Returns each tensor's layout if the codec encodes rows; an empty list otherwise.

    Warns of tensors that take at least as many bytes as in float32. Also warns of parameters that
    would never change, because the codec encodes a tensor of one value as zero.
    """
    if wire is not None:
        _warn_of_frozen(wire, shapes, numbers if names is None else names)
    if wire is None or not wire._by_rows:
        return []
    layouts = []
    for number, shape in zip(numbers, shapes, strict=True):
        try:
            layouts.append(wire._layout(shape))
        except ValueError as error:
            raise ValueError(f"tensor {number}: {error}") from None
    _warn_of_short_rows(wire, layouts, shapes, numbers)
    return layouts


def _warn_of_frozen(wire: Codec, shapes: Shapes, layers: Sequence[int | str]) -> None:
    frozen = [
        (layer, shape)
        for layer, shape in zip(layers, shapes, strict=True)
        if wire._held.freezes(math.prod(shape))
    ]
    if not frozen:
        return
    layer, shape = frozen[0]
    others = f" and of tensors {', '.join(str(n) for n, _ in frozen[1:])}" if frozen[1:] else ""
    warn(
        f"{wire.text} makes zero of a value of tensor {layer} of shape {shape}{others}: one value "
        "alone has no deviation by which it is clipped, so that such a parameter never changes. "
        "Exempt the tensor by cpd.Schedule(…, exempt=[its name]) or min_size=2, or give clip=none",
        PrecisionWarning,
    )


def _warn_of_short_rows(
    wire: Codec, layouts: Sequence[RowLayout], shapes: Shapes, numbers: Sequence[int]
) -> None:
    costly = [
        (number, shape, bits)
        for number, shape, layout in zip(numbers, shapes, layouts, strict=True)
        if math.prod(shape) > 1 and (bits := _bits_a_value(wire, layout.row)) >= 32
    ]
    if not costly:
        return
    number, shape, bits = costly[0]
    others = f" and of {len(costly) - 1} more tensors" if len(costly) > 1 else ""
    warn(
        f"{wire.text} takes {bits:g} bits a value of tensor {number} of shape {shape}{others}, "
        "float32 32: rows or columns are short, and each has numbers of its own. Give row=N (of "
        "one_bit bucket=64)",
        PrecisionWarning,
    )


@functools.lru_cache(maxsize=256)
def _bits_a_value(wire: Codec, row: int) -> float:
    """Returns the average number of encoded bits per value in rows of `row` values.

    Rows of more than 64 values are measured as rows of 64.
    """
    row = min(row, 64)
    layer = np.zeros((64, row), np.float32)
    call = _core.CodecLayerCall(row=row)
    return 8 * float(wire._held.encode_stream(layer, call)[1]) / layer.size


def _one_device(what: str, layers: Sequence[Any], numbers: Sequence[int]) -> str:
    """Returns the name of the device of all tensors; `cpu` if there are no tensors."""
    if all(type(layer) is np.ndarray for layer in layers):
        return "cpu"
    devices = [str(layer.device) if is_torch(layer) else "cpu" for layer in layers]
    for number, device in zip(numbers, devices, strict=True):
        if device != devices[0]:
            raise ValueError(
                f"{what} must all be on one device, got tensor {numbers[0]} on {devices[0]}, "
                f"tensor {number} on {device}"
            )
    return devices[0] if devices else "cpu"


def _device_values(layer: Any) -> Any:
    """Returns the values of a tensor on a GPU as float32, contiguous and aligned."""
    values = layer.detach().resolve_neg().float().contiguous()
    return values if values.data_ptr() % values.element_size() == 0 else values.clone()


def _memory(layer: Any) -> Any:
    """Returns a NumPy array over the memory of a contiguous tensor on the CPU.

    Returns a tensor on a GPU as a torch tensor over the same memory.
    """
    if not is_torch(layer):
        return layer
    values = layer.detach()
    return values.numpy() if values.device.type == "cpu" else values


def plain_values(layer: Any) -> Any:
    """Returns a tensor's values as float32, row-major: 1-D on the CPU, a torch tensor on a GPU."""
    on_gpu = type(layer) is not np.ndarray and is_torch(layer) and layer.device.type != "cpu"
    return _device_values(layer) if on_gpu else host_values(layer)


def shares_memory(plain: Any, layer: Any) -> bool:
    """Returns whether the torch tensors `plain` and `layer` start at the same address."""
    same: bool = plain.data_ptr() == layer.data_ptr()
    return same


def native_values(plain: Any) -> npt.NDArray[np.float32] | _core.CudaValues:
    """Returns an argument for C++ that refers to the memory of `plain`. `plain` must stay alive."""
    if type(plain) is np.ndarray or not is_torch(plain):
        values: npt.NDArray[np.float32] = plain if plain.ndim == 1 else plain.reshape(-1)
        return values
    import torch

    stream = torch.cuda.current_stream(plain.device).cuda_stream
    return _core.CudaValues(plain.data_ptr(), plain.numel(), plain.device.index, stream)


def _new(shape: tuple[int, ...], like: Any) -> Any:
    if not is_torch(like):
        return np.empty(shape, np.float32)
    import torch

    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _check_out(out: Sequence[Any], shapes: Shapes, inputs: Inputs) -> None:
    if len(out) != len(shapes):
        raise ValueError(f"out must have {len(shapes)} tensors, got {len(out)}")
    for number, layer, shape in zip(inputs.numbers, out, shapes, strict=True):
        where = f"out, tensor {number}"
        check_layer(where, layer, ("cpu", "cuda"))
        if dtype_name(layer.dtype) != "float32":
            raise TypeError(f"{where} must be of type float32, got {layer.dtype}")
        if tuple(layer.shape) != shape:
            raise ValueError(f"{where} must have shape {shape}, got {tuple(layer.shape)}")
        if not (_is_plain_tensor(layer) if is_torch(layer) else _is_plain_array(layer)):
            raise ValueError(f"{where} must be contiguous, aligned and writable")
    if len(out) > 0 and (of := _one_device("out", out, inputs.numbers)) != inputs.device:
        raise ValueError(f"out must be on the tensors' device, {inputs.device}, got {of}")


def _is_plain_tensor(x: Any) -> bool:
    return x.is_contiguous() and x.data_ptr() % x.element_size() == 0 and not x.is_neg()


def _is_plain_array(x: npt.NDArray[Any]) -> bool:
    return x.flags.c_contiguous and x.flags.aligned and x.flags.writeable


def _check_apart(inputs: Sequence[Any], outputs: Sequence[Any], numbers: Sequence[int]) -> None:
    """Raises if an output overlaps another output or an input.

    Only an input with the same index may have exactly the memory of an output.
    """
    spans = [(*_span(y), index, True) for index, y in enumerate(outputs)]
    for index, x in enumerate(inputs):
        if not (index < len(outputs) and _span(x) == _span(outputs[index])):
            spans.append((*_span(x), index, False))
    reach, owner = 0, -1  # the largest end address of the outputs so far, and its output
    in_reach, in_owner = 0, -1  # the largest end address of the inputs so far, and its input
    for low, high, index, is_out in sorted(span for span in spans if span[0] < span[1]):
        if low < reach:
            pair = (index, owner) if is_out else (owner, index)
            raise _overlap(numbers[pair[0]], numbers[pair[1]], is_out)
        if is_out and low < in_reach:
            raise _overlap(numbers[index], numbers[in_owner], False)
        if is_out:
            reach, owner = high, index
        elif high > in_reach:
            in_reach, in_owner = high, index


def _overlap(out: int, other: int, is_out: bool) -> ValueError:
    return ValueError(
        f"out, tensor {out} overlaps {'out, ' if is_out else ''}tensor {other}; it may be the "
        "input of the same number, else it must lie apart"
    )


def _span(plain: Any) -> tuple[int, int]:
    """Returns the address of the first byte of `plain`, and the address after its last byte."""
    if is_torch(plain):
        address = int(plain.data_ptr())
    else:
        address = int(plain.__array_interface__["data"][0])
    return address, address + int(plain.nbytes)
