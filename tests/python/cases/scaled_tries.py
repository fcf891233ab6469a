# SPDX-License-Identifier: Apache-2.0
"""Scaled formats and arrays for tests that compare the operations of every front end with the
oracle."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
import scaled_blocks
import scaled_oracle
from arrays import pack, unpack
from by_keywords import by_keywords
from front_ends import Call, FrontEnd
from rationals import Fraction
from scaled_cases import FORMATS, Array, spec_of

MODES = oracle.DETERMINISTIC_MODES
ELEMENTS = ("e4m3fn", "e5m2", "e3m2", "e2m3", "e2m1", "int8", "int4")
RULES = ("floor", "ceil", "rceil", "even", "max", "up", "max_pow2")
NVFP4 = {"element": "e2m1", "block": 16, "scale": "e4m3fn", "tensor_scale": "fp32"}

# ---- operations that give one array -------------------------------------------------------------


def codes_of(x: Any, q: Any, **how: Any) -> Any:
    return by_keywords(cpd.encode, x, q, **how)[0]


def scales_of(x: Any, q: Any, **how: Any) -> Any:
    """Encodes `x` in a format with one scale for each block, and returns the scales."""
    return by_keywords(cpd.encode, x, q, **how)[1]


def blocks_of(x: Any, q: Any, **how: Any) -> Any:
    """Encodes `x` in a format whose block scales are multiplied by outer scales, each of many
    blocks. Returns the block scales."""
    return by_keywords(cpd.encode, x, q, **how)[1][0]


def outer_of(x: Any, q: Any, **how: Any) -> Any:
    return by_keywords(cpd.encode, x, q, **how)[1][1]


def decode_two(codes: Any, q: Any, shape: Any, blocks: Any, outer: Any, **how: Any) -> Any:
    return cpd.decode(codes, q, shape, scales=(blocks, outer), **how)


def decode_one(codes: Any, q: Any, shape: Any, blocks: Any, **how: Any) -> Any:
    return cpd.decode(codes, q, shape, scales=blocks, **how)


# ---- tries ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Try:
    """A test case: an array to encode, its scaled format, the options and the oracle's result."""

    x: Array
    arguments: Mapping[str, Any]
    axis: int = -1
    rounding: str = "nearest_even"
    options: Mapping[str, Any] = field(default_factory=dict)  # passed to the operation
    given: Mapping[str, Any] = field(default_factory=dict)  # passed to the oracle

    @property
    def spec(self) -> scaled_oracle.Spec:
        return spec_of(self.arguments)

    @property
    def format(self) -> Any:
        return cpd.Scaled(**self.arguments)

    @property
    def how(self) -> dict[str, Any]:
        return {"rounding": self.rounding, "axis": self.axis, **self.options}

    @functools.cached_property
    def expected(self) -> scaled_oracle.Scaled:
        o = oracle.Options(
            self.rounding,
            variant=self.options.get("variant", "A"),
            random_bits=self.options.get("random_bits", 24),
        )
        return scaled_oracle.encode(self.x, self.spec, self.axis, o, **self.given)

    @functools.cached_property
    def has_codes(self) -> bool:
        """False if an encoded value is a NaN that the element format cannot encode. Blocks whose
        scale is NaN do not count, because all their elements decode to NaN."""
        known = zip(self.expected.elements, self.block_scales, strict=True)
        return self.spec.element.nan_code is not None or not any(
            is_nan(v) and not is_nan(d) for v, d in known
        )

    @functools.cached_property
    def block_scales(self) -> list[oracle.Value]:
        """The scale of each element's block."""
        block = scaled_blocks.block_indices(self.x.shape, self.spec.block, self.axis).reshape(-1)
        return [self.expected.scales[b] for b in block]

    def __str__(self) -> str:
        return f"{self.arguments} {self.x.dtype}{self.x.shape} axis={self.axis} {self.rounding}"


def is_nan(v: oracle.Value) -> bool:
    return isinstance(v, oracle.NotANumber)


def packed_scales(f: oracle.Spec, scales: Sequence[oracle.Value]) -> Array:
    return pack([scaled_oracle.code_of(f, v) or 0 for v in scales], f.bits)


