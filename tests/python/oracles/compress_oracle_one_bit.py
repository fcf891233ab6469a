# SPDX-License-Identifier: Apache-2.0
"""An oracle for 1-bit SGD and error feedback in rational numbers, written from the definitions.

It computes a layer's decoded values, the bytes of each chunk, and the residual. Binary32 numbers
are Python floats with binary32 values. Sums are binary64 additions in the order of indices, as in
Python.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from compress_oracle_levels import binary32
from rationals import Fraction

NAN = math.nan


def add32(a: float, b: float) -> float:
    """Returns a + b, rounded once to binary32."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    exact = Fraction(a) + Fraction(b)
    return a + b if exact == 0 else binary32(exact)


def scaled(x: float, shift: int) -> float:
    """Returns x * 2^shift, rounded once to binary32."""
    return binary32(Fraction(x) * Fraction(2) ** shift) if math.isfinite(x) and x else x


def mean(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return binary32(Fraction(total) / len(values)) if values else 0.0


def means_of(v: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of the values >= 0 (-0 is one of them) and the mean of the other values.

    Both means are NaN if a value is NaN or infinite.
    """
    if not all(map(math.isfinite, v)):
        return NAN, NAN
    return mean([a for a in v if a >= 0]), mean([a for a in v if not a >= 0])


class Layer:
    """A layer encoded by 1-bit SGD: its decoded values, its chunks' bytes and the new residual."""

    def __init__(
        self, x: Sequence[float], residual: Sequence[float], bucket: int, shift: int = 0
    ) -> None:
        self.bucket = bucket
        self.v = [add32(scaled(a, shift), r) for a, r in zip(x, residual, strict=True)]
        self.means = [means_of(self.v[i : i + bucket]) for i in range(0, len(x), bucket)]
        self.values = [self.means[i // bucket][0 if a >= 0 else 1] for i, a in enumerate(self.v)]
        self.next = [
            r if math.isnan(q) else add32(a, -q)
            for a, q, r in zip(self.v, self.values, residual, strict=True)
        ]

    def block(self, begin: int, n: int, words: bool) -> bytes:
        """Returns the bytes of n values: the means of their buckets, then one bit for each value.

        The first value has the lowest bit. If `words`, the bits of each bucket fill 32-bit words.
        """
        buckets = range(begin // self.bucket, -(-(begin + n) // self.bucket))
        means = b"".join(struct.pack("<ff", *self.means[b]) for b in buckets)
        runs = [(begin, begin + n)]
        if words:
            cuts = [b * self.bucket for b in buckets]
            runs = [(max(begin, c), min(begin + n, c + self.bucket)) for c in cuts]
        bits = b""
        for first, last in runs:
            code = sum((self.v[i] >= 0) << (i - first) for i in range(first, last))
            width = 4 * -(-(last - first) // 32) if words else -(-(last - first) // 8)
            bits += code.to_bytes(width, "little")
        return means + bits


def payload_bits(column: int) -> int:
    """Returns the number of bits that encode a column: two means, and a bit for each value in
    32-bit words."""
    return 32 * -(-column // 32) + 64


class Feedback:
    """Error feedback around a codec.

    A call adds the residual r to its input, which APS scales: v = x * 2^shift + r. The function
    `rounded` encodes and decodes v. The new residual is v minus the decoded value, or 0 if that
    difference is not finite.
    """

    def __init__(self, rounded: Callable[[list[float]], list[float]], size: int) -> None:
        self.rounded = rounded
        self.residual = [0.0] * size

    def call(self, x: Sequence[float], shift: int = 0) -> list[float]:
        v = [add32(scaled(a, shift), r) for a, r in zip(x, self.residual, strict=True)]
        decoded = self.rounded(v)
        errors = [add32(a, -q) for a, q in zip(v, decoded, strict=True)]
        self.residual = [e if math.isfinite(e) else 0.0 for e in errors]
        return decoded
