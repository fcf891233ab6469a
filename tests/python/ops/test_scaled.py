# SPDX-License-Identifier: Apache-2.0
"""Compares operations in scaled formats on every front end to exact rational arithmetic."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
import scaled_blocks
import scaled_fast
import scaled_oracle
from arrays import STRIDED, layout, pack
from by_keywords import by_keywords
from cpd.ops.arguments import holds_scaled
from front_ends import Call, FrontEnd, assert_bits
from scaled_cases import FORMATS, spec_of
from scaled_tries import (
    BLOCK,
    BLOCKS,
    MODES,
    NVFP4,
    SHAPES,
    Try,
    blocks_of,
    boundaries,
    check,
    check_one,
    codes_of,
    decode_one,
    drawn_tries,
    exact_formats,
    noise,
    original_formats,
    packed_scales,
    scales_of,
    special_rows,
    two_levels,
)


@functools.cache
def tries_of_rules(group: str, step: int) -> list[Try]:
    """Returns the inputs of `test_rules` for each format: all rows of special values, and one of
    every `step` rows of values at which rounding or the scale changes."""
    formats = {"exact": exact_formats, "two": two_levels, "originals": original_formats}[group]()
    special = len(list(special_rows()))
    tries = []
    for i, of in enumerate(formats):
        rows = boundaries(of["element"])
        x = np.concatenate([rows[:-special][i % step :: step], rows[-special:]])
        tries.append(Try(x, {**of, "block": BLOCK}, rounding=MODES[i % len(MODES)]))
    return tries


@pytest.mark.few("", 2)
@pytest.mark.parametrize("group", ["exact", "two", "originals"])
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_rules(front_end: FrontEnd, group: str, step: int) -> None:
    """Scaled formats of every scale rule, element, scale and arithmetic agree with the oracle.

    The inputs are rows of values at which rounding or the scale changes, one of every `step` rows.
    Each format is tested with one rounding mode; the modes take turns.
    """
    check(front_end, tries_of_rules(group, step), few=12 if step == 1 else None)


@functools.cache
def tries_of_roundings(step: int) -> list[Try]:
    formats: list[dict[str, Any]] = [
        {"element": "e4m3fn"},
        {"element": "int8", "rule": "max"},
        {**NVFP4, "arithmetic": "te"},
        {"element": "e5m2", "scale": "fp32", "arithmetic": "deepgemm"},
    ]
    return [
        Try(
            boundaries(of["element"])[::step].astype(storage),
            {**of, "block": BLOCK},
            rounding=rounding,
        )
        for of in formats
        for rounding in MODES
        for storage in (np.float32, ml_dtypes.bfloat16, np.float16)
        if storage == np.float32
        or (rounding in ("nearest_even", "down") and is_held(np.dtype(storage).name, of))
    ]


def is_held(storage: str, of: dict[str, Any]) -> bool:
    return holds_scaled(storage, cpd.Scaled(**(of | {"block": BLOCK})).text)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_roundings_and_types(front_end: FrontEnd, step: int) -> None:
    """All roundings agree with the oracle, for each dtype of x that can hold the results."""
    check(front_end, tries_of_roundings(step))


# ---- blocks ----------------------------------------------------------------------------------


@functools.cache
def tries_of_blocks() -> list[Try]:
    formats: list[dict[str, Any]] = [
        {"element": "e4m3fn"},
        {"element": "e2m1", "scale": "e4m3fn", "tensor_scale": "fp32", "arithmetic": "te"},
        {"element": "e2m3", "scale": "bf16", "tensor_scale": "bf16", "outer": "row"},
        {"element": "int4", "scale": "fp32"},
    ]
    return [
        Try(noise(shape, i), {**of, "block": block}, axis)
        for i, ((shape, axis), block) in enumerate(itertools.product(SHAPES, BLOCKS))
        for of in formats[i % 2 :: 2]
        if "tensor_scale" not in of or block not in ("tensor", "row")
        if of.get("outer") != "row" or "x" not in str(block) or block == "1x3"
    ]


def test_blocks(front_end: FrontEnd) -> None:
    """Blocks of every shape along every axis agree with the oracle, also short last blocks."""
    check(front_end, tries_of_blocks())


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_scales_shape(shape: tuple[int, ...], axis: int, block: Any) -> None:
    q = cpd.Scaled("e4m3fn", block=block)
    expected = scaled_blocks.grid_shape(
        shape, spec_of({"element": "e4m3fn", "block": block}).block, axis
    )
    assert q.scales_shape(shape, axis) == (() if block == "tensor" else expected)


def test_a_shape_is_a_sequence_of_ints() -> None:
    for shape in ("34", {3: 4}, 5):
        with pytest.raises(TypeError, match="shape must be a sequence of ints, got"):
            cpd.Scaled("mxfp8").scales_shape(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [4, "row", "1x3", "2x3"])
def test_both_orientations(front_end: FrontEnd, block: Any) -> None:
    """A matrix cast along axis 0 equals its transpose cast along the last axis.

    So one tensor can be cast along either axis. A block `R x C` covers C values along the axis, in
    the transpose too.
    """
    x = noise((7, 10), 5)
    q = cpd.Scaled("e2m1", block=block)
    along = front_end(cpd.cast, x, q, axis=0)
    across = front_end(cpd.cast, np.ascontiguousarray(x.T), q)
    assert along.tolist() == across.T.tolist()
    scales = front_end(scales_of, x, q, axis=0).reshape(q.scales_shape(x.shape, 0))
    turned = front_end(scales_of, np.ascontiguousarray(x.T), q).reshape(
        q.scales_shape(x.T.shape, -1)
    )
    assert scales.tolist() == turned.T.tolist()
    assert along.tolist() != front_end(cpd.cast, x, q).tolist()


@pytest.mark.parametrize("draws", [{}, {"rounding": "stochastic", "random_bits": 8, "seed": 3}])
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "int8 row", "fp8-block"])
def test_transposed_tensors(front_end: FrontEnd, name: str, draws: dict[str, Any]) -> None:
    """A transposed view gives the values, codes and random integers of its contiguous copy."""
    for shape in ((65, 300), (1, 9), (2, 33, 40)):
        x = noise(shape, 6)
        turned = np.swapaxes(np.ascontiguousarray(np.swapaxes(x, -1, -2)), -1, -2)
        for axis in (-1, -2):
            wanted = front_end(cpd.cast, x, name, axis=axis, **draws)
            got = front_end(cpd.cast, turned, name, axis=axis, **draws)
            assert np.ascontiguousarray(got).tobytes() == wanted.tobytes()


def test_square_blocks_are_one_for_both_orientations(front_end: FrontEnd) -> None:
    x, q = noise((9, 13), 6), cpd.Scaled("e2m1", block="4x4")
    one, other = front_end.run([Call(cpd.cast, (x, q), {"axis": axis}) for axis in (0, 1)])
    assert one.tolist() == other.tolist()


def test_empty(front_end: FrontEnd) -> None:
    calls = []
    for shape, block in itertools.product([(0,), (0, 5), (5, 0)], [4, "row", "tensor", "2x3"]):
        q, x = cpd.Scaled("e4m3fn", block=block), np.zeros(shape, np.float32)
        calls.append(Call(cpd.cast, (x, q), expected=x))
        calls.append(Call(codes_of, (x, q), expected=np.zeros(0, np.uint8)))
    front_end.check(calls)


# ---- sizes and layouts ---------------------------------------------------------------------------

WIDE: dict[str, dict[str, Any]] = {
    "mxfp8": {"element": "e4m3fn"},
    "mxfp4": {"element": "e2m1"},
    "nvfp4": {**NVFP4, "arithmetic": "te"},
    "fp8-row": {"element": "e4m3fn", "block": "row", "scale": "fp32", "arithmetic": "te"},
    "fp8-block": {"element": "e4m3fn", "block": 128, "scale": "fp32", "arithmetic": "deepgemm"},
    "weights": {"element": "e4m3fn", "block": "128x128", "scale": "fp32", "arithmetic": "deepgemm"},
}


def check_wide(
    front_end: FrontEnd, name: str, shapes: Sequence[tuple[int, ...]], axis: int
) -> None:
    """Compares codes, scales and values to the oracle `scaled_fast`, for arrays of any size."""
    q, s = cpd.Scaled(**WIDE[name]), spec_of(WIDE[name])
    two = s.tensor_scale is not None
    calls, wanted = [], []
    for shape in shapes:
        x = noise(shape, sum(shape))
        codes, values, p = scaled_fast.fast_encode(x, s, axis)
        for operation, expected in (
            (cpd.cast, values),
            (codes_of, pack(codes.reshape(-1).tolist(), s.element.bits)),
            (blocks_of if two else scales_of, packed_scales(s.scale, p.scales)),
        ):
            calls.append(Call(operation, (x, q), {"axis": axis}, expected))
            wanted.append(expected)
    for call, got, expected in zip(calls, front_end.run(calls), wanted, strict=True):
        assert_bits(got, expected, f"{call} {call.args[0].shape}")


SIZES = [
    pytest.param((1, 15, 17, 31, 32, 33, 64, 100, 129), [(40, 70), (2, 3, 45)], id="some"),
    pytest.param(
        range(1, 300), [(1000, 1100), (3, 500, 333)], id="all", marks=pytest.mark.exhaustive
    ),
]


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize(("lengths", "shapes"), SIZES)
def test_sizes(front_end: FrontEnd, name: str, axis: int, lengths: Any, shapes: Any) -> None:
    """Casts and codes of tensors of many sizes have the oracle's bits, along both axes.

    Some sizes are near the widths of blocks and of SIMD registers.
    """
    few = [(3, n) if axis else (n, 3) for n in lengths[: front_end.few]]
    check_wide(front_end, name, few, axis)
    check_wide(front_end, name, shapes[: front_end.few], axis)


@pytest.mark.parametrize("name", [n for n in STRIDED if n not in ("zero-dim", "empty")])
@pytest.mark.parametrize("axis", [-1, 0])
def test_layouts(front_end: FrontEnd, name: str, axis: int) -> None:
    x = layout(name, nan=False)
    for of in ({"element": "e4m3fn", "block": 4}, {**NVFP4, "block": 4, "arithmetic": "te"}):
        t = Try(np.ascontiguousarray(x), of, axis)
        check_one(t, "cast", front_end(cpd.cast, x, t.format, axis=axis))
        check_one(t, "codes_of", front_end(codes_of, x, t.format, axis=axis))


def in_place(x: Any, q: Any, **how: Any) -> Any:
    return by_keywords(cpd.cast, x, q, out=x, **how)


def test_in_place(front_end: FrontEnd) -> None:
    tries = tries_of_blocks()[: front_end.few]
    calls = [Call(in_place, (t.x.copy(), t.format), t.how) for t in tries]
    for t, y in zip(tries, front_end.run(calls), strict=True):
        check_one(t, "cast", y)


# ---- stochastic ----------------------------------------------------------------------------------


@functools.cache
def tries_of_random() -> list[Try]:
    """Returns test cases (array, format, options) with stochastic rounding by `random=`.

    Random integers have 1 or 3 bits. Each array is rounded with every integer of that length.
    """
    formats: list[dict[str, Any]] = [
        {"element": "e2m1"},
        {"element": "e4m3fn", "rule": "max", "scale": "fp32"},
        {**NVFP4, "arithmetic": "te"},
        {**NVFP4, "arithmetic": "te", "choose": "mse"},
        {"element": "int4", "rule": "max", "arithmetic": "exact"},
    ]
    tries = []
    for i, (of, variant, bits) in enumerate(itertools.product(formats, "ABC", (1, 3))):
        x = np.repeat(noise((6, 1, BLOCK), i), 1 << bits, axis=1)
        r = np.broadcast_to(np.arange(1 << bits)[:, None], x.shape).astype(np.int64)
        options = {"random_bits": bits, "variant": variant, "random": r}
        of = {**of, "block": BLOCK}
        tries.append(Try(x, of, -1, "stochastic", options, {"random": r}))
    return tries


def test_stochastic(front_end: FrontEnd) -> None:
    check(front_end, tries_of_random())


@pytest.mark.parametrize("axis", [0, 1])
def test_random_bits_belong_to_the_elements(front_end: FrontEnd, axis: int) -> None:
    """Element i in row-major order is rounded with the random bits of element i of a plain cast."""
    x = noise((6, 8), 3)
    how: dict[str, Any] = {"rounding": "stochastic", "seed": 5, "stream": 2, "random_bits": 8}
    q = cpd.Scaled("int8", block="tensor", scale="e8m0", rule="floor")
    scale = 2.0 ** (np.floor(np.log2(np.abs(x).max())) - 6)
    plain = front_end(
        cpd.cast, (x / scale).astype(np.float32), FORMAT_INT8, overflow="saturate", **how
    )
    assert (front_end(cpd.cast, x, q, axis=axis, **how) / scale).tolist() == plain.tolist()


FORMAT_INT8 = "e1m6finite:bias=-5"

# ---- scales and amax from elsewhere --------------------------------------------------------------


def test_given_scales(front_end: FrontEnd) -> None:
    """Scales that the caller gives, as codes or as values, determine the encoded elements."""
    x, other = noise((6, 20), 8), noise((6, 20), 9)
    for of in (
        {"element": "e4m3fn", "block": 8},
        {"element": "e4m3fn", "block": 8, "scale": "fp32"},
        {"element": "e4m3fn", "block": 8, "scale": "fp32", "arithmetic": "deepgemm"},
        {"element": "e2m1", "block": "row", "scale": "bf16"},
    ):
        s, q = spec_of(of), cpd.Scaled(**of)
        made = scaled_oracle.encode(other, s)
        t = Try(x, of, given={"scales": made.scales})
        values = np.array([float(scaled_oracle.to_f32(v)) for v in made.scales], np.float32)
        for scales in (
            packed_scales(s.scale, made.scales),
            values.reshape(q.scales_shape(x.shape, -1)),
        ):
            check_one(t, "cast", front_end(cpd.cast, x, q, scales=scales))
            check_one(t, "codes_of", front_end(codes_of, x, q, scales=scales))
            check_one(t, "scales_of", front_end(scales_of, x, q, scales=scales))


@pytest.mark.parametrize("arithmetic", ["exact", "te", "torchao"])
def test_given_pairs_of_scales(front_end: FrontEnd, arithmetic: str) -> None:
    x, other = noise((6, 20), 8), noise((6, 20), 9)
    of = {**NVFP4, "block": 8, "arithmetic": arithmetic}
    s = spec_of(of)
    assert s.tensor_scale is not None
    made = scaled_oracle.encode(other, s)
    t = Try(x, of, given={"scales": made.scales, "outer_scales": made.outer})
    blocks, outer = packed_scales(s.scale, made.scales), packed_scales(s.tensor_scale, made.outer)

    def with_pair(operation: Any) -> Any:
        def call(x: Any, q: Any, blocks: Any, outer: Any) -> Any:
            return operation(x, q, scales=(blocks, outer))

        return call

    for operation, what in ((cpd.cast, "cast"), (codes_of, "codes_of"), (blocks_of, "blocks_of")):
        check_one(t, what, front_end(with_pair(operation), x, t.format, blocks, outer))


@pytest.mark.few("", 2)
def test_given_amax(front_end: FrontEnd) -> None:
    """Elements beyond the largest magnitude that the caller gives (amax) saturate, as in delayed
    scaling. In formats with outer scales, amax belongs to these scales."""
    x = noise((6, 20), 8)
    formats: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({"element": "e4m3fn", "block": "tensor", "scale": "fp32"}, (1, 1)),
        ({"element": "e4m3fn", "block": "tensor", "scale": "fp32", "arithmetic": "te"}, (1, 1)),
        ({"element": "e4m3fn", "block": "row", "scale": "fp32", "arithmetic": "torchao"}, (6, 1)),
        ({"element": "e4m3fn", "block": 8}, (6, 3)),
        ({**NVFP4, "block": 8, "arithmetic": "te"}, (1, 1)),
        ({**NVFP4, "block": 8, "outer": "row"}, (6, 1)),
    ]
    tries = []
    for of, shape in formats:
        for least in (0.5, 64.0):
            a = (least + np.arange(np.prod(shape))).astype(np.float32).reshape(shape)
            tries.append(Try(x, of, options={"amax": a}, given={"amax_given": a}))
    check(front_end, tries, few=len(tries))


# ---- codes ---------------------------------------------------------------------------------------

NAMED = {
    "mxfp8": "e4m3fn",
    "mxfp8-e5m2": "e5m2",
    "mxfp6-e3m2": "e3m2",
    "mxfp6-e2m3": "e2m3",
    "mxfp4": "e2m1",
    "mxint8": "e1m6int:bias=1",
}


@pytest.mark.parametrize("name", NAMED)
def test_every_pair_of_codes(front_end: FrontEnd, name: str) -> None:
    """Each code of an element with each scale decodes to element * scale, rounded to binary32."""
    f = FORMATS[NAMED[name]]
    n = 1 << f.bits
    width = max(n, 32)
    codes = np.tile(np.arange(width) % n, 256)
    scales = np.repeat(np.arange(256), width // 32)
    shape = (256, width)
    got = front_end(
        decode_one, pack(codes.tolist(), f.bits), cpd.Scaled(name), shape, scales.astype(np.uint8)
    )
    elements = [float(scaled_oracle.to_f32(f.decode(c))) for c in range(n)]
    shared = [float(scaled_oracle.to_f32(scaled_oracle.E8M0.decode(c))) for c in range(256)]
    with np.errstate(over="ignore", invalid="ignore"):  # exact in binary64, and rounded once
        expected = np.outer(shared, np.tile(elements, width // n)).astype(np.float32)
    draw = random.Random(1)
    for _ in range(200):
        e, c = draw.randrange(256), draw.randrange(n)
        slow = scaled_oracle.dequantise(f.decode(c), scaled_oracle.E8M0.decode(e))
        assert oracle.bits_from_float(float(expected[e, c])) == slow
    both_nan = np.isnan(got) & np.isnan(expected)
    assert ((got.view(np.uint32) == expected.view(np.uint32)) | both_nan).all()


# ---- drawn descriptors ---------------------------------------------------------------------------


def held(tries: list[Try]) -> list[Try]:
    """Returns the test cases whose result can be stored in the dtype of the case's array."""
    return [t for t in tries if holds_scaled(t.x.dtype.name, cpd.Scaled(**t.arguments).text)]


