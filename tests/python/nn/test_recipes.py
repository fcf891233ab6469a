# SPDX-License-Identifier: Apache-2.0
"""Tests recipes: their contents, and recipes given as plain data, as files and by name."""

from __future__ import annotations

import json
import pickle
import tomllib

import pytest

import cpd
from cpd.nn.recipe import as_recipe
from cpd.numeric.purposes import Purpose

RICH = cpd.Recipe(
    forward="e6m9 chunked",
    grad_input="native",
    grad_weight=cpd.Accumulator("e6m9 chunked", rounding="stochastic"),
    activation="mxfp8",
    weight=cpd.Cast("e4m3", rounding="stochastic"),
    gradient=cpd.Cast("nvfp4", rounding="stochastic", random_bits=8),
    grad_input_weight=None,
    grad_weight_gradient="nvfp4 transform=hadamard16:te rounding=stochastic",
    output="bf16",
    norm="bf16",
    softmax="e5m10",
    embedding="bf16",
    residual="bf16",
    attention=cpd.Recipe("native", activation="bf16", weight="bf16"),
    optimizer="bf16 update=stochastic momentum='e5m2 rounding=stochastic'",
    reduce="e4m3 aps accumulator='e5m10 kahan'",
    loss_scale="dynamic",
    rules=[("*.lm_head", None), ("type Conv2d", cpd.Recipe(sums="e4m3"))],
    schedule=[("step", 10, cpd.Recipe("native")), ("step", 20, None)],
    source="a test",
)


RECIPES = [RICH, *map(cpd.Recipe, cpd.Recipe.named())]
IDS = ["rich", *cpd.Recipe.named()]


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_plain_data_make_the_same_recipe(recipe):
    assert cpd.Recipe(recipe.to_dict()) == recipe
    assert cpd.Recipe(json.loads(recipe.to_json())) == recipe
    assert cpd.Recipe(tomllib.loads(recipe.to_toml())) == recipe
    assert tomllib.loads(recipe.to_toml()) == json.loads(recipe.to_json())
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(recipe) == hash(cpd.Recipe(recipe.to_dict()))


def test_the_text_says_sums_casts_and_scales():
    assert RICH._kept.text == (
        "native sums='e6m9 chunked chunk=64' grad_input=native "
        "grad_weight='e6m9 chunked chunk=64 rounding=stochastic' activation=mxfp8 "
        "weight='(4,3) rounding=stochastic' gradient='nvfp4 rounding=stochastic random_bits=8' "
        "grad_input_weight=none "
        "grad_weight_gradient='nvfp4 transform=hadamard16:te rounding=stochastic' output=bf16 "
        "norm=bf16 softmax=e5m10 embedding=bf16 residual=bf16"
    ).replace("e5m10", cpd.Format("e5m10").name)
    assert cpd.Recipe(sums="e4m3").text == "native sums='e4m3 sequential'"
    scaled = cpd.Recipe(sums="e4m3", weight="mxfp8", scales_at="block")
    assert scaled.text == "native sums='e4m3 sequential' weight=mxfp8 scales_at=block"
    assert cpd.Recipe(scaled.text.replace("'", '"')) == scaled


