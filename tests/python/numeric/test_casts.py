# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.Cast`: texts and keywords, fields, errors, copies, and the rounding that a call takes
from it."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import cpd

X = np.float32([0.3, -1.7, 300.0, 1e-9])


@pytest.mark.parametrize(
    ("given", "keys", "text"),
    [
        ("e4m3fn", {}, "e4m3fn"),
        ("e4m3fn stochastic random_bits=8", {}, "e4m3fn rounding=stochastic random_bits=8"),
        (
            "random_bits=8 E4M3FN rounding=stochastic",
            {},
            "e4m3fn rounding=stochastic random_bits=8",
        ),
        (" e4m3\t up ", {}, "e4m3 rounding=up"),
        ("e4m3fn:bias=11:nosub to_odd", {}, "e4m3fn:bias=11:nosub rounding=to_odd"),
        ("(4, 3) overflow=saturate", {}, "e4m3 overflow=saturate"),
        ("mxfp8 overflow=saturate", {}, "mxfp8"),
        ("mxfp8 up block=16", {}, "mxfp8 16 rounding=up"),
        ("int8 up row", {}, "int8 row rounding=up"),
        (
            "e4m3fn",
            {"rounding": "stochastic", "random_bits": 8},
            "e4m3fn rounding=stochastic random_bits=8",
        ),
        ("e4m3fn up", {"rounding": "down"}, "e4m3fn rounding=down"),
        (
            "e4m3fn up",
            {"rounding": None, "overflow": "saturate"},
            "e4m3fn rounding=up overflow=saturate",
        ),
        ("e4m3fn stochastic variant=B", {"variant": "A"}, "e4m3fn rounding=stochastic"),
        ("mxfp4 up", {"factor": 0.75}, "mxfp4 rounding=up factor=0.75"),
        (
            "fp8-tensor",
            {"history": 4, "amax": "most_recent"},
            "fp8-tensor history=4 amax=most_recent",
        ),
        ((4, 3), {"rounding": "up"}, "e4m3 rounding=up"),
        (np.float16, {}, "fp16"),
        (cpd.Format("e4m3fn", bias=11), {"rounding": "up"}, "e4m3fn:bias=11 rounding=up"),
        (
            cpd.Scaled("nvfp4", block="16x16"),
            {"overflow": "ieee"},
            "nvfp4 16x16 overflow=ieee",
        ),
        (cpd.Cast("e5m2 stochastic"), {"random_bits": 4}, "e5m2 rounding=stochastic random_bits=4"),
    ],
)
def test_texts_and_keywords(given: Any, keys: dict[str, Any], text: str) -> None:
    made = cpd.Cast(given, **keys)
    assert (made.text, str(made), repr(made)) == (text, text, f"cpd.Cast('{text}')")
    assert cpd.Cast(text) == made == cpd.Cast(made) == made.replace()
    assert hash(cpd.Cast(text)) == hash(made)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


