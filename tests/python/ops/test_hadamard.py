# SPDX-License-Identifier: Apache-2.0
"""Tests cpd.hadamard on every front end: results, spec, types, layouts and errors.

The expected results come from exact sums, from rational arithmetic that rounds after each step of
the transform, and from Transformer Engine's golden vectors.
"""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
from arrays import from_bits
from front_ends import Call, FrontEnd, every_front_end
from rationals import Fraction

_DATA = Path(os.environ.get("CPD_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
FP32, BF16 = oracle.Spec(8, 23), oracle.Spec(8, 7)
SIZES = (2, 4, 8, 16, 32, 64, 128)


# ---- the steps, one by one -----------------------------------------------------------------------


def root(n: int, bits: int) -> Fraction:
    """Returns 1/√n, rounded to nearest with a significand of `bits` bits."""
    unit = Fraction(1, 2 ** (bits + (n.bit_length() - 1) // 2))
    k = math.isqrt(int(1 / (n * unit * unit)))  # floor(1 / (√n unit))
    return (k if n * (k + Fraction(1, 2)) ** 2 * unit**2 > 1 else k + 1) * unit


@pytest.mark.parametrize("bits", [24, 53])
def test_the_factor_is_what_it_should_be(bits: int) -> None:
    for n in SIZES:
        nearest = root(n, bits)
        half = Fraction(1, 2 ** (bits + (n.bit_length() - 1) // 2 + 1))
        assert n * (nearest - half) ** 2 < 1 < n * (nearest + half) ** 2
        assert float(nearest) == nearest


def flipped(group: Sequence[Any], signs: int, flip: Any) -> list[Any]:
    return [flip(x) if signs >> i & 1 else x for i, x in enumerate(group)]


def stages(group: list[Any], add: Any, subtract: Any) -> list[Any]:
    distance = 1
    while distance < len(group):
        group = [
            add(x, group[i + distance]) if not i & distance else subtract(group[i - distance], x)
            for i, x in enumerate(group)
        ]
        distance *= 2
    return group


def in_binary32(group: Sequence[int], signs: int, inverse: bool) -> list[int]:
    """Computes the transform of binary32 bit patterns by rationals, rounding each step."""

    def flip(bits: int) -> int:
        return bits ^ 0x80000000

    scale = oracle.bits_from_value(oracle.number(root(len(group), 24)))
    y = list(group) if inverse else flipped(group, signs, flip)
    y = stages(y, lambda a, b: oracle.add(FP32, a, b), lambda a, b: oracle.add(FP32, a, flip(b)))
    y = [oracle.mul(FP32, x, scale) for x in y]
    y = flipped(y, signs, flip) if inverse else y
    return [oracle.cast(FP32, x) for x in y]  # the NaN that CPD makes


def into_bf16(group: Sequence[int], signs: int, inverse: bool) -> list[int]:
    """Computes the transform in binary64, the format of Python's floats, and rounds it once."""
    y: list[float] = [oracle.float_from_bits(x) for x in group]
    y = y if inverse else flipped(y, signs, float.__neg__)
    y = stages(y, float.__add__, float.__sub__)
    y = [x * float(root(len(group), 53)) for x in y]
    y = flipped(y, signs, float.__neg__) if inverse else y
    return [oracle.cast_double(BF16, x + 0.0) for x in y]  # -0 becomes +0


def patterns(n: int, seed: int) -> list[int]:
    """Returns random groups of 128 binary32 bit patterns.

    The groups are moderate, subnormal, huge, zeros, zeros with few infinities, or arbitrary.
    """
    draw = random.Random(seed)
    kinds = [
        lambda w: (w & 0x83FFFFFF) + 0x3C000000,
        lambda w: (w & 0x83FFFFFF) + 0x3C000000,
        lambda w: w & 0x80FFFFFF,
        lambda w: w & 0x80FFFFFF | 0x7E000000,
        lambda w: w & 0x80000000,
        lambda w: w & 0x80000000 if w % 40 else w & 0x80000000 | 0x7F800000,
        lambda w: w,
    ]
    return [kinds[i // 128 % len(kinds)](draw.getrandbits(32)) for i in range(n)]


@cache
def transformed(size: int, masked: bool, bf16: bool, inverse: bool) -> Call:
    signs = random.Random(size).getrandbits(size) if masked else 0
    bits = patterns(7 * 128, size)
    step = into_bf16 if bf16 else in_binary32
    groups = [bits[i : i + size] for i in range(0, len(bits), size)]
    expected = from_bits(x for group in groups for x in step(group, signs, inverse))
    how = f"hadamard{size}" + f":signs=0x{signs:x}" * masked + ":bf16" * bf16
    x = from_bits(bits).reshape(7, 128)
    options = {"axis": 1, "inverse": inverse}
    return Call(cpd.hadamard, (x, how), options, expected.reshape(7, 128))


CASES = [(masked, bf16, back) for masked in (0, 1) for bf16 in (0, 1) for back in (0, 1)]


@pytest.mark.few("", 2)
@every_front_end(
    {str(size): [(size, *case) for case in CASES] for size in SIZES}, compiled=("16", "128")
)
def test_every_step(front_end: FrontEnd, cases: list[Any]) -> None:
    front_end.check([transformed(case[0], *map(bool, case[1:])) for case in cases])


def test_bf16_is_the_exact_sum_rounded_once(front_end: FrontEnd) -> None:
    """In bf16 the result is the exact sum, rounded once, if exponents differ by at most 41.

    The documentation promises this limit.
    """
    draw = random.Random(1)
    groups = []
    for _ in range(60):
        low = draw.randrange(-126, 127 - 41)
        exponents = [low, low + 41, *(low + draw.randrange(42) for _ in range(14))]
        values = [math.ldexp(draw.randrange(128, 256), e - 7) for e in exponents]
        groups.append([x * draw.choice((-1, 1)) for x in values])
    expected = [
        oracle.bits_from_value(oracle.round_value(BF16, oracle.number(exact)))
        for group in groups
        for exact in exact_transform(group, 0xD7E8)
    ]
    te = "hadamard16:te:bf16"
    x = np.array(groups, np.float32)
    narrow = x.astype(ml_dtypes.bfloat16)
    assert np.array_equal(narrow.astype(np.float32), x)
    wanted = from_bits(expected).reshape(x.shape)
    front_end.check(
        [
            Call(cpd.hadamard, (x, te), {}, wanted),
            Call(cpd.hadamard, (narrow, te), {}, wanted.astype(ml_dtypes.bfloat16)),
        ]
    )


def exact_transform(group: Sequence[float], signs: int) -> list[Fraction]:
    """Returns the exact transform of 16 values by Sylvester's matrix, with the factor 1/4."""
    terms = flipped([Fraction(x) for x in group], signs, Fraction.__neg__)
    return [
        sum(-x if (i & j).bit_count() % 2 else x for j, x in enumerate(terms)) / Fraction(4)
        for i in range(16)
    ]


# ---- Transformer Engine's golden vectors ---------------------------------------------------------


def test_golden_vectors_of_transformer_engine(front_end: FrontEnd) -> None:
    """The transform of transposed tensors gives Transformer Engine's values.

    A NaN is compared as a NaN, without its bits. Transformer Engine's reference implementation
    flushes subnormal bf16 results, so the test uses only tensors that index.json lists as exact.
    """
    folder = _DATA / "scaling"
    if not folder.is_dir():
        pytest.skip(f"no golden vectors in {folder} (CPD_DATA names another folder)")
    exact = json.loads((folder / "index.json").read_text())["rht_exact_tensors"]
    arrays = np.load(folder / "nvfp4.npz")
    x = arrays["in.nv_x_bf16"][exact].swapaxes(1, 2).astype(ml_dtypes.bfloat16)
    wanted = arrays["te_nvfp4.1x16_rht.rht_bf16"][exact].view(ml_dtypes.bfloat16).reshape(x.shape)
    got = front_end(cpd.hadamard, x, "hadamard16:te:bf16")
    both_nan = np.isnan(got) & np.isnan(wanted)
    assert (got.size, int(both_nan.sum())) == (30_720, 16)
    assert np.array_equal(got.view(np.uint16)[~both_nan], wanted.view(np.uint16)[~both_nan])


# ---- types, layouts, out -------------------------------------------------------------------------


TYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def values(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_axis(front_end: FrontEnd, dtype: Any) -> None:
    x = values((16, 32, 48), dtype)
    calls = []
    for axis in (0, 1, 2, -1):
        how = "hadamard16:te"
        wide = np.moveaxis(x, axis, -1).astype(np.float32)
        wanted = np.moveaxis(cpd.hadamard(np.ascontiguousarray(wide), how), -1, axis).astype(dtype)
        calls.append(Call(cpd.hadamard, (x, how), {"axis": axis}, np.ascontiguousarray(wanted)))
    front_end.check(calls)


def test_layouts_have_the_same_bits(front_end: FrontEnd) -> None:
    x = values((32, 6, 64), np.float32)
    views = [x.transpose(2, 1, 0), x[:, ::2, 16:], np.asfortranarray(x), x[::-1, :, ::-1], x[:, :0]]
    if front_end.name != "numpy":
        del views[3]
    views.append(np.broadcast_to(x[:, :1], x.shape))
    for axis in (0, 2):
        front_end.check(
            [
                Call(
                    cpd.hadamard,
                    (v, "hadamard16"),
                    {"axis": axis},
                    cpd.hadamard(v.copy(), "hadamard16", axis=axis),
                )
                for v in views
            ]
        )


def test_no_elements(front_end: FrontEnd) -> None:
    x = np.zeros((0, 5, 16), np.float32)
    assert front_end(cpd.hadamard, x, "hadamard16").shape == x.shape
    assert front_end(cpd.hadamard, x, "hadamard16", axis=0).shape == x.shape


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_out(name: str) -> None:
    from front_ends import FRONT_ENDS

    front_end = FRONT_ENDS[name]()
    x = values((4, 32), np.float32)
    wanted = cpd.hadamard(x, "hadamard32:signs=0xff", inverse=True)
    out, own = front_end.array(np.zeros_like(x)), front_end.array(x.copy())
    assert cpd.hadamard(front_end.array(x), "hadamard32:signs=0xff", inverse=True, out=out) is out
    assert cpd.hadamard(own, "hadamard32:signs=0xff", inverse=True, out=own) is own
    assert np.array_equal(front_end.numpy(out), wanted)
    assert np.array_equal(front_end.numpy(own), wanted)


def test_there_and_back_is_exact_for_integers(front_end: FrontEnd) -> None:
    x = np.arange(128, dtype=np.float32).reshape(2, 64) - 50
    y = front_end(cpd.hadamard, x, "hadamard64:signs=0x123456789abcdef")
    assert np.array_equal(
        front_end(cpd.hadamard, y, "hadamard64:signs=0x123456789abcdef", inverse=True), x
    )


# ---- errors --------------------------------------------------------------------------------------

X = np.zeros((3, 40), np.float32)


@pytest.mark.parametrize(
    ("error", "message", "args", "options"),
    [
        (
            ValueError,
            "the extent along axis 1 must be a multiple .* 16, got 40",
            (X, "hadamard16"),
            {},
        ),
        (
            ValueError,
            "the extent along axis 0 must be a multiple .* 2, got 3",
            (X, "hadamard2"),
            {"axis": 0},
        ),
        (ValueError, r"axis must be -2…1 for 2 dimensions, got 2", (X, "hadamard8"), {"axis": 2}),
        (ValueError, "at least one dimension to transform", (X[0, 0, ...], "hadamard8"), {}),
        (TypeError, "axis must be an int, got float", (X, "hadamard8"), {"axis": 1.0}),
        (TypeError, "inverse must be a bool, got int", (X, "hadamard8"), {"inverse": 1}),
        (ValueError, "text is hadamardN", (X, "hadamar8"), {}),
        (ValueError, "power of two, 2…128, got 40", (X, "hadamard40"), {}),
        (TypeError, 'transform must be a text such as "hadamard16:te", got int', (X, 8), {}),
        (TypeError, "x must be of type float32", (X.astype(np.float64), "hadamard8"), {}),
        (TypeError, "x must be of type float32", (X.astype(np.int32), "hadamard8"), {}),
        (ValueError, "fp16 cannot represent .* bf16", (X.astype(np.float16), "hadamard8:bf16"), {}),
        (TypeError, "out must be of type", (X, "hadamard8"), {"out": X.astype(np.float16)}),
        (ValueError, r"out must have shape \(3, 40\)", (X, "hadamard8"), {"out": X[:2].copy()}),
    ],
)
def test_errors(front_end: FrontEnd, error: Any, message: str, args: Any, options: Any) -> None:
    front_end.refuse(error, message, cpd.hadamard, *args, **options)


def test_out_that_overlaps_in_part() -> None:
    x = np.zeros((5, 16), np.float32)
    with pytest.raises(ValueError, match="out must be x itself or lie apart from it"):
        cpd.hadamard(x[1:], "hadamard16", out=x[:-1])


# ---- the spec ------------------------------------------------------------------------------------


def test_a_transform_is_a_text() -> None:
    q = cpd.Scaled("nvfp4", transform="hadamard16:signs=0xD7E8:bf16")
    assert q.transform == "hadamard16:te:bf16"
    assert cpd.Scaled("nvfp4 transform=hadamard32").transform == "hadamard32"
    assert cpd.Scaled("nvfp4").transform is None
    assert q.replace(transform="none") == cpd.Scaled("nvfp4")
    assert q.replace(block=32).transform == q.transform


def test_casts_with_a_transform_round_transformed_values(front_end: FrontEnd) -> None:
    x = values((3, 32), np.float32)
    for text in ("hadamard16:te", "hadamard32:signs=0xff"):
        wanted = cpd.cast(cpd.hadamard(x, text), "nvfp4")
        front_end.check([Call(cpd.cast, (x, cpd.Scaled("nvfp4", transform=text)), {}, wanted)])


def test_transforms_of_0_7_load() -> None:
    """Hadamard transforms that CPD 0.7 pickled can be loaded.

    Such a pickle stores only the transform's text.
    """
    made = pickle.loads(
        b"\x80\x02ccpd.numeric.hadamard\nHadamard\n)\x81}X\x04\x00\x00\x00text"
        b"X\x12\x00\x00\x00hadamard16:te:bf16sb."
    )
    assert str(made) == made.text == "hadamard16:te:bf16"
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    x = values((2, 16), np.float32)
    assert np.array_equal(cpd.hadamard(x, made), cpd.hadamard(x, made.text))


@pytest.mark.parametrize(
    ("error", "message", "text"),
    [
        (ValueError, "power of two, 2…128, got 12", "hadamard12"),
        (ValueError, "has 16 signs, got 0x10000", "hadamard16:signs=0x10000"),
        (ValueError, "at most 32 digits", f"hadamard128:signs=0x1{'0' * 32}"),
        (ValueError, "te or 0x", "hadamard16:signs=random"),
        (ValueError, "signs te are for 16 inputs", "hadamard32:te"),
        (TypeError, "transform must be a (text|str).*, got list", ["hadamard16"]),
    ],
)
def test_wrong_transforms(error: Any, message: str, text: Any) -> None:
    for call in (lambda: cpd.hadamard(X, text), lambda: cpd.Scaled("nvfp4", transform=text)):
        with pytest.raises(error, match=message):
            call()


def test_positions_of_0_7() -> None:
    told = r"hadamard\(\) takes all arguments after transform= by keyword"
    with pytest.raises(TypeError, match=told):
        cpd.hadamard(X, "hadamard8", 1)
    with pytest.raises(
        TypeError, match="Scaled takes one text or format, and all else in it or by keyword"
    ):
        cpd.Scaled("e2m1", 16)


# ---- derivatives ---------------------------------------------------------------------------------


def test_the_rounding_into_bf16_is_straight_through() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 16, requires_grad=True)
    y = cpd.hadamard(x, "hadamard16:te:bf16")
    g = torch.randn(4, 16)
    (got,) = torch.autograd.grad(y, x, g)
    assert torch.equal(got, cpd.hadamard(g, "hadamard16:te", inverse=True))
    back = cpd.hadamard(x, "hadamard16:te", axis=1, inverse=True)
    (got,) = torch.autograd.grad(back, x, g)
    assert torch.equal(got, cpd.hadamard(g, "hadamard16:te"))