def test_the_text_says_the_rest_too():
    assert RICH.text == (
        f"{RICH._kept.text}"
        " optimizer=\"bf16 update=stochastic momentum='e5m2 rounding=stochastic'\""
        " reduce=\"e4m3 accumulator='fp16 kahan' aps\" loss_scale=dynamic"
        " attention='native activation=bf16 weight=bf16'"
        " rules=\"*.lm_head none, 'type Conv2d' \\\"native sums='e4m3 sequential'\\\"\""
        " schedule='step 10 native, step 20 none'"
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_texts_make_the_same_recipe(recipe):
    """A recipe's text contains all keys except seeds, streams and the layer number. The text gives
    an equal recipe, apart from these numbers."""
    parsed = cpd.Recipe(recipe.text)
    plain = without_numbers(recipe)
    assert parsed == plain == cpd.Recipe(str(recipe)) == eval(repr(recipe), {"cpd": cpd})
    assert parsed.text == recipe.text == cpd.Recipe(parsed).text
    assert hash(parsed) == hash(plain)


def without_numbers(recipe):
    """Returns the recipe as a file stores it, without seeds, streams and layer numbers."""

    def stripped(value):
        if isinstance(value, dict) and "text" in value:
            return value["text"]
        return value

    data = {name: stripped(value) for name, value in recipe.to_dict().items()}
    return cpd.Recipe({name: value for name, value in data.items() if name != "layer"})


@pytest.mark.parametrize("name", cpd.Recipe.named())
def test_a_named_recipe_is_its_text(name):
    assert str(cpd.Recipe(name)) == name
    assert cpd.Recipe(name).replace(norm="e5m2").text.startswith("native ")


def test_a_source_does_not_tell_recipes_apart():
    told = cpd.Recipe("mxfp8", source="mine")
    assert told == cpd.Recipe("mxfp8")
    assert (told.source, cpd.Recipe(told.to_dict()).source) == ("mine", "mine")


def test_a_format_s_options_follow_it():
    how = cpd.Recipe("e5m2 weight=mxfp8 rounding=stochastic output=bf16 random_bits=8")
    text = "e5m2 rounding=stochastic random_bits=8"
    assert how == cpd.Recipe(text, weight="mxfp8", output="bf16")
    assert (how.activation.text, how.gradient.text) == (text, text)


def test_keywords_replace_keys_of_a_text():
    text = "int8 row weight=mxfp8 output=bf16 sums='e4m3 kahan'"
    assert cpd.Recipe(text, weight="e5m2").text == cpd.Recipe(text.replace("mxfp8", "e5m2")).text
    assert cpd.Recipe(text, sums="fp32").text == cpd.Recipe(text.replace("e4m3 kahan", "fp32")).text
    assert cpd.Recipe("native sums=fp32", forward="e4m3").grad_input.text == "fp32 sequential"
    assert cpd.Recipe("int8 row", forward="e4m3").grad_input.text == "e4m3 sequential"
    assert cpd.Recipe({"weight": "mxfp8", "norm": "bf16"}, weight=None).text == "native norm=bf16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("native weigth=mxfp8", "unknown key 'weigth' of a recipe; did you mean weight"),
        ("int8 row weigth=mxfp8", "unknown key 'weigth' of a recipe; did you mean weight"),
        ("native zzz=1", "unknown key 'zzz' of a recipe; there are format, sums, forward, "),
        ("native weight=mxfp9", "weight: unknown format 'mxfp9'"),
        ("e4m3 kahan weight=mxfp8", "'e4m3 kahan' is an accumulator, .* give it as sums="),
        ("native norm=mxfp8", "norm takes formats without scales, got mxfp8"),
        ("native weight=mxfp8 scales_at=block", "takes accumulators, got forward='native'"),
        ("native weight=mxfp8 weight=mxfp4", "weight is given twice"),
        ("native weight='mxfp8", "a quote is not closed"),
        ("native loss_scale=big", "loss_scale must be None, a number"),
        ("native rules='a b c'", "rules must be pairs"),
        ("native rules=\"a 'native norm=x'\"", r"rules\[0\].recipe: norm: "),
        ("native schedule='step x bf16'", "schedule must be an int"),
    ],
)
def test_errors_of_texts_name_the_key(text, message):
    for make in (cpd.Recipe, cpd.autocast):
        with pytest.raises(ValueError, match=message):
            make(text)


@pytest.mark.parametrize(
    ("text", "now"),
    [
        ("native; weight=mxfp8; output=bf16", "native weight=mxfp8 output=bf16"),
        ("native;", "native"),
        ("e4m3 kahan;", "native sums='e4m3 kahan'"),
        ("fp32; weight = mxfp8 rule=up", "native sums=fp32 weight='mxfp8 rule=up'"),
    ],
)
def test_a_text_with_semicolons_is_told_anew(text, now):
    for take in (cpd.Recipe, lambda text: cpd.functional.matmul([[1.0]], [[1.0]], recipe=text)):
        with pytest.raises(ValueError, match="a recipe's text has no semicolons") as error:
            take(text)
        assert str(error.value).endswith(f"write '{now}'")
    assert cpd.Recipe(now).text