@pytest.mark.parametrize(
    ("seed", "count", "few"),
    [(1, 400, 4), *(pytest.param(s, 2000, 20, marks=pytest.mark.exhaustive) for s in range(1, 42))],
)
def test_drawn(front_end: FrontEnd, seed: int, count: int, few: int) -> None:
    tries = held(drawn_tries(seed, count))
    assert {t.x.dtype.name for t in tries} >= {"float32", "bfloat16"}
    check(front_end, tries, few=few)


def test_refusals(front_end: FrontEnd) -> None:
    x = noise((4, 8), 1)
    q = cpd.Scaled("e4m3fn", block=4)
    front_end.refuse(TypeError, "float64", cpd.cast, x.astype(np.float64), q)
    front_end.refuse(TypeError, "float64", codes_of, x.astype(np.float64), q)
    short = np.zeros(7, np.uint8)
    front_end.refuse(ValueError, "", cpd.cast, x, q, scales=short)
    front_end.refuse(ValueError, "", decode_one, np.zeros(32, np.uint8), q, (4, 8), short)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block": 0},
        {"block": -1},
        {"block": "column"},
        {"rule": "sideways"},
        {"arithmetic": "intel"},
        {"outer": "block"},
        {"non_finite": "ignore"},
        {"choose": "max"},
        {"tensor_scale": "fp33"},
        {"scale_max": 0},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        cpd.Scaled("e4m3fn", **wrong)


