# SPDX-License-Identifier: Apache-2.0
"""Golden cases of the operations on elements: cast, encode, decode, add, mul, fma and the random
integers."""

from __future__ import annotations

import functools

import numpy as np

import cpd
from by_keywords import by_keywords
from golden import Cases, Make, bfloat16, doubles, error_of, floats, halves, integers, points, words

FORMATS = (
    *("e4m3", "e5m2", "e3m4", "e3m0", "e2m1", "e1m2", "e2m5", "e5m5", "e6m9", "e8m4", "e8m23"),
    *("e4m3fn", "e4m3fnuz", "e5m2fnuz", "e4m3fnuz:bias=11", "e4m3finite", "e8m0", "e3m2", "e2m3"),
    *("binary8p4se", "binary8p3uf", "binary6p3sf", "e4m3:nosub", "e5m2fn:nosub", "e4m3:unsigned"),
    *("e5m3:bias=20", "bf16", "fp16", "tf32", "fp32"),
)
SHORT = ("e4m3", "e3m0", "e4m3fn", "e5m2fnuz", "binary8p4se", "e5m2:nosub", "e6m9", "bf16", "fp32")
ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd")
RANDOM_BITS = (4, 8, 24)


def _bits(rounding: str) -> dict[str, int]:
    return {"random_bits": 8} if rounding == "stochastic" else {}


def cast_cases(make: Make) -> Cases:
    for name in FORMATS:
        f = cpd.Format(name)
        x = make(points(f))
        for rounding in ROUNDINGS if name in SHORT else ("nearest_even", "up", "to_odd"):
            yield f"{name} {rounding}", cpd.cast(x, cpd.Cast(f, rounding=rounding))
        for bits in RANDOM_BITS if name in SHORT else (8,):
            options = {"seed": 2**63 + 5, "stream": 7 + bits, "random_bits": bits}
            yield (
                f"{name} stochastic {bits}",
                by_keywords(cpd.cast, x, f, rounding="stochastic", **options),
            )
    for name in SHORT:
        f = cpd.Format(name)
        x = make(points(f, 9))
        for rounding in ("nearest_even", "toward_zero", "up", "stochastic"):
            yield (
                f"{name} {rounding} saturate",
                cpd.cast(x, cpd.Cast(f, rounding=rounding, overflow="saturate")),
            )
    for name in ("e4m3", "e4m3fnuz", "fp16", "bf16", "e8m0"):
        x = make(points(cpd.Format(name), 3))
        for variant in "BC":
            options = {"variant": variant, "random_bits": 6, "seed": 3, "stream": 2**64 - 1}
            yield (
                f"{name} variant {variant}",
                by_keywords(cpd.cast, x, name, rounding="stochastic", **options),
            )
        given = make(integers(points(cpd.Format(name), 3).shape, 4, 6))
        options = {"random_bits": 6, "random": given}
        yield (
            f"{name} random given",
            by_keywords(cpd.cast, x, name, rounding="stochastic", **options),
        )
    yield from _cast_storage(make)
    yield from _cast_layouts(make)


def _cast_storage(make: Make) -> Cases:
    for name in ("e4m3", "e5m2fnuz", "e4m3fn", "binary8p4se", "e5m2:nosub", "fp16", "fp32"):
        f = cpd.Format(name)
        wide = make(doubles(points(f, 5), 6))
        for rounding in ("nearest_even", "nearest_away", "up", "to_odd", "stochastic"):
            yield (
                f"{name} {rounding} float64",
                cpd.cast(wide, cpd.Cast(f, rounding=rounding), seed=4),
            )
    for name in ("e4m3", "e4m3fnuz", "e3m2", "e5m2:unsigned"):
        for kind in (np.float16, bfloat16()):
            x = make(halves(300, 7, kind))
            for rounding in ("nearest_even", "down", "stochastic"):
                label = f"{name} {rounding} {np.dtype(kind).name}"
                yield (
                    label,
                    by_keywords(cpd.cast, x, name, rounding=rounding, seed=4, **_bits(rounding)),
                )


def _cast_layouts(make: Make) -> Cases:
    x = floats((6, 10, 7), 8, -8, 5)
    layouts = {
        "transposed": x[0].T,
        "every other": x[:, ::2, 1::3],
        "backwards": x[::-1, :, ::-2],
        "permuted": x.transpose(2, 0, 1),
        "repeated": np.lib.stride_tricks.as_strided(x, (10, 5), (28, 0)),
        "one": x[0, 0, 0, ...],
        "none": x[:0],
        "wide": floats((3, 5000), 9, -8, 5)[:, 1:4998],
    }
    for label, view in layouts.items():
        for rounding in ("nearest_even", "stochastic"):
            y = by_keywords(
                cpd.cast, make(view), "e4m3", rounding=rounding, seed=1, **_bits(rounding)
            )
            yield f"layout {label} {rounding}", y
    for label in ("itself", "strided"):
        y = make(x.copy() if label == "itself" else np.zeros((6, 10, 14), np.float32)[..., ::2])
        source = y if label == "itself" else make(x)
        yield f"out {label}", cpd.cast(source, "e5m2", out=y)