def test_what_the_operators_take():
    recipe = cpd.Recipe(
        sums="e4m3 sequential rounding=stochastic",
        activation="e4m3fn rounding=stochastic",
        weight="mxfp8",
        gradient="e5m2 rounding=stochastic",
        output="bf16",
    )
    assert recipe._kept.gemms == (
        "native sums='e4m3 sequential rounding=stochastic' weight=mxfp8 "
        "gradient='e5m2 rounding=stochastic'"
    )
    assert recipe._kept.before == (recipe.activation, None)
    assert drawn(recipe) == [
        "given",
        "grad_input",
        "grad_weight",
        "cast_gradient",
        "recast_gradient",
    ]
    drawing = cpd.Cast("e4m3fn", rounding="stochastic")
    other = cpd.Recipe("native", activation="e4m3fn", weight=drawing)
    assert other._kept.gemms == "native"
    assert other._kept.before == (other.activation, drawing)
    same = other.replace(grad_input_weight=cpd.Cast("e4m3fn", rounding="stochastic"))
    assert same._kept.before == other._kept.before
    twice = other.replace(grad_input_weight="e4m3fn rounding=stochastic random_bits=8")
    assert twice._kept.before == (twice.activation, None)
    assert drawn(twice) == ["recast_weight", "cast_weight"]


def drawn(recipe):
    """Returns the name of the random stream (the purpose) of each stochastic rounding in GEMMs."""
    kept = recipe._kept.drawing
    return [one.name for one, part in zip(Purpose, kept, strict=True) if part is not None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"forward": "native", "weigth": "e4m3"}, "unknown key 'weigth' .* did you mean weight"),
        ({"forward": "native", "zzz": 1}, "unknown key 'zzz' .*; there are format, sums, forward"),
        ({"forward": "e9m3"}, "forward: exp must be"),
        ({"forward": "native", "weight": "(4,3) 48 x"}, "weight: a cast is a format, a rounding"),
        ({"forward": "native", "weight": 3}, "weight: a format must be"),
        (
            {"forward": "native", "weight": {"text": "e4m3fn", "seed": 3}},
            "weight: must be a text, got .*: give",
        ),
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
        (
            {"forward": "native", "attention": {"forwrd": "native"}},
            "attention: unknown key 'forwrd'",
        ),
        ({"forward": "native", "loss_scale": "big"}, "loss_scale must be None, a number"),
        (
            {"forward": "native", "layer": 3},
            "a recipe has no layer: cpd.convert numbers the layers",
        ),
    ],
)
def test_errors_name_the_key(given, message):
    with pytest.raises(ValueError, match=message):
        cpd.Recipe(given)


