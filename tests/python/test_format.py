# SPDX-License-Identifier: Apache-2.0
"""cpd.Format and cpd.format against the rational oracle."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import cpd
import oracle
from arrays import spec_of

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e6m9", "e1m3", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1", "e2m3"),
    *("e3m2", "e3m2ieee", "e4m3finite", "e8m0", "bf16", "fp16", "tf32", "fp32", "binary8p4se"),
    *("binary8p3ue", "binary6p3uf", "binary5p1sf", "e4m3:nosub", "e4m3fn:bias=11:nosub:unsigned"),
    *("e5m2:unsigned", "e3m3:bias=-20"),
]


@pytest.mark.parametrize("name", NAMES)
def test_figures(name: str) -> None:
    f = cpd.format(name)
    spec = spec_of(f)
    assert f.bits == spec.bits
    assert Fraction(f.max) == spec.max
    assert Fraction(f.epsilon) == Fraction(1, 1 << spec.man)
    first_normal = 0 if spec.encoding == "e8m0" else 1 << spec.man
    if first_normal > spec.max_code:
        assert f.min_normal is None
    else:
        assert f.min_normal is not None
        assert Fraction(f.min_normal) == spec.magnitude(first_normal)
    if spec.bits <= 16:
        values = spec.finite_values()
        assert f.num_values == len(values)
        listed = f.values()
        assert listed.dtype == np.float32
        assert [Fraction(float(v)) for v in listed] == values
        assert f.min_subnormal is not None
        assert Fraction(f.min_subnormal) == next(v for v in values if v > 0)
        assert not np.signbit(listed[listed == 0]).any()


@pytest.mark.parametrize("name", NAMES)
def test_names_parse_back(name: str) -> None:
    f = cpd.format(name)
    assert cpd.format(str(f)) == f
    assert hash(cpd.format(str(f))) == hash(f)
    assert pickle.loads(pickle.dumps(f)) == f
    again = cpd.Format(
        f.exp,
        f.man,
        bias=f.bias,
        encoding=f.encoding,
        signed=f.signed,
        subnormals=f.subnormals,
    )
    assert again == f


def test_e3m2_of_ieee_encoding_is_not_the_finite_one() -> None:
    assert str(cpd.Format(3, 2)) != "e3m2"
    assert cpd.Format(3, 2) != cpd.format("e3m2")
    assert cpd.format("e3m2").max == 28
    assert cpd.Format(3, 2).max == 14


def test_every_width_and_encoding_is_accepted_or_refused_as_the_oracle_says() -> None:
    for encoding in ("ieee", "fn", "fnuz", "p3109", "finite"):
        for exp in range(1, 9):
            for man in range(24):
                for signed in (True, False):
                    spec = oracle.Spec(exp, man, None, encoding, signed)
                    if spec.representable():
                        f = cpd.Format(exp, man, encoding=encoding, signed=signed)
                        assert 1 - f.bias == spec.emin
                    else:
                        with pytest.raises(ValueError, match=r".{10,}"):
                            cpd.Format(exp, man, encoding=encoding, signed=signed)


@pytest.mark.parametrize(
    ("exp", "man", "more"),
    [
        (0, 3, {}),
        (9, 3, {}),
        (4, -1, {}),
        (4, 24, {}),
        (4, 3, {"bias": 200}),
        (4, 3, {"bias": -200}),
        (4, 3, {"bias": 10**30}),
        (4, 3, {"encoding": "ocp"}),
        (4, 3, {"encoding": "fnuz", "signed": False}),
        (8, 1, {"encoding": "fn"}),
        (8, 3, {"encoding": "e8m0"}),
    ],
)
def test_bad_values(exp: int, man: int, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".{10,}"):
        cpd.Format(exp, man, **more)


def test_message_says_what_was_given_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"exp.*1.*8.*9"):
        cpd.Format(9, 3)


@pytest.mark.parametrize("bad", [4.5, "4", None, True])
def test_bad_types(bad: Any) -> None:
    with pytest.raises(TypeError):
        cpd.Format(bad, 3)
    with pytest.raises(TypeError):
        cpd.Format(4, bad)


@pytest.mark.parametrize(
    "name", ["", "e4", "m3", "e4m", "e4m3fnn", "fp64", "binary8p9se", "e4m3:x"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match=r".{10,}"):
        cpd.format(name)


@pytest.mark.parametrize("bad", [3, None, 4.0, ["e4m3"]])
def test_bad_name_types(bad: Any) -> None:
    with pytest.raises(TypeError):
        cpd.format(bad)