def encode_cases(make: Make) -> Cases:
    for name in FORMATS:
        f = cpd.Format(name)
        x = points(f)
        some = make(np.where(np.isnan(x), np.float32(1), x)[:-1])
        yield f"{name}", cpd.encode(some, f)
        yield (
            f"{name} stochastic",
            cpd.encode(some, cpd.Cast(f, rounding="stochastic", random_bits=8), seed=2),
        )
        nan = make(np.array([1, np.nan, -np.nan, np.inf, -np.inf, -0.0, 0], np.float32))
        told = error_of(lambda nan=nan, f=f: cpd.encode(nan, f))
        yield f"{name} NaN", told if told != "no error" else cpd.encode(nan, f)
    for name in SHORT:
        x = floats((400,), 10, -12, 9)
        for rounding in ROUNDINGS[1:]:
            yield (
                f"{name} {rounding}",
                cpd.encode(make(x), cpd.Cast(name, rounding=rounding, overflow="saturate")),
            )
    yield "float64", cpd.encode(make(doubles(floats((90,), 11), 12)[:90]), "e5m5")
    for kind in (np.float16, bfloat16()):
        x = make(np.nan_to_num(halves(301, 13, kind).astype(np.float32), posinf=1).astype(kind))
        yield f"{np.dtype(kind).name}", cpd.encode(x, "e2m1")
    yield "strided", cpd.encode(make(floats((9, 10), 14)[::2].T), "e3m2")


def decode_cases(make: Make) -> Cases:
    for name in FORMATS:
        f = cpd.Format(name)
        n = 2**f.bits if f.bits <= 8 else 300
        bits = np.arange(n) if f.bits <= 8 else integers((n,), 15, f.bits)
        stream = sum(int(code) << (i * f.bits) for i, code in enumerate(bits))
        codes = np.frombuffer(stream.to_bytes((n * f.bits + 7) // 8, "little"), np.uint8).copy()
        yield f"{name}", cpd.decode(make(codes), f, n)
        if name in ("e4m3", "e4m3fnuz", "binary8p4se", "e2m1"):
            out = make(np.zeros(n, np.float16))
            yield f"{name} float16", cpd.decode(make(codes), f, n, out=out)
    codes = make((words(60, 16) & np.uint64(255)).astype(np.uint8))
    yield "shape", cpd.decode(codes, "e2m1", (4, 5, 6))
    out = make(np.zeros((12, 10), np.float64)[::2])
    yield "out float64", cpd.decode(codes, "e4m3", (6, 10), out=out)


def add_cases(make: Make) -> Cases:
    yield from _arithmetic("add", 2, make)


def mul_cases(make: Make) -> Cases:
    yield from _arithmetic("mul", 2, make)


def fma_cases(make: Make) -> Cases:
    yield from _arithmetic("fma", 3, make)


def _arithmetic(operation: str, operands: int, make: Make) -> Cases:
    operation = functools.partial(by_keywords, getattr(cpd, operation))
    for name in ("e4m3", "e4m3fn", "e5m2fnuz", "e5m2:nosub", "e6m9", "fp32"):
        f = cpd.Format(name)
        x = points(f, 20)
        some = [make(x), make(np.roll(points(f, 21), 5)), make(np.roll(points(f, 22), 60))]
        near = [make(floats((200,), 23 + i, -3, 2)) for i in range(3)]
        for rounding in ("nearest_even", "up", "to_odd"):
            yield f"{name} {rounding} points", operation(*some[:operands], f, rounding)
        for rounding in ("nearest_even", "nearest_away", "down"):
            yield f"{name} {rounding}", operation(*near[:operands], f, rounding, "saturate")
        for bits in RANDOM_BITS:
            options = {"seed": 6, "stream": bits, "random_bits": bits, "variant": "ABC"[bits % 3]}
            y = operation(*near[:operands], f, "stochastic", **options)
            yield f"{name} stochastic {bits}", y
    wide = [make(doubles(floats((60,), 26 + i), 29 + i)) for i in range(3)]
    for rounding in ("nearest_even", "down", "stochastic"):
        yield f"float64 {rounding}", operation(*wide[:operands], "e5m9", rounding)
    for kind in (np.float16, bfloat16()):
        narrow = [make(halves(200, 32 + i, kind)) for i in range(3)]
        yield f"{np.dtype(kind).name}", operation(*narrow[:operands], "e4m3")
    shapes = (5, 1, 7), (3, 1), (2, 5, 3, 7)
    broad = [make(floats(shape, 36 + i)) for i, shape in enumerate(shapes[:operands])]
    yield "broadcast", operation(*broad, "e5m2", "stochastic", seed=9)
    turned = [make(floats((9, 8), 39 + i)[::2].T) for i in range(3)]
    out = make(np.zeros((8, 5), np.float32))
    yield "strided", operation(*turned[:operands], "e4m3", out=out)


def random_integers_cases(make: Make) -> Cases:
    for bits in range(1, 25):
        yield f"{bits}", cpd.random_integers(100, 5, bits, random_bits=bits)
    for seed, stream in ((0, 0), (2**64 - 1, 2**64 - 1), (1, 2**63), (2**32, 1)):
        yield f"seed {seed} stream {stream}", cpd.random_integers((7, 5), seed, stream)
