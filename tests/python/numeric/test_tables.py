# SPDX-License-Identifier: Apache-2.0
"""Tests that Python's spec classes follow the tables of keys in C++: signatures, attributes, kinds
of values, texts and errors."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest

import cpd
from cpd import _core

UNIT = "a=fp16 b=fp16 block=4"
SCALED_UNIT = "a=e2m1 b=e2m1 block=64 scale=e8m0 fraction_bits=20"

# Examples for each key of a spec class: a text without the key, a value other than the default in
# this text, and the words of the spec's text that state the value.
EXAMPLES: dict[Any, dict[str, tuple[str, Any, str]]] = {
    cpd.Accumulator: {
        "format": ("e4m3 kahan", "bf16", "bf16 "),
        "scheme": ("e4m3", "pairwise", " pairwise"),
        "chunk": ("e4m3 chunked", 8, "chunk=8"),
        "inner": ("e4m3 chunked", (5, 2), "inner=e5m2"),
        "product": ("e4m3 kahan", "exact", "product=exact"),
        "a": (UNIT, "bf16", "a=bf16"),
        "b": (UNIT, np.float32, "b=fp32"),
        "block": (UNIT, 8, "block=8"),
        "fraction_bits": (UNIT, 24, "fraction_bits=24"),
        "min_exponent": (UNIT, -126, "min_exponent=-126"),
        "sum": (UNIT, "fp16", "sum=fp16"),
        "width": ("fixed<40,12>", 41, "width=41"),
        "fraction": ("fixed<40,12>", 0, "fraction=0"),
        "sum_rounding": ("fixed<40,12>", "down", "sum_rounding=down"),
        "addend": (UNIT, "separate", "addend=separate"),
        "promote": (UNIT, 16, "promote=16"),
        "scale": ("a=e2m1 b=e2m1 block=32 fraction_bits=20", "e8m0", "scale=e8m0"),
        "scale_block": (SCALED_UNIT, 16, "scale_block=16"),
        "dot": (SCALED_UNIT, 4, "dot=4"),
        "adder": (f"{UNIT} sum_rounding=nearest_even", "two_steps", "adder=two_steps"),
        "group": (UNIT, 8, "group=8"),
        "stride": (f"{UNIT} group=16", 8, "stride=8"),
        "take": (f"{UNIT} group=16", 4, "take=4"),
        "rounding": ("e4m3 kahan", "up", "rounding=up"),
        "overflow": ("e4m3 kahan", "saturate", "overflow=saturate"),
        "variant": ("e4m3 rounding=stochastic", "B", "variant=B"),
        "random_bits": ("e4m3 rounding=stochastic", 8, "random_bits=8"),
    },
    cpd.Cast: {
        "rounding": ("e4m3fn", "stochastic", "rounding=stochastic"),
        "overflow": ("mxfp8", "ieee", "overflow=ieee"),
        "random_bits": ("e4m3fn stochastic", 8, "random_bits=8"),
        "variant": ("e4m3fn stochastic", "C", "variant=C"),
        "factor": ("mxfp4", 0.75, "factor=0.75"),
        "history": ("fp8-tensor", 4, "history=4"),
        "amax": ("fp8-tensor history=4", "most_recent", "amax=most_recent"),
    },
    cpd.Format: {
        "exp": ("e4m3fn", 5, "e5m3fn"),
        "man": ("e4m3fn", 2, "e4m2fn"),
        "bias": ("e4m3fn", -3, ":bias=-3"),
        "encoding": ("e4m3fn", "finite", "finite"),
        "signed": ("e4m3fn", False, ":unsigned"),
        "subnormals": ("e4m3fn", False, ":nosub"),
    },
    cpd.Scaled: {
        "element": ("mxfp8 rule=up", "e2m1", "mxfp4 "),
        "block": ("mxfp8", "16", " 16"),
        "scale": ("mxfp8", "e5m2", "scale=e5m2"),
        "rule": ("mxfp8", "rceil", "rule=rceil"),
        "tensor_scale": ("e5m2 16 scale=e4m3fn", "fp32", "tensor_scale=fp32"),
        "outer": ("e2m1 16 scale=e4m3fn tensor_scale=fp32", "row", "outer=row"),
        "scale_max": ("nvfp4", 0.1, "scale_max=0.1"),
        "arithmetic": ("mxfp8", "te", "arithmetic=te"),
        "non_finite": ("mxfp8", "element", "non_finite=element"),
        "choose": ("nvfp4", "mae", "choose=mae"),
        "margin": ("mxfp8", -2, "margin=-2"),
        "transform": ("mxfp8", "hadamard16", "transform=hadamard16"),
    },
}
SPECS = list(EXAMPLES)
KEYS = [(spec, key) for spec, keys in EXAMPLES.items() for key in keys]
WRONG = {
    "element": object(),
    "block": 1.5,
    "format": 1.5,
    "product": 1.5,
    "integer": 1.5,
    "number": "1",
    "switch": 1,
    "transform": 1.5,
    "word": 1,
}
"""Maps each kind of a spec's option, such as "switch", to a value of a wrong type for it."""