def check(front_end: FrontEnd, tries: Sequence[Try], few: int | None = None) -> None:
    """Tests codes, scales, cast values, and values decoded from the codes, on one front end."""
    tries = tries[: front_end.few if few is None or front_end.few is None else few]
    calls, wanted = [], []
    for t in tries:
        calls.append(Call(cpd.cast, (t.x, t.format), t.how))
        wanted.append((t, "cast"))
        if not t.has_codes:
            continue
        for operation in (
            codes_of,
            *((scales_of,) if t.spec.tensor_scale is None else (blocks_of, outer_of)),
        ):
            calls.append(Call(operation, (t.x, t.format), t.how))
            wanted.append((t, operation.__name__))
    got = front_end.run(calls)
    found: dict[int, dict[str, Array]] = {}
    for (t, what), y in zip(wanted, got, strict=True):
        check_one(t, what, y)
        found.setdefault(id(t), {})[what] = y
    decoding = [t for t in tries if t.has_codes]
    values = front_end.run([decode_call(t, found[id(t)]) for t in decoding])
    for t, y in zip(decoding, values, strict=True):
        check_one(t, "cast", y)


def decode_call(t: Try, made: Mapping[str, Array]) -> Call:
    """Returns the call that decodes an encoding. `made` has the codes and the scales, by name."""
    q, how = t.format, {"axis": t.axis, "dtype": None}
    del how["dtype"]
    if "outer_of" in made:
        args = (made["codes_of"], q, t.x.shape, made["blocks_of"], made["outer_of"])
        return Call(decode_two, args, how)
    return Call(decode_one, (made["codes_of"], q, t.x.shape, made["scales_of"]), how)


