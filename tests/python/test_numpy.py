# SPDX-License-Identifier: Apache-2.0
"""The NumPy face: formats as values, layouts, out=, types, seeds, backends."""

from __future__ import annotations

import copy
import pickle
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import cpd
import oracle
from arrays import spec_of
from cpd import _core
from oracle import MODES, Options
from reduce_oracle import elementwise_integer, fold_integer

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
NAMES = (
    "e4m3",
    "e5m2",
    "e3m0",
    "e6m9",
    "e4m3fn",
    "e5m2fnuz",
    "e2m1",
    "e2m3",
    "e3m2",
    "e3m2ieee",
    "e8m0",
    "bf16",
    "fp16",
    "tf32",
    "fp32",
    "binary8p4se",
    "binary8p3sf",
    "binary8p4ue",
    "binary8p1uf",
    "e1m2",
    "e1m0fn:unsigned",
    "e4m3:nosub",
    "e4m3fn:bias=11:nosub:unsigned",
    "e8m7:bias=130",
)


def patterns(x) -> list[int]:
    return np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32).tolist()


def samples(f: cpd.Format, n: int = 200, seed: int = 0) -> np.ndarray:
    """Values, midpoints and neighbours of a format, and random bit patterns."""
    rng = np.random.default_rng(seed)
    if f.bits <= 16:
        v = f.values().astype(np.float64)
        grid = np.concatenate([v, (v[1:] + v[:-1]) / 2, [2 * f.max, 0.5 * (f.min_subnormal or 1)]])
        grid = rng.choice(grid, min(n, grid.size), replace=False).astype(np.float32)
    else:
        grid = np.empty(0, np.float32)
    near = np.concatenate([np.nextafter(grid, np.float32(s * np.inf)) for s in (-1, 1)])
    random = rng.integers(0, 2**32, n, np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45], np.float32)
    return np.concatenate([grid, near, random, special])


# ---- formats -----------------------------------------------------------------------------------


def test_formats_are_values():
    f = cpd.Format(4, 3, encoding="fn")
    assert f == cpd.format("e4m3fn") != cpd.format("e4m3")
    assert f != "e4m3fn"
    assert len({f, cpd.format("e4m3fn"), cpd.format("e4m3")}) == 2
    for name in NAMES:
        g = cpd.format(name)
        for other in (pickle.loads(pickle.dumps(g)), copy.copy(g), copy.deepcopy(g)):
            assert other == g
            assert hash(other) == hash(g)
    for name in ("exp", "max", "colour"):
        with pytest.raises(AttributeError):
            setattr(f, name, 1)
    assert cpd.format(f) is f


def test_figures_of_well_known_formats():
    for name, most, normal, subnormal in (
        ("e4m3", 240, 2**-6, 2**-9),
        ("e5m2", 57344, 2**-14, 2**-16),
        ("e4m3fn", 448, 2**-6, 2**-9),
        ("e4m3fnuz", 240, 2**-7, 2**-10),
        ("binary8p4se", 224, 2**-7, 2**-10),
        ("binary8p3se", 49152, 2**-15, 2**-17),
        ("e2m1", 6, 1, 0.5),
        ("fp16", 65504, 2**-14, 2**-24),
        ("e8m0", 2.0**127, 2.0**-127, 2.0**-127),
    ):
        f = cpd.format(name)
        assert (f.max, f.min_normal, f.min_subnormal) == (most, normal, subnormal)
    assert cpd.Format(1, 2).min_normal is None
    assert str(cpd.Format(3, 2)) == "e3m2ieee"
    assert str(cpd.Format(5, 10)) == "fp16"
    with pytest.raises(ValueError, match="24 bits"):
        cpd.format("fp32").values()


# ---- cast --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 8, 9, 16, 17, 24])
def test_random_integers(bits):
    seed, stream = 2**64 - 2, 2**63 + 9
    got = cpd.random_integers((3, 500), seed, stream, bits)
    assert got.dtype == np.uint32
    assert got.shape == (3, 500)
    wanted = [elementwise_integer(i, bits, seed, stream) for i in range(1500)]
    assert got.reshape(-1).tolist() == wanted


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("mode", MODES)
def test_types_of_carriers(dtype, mode):
    with np.errstate(over="ignore"):
        x = samples(cpd.format("e4m3")).astype(dtype)
    for name in ("e4m3", "e4m3fn", "e2m1"):
        y = cpd.cast(x, name, mode, seed=1)
        assert y.dtype == dtype
        wide = cpd.cast(x.astype(np.float32), name, mode, seed=1)
        assert np.array_equal(y.astype(np.float32), wide, equal_nan=True)
        assert np.array_equal(np.signbit(y), np.signbit(wide))


