# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.Accumulator`, `cpd.Cast` and `cpd.Recipe` as value objects: the meaning of their
arguments, their texts, equality, copies and errors."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest

import cpd
from cpd.numeric.accumulator import as_accumulator

UNIT = cpd.Accumulator(
    a="fp16", b="e5m2", block=4, fraction_bits=23, sum_rounding="nearest_even", promote=8
)

SOME = [
    cpd.Accumulator("e4m3"),
    cpd.Accumulator("e4m3 kahan", product="e5m2"),
    cpd.Accumulator("e4m3 fma"),
    cpd.Accumulator("e4m3", product="exact", rounding="stochastic", random_bits=8, variant="B"),
    cpd.Accumulator("e6m9 chunked", chunk=32, inner="e4m3", overflow="saturate"),
    cpd.Accumulator("e3m2ieee pairwise", rounding="toward_zero"),
    cpd.Accumulator("v100"),
    cpd.Accumulator("fp16 h100-fp16"),
    cpd.Accumulator("h100-fp8", a="e5m2", b="e4m3fn"),
    cpd.Accumulator("deepseek-promoted"),
    cpd.Accumulator("fp16 b200-fp8"),
    cpd.Accumulator("cdna3-fp8"),
    cpd.Accumulator(UNIT),
    UNIT.replace(format="e5m10", rounding="up"),
    cpd.Accumulator(cpd.Format(exp=4, man=3, bias=9, subnormals=False)),
]


@pytest.mark.parametrize("acc", SOME, ids=str)
def test_text_copies_and_equality(acc):
    assert cpd.Accumulator(str(acc)) == acc
    assert str(cpd.Accumulator(str(acc))) == str(acc)
    assert eval(repr(acc), {"cpd": cpd}) == acc
    for same in (copy.deepcopy(acc), pickle.loads(pickle.dumps(acc)), acc.replace()):
        assert same == acc
        assert hash(same) == hash(acc)
        assert str(same) == str(acc)
    assert as_accumulator(acc) is acc
    assert as_accumulator(str(acc)) == acc


def test_all_are_different():
    assert len(set(SOME)) == len(SOME)


def test_what_the_arguments_mean():
    plain = cpd.Accumulator("e4m3")
    assert (plain.scheme, plain.product, plain.inner, plain.chunk, plain.block) == (
        "sequential",
        cpd.Format("e4m3"),
        cpd.Format("e4m3"),
        64,
        None,
    )
    assert plain == cpd.Accumulator(cpd.Format(exp=4, man=3), scheme="sequential", product="e4m3")
    fused = cpd.Accumulator("e4m3 fma")
    assert (fused.scheme, fused.product) == ("sequential", "exact")
    assert fused == cpd.Accumulator("e4m3 fma", product="exact")
    assert str(fused) == "e4m3 sequential product=exact"
    chunked = cpd.Accumulator("e6m9 chunked", inner="e5m2")
    assert (chunked.inner.name, chunked.chunk, chunked.product.name) == ("e5m2", 64, "e6m9")


def test_a_text_a_preset_or_a_unit_alone_says_it_all():
    """A text, the name of a preset or a matrix unit gives the same accumulator in the constructor
    as in `cpd.gemm`."""
    for text in ("h100-fp8", "H100-FP8", "v100", "h100-fp8 a=e5m2", "e4m3 kahan", "e4m3"):
        assert as_accumulator(text) == cpd.Accumulator(text)
    assert cpd.Accumulator("h100-fp8", a="e5m2", b="e4m3fn") == as_accumulator("h100-fp8 a=e5m2")
    assert cpd.Accumulator(UNIT) == as_accumulator(UNIT)
    assert cpd.Recipe(sums=UNIT).grad_weight == cpd.Accumulator(UNIT)
    drawing = cpd.Accumulator("e4m3 rounding=stochastic kahan")
    assert drawing == cpd.Accumulator("e4m3 kahan", rounding="stochastic")
    a, b = np.ones((2, 8), np.float32), np.ones((8, 2), np.float32)
    for acc in (UNIT, "H100-FP8", cpd.Accumulator("h100-fp8")):
        assert (cpd.gemm(a, b, acc) == 8).all()


