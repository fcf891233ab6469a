# SPDX-License-Identifier: Apache-2.0
"""`Codec`, made from a text: a reversible encoding of a tensor into bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.compress.rows import RowLayout
from cpd.compress.states import States, native_states
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format
from cpd.numeric.numbers import int32, int64, is_torch, number
from cpd.numeric.options import MAX_RANDOM_BITS, numbers_of_codec
from cpd.numeric.shown import shown
from cpd.numeric.spec import arguments, take
from cpd.ops.arguments import Shape, check_random_range, shape_of
from cpd.ops.flat import check_layer, host_values

CodecLike: TypeAlias = "Codec | str"
Stream: TypeAlias = bytes
"""The self-describing bytes of one layer."""


_AS_IT_IS = RowLayout()


@dataclass(frozen=True)
class Packet:
    """An encoded layer.

    Attributes:
        data: the stream, for `decode`.
        bytes: the size of the codec's part of `data`, which a message holds.
        shape: the layer's shape.
    """

    data: Stream
    bytes: int
    shape: tuple[int, ...]
    _layout: RowLayout = field(repr=False)
    _device: str | None = field(repr=False)

    @functools.cached_property
    def values(self) -> Any:
        """The decoded values, float32, of the layer's kind, shape and device; decoded once."""
        flat, _ = _core.decode_stream(self.data)
        values = self._layout.restored(flat, self.shape)
        if self._device is None:
            return values
        import torch

        return torch.from_numpy(values).to(self._device)

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def bits_a_value(self) -> float:
        """Bits per value of the codec's part of the stream; 0 without values."""
        return 8 * self.bytes / self.size if self.size else 0.0