def test_files(tmp_path):
    for name, text in (("r.toml", RICH.to_toml()), ("r.json", RICH.to_json())):
        (tmp_path / name).write_text(text)
        assert cpd.Recipe(str(tmp_path / name)) == cpd.Recipe(tmp_path / name) == RICH
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        cpd.Recipe(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("forward = ")
    with pytest.raises(ValueError, match=r"bad\.toml: the recipe is not valid TOML"):
        cpd.Recipe(str(tmp_path / "bad.toml"))
    (tmp_path / "bad.json").write_text('{"forward": "native", "x": 1}')
    with pytest.raises(ValueError, match=r"bad\.json: unknown key 'x'"):
        cpd.Recipe(str(tmp_path / "bad.json"))


def test_names():
    wanted = "te-delayed te-current deepseek-v3 mxfp8 mxfp8-hybrid nvfp4 mxfp4-rht-sr"
    wanted += " ibm-fp8-2018 aps-e4m3 aps-e3m0 bf16 fp16"
    assert set(cpd.Recipe.named()) == set(wanted.split())
    for name, about in cpd.Recipe.named().items():
        assert list(about) == ["summary", "source", "evidence"]
        assert all(about.values())
        assert about["source"] == cpd.Recipe(name).source
    assert cpd.Recipe("NVFP4") == cpd.Recipe("nvfp4")
    assert cpd.Recipe(cpd.Recipe(sums="e6m9 chunked")) == cpd.Recipe(sums="e6m9 chunked")
    with pytest.raises(ValueError, match=r"unknown recipe 'nvfp5': expected .* mean nvfp4\?"):
        cpd.Recipe("nvfp5")
    assert cpd.Recipe("te-delayed")._kept.delays


def test_recipes_that_draw():
    cast = "e4m3fn stochastic"
    for key in ("weight", "gradient", "output", "norm", "softmax", "embedding", "residual"):
        assert cpd.Recipe("native", **{key: cast})._kept.draws, key
    assert cpd.Recipe("native", attention=cpd.Recipe("native", activation=cast))._kept.draws
    assert cpd.Recipe(sums="fp32 rounding=stochastic")._kept.draws
    assert not cpd.Recipe("mxfp8", attention="bf16", norm="bf16")._kept.draws


def test_what_is_no_recipe():
    with pytest.raises(TypeError, match=r"a recipe must be a cpd\.Recipe, .* got None"):
        cpd.Recipe(None)


def test_other_sums():
    given = cpd.Recipe("nvfp4", sums="e6m9 chunked")
    assert given.grad_weight == cpd.Accumulator("e6m9 chunked")
    assert given.rules[0][1].forward == given.grad_weight
    assert given.gradient == cpd.Recipe("nvfp4").gradient


def test_matrix_units_get_elements():
    unit = cpd.Recipe(
        forward="h100-fp8", grad_input="h100-fp8 a=e5m2", grad_weight="h100-fp8 b=e5m2"
    )
    assert cpd.Recipe("te-delayed", sums=unit).scales_at == "epilogue"
    given = cpd.Recipe("nvfp4", sums="rtx-blackwell-nvfp4")
    assert given.scales_at == "block"
    assert given.rules == cpd.Recipe("nvfp4").rules
    with pytest.raises(ValueError, match="activation=mxfp8 has scales: say scales_at='block'"):
        unit.replace(activation="mxfp8")
    assert cpd.Recipe(sums="h100-bf16", activation="mxfp8").activation.text == "mxfp8"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rules": 3}, TypeError, "rules must be a sequence"),
        ({"rules": [("x",)]}, TypeError, "rules must be pairs"),
        ({"rules": [(3, None)]}, TypeError, "selector must be a str or a class"),
        ({"schedule": [("day", 1, None)]}, ValueError, "unit must be 'step' or 'epoch'"),
        ({"schedule": [("step", -1, None)]}, ValueError, "starts at 0"),
        ({"loss_scale": 0}, ValueError, "loss_scale must be above 0"),
        ({"reduce": 3}, TypeError, "reduce: a format must be"),
        ({"reduce": "e4m3 aps=x"}, ValueError, "reduce: aps must be false, true or paper"),
    ],
)
def test_what_is_wrong_says_so(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Recipe("native", **arguments)


@pytest.mark.parametrize("given", ["e4m3 aps", cpd.Reduce("e4m3", aps=True)])
def test_reduce_is_an_all_reduce(given, tmp_path):
    """An all-reduce is the same if it is given as a text, an object, part of a recipe's text, plain
    data or a file."""
    wanted = cpd.Reduce("e4m3 aps")
    recipe = cpd.Recipe("native weight=bf16", reduce=given)
    (tmp_path / "recipe.json").write_text(recipe.to_json())
    assert recipe.text == "native weight=bf16 reduce='e4m3 aps'"
    assert recipe.to_dict()["reduce"] == "e4m3 aps"
    for one in (recipe, recipe.text, recipe.to_dict(), tmp_path / "recipe.json"):
        assert cpd.Recipe(one).reduce == wanted
    assert cpd.Recipe("native", reduce=cpd.Format("bf16")).reduce == cpd.Reduce("bf16")
    assert cpd.Recipe("native").reduce is cpd.Recipe("native", reduce="none").reduce is None
    assert cpd.Recipe("native", reduce="e5m2 loss_scale=1") == cpd.Recipe("native reduce=e5m2")


def test_nodes_reduce_as_the_recipe_says():
    torch = pytest.importorskip("torch")
    recipe = cpd.Recipe("native", reduce="e4m3 aps order=ring")
    nodes = cpd.VirtualNodes(torch.nn.Linear(2, 1), 2, recipe.reduce, average=False)
    assert nodes.schedule.spec == recipe.reduce


def test_classes_become_texts():
    class Layer:
        pass

    ((selector, _),) = cpd.Recipe("native", rules=[(Layer, None)]).rules
    assert selector == f"type {Layer.__module__}.{Layer.__qualname__}"


@pytest.mark.parametrize("text", ["e4m3 aps average", "mxfp8 order=tree result=bf16"])
def test_wires_are_texts_of_reductions(text):
    assert cpd.Reduce(text).order in ("sequential", "tree")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e4m3 aps=maybe", "aps must be false, true or paper, got 'maybe'"),
        ("e4m3 aps aps", "aps is given twice"),
        ("e4m3 ring", "ring"),
        ("e4m3 accumulator='e5m10", "a quote is not closed in"),
    ],
)
def test_errors_of_wires(text, message):
    with pytest.raises(ValueError, match=message):
        cpd.Reduce(text)


