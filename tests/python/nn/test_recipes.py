# SPDX-License-Identifier: Apache-2.0
"""Recipes: what they hold, as plain data, in files, by name."""

from __future__ import annotations

import json
import pickle
import tomllib

import pytest

import cpd

RICH = cpd.Recipe(
    forward="e6m9 chunked",
    grad_input="native",
    grad_weight=cpd.Accumulator("e6m9", "chunked", rounding="stochastic", seed=3, stream=9),
    activation="mxfp8",
    weight=cpd.CastSpec("e4m3", "stochastic", seed=5),
    gradient=cpd.ScaledCast("nvfp4", "stochastic", seed=1, stream=2, random_bits=8),
    grad_input_weight=None,
    grad_weight_gradient="nvfp4 transform=hadamard16:te rounding=stochastic",
    output="bf16",
    norm="bf16",
    softmax="e5m10",
    embedding="bf16",
    residual="bf16",
    attention=cpd.Recipe("native", activation="bf16", weight="bf16"),
    update="bf16 update=stochastic",
    state="momentum=bf16",
    wire="e4m3 aps",
    loss_scale="dynamic",
    rules=[("*.lm_head", None), ("type:Conv2d", cpd.Recipe(sums="e4m3"))],
    schedule=[("step", 10, cpd.Recipe("native")), ("step", 20, None)],
    source="a test",
    layer=7,
)


@pytest.mark.parametrize(
    "recipe", [RICH, *cpd.named_recipes().values()], ids=["rich", *cpd.named_recipes()]
)
def test_plain_data_make_the_same_recipe(recipe):
    assert cpd.Recipe.from_dict(recipe.to_dict()) == recipe
    assert cpd.Recipe.from_json(recipe.to_json()) == recipe
    assert cpd.Recipe.from_toml(recipe.to_toml()) == recipe
    assert tomllib.loads(recipe.to_toml()) == json.loads(recipe.to_json())
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(recipe) == hash(cpd.Recipe.from_dict(recipe.to_dict()))


def test_the_text_says_sums_casts_and_scales():
    assert RICH.text == (
        "e6m9 chunked chunk=64; grad_input=native; "
        "grad_weight=e6m9 chunked chunk=64 rounding=stochastic; activation=mxfp8; "
        "weight=(4,3) rounding=stochastic; gradient=nvfp4 rounding=stochastic random_bits=8; "
        "grad_input_weight=none; "
        "grad_weight_gradient=nvfp4 transform=hadamard16:te rounding=stochastic; output=bf16; "
        "norm=bf16; softmax=e5m10; embedding=bf16; residual=bf16"
    ).replace("e5m10", cpd.Format("e5m10").name)
    assert cpd.Recipe(sums="e4m3").text == "e4m3 sequential"
    scaled = cpd.Recipe(sums="e4m3", weight="mxfp8", scales_at="block")
    assert scaled.text == "e4m3 sequential; weight=mxfp8; scales_at=block"


@pytest.mark.parametrize(
    "recipe", [RICH, *cpd.named_recipes().values()], ids=["rich", *cpd.named_recipes()]
)
def test_texts_make_recipes_of_the_same_text(recipe):
    parsed = cpd.Recipe.parse(recipe.text)
    assert parsed.text == recipe.text
    assert cpd.recipe(recipe.text).text == recipe.text
    assert hash(parsed.for_layer(recipe.layer)) == hash(recipe)
    for name in ("forward", "grad_bias", "activation", "grad_weight_gradient", "norm"):
        assert str(getattr(parsed, name)) == str(getattr(recipe, name))
    if not recipe.draws and not any((recipe.rules, recipe.schedule, recipe.attention)):
        training = {name: getattr(recipe, name) for name in TRAINING}
        assert parsed.replace(**training) == recipe