@functools.partial(checked, own=("name", "state"))
@dataclass(frozen=True, init=False, repr=False)
class Codec:
    """A reversible encoding of a layer's values into bytes.

    Immutable, hashable and picklable. Arguments are attributes of the same names; `name` is then
    the canonical text.

    Args:
        name: the text: a compressor's (`compressors`) with its options as key=value, or the name of
            a format (`cpd.format`) or a scaled format (`cpd.scaled`).
        seed: the seed of the random bits, if the codec uses any; default 0.
        random_bits: the number of random bits that decide each rounding, 1…24; default 24. Rounding
            is by variant A of stochastic rounding (`cpd.cast`) alone.

    Raises:
        ValueError: for an invalid text or an option out of range.
        TypeError: for an argument of another type.

    >>> Codec("mxfp8")
    cpd.compress.codec('mxfp8')
    """

    name: str
    seed: int
    random_bits: int
    _held: _core.Codec = field(init=False, compare=False)

    def __init__(self, name: str, *, seed: int = 0, random_bits: int = MAX_RANDOM_BITS) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a codec must be a cpd.compress.Codec or its text, got {shown(name)}")
        made = _core.Codec(name, numbers_of_codec(seed, random_bits))
        take(self, made, seed=number("seed", seed), random_bits=int32("random_bits", random_bits))

    @property
    def text(self) -> str:
        """The name and everything else that determines the values; ranks compare it."""
        return self._held.text

    @property
    def is_compressor(self) -> bool:
        """True if it is one of `compressors`, not a format."""
        return not self._held.is_format

    @property
    def is_fixed(self) -> bool:
        """True if layers of equal size always take equally many bytes."""
        return self._held.is_fixed

    @property
    def by_rows(self) -> bool:
        """True if the decoded values depend on a layer's rows or columns."""
        return self._held.by_rows

    def layout(self, shape: Sequence[int]) -> RowLayout:
        """Returns the layout that the codec needs of a layer, and the length of the layer's rows.

        A row has the values of one index of the first dimension; a vector is one row. The columns
        of one_bit run along the first dimension of two (matrices of outputs × inputs), along the
        last of three and more (kernels of convolutions), or along `axis`. A vector is one column.
        With `axis`, buckets are values of a column too (`qsgd axis=0`).

        Args:
            shape: the layer's shape.

        Returns:
            The axis that is moved last, and the number of values of a row.

        Raises:
            ValueError: for an axis that the shape does not have.
        """
        return self._layout_of(shape)

    def _layout_of(self, shape: Sequence[int]) -> RowLayout:
        return RowLayout(*self._held.layout(shape)) if self._held.by_rows else _AS_IT_IS

    @property
    def needs_gradient(self) -> bool:
        """True if a call's `States` must have the root mean square of each layer's gradient.

        `States.set_gradient` sets it.
        """
        return self._held.needs_gradient

    @property
    def bucket(self) -> int:
        """The number of values that share something that costs bytes, such as a norm."""
        return self._held.bucket

    @property
    def format(self) -> Format:
        """A format that has every decoded value; `fp32` if nothing more is known."""
        return Format._of(self._held.format)

    def encode(
        self,
        x: Any,
        *,
        state: States | None = None,
        number: int = 0,
        stream: int = 0,
        shift: int = 0,
        scale: float | None = None,
        random: Any = None,
    ) -> Packet:
        """Encodes a layer as a rank's message holds it.

        Args:
            x: a NumPy array or a torch tensor, of any shape; float32, or bfloat16 and float16,
                which are converted to float32. A GPU's tensor is copied to the host and encoded
                there.
            state: holds what a codec that feeds errors back keeps of layer `number`; default None:
                nothing was stored, and nothing is.
            number: the number of the layer in `state`; default 0.
            stream: the stream of random bits; default 0. Element i has counter i (in row-major
                order).
            shift: x · 2^shift is encoded, rounded once to binary32, and the decoded values are
                divided by 2^shift; default 0.
            scale: replaces the number that the codec measures of the whole layer, if ranks have
                agreed on one (TernGrad's scaler); default None.
            random: integers below 2^random_bits in place of the stream's, of x's shape, on the CPU;
                default None.

        Returns:
            The stream, and its values.

        Raises:
            ValueError: for an invalid argument; `state` is then unchanged.
            TypeError: for an argument of another type; `state` is then unchanged.

        >>> import numpy as np
        >>> packet = Codec("e4m3").encode(np.float32([0.3, 17.0]))
        >>> packet.values.tolist(), packet.bits_a_value
        ([0.3125, 16.0], 8.0)
        """
        check_layer("x", x, ("cpu", "cuda"))
        layout = self._layout_of(x.shape)
        values = host_values(layout.move(x.cpu() if is_torch(x) else x))
        with native_states(state) as states:
            given = _core.CodecLayerCall(
                states=states,
                number=int64("number", number),
                stream=_stream(stream),
                shift=int32("shift", shift),
                scale=None if scale is None else float(scale),
                random=None if random is None else self._integers(random, x, layout),
                row=layout.row,
            )
            data, of_blocks = self._held.encode_stream(values, given)
        device = str(x.device) if is_torch(x) else None
        return Packet(data, of_blocks, tuple(x.shape), layout, device)

    def decode(self, data: bytes, shape: Shape | None = None) -> npt.NDArray[np.float32]:
        """Decodes a stream that this codec made.

        Args:
            data: the stream.
            shape: the shape of the values, with the stream's number of values; default: 1-D, in the
                codec's order.

        Returns:
            The values, float32.

        Raises:
            ValueError: for any other bytes, and for a shape of another size.
            TypeError: for an argument of another type.
        """
        return _decoded(data, shape, self)

    def _integers(self, random: Any, x: Any, layout: RowLayout) -> npt.NDArray[np.uint32]:
        integers = np.asarray(random)
        if integers.dtype.kind not in "iu":
            raise TypeError(f"random must be integers, got {integers.dtype}")
        if integers.shape != tuple(x.shape):
            raise ValueError(f"random must have x's shape, {tuple(x.shape)}, got {integers.shape}")
        if integers.size:
            check_random_range(int(integers.min()), int(integers.max()), self.random_bits)
        return np.ascontiguousarray(layout.move(integers), np.uint32).reshape(-1)

    def __repr__(self) -> str:
        numbers = f", seed={self.seed}" if self.seed else ""
        if self.random_bits != MAX_RANDOM_BITS:
            numbers += f", random_bits={self.random_bits}"
        return f"cpd.compress.codec({self.name!r}{numbers})"

    def __str__(self) -> str:
        return self.name

    def __getstate__(self) -> dict[str, Any]:
        return arguments(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


@checked
def codec(text: CodecLike, *, seed: int = 0, random_bits: int = MAX_RANDOM_BITS) -> Codec:
    """Returns the codec of a text.

    Args:
        text: the text, as in `Codec`; or a `Codec`, which has its own seed and random_bits, and is
            returned unchanged.
        seed: the seed of the random bits; default 0.
        random_bits: the number of random bits of a rounding, 1…24; default 24.

    Returns:
        The codec.

    Raises:
        ValueError: for an invalid text or an option out of range, and for a `Codec` together with a
            seed or random_bits.
        TypeError: for an argument of another type.

    >>> codec("nvfp4", seed=3)
    cpd.compress.codec('nvfp4', seed=3)
    """
    if not isinstance(text, Codec):
        return Codec(text, seed=seed, random_bits=random_bits)
    if (seed, random_bits) != (0, MAX_RANDOM_BITS):
        raise ValueError(f"{shown(text)} has a seed and random_bits of its own: give its name")
    return text


def with_numbers(by: CodecLike, seed: int, random_bits: int) -> Codec:
    """Returns the codec with this seed and these random_bits; defaults mean its own.

    Raises ValueError if both set one of them and differ.
    """
    given = codec(by)
    numbers = []
    for name, usual, own, ours in (
        ("seed", 0, given.seed, seed),
        ("random_bits", MAX_RANDOM_BITS, given.random_bits, random_bits),
    ):
        if usual not in (own, ours) and own != ours:
            raise ValueError(f"{name} is given twice: {shown(ours)}, and {own} in {shown(given)}")
        numbers.append(own if ours == usual else ours)
    return Codec(given.name, seed=numbers[0], random_bits=numbers[1])


@checked
def decode(data: bytes, shape: Shape | None = None) -> npt.NDArray[np.float32]:
    """Decodes a stream that `Codec.encode` or `cpd compress` made.

    The stream names its codec.

    Args:
        data: the stream.
        shape: the shape of the values, with the stream's number of values; default: 1-D, in the
            codec's order.

    Returns:
        The values, float32.

    Raises:
        ValueError: for bytes that are not such a stream, and for a shape of another size.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> decode(Codec("e4m3").encode(np.float32([0.3, 17.0])).data).tolist()
    [0.3125, 16.0]
    """
    return _decoded(data, shape, None)


def _decoded(data: bytes, shape: Shape | None, by: Codec | None) -> npt.NDArray[np.float32]:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data must be bytes, got {type(data).__name__}")
    values: npt.NDArray[np.float32]
    values, head = _core.decode_stream(bytes(data))
    if by is not None and head.codec != by.name:
        raise ValueError(f"the stream was made by {shown(head.codec)}, not by {shown(by.name)}")
    sizes = None if shape is None else shape_of("shape", shape)
    if sizes is not None and math.prod(sizes) != head.count:
        raise ValueError(f"the stream has {head.count} values, not those of shape {sizes}")
    if sizes is None:
        return values
    restored: npt.NDArray[np.float32] = Codec(head.codec).layout(sizes).restored(values, sizes)
    return restored


def _stream(stream: Any) -> int:
    return number("stream", stream)
