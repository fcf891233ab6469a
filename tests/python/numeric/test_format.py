# SPDX-License-Identifier: Apache-2.0
"""Compares `cpd.Format` with an oracle in rational arithmetic."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cpd
import cpd.nn.recipe
import cpd.numeric.accumulator
import oracle
from arrays import spec_of
from rationals import Fraction

NAMES = [
    *("e4m3", "e5m2", "e3m0", "e6m9", "e1m3", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1", "e2m3"),
    *("e3m2", "e3m2ieee", "e4m3finite", "e8m0", "bf16", "fp16", "tf32", "fp32", "binary8p4se"),
    *("binary8p3ue", "binary6p3uf", "binary5p1sf", "e4m3:nosub", "e4m3fn:bias=11:nosub:unsigned"),
    "e4m3p3109finite:bias=5",
    *("e5m2:unsigned", "e3m3:bias=-20"),
]


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", NAMES)
def test_figures(name: str) -> None:
    f = cpd.Format(name)
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


def test_formats_without_a_sign_or_a_zero() -> None:
    """e8m0 has only the powers of two from 2^-127 to 2^127: neither a sign nor a zero. ue4m3 has no
    sign, and zero is its lowest value."""
    e8m0, ue4m3 = cpd.Format("e8m0"), cpd.Format("ue4m3")
    assert e8m0.values().tolist() == [2.0**k for k in range(-127, 128)]
    assert (e8m0.lowest, e8m0.max, e8m0.num_values) == (2.0**-127, 2.0**127, 255)
    assert ue4m3.values()[:2].tolist() == [0, 2.0**-9]
    assert ue4m3.lowest == 0
    assert not np.signbit(ue4m3.lowest)


@pytest.mark.parametrize("name", NAMES)
def test_names_parse_back(name: str) -> None:
    f = cpd.Format(name)
    assert cpd.Format(str(f)) == f
    assert hash(cpd.Format(str(f))) == hash(f)
    assert pickle.loads(pickle.dumps(f)) == f
    again = cpd.Format(
        exp=f.exp,
        man=f.man,
        bias=f.bias,
        encoding=f.encoding,
        signed=f.signed,
        subnormals=f.subnormals,
    )
    assert again == f


def test_e3m2_of_ieee_encoding_is_not_the_finite_one() -> None:
    assert str(cpd.Format(exp=3, man=2)) != "e3m2"
    assert cpd.Format(exp=3, man=2) != cpd.Format("e3m2")
    assert cpd.Format("e3m2").max == 28
    assert cpd.Format(exp=3, man=2).max == 14


def test_every_width_and_encoding_is_accepted_or_refused_as_the_oracle_says() -> None:
    for encoding in ("ieee", "fn", "fnuz", "p3109", "finite"):
        for exp in range(1, 9):
            for man in range(24):
                for signed in (True, False):
                    spec = oracle.Spec(exp, man, None, encoding, signed)
                    if spec.representable():
                        f = cpd.Format(exp=exp, man=man, encoding=encoding, signed=signed)
                        assert 1 - f.bias == spec.emin
                    else:
                        with pytest.raises(ValueError, match=r".{10,}"):
                            cpd.Format(exp=exp, man=man, encoding=encoding, signed=signed)


@pytest.mark.parametrize(
    ("exp", "man", "more"),
    [
        (0, 3, {}),
        (12, 3, {}),
        (9, 3, {"encoding": "fn"}),
        (4, -1, {}),
        (4, 53, {}),
        (4, 24, {"encoding": "finite"}),
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
        cpd.Format(exp=exp, man=man, **more)


def test_message_says_what_was_given_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"exp.*1.*8.*9"):
        cpd.Format(exp=9, man=3, encoding="fn")
    with pytest.raises(ValueError, match=r"exp.*1.*8.*12.*exp up to 11 and man up to 52"):
        cpd.Format(exp=12, man=3)


@pytest.mark.parametrize("bad", [4.5, "4", None, True])
def test_bad_types(bad: Any) -> None:
    with pytest.raises(TypeError):
        cpd.Format(exp=bad, man=3)
    with pytest.raises(TypeError):
        cpd.Format(exp=4, man=bad)


def test_keywords_replace_what_the_name_says() -> None:
    assert cpd.Format("e4m3", encoding="fnuz") == cpd.Format("e4m3fnuz")
    assert cpd.Format("e4m3fnuz", encoding="ieee") == cpd.Format("e4m3")  # with its own bias
    assert cpd.Format("e4m3fn:bias=11", man=2) == cpd.Format("e4m2fn:bias=11")
    assert cpd.Format("e4m3fn:bias=11", man=2).bias == 11
    assert cpd.Format("e4m3:unsigned", signed=True, subnormals=False) == cpd.Format("e4m3:nosub")
    assert cpd.Format("sm4", man=3) == cpd.Format((1, 3), encoding="finite", bias=-1)
    assert cpd.Format(cpd.Format("e5m2"), bias=3) == cpd.Format(exp=5, man=2, bias=3)
    with pytest.raises(ValueError, match=r"exp.*1.*8.*9"):
        cpd.Format("e4m3fn", exp=9)


def test_exponent_and_mantissa_are_a_pair_or_keywords() -> None:
    for arguments in ((4, 3), (4,)):
        with pytest.raises(TypeError, match=r"\(exp, man\), or by exp= and man="):
            cpd.Format(*arguments)
    with pytest.raises(TypeError, match=r"Format takes one text or format, .* by keyword: exp"):
        cpd.Format("e4m3", 3)
    for one in ({}, {"exp": 4}, {"man": 3}):
        with pytest.raises(TypeError, match="Format takes a name, or exp= and man="):
            cpd.Format(**one)


@pytest.mark.parametrize(
    "name", ["", "e4", "m3", "e4m", "e4m3fnn", "fp65", "binary8p9se", "e4m3:x"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match=r".{10,}"):
        cpd.Format(name)


@pytest.mark.parametrize("bad", [3, None, 4.0, ["e4m3"]])
def test_bad_name_types(bad: Any) -> None:
    with pytest.raises(TypeError):
        cpd.Format(bad)


# Names that other libraries give to formats, with CPD's names. test_mldtypes.py compares the
# formats' values with ml_dtypes and torch.
ALIASES = [
    *(("float32", "fp32"), ("float", "fp32"), ("single", "fp32"), ("binary32", "fp32")),
    *(("float16", "fp16"), ("half", "fp16"), ("binary16", "fp16"), ("bfloat16", "bf16")),
    *(("float8_e3m4", "e3m4"), ("float8_e4m3", "e4m3"), ("float8_e4m3fn", "e4m3fn")),
    *(("float8_e4m3fnuz", "e4m3fnuz"), ("float8_e5m2", "e5m2"), ("float8_e5m2fnuz", "e5m2fnuz")),
    *(("float8_e4m3b11fnuz", "e4m3fnuz:bias=11"), ("e4m3b11fnuz", "e4m3fnuz:bias=11")),
    *(("float8_e8m0fnu", "e8m0"), ("e8m0fnu", "e8m0"), ("float6_e2m3fn", "e2m3")),
    *(("float6_e3m2fn", "e3m2"), ("float4_e2m1fn", "e2m1"), ("float4_e2m1fn_x2", "e2m1")),
    *(("(4,3)", "e4m3"), ("( 5, 2 )", "e5m2"), ("(3,2)", "e3m2ieee"), ("(2,1)", "e2m1ieee")),
    *(("E4M3", "e4m3"), ("E4M3FN", "e4m3fn"), ("FP16", "fp16"), ("Binary8p4se", "binary8p4se")),
    *(("Float8_E5M2FNUZ", "e5m2fnuz"), ("E4M3FN:Bias=11:NOSUB", "e4m3fn:bias=11:nosub")),
]


@pytest.mark.parametrize(("theirs", "ours"), ALIASES)
def test_aliases_are_the_same_formats_and_print_as_before(theirs: str, ours: str) -> None:
    f = cpd.Format(theirs)
    assert f == cpd.Format(ours)
    assert str(f) == cpd.Format(ours).name == ours
    assert cpd.Format(theirs.upper()) == cpd.Format(theirs.lower()) == f
    assert eval(repr(f), {"cpd": cpd}) == f


def wherever(f: Any) -> list[cpd.Format]:
    """Passes `f`, such as a name, to every argument that takes a format. Returns the formats that
    these calls make of `f`."""
    x = np.float32([1.0, 2.0])
    held = cpd.Format(f)  # a recipe refuses a bare e4m3
    recipe = cpd.Recipe(sums=f, grad_bias=f, weight=held, output=held)
    assert cpd.Recipe(held).weight == recipe.weight
    unit = cpd.Accumulator(a=f, b=f, sum=f)
    chunked = cpd.Accumulator(f, scheme="chunked", product=f, inner=f)
    spec = cpd.Reduce(f, accumulator=f, result=f)
    assert chunked.product == chunked.inner
    assert cpd.cast(x, f).tolist() == x.tolist()
    assert cpd.decode(cpd.encode(x, f), f, 2).tolist() == x.tolist()
    assert cpd.add(x, x, f).tolist() == cpd.mul(x, np.float32(2), f).tolist() == [2.0, 4.0]
    assert cpd.fma(x, x, x, f).tolist() == [2.0, 6.0]
    assert cpd.sum(x, f).item() == 3
    assert cpd.gemm(x.reshape(1, 2), x.reshape(2, 1), f).item() == 5
    assert cpd.simulate_all_reduce([[x], [x]], spec)[0].tolist() == [2.0, 4.0]
    assert cpd.nn.recipe.product_recipe(f).forward == recipe.forward
    operands = cpd.Accumulator("h100-fp8", a=f, b=f)
    assert operands.form == "unit"
    return [
        cpd.Format(f),
        cpd.Cast(f).format,
        cpd.Accumulator(f).format,
        cpd.numeric.accumulator.as_accumulator(f).format,
        chunked.format,
        chunked.inner,
        *(unit.a, unit.b, unit.sum, operands.a, operands.b),
        *(recipe.forward.format, recipe.grad_bias.format),
        *(recipe.weight.format, recipe.output.format),  # type: ignore[union-attr]
        *(spec.format, spec.accumulator.format, spec.result),
    ]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("E4M3", "e4m3"),
        ("float8_e4m3fn", "e4m3fn"),
        ("(4,3)", "e4m3"),
        ((4, 3), "e4m3"),
        ((np.int64(5), np.int8(2)), "e5m2"),
        (np.float16, "fp16"),
        (np.dtype(np.float16), "fp16"),
        (np.dtype(">f4"), "fp32"),
        (ml_dtypes.float8_e4m3, "e4m3"),
        (np.dtype(ml_dtypes.float8_e4m3b11fnuz), "e4m3fnuz:bias=11"),
        (ml_dtypes.bfloat16, "bf16"),
    ],
)
def test_whatever_stands_for_a_format(given: Any, name: str) -> None:
    assert {f.name for f in wherever(given)} == {name}


def test_torch_types_stand_for_formats() -> None:
    torch = pytest.importorskip("torch")
    for given, name in (
        (torch.float8_e4m3fn, "e4m3fn"),
        (torch.float8_e5m2, "e5m2"),
        (torch.half, "fp16"),
        (torch.bfloat16, "bf16"),
        (torch.float, "fp32"),
    ):
        assert {f.name for f in wherever(given)} == {name}
    assert cpd.Format(torch.float8_e8m0fnu).name == "e8m0"
    assert cpd.Format(torch.float4_e2m1fn_x2).name == "e2m1"


def test_types_of_no_format_are_refused_by_their_kind() -> None:
    torch = pytest.importorskip("torch")
    integers = [np.int64, np.dtype("u2"), np.bool_, ml_dtypes.uint4, torch.int64, torch.uint16]
    for bad in (*integers, torch.bool, torch.quint8, torch.int, "int32", "UINT4", "bool"):
        with pytest.raises(
            ValueError, match=r"no format '\w+': of integers there are int2 … int25"
        ):
            cpd.Format(bad)
        if bad in (np.int64, torch.int64, torch.int, "int32"):
            assert cpd.Accumulator(bad).form == "integer"  # sums in integers, not a format
            continue
        with pytest.raises(ValueError, match="of integers there are"):
            cpd.Accumulator(bad)
    for bad in (np.longdouble, np.dtype("c8"), torch.complex64, "float128", "LONGDOUBLE"):
        with pytest.raises(ValueError, match="at most 11 exponent and 52 mantissa bits"):
            cpd.Format(bad)
    for bad in (np.floating, np.dtype("V4"), np.dtype("datetime64[s]"), np.dtype([("a", "f4")])):
        with pytest.raises(ValueError, match="unknown format"):
            cpd.Format(bad)


def test_integers_are_twos_complement() -> None:
    """Integer formats have a symmetric range, or with `:full` also the least number of two's
    complement. Sign-and-magnitude formats have names of their own."""
    torch = pytest.importorskip("torch")
    for given in (np.int8, np.dtype("i1"), torch.int8, "int8", "INT8"):
        assert (
            cpd.Format(given) == cpd.Format(exp=1, man=6, encoding="int") == cpd.Format("e1m6int")
        )
    for bits, given in ((4, ml_dtypes.int4), (16, np.int16), (16, torch.int16), (2, "int2")):
        f, most = cpd.Format(given), 2 ** (bits - 1) - 1
        assert (str(f), f.bits, f.max, f.min_subnormal) == (f"int{bits}", bits, most, 1)
        assert f.values().tolist() == list(range(-most, most + 1))
        full = cpd.Format(f"int{bits}:full")
        assert full == cpd.Format((1, bits - 2), encoding="int_full")
        assert (f.lowest, full.lowest, full.max) == (-most, -most - 1, most)
        assert full.values().tolist() == list(range(-most - 1, most + 1))
        assert full.num_values == f.num_values + 1 == 2**bits
        magnitude = cpd.Format(f"sm{bits}")
        assert magnitude == cpd.Format((1, bits - 2), encoding="finite", bias=3 - bits)
        assert magnitude.values().tolist() == f.values().tolist()
    for wrong in ({"signed": False}, {"subnormals": False}):
        with pytest.raises(ValueError, match="encoding int must have exp = 1"):
            cpd.Format(exp=1, man=6, encoding="int", **wrong)
    with pytest.raises(ValueError, match="encoding int_full must have exp = 1"):
        cpd.Format(exp=2, man=6, encoding="int_full")
    for wrong_name in ("int8:full:nosub", "int8:bias=1", "sm8:full", "int26:full", "int8full"):
        with pytest.raises(ValueError, match="format"):
            cpd.Format(wrong_name)


@pytest.mark.parametrize(
    "name", ["int2", "int3", "int8", "int8:full", "e1m6int:bias=1", "int16:full"]
)
def test_codes_of_integers_are_those_of_every_type_of_that_name(name: str) -> None:
    """Codes of integers have NumPy's values in two's complement: every code decodes to its value,
    and every value encodes to its code."""
    f = cpd.Format(name)
    codes = np.arange(1 << f.bits, dtype=np.uint32)
    values = codes.astype(np.int64) - (codes >= 1 << (f.bits - 1)) * (1 << f.bits)
    packed = np.packbits(
        np.unpackbits(codes.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")[:, : f.bits],
        bitorder="little",
    )
    exact = (values * f.min_subnormal).astype(np.float32)
    assert cpd.decode(packed, f, codes.shape).tolist() == exact.tolist()
    held = (exact >= f.lowest) if name.endswith("full") else np.abs(exact) <= f.max
    again = cpd.encode(exact, f)
    expected = np.where(held, codes, (1 << (f.bits - 1)) + 1)
    bits = np.unpackbits(again, bitorder="little")[: len(codes) * f.bits].reshape(-1, f.bits)
    weights = 1 << np.arange(f.bits)
    assert (bits @ weights).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ((4,), TypeError),
        ((4, 3, 7), TypeError),
        ((4, 3.0), TypeError),
        ((True, 3), TypeError),
        (("4", "3"), TypeError),
        ([4, 3], TypeError),
        (float, TypeError),
        ((12, 3), ValueError),
        ((4, 53), ValueError),
        ((10**30, 3), ValueError),
    ],
)
def test_pairs_that_are_no_formats(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        cpd.Format(bad)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("e4m3fnn", "'e4m3fn'"),
        ("fp33", "'fp32'"),
        ("bfolat16", "'bfloat16'"),
        ("float8-e4m3fn", "'e4m3fn'"),
        ("e4m3_fn", "'e4m3fn'"),
        ("e4m3 ", "'e4m3'"),
        ("torch.float8_e5m2", "'e5m2'"),
        ("S1E5M2", "'e5m2'"),
        ("fp8", "'e4m3fn' or 'e5m2'"),
        ("FLOAT4", "'e2m1'"),
    ],
)
def test_near_misses_are_suggested(given: str, meant: str) -> None:
    with pytest.raises(
        ValueError, match=rf"unknown format '{given}'; did you mean {meant}\? Names"
    ):
        cpd.Format(given)


def test_a_suggestion_is_always_a_name() -> None:
    """The error for a misspelled format name suggests a name that exists. The test changes one or
    two random letters of known names."""
    import random
    import re

    generator = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
    suggested = 0
    for name in [ours for _, ours in ALIASES] + [theirs for theirs, _ in ALIASES]:
        for _ in range(20):
            text = list(name)
            for _ in range(generator.randrange(1, 3)):
                at = generator.randrange(len(text))
                text[at : at + generator.randrange(2)] = generator.choice(letters)
            try:
                cpd.Format("".join(text))
            except ValueError as error:
                for meant in re.findall("'([^']*)'", str(error).partition("did you mean")[2]):
                    assert cpd.Format(meant).bits > 0
                    suggested += 1
    assert suggested > 300


COMPILED: list[Any] = ["E4M3", (4, 3), np.float16, np.dtype(np.float16), ml_dtypes.float8_e4m3]


@pytest.mark.few("", 3)
@pytest.mark.parametrize("given", [*COMPILED, "torch.float8_e4m3fn", "torch.half"], ids=str)
def test_compiled_programs_take_them_all(given: Any) -> None:
    torch = pytest.importorskip("torch")
    if isinstance(given, str) and given.startswith("torch."):
        given = getattr(torch, given.removeprefix("torch."))
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))

    def program(x: Any) -> Any:
        y = cpd.cast(x, given)
        products = cpd.functional.matmul(x, y, sums=given), cpd.functional.linear(x, y, recipe=cast)
        return cpd.gemm(y, y, given), cpd.sum(x, given), *products

    cast = cpd.Format(given) if isinstance(given, str) else given  # "E4M3" is refused there
    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="eager")
    for got, wanted in zip(compiled(x), program(x), strict=True):
        assert torch.equal(got, wanted)