TRAINING = ("update", "state", "wire", "loss_scale", "source", "layer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("native; weigth=mxfp8", "unknown option 'weigth' of a recipe; .*did you mean 'weight'"),
        ("native; weight=mxfp9", "weight: unknown format 'mxfp9'"),
        ("e8m3; weight=mxfp8", "begins with its forward sum, as 'native' or 'e8m3 sequential'"),
        ("native; norm=mxfp8", "norm: must be a format without scales, got 'mxfp8'"),
        ("native; weight=mxfp8; scales_at=block", "takes accumulators, got forward='native'"),
    ],
)
def test_errors_of_texts_name_the_key(text, message):
    for make in (cpd.Recipe.parse, cpd.recipe, lambda text: cpd.nn.Linear(2, 2, recipe=text)):
        with pytest.raises(ValueError, match=message):
            make(text)


def test_what_the_operators_take():
    recipe = cpd.Recipe(
        sums="e4m3 sequential rounding=stochastic",
        activation="e4m3fn rounding=stochastic",
        weight="mxfp8",
        gradient="e5m2 rounding=stochastic",
        output="bf16",
        layer=3,
    )
    assert recipe.gemms == (
        "e4m3 sequential rounding=stochastic; weight=mxfp8; gradient=e5m2 rounding=stochastic"
    )
    assert recipe.cast_before == (recipe.activation, None)
    assert [purpose.name for purpose, _ in recipe.drawing] == [
        "given",
        "grad_input",
        "grad_weight",
        "cast_gradient",
        "recast_gradient",
    ]
    seeded = cpd.CastSpec("e4m3fn", "stochastic", seed=1)
    other = cpd.Recipe("native", activation="e4m3fn", weight=seeded)
    assert other.gemms == "native"
    assert other.cast_before == (other.activation, seeded)
    twice = other.replace(grad_input_weight=cpd.CastSpec("e4m3fn", "stochastic", seed=2))
    assert twice.cast_before == (twice.activation, None)
    assert [purpose.name for purpose, _ in twice.drawing] == ["cast_weight", "recast_weight"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"forward": "native", "weigth": "e4m3"}, "weigth is no key .* did you mean weight"),
        ({"forward": "native", "zzz": 1}, "zzz is no key .*; there are format, sums, forward"),
        ({"forward": "e9m3"}, "forward: exp must be"),
        ({"forward": "native", "weight": "(4,3) 48 x"}, "weight: a scaled"),
        ({"forward": "native", "weight": 3}, "weight: must be a text"),
        ({"forward": "native", "weight": {"txt": "e4m3"}}, "weight: must have the keys text"),
        ({"forward": "native", "norm": "mxfp8"}, "norm takes formats without scales"),
        (
            {"forward": "native", "rules": [{"layers": "*"}]},
            r"rules\[0\] must be a table of layers",
        ),
        (
            {"forward": "native", "rules": [{"layers": "*", "recipe": {"forward": "x"}}]},
            r"rules\[0\].recipe",
        ),
        ({"forward": "native", "schedule": [{"step": 5, "recipe": "none"}] * 2}, "numbers that"),
        ({"forward": "native", "attention": {"forwrd": "native"}}, "attention.forwrd is no key"),
        ({"forward": "native", "loss_scale": "big"}, "loss_scale must be None, a number"),
        ({"forward": "native", "layer": 2**16}, "layer must be 0"),
    ],
)
def test_errors_name_the_key(given, message):
    with pytest.raises(ValueError, match=message):
        cpd.Recipe.from_dict(given)


