# SPDX-License-Identifier: Apache-2.0
"""Golden files: stored results of calls whose inputs a fixed recurrence generates.

A file of version 0.7 holds an array as the text `SHA-256 type shape words`. The words are the
array's first ones in hexadecimal digits, without trailing zeros: 3fc stands for 3fc00000.
`checksum` joins the results of many calls into one SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cpd
from arrays import SPECIAL_BITS

FOLDER = Path(__file__).parents[2] / "golden"
HEAD = 12
"""The number of an array's first words that golden files of version 0.7 hold."""

FORMATS = (
    *("e4m3", "e5m2", "e3m4", "e3m0", "e2m1", "e1m2", "e2m5", "e5m5", "e6m9", "e8m4", "e8m23"),
    *("e4m3fn", "e4m3fnuz", "e5m2fnuz", "e4m3fnuz:bias=11", "e4m3finite", "e8m0", "e3m2", "e2m3"),
    *("binary8p4se", "binary8p3uf", "binary6p3sf", "e4m3:nosub", "e5m2fn:nosub", "e4m3:unsigned"),
    *("e5m3:bias=20", "bf16", "fp16", "tf32", "fp32"),
)

Make = Callable[[npt.NDArray[Any]], Any]
Cases = Iterator[tuple[str, Any]]


# ---- inputs --------------------------------------------------------------------------------------


def words(n: int, seed: int) -> npt.NDArray[np.uint64]:
    """Returns `n` 64-bit patterns of the generator SplitMix64 (Steele, Lea, Flood 2014)."""
    z = (np.arange(1, n + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def integers(shape: Any, seed: int, bits: int) -> npt.NDArray[np.int64]:
    """Returns pseudorandom integers in [0, 2^bits)."""
    z = words(math.prod(shape), seed) & np.uint64(2**bits - 1)
    return z.astype(np.int64).reshape(shape)


def floats(shape: Any, seed: int, low: int = -4, high: int = 3) -> npt.NDArray[np.float32]:
    """Returns pseudorandom floats of both signs, with exponents from `low` to `high` and any
    significand."""
    z = words(math.prod(shape), seed).astype(object)
    bits = [
        (b & 1) << 31 | (127 + low + (b >> 8 & 0xFFFF) % (high - low + 1)) << 23 | b >> 41
        for b in z.tolist()
    ]
    return np.array(bits, np.uint32).view(np.float32).reshape(shape)


def points(f: cpd.Format, seed: int = 1) -> npt.NDArray[np.float32]:
    """Returns binary32 inputs for a cast to format `f`. The first inputs are midpoints between
    values with the midpoints' neighbors, also beyond the format's range, then special values and
    random patterns."""
    top = min(127, math.frexp(f.max)[1] + 1)
    low = max(-126, math.frexp(f.min_subnormal or 1.0)[1] - 3)
    step = 23 - f.man
    half = 1 << step >> 1
    tails = (half, 0, half + 1, half - 1, 1, 2 * half - 1) if step > 1 else (0, half)
    bits = []
    for i, b in enumerate(words(96, seed).tolist()):
        kept = b >> 41 >> step << step
        bits.append((b & 1) << 31 | (127 + low + (b >> 8 & 0xFFFF) % (top - low + 1)) << 23 | kept)
        bits[-1] += tails[i % len(tails)]
    least = f.min_subnormal or 1.0
    near = np.array([(k + d) * least for k in range(6) for d in (0.0, 0.25, 0.5, 0.75)])
    for b in near.astype(np.float32).view(np.uint32).tolist():
        bits += [b, b + 1, max(b, 1) - 1, b | 1 << 31]
    bits += SPECIAL_BITS
    bits += (words(96, seed + 1) >> np.uint64(32)).tolist()
    return np.array(bits, np.uint32).view(np.float32)


def bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def halves(n: int, seed: int, dtype: Any) -> npt.NDArray[Any]:
    """Returns `n` random bit patterns as values of a 16-bit type."""
    return (words(n, seed) >> np.uint64(48)).astype(np.uint16).view(dtype)


def doubles(x: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float64]:
    """Returns twice as many float64 numbers as `x` has: first the values of `x`, about half of them
    changed in the last bit, then random patterns."""
    z = words(x.size, seed)
    with np.errstate(invalid="ignore"):
        near = x.astype(np.float64).view(np.uint64) | (z & np.uint64(1))
    return np.concatenate([near, z]).view(np.float64)


# ---- front ends ---------------------------------------------------------------------------------


def numpy(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return x


def tensor(x: npt.NDArray[Any]) -> Any:
    """Returns a torch tensor with the bits of `x`. The tensor has the strides of `x` too, where
    torch supports them."""
    import torch

    if any(stride < 0 for stride in x.strides):
        x = x.copy()
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


# ---- results -------------------------------------------------------------------------------------


def recorded(value: Any) -> Any:
    """Converts a result to the form in which a file of version 0.7 stores it."""
    if isinstance(value, tuple):
        return [recorded(one) for one in value]
    if isinstance(value, float):
        return value.hex()
    if value is None or isinstance(value, (bool, int, str, list, dict)):
        return value
    if not isinstance(value, (np.ndarray, np.generic)):
        return _array(str(value.dtype).removeprefix("torch."), _tensor_bits(value))
    return _array(value.dtype.name, np.ascontiguousarray(value).reshape(value.shape))


def _tensor_bits(x: Any) -> npt.NDArray[Any]:
    import torch

    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits: npt.NDArray[Any] = x.detach().contiguous().view(sizes[x.element_size()]).numpy()
    return bits


def _array(kind: str, x: npt.NDArray[Any]) -> str:
    size = x.dtype.itemsize
    data = x.tobytes()  # row-major
    shape = "x".join(str(n) for n in x.shape) or "scalar"
    head = np.frombuffer(data[: HEAD * size], f"<u{size}")
    shown = " ".join(f"{int(word):0{2 * size}x}".rstrip("0") or "0" for word in head)
    return f"{hashlib.sha256(data).hexdigest()} {kind} {shape} {shown}".rstrip()


def checksum(values: Iterable[Any]) -> str:
    """Returns a single SHA-256 of all values, with their types and shapes."""
    return hashlib.sha256("\n".join(str(recorded(value)) for value in values).encode()).hexdigest()


def dumped(value: dict[str, Any]) -> str:
    """Returns JSON text with one line for each of the outermost keys."""
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
