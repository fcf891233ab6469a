# SPDX-License-Identifier: Apache-2.0
"""The value tables of the IEEE P3109 draft, all formats of 3 to 8 bits."""

from __future__ import annotations

import csv
import io
import itertools
import os
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import cpd
import oracle
from arrays import assert_same_bits, pack, spec_of, truncated_bits

_ROOT = Path(__file__).resolve().parents[2]
_DATA = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data"))
_TABLES = _DATA / "p3109" / "value-tables-k3-k8.zip"

pytestmark = pytest.mark.skipif(
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
    """Value and subnormal mark of each code, ascending."""
    with zipfile.ZipFile(_TABLES) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read(f"{name}.csv").decode())))
    assert [int(row["codepoint"], 16) for row in rows] == list(range(len(rows)))
    return [(_hex_value(row["value"]), row["subnormal"] == "*") for row in rows]


def test_there_are_120_tables() -> None:
    assert len(_names()) == 120


@pytest.mark.parametrize("name", _names())
def test_every_code_and_value(name: str) -> None:
    f = cpd.format(name.lower())
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


@pytest.mark.parametrize("name", _names())
def test_nearest_rounding_between_the_tables_values(name: str) -> None:
    f = cpd.format(name.lower())
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
