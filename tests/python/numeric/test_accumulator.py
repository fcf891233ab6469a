# SPDX-License-Identifier: Apache-2.0
"""`cpd.Accumulator`, `cpd.BlockFma`, `cpd.CastSpec` and `cpd.Recipe` as values: what their
arguments mean, their text, equality, copies and errors."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import cpd
from cpd.numeric.accumulator import as_accumulator

UNIT = cpd.BlockFma("fp16", "e5m2", block=4, fraction_bits=23, rounding="nearest_even", promote=8)

SOME = [
    cpd.Accumulator("e4m3"),
    cpd.Accumulator("e4m3", "kahan", product="e5m2"),
    cpd.Accumulator("e4m3", "fma"),
    cpd.Accumulator("e4m3", product="exact", rounding="stochastic", random_bits=8, variant="B"),
    cpd.Accumulator("e6m9", "chunked", chunk=32, inner="e4m3", overflow="saturate"),
    cpd.Accumulator("e3m2ieee", "pairwise", rounding="toward_zero"),
    cpd.Accumulator(preset="v100"),
    cpd.Accumulator("fp16", preset="h100-fp16"),
    cpd.Accumulator(preset="h100-fp8", operands=("e5m2", "e4m3fn")),
    cpd.Accumulator(preset="deepseek-promoted"),
    cpd.Accumulator(unit=UNIT),
    cpd.Accumulator("e5m10", unit=UNIT, rounding="up"),
    cpd.Accumulator(cpd.Format(exp=4, man=3, bias=9, subnormals=False)),
]


@pytest.mark.parametrize("acc", SOME, ids=str)
def test_text_copies_and_equality(acc):
    assert cpd.Accumulator.parse(str(acc)) == acc
    assert str(cpd.Accumulator.parse(str(acc))) == str(acc)
    assert eval(repr(acc), {"cpd": cpd}) == acc
    for same in (copy.deepcopy(acc), pickle.loads(pickle.dumps(acc)), dataclasses.replace(acc)):
        assert same == acc
        assert hash(same) == hash(acc)
        assert str(same) == str(acc)
    assert as_accumulator(acc) is acc
    assert as_accumulator(str(acc)) == acc


def test_all_are_different():
    assert len(set(SOME)) == len(SOME)
    assert cpd.Accumulator("e4m3", seed=1) != cpd.Accumulator("e4m3")
    assert cpd.Accumulator("e4m3", stream=1) != cpd.Accumulator("e4m3")


def test_what_the_arguments_mean():
    plain = cpd.Accumulator("e4m3")
    assert (plain.scheme, plain.product, plain.inner, plain.chunk, plain.unit) == (
        "sequential",
        cpd.Format("e4m3"),
        cpd.Format("e4m3"),
        64,
        None,
    )
    assert plain == cpd.Accumulator(cpd.Format(exp=4, man=3), "sequential", product="e4m3")
    fused = cpd.Accumulator("e4m3", "fma")
    assert (fused.scheme, fused.product) == ("sequential", "exact")
    assert fused == cpd.Accumulator("e4m3", "fma", product="exact")
    assert fused == cpd.Accumulator.parse("e4m3 fma")
    assert str(fused) == "e4m3 sequential product=exact"
    chunked = cpd.Accumulator("e6m9", "chunked", inner="e5m2")
    assert (chunked.inner.name, chunked.chunk, chunked.product.name) == ("e5m2", 64, "e6m9")


def test_a_text_a_preset_or_a_unit_alone_says_it_all():
    """As GEMM takes them."""
    for text in ("h100-fp8", "H100-FP8", "v100", "h100-fp8 a=e5m2", "e4m3 kahan", "e4m3"):
        assert cpd.Accumulator(text) == as_accumulator(text) == cpd.Accumulator.parse(text)
    assert cpd.Accumulator("h100-fp8") == cpd.Accumulator(preset="h100-fp8")
    assert cpd.Accumulator("h100-fp8", operands=("e5m2", "e4m3fn")) == as_accumulator(
        "h100-fp8 a=e5m2"
    )
    assert cpd.Accumulator(UNIT) == cpd.Accumulator(unit=UNIT) == as_accumulator(UNIT)
    assert cpd.Recipe(sums=UNIT).grad_weight == cpd.Accumulator(unit=UNIT)
    seeded = cpd.Accumulator("e4m3 rounding=stochastic kahan", seed=3, stream=4)
    assert seeded == cpd.Accumulator("e4m3", "kahan", rounding="stochastic", seed=3, stream=4)
    a, b = np.ones((2, 8), np.float32), np.ones((8, 2), np.float32)
    for acc in (UNIT, "H100-FP8", cpd.Accumulator("h100-fp8")):
        assert (cpd.gemm(a, b, acc) == 8).all()


def test_units_that_are_not_known_are_refused_alike():
    a = np.ones((1, 1), np.float32)
    told = set()
    for call in (
        lambda: cpd.Accumulator("b300-fp4"),
        lambda: cpd.Accumulator(preset="b300-fp4"),
        lambda: cpd.Accumulator.parse("b300-fp4"),
        lambda: cpd.Accumulator.parse("b300-fp4 a=e5m2"),
        lambda: cpd.gemm(a, a, "b300-fp4"),
        lambda: cpd.Recipe(sums="b300-fp4"),
    ):
        with pytest.raises(ValueError, match="unknown preset 'b300-fp4'; there are v100") as raised:
            call()
        told.add(str(raised.value))
    assert len(told) == 1


def test_orders_of_k_and_adders():
    half = cpd.Accumulator("fp16", preset="b200-fp8")
    assert (half.unit.group, half.unit.stride, half.unit.take) == (32, 4, 2)
    assert (half.unit.block, half.unit.promote, half.unit.min_exponent) == (16, 32, -21)
    assert repr(half.unit).endswith("promote=32, group=32, stride=4, take=2)")
    assert "adder" not in repr(half.unit)
    amd = cpd.Accumulator(preset="cdna3-fp8").unit
    assert amd.adder == "two_steps_even"
    assert repr(amd).endswith("promote=0, adder='two_steps_even')")
    for unit in (half.unit, amd):
        assert pickle.loads(pickle.dumps(unit)) == unit
        assert cpd.Accumulator.parse(str(cpd.Accumulator(unit=unit))).unit == unit
    assert dataclasses.replace(amd, adder="two_steps").adder == "two_steps"


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


def numbers(value):
    """A number in every shape that a seed may have."""
    torch = pytest.importorskip("torch")
    return [
        value,
        np.int64(value),
        np.uint8(value),
        torch.tensor(value),
        torch.tensor([value]),
        torch.tensor([[value]], dtype=torch.int32),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda **n: cpd.Accumulator("e4m3", rounding="stochastic", **n),
        lambda **n: cpd.Accumulator.parse("e4m3 kahan", **n),
        lambda **n: cpd.CastSpec("e4m3", "stochastic", **n),
        lambda **n: cpd.Recipe(sums=cpd.Accumulator("e4m3", **n), weight=cpd.CastSpec("e5m2", **n)),
    ],
)
@pytest.mark.parametrize("name", ["seed", "stream"])
def test_equal_ones_hash_equal_whatever_their_numbers_are(make, name):
    """Ints, NumPy's, and tensors, which count by their values."""
    all_made = [make(**{name: number}) for number in numbers(7)]
    for one in all_made:
        for other in (*all_made, copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert one == other
            assert hash(one) == hash(other)
        assert one != make(**{name: 8})
        assert one != make()
    assert len(set(all_made)) == 1
    assert make(**{name: numbers(8)[3]}) not in set(all_made)


def test_a_tensor_may_change_under_a_hash():
    torch = pytest.importorskip("torch")
    seed = torch.tensor(3)
    acc = cpd.Accumulator("e4m3", seed=seed)
    kept = {acc: "mine"}
    seed += 1
    assert kept[acc] == "mine"
    assert acc == cpd.Accumulator("e4m3", seed=4)
    assert cpd.Accumulator("e4m3", seed=torch.tensor(-1)) == cpd.Accumulator("e4m3", seed=2**64 - 1)


def test_numpy_numbers_are_kept_as_ints():
    acc = cpd.Accumulator(
        "e4m3",
        "chunked",
        chunk=np.int32(8),
        rounding="stochastic",
        seed=np.uint64(2**64 - 1),
        random_bits=np.int8(8),
    )
    assert repr(acc) == (
        "cpd.Accumulator.parse('e4m3 chunked chunk=8 rounding=stochastic random_bits=8', "
        "seed=18446744073709551615)"
    )
    assert type(acc.seed) is type(acc.chunk) is type(acc.random_bits) is int
    cast = cpd.CastSpec("e4m3", "stochastic", seed=np.int64(3), random_bits=np.int8(8))
    assert type(cast.seed) is type(cast.random_bits) is int
    spec = cpd.Reduce("e4m3", rounding="stochastic", random_bits=np.int8(8))
    assert type(spec.random_bits) is int


@pytest.mark.parametrize("acc", SOME, ids=str)
def test_replacing_a_part(acc):
    torch = pytest.importorskip("torch")
    seed = torch.tensor(5)
    again = dataclasses.replace(acc, seed=seed, stream=np.int64(2))
    assert again.seed is seed
    assert again == cpd.Accumulator.parse(str(acc), seed=5, stream=2)
    assert dataclasses.replace(again, seed=0, stream=0) == acc
    if acc.rounding == "stochastic":
        with pytest.raises(ValueError, match="are for rounding=stochastic"):
            dataclasses.replace(acc, rounding="up")
        plain = dataclasses.replace(acc, rounding="up", random_bits=24, variant="A")
        assert str(plain) == "e4m3 sequential product=exact rounding=up"
    elif acc.unit is None or acc.unit.promote:
        assert dataclasses.replace(acc, rounding="up").rounding == "up"
    else:  # its format holds every sum of the unit
        with pytest.raises(ValueError, match=r"rounding= has no effect, .*: sum_rounding="):
            dataclasses.replace(acc, rounding="up")
    assert str(dataclasses.replace(acc, rounding=acc.rounding)) == str(acc)


def test_replacing_the_format_leaves_the_others():
    """`product` and `inner` are formats of their own."""
    acc = cpd.Accumulator("e4m3", "chunked", chunk=8)
    wider = dataclasses.replace(acc, format="e6m9")
    assert str(wider) == "e6m9 chunked chunk=8 inner=e4m3 product=e4m3"
    whole = {"format": "e6m9", "product": "e6m9", "inner": "e6m9"}
    assert str(dataclasses.replace(acc, **whole)) == "e6m9 chunked chunk=8"
    with pytest.raises(ValueError, match="inner and chunk are for scheme 'chunked' only"):
        dataclasses.replace(cpd.Accumulator("e4m3"), format="e6m9")


def test_matrix_units():
    v100 = cpd.Accumulator(preset="v100")
    assert (v100.scheme, v100.product, v100.format.name) == ("block_fma", "exact", "fp32")
    assert (v100.unit.block, v100.unit.fraction_bits) == (4, 23)
    assert v100 == cpd.Accumulator("fp32", "block_fma", preset="v100")
    assert v100 == cpd.Accumulator(unit=v100.unit)
    assert v100 == as_accumulator("v100")
    half = cpd.Accumulator("fp16", preset="v100")
    assert (half.unit.sum.name, half.unit.rounding) == ("fp16", "nearest_even")
    mixed = cpd.Accumulator(preset="h100-fp8", operands=(cpd.Format("e5m2"), "e4m3fn"))
    assert (mixed.unit.a.name, mixed.unit.b.name) == ("e5m2", "e4m3fn")
    assert mixed == as_accumulator("h100-fp8 a=e5m2")
    assert cpd.Accumulator(unit=UNIT).format == UNIT.sum == cpd.Format("fp32")
    assert dataclasses.replace(UNIT, promote=0).promote == 0


def test_presets_name_their_evidence():
    presets = {one.name: one for one in cpd.presets()}
    replayed = {name for name, one in presets.items() if one.evidence == "replayed"}
    assert {"v100", "h100-fp16", "h100-fp8"} <= replayed
    assert {one.evidence for one in presets.values()} == {"replayed", "literature"}
    for name, one in presets.items():
        assert one.source
        assert cpd.Accumulator(preset=name).unit is not None


GOOD = {"format": "e4m3"}
WRONG = [
    ({}, TypeError, "format must be a cpd.Format or its name, got NoneType"),
    ({"format": 8}, TypeError, "format must be"),
    ({"format": "v100", "scheme": "kahan"}, ValueError, "go with scheme 'block_fma', got 'kahan'"),
    ({"format": "v100", "rounding": "up"}, ValueError, "preset 'v100' says how it rounds"),
    ({"format": "b200-fp4"}, ValueError, "unknown preset 'b200-fp4'"),
    ({"format": "h200-fp8"}, ValueError, "unknown preset 'h200-fp8'; there are v100"),
    ({"format": "h200"}, ValueError, "unknown format 'h200'.*a text such as.*cpd.presets"),
    ({"format": "e4m3 kahan", "rounding": "up"}, ValueError, "'e4m3 kahan' is a whole accumulator"),
    ({"format": "e4m3 kahan", "chunk": 8}, ValueError, "'e4m3 kahan' is a whole accumulator"),
    ({"format": UNIT, "unit": UNIT}, TypeError, "format must be a cpd.Format or its name"),
    ({"format": UNIT, "preset": "v100"}, ValueError, "preset and unit both name"),
    (GOOD | {"scheme": "tree"}, ValueError, "scheme must be one of sequential.*got 'tree'"),
    (GOOD | {"scheme": 1}, TypeError, "scheme must be a str, got int"),
    (GOOD | {"scheme": "block_fma"}, ValueError, "needs preset"),
    (GOOD | {"scheme": "fma", "product": "e4m3"}, ValueError, "exact products, got product='e4m3'"),
    (GOOD | {"product": "exactly"}, ValueError, "exactly"),
    (GOOD | {"product": 3}, TypeError, "product must be a cpd.Format or its name, got int"),
    (GOOD | {"inner": "e5m2"}, ValueError, "inner and chunk are for scheme 'chunked' only"),
    (GOOD | {"chunk": 32}, ValueError, "inner and chunk are for scheme 'chunked' only"),
    (GOOD | {"scheme": "chunked", "chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
    (GOOD | {"scheme": "chunked", "chunk": 2**63}, ValueError, "chunk must fit in 64 bits"),
    (GOOD | {"scheme": "chunked", "chunk": 8.0}, TypeError, "chunk must be an int, got float"),
    (GOOD | {"scheme": "chunked", "inner": "e9m3"}, ValueError, "e9m3|exp"),
    (GOOD | {"operands": ("e4m3", "e4m3")}, ValueError, "operands goes with preset"),
    (GOOD | {"rounding": "nearest"}, ValueError, "rounding"),
    ({"preset": "z80"}, ValueError, "unknown preset 'z80'; there are v100"),
    ({"preset": 100}, TypeError, "preset must be a str, got int"),
    ({"preset": "v100", "scheme": "kahan"}, ValueError, "go with scheme 'block_fma', got 'kahan'"),
    ({"preset": "v100", "unit": UNIT}, ValueError, "preset and unit both name"),
    ({"preset": "v100", "rounding": "up"}, ValueError, "preset 'v100' says how it rounds"),
    ({"preset": "v100", "product": "e4m3"}, ValueError, "exact products"),
    ({"preset": "v100", "operands": "fp16"}, TypeError, "operands must be a pair of formats"),
    ({"preset": "v100", "operands": ("fp16", None)}, TypeError, "operands must be a pair"),
    ({"preset": "v100", "format": "e4m3"}, ValueError, "output must be fp32 or fp16, got e4m3"),
    ({"preset": "h100-fp8", "format": "fp16"}, ValueError, "no known rule"),
    ({"preset": "b200-fp8", "format": "bf16"}, ValueError, "must be fp32 or fp16, got bf16"),
    ({"unit": "v100"}, TypeError, "unit must be a cpd.BlockFma, got str"),
    ({"unit": UNIT, "operands": ("fp16", "fp16")}, ValueError, "operands goes with preset"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Accumulator(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"block": 0}, ValueError, "block must be 1…64, got 0"),
        ({"block": 65}, ValueError, "block must be 1…64, got 65"),
        ({"block": 4.0}, TypeError, "block must be an int"),
        ({"block": 2**40}, ValueError, "block must fit in 32 bits"),
        ({"fraction_bits": 31}, ValueError, "fraction_bits must be 1…30, got 31"),
        ({"rounding": "up"}, ValueError, "toward_zero or nearest_even, got up"),
        ({"rounding": None}, TypeError, "rounding must be a str"),
        ({"promote": 6, "block": 4}, ValueError, "promote must be 0 or a multiple of block = 4"),
        ({"aligns_addend": 1}, TypeError, "aligns_addend must be a bool"),
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
        cpd.BlockFma(**{"a": "fp16", "b": "fp16"} | arguments)


@pytest.mark.parametrize(
    "text", ["", "e4m3 ", "e4m3 tree", "e4m3 kahan chunk=3", "e4m3 kahan x=3", "e4m3 kahan kahan"]
)
def test_text_that_does_not_parse(text):
    with pytest.raises(ValueError, match=r"format|scheme|chunk|option"):
        cpd.Accumulator.parse(text)
    with pytest.raises(TypeError, match="text must be a str"):
        cpd.Accumulator.parse(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h200", "unknown format 'h200'.*a text such as.*cpd.presets"),
        ("h200-fp8", "unknown preset 'h200-fp8'; there are v100"),
        ("b200-fp4", "unknown preset 'b200-fp4'; there are v100"),
        ("e9m3", "^exp must be 1…8, got 9; formats of encoding ieee with exp up to 11"),
    ],
)
def test_one_word_that_is_neither_format_nor_preset(text, message):
    with pytest.raises(ValueError, match=message):
        cpd.Recipe(sums=text)


@pytest.mark.parametrize("acc", ["v100", "h100-fp8 a=e5m2"])
def test_matrix_units_sum_no_terms(acc):
    x = np.ones(3, np.float32)
    for call in (lambda: cpd.sum(x, acc), lambda: cpd.Reduce("e4m3", accumulator=acc)):
        with pytest.raises(ValueError, match="the scheme of a sum must be sequential, kahan"):
            call()


def test_every_other_scheme_sums_terms():
    x = np.ones(3, np.float32)
    for scheme in ("sequential", "kahan", "fma", "chunked", "pairwise"):
        assert cpd.sum(x, cpd.Accumulator("e4m3", scheme)).item() == 3
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
    assert other.activation == cpd.CastSpec("e4m3fn")
    assert other.for_layer(7) == dataclasses.replace(other, layer=7) != other


def test_recipe_copies_and_text():
    cast = cpd.CastSpec("e5m2", "stochastic", "saturate", random_bits=8, seed=3)
    recipe = cpd.Recipe(sums="e4m3", grad_weight="fp32", weight="(4,3)", gradient=cast, layer=2)
    assert pickle.loads(pickle.dumps(recipe)) == copy.deepcopy(recipe) == recipe
    assert hash(copy.deepcopy(recipe)) == hash(recipe)
    assert str(recipe) == (
        "forward='e4m3 sequential', grad_weight='fp32 sequential', weight='(4,3)', "
        "gradient='e5m2 rounding=stochastic overflow=saturate random_bits=8', layer=2"
    )
    assert repr(cpd.Recipe(sums="e4m3")) == "cpd.Recipe(forward='e4m3 sequential')"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"forward": []}, TypeError, "format"),
        ({"forward": cpd.CastSpec("e4m3")}, TypeError, "format"),
        ({"grad_input": 3}, TypeError, "format"),
        ({"grad_bias": "e9m9"}, ValueError, "e9m9|exp"),
        ({"weight": 8}, TypeError, "format"),
        ({"weight": "(4,3) kahan"}, ValueError, "scaled format's options"),
        ({"layer": -1}, ValueError, r"layer must be 0…2\^16 - 1, got -1"),
        ({"layer": 2**16}, ValueError, "layer"),
        ({"layer": 1.5}, TypeError, "layer must be an int"),
    ],
)
def test_recipe_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Recipe(**{"forward": "e4m3"} | arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"format": None}, TypeError, "format"),
        ({"format": UNIT}, TypeError, "format must be a cpd.Format"),
        ({"rounding": "nearest"}, ValueError, "rounding"),
        ({"random_bits": 0}, ValueError, "random_bits"),
        ({"seed": 1.0}, TypeError, "seed"),
    ],
)
def test_cast_spec_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.CastSpec(**{"format": "e4m3"} | arguments)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("acc", [UNIT, "H100-FP8", "e4m3 chunk=2 chunked", "(4, 3) kahan"], ids=str)
def test_compiled_programs_take_units_and_texts(acc):
    torch = pytest.importorskip("torch")
    x = cpd.cast(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), "e2m1")
    torch._dynamo.reset()
    for program in (
        lambda x: cpd.gemm(x, x, acc),
        lambda x: cpd.gemm(x, x, cpd.Accumulator(acc, seed=3)),
    ):
        compiled = torch.compile(program, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), program(x))