@pytest.mark.parametrize("spec", SPECS)
def test_signatures_and_attributes_are_those_of_the_table(spec: Any) -> None:
    keys = set(spec._native.keys())
    parameters = dict(inspect.signature(spec).parameters)
    assert parameters.pop("format").kind is inspect.Parameter.POSITIONAL_ONLY
    assert set(parameters) == keys - {"format"}
    assert all(one.default is None for one in parameters.values())
    text = next(iter(EXAMPLES[spec].values()))[0]
    fields = spec(text)._held.fields()
    assert list(fields) == [name for name in vars(spec(text)) if name in fields]
    declared = {name for name in spec.__annotations__ if not name.startswith("_")}
    assert declared - {"text"} == set(fields)
    assert keys <= set(fields)
    assert keys == set(EXAMPLES[spec])


def test_a_recipe_has_the_keys_of_its_table() -> None:
    keys = _core.Recipe.keys()
    assert list(keys)[:2] == ["sums", "forward"]
    assert set(keys) <= set(inspect.signature(cpd.Recipe).parameters)
    assert set(keys) - {"sums"} <= set(cpd.Recipe.__annotations__)


@pytest.mark.parametrize(("spec", "key"), KEYS)
def test_a_key_is_printed_once_and_read_back(spec: Any, key: str) -> None:
    text, value, printed = EXAMPLES[spec][key]
    plain = spec(text)
    made = plain.replace(**{key: value}) if key == "format" else spec(text, **{key: value})
    assert made.text.count(printed) == 1
    assert made != plain
    assert spec(made.text) == made == pickle.loads(pickle.dumps(made))
    if key != "format":
        assert spec(plain, **{key: value}) == plain.replace(**{key: value})
    assert hash(spec(made.text)) == hash(made) != hash(plain)
    assert copy.deepcopy(made) is made
    read = getattr(made, key)
    if isinstance(value, float):
        assert read == pytest.approx(value)
    else:
        assert read == value or str(read) in (str(value), *re.split("[= ]", printed))


@pytest.mark.parametrize(("spec", "key"), KEYS)
def test_a_key_at_its_value_changes_nothing(spec: Any, key: str) -> None:
    plain = spec(EXAMPLES[spec][key][0])
    assert plain.replace(**{key: getattr(plain, key)}) == plain
    assert plain.replace(**{key: None}) == plain
    if key != "format" and getattr(plain, key) is not None:
        assert spec(plain, **{key: getattr(plain, key)}) == plain


@pytest.mark.parametrize(("spec", "key"), KEYS)
def test_a_value_of_another_type_raises(spec: Any, key: str) -> None:
    if key == "format":
        return  # the first argument, which has tests of its own
    kind = spec._native.keys()[key]
    with pytest.raises(TypeError, match=f"^{key} must be "):
        spec(EXAMPLES[spec][key][0], **{key: WRONG[kind]})
    with pytest.raises(TypeError, match=f"^{key} must be "):
        spec(EXAMPLES[spec][key][0]).replace(**{key: WRONG[kind]})
    if kind == "integer":
        with pytest.raises(TypeError, match=f"^{key} must be an int, got bool"):
            spec(EXAMPLES[spec][key][0], **{key: True})


