# SPDX-License-Identifier: Apache-2.0
"""Measures the bytes, errors, variances and times of codecs on tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd.compress.codecs import Codec

Values = npt.NDArray[np.float32]

_ZSTD_LEVEL = 3


@dataclass
class Figures:
    """Measurements of a codec on one tensor, or their sums over several tensors.

    Attributes:
        values: the number of values.
        bytes: the number of encoded bytes.
        encode: the time to encode, in seconds.
        decode: the time to decode, in seconds.
        squares: the sum of the squares of the finite values.
        errors: the sum of the squared errors of the decoded values.
        variances: the sum of the variances of the decoded values over several seeds; None if
            decoded values do not depend on the seed.
    """

    values: int = 0
    bytes: int = 0
    encode: float = 0.0
    decode: float = 0.0
    squares: float = 0.0
    errors: float = 0.0
    variances: float | None = None

    @property
    def bits_a_value(self) -> float:
        """Encoded bits per value; 0 if there are no values."""
        return 8 * self.bytes / self.values if self.values else 0.0

    @property
    def ratio(self) -> float:
        """The compression ratio: bytes of the values in binary32 per encoded byte."""
        return 4 * self.values / self.bytes if self.bytes else math.nan

    @property
    def relative_rms(self) -> float:
        """The relative RMS error: sqrt(sum of squared errors / sum of squared values)."""
        return math.sqrt(_share(self.errors, self.squares))

    @property
    def variance(self) -> float | None:
        """The relative variance of the decoded values: sum of variances / sum of squared values.

        None for a codec without random bits.
        """
        return None if self.variances is None else _share(self.variances, self.squares)

    def json(self) -> dict[str, Any]:
        """Returns the measurements as a dict, for JSON. Its keys name the columns of the table."""
        names = ("values", "bytes", "bits_a_value", "ratio", "relative_rms", "variance")
        return {
            **{name: getattr(self, name) for name in names},
            "encode_seconds": self.encode,
            "decode_seconds": self.decode,
        }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 if part == 0 else math.inf


def total(parts: Iterable[Figures]) -> Figures:
    """Returns the sums of the measurements of several tensors."""
    whole = Figures()
    for part in parts:
        for name, value in asdict(part).items():
            if value is not None:
                setattr(whole, name, (getattr(whole, name) or 0) + value)
    return whole


def measured(wire: str, seeds: range, x: Values) -> tuple[Figures, bytes]:
    """Measures the codec with the text `wire` on a tensor.

    Returns the measurements, and the packet (the encoded bytes with a header) for the first seed.
    """
    data, first, figures = _first(Codec(wire), x, seeds[0])
    mean = first.copy()
    squares = np.zeros_like(mean)
    for number, seed in enumerate(seeds[1:], start=2):  # Welford's recurrence
        again = _wide(x, Codec(wire).encode(x, seed=seed).values)
        if number == 2 and np.array_equal(again, first):
            break  # the codec is not random
        step = again - mean
        mean += step / number
        squares += step * (again - mean)
    else:
        if len(seeds) > 1:
            figures.variances = float(squares.sum()) / (len(seeds) - 1)
    return figures, data


def _first(by: Codec, x: Values, seed: int) -> tuple[bytes, npt.NDArray[np.float64], Figures]:
    begin = time.perf_counter()
    packet = by.encode(x, seed=seed)
    encoded = time.perf_counter() - begin
    decoded = min(_seconds_of(lambda: by.decode(packet.data)) for _ in range(3))
    reference, got = _wide(x, x), _wide(x, packet.values)
    figures = Figures(
        values=x.size,
        bytes=packet.bytes,
        encode=max(0.0, encoded - decoded),  # encoding also decodes the packet's values
        decode=decoded,
        squares=float((reference**2).sum()),
        errors=float(((got - reference) ** 2).sum()),
    )
    return packet.data, got, figures


def _seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _wide(x: Values, q: Values) -> npt.NDArray[np.float64]:
    """Returns, in binary64, the values of the array q at the indices at which x is finite."""
    return np.asarray(q[np.isfinite(x)], np.float64)


def by_zstd(x: Values) -> Figures | None:
    """Measures the lossless compressor zstd; returns None if the package zstandard is missing."""
    try:
        import zstandard
    except ImportError:
        return None
    begin = time.perf_counter()
    data = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(x.tobytes())
    middle = time.perf_counter()
    zstandard.ZstdDecompressor().decompress(data)
    end = time.perf_counter()
    return Figures(x.size, len(data), middle - begin, end - middle, squares=1.0)
