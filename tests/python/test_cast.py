# SPDX-License-Identifier: Apache-2.0
"""cpd.cast on NumPy arrays against the rational oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cpd
import oracle
from arrays import assert_same_bits, boundary_bits, from_bits, spec_of

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e6m9", "e1m3", "e8m0", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1"),
    *("e3m2", "bf16", "fp16", "tf32", "fp32", "binary8p4se", "binary8p3ue", "binary8p1uf"),
    *("e5m2:nosub", "e4m3fn:unsigned", "e2m3:unsigned:nosub", "e4m0", "e7m22", "e8m3:nosub"),
]


@pytest.mark.parametrize("overflow", oracle.POLICIES)
@pytest.mark.parametrize("rounding", oracle.DETERMINISTIC_MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_mode_and_policy(name: str, rounding: str, overflow: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    bits = boundary_bits(spec)
    o = oracle.Options(rounding, overflow)
    got = cpd.cast(from_bits(bits), f, rounding=rounding, overflow=overflow)
    assert_same_bits(got, [oracle.cast(spec, b, o) for b in bits], f"{name} {rounding} {overflow}")


@pytest.mark.parametrize("variant", ["A", "B", "C"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e3m0", "e4m3fnuz", "e8m0", "bf16", "e5m2:nosub"])
def test_stochastic_with_every_random_integer(name: str, variant: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    inputs = boundary_bits(spec, codes=6, noise=10)
    for random_bits in (1, 3, 5):
        bits = [b for b in inputs for _ in range(1 << random_bits)]
        integers = np.array([r for _ in inputs for r in range(1 << random_bits)])
        got = cpd.cast(
            from_bits(bits),
            f,
            rounding="stochastic",
            random_bits=random_bits,
            variant=variant,
            random=integers,
        )
        expected = [
            oracle.cast(spec, b, oracle.Options("stochastic", "ieee", variant, random_bits, int(r)))
            for b, r in zip(bits, integers, strict=True)
        ]
        assert_same_bits(got, expected, f"{name} {variant} {random_bits}")


@pytest.mark.parametrize(
    ("x", "random_bits", "up"),
    [(259, 5, (1, 2, 2)), (277, 3, (2, 3, 3)), (311, 3, (6, 7, 7))],
)
def test_published_counts(x: int, random_bits: int, up: tuple[int, int, int]) -> None:
    integers = np.arange(1 << random_bits)
    for variant, expected in zip("ABC", up, strict=True):
        y = cpd.cast(
            np.full(integers.shape, x, np.float32),
            "e5m2",
            rounding="stochastic",
            random_bits=random_bits,
            variant=variant,
            random=integers,
        )
        assert int((y > x).sum()) == expected


def test_seeded_bits_are_the_documented_integers() -> None:
    x = np.linspace(1, 2, 1000, dtype=np.float32)
    for random_bits in (1, 8, 11, 24):
        options: dict[str, Any] = {"seed": 7, "stream": 3, "random_bits": random_bits}
        r = cpd.random_integers(x.shape, **options)
        assert r.max() < 1 << random_bits
        seeded = cpd.cast(x, "e4m3", rounding="stochastic", **options)
        given = cpd.cast(x, "e4m3", rounding="stochastic", random_bits=random_bits, random=r)
        np.testing.assert_array_equal(seeded, given)
    other = cpd.cast(x, "e4m3", rounding="stochastic", seed=8)
    assert (other != cpd.cast(x, "e4m3", rounding="stochastic", seed=9)).any()


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e8m0", "fp32", "e3m0", "bf16"])
def test_float64_is_rounded_from_its_own_bits(name: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = from_bits(boundary_bits(spec)).astype(np.float64)
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), [1e-320, 1e300]])
    got = cpd.cast(x, f)
    assert got.dtype == np.float64
    expected = [oracle.cast_double(spec, float(v)) for v in x]
    assert_same_bits(got.astype(np.float32), expected, name)


def test_float16_in_float16_out() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    x = bits.view(np.float16)
    got = cpd.cast(x, "e4m3")
    assert got.dtype == np.float16
    wide = cpd.cast(x.astype(np.float32), "e4m3").astype(np.float16)
    finite = ~np.isnan(wide)
    np.testing.assert_array_equal(got.view(np.uint16)[finite], wide.view(np.uint16)[finite])
    assert (got.view(np.uint16)[~finite] == 0x7E00).all()


def test_carrier_that_does_not_hold_the_format() -> None:
    with pytest.raises(ValueError, match=r"fp16.*bf16"):
        cpd.cast(np.zeros(3, np.float16), "bf16")


def test_layouts_have_the_same_values_and_bits() -> None:
    x = np.random.default_rng(1).standard_normal((6, 7, 8)).astype(np.float32)
    views = [x.T, x[::2], x[:, ::-1], x[..., 3], np.broadcast_to(x[0], (3, 7, 8)), x[0, 0, 0]]
    for view in views:
        for options in ({}, {"rounding": "stochastic", "seed": 5, "random_bits": 8}):
            array = np.asarray(view)
            expected = cpd.cast(np.array(array, order="C"), "e4m3", **options)
            np.testing.assert_array_equal(cpd.cast(array, "e4m3", **options), expected)


def test_input_is_not_overwritten_unless_out_says_so() -> None:
    x = np.full(100, 1.1, np.float32)
    kept = x.copy()
    y = cpd.cast(x, "e4m3")
    np.testing.assert_array_equal(x, kept)
    out = np.empty_like(x)
    assert cpd.cast(x, "e4m3", out=out) is out
    np.testing.assert_array_equal(out, y)
    assert cpd.cast(x, "e4m3", out=x) is x
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalar_shapes(shape: tuple[int, ...]) -> None:
    y = cpd.cast(np.full(shape, 1.1, np.float32), "e4m3")
    assert y.shape == shape


def test_idempotent() -> None:
    x = from_bits(boundary_bits(oracle.Spec(4, 3)))
    for name in ("e4m3", "e4m3fn", "e3m0", "e8m0", "bf16"):
        for rounding in oracle.DETERMINISTIC_MODES:
            once = cpd.cast(x, name, rounding=rounding)
            twice = cpd.cast(once, name, rounding=rounding)
            np.testing.assert_array_equal(once.view(np.uint32), twice.view(np.uint32))


# --- Bad arguments, one by one -------------------------------------------------------------------

X = np.ones(4, np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"rounding": "nearest"},
        {"overflow": "wrap"},
        {"rounding": "stochastic", "random_bits": 0},
        {"rounding": "stochastic", "random_bits": 25},
        {"rounding": "stochastic", "variant": "D"},
        {"rounding": "stochastic", "seed": -1},
        {"rounding": "stochastic", "seed": 1 << 64},
        {"rounding": "stochastic", "random": np.zeros(3, np.int64)},
        {"rounding": "stochastic", "random_bits": 3, "random": np.full(4, 8)},
        {"rounding": "stochastic", "random_bits": 3, "random": np.full(4, -1)},
        {"out": np.ones(3, np.float32)},
    ],
)
def test_bad_values(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".{10,}"):
        cpd.cast(X, "e4m3", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"rounding": 3},
        {"overflow": None},
        {"rounding": "stochastic", "random_bits": 2.5},
        {"rounding": "stochastic", "seed": 1.0},
        {"rounding": "stochastic", "random": np.zeros(4, np.float32)},
        {"out": np.ones(4, np.float64)},
        {"out": [1, 2, 3, 4]},
    ],
)
def test_bad_types(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        cpd.cast(X, "e4m3", **options)


@pytest.mark.parametrize("x", [[1.0, 2.0], 1.0, np.ones(3, np.int32), np.ones(3, complex), None])
def test_bad_inputs(x: Any) -> None:
    with pytest.raises(TypeError):
        cpd.cast(x, "e4m3")


def test_read_only_out() -> None:
    out = np.zeros(4, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        cpd.cast(X, "e4m3", out=out)
