# SPDX-License-Identifier: Apache-2.0
"""Functions that make arrays of bit patterns, and functions that compare arrays with the oracle in
rational arithmetic."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import cpd
import fixed_oracle
import gemm_oracle
import oracle
from by_keywords import by_keywords
from cpd.numeric.accumulator import scheme_of
from rationals import Fraction

SPECIAL_BITS = [
    sign | bits
    for bits in (
        *(0x00000000, 0x00000001, 0x003FFFFF, 0x00400000, 0x00400001, 0x007FFFFF, 0x00800000),
        *(0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000),
        *(0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FC12345, 0x7FFFFFFF),  # NaN of all kinds
    )
    for sign in (0, 0x80000000)
]


def spec_of(f: cpd.Format) -> oracle.Spec:
    return oracle.Spec(f.exp, f.man, f.bias, f.encoding, f.signed, f.subnormals)


def fixed_of(acc: cpd.Accumulator) -> fixed_oracle.Fixed:
    """Converts a fixed-point accumulator (scheme `fixed`) to the oracle's class `Fixed`."""
    assert acc.form == "integer"
    options = oracle.Options(acc.rounding, acc.overflow)
    return fixed_oracle.Fixed(
        spec_of(acc.format), acc.width, acc.fraction, acc.sum_rounding, options
    )


def accumulation_of(
    acc: cpd.Accumulator, given: Any = None, seed: int = 0, stream: int = 0
) -> gemm_oracle.Accumulation:
    """Converts an accumulator to the oracle's class `Accumulation`. `given` is the array of random
    integers that a caller passes as `random=`, or None."""
    unit = acc.form == "unit" and gemm_oracle.Unit(
        spec_of(acc.a),
        spec_of(acc.b),
        acc.block,
        acc.fraction_bits,
        spec_of(acc.sum),
        acc.sum_rounding,
        acc.addend == "aligned",
        acc.min_exponent,
        acc.promote,
        acc.scale and spec_of(acc.scale),
        acc.scale_block,
        acc.dot,
        acc.adder,
        acc.group,
        acc.stride,
        acc.take,
    )
    rows = None if given is None else given.reshape(-1, given.shape[-1]).tolist()
    return gemm_oracle.Accumulation(
        spec_of(acc.format),
        scheme_of(acc),
        "exact" if acc.product in ("exact", None) else spec_of(cpd.Format(acc.product)),
        spec_of(acc.inner or acc.format),
        acc.chunk or 64,
        unit or None,
        oracle.Options(acc.rounding, acc.overflow, acc.variant, acc.random_bits),
        seed,
        stream,
        **({} if rows is None else {"given": rows}),
    )


def sum_of(acc: cpd.Accumulator, terms: Any, step: Any) -> int:
    """Returns the oracle's sum of the terms, which are bit patterns or values. `step` is called for
    each rounding and returns the rounding's options, with its random integer."""
    o = oracle.Options(acc.rounding, acc.overflow, acc.variant, acc.random_bits)
    f = spec_of(acc.format)
    if acc.scheme == "chunked":
        return oracle.fold_chunked(f, spec_of(acc.inner), acc.chunk, terms, o, step)
    if acc.scheme == "pairwise":
        return oracle.fold_pairwise(f, terms, o, step)
    return oracle.fold(f, terms, o, acc.scheme == "kahan", step)


def from_bits(bits: Iterable[int]) -> npt.NDArray[np.float32]:
    return np.array(list(bits), np.uint32).view(np.float32)


def to_bits(x: npt.NDArray[np.float32]) -> list[int]:
    assert x.dtype == np.float32
    return [int(b) for b in np.ascontiguousarray(x).view(np.uint32).ravel()]


def assert_same_bits(
    got: npt.NDArray[np.float32], expected: Sequence[int], about: str = ""
) -> None:
    """Asserts that the patterns are equal, and names the first index at which they differ."""
    have = to_bits(got)
    assert len(have) == len(expected), about
    for i, (a, b) in enumerate(zip(have, expected, strict=True)):
        assert a == b, f"{about} at {i}: expected {b:08X}, got {a:08X}"


def unpack(codes: npt.NDArray[np.uint8], bits: int, n: int) -> list[int]:
    """Returns `n` codes of `bits` bits each, read from packed bytes: least significant bit first,
    without gaps."""
    stream = np.unpackbits(codes, count=n * bits, bitorder="little").reshape(n, bits)
    result: list[int] = (stream.astype(np.int64) << np.arange(bits)).sum(axis=1).tolist()
    return result


def pack(codes: Sequence[int], bits: int) -> npt.NDArray[np.uint8]:
    stream = np.array(codes, np.int64).reshape(-1, 1) >> np.arange(bits) & 1
    return np.packbits(stream.astype(np.uint8), bitorder="little")