@pytest.mark.parametrize("backend", _core.backends())
def test_every_backend_gives_the_same(backend):
    x = samples(cpd.format("e4m3"), 5000)
    y = samples(cpd.format("e4m3"), 5000, seed=1)
    default = cpd.backend()

    def everything():
        for f in ("e4m3", "e5m2fnuz", "fp16", "e8m7:nosub"):
            for mode in MODES:
                yield cpd.cast(x, f, mode)
                yield cpd.mul(x, y, f, mode)
                yield cpd.add(x, y, f, mode)
                acc = cpd.Accumulator(f, "kahan", rounding=mode)
                yield cpd.sum(np.stack([x, y, x]), acc)

    wanted = [a.tobytes() for a in everything()]
    try:
        _core.force_backend(backend)
        assert cpd.backend() == backend
        calls = _core.kernel_calls(backend)
        assert [a.tobytes() for a in everything()] == wanted
        assert _core.kernel_calls(backend) > calls
    finally:
        _core.force_backend("")
    assert cpd.backend() == default


def test_backend_from_the_environment():
    script = "import cpd; print(cpd.backend())"
    for backend in _core.backends():
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={"CPD_BACKEND": backend, "PYTHONPATH": ":".join(filter(None, sys.path))},
            check=True,
            capture_output=True,
            text=True,
        )
        assert run.stdout.strip() == backend


# ---- layouts and out ---------------------------------------------------------------------------


def layouts():
    x = samples(cpd.format("e4m3"), 400)[:480].reshape(8, 6, 10)
    packed = np.zeros(20, np.dtype([("a", np.int8), ("x", np.float32)]))
    packed["x"] = x[0, :2].reshape(-1)
    return {
        "transposed": x.transpose(2, 0, 1),
        "fortran": np.asfortranarray(x),
        "reversed": x[::-1, :, ::-2],
        "strided": x[1:, ::2, 1::3],
        "broadcast": np.broadcast_to(x[:1], (5, 6, 10)),
        "zero-dim": x[1, 2, 3, ...],
        "scalar": x[1, 2, 3],
        "empty": x[:, :0],
        "unaligned": packed["x"],
        "read-only": np.frombuffer(x.tobytes(), np.float32),
        "deep": x.reshape(2, 2, 2, 1, 6, 1, 1, 1, 1, 1, 1, 1, 1, 2, 5, 1),
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
def test_layouts(name, mode):
    x = layouts()[name]
    plain = np.array(x, order="C")
    wanted = cpd.cast(plain, "e4m3", mode)
    before = plain.copy()
    got = cpd.cast(x, "e4m3", mode)
    assert type(got) is np.ndarray
    assert got.shape == np.shape(x)
    assert patterns(got) == patterns(wanted)
    assert patterns(x) == patterns(before), "the input was overwritten"
    out = np.empty_like(plain)
    assert cpd.cast(x, "e4m3", mode, out=out) is out
    assert patterns(out) == patterns(wanted)
    clean = np.nan_to_num(x)
    codes = cpd.encode(clean, "e4m3", mode)
    assert codes.tobytes() == cpd.encode(np.array(clean, order="C"), "e4m3", mode).tobytes()


def test_out_in_place_and_strided():
    x = samples(cpd.format("e4m3"))
    wanted = patterns(cpd.cast(x, "e4m3"))
    backwards = x[::-1]
    cpd.cast(backwards, "e4m3", out=backwards)
    assert patterns(x) == wanted
    wide = np.full((3, x.size), 7.0, np.float32)
    cpd.cast(x, "e5m2", out=wide[1])
    assert (wide[::2] == 7).all()
    assert patterns(wide[1]) == patterns(cpd.cast(x, "e5m2"))


# ---- codec -------------------------------------------------------------------------------------


def test_decode_types_and_out():
    codes = cpd.encode(np.float32([[1.0, -6.0], [0.5, 4.0]]), "e2m1")
    for dtype in (np.float64, "float16", ml_dtypes.bfloat16):
        got = cpd.decode(codes, "e2m1", (2, 2), dtype)
        assert got.dtype == np.dtype(dtype)
        assert got.astype(float).tolist() == [[1.0, -6.0], [0.5, 4.0]]
    out = np.zeros((2, 4), np.float16)
    cpd.decode(codes, "e2m1", (2, 2), out=out[:, ::2])
    assert out.tolist() == [[1.0, 0, -6.0, 0], [0.5, 0, 4.0, 0]]
    assert cpd.decode(np.repeat(codes, 2)[::2], "e2m1", [4]).tolist() == [1.0, -6.0, 0.5, 4.0]


# ---- add, mul, fma, sum ------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["sequential", "kahan"])
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
def test_sum_against_the_oracle(scheme, mode):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(9, 4, 3)) * np.exp2(rng.integers(-5, 4, (9, 4, 3)))).astype(np.float32)
    for name in ("e4m3", "e5m7", "fp32"):
        acc = cpd.Accumulator(name, scheme, rounding=mode, seed=3, stream=2**40, random_bits=11)
        spec = spec_of(acc.format)
        for dim in (0, 1, 2, -1):
            got = cpd.sum(x, acc, dim)
            columns = np.moveaxis(x, dim, 0)
            assert got.shape == columns.shape[1:]
            columns = columns.reshape(columns.shape[0], -1)
            for i in range(columns.shape[1]):
                draws = iter(fold_integer(i, t, 11, 3, 2**40) for t in range(100))
                wanted = oracle.fold(
                    spec,
                    patterns(columns[:, i]),
                    Options(mode, random_bits=11),
                    scheme == "kahan",
                    lambda o, draws=draws: Options(o.rounding, random_bits=11, random=next(draws)),
                )
                assert patterns(got.reshape(-1)[i : i + 1]) == [wanted]