def test_units_that_are_not_known_are_refused_alike():
    a = np.ones((1, 1), np.float32)
    told = set()
    for call in (
        lambda: cpd.Accumulator("b300-fp4"),
        lambda: cpd.Accumulator("e4m3", scheme="b300-fp4"),
        lambda: cpd.Accumulator("b300-fp4 a=e5m2"),
        lambda: cpd.gemm(a, a, "b300-fp4"),
        lambda: cpd.Recipe(sums="b300-fp4"),
    ):
        with pytest.raises(ValueError, match="unknown preset 'b300-fp4'; there are v100") as raised:
            call()
        told.add(str(raised.value).removeprefix("forward: "))  # the recipe's part
    assert len(told) == 1


def test_orders_of_k_and_adders():
    half = cpd.Accumulator("fp16 b200-fp8")
    assert (half.group, half.stride, half.take) == (32, 4, 2)
    assert (half.block, half.promote, half.min_exponent) == (16, 32, -21)
    assert repr(half).endswith("promote=32 group=32 stride=4 take=2')")
    assert "adder" not in repr(half)
    amd = cpd.Accumulator("cdna3-fp8")
    assert amd.adder == "two_steps_even"
    assert repr(amd).endswith("sum_rounding=nearest_even adder=two_steps_even')")
    assert amd.replace(adder="two_steps").adder == "two_steps"


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("e6m9 chunk=64 chunked", "e6m9 chunked chunk=64"),
        ("e4m3 rounding=stochastic kahan", "e4m3 kahan rounding=stochastic"),
        ("e6m9 inner=(4, 3) chunk=8 chunked", "e6m9 chunked chunk=8 inner=e4m3"),
        ("(5, 2) kahan product=Float16", "e5m2 kahan product=fp16"),
        ("(4, 3)", "e4m3 sequential"),
        ("FLOAT8_E4M3FN", "e4m3fn sequential"),
    ],
)
def test_texts_that_people_write(given, canonical):
    assert str(as_accumulator(given)) == str(cpd.Accumulator(given)) == canonical


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("e4m3 khan", "kahan"),
        ("e4m3 KAHAN", "kahan"),
        ("e4m3 kahan roundin=up", "rounding"),
        ("h200-fp8", "h100-fp8"),
        ("e4m3fnn kahan", "e4m3fn"),
        ("float8-e4m3fn", "e4m3fn"),
    ],
)
def test_near_misses_are_suggested(text, meant):
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        as_accumulator(text)


@pytest.mark.parametrize("name", ["seed", "stream"])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            cpd.Accumulator,
            r"Accumulator\(\) takes no {}=: give it to the call, cpd.gemm\(…, {}=…\)",
        ),
        (cpd.Cast, r"Cast\(\) takes no {}=: give it to the call, cpd.cast\(…, {}=…\)"),
    ],
)
def test_numbers_go_to_calls(make, told, name):
    for call in (make, make("e4m3").replace):
        with pytest.raises(TypeError, match=told.replace("{}", name)):
            call(*(("e4m3",) if call is make else ()), **{name: 3})