@pytest.mark.parametrize("spec", SPECS)
def test_an_unknown_key_names_all_and_the_nearest(spec: Any) -> None:
    key, (text, value, _) = list(EXAMPLES[spec].items())[-1]
    wrong = key[:-2] + key[-1] + key[-2]  # two letters swapped
    for make in (
        lambda: spec(text, **{wrong: value}),
        lambda: spec(text).replace(**{wrong: value}),
    ):
        with pytest.raises(TypeError) as raised:
            make()
        told = str(raised.value)
        assert all(name in told for name in EXAMPLES[spec] if name != "format")
        assert f"did you mean {key}?" in told
    if spec is cpd.Format:
        return  # texts of this class have no keys
    with pytest.raises(ValueError, match=f"unknown option '{wrong}'") as told_by_text:
        spec(f"{text} {wrong}=1")
    told = str(told_by_text.value)
    assert all(name in told for name in spec._kinds)
    assert f"did you mean '{key}'?" in told


def test_a_cast_names_the_word_that_is_no_rounding() -> None:
    with pytest.raises(ValueError, match=r"a rounding \(nearest_even, .*stochastic\)") as told:
        cpd.Cast("e4m3 ieee")
    assert str(told.value).endswith("got 'ieee'; did you mean overflow=ieee?")


def test_keywords_replace_those_of_a_text() -> None:
    assert cpd.Cast("e4m3 up overflow=saturate", rounding="down").text == (
        "e4m3 rounding=down overflow=saturate"
    )
    assert cpd.Scaled("mxfp8 scale=fp32 rule=up", scale="e8m0").text == "mxfp8 rule=up"
    assert cpd.Scaled("e4m3fn 32 rule=up scale=fp32") == cpd.Scaled("e4m3fn 32 scale=fp32 rule=up")
    assert cpd.Accumulator("e4m3 chunked chunk=8", chunk=16).chunk == 16
    assert cpd.Scaled("e4m3fn") == cpd.Scaled(element="e4m3fn") == cpd.Scaled("mxfp8")
    with pytest.raises(ValueError, match="scheme must be"):
        cpd.Accumulator("e4m3", scheme="chunked chunk=8")


@pytest.mark.parametrize("spec", SPECS)
def test_specs_are_immutable(spec: Any) -> None:
    made = spec(next(iter(EXAMPLES[spec].values()))[0])
    with pytest.raises(AttributeError, match=r"^cannot assign to 'text': a \w+ is immutable$"):
        made.text = "e5m2"
    with pytest.raises(AttributeError, match=r"^cannot delete 'text': a \w+ is immutable$"):
        del made.text


def test_a_loss_scale_is_exact() -> None:
    assert cpd.Recipe(loss_scale=2**60).loss_scale == 2.0**60
    with pytest.raises(
        ValueError, match="loss_scale must be a number of binary64, got 1152921504606846977"
    ):
        cpd.Recipe(loss_scale=2**60 + 1)
    assert cpd.Reduce("e4m3", loss_scale=np.int64(1024)).loss_scale == 1024.0
    for scale in (2**60 + 1, np.int64(2**60 + 1)):
        with pytest.raises(ValueError, match="loss_scale must be a number of binary64, got"):
            cpd.Reduce("e4m3", loss_scale=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", SPECS)
def test_constructors_compile(spec: Any) -> None:
    torch = pytest.importorskip("torch")
    key, (text, value, _) = list(EXAMPLES[spec].items())[-1]

    def made(x: Any) -> Any:
        one = spec(text, **{key: value})
        return x + len(one.text), one, spec(one)

    torch.compiler.reset()
    _, one, same = torch.compile(made, fullgraph=True, backend="eager")(torch.zeros(1))
    assert one == same == spec(text, **{key: value})