def test_sum_of_nothing_and_of_zeros():
    assert patterns(cpd.sum(np.zeros((0, 3), np.float32), "e4m3")) == [0, 0, 0]
    minus = np.full((4, 1), -0.0, np.float32)
    assert patterns(cpd.sum(minus, "e4m3")) == [0x80000000]
    assert cpd.sum(np.ones((2, 0), np.float32), "e4m3").shape == (0,)
    assert cpd.sum(np.ones(3, np.float32), "e4m3").shape == ()


def test_operands_broadcast():
    x = np.float32([[1.0], [2.0]])
    y = np.float32([1.0, 10.0, 100.0])
    assert cpd.mul(x, y, "fp32").tolist() == [[1, 10, 100], [2, 20, 200]]
    assert cpd.fma(x, y, np.float32(1.0), "fp32").tolist() == [[2, 11, 101], [3, 21, 201]]
    out = np.empty((2, 3), np.float32)
    assert cpd.add(x, y, "fp32", out=out) is out
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert cpd.add(x.astype(dtype), y.astype(dtype), "e4m3").dtype == dtype


def test_seeds_are_64_bits():
    x = np.float32([struct.unpack("<f", struct.pack("<I", 0x3F800000 + i))[0] for i in range(999)])
    results = {
        cpd.cast(x, "e4m15", "stochastic", seed=seed, stream=stream).tobytes()
        for seed in (0, 1, 2**32, 2**63, 2**64 - 1)
        for stream in (0, 1, 2**32, 2**63, 2**64 - 1)
    }
    assert len(results) == 25
    numpy_ints = cpd.cast(x, "e4m15", "stochastic", seed=np.uint64(2**63), stream=np.int8(1))
    assert numpy_ints.tobytes() in results


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_more_than_2_31_elements():
    n = 2**31 + 777
    x = np.empty(n, ml_dtypes.bfloat16)
    x.view(np.uint16)[:] = 0x3F81
    x.view(np.uint16)[-777:] = 0x3F8F
    y = cpd.cast(x, "e4m3", "stochastic", seed=5)
    random = np.array([elementwise_integer(i, 24, 5, 0) for i in range(n - 777, n)])
    wanted = cpd.cast(np.asarray(x[-777:]), "e4m3", "stochastic", random=random)
    assert y[-777:].tobytes() == wanted.tobytes()
    cpd.cast(x, "e4m3", out=x)
    assert float(x[-1]) == 1.125
    assert float(x[0]) == 1.0
