# SPDX-License-Identifier: Apache-2.0
"""Codecs: `Codec`, made from a text, encodes a tensor into bytes and decodes it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.compress.rows import RowLayout
from cpd.compress.states import States, native_states
from cpd.compress.table import compressors
from cpd.numeric.checked import check_text, checked
from cpd.numeric.formats import Format
from cpd.numeric.numbers import int32, int64, is_torch, number
from cpd.numeric.shown import shown
from cpd.numeric.spec import warn_of_numbers
from cpd.ops.arguments import Array, ArrayT, Shape, check_random_range, shape_of
from cpd.ops.flat import check_layer, host_values

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ValuesT = TypeVar("ValuesT", default=Any)
else:
    from typing import TypeVar

    ValuesT = TypeVar("ValuesT")
Stream: TypeAlias = bytes
"""The self-describing bytes of one layer."""


_AS_IT_IS = RowLayout()


@dataclass(frozen=True)
class Packet(Generic[ValuesT]):
    """An encoded layer.

    Attributes:
        data: the stream, for `Packet.from_bytes`.
        bytes: the size of the codec's part of `data`, which a message holds.
        shape: the layer's shape.
    """

    data: Stream
    bytes: int
    shape: tuple[int, ...]
    _layout: RowLayout = field(repr=False)
    _device: str | None = field(repr=False)

    @classmethod
    def from_bytes(cls, data: Stream, shape: Shape | None = None) -> Packet[Array]:
        """Reads a stream that `Codec.encode` or `cpd compress` made; it names its codec.

        Args:
            data: the stream.
            shape: the shape of the values, with the stream's number of values; default None: 1-D,
                in the codec's order.

        Returns:
            The packet, whose `values` are NumPy arrays.

        Raises:
            ValueError: for bytes that are not such a stream, and for a shape of another size.
            TypeError: for an argument of another type.

        >>> packet = Packet.from_bytes(Codec("e4m3").encode(np.float32([0.3, 17.0])).data)
        >>> packet.values.tolist(), packet.bytes
        ([0.3125, 16.0], 2)
        """
        values, head = _decoded(data, shape, None)
        packet: Packet[Array] = Packet(bytes_of(data), head.bytes, values.shape, _AS_IT_IS, None)
        packet.__dict__["values"] = values
        return packet

    @functools.cached_property
    def values(self) -> ValuesT:
        """The decoded values, float32, of the layer's kind, shape and device; decoded once."""
        flat, _ = _core.decode_stream(self.data)
        values: Any = self._layout.restored(flat, self.shape)
        if self._device is not None:
            import torch

            values = torch.from_numpy(values).to(self._device)
        return values  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def bits_a_value(self) -> float:
        """Bits per value of the codec's part of the stream; 0 without values."""
        return 8 * self.bytes / self.size if self.size else 0.0


