# SPDX-License-Identifier: Apache-2.0
"""An oracle for uniform bins and for entropy codes (Elias, Huffman) as texts of 0 and 1.

It is written from the papers and from the comments of the C++ headers. It computes bins in rational
numbers and is slow.
"""

from __future__ import annotations

import heapq
import itertools
import math
import struct
from collections import Counter
from decimal import Decimal, localcontext

import numpy as np

from compress_oracle_levels import binary32
from rationals import Fraction

PACKAGE = 65536
NAN = float("nan")


def elias(k: int) -> str:
    """Returns the recursive (omega) Elias code of k >= 1 as a text of bits."""
    code = "0"
    while k > 1:
        code = f"{k:b}{code}"
        k = k.bit_length() - 1
    return code


def dense(levels: list[int]) -> str:
    return "".join(elias(abs(v) + 1) + ("" if v == 0 else str(int(v < 0))) for v in levels)


def sparse(levels: list[int]) -> str:
    places = [i for i, v in enumerate(levels) if v]
    gaps = [b - a for a, b in itertools.pairwise([-1, *places])]
    rest = "".join(
        elias(gap) + str(int(levels[i] < 0)) + elias(abs(levels[i]))
        for gap, i in zip(gaps, places, strict=True)
    )
    return elias(len(places) + 1) + rest


def huffman_lengths(counts: list[int]) -> list[int]:
    """Returns the length of each symbol's Huffman code.

    Among equal counts, symbols precede trees, smaller symbols precede greater ones, and older trees
    precede newer ones.
    """
    if len(counts) < 2:
        return [0] * len(counts)
    heap: list[tuple[int, int, int, list[int]]] = [(c, 0, i, [i]) for i, c in enumerate(counts)]
    heapq.heapify(heap)
    lengths = [0] * len(counts)
    for made in range(len(counts) - 1):
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        for i in a[3] + b[3]:
            lengths[i] += 1
        heapq.heappush(heap, (a[0] + b[0], 1, made, a[3] + b[3]))
    return lengths


def canonical(lengths: list[int]) -> list[str]:
    codes = [""] * len(lengths)
    code = before = 0
    for length, i in sorted((length, i) for i, length in enumerate(lengths)):
        code <<= length - before
        before = length
        codes[i] = f"{code:0{length}b}" if length else ""
        code += 1
    return codes


def code_table(symbols: list[int], lengths: list[int]) -> str:
    bits = elias(len(symbols) + 1)
    last, length = -1, 0
    for symbol, own in zip(symbols, lengths, strict=True):
        step = own - length
        bits += elias(symbol - last) + elias((2 * step if step >= 0 else -2 * step - 1) + 1)
        last, length = symbol, own
    return bits


def as_bytes(bits: str) -> bytes:
    padded = bits + "0" * (-len(bits) % 8)
    return bytes(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8))


def bin_of(x: float, least: float, greatest: float, bits: int) -> int:
    if least == greatest:
        return 0
    span = Fraction(greatest) - Fraction(least)
    return min(int((Fraction(x) - Fraction(least)) * 2**bits / span), 2**bits - 1)


def centre_of(number: int, least: float, greatest: float, bits: int) -> float:
    span = Fraction(greatest) - Fraction(least)
    return binary32(Fraction(least) + span * Fraction(2 * number + 1, 2 ** (bits + 1)))


def whole_bits(bits: Decimal) -> int:
    """Returns ⌊bits + 1/2⌋, limited to 1…30."""
    return min(max(math.floor(bits + Decimal("0.5")), 1), 30)


def entropy(numbers: list[int]) -> Decimal:
    """Returns the entropy of a list, in bits, from the frequency of each distinct number.

    The entropy of an empty list is 0.
    """
    with localcontext() as context:
        context.prec = 60
        total = Decimal(len(numbers))
        parts = [Decimal(c) / total for c in Counter(numbers).values()]
        return -sum((p * p.ln() / Decimal(2).ln() for p in parts), Decimal(0)).quantize(
            Decimal(10) ** -40
        )


def sampled_bits(
    x: np.ndarray, random: int, random_bits: int, c: float, sample: int, fraction: float
) -> int:
    """Returns the number of bits that the codec `uniform` chooses for x from a sample of x.

    The integer `random` decides at which value the sample begins.
    """
    numbers = x[np.isfinite(x)]
    least, greatest = float(numbers.min()), float(numbers.max())
    step = int(1 / fraction)
    begin = random * min(step, x.size) >> random_bits
    taken = [float(v) for v in x[begin::step] if math.isfinite(v)]
    bins = [bin_of(v, least, greatest, sample) for v in taken]
    return whole_bits(entropy(bins) + Decimal(c))


def gradient_bits(rms: float, c0: float, c1: float) -> int:
    """Returns a gradient's number of bits: log2(rms + c0) + c1, made an integer by `whole_bits`.

    `rms` is the root mean square of the gradient and must be a binary32 number.
    """
    with localcontext() as context:
        context.prec = 60
        return whole_bits((Decimal(rms) + Decimal(c0)).ln() / Decimal(2).ln() + Decimal(c1))


def range_of(x: np.ndarray) -> tuple[float, float]:
    numbers = x[np.isfinite(x)]
    return (float(numbers.min()) + 0.0, float(numbers.max()) + 0.0) if numbers.size else (0.0, 0.0)


def package(
    x: np.ndarray, least: float, greatest: float, bits: int, coding: str
) -> tuple[bytes, list[float]]:
    """Encodes up to 65,536 values in uniform bins. Returns the bytes and the decoded values."""
    bins = [bin_of(float(v), least, greatest, bits) if np.isfinite(v) else 2**bits for v in x]
    has_nan = 2**bits in bins
    centres = {b: NAN if b == 2**bits else centre_of(b, least, greatest, bits) for b in set(bins)}
    width = bits + has_nan
    fixed = as_bytes("".join(f"{b:0{width}b}" if width else "" for b in bins))
    counts = Counter(bins)
    symbols = sorted(counts)
    lengths = huffman_lengths([counts[s] for s in symbols])
    table = code_table(symbols, lengths)
    codes = dict(zip(symbols, canonical(lengths), strict=True))
    whole = len(table) + sum(len(codes[b]) for b in bins)
    is_huffman = coding == "huffman" and whole + 48 < len(x) * width
    half = (len(bins) + 1) // 2
    first = as_bytes(table + "".join(codes[b] for b in bins[:half]))
    second = as_bytes("".join(codes[b] for b in bins[half:]))
    body = struct.pack("<I", len(first)) + first + second if is_huffman else fixed
    head = struct.pack("<HBBff", len(x) - 1, bits, is_huffman + 2 * has_nan, least, greatest)
    return head + body, [centres[b] for b in bins]


def uniform(x: np.ndarray, bits: int, coding: str) -> tuple[bytes, np.ndarray]:
    """Returns the bytes and the decoded values of a layer, in bins of `bits` bits."""
    least, greatest = range_of(x)
    data, values = b"", []
    for begin in range(0, x.size, PACKAGE):
        piece = x[begin : begin + PACKAGE]
        one, decoded = package(piece, least, greatest, bits if least < greatest else 0, coding)
        data += one
        values += decoded
    return data, np.array(values, np.float32)