def test_fields() -> None:
    c = cpd.Cast("mxfp4 stochastic random_bits=8 variant=C factor=0.75")
    assert c.format == cpd.Scaled("mxfp4")
    assert (c.rounding, c.overflow, c.random_bits, c.variant) == ("stochastic", "saturate", 8, "C")
    assert (c.factor, c.history, c.amax) == (0.75, 0, "max")
    c = cpd.Cast("e2m1")
    assert (c.format, c.rounding, c.overflow) == (cpd.Format("e2m1"), "nearest_even", "ieee")
    assert (c.random_bits, c.variant, c.factor, c.history, c.amax) == (24, "A", 1.0, 0, "max")
    assert (
        c.replace(rounding="up", overflow="saturate").text == "e2m1 rounding=up overflow=saturate"
    )
    with pytest.raises(AttributeError):
        c.rounding = "up"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "keys", "error", "message"),
    [
        ("e4m3fm", {}, ValueError, "did you mean 'e4m3fn'?"),
        ("mxfp8 stochastik", {}, ValueError, "got 'stochastik'; did you mean 'stochastic'?"),
        ("e4m3fn up down", {}, ValueError, "option 'rounding' of a cast is given twice"),
        ("e4m3fn roundin=up", {}, ValueError, "transform; did you mean 'rounding'?"),
        ("e4m3fn random_bits=8", {}, ValueError, "has no effect with rounding=nearest_even"),
        (
            "e4m3fn",
            {"random_bits": 25, "rounding": "stochastic"},
            ValueError,
            "random_bits must be 1…24, got 25",
        ),
        (
            "e4m3fn",
            {"factor": 0.5},
            ValueError,
            "a factor goes with one level of blocks, got e4m3fn",
        ),
        ("mxfp8", {"factor": "0.5"}, TypeError, "factor must be a number, got str"),
        ("mxfp8", {"history": 4}, ValueError, "a history goes with one fp32 scale a tensor"),
        ("e4m3fn", {"rounding": 3}, TypeError, "rounding must be a str, got int"),
        ("e4m3fn", {"rounding": "nearest"}, ValueError, "got 'nearest'"),
        ("e4m3fn", {"random_bits": True}, TypeError, "random_bits must be an int, got bool"),
        (
            "e4m3fn",
            {"seed": -1},
            TypeError,
            "takes no seed=: give it to the call, cpd.cast(…, seed=…)",
        ),
        (3, {}, TypeError, "a format must be a name such as 'e4m3fn', a cpd.Format, a pair"),
    ],
)
def test_errors(given: Any, keys: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        cpd.Cast(given, **keys)
    assert message in str(raised.value)


def test_all_but_the_format_is_by_keyword() -> None:
    with pytest.raises(
        TypeError, match="Cast takes one text or format, and all else in it or by keyword"
    ):
        cpd.Cast("e4m3", "up")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a format, such as to='e4m3fn'"):
        cpd.cast(X)


@pytest.mark.parametrize("name", ["e4m3fn", "mxfp8"])
def test_calls_take_casts_texts_and_formats(name: str) -> None:
    made = cpd.Cast(name, rounding="stochastic", random_bits=8)
    text = f"{name} stochastic random_bits=8"
    random = cpd.random_integers(X.shape, 5, 7, 8)
    wanted = cpd.cast(X, made, random=random).tobytes()
    for to in (made, text, made.text):
        assert cpd.cast(X, to, seed=5, stream=7).tobytes() == wanted
    assert cpd.cast(X, made).tobytes() != wanted
    assert cpd.cast(X, cpd.Cast(name)).tobytes() == cpd.cast(X, made.format).tobytes()
    codes = [cpd.encode(X, to, seed=5, stream=7) for to in (made, text)]
    assert str(codes[0]) == str(codes[1])


def test_arithmetic_takes_casts() -> None:
    x, y = np.float32([1.0]), np.float32([2.0**-9])
    up = cpd.Cast("e4m3", rounding="up")
    for got in (cpd.add(x, y, "e4m3 up"), cpd.fma(x, x, y, up), cpd.mul(x, x + y, up)):
        assert got.item() == 1.125
    assert cpd.div(x, x + y, "e4m3 down").item() == 0.9375
    assert cpd.sqrt(x + y, up).item() == 1.125
    with pytest.raises(ValueError, match=r"'mxfp8' is a scaled format \(cpd.Scaled\)"):
        cpd.add(x, y, "mxfp8")


def test_operators_of_torch_take_formats_without_scales() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(2)
    cpd.cast(x, "e4m3")  # loads the operators
    with pytest.raises(
        ValueError, match="mxfp8 has scales; here a format without scales is needed"
    ):
        torch.ops.cpd.cast(x, "mxfp8", None, None, None)


def test_factors_and_histories_are_for_operands() -> None:
    for text in ("mxfp4 factor=0.75", "fp8-tensor history=4"):
        for call in (cpd.cast, cpd.encode):
            with pytest.raises(ValueError, match=f"are for operands of cpd.Recipe, got {text}"):
                call(X, text)


OPERATIONS = ("cast", "encode", "decode", "add", "mul", "fma", "div", "sqrt", "sum", "gemm")


@pytest.mark.parametrize("name", OPERATIONS)
def test_signatures_show_no_old_argument(name: str) -> None:
    shown = str(inspect.signature(getattr(cpd, name)))
    assert "Never" not in shown
    assert "rounding" not in shown
    assert "empty" not in shown


def test_compiled_programs_take_casts() -> None:
    torch = pytest.importorskip("torch")
    outside = cpd.Cast("e4m3fn", rounding="stochastic", random_bits=8)
    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    programs = [
        lambda x, seed: cpd.cast(x, "e4m3fn stochastic random_bits=8", seed=seed),
        lambda x, seed: cpd.cast(x, outside, seed=seed),
        lambda x, seed: cpd.cast(
            x, cpd.Cast("e4m3fn", rounding="stochastic", random_bits=8), seed=seed
        ),
    ]
    wanted = [cpd.cast(x, outside, seed=seed) for seed in range(10)]
    for program in programs:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        run = torch.compile(program, fullgraph=True, backend="eager")
        for seed in (7, 2, 3, 4, 5, 6, 8, 9):
            assert run(x, seed).equal(wanted[seed])
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