@functools.partial(checked, own=("codec", "states"))
@dataclass(frozen=True, init=False, repr=False)
class Codec:
    """An encoding of a tensor's values into the bytes of a message, and back.

    Args:
        codec: a `Codec`, or the text of a codec: the name of a format (`cpd.Format`), of a scaled
            format (`cpd.Scaled`), or of a compressor (`Codec.named()`), with its options.
        random_bits: the number of random bits of each rounding, 1 to 24. Only variant A of
            stochastic rounding (`cpd.cast`) is supported. Default: the given `Codec`'s, or 24.
        options: options of the compressor, which replace the text's: `Codec("qsgd", bits=4)` is
            `Codec("qsgd bits=4")`. True and False are `on` and `off`. None selects the option's
            default.

    Compressors and their options:

    - `qsgd` (Alistarh et al., NeurIPS 2017): fractions of buckets' norms, rounded without bias.

        - `bits`: bits of a value, default 4. With `levels=intervals`, 1 is a random sign.
        - `s`: instead of `bits`, the paper's number of levels above zero, 1 to 32767. A value takes
          ⌈log2(2 s + 1)⌉ bits of fixed width.
        - `bucket`: the number of consecutive values that share a norm, default 512, or `tensor`.
        - `norm`: `max` (default), the largest magnitude, or 2.
        - `levels`: `signed` (default), a sign and 2^(bits - 1) - 1 levels; or `intervals`, 2^bits -
          1 intervals over [-norm, norm].
        - `coding`: the coding of levels: `fixed` width (default) or one of Elias' codes.
        - `spacing`: the spacing of signed levels: `uniform` (default), or `optimal`, which
          minimizes the layer's variance (Grubic et al., section 2.3).
        - `axis`: the axis along which a layer's columns run. Consecutive values of a column then
          form buckets. Default: row-major order.
        - `whole`: N: a bucket is shortened to whole groups of N values, such as the 9 values of a 3
          × 3 kernel; default 1.
    - `terngrad` (Wen et al., NeurIPS 2017): -1, 0 and 1 times a scaler, rounded without bias. A
      layer of one value, or of equal values, has no deviation and becomes 0 if values are clipped.
      The paper keeps a network's last layer in full precision: `cpd.Schedule(…, exempt=[…])`.

        - `clip`: values are first clipped to ± this number of standard deviations, default 2.5, or
          `none`.
        - `share`: whether ranks agree on the largest scaler; default `on` for whole tensors.
        - `bucket`: the number of consecutive values that share a scaler, default `tensor`.
        - `whole`: as in `qsgd`.
        - `clip_at`: the clipping limit if ranks share a scaler. `scaler` (default, as in the
          authors' code): the shared, largest limit. `workers`: each rank's own limit, before
          sharing (§ 3.3).
        - `coding`: `fixed` (default), two bits a value, or `trits`, five values in a byte. `trits`
          has no code for NaN: an all-reduce that may have a NaN then sends the same values in fp32,
          and `encode` raises ValueError.
    - `one_bit` (Seide et al., Interspeech 2014): one bit a value, two means a column, and error
      feedback.

        - `bucket`: consecutive values in place of columns (Grubic et al.'s 1bitSGD*, with 64).
        - `axis`: the axis along which columns run. Default: the first of two dimensions, the last
          of more.
        - `whole`: as in `qsgd`.
    - `top_k F CODEC`: sends the share F of the values, those with the largest magnitudes, at least
      one. The others are 0. CODEC, default `fp32`, encodes the values sent.

        - `feedback`: the unsent values are added to the next call's values; default `on`.
    - `uniform` (Øland and Raj, ICASSP 2015): bins of equal width from a layer's least value to its
      greatest, for weights.

        - `bits`: N = log2 of the number of bins, or the quantity from which N is computed.
          `entropy` (default): the entropy H of a sample, N = H + c, with the options `c`, `sample`
          and `fraction`. `gradient`: the root mean square G of the layer's gradient
          (`States.set_gradient`), N = log2(G + c0) + c1.
        - `coding`: `huffman` (default) or `fixed`.
        - `results`: the form of sums that return with `exchange="owner"`. `exact` (default): the
          spec's `result`. `encoded`: bins again, for each 65,536 values of a layer, with their own
          range and bits (§ 2 there); not with `bits=gradient`.
    - `fp8_rows`: 8-bit floats (e4m3fn) times max/448 of each row, as in torchft. `int8_rows`: 8-bit
      integers times max/127 of each row.

        - `row`: the number of values of a row. Default: the values of one index of the layer's
          first dimension; a vector is one row.
        - `stochastic` (int8_rows): rounds without bias.
    - `int4`: 4-bit integers times max/7 of each bucket (ZeRO++, arXiv 2306.10209).

        - `bucket`: the number of consecutive values that share a scale, default 32.
        - `stochastic`: rounds without bias.
    - `quantized FORMAT`: a scaled format whose sums are encoded again by their owners.
      `stochastic`: as above.
    - `blockwise CODEC`: applies a codec of whole layers to each 4096 values separately. Owners
      encode the sums again. If CODEC has no code for NaN, as `nvfp4`, a NaN or an infinity makes
      its 4096 values NaN.
    - `feedback CODEC`: any codec, whose errors are added to the next call's values (Seide et al.;
      LoCo).

    The attribute `text` is the canonical text. Immutable, hashable and picklable.

    Raises:
        ValueError: the text or an option is invalid or out of range.
        TypeError: an argument has another type.

    >>> Codec("mxfp8"), Codec("qsgd", s=16, whole=9, axis=0)
    (cpd.Codec('mxfp8'), cpd.Codec('qsgd s=16 bucket=504 axis=0'))
    """

    text: str
    random_bits: int
    _held: _core.Codec = field(init=False, compare=False)

    def __init__(
        self,
        codec: Codec | str,
        /,
        *,
        random_bits: int | None = None,
        **options: float | str | None,
    ) -> None:
        text, own = codec, _core.MAX_RANDOM_BITS
        if isinstance(codec, Codec):
            text, own = codec.text, codec.random_bits
        if not isinstance(text, str):
            raise TypeError(f"a codec must be a cpd.Codec or its text, got {shown(codec)}")
        bits = int32("random_bits", own if random_bits is None else random_bits)
        keys = [(n, _option_text(n, value)) for n, value in options.items() if value is not None]
        native = _core.Codec(text, _core.RoundingOptions.of_codec(bits), keys)
        self.__dict__.update(text=native.name, random_bits=bits, _held=native)

    def replace(self, **keys: Any) -> Codec:
        """Returns a copy with these keys changed.

        Args:
            **keys: options of the compressor, as in the constructor.

        Returns:
            The codec.

        Raises:
            ValueError: an option is invalid or out of range.
            TypeError: an argument has another type.

        >>> Codec("qsgd bits=2 bucket=64").replace(bits=4)
        cpd.Codec('qsgd bits=4 bucket=64')
        """
        return Codec(self, **keys)

    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the compressors.

        Returns:
            A mapping for each name: `summary`, the rule in words; `source`, the paper and section
            or the implementation that defines the rule; `evidence`, which is `literature`; and
            `options`, as written after the name.

        >>> Codec.named()["terngrad"]["source"]
        'Wen et al., NeurIPS 2017'
        """
        return dict(compressors())

    @property
    def _is_compressor(self) -> bool:
        return not self._held.is_format

    @property
    def _is_fixed(self) -> bool:
        """True if tensors of equal size always take equally many bytes."""
        return self._held.is_fixed

    @property
    def _by_rows(self) -> bool:
        """True if the decoded values depend on a tensor's rows or columns."""
        return self._held.by_rows

    def _layout(self, shape: Sequence[int]) -> RowLayout:
        """Returns the layout that the codec needs of a tensor, and the length of its rows.

        A row has the values of one index of the first dimension; a vector is one row. The columns
        of one_bit run along the first dimension of two (matrices of outputs × inputs), along the
        last of three and more (kernels of convolutions), or along `axis`. A vector is one column.
        With `axis`, buckets are values of a column too (`qsgd axis=0`).

        Raises ValueError for an axis that the shape does not have.
        """
        return _layout_of(self._held, shape)

    @property
    def _needs_gradient(self) -> bool:
        """True if `States.set_gradient` must have set the gradient's root mean square."""
        return self._held.needs_gradient

    @property
    def _bucket(self) -> int:
        """The number of values that share something that costs bytes, such as a norm."""
        return self._held.bucket

    @property
    def format(self) -> Format:
        """A format that has every decoded value; `fp32` if nothing more is known."""
        return Format._of(self._held.format)

    def encode(
        self,
        x: ArrayT,
        *,
        states: States | None = None,
        number: int = 0,
        seed: int = 0,
        stream: int = 0,
        shift: int = 0,
        scale: float | None = None,
        random: ArrayT | None = None,
    ) -> Packet[ArrayT]:
        """Encodes a layer as a rank's message holds it.

        Args:
            x: a NumPy array or a torch tensor, of any shape; float32, or bfloat16 and float16,
                which are converted to float32. A GPU's tensor is copied to the host and encoded
                there.
            states: the memory of codecs with error feedback, for layer `number`. Default None:
                nothing was stored, and nothing is.
            number: the index of the layer in `states`; default 0.
            seed: the seed of the random bits, for codecs that round at random; default 0.
            stream: the stream of random bits; default 0. Element i has counter i (in row-major
                order).
            shift: encodes x · 2^shift, rounded once to binary32, and divides the decoded values by
                2^shift; default 0.
            scale: replaces the number that the codec measures of the whole layer, if ranks have
                agreed on one (TernGrad's scaler); default None.
            random: integers below 2^random_bits that replace the generated ones, of x's shape, on
                the CPU; default None.

        Returns:
            The stream, and its values.

        Raises:
            ValueError: for an invalid argument; `states` are then unchanged.
            TypeError: for an argument of another type; `states` are then unchanged.

        >>> import numpy as np
        >>> packet = Codec("e4m3").encode(np.float32([0.3, 17.0]))
        >>> packet.values.tolist(), packet.bits_a_value
        ([0.3125, 16.0], 8.0)
        """
        check_layer("x", x, ("cpu", "cuda"))
        layout = _layout_of(self._held, x.shape)
        values = host_values(layout.move(x.cpu() if is_torch(x) else x))
        with _NO_STATES if states is None else native_states(states) as held_states:
            call = _core.CodecLayerCall(
                states=held_states,
                number=int64("number", number),
                seed=_seed(seed),
                stream=_stream(stream),
                shift=int32("shift", shift),
                scale=None if scale is None else float(scale),
                random=None if random is None else self._integers(random, x, layout),
                row=layout.row,
            )
            data, of_blocks = self._held.encode_stream(values, call)
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
        return _decoded(data, shape, self)[0]

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
        has_bits = self.random_bits != _core.MAX_RANDOM_BITS
        return f"cpd.Codec({self.text!r}{f', random_bits={self.random_bits}' if has_bits else ''})"

    def __str__(self) -> str:
        return self.text

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text, "random_bits": self.random_bits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        warn_of_numbers("Codec", state)
        text = state.get("name") or state["text"]  # 0.7 called it name
        self.__init__(text, random_bits=state["random_bits"])  # type: ignore[misc]