@pytest.mark.parametrize("given", range(6))
def test_recipes_are_constructed_in_compiled_programs(given):
    """A recipe can be constructed in a compiled program, also with keywords. It gives the results
    of the same recipe constructed outside the program."""
    torch = pytest.importorskip("torch")

    def make():
        return (
            cpd.Recipe("native weight=mxfp8 output=bf16"),
            cpd.Recipe("mxfp8"),
            cpd.Recipe("mxfp8 sums='e6m9 kahan' output=bf16"),
            cpd.Recipe("mxfp8", reduce="e4m3 aps"),
            cpd.Recipe("int8 row weight=mxfp8", output="bf16"),
            cpd.Recipe(sums="e4m3 kahan", weight="mxfp8"),
        )

    def product(x, w):
        return cpd.functional.linear(x, w, recipe=make()[given])

    x, w = torch.randn(4, 64), torch.randn(8, 64)
    got = torch.compile(product, fullgraph=True, backend="eager")(x, w)
    assert torch.equal(got, product(x, w))


def test_a_text_is_read_once(monkeypatch):
    """The recipe of a text is cached: a second call does not parse the text."""
    text = "native weight=mxfp4 norm=e5m2"
    made = as_recipe(text)
    monkeypatch.setattr("cpd.nn.recipe_files.keys_of", None)
    assert as_recipe(text) is made
    assert cpd.Recipe(text) == made


def test_a_file_is_read_each_time(tmp_path):
    path = tmp_path / "mine.toml"
    for weight in ("mxfp8", "mxfp4"):
        path.write_text(f'weight = "{weight}"')
        assert as_recipe(str(path)).weight.text == weight
        assert cpd.Recipe(f"native attention={path}").attention.weight.text == weight


@pytest.mark.parametrize("sums", ["e6m9 kahan", "h100-fp8"])
def test_sums_beside_a_whole_recipe_are_those_of_its_parts(sums):
    """`sums=` beside a whole recipe also applies to the recipe's parts (attention, rules,
    schedule). A matrix unit does not apply to these parts, because their operands do not have the
    unit's element formats."""
    how = cpd.Recipe("native rules='head bf16' schedule='step 3 mxfp8' attention=bf16", sums=sums)
    wanted = cpd.Accumulator(sums if sums == "e6m9 kahan" else "h100-fp8")
    assert how.forward == wanted
    within = how.attention, how.rules[0][1], how.schedule[0][2]
    assert {str(one.forward) for one in within} == {"e6m9 kahan" if " " in sums else "native"}
