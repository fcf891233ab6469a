# SPDX-License-Identifier: Apache-2.0
"""Tests the errors for invalid arguments of scaled formats on every front end, and the class
`Encoded` of codes and scales."""

from __future__ import annotations

import numpy as np
import pytest

import cpd
from by_keywords import by_keywords
from front_ends import FrontEnd

X = np.linspace(-3, 3, 128, dtype=np.float32).reshape(4, 32)


def codes_of(x, q, **how):
    return by_keywords(cpd.encode, x, q, **how)[0]


ERRORS = [
    ({"axis": 2}, ValueError, r"axis must be -2…1, got 2"),
    ({"axis": -3}, ValueError, r"axis must be -2…1, got -3"),
    ({"axis": 1.0}, TypeError, "axis must be an int, got float"),
    ({"axis": True}, TypeError, "axis must be an int, got bool"),
    ({"amax": np.ones((4, 2), np.float32)}, ValueError, r"amax must have shape \(4, 1\)"),
    ({"amax": np.ones((4, 1))}, TypeError, "amax must be of float32 numbers, got .*float64"),
    (
        {"scales": np.ones(3, np.uint8)},
        ValueError,
        "(scales must have 4 bytes for )?4 codes of e8m0.*, got 3",
    ),
    ({"amax": np.ones(16, np.uint8)}, TypeError, "amax must be of float32 numbers, got .*uint8"),
    ({"scales": np.ones((4, 1), np.int32)}, TypeError, "scales must be of float32 .*int32"),
    ({"scales": np.full((4, 1), 3, np.float32)}, ValueError, "scales must be numbers of e8m0"),
    ({"scales": (X, X)}, ValueError, "scales of mxfp8 are one array, got a tuple"),
    ({"rounding": "nearest"}, ValueError, "rounding.*nearest_even.*'nearest'"),
    ({"overflow": "clamp"}, ValueError, "overflow.*saturate.*'clamp'"),
    ({"seed": -1}, ValueError, "seed must be"),
    ({"random": X}, ValueError, "random is for rounding='stochastic' only"),
]


@pytest.mark.parametrize(("options", "error", "message"), ERRORS)
def test_options(front_end: FrontEnd, options, error, message):
    for operation in front_end.some(lambda: cpd.cast, lambda: codes_of):
        front_end.refuse(error, message, operation(), X, "mxfp8", **options)


def with_both(x, scales, amax):
    return cpd.cast(x, "mxfp8", scales=scales, amax=amax)


def with_pair(x, blocks, tensor):
    return cpd.cast(x, "nvfp4", scales=(blocks, tensor))


def test_levels(front_end: FrontEnd):
    scales = np.full(4, 127, np.uint8)
    amax = np.ones((4, 1), np.float32)
    front_end.refuse(ValueError, "give scales or amax, not both", with_both, X, scales, amax)
    front_end.refuse(ValueError, "scales of nvfp4 are a pair", cpd.cast, X, "nvfp4", scales=scales)
    outer = np.zeros(4, np.uint8)
    message = "(scales must have 8 bytes for )?8 codes of e4m3fn.*, got 4"
    front_end.refuse(ValueError, message, with_pair, X, scales, outer)
    message = "the scales of two levels are a pair"
    front_end.refuse(ValueError, message, with_pair, X, np.zeros(8, np.uint8), None)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "int8 row"])
def test_types(front_end: FrontEnd, name):
    message = "x must be of type float32, bfloat16 or float16, got .*float64"
    for operation in front_end.some(lambda: cpd.cast, lambda: codes_of):
        front_end.refuse(TypeError, message, operation(), X.astype(np.float64), name)
    front_end.refuse(TypeError, "int32", cpd.cast, X.astype(np.int32), name)
    front_end.refuse(TypeError, "scaled format|cpd.Format", cpd.cast, X, 3)


@pytest.mark.parametrize(
    "options", [{"axis": 0}, {"amax": np.float32(1)}, {"scales": np.ones(4, np.uint8)}]
)
def test_formats_without_scales(front_end: FrontEnd, options):
    message = "axis, scales and amax are for scaled formats, got the format e4m3"
    front_end.refuse(ValueError, message, cpd.cast, X, "e4m3", **options)


def into_a_part(x):
    return cpd.cast(x[:2], "mxfp8", out=x[1:3])


def over_the_codes(memory, scales):
    out = memory.view(type_of(memory))
    return cpd.decode(memory[:4], "mxfp8", 4, scales=scales, out=out)


def type_of(x):
    import torch

    return torch.float32 if isinstance(x, torch.Tensor) else np.float32


def test_out(front_end: FrontEnd):
    front_end.refuse(ValueError, "out must be x itself or lie apart from it", into_a_part, X.copy())
    wrong = np.zeros((4, 31), np.float32)
    front_end.refuse(ValueError, r"out must have shape \(4, 32\)", cpd.cast, X, "mxfp8", out=wrong)
    message = "out must be codes itself or lie apart from it"
    memory = np.zeros(16, np.uint8)
    front_end.refuse(ValueError, message, over_the_codes, memory, np.zeros(1, np.uint8))
    half = np.zeros((4, 32), np.float16)
    front_end.refuse(TypeError, "out must be of type", cpd.cast, X, "mxfp8", out=half)


# ---- decode --------------------------------------------------------------------------------------


def decoded(codes, scales, q, shape, **how):
    return cpd.decode(codes, q, shape, scales=scales, **how)