def test_texts_parse_back() -> None:
    for t in drawn_tries(1, 1000):
        q = t.format
        assert cpd.Scaled(str(q)) == q
        assert hash(cpd.Scaled(str(q))) == hash(q)
    for name in (
        *NAMED,
        "nvfp4",
        "fp8-tensor",
        "fp8-row",
        "fp8-block",
        "fp8-block 128x128",
        "bfp8",
        "bfp8 block=16",
        "int8 row",
        "int4 32",
        "mxfp4 block=16",
    ):
        assert cpd.Scaled(str(cpd.Scaled(name))) == cpd.Scaled(name)


# ---- a live peer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ["e4m3fn", "e5m2"])
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
def test_torchao(element: str, rule: str) -> None:
    """Casts by each of torchao's scale rules equal torchao's to_mx, for moderate finite values."""
    torch = pytest.importorskip("torch")
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    config = pytest.importorskip("torchao.prototype.mx_formats.config")
    x = noise((64, 128), 11)
    kind = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[element]
    mode = config.ScaleCalculationMode[rule.upper()]
    scales, codes = mx.to_mx(torch.from_numpy(x), kind, 32, mode)[:2]
    got, made = cpd.encode(x, cpd.Scaled(element, block=32, scale="e8m0", rule=rule))
    assert got.tolist() == codes.view(torch.uint8).reshape(-1).tolist()
    assert made.tolist() == scales.view(torch.uint8).reshape(-1).tolist()


