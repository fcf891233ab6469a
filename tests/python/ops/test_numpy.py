# SPDX-License-Identifier: Apache-2.0
"""Tests the NumPy front end: formats, array layouts, out=, dtypes, seeds and backends."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import cpd
from cpd import _core
from oracle import MODES
from reduce_oracle import elementwise_integer

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
    """Returns values, midpoints and neighbors of a format, and random bit patterns."""
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
    f = cpd.Format(exp=4, man=3, encoding="fn")
    assert f == cpd.Format("e4m3fn") != cpd.Format("e4m3")
    assert f != "e4m3fn"
    assert len({f, cpd.Format("e4m3fn"), cpd.Format("e4m3")}) == 2
    for name in NAMES:
        g = cpd.Format(name)
        for other in (pickle.loads(pickle.dumps(g)), copy.copy(g), copy.deepcopy(g)):
            assert other == g
            assert hash(other) == hash(g)
    for name in ("exp", "max", "colour"):
        with pytest.raises(AttributeError):
            setattr(f, name, 1)
    assert cpd.Format(f) == f


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
        f = cpd.Format(name)
        assert (f.max, f.min_normal, f.min_subnormal) == (most, normal, subnormal)
    assert cpd.Format(exp=1, man=2).min_normal is None
    assert str(cpd.Format(exp=3, man=2)) == "e3m2ieee"
    assert str(cpd.Format(exp=5, man=10)) == "fp16"
    with pytest.raises(ValueError, match="24 bits"):
        cpd.Format("fp32").values()


# ---- integers, backends, large arrays ----------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 8, 9, 16, 17, 24])
def test_random_integers(bits):
    seed, stream = 2**64 - 2, 2**63 + 9
    got = cpd.random_integers((3, 500), seed, stream, bits)
    assert got.dtype == np.uint32
    assert got.shape == (3, 500)
    wanted = [elementwise_integer(i, bits, seed, stream) for i in range(1500)]
    assert got.reshape(-1).tolist() == wanted


@pytest.mark.parametrize("backend", _core.backends())
def test_every_backend_gives_the_same(backend):
    x = samples(cpd.Format("e4m3"), 5000)
    y = samples(cpd.Format("e4m3"), 5000, seed=1)
    default = cpd.backend()

    def everything():
        for f in ("e4m3", "e5m2fnuz", "fp16", "e8m7:nosub"):
            for mode in MODES:
                yield cpd.cast(x, cpd.Cast(f, rounding=mode))
                yield cpd.mul(x, y, cpd.Cast(f, rounding=mode))
                yield cpd.add(x, y, cpd.Cast(f, rounding=mode))
                acc = cpd.Accumulator(f, scheme="kahan", rounding=mode)
                yield cpd.sum(np.stack([x, y, x]), acc, 0)

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


def test_out_in_place_and_strided():
    x = samples(cpd.Format("e4m3"))
    wanted = patterns(cpd.cast(x, "e4m3"))
    backwards = x[::-1]
    cpd.cast(backwards, "e4m3", out=backwards)
    assert patterns(x) == wanted
    wide = np.full((3, x.size), 7.0, np.float32)
    cpd.cast(x, "e5m2", out=wide[1])
    assert (wide[::2] == 7).all()
    assert patterns(wide[1]) == patterns(cpd.cast(x, "e5m2"))


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_more_than_2_31_elements():
    n = 2**31 + 777
    x = np.empty(n, ml_dtypes.bfloat16)
    x.view(np.uint16)[:] = 0x3F81
    x.view(np.uint16)[-777:] = 0x3F8F
    y = cpd.cast(x, "e4m3 stochastic", seed=5)
    random = np.array([elementwise_integer(i, 24, 5, 0) for i in range(n - 777, n)])
    wanted = cpd.cast(np.asarray(x[-777:]), "e4m3 stochastic", random=random)
    assert y[-777:].tobytes() == wanted.tobytes()
    cpd.cast(x, "e4m3", out=x)
    assert float(x[-1]) == 1.125
    assert float(x[0]) == 1.0