_NO_STATES = nullcontext(None)


def _layout_of(held: _core.Codec, shape: Sequence[int]) -> RowLayout:
    return RowLayout(*held.layout(shape)) if held.by_rows else _AS_IT_IS


def codec(text: Codec | str) -> Codec:
    """Returns the codec of a text. Returns a `Codec` unchanged."""
    return text if isinstance(text, Codec) else Codec(text)


def _option_text(name: str, value: Any) -> str:
    """Returns an option as a text has it."""
    if isinstance(value, bool):
        words = ("false", "true") if name == "stochastic" else ("off", "on")
        return words[value]
    if isinstance(value, str):
        check_text(name, value)
        return value
    if not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, a word or a bool, got {type(value).__name__}")
    return repr(value)


def bytes_of(data: Any) -> bytes:
    """Returns `data` as bytes. Raises TypeError for anything else."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data must be bytes, such as a Packet's data, got {type(data).__name__}")
    return bytes(data)


def _decoded(
    data: bytes, shape: Shape | None, by: Codec | None
) -> tuple[npt.NDArray[np.float32], _core.StreamInfo]:
    values: npt.NDArray[np.float32]
    values, head = _core.decode_stream(bytes_of(data))
    if by is not None and head.codec != by.text:
        raise ValueError(f"the stream was made by {shown(head.codec)}, not by {shown(by.text)}")
    sizes = None if shape is None else shape_of("shape", shape)
    if sizes is not None and math.prod(sizes) != head.count:
        raise ValueError(f"the stream has {head.count} values, not those of shape {sizes}")
    if sizes is None:
        return values, head
    restored: npt.NDArray[np.float32] = Codec(head.codec)._layout(sizes).restored(values, sizes)
    return restored, head


def _seed(seed: Any) -> int:
    return number("seed", seed)


def _stream(stream: Any) -> int:
    return number("stream", stream)