@pytest.mark.parametrize("name", ["nvfp4", "fp8-row", "mxfp8 rule=rceil", "e8m3"])
def test_a_type_that_does_not_hold_the_result_is_refused(front_end: FrontEnd, name: str) -> None:
    x = np.linspace(-3, 3, 32).astype(np.float16)
    front_end.refuse(
        ValueError, "x is float16, which cannot represent .*give dtype=float32", cpd.cast, x, name
    )
    y = cpd.cast(x, name, dtype=np.float32)
    assert y.dtype == np.float32
    assert np.array_equal(y, cpd.cast(x.astype(np.float32), name))
    with pytest.raises(ValueError, match="dtype must hold every value of x"):
        cpd.cast(x.astype(np.float32), name, dtype=np.float16)


def test_keywords_replace_what_the_text_says() -> None:
    assert cpd.Scaled("mxfp8", rule="ceil") == cpd.Scaled("mxfp8 rule=ceil")
    assert cpd.Scaled("mxfp8 rule=ceil margin=1", rule="even") == cpd.Scaled(
        "mxfp8 rule=even margin=1"
    )
    assert cpd.Scaled(cpd.Scaled("e4m3fn 1x128"), block="row") == cpd.Scaled("e4m3fn row")
    assert cpd.Scaled("mxfp4", element="e3m2") == cpd.Scaled("mxfp6-e3m2")
    assert cpd.Scaled((2, 1), block=16, scale=cpd.Format("e4m3fn")) == cpd.Scaled(
        "(2,1) 16 scale=e4m3fn"
    )
    assert cpd.Scaled("nvfp4", transform="hadamard16").transform == "hadamard16"
    with pytest.raises(TypeError, match=r"elements are given twice: 'e4m3fn' and element='e2m1'"):
        cpd.Scaled("e4m3fn", element="e2m1")
    with pytest.raises(TypeError, match="Scaled takes the text of a scaled format, or an element"):
        cpd.Scaled(block=32)
    with pytest.raises(ValueError, match="unknown format 'mxpf8'"):
        cpd.Scaled("mxpf8 32")
