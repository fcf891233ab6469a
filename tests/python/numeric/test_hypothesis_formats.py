# SPDX-License-Identifier: Apache-2.0
"""Compares operations with random formats, options and bit patterns to the oracle in rational
arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import cpd
import oracle
from arrays import assert_same_bits, from_bits, spec_of, unpack
from by_keywords import by_keywords

BITS = st.integers(0, 0xFFFFFFFF)
_ENCODINGS = ["ieee", "ieee", "fn", "fnuz", "p3109", "p3109finite", "finite", "e8m0"]
TERMS = st.lists(BITS, min_size=1, max_size=12)


@st.composite
def formats(draw: st.DrawFn) -> cpd.Format:
    encoding = draw(st.sampled_from(_ENCODINGS))
    if encoding == "e8m0":
        return cpd.Format("e8m0")
    exp, man = draw(st.integers(1, 8)), draw(st.integers(0, 23))
    usual = (1 << (exp - 1)) - (0 if encoding in ("fnuz", "p3109", "p3109finite") else 1)
    spec = oracle.Spec(
        exp,
        man,
        usual + draw(st.one_of(st.just(0), st.integers(-30, 30))),
        encoding,
        draw(st.booleans()),
        draw(st.booleans()),
    )
    assume(spec.representable())
    return cpd.Format(
        exp=exp,
        man=man,
        bias=spec.bias,
        encoding=encoding,
        signed=spec.signed,
        subnormals=spec.subnormals,
    )


@st.composite
def options(draw: st.DrawFn) -> oracle.Options:
    random_bits = draw(st.integers(1, 24))
    return oracle.Options(
        draw(st.sampled_from(oracle.MODES)),
        draw(st.sampled_from(oracle.POLICIES)),
        draw(st.sampled_from("ABC")),
        random_bits,
        draw(st.integers(0, (1 << random_bits) - 1)),
    )


@st.composite
def near(draw: st.DrawFn, f: cpd.Format) -> int:
    """Draws a binary32 pattern at, or a few units in the last place beside, a value of the format
    or the midpoint of two values."""
    spec = spec_of(f)
    code = draw(st.integers(0, spec.max_code + 2))
    half = draw(st.booleans())
    value = (spec.magnitude(code) + spec.magnitude(code + half)) / 2
    binary32 = oracle.Spec(8, 23)
    down = oracle.Options("toward_zero", "saturate")
    bits = oracle.bits_from_value(oracle.round_value(binary32, oracle.number(value), down))
    return max(0, bits + draw(st.integers(-2, 2))) | draw(st.sampled_from([0, 0x80000000]))


def keywords(o: oracle.Options) -> dict[str, Any]:
    drawn = {"random_bits": o.random_bits, "variant": o.variant}
    how = {"rounding": o.rounding, "overflow": o.overflow}
    return how | drawn if o.rounding == "stochastic" else how


@settings(deadline=None, max_examples=400)
@given(st.data(), formats(), options())
def test_cast(data: st.DataObject, f: cpd.Format, o: oracle.Options) -> None:
    bits = data.draw(st.lists(st.one_of(BITS, near(f)), min_size=1, max_size=40))
    spec = spec_of(f)
    given_integers = {}
    if o.rounding == "stochastic":
        given_integers = {"random": np.full(len(bits), o.random)}
    got = by_keywords(cpd.cast, from_bits(bits), f, **keywords(o), **given_integers)
    assert_same_bits(got, [oracle.cast(spec, b, o) for b in bits], f"{f} {o}")


@settings(deadline=None, max_examples=200)
@given(formats(), st.floats(allow_subnormal=True), options())
@example(cpd.Format("fp32"), 2.0**-150, oracle.Options())
@example(cpd.Format("fp32"), 3.4028235677973366e38, oracle.Options())
def test_cast_of_float64(f: cpd.Format, x: float, o: oracle.Options) -> None:
    more = {"random": np.array([o.random])} if o.rounding == "stochastic" else {}
    got = by_keywords(cpd.cast, np.array([x]), f, **keywords(o), **more)
    assert_same_bits(got.astype(np.float32), [oracle.cast_double(spec_of(f), x, o)], f"{f} {o} {x}")


@settings(deadline=None, max_examples=400)
@given(st.data(), formats(), options())
def test_arithmetic(data: st.DataObject, f: cpd.Format, o: oracle.Options) -> None:
    assume(o.rounding != "stochastic")
    x, y, z = (data.draw(st.one_of(BITS, near(f))) for _ in range(3))
    if data.draw(st.booleans()):  # a sum beside a grid point
        x = oracle.subtract(oracle.Spec(8, 23), z, y)
    spec = spec_of(f)
    a, b, c = from_bits([x]), from_bits([y]), from_bits([z])
    about = f"{f} {o} {x:08X} {y:08X} {z:08X}"
    assert_same_bits(
        by_keywords(cpd.add, a, b, f, **keywords(o)), [oracle.add(spec, x, y, o)], about
    )
    assert_same_bits(
        by_keywords(cpd.mul, a, b, f, **keywords(o)), [oracle.mul(spec, x, y, o)], about
    )
    assert_same_bits(
        by_keywords(cpd.fma, a, b, c, f, **keywords(o)), [oracle.fma(spec, x, y, z, o)], about
    )


@settings(deadline=None, max_examples=200)
@given(st.data(), formats(), options(), st.booleans())
def test_sum(data: st.DataObject, f: cpd.Format, o: oracle.Options, kahan: bool) -> None:
    assume(o.rounding != "stochastic")
    terms = data.draw(st.lists(st.one_of(BITS, near(f)), min_size=1, max_size=10))
    acc = cpd.Accumulator(
        f, scheme="kahan" if kahan else "sequential", rounding=o.rounding, overflow=o.overflow
    )
    got = cpd.sum(from_bits(terms), acc).reshape(1)
    assert_same_bits(got, [oracle.fold(spec_of(f), terms, o, kahan)], f"{f} {o} {terms}")


@settings(deadline=None, max_examples=200)
@given(TERMS, formats())
def test_codes(bits: list[int], f: cpd.Format) -> None:
    spec = spec_of(f)
    assume(f.bits >= 2)
    rows = [(b, oracle.encode(spec, b)) for b in bits]
    rows = [(b, code) for b, code in rows if code is not None]
    assume(rows)
    x = from_bits(b for b, _ in rows)
    packed = cpd.encode(x, f)
    assert unpack(packed, f.bits, len(rows)) == [code for _, code in rows]
    decoded = cpd.decode(packed, f, len(rows))
    assert decoded.view(np.uint32).tolist() == cpd.cast(x, f).view(np.uint32).tolist()


@settings(deadline=None, max_examples=200)
@given(formats())
def test_names(f: cpd.Format) -> None:
    assert cpd.Format(str(f)) == f
