# SPDX-License-Identifier: Apache-2.0
"""Compares IEEE P3109 formats of 3 to 8 bits with the draft's value tables, and saturation with
report v4.0."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd
import oracle
from arrays import assert_same_bits, pack, spec_of, truncated_bits
from by_keywords import by_keywords
from rationals import Fraction

_ROOT = Path(__file__).resolve().parents[3]
_DATA = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data"))
_TABLES = _DATA / "p3109" / "value-tables-k3-k8.zip"

needs_tables = pytest.mark.skipif(
    not _TABLES.exists(), reason=f"no P3109 tables at {_TABLES} (CPD_DATA names the data folder)"
)


def _names() -> list[str]:
    if not _TABLES.exists():
        return ["tables"]
    with zipfile.ZipFile(_TABLES) as archive:
        return sorted(name.removesuffix(".csv") for name in archive.namelist())


def _hex_value(text: str) -> oracle.Value:
    if text == "NaN":
        return oracle.NAN
    if text in ("Inf", "-Inf"):
        return oracle.Infinity(text.startswith("-"))
    return oracle.number(Fraction(float.fromhex(text)))


def _table(name: str) -> list[tuple[oracle.Value, bool]]:
    """Returns the value of each code, in ascending order of codes, and whether the value is
    subnormal."""
    with zipfile.ZipFile(_TABLES) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read(f"{name}.csv").decode())))
    assert [int(row["codepoint"], 16) for row in rows] == list(range(len(rows)))
    return [(_hex_value(row["value"]), row["subnormal"] == "*") for row in rows]


@needs_tables
def test_there_are_120_tables() -> None:
    assert len(_names()) == 120


@needs_tables
@pytest.mark.parametrize("name", _names())
def test_every_code_and_value(name: str) -> None:
    f = cpd.Format(name.lower())
    table = _table(name)
    assert len(table) == 1 << f.bits
    decoded = cpd.decode(pack(range(len(table)), f.bits), f, len(table))
    assert_same_bits(decoded, [oracle.bits_from_value(v) for v, _ in table], name)

    finite = sorted(v.value for v, _ in table if isinstance(v, oracle.Number))
    assert [Fraction(float(v)) for v in f.values()] == finite
    assert f.num_values == len(finite)
    assert Fraction(f.max) == finite[-1]
    subnormal = sorted(v.value for v, mark in table if mark and isinstance(v, oracle.Number))
    below_normal = [
        v for v in finite if v != 0 and f.min_normal is not None and abs(v) < f.min_normal
    ]
    if f.min_normal is not None:
        assert below_normal == subnormal

    encoded = cpd.encode(decoded, f)
    np.testing.assert_array_equal(encoded, pack(range(len(table)), f.bits))


@needs_tables
@pytest.mark.parametrize("name", _names())
def test_nearest_rounding_between_the_tables_values(name: str) -> None:
    f = cpd.Format(name.lower())
    spec = spec_of(f)
    positive = [v.value for v, _ in _table(name) if isinstance(v, oracle.Number) and v.value >= 0]
    bits, expected = [], []
    for code, (low, high) in enumerate(itertools.pairwise(positive)):
        tie = (low + high) / 2
        even = low if code % 2 == 0 else high
        below, at = truncated_bits(tie - Fraction(1, 1 << 400)), truncated_bits(tie)
        above = at + 1
        rows = [(below, low), (above, high)]
        if oracle.value_from_bits(at) == oracle.number(tie):
            rows.append((at, even))
        for pattern, value in rows:
            bits.append(pattern)
            expected.append(oracle.bits_from_value(spec.signed_number(value, False)))
            if f.signed:
                bits.append(pattern | 0x80000000)
                expected.append(oracle.bits_from_value(spec.signed_number(value, True)))
    x = np.array(bits, np.uint32).view(np.float32)
    assert_same_bits(cpd.cast(x, f), expected, name)


INF = math.inf
SATURATION = [
    # Each row: format, rounding mode, overflow policy (ieee: P3109's SatNone; saturate: SatFinite),
    # values, results.
    ("binary8p4sf", "nearest_even", "ieee", [1000, -1000, INF, -INF], [240, -240, 240, -240]),
    ("binary8p4sf", "to_odd", "ieee", [241, INF], [240, 240]),
    ("binary8p4sf", "up", "ieee", [241, -241, INF], [240, -240, 240]),
    ("binary8p4uf", "nearest_even", "ieee", [1e9, INF, -1], [57344, 57344, math.nan]),
    ("binary8p4se", "to_odd", "ieee", [225, 224, -225, INF], [INF, 224, -INF, INF]),
    ("binary8p4se", "to_odd", "saturate", [225, -225, INF], [224, -224, 224]),
    ("binary8p4se", "toward_zero", "ieee", [225, INF], [224, INF]),
    ("binary8p4ue", "to_odd", "ieee", [1e9, INF], [53248, INF]),
    *((f"binary8p4u{kind}", mode, "ieee", [-1, -1e9, -INF], [0, 0, math.nan])
      for kind in "ef" for mode in ("toward_zero", "up")),
    *((f"binary8p4u{kind}", mode, "ieee", [-1, -INF], [math.nan, math.nan])
      for kind in "ef" for mode in ("nearest_even", "nearest_away", "down", "to_odd")),
    *((f"binary8p4u{kind}", mode, "saturate", [-1, -INF], [0, 0])
      for kind in "ef" for mode in ("toward_zero", "down")),
    ("e4m3fnuz", "nearest_even", "ieee", [1000, INF], [math.nan, math.nan]),
    ("e4m3:unsigned", "toward_zero", "ieee", [-1], [math.nan]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "mode", "policy", "values", "results"), SATURATION)
def test_saturation(
    name: str, mode: str, policy: Any, values: list[float], results: list[float], dtype: Any
) -> None:
    x, wanted = np.array(values, dtype), np.array(results, dtype)
    how = {"rounding": mode, "overflow": policy}
    for made in (
        by_keywords(cpd.cast, x, name, **how),
        by_keywords(cpd.add, x, np.zeros_like(x), name, **how),
        by_keywords(cpd.mul, x, np.ones_like(x), name, **how),
        by_keywords(cpd.div, x, np.ones_like(x), name, **how),
        by_keywords(cpd.cast, x, name, flags=True, **how)[0],
        cpd.decode(by_keywords(cpd.encode, x, name, **how), name, x.size),
    ):
        np.testing.assert_array_equal(made, wanted)
    accumulator = cpd.Accumulator(name, **how)
    ones = np.ones((1, 1), np.float32)
    product = cpd.gemm(x.astype(np.float32)[:, None], ones, accumulator)[:, 0]
    np.testing.assert_array_equal(product, wanted)


def test_signed_finite_formats_are_fnuz_that_saturates() -> None:
    """P3109's signed finite formats equal FNUZ formats with saturation. The test compares sums and
    products, which use other code than single operations."""
    generator = np.random.default_rng(7)
    a, b = (generator.standard_normal((17, 40)).astype(np.float32) * 30 for _ in range(2))
    for finite, fnuz in (("binary8p4sf", "e4m3fnuz"), ("binary8p3sf", "e5m2fnuz")):
        for scheme in ("sequential", "fma", "kahan", "pairwise"):
            for mode in oracle.MODES:
                one = cpd.Accumulator(finite, scheme=scheme, rounding=mode)
                other = cpd.Accumulator(fnuz, scheme=scheme, rounding=mode, overflow="saturate")
                made, wanted = cpd.gemm(a, b.T, one), cpd.gemm(a, b.T, other)
                np.testing.assert_array_equal(made.view(np.uint32), wanted.view(np.uint32))