def check_one(t: Try, what: str, y: Array) -> None:
    match what:
        case "cast":
            values = np.array(t.expected.values, np.uint32).view(np.float32)
            values = values.astype(y.dtype).reshape(t.x.shape)
            assert y.dtype in (t.x.dtype, np.float32), t
            assert y.shape == t.x.shape, t
            same = (y.view(f"u{y.itemsize}") == values.view(f"u{y.itemsize}")) | (
                np.isnan(y) & np.isnan(values)
            )
            if not same.all():
                i = tuple(np.argwhere(~same)[0])
                pytest.fail(f"{t} at {i}: x {t.x[i]!r}, expected {values[i]!r}, got {y[i]!r}")
        case "codes_of":
            bits = t.spec.element.bits
            assert y.dtype == np.uint8, t
            assert y.shape == ((t.x.size * bits + 7) // 8,), t
            for i, (a, b, d) in enumerate(
                zip(
                    unpack(y, bits, t.x.size),
                    t.expected.codes(t.spec.element),
                    t.block_scales,
                    strict=True,
                )
            ):
                assert a == b or (is_nan(d) and t.spec.element.nan_code is None), (str(t), i, a, b)
        case "blocks_of" if any(is_nan(v) for v in t.expected.outer):
            pass  # block scales under a NaN outer scale have no meaning
        case "scales_of" | "blocks_of":
            assert y.tolist() == packed_scales(t.spec.scale, t.expected.scales).tolist(), t
        case "outer_of":
            assert t.spec.tensor_scale is not None
            assert y.tolist() == packed_scales(t.spec.tensor_scale, t.expected.outer).tolist(), t


# ---- inputs --------------------------------------------------------------------------------------

BLOCK = 8


def f32(x: Fraction) -> float:
    return float(scaled_oracle.f32(x))


def near(x: float) -> list[float]:
    """Returns x, rounded to binary32, and its two neighbors."""
    a = np.float32(x)
    return [
        float(np.nextafter(a, np.float32(0))),
        float(a),
        float(np.nextafter(a, np.float32(np.inf))),
    ]


@functools.cache
def boundaries(element: str) -> Array:
    """Returns an array whose rows test rounding, each with a full block and two further values. The
    largest magnitude of a row is near a number at which the block's scale changes; the other values
    are near midpoints of the element format. The array ends with `special_rows`."""
    f = FORMATS[element]
    draw = random.Random(7)
    top = oracle.power_of_two(oracle.floor_log2(f.max))
    turns = (Fraction(1), f.max / top, 2 - Fraction(1, 2 << f.man), f.max / top * Fraction(7, 6))
    ties = [(f.magnitude(c) + f.magnitude(c + 1)) / 2 for c in range(f.max_code)]
    rows = []
    for k in (-148, -133, -127, -126, -118, -20, 0, 15, 100, 126):
        for turn in turns:
            for a in near(f32(turn * oracle.power_of_two(k))):
                scale = oracle.power_of_two(k) / top
                others = [draw.choice(ties) for _ in range(BLOCK)]
                row = [draw.choice(near(f32(t * scale))) * draw.choice((1, -1)) for t in others]
                rows.append([-a if len(rows) % 2 else a, *row, a / 4 if a > 1e-30 else 0.0])
    return np.array([*rows, *special_rows()], np.float32)


def special_rows() -> Iterator[list[float]]:
    """Yields rows of an array with zeros, subnormals, huge values, NaN or infinities. A row has a
    full block and two further values."""
    nan, inf, largest = float("nan"), float("inf"), float(scaled_oracle.FLT_MAX)
    ramp = [0.5 * i * (-1) ** i for i in range(BLOCK + 2)]
    yield [0.0] * (BLOCK + 2)
    yield [-0.0] * (BLOCK + 2)
    yield [0.0, -0.0] * (BLOCK // 2 + 1)
    yield [i * 2.0**-149 for i in range(BLOCK + 2)]
    yield [largest / (i + 1) for i in range(BLOCK + 2)]
    yield [largest] * (BLOCK + 2)
    for odd in ([nan], [inf], [-inf], [nan, inf], [nan, -inf]):
        yield [*ramp[: -len(odd)], *odd]
        yield [*odd, *ramp[len(odd) :]]
        yield [*odd, *[0.0] * (BLOCK + 2 - len(odd))]
    yield [nan] * (BLOCK + 2)
    yield [inf] * (BLOCK + 2)


def exact_formats() -> Iterator[dict[str, Any]]:
    for element in ELEMENTS:
        for rule in RULES:
            yield {"element": element, "rule": rule}
    for element in ("e4m3fn", "e2m1", "int4"):
        for scale in ("fp32", "bf16", "e4m3fn", "e5m2"):
            for rule in ("max", "up", "max_pow2", "floor"):
                yield {"element": element, "scale": scale, "rule": rule}
    for margin, rule in itertools.product((-3, 1), ("floor", "rceil", "max")):
        yield {"element": "e4m3fn", "rule": rule, "margin": margin}
    for element, scale in itertools.product(("e4m3fn", "e2m1", "e5m2"), ("e8m0", "fp32", "e4m3fn")):
        yield {"element": element, "scale": scale, "non_finite": "element"}


def two_levels() -> Iterator[dict[str, Any]]:
    for arithmetic in ("exact", "te", "torchao"):
        yield {**NVFP4, "arithmetic": arithmetic}
        yield {**NVFP4, "arithmetic": arithmetic, "outer": "row"}
    for outer in ("bf16", "e8m0", "e5m2"):
        yield {**NVFP4, "tensor_scale": outer}
    yield {**NVFP4, "element": "e4m3fn", "scale": "e8m0", "rule": "floor"}
    yield {**NVFP4, "element": "int4", "scale": "bf16", "scale_max": 16}
    yield {**NVFP4, "non_finite": "element"}
    yield {**NVFP4, "scale_max": 256}
    for arithmetic, error in itertools.product(("exact", "te"), ("mae", "mse")):
        yield {**NVFP4, "arithmetic": arithmetic, "choose": error, "scale_max": 256}
        yield {**NVFP4, "arithmetic": arithmetic, "choose": error, "outer": "row"}


def original_formats() -> Iterator[dict[str, Any]]:
    """Yields formats with block scales alone that follow the arithmetic of other implementations,
    such as microxcaling."""
    for element in ("e4m3fn", "e5m2", "e2m1"):
        of = {"element": element}
        for arithmetic, rule in itertools.product(("te", "torchao"), ("max", "max_pow2")):
            yield {**of, "scale": "fp32", "rule": rule, "arithmetic": arithmetic}
        for rule in ("floor", "ceil", "even", "rceil"):
            yield {**of, "rule": rule, "arithmetic": "torchao"}
        yield {**of, "rule": "rceil", "arithmetic": "te"}
        for rule in ("max", "rceil"):
            yield {**of, "scale": "fp32", "rule": rule, "arithmetic": "deepgemm"}
        yield {**of, "rule": "rceil", "arithmetic": "deepgemm"}
        yield {**of, "rule": "floor", "arithmetic": "microxcaling"}
    for arithmetic in ("te", "deepgemm"):
        of = {"element": "e4m3fn", "scale": "fp32", "arithmetic": arithmetic}
        yield {**of, "non_finite": "block"}
    yield {"element": "e2m1", "scale": "e4m3fn", "arithmetic": "torchao"}
    yield {"element": "int8", "rule": "floor", "arithmetic": "microxcaling"}


# ---- blocks --------------------------------------------------------------------------------------

SHAPES: list[tuple[tuple[int, ...], int]] = [
    *(((5, 9), axis) for axis in (-1, 0)),
    *(((3, 5, 7), axis) for axis in (-1, 1, 0)),
    ((11,), -1),
    ((1, 1), 0),
    ((2, 3, 2, 5), -3),
]
BLOCKS: list[Any] = ["tensor", "row", 1, 4, 16, "1x3", "2x3", "4x1", "16x16", "3x2"]


def noise(shape: Sequence[int], seed: int) -> Array:
    """Returns normally distributed values, each multiplied by a random power of two from 2^-3 to
    2^3."""
    g = np.random.Generator(np.random.PCG64(seed))
    x = g.standard_normal(shape) * 2.0 ** g.integers(-3, 4, shape)
    return x.astype(np.float32)


# ---- drawn descriptors ---------------------------------------------------------------------------


def drawn_arguments(draw: random.Random) -> dict[str, Any]:
    """Returns random arguments of a valid scaled format."""
    of: dict[str, Any] = {
        "element": draw.choice(ELEMENTS),
        "block": draw.choice([*BLOCKS, 2, 5, 7]),
    }
    two = draw.random() < 0.3
    match draw.choice(("exact", "exact", "exact", "te", "torchao", "deepgemm", "microxcaling")):
        case "exact":
            of |= {"scale": draw.choice(("e8m0", "e8m0", "fp32", "bf16", "e4m3fn", "e5m2"))}
            of |= {"rule": draw.choice((None, *RULES)), "margin": draw.choice((0, 0, -2, 1))}
            of |= {"non_finite": draw.choice((None, "block", "element"))}
            if two:
                of |= {"tensor_scale": draw.choice(("fp32", "bf16", "e8m0"))}
        case "te":
            of |= {"arithmetic": "te", "scale": "fp32", "rule": draw.choice((None, "max_pow2"))}
            if two:
                of |= {"scale": "e4m3fn", "rule": None, "tensor_scale": "fp32"}
                of |= {"scale_max": draw.choice((None, 256))}
            elif draw.random() < 0.3:
                of |= {"scale": "e8m0", "rule": "rceil"}
        case "torchao":
            of |= {
                "arithmetic": "torchao",
                "scale": "fp32",
                "rule": draw.choice((None, "max_pow2")),
            }
            if two or draw.random() < 0.3:
                of |= {"scale": "e4m3fn", "rule": None, "tensor_scale": "fp32" if two else None}
            elif draw.random() < 0.5:
                of |= {"scale": "e8m0", "rule": draw.choice(("floor", "ceil", "even", "rceil"))}
        case "deepgemm":
            of |= {"arithmetic": "deepgemm", "scale": draw.choice(("fp32", "e8m0"))}
            of |= {"rule": "rceil" if of["scale"] == "e8m0" else draw.choice((None, "rceil"))}
        case "microxcaling":
            of |= {"arithmetic": "microxcaling"}
    if of.get("tensor_scale"):
        if of["block"] in ("tensor", "row"):  # the block must be smaller than the outer block
            of["block"] = draw.choice((3, 4, "2x3"))
        if of["scale"] == "fp32":  # significands' bits must add up to at most 53
            of["tensor_scale"] = "bf16"
        rows = ("2x3", "16x16", "3x2", "4x1")  # tensor's scale only
        of["outer"] = "tensor" if of["block"] in rows else draw.choice(("tensor", "row"))
        if of.get("rule") in (None, "max") and of["scale"] == "e4m3fn" and of["element"] == "e2m1":
            chosen = of.get("arithmetic") in (None, "te")
            of["choose"] = draw.choice((None, "mae", "mse")) if chosen else None
    return {name: value for name, value in of.items() if value is not None}


def drawn_array(draw: random.Random) -> Array:
    shape = tuple(draw.randrange(1, 8) for _ in range(draw.choice((1, 2, 2, 3))))
    x = noise(shape, draw.getrandbits(32)) * np.float32(
        2.0 ** draw.choice((0, 0, -40, 60, -140, 120))
    )
    flat = x.reshape(-1)
    for _ in range(draw.choice((0, 0, 1, 3))):
        odd = draw.choice((0.0, -0.0, 1.0, -3.0, 2.0**-149, 3e38, np.nan, np.inf, -np.inf))
        flat[draw.randrange(flat.size)] = odd
    storage = draw.choice((np.float32, np.float32, ml_dtypes.bfloat16))
    return x.astype(storage)


@functools.cache
def drawn_tries(seed: int, n: int) -> list[Try]:
    draw = random.Random(seed)
    tries = []
    for _ in range(n):
        x, of = drawn_array(draw), drawn_arguments(draw)
        rounding = draw.choice((*MODES, "stochastic"))
        axis, options, given = draw.randrange(-x.ndim, x.ndim), {}, {}
        if rounding == "stochastic":
            r = np.array([draw.randrange(16) for _ in range(x.size)]).reshape(x.shape)
            options = {"random_bits": 4, "variant": draw.choice("ABC"), "random": r}
            given = {"random": r}
        tries.append(Try(x, of, axis, rounding, options, given))
    return tries