@pytest.mark.parametrize("make", [cpd.Accumulator, cpd.Cast])
def test_pickles_of_0_7_with_numbers_warn_once(make):
    loaded = [object.__new__(make) for _ in range(3)]
    name = make.__name__
    with pytest.warns(UserWarning, match=f"this {name} of 0.7 had seed 31: give it to the call"):
        loaded[0].__setstate__({"text": "e4m3", "seed": 31, "stream": 0})
    with pytest.warns(UserWarning, match="had seed 31 and stream 4: give them to the call"):
        loaded[1].__setstate__({"text": "e4m3", "seed": 31, "stream": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded[2].__setstate__({"text": "e4m3", "seed": 31, "stream": 0})
    assert loaded == [make("e4m3")] * 3


def test_numpy_numbers_are_kept_as_ints():
    acc = cpd.Accumulator(
        "e4m3 chunked",
        chunk=np.int32(8),
        rounding="stochastic",
        random_bits=np.int8(8),
    )
    assert repr(acc) == (
        "cpd.Accumulator('e4m3 chunked chunk=8 rounding=stochastic random_bits=8')"
    )
    assert type(acc.chunk) is type(acc.random_bits) is int
    cast = cpd.Cast("e4m3", rounding="stochastic", random_bits=np.int8(8))
    assert type(cast.random_bits) is int
    spec = cpd.Reduce("e4m3", rounding="stochastic", random_bits=np.int8(8))
    assert type(spec.random_bits) is int


@pytest.mark.parametrize("acc", SOME, ids=str)
def test_replacing_a_part(acc):
    if acc.rounding == "stochastic":
        with pytest.raises(ValueError, match="are for rounding=stochastic"):
            acc.replace(rounding="up")
        plain = acc.replace(rounding="up", random_bits=24, variant="A")
        assert str(plain) == "e4m3 sequential product=exact rounding=up"
    elif acc.form != "unit" or acc.promote:
        assert acc.replace(rounding="up").rounding == "up"
    else:  # the format holds every sum of the unit
        with pytest.raises(ValueError, match=r"rounding= has no effect, .*: sum_rounding="):
            acc.replace(rounding="up")
    assert str(acc.replace(rounding=acc.rounding)) == str(acc)


def test_replacing_the_format_keeps_the_keys_of_the_text():
    acc = cpd.Accumulator("e4m3 chunked chunk=8 product=e5m2")
    wider = acc.replace(format="e6m9")
    assert repr(wider) == "cpd.Accumulator('e6m9 chunked chunk=8 product=e5m2')"
    assert str(acc.replace(format="e6m9", chunk=4)) == "e6m9 chunked chunk=4 product=e5m2"
    assert cpd.Accumulator("v100").replace(format="bf16").block == 4
    with pytest.raises(TypeError, match=r"Accumulator\(\) takes format, scheme, .*, not color="):
        acc.replace(color=3)


def test_a_scheme_that_replaces_chunked_drops_the_keys_of_chunks():
    for text in ("e6m9 chunked", "e6m9 chunked chunk=32 inner=e4m3"):
        acc = cpd.Accumulator(text)
        for made in (acc.replace(scheme="kahan"), cpd.Accumulator(acc, scheme="kahan")):
            assert str(made) == "e6m9 kahan"
        assert str(acc.replace(scheme="chunked")) == str(acc)
        assert str(acc.replace(scheme="chunked", chunk=8, inner="e6m9")) == "e6m9 chunked chunk=8"
        with pytest.raises(ValueError, match="chunk is for scheme chunked, got scheme kahan"):
            acc.replace(scheme="kahan", chunk=8)
    assert str(cpd.Accumulator("e6m9 chunk=32", scheme="chunked")) == "e6m9 chunked chunk=32"
    with pytest.raises(ValueError, match="chunk is for scheme chunked, got scheme kahan"):
        cpd.Accumulator("e6m9 chunk=32", scheme="kahan")


def test_keywords_replace_the_keys_of_a_text():
    """Keywords override the options of a text, an accumulator or a preset."""
    for given in ("e4m3 kahan", cpd.Accumulator("e4m3 kahan rounding=down")):
        assert str(cpd.Accumulator(given, rounding="up")) == "e4m3 kahan rounding=up"
        assert cpd.Accumulator(given, scheme="pairwise").scheme == "pairwise"
    assert cpd.Accumulator("h100-fp8", a="e5m2").a == cpd.Format("e5m2")
    assert cpd.Accumulator("h100-fp8 b=e5m2", b="e4m3fn") == cpd.Accumulator("h100-fp8")
    assert str(cpd.Accumulator("fixed<40,12>", fraction=8)) == "fp32 fixed width=40 fraction=8"
    assert cpd.Accumulator("e4m3", scheme="fma").product == "exact"


FORMS = {
    "e4m3 kahan": "ordered",
    "e4m3 rounding=stochastic": "ordered",
    "h100-fp8": "unit",
    "fp16 h100-fp16": "unit",
    "a=fp16 b=fp16 block=4": "unit",
    "bf16 a=fp16 b=fp16 promote=16 rounding=up": "unit",
    "int8": "integer",
    "bf16 fixed<40,12>": "integer",
    "width=40 fraction=12": "integer",
    "bf16 width=40": "integer",
}


@pytest.mark.parametrize("text", FORMS)
def test_a_form_has_its_keys_and_no_others(text):
    acc = cpd.Accumulator(text)
    assert acc.form == FORMS[text]
    keys = {
        "ordered": "scheme product inner chunk",
        "unit": "a b block fraction_bits addend min_exponent sum sum_rounding promote scale_block "
        "dot adder group stride take",
        "integer": "width fraction sum_rounding",
    }
    every = {name for names in keys.values() for name in names.split()}
    has = {name for name in every if getattr(acc, name) is not None}
    assert has == set(keys[acc.form].split())
    assert acc.scale is None
    assert (acc.random_bits, acc.variant, acc.overflow) == (24, "A", "ieee")


def test_units_and_integers_by_their_keys():
    """Matrix units and integer accumulators can be constructed from keywords. Such accumulators
    equal the accumulators of texts; the test spells out the fields."""
    unit = cpd.Accumulator(a="fp16", b="fp16", block=4, fraction_bits=23, min_exponent=-133)
    assert unit == cpd.Accumulator("v100")
    assert cpd.Accumulator("bf16", a="fp16", b="fp16", promote=16).format.name == "bf16"
    assert cpd.Accumulator(a="fp16", b="fp16", sum="bf16").format.name == "bf16"
    assert cpd.Accumulator(width=40, fraction=12) == cpd.Accumulator("fixed<40,12>")
    assert cpd.Accumulator("bf16", width=40) == cpd.Accumulator("bf16 int40")
    x = np.float32([[0.5, 2.0**-13]])
    assert cpd.gemm(x, np.ones((2, 1), np.float32), "width=40 fraction=12").item() == 0.5


def test_an_unknown_key_names_the_allowed_ones_and_the_nearest():
    with pytest.raises(ValueError, match="unknown option 'fractoin' of an accumulator") as raised:
        cpd.Accumulator("e4m3 fractoin=3")
    told = str(raised.value)
    assert "did you mean 'fraction'?" in told
    assert "; there are format, scheme, chunk, inner, product, a, b, block" in told
    assert ", rounding, overflow, variant, random_bits; did" in told


def test_matrix_units():
    v100 = cpd.Accumulator("v100")
    assert (v100.form, v100.scheme, v100.product, v100.format.name) == ("unit", None, None, "fp32")
    assert (v100.block, v100.fraction_bits) == (4, 23)
    assert v100 == cpd.Accumulator("fp32 v100")
    assert v100 == cpd.Accumulator(v100)
    half = cpd.Accumulator("fp16 v100")
    assert (half.sum.name, half.sum_rounding) == ("fp16", "nearest_even")
    mixed = cpd.Accumulator("h100-fp8", a=cpd.Format("e5m2"), b="e4m3fn")
    assert (mixed.a.name, mixed.b.name) == ("e5m2", "e4m3fn")
    assert cpd.Accumulator(UNIT).format == UNIT.sum == cpd.Format("fp32")
    assert UNIT.replace(promote=0).promote == 0


def test_units_name_their_evidence():
    units = cpd.Accumulator.named()
    replayed = {name for name, one in units.items() if one["evidence"] == "replayed"}
    assert {"v100", "h100-fp16", "h100-fp8"} <= replayed
    assert {one["evidence"] for one in units.values()} == {"replayed", "literature"}
    for name, one in units.items():
        acc = cpd.Accumulator(name)
        assert acc.form == "unit"
        assert one["source"]
        assert one["summary"].startswith(f"{acc.block} products of {acc.a}")
        assert one["nan"] in ("", "7FFFFFFF")


GOOD = {"format": "e4m3"}
WRONG = [
    ({}, TypeError, "takes a text, a format, or the keys of a matrix unit or an integer"),
    ({"format": 8}, TypeError, "an accumulator must be a cpd.Accumulator, its text"),
    ({"format": "v100", "scheme": "kahan"}, ValueError, "unknown format 'v100'"),
    ({"format": "v100", "rounding": "up"}, ValueError, r"no effect.*sum_rounding= is how"),
    ({"format": "b200-fp4"}, ValueError, "unknown preset 'b200-fp4'"),
    ({"format": "h200-fp8"}, ValueError, "unknown preset 'h200-fp8'; there are v100"),
    ({"format": "h200"}, ValueError, r"unknown format 'h200'.*a text such as.*named\(\)"),
    ({"format": "e4m3 kahan", "chunk": 8}, ValueError, "chunk is for scheme chunked, got .*kahan"),
    ({"format": "e4m3 kahan", "width": 8}, ValueError, "width is for scheme fixed, got .*kahan"),
    (
        {"format": "v100", "fraction": 8},
        ValueError,
        "fraction is for scheme fixed, got .*block_fma",
    ),
    ({"format": "v100", "width": 8, "b": "fp16"}, ValueError, "width is for scheme fixed"),
    ({"a": "fp16", "b": "fp16", "width": 8}, ValueError, "width is for scheme fixed"),
    ({"width": 8, "sum": "fp32"}, ValueError, "width is for scheme fixed, got scheme block_fma"),
    ({"a": "fp16"}, ValueError, "needs a= and b=, the formats"),
    ({"scheme": "kahan"}, ValueError, "an accumulator is a format, a scheme and options"),
    ({"rounding": "up"}, ValueError, "an accumulator is a format, a scheme and options"),
    ({"sum_rounding": "down"}, ValueError, "an accumulator is a format, a scheme and options"),
    (GOOD | {"sum_rounding": "down"}, ValueError, "is for schemes block_fma and fixed, got .*seq"),
    (GOOD | {"scheme": "tree"}, ValueError, "scheme must be sequential.*got 'tree'"),
    (GOOD | {"scheme": 1}, TypeError, "scheme must be a str, got int"),
    (GOOD | {"scheme": "block_fma"}, ValueError, "needs a= and b="),
    (GOOD | {"scheme": "fma", "product": "e5m2"}, ValueError, "exact products, got product=e5m2"),
    (GOOD | {"product": "exactly"}, ValueError, "exactly"),
    (
        GOOD | {"product": 3},
        TypeError,
        "product must be a name such as 'e4m3fn', a cpd.Format, .* got int",
    ),
    (GOOD | {"inner": "e5m2"}, ValueError, "inner is for scheme chunked, got scheme sequential"),
    (GOOD | {"chunk": 32}, ValueError, "chunk is for scheme chunked, got scheme sequential"),
    (GOOD | {"scheme": "chunked", "chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
    (GOOD | {"scheme": "chunked", "chunk": 2**63}, ValueError, "chunk must fit in 64 bits"),
    (GOOD | {"scheme": "chunked", "chunk": 8.0}, TypeError, "chunk must be an int, got float"),
    (GOOD | {"scheme": "chunked", "inner": "e9m3"}, ValueError, "e9m3|exp"),
    (GOOD | {"rounding": "nearest"}, ValueError, "rounding"),
    (
        {"format": "fp32", "scheme": "z80-fp8"},
        ValueError,
        "unknown preset 'z80-fp8'; there are v100",
    ),
    ({"format": "v100", "product": "e4m3"}, ValueError, "forms its products exactly"),
    ({"format": "e4m3 v100"}, ValueError, "preset v100: output must be fp32 or fp16, got e4m3"),
    ({"format": "fp16", "scheme": "h100-fp8"}, ValueError, "no known rule"),
    ({"format": "bf16", "scheme": "b200-fp8"}, ValueError, "must be fp32 or fp16, got bf16"),
    ({"preset": "v100"}, TypeError, "a unit's name as its first argument or by scheme= in place"),
    ({"unit": UNIT}, TypeError, "takes a unit's keys, a=, b=, block= and so on in place of unit="),
    ({"fixed": "int8"}, TypeError, "takes an integer's keys, width=, fraction= and sum_rounding="),
    (
        {"format": "v100", "operands": ("fp16", "fp16")},
        TypeError,
        "a= and b= in place of operands=",
    ),
    ({"aligns_addend": False}, TypeError, "addend='aligned' or addend='separate' in place of"),
    (
        {"color": 3},
        TypeError,
        r"Accumulator\(\) takes scheme, product.*, fraction, not color=",
    ),
]


def accumulator(format=None, **keys):
    return cpd.Accumulator(**keys) if format is None else cpd.Accumulator(format, **keys)


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        accumulator(**arguments)


def test_a_scheme_is_no_second_argument():
    with pytest.raises(
        TypeError, match="takes one text or format, and all else in it or by keyword: scheme"
    ):
        cpd.Accumulator(*("e4m3", "kahan"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"block": 0}, ValueError, "block must be 1…64, got 0"),
        ({"block": 65}, ValueError, "block must be 1…64, got 65"),
        ({"block": 4.0}, TypeError, "block must be an int"),
        ({"block": 2**40}, ValueError, "block must be an integer -2147483648…2147483647"),
        ({"fraction_bits": 31}, ValueError, "fraction_bits must be 1…30, got 31"),
        ({"sum_rounding": "up"}, ValueError, "toward_zero or nearest_even, got up"),
        ({"sum_rounding": 1}, TypeError, "sum_rounding must be a str"),
        ({"promote": 6, "block": 4}, ValueError, "promote must be 0 or a multiple of block = 4"),
        ({"addend": 1}, TypeError, "addend must be a str"),
        ({"sum": "e8m0"}, ValueError, "sum must be"),
        ({"a": "e8m0"}, ValueError, "a must be a format with a zero"),
        (
            {"adder": "tree"},
            ValueError,
            "adder must be aligned, exact, flushed_pairs, two_steps or",
        ),
        ({"adder": 1}, TypeError, "adder must be a str, got int"),
        ({"adder": "exact", "scale": "e8m0", "block": 32}, ValueError, "for units without a scale"),
        ({"adder": "two_steps"}, ValueError, "rounds to nearest_even, got fp32 and toward_zero"),
        ({"group": 8}, ValueError, "group must be a multiple of block and of stride"),
        ({"group": 128}, ValueError, "group must be 0…64, got 128"),
        ({"group": 8.0}, TypeError, "group must be an int"),
        ({"take": 1}, ValueError, "stride and take are for units with a group"),
    ],
)
def test_unit_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Accumulator(**{"a": "fp16", "b": "fp16"} | arguments)


@pytest.mark.parametrize(
    "text",
    ["", "e4m3 tree", "e4m3 chunk", "e4m3 kahan chunk=3", "e4m3 kahan x=3", "e4m3 kahan kahan"],
)
def test_text_that_does_not_parse(text):
    with pytest.raises(ValueError, match=r"format|scheme|chunk|option"):
        cpd.Accumulator(text)


@pytest.mark.parametrize("acc", ["v100", "h100-fp8 a=e5m2"])
def test_matrix_units_sum_no_terms(acc):
    x = np.ones(3, np.float32)
    for call in (lambda: cpd.sum(x, acc), lambda: cpd.Reduce("e4m3", accumulator=acc)):
        with pytest.raises(ValueError, match="the scheme of a sum must be sequential, kahan"):
            call()


def test_every_other_scheme_sums_terms():
    x = np.ones(3, np.float32)
    for scheme in ("sequential", "kahan", "fma", "chunked", "pairwise"):
        assert cpd.sum(x, cpd.Accumulator("e4m3", scheme=scheme)).item() == 3
    assert cpd.sum(x, "e4m3 kahan").item() == 3
    assert cpd.sum(x, "e4m3 chunked chunk=2").item() == 3


# ---- recipes -------------------------------------------------------------------------------------


def test_recipe_means_one_accumulator_for_all():
    recipe = cpd.Recipe(sums="e4m3 kahan")
    assert recipe.forward == recipe.grad_input == recipe.grad_weight
    assert recipe.grad_bias == cpd.Accumulator("fp32")
    assert recipe.activation is recipe.weight is recipe.gradient is None
    other = cpd.Recipe(
        forward="e4m3",
        grad_input="e5m2",
        grad_weight="e6m9 chunked",
        activation="e4m3fn",
        gradient="e5m2",
    )
    assert (other.grad_input.format.name, other.grad_weight.scheme) == ("e5m2", "chunked")
    assert other.activation == cpd.Cast("e4m3fn")


def test_recipe_copies_and_text():
    cast = cpd.Cast("e5m2", rounding="stochastic", overflow="saturate", random_bits=8)
    recipe = cpd.Recipe(sums="e4m3", grad_weight="fp32", weight="(4,3)", gradient=cast)
    assert pickle.loads(pickle.dumps(recipe)) == copy.deepcopy(recipe) == recipe
    assert hash(copy.deepcopy(recipe)) == hash(recipe)
    assert str(recipe) == (
        "native sums='e4m3 sequential' grad_weight='fp32 sequential' weight=(4,3) "
        "gradient='e5m2 rounding=stochastic overflow=saturate random_bits=8'"
    )
    assert repr(cpd.Recipe(sums="e4m3")) == """cpd.Recipe("native sums='e4m3 sequential'")"""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"forward": "h200"}, ValueError, r"unknown format 'h200'.*a text such as.*named\(\)"),
        (
            {"forward": "e9m3"},
            ValueError,
            "^(forward: )?exp must be 1…8, got 9; formats of encoding ieee with exp up to 11",
        ),
        ({"forward": []}, TypeError, "format"),
        ({"forward": cpd.Cast("e4m3")}, TypeError, "format"),
        ({"grad_input": 3}, TypeError, "format"),
        ({"grad_bias": "e9m9"}, ValueError, "e9m9|exp"),
        ({"weight": 8}, TypeError, "format"),
        ({"weight": "(4,3) kahan"}, ValueError, "a cast is a format, a rounding"),
        ({"layer": 1}, TypeError, "a recipe has no layer: cpd.convert numbers the layers; give"),
        ({"seed": 1}, TypeError, "a recipe has no seed: give it to the call, cpd.convert"),
        ({"stream": 1}, TypeError, "a recipe has no stream: give it to the call"),
    ],
)
def test_recipe_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Recipe(**{"forward": "e4m3"} | arguments)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("acc", [UNIT, "H100-FP8", "e4m3 chunk=2 chunked", "(4, 3) kahan"], ids=str)
def test_compiled_programs_take_units_and_texts(acc):
    torch = pytest.importorskip("torch")
    x = cpd.cast(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), "e2m1")
    torch._dynamo.reset()
    for program in (
        lambda x: cpd.gemm(x, x, acc),
        lambda x: cpd.gemm(x, x, cpd.Accumulator(acc), seed=3),
    ):
        compiled = torch.compile(program, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), program(x))