def test_files(tmp_path):
    for name, text in (("r.toml", RICH.to_toml()), ("r.json", RICH.to_json())):
        (tmp_path / name).write_text(text)
        assert cpd.recipe(str(tmp_path / name)) == cpd.recipe(tmp_path / name) == RICH
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        cpd.recipe(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("forward = ")
    with pytest.raises(ValueError, match=r"bad\.toml: the recipe is no TOML"):
        cpd.recipe(str(tmp_path / "bad.toml"))
    (tmp_path / "bad.json").write_text('{"forward": "native", "x": 1}')
    with pytest.raises(ValueError, match=r"bad\.json: x is no key"):
        cpd.recipe(str(tmp_path / "bad.json"))


def test_names():
    wanted = "te-delayed te-current deepseek-v3 mxfp8 mxfp8-hybrid nvfp4 mxfp4-rht-sr"
    wanted += " ibm-fp8-2018 aps-e4m3 aps-e3m0 bf16 fp16"
    assert set(cpd.named_recipes()) == set(wanted.split())
    assert all(one.source for one in cpd.named_recipes().values())
    assert cpd.recipe("NVFP4") == cpd.named_recipes()["nvfp4"]
    assert cpd.recipe(cpd.Recipe(sums="e6m9 chunked")) == cpd.Recipe(sums="e6m9 chunked")
    with pytest.raises(ValueError, match=r"unknown recipe 'nvfp5': expected .* mean nvfp4\?"):
        cpd.recipe("nvfp5")
    assert cpd.recipe("te-delayed").delays
    assert cpd.recipe("nvfp4").draws
    assert not cpd.recipe("mxfp8").draws


def test_what_is_no_recipe():
    with pytest.raises(TypeError, match=r"a recipe is a cpd\.Recipe, .* got None"):
        cpd.recipe(None)


def test_other_sums():
    given = cpd.recipe("nvfp4", sums="e6m9 chunked")
    assert given.grad_weight == cpd.Accumulator.parse("e6m9 chunked")
    assert given.rules[0][1].forward == given.grad_weight
    assert given.gradient == cpd.recipe("nvfp4").gradient


def test_matrix_units_get_elements():
    unit = cpd.Recipe(
        forward="h100-fp8", grad_input="h100-fp8 a=e5m2", grad_weight="h100-fp8 b=e5m2"
    )
    assert cpd.recipe("te-delayed", sums=unit).scales_at == "epilogue"
    given = cpd.recipe("nvfp4", sums="rtx-blackwell-nvfp4")
    assert given.scales_at == "block"
    assert given.rules == cpd.recipe("nvfp4").rules
    with pytest.raises(ValueError, match="activation=mxfp8 has scales: say scales_at='block'"):
        unit.replace(activation="mxfp8")
    assert cpd.Recipe(sums="h100-bf16", activation="mxfp8").activation.text == "mxfp8"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rules": "x"}, TypeError, "rules must be a sequence"),
        ({"rules": [("x",)]}, TypeError, "rules must be pairs"),
        ({"rules": [(3, None)]}, TypeError, "selector must be a str or a class"),
        ({"schedule": [("day", 1, None)]}, ValueError, "unit must be 'step' or 'epoch'"),
        ({"schedule": [("step", -1, None)]}, ValueError, "starts at 0"),
        ({"loss_scale": 0}, ValueError, "loss_scale must be above 0"),
        ({"wire": 3}, TypeError, "wire must be a str"),
    ],
)
def test_what_is_wrong_says_so(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Recipe("native", **arguments)


def test_classes_become_texts():
    class Layer:
        pass

    ((selector, _),) = cpd.Recipe("native", rules=[(Layer, None)]).rules
    assert selector == f"type:{Layer.__module__}.{Layer.__qualname__}"


@pytest.mark.parametrize("text", ["e4m3 aps average", "mxfp8 order=tree result=bf16"])
def test_wires_are_texts_of_reductions(text):
    assert cpd.Reduce(text).order in ("sequential", "tree")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e4m3 aps=maybe", "aps=maybe is no value of aps"),
        ("e4m3 aps aps", "aps is given twice"),
        ("e4m3 ring", "ring"),
        ("e4m3 accumulator='e5m10", "is no all-reduce"),
    ],
)
def test_errors_of_wires(text, message):
    with pytest.raises(ValueError, match=message):
        cpd.Reduce(text)