def truncated_bits(value: Fraction) -> int:
    """Returns the bit pattern of the largest binary32 number that is not above a positive value."""
    binary32 = oracle.Spec(8, 23)
    down = oracle.Options("toward_zero", "saturate")
    return oracle.bits_from_value(oracle.round_value(binary32, oracle.number(value), down))


def boundary_bits(spec: oracle.Spec, codes: int = 12, noise: int = 40, seed: int = 1) -> list[int]:
    """Returns binary32 patterns that test rounding to a format. Special values come first. Then
    come, for some pairs of neighboring values, the lower value, the midpoint and a random number
    between. Each is in both signs and with its binary32 neighbors. Random patterns come last."""
    generator = random.Random(seed)
    top = spec.max_code + 3
    chosen = {0, 1, 2, top, top - 1, top - 2, top - 3, 1 << spec.man, max(0, (1 << spec.man) - 1)}
    chosen |= {generator.randrange(top + 1) for _ in range(codes)}
    result = list(SPECIAL_BITS)
    for code in sorted(c for c in chosen if c >= 0):
        low, high = spec.magnitude(code), spec.magnitude(code + 1)
        if not spec.subnormals and low == 0:
            high = spec.magnitude(1 << spec.man)
        for part in (Fraction(0), Fraction(1, 2), Fraction(generator.randrange(1, 32), 32)):
            bits = truncated_bits(low + (high - low) * part)
            for near in (max(0, bits - 1), bits, bits + 1):
                result += [near, near | 0x80000000]
    result += [generator.getrandbits(32) for _ in range(noise)]
    return result


def call(operation: Any, *args: Any, o: oracle.Options, **more: Any) -> Any:
    """Calls a cpd operation with the rounding and the overflow of the oracle's options."""
    return by_keywords(operation, *args, rounding=o.rounding, overflow=o.overflow, **more)


# ---- layouts -----------------------------------------------------------------------------------


def _packed(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns the values as the float32 field of records of 5 bytes, so that they are not
    aligned."""
    records = np.zeros(x.size, np.dtype([("a", np.int8), ("x", np.float32)]))
    records["x"] = x.reshape(-1)
    return records["x"]


# Views of an array of shape 8 x 6 x 10. A torch tensor may have the layouts of STRIDED; LAYOUTS
# adds layouts that only NumPy has.
STRIDED: dict[str, Any] = {
    "transposed": lambda x: x.transpose(2, 0, 1),
    "fortran": np.asfortranarray,
    "strided": lambda x: x[1:, ::2, 1::3],
    "offset": lambda x: x[1:, 2:, 3:],
    "column": lambda x: x[..., 3],
    "broadcast": lambda x: np.broadcast_to(x[:1], (5, 6, 10)),
    "zero-dim": lambda x: x[1, 2, 3, ...],
    "empty": lambda x: x[:, :0],
    "size-one": lambda x: x[:, :1, :1],
    "deep": lambda x: x.reshape(2, 2, 2, 1, 6, 1, 1, 1, 1, 1, 1, 1, 1, 2, 5, 1),
}
LAYOUTS = STRIDED | {
    "reversed": lambda x: x[::-1, :, ::-2],
    "scalar": lambda x: x[1, 2, 3],
    "unaligned": lambda x: _packed(x[0, :2]),
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32),
}


def layout(name: str, nan: bool = True) -> Any:
    """Returns an array with values near e4m3's rounding boundaries, in the memory layout `name` of
    LAYOUTS. With nan=False, finite numbers replace NaN and infinity."""
    bits = boundary_bits(oracle.Spec(4, 3), codes=40, noise=200)
    x = from_bits((bits * 2)[:480]).reshape(8, 6, 10)
    return LAYOUTS[name](x if nan else np.nan_to_num(x))


def layer(n: int, seed: int) -> np.ndarray:
    """Returns `n` values of many magnitudes. Some are zero, some subnormal, and some are integers
    from -8 to 8, to which integer codecs round."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n) * 2.0 ** generator.integers(-6, 3, n)
    x[generator.random(n) < 0.1] = 0
    x[generator.random(n) < 0.1] *= 1e-42
    grid = generator.random(n) < 0.1
    x[grid] = generator.integers(-8, 9, n)[grid]
    return x.astype(np.float32)


def assert_same_values(expected: Any, got: Any) -> None:
    """Asserts that two arrays have the same float32 values in order. The shapes may differ. Zeros
    must have the same sign, and NaN equals NaN."""
    expected, got = (np.asarray(v, np.float32).ravel() for v in (expected, got))
    nan = np.isnan(expected)
    np.testing.assert_array_equal(nan, np.isnan(got))
    bits = [v[~nan].view(np.uint32) for v in (expected, got)]
    np.testing.assert_array_equal(*bits)