def test_decode(front_end: FrontEnd):
    codes, scales = np.zeros(128, np.uint8), np.zeros(4, np.uint8)
    good = codes, scales, "mxfp8", (4, 32)
    assert front_end(decoded, *good).tolist() == np.zeros((4, 32)).tolist()
    for error, message, args, how in (
        (ValueError, "(codes|packed) must .*128", (codes[:-1], scales, "mxfp8", (4, 32)), {}),
        (ValueError, "scales must .*4", (codes, scales[:-1], "mxfp8", (4, 32)), {}),
        (ValueError, "scales must .*32", good, {"axis": 0}),
        (ValueError, "axis must be -2…1, got 2", good, {"axis": 2}),
        (TypeError, "scales must be a 1-D uint8", (codes, X, "mxfp8", (4, 32)), {}),
        (TypeError, "scales must be a 1-D uint8", (codes, None, "mxfp8", (4, 32)), {}),
        (ValueError, "a pair", (codes[:64], scales, "nvfp4", (4, 32)), {}),
        (ValueError, "axis, scales and amax are for", (codes, scales, "e4m3", (4, 32)), {}),
        (TypeError, "dtype must be|float64", good, {"out": np.zeros((4, 32))}),
        (ValueError, "out must have shape", good, {"out": np.zeros((32, 4), np.float32)}),
    ):
        front_end.refuse(error, message, decoded, *args, **how)


def through_encoded(x, q, axis, **how):
    made = cpd.Encoded(*cpd.encode(x, q, axis=axis), cpd.Scaled(q), x.shape, axis)
    return cpd.decode(made, **how)


@pytest.mark.parametrize("q", ["mxfp8", "nvfp4", "e2m1 3x5", "fp8-tensor"])
@pytest.mark.parametrize("axis", [0, 1])
def test_encoded(front_end: FrontEnd, q, axis):
    wanted = cpd.cast(X, q, axis=axis)
    assert front_end(through_encoded, X, q, axis).tobytes() == wanted.tobytes()
    out = np.empty_like(X)
    assert front_end(through_encoded, X, q, axis, out=out).tobytes() == wanted.tobytes()


def test_encoded_says_all_itself():
    made = cpd.Encoded(*cpd.encode(X, "mxfp8"), "mxfp8", X.shape)
    assert made.axis == -1
    for more in ({"format": "mxfp8"}, {"shape": 3}, {"scales": made.scales}, {"axis": 0}):
        with pytest.raises(ValueError, match="are in the Encoded"):
            cpd.decode(made, **more)
    with pytest.raises(TypeError, match="decode takes codes, a format and a shape"):
        cpd.decode(made.codes)
    with pytest.raises(TypeError, match="or an Encoded alone"):
        cpd.decode(made.codes, "mxfp8")
    plain = cpd.Encoded(cpd.encode(X, "e4m3"), None, "e4m3", X.shape)
    assert cpd.decode(plain).tobytes() == cpd.cast(X, "e4m3").tobytes()


def test_scales_of_any_layout(front_end: FrontEnd):
    """Given codes, scales and amax may be non-contiguous arrays, read in their logical order."""
    q = cpd.Scaled("mxfp8")
    scales = np.repeat(cpd.encode(X, q)[1], 2)[::2]
    amax = np.ones((4, 2), np.float32)[:, :1] * 7
    codes = np.repeat(cpd.encode(X, q)[0], 2)[::2]
    assert front_end(cpd.cast, X, q, scales=scales).tobytes() == cpd.cast(X, q).tobytes()
    assert front_end(cpd.cast, X, q, amax=amax).tobytes() == cpd.cast(X, q, amax=amax).tobytes()
    assert front_end(decoded, codes, scales, q, X.shape).tobytes() == cpd.cast(X, q).tobytes()


def test_numpys_own_layouts():
    """Unaligned NumPy arrays are accepted; arrays in another byte order raise TypeError."""
    amax = np.arange(1, 5, dtype=np.float32).reshape(4, 1)
    memory = np.zeros(17, np.uint8)
    memory[1:] = amax.view(np.uint8).reshape(-1)
    moved = memory[1:].view(np.float32).reshape(4, 1)
    assert not moved.flags.aligned
    wanted = cpd.cast(X, "mxfp8", amax=amax)
    assert cpd.cast(X, "mxfp8", amax=moved).tobytes() == wanted.tobytes()
    assert cpd.cast(X, "mxfp8", amax=amax.tolist()).tobytes() == wanted.tobytes()
    with pytest.raises(TypeError, match="amax must be in native byte order"):
        cpd.cast(X, "mxfp8", amax=amax.astype(">f4"))


def test_one_number_for_a_tensor(front_end: FrontEnd):
    q = cpd.Scaled("fp8-tensor")
    wanted = cpd.cast(X, q, amax=np.float32([[5]]))
    for amax in (5, 5.0, np.array(5, np.float32), np.array([5], np.float32)):
        assert front_end(cpd.cast, X, q, amax=amax).tobytes() == wanted.tobytes()


# ---- where formats stand -------------------------------------------------------------------------


def test_results_of_layers_take_no_scaled_formats():
    for given in ("nvfp4", "int8 row", cpd.Scaled("mxfp8"), cpd.Cast("mxfp8")):
        for name in ("output", "norm", "softmax", "embedding", "residual"):
            with pytest.raises(ValueError, match=f"{name} takes formats without scales"):
                cpd.Recipe(sums="fp32", **{name: given})
    assert cpd.Recipe(sums="fp32", weight="int8").weight.format == cpd.Format("int8")


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4 choose=mae", "int8 row", "MXFP4", "(4,3) 32"])
def test_other_places_say_that_they_take_no_scales(name):
    message = "is a scaled format .cpd.Scaled.; here one without scales is needed"
    for call in (
        lambda: cpd.Format(name),
        lambda: cpd.add(X, X, name),
        lambda: cpd.add(X, X, cpd.Scaled(name)),
        lambda: cpd.Reduce("e4m3", result=name),
    ):
        with pytest.raises(ValueError, match=message):
            call()
