# SPDX-License-Identifier: Apache-2.0
"""`Codec`: encodes tensors into bytes and decodes the bytes, by a method such as `qsgd`."""

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
"""The bytes of one encoded tensor, which begin with the codec's name and options."""


_AS_IT_IS = RowLayout()


@dataclass(frozen=True)
class Packet(Generic[ValuesT]):
    """An encoded tensor.

    Attributes:
        data: the encoded bytes, after a header that names the codec; `Packet.from_bytes` reads
            them.
        bytes: the number of encoded bytes without the header, as a message of an all-reduce has
            them.
        shape: the tensor's shape.
    """

    data: Stream
    bytes: int
    shape: tuple[int, ...]
    _layout: RowLayout = field(repr=False)
    _device: str | None = field(repr=False)

    @classmethod
    def from_bytes(cls, data: Stream, shape: Shape | None = None) -> Packet[Array]:
        """Reads the bytes that `Codec.encode` or `cpd compress` wrote.

        The bytes begin with a header that names the codec.

        Args:
            data: the bytes.
            shape: the tensor's shape, which must have as many values as `data`; default None: 1-D,
                in the order in which the codec stored the values.

        Returns:
            The packet. Its `values` are a NumPy array.

        Raises:
            ValueError: if `data` is not an encoded tensor, or if `shape` has another number of
                values.
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
        """The decoded values, float32: a NumPy array or a torch tensor, like the encoded tensor.

        The values have the shape and the device of the encoded tensor. The first access decodes
        the bytes.
        """
        flat, _ = _core.decode_stream(self.data)
        values: Any = self._layout.restored(flat, self.shape)
        if self._device is not None:
            import torch

            values = torch.from_numpy(values).to(self._device)
        return values  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """The number of values of the tensor."""
        return math.prod(self.shape)

    @property
    def bits_a_value(self) -> float:
        """Encoded bits per value, without the header; 0 if there are no values."""
        return 8 * self.bytes / self.size if self.size else 0.0


@functools.partial(checked, own=("codec", "states"))
@dataclass(frozen=True, init=False, repr=False)
class Codec:
    """An encoding of a tensor's values into bytes, and the decoding of these bytes.

    Args:
        codec: a `Codec`, or the text of a codec: the name of a format (`cpd.Format`), of a scaled
            format (`cpd.Scaled`), or of a compressor (`Codec.named()`), with its options.
        random_bits: the number of random bits of each rounding, 1 to 24. Only variant A of
            stochastic rounding (`cpd.cast`) is supported. Default None: the number of the `Codec`
            that is given, or 24.
        options: options of the compressor, which replace options in the text: `Codec("qsgd",
            bits=4)` is `Codec("qsgd bits=4")`. True means `on`, False means `off`. None keeps the
            option of the text.

    Compressors and their options:

    - `qsgd` (Alistarh et al., NeurIPS 2017): each value is rounded stochastically, without bias, to
      a level: a fraction of the norm of its bucket. A bucket is a range of consecutive values.

        - `bits`: the number of bits per value, default 4. With `levels=intervals`, `bits=1` sends
          one random sign for each value.
        - `s`: the paper's number of levels above zero, 1 to 32767, instead of `bits`. With
          `coding=fixed` a value takes ⌈log2(2 s + 1)⌉ bits.
        - `bucket`: the number of consecutive values that share a norm, default 512, or `tensor` for
          one norm of all values.
        - `norm`: `max` (default), the largest magnitude, or 2.
        - `levels`: `signed` (default), a sign and 2^(bits - 1) - 1 levels; or `intervals`, 2^bits -
          1 intervals over [-norm, norm].
        - `coding`: the code of levels: `fixed` width (default) or an Elias code.
        - `spacing`: the spacing of signed levels: `uniform` (default), or `optimal`, which
          minimizes the tensor's rounding variance (Grubic et al., section 2.3).
        - `axis`: the axis along which consecutive values form buckets. Default: buckets are cut in
          row-major order.
        - `whole`: a number N; the size of buckets is rounded down to a multiple of N, such as the 9
          values of a 3 × 3 kernel. Default 1.
    - `terngrad` (Wen et al., NeurIPS 2017): each value becomes -1, 0 or 1 times a scaler, rounded
      stochastically without bias. The scaler is the largest magnitude. The standard deviation of a
      tensor of one value, or of equal values, is 0, so clipping makes all its values 0. The paper
      keeps a network's last layer in full precision: `cpd.Schedule(…, exempt=[…])`.

        - `clip`: values are first clipped to ± this number of standard deviations, default 2.5, or
          `none`.
        - `share`: whether all ranks use the largest of their scalers; default `on` with
          `bucket=tensor`, else `off`.
        - `bucket`: the number of consecutive values that share a scaler, default `tensor`.
        - `whole`: as in `qsgd`.
        - `clip_at`: the clipping limit if ranks share a scaler. `scaler` (default, as in the
          authors' code): all ranks clip at the largest limit of all ranks. `workers`: each rank
          clips at its own limit before ranks share the scaler (§ 3.3).
        - `coding`: `fixed` (default), two bits per value, or `trits`, five values per byte. `trits`
          cannot encode NaN. For a tensor that may have a NaN, an all-reduce sends the values in
          fp32 instead, and `encode` raises ValueError.
    - `one_bit` (Seide et al., Interspeech 2014): each value is sent as one bit, which selects one
      of two means of its column. The codec uses error feedback: its errors are added to the next
      call's values.

        - `bucket`: the number of consecutive values that take the place of a column (1bitSGD* of
          Grubic et al. uses 64).
        - `axis`: the axis along which columns run. Default: the first axis of a 2-D tensor, the
          last axis of a tensor of more dimensions.
        - `whole`: as in `qsgd`.
    - `top_k F CODEC`: sends the fraction F of the values, at least one value: the values with the
      largest magnitudes. All other values are decoded as 0. CODEC, default `fp32`, encodes the
      values that are sent.

        - `feedback`: the unsent values are added to the next call's values; default `on`.
    - `uniform` (Øland and Raj, ICASSP 2015): rounds values to bins of equal width between the
      tensor's least and greatest value; meant for weights.

        - `bits`: N = log2 of the number of bins, or the quantity from which N is computed.
          `entropy` (default): N = H + c, rounded, with the entropy H (in bits) of a sample that is
          divided into 2^`sample` bins. The sample has the share `fraction` of the values. Defaults:
          `c=6`, `sample=4`, `fraction=0.03`. `gradient`: N = log2(G + c0) + c1, rounded, with the
          root mean square G of the tensor's gradient (`States.set_gradient`). Defaults: `c0=1`,
          `c1=8`.
        - `coding`: `huffman` (default) or `fixed`.
        - `results`: the form in which sums are sent with `exchange="owner"`. `exact` (default): the
          format that the argument `result` of `cpd.Reduce` names. `encoded`: rounded to bins again;
          each 65,536 values of a tensor have a separate range and number of bits (§ 2 of the
          paper). Not with `bits=gradient`.
    - `fp8_rows`: 8-bit floats (e4m3fn) with one scale per row, as in torchft: the row's largest
      magnitude / 448. `int8_rows`: 8-bit integers with one scale per row: the row's largest
      magnitude / 127.

        - `row`: the number of values in a row. Default: a row has all values with the same index
          along the first axis; a 1-D tensor is one row.
        - `stochastic` (`int8_rows` only): rounds stochastically without bias.
    - `int4`: 4-bit integers with one scale per bucket: the bucket's largest magnitude / 7 (ZeRO++,
      arXiv 2306.10209).

        - `bucket`: the number of consecutive values that share a scale, default 32.
        - `stochastic`: rounds without bias.
    - `quantized FORMAT`: casts to a scaled format. In an all-reduce with `exchange="owner"`, the
      sums are cast to FORMAT again before they are sent. `stochastic`: rounds stochastically
      without bias.
    - `blockwise CODEC`: applies a codec of whole tensors to each 4096 values separately. With
      `exchange="owner"`, sums are encoded again before they are sent. If CODEC cannot encode NaN,
      as `nvfp4`, a NaN or an infinity makes all of its 4096 values NaN.
    - `feedback CODEC`: applies any codec, and adds its errors to the next call's values (Seide et
      al.; LoCo).

    The attribute `text` is the codec's canonical text: equal codecs have equal texts. Immutable,
    hashable and picklable.

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
        """Returns a copy of the codec in which some options are replaced.

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
        """Returns a description of each compressor.

        Returns:
            A dict that maps each compressor's name to a mapping with four keys: `summary`, the rule
            in words; `source`, the paper and section, or the implementation, that defines the rule;
            `evidence`, always `literature`; and `options`, the options as they are written after
            the name.

        >>> Codec.named()["terngrad"]["source"]
        'Wen et al., NeurIPS 2017'
        """
        return dict(compressors())

    @property
    def _is_compressor(self) -> bool:
        return not self._held.is_format

    @property
    def _is_fixed(self) -> bool:
        """True if the number of encoded bytes depends on a tensor's size alone."""
        return self._held.is_fixed

    @property
    def _by_rows(self) -> bool:
        """True if the decoded values depend on a tensor's rows or columns."""
        return self._held.by_rows

    def _layout(self, shape: Sequence[int]) -> RowLayout:
        """Returns the layout that the codec needs of a tensor, and the length of its rows.

        A row has all values with the same index along the first axis; a 1-D tensor is one row. The
        columns of `one_bit` run along the first axis of a 2-D tensor (a matrix of outputs ×
        inputs). They run along the last axis of a tensor of more dimensions (a kernel of a
        convolution), or along `axis`. A 1-D tensor is one column. With `axis`, as in `qsgd axis=0`,
        buckets also consist of values along that axis.

        Raises ValueError if the tensor has no axis `axis`.
        """
        return _layout_of(self._held, shape)

    @property
    def _needs_gradient(self) -> bool:
        """True if a call needs the root mean square that `States.set_gradient` stores."""
        return self._held.needs_gradient

    @property
    def _bucket(self) -> int:
        """The number of consecutive values that share a scale, a norm or a mean."""
        return self._held.bucket

    @property
    def format(self) -> Format:
        """A format that can represent every decoded value; `fp32` if no smaller format is known."""
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
        """Encodes a tensor, as a rank of an all-reduce encodes its contribution.

        Args:
            x: a NumPy array or a torch tensor, of any shape; float32, or bfloat16 and float16,
                which are converted to float32. A tensor on a GPU is copied to the host and encoded
                there.
            states: the object that stores the codec's state, such as residuals, between calls; this
                call reads and updates the state of tensor `number`. Default None: there is no
                earlier state, and no state is stored.
            number: the number of the tensor in `states`; default 0.
            seed: the seed of the random bits, for codecs that round stochastically; default 0.
            stream: the number of the random stream; default 0. Element i, in row-major order, uses
                the random number with counter i.
            shift: encodes x · 2^shift, rounded once to binary32, and divides the decoded values by
                2^shift; default 0.
            scale: replaces the number that the codec would measure from the tensor: the scaler of
                `terngrad`, on which ranks agree. Default None: the codec measures.
            random: integers from 0 to 2^random_bits - 1 that replace the generated random numbers,
                with the shape of `x`, on the CPU; default None.

        Returns:
            The packet: the encoded bytes, and their decoded `values`.

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
        """Decodes bytes that this codec wrote.

        Args:
            data: the bytes, such as a packet's `data`.
            shape: the tensor's shape, which must have as many values as `data`; default None: 1-D,
                in the order in which the codec stored the values.

        Returns:
            The values, float32.

        Raises:
            ValueError: for bytes that this codec did not write, and if `shape` has another number
                of values.
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
    """Converts a text to a `Codec`. Returns a `Codec` unchanged."""
    return text if isinstance(text, Codec) else Codec(text)


def _option_text(name: str, value: Any) -> str:
    """Returns the value of an option as it is written in a codec's text."""
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
