# SPDX-License-Identifier: Apache-2.0
"""Tests recipes that are given by name to all functions that accept a recipe, the forms of rules,
and notes about texts with two possible meanings."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import cpd

SUMS = cpd.Recipe(sums="e6m9 chunked")

torch = pytest.importorskip("torch")


def test_a_name_wherever_a_recipe_may_stand():
    mx, bf16 = cpd.Recipe("mxfp8"), cpd.Recipe("bf16")
    how = cpd.Recipe(
        "native",
        attention="mxfp8",
        rules={"head": "bf16", "tail": None},
        schedule=[("epoch", 2, "mxfp8")],
    )
    assert how.attention == mx
    assert how.rules == (("head", bf16), ("tail", None))
    assert how.schedule == (("epoch", 2, mx),)
    assert how.replace(attention="bf16").attention == bf16
    x, w = torch.ones(2, 32), torch.ones(3, 32)
    linear = cpd.functional.linear
    assert torch.equal(linear(x, w, recipe="mxfp8"), linear(x, w, recipe=mx))
    with pytest.raises(ValueError, match="did you mean mxfp8"):
        cpd.Recipe("native", attention="mxpf8")


def test_bf16_is_a_recipe_where_one_stands_and_a_sum_where_a_sum_does():
    assert cpd.Recipe(sums="bf16").forward == cpd.Accumulator("bf16")
    assert cpd.Recipe("bf16").forward == "native"
    x, w = torch.ones(1, 600), torch.ones(1, 600)
    assert (
        cpd.functional.linear(x, w, recipe=cpd.Recipe(sums="bf16")).item() == 256
    )  # a sum of ones in bf16 stalls at 256


def _two():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


@pytest.mark.parametrize(
    "rules",
    [
        [("0", "nvfp4"), ("1", None)],
        {"0": "nvfp4", "1": None},
        lambda name, module: {"0": "nvfp4", "1": None}[name],
    ],
    ids=["pairs", "dict", "function"],
)
def test_rules_in_their_forms(rules):
    report = cpd.convert(_two(), "mxfp8", rules, coverage=False)
    assert "nvfp4" in report[0].how
    assert report[1].why_not.startswith("left in torch by the rule")


def test_a_function_may_leave_a_layer_to_the_recipes_own_rules():
    how = cpd.Recipe("mxfp8").replace(rules={"1": None})
    seen = []

    def decide(name, module):
        seen.append((name, type(module).__name__))
        return ... if name == "1" else "nvfp4"

    report = cpd.convert(_two(), how, decide, coverage=False)
    assert seen == [("0", "Linear"), ("1", "Linear")]
    assert "nvfp4" in report[0].how
    assert report[1].why_not == "left in torch by the rule '1'"


@pytest.mark.parametrize("rules", [3, "last 1", None])
def test_rules_that_are_none(rules):
    with pytest.raises(TypeError, match="rules must be pairs"):
        cpd.convert(_two(), "mxfp8", rules)


def test_rules_as_a_table():
    text = """
        forward = "native"
        weight = "mxfp8"
        attention = "bf16"
        [rules]
        "*.lm_head" = "none"
        "last 15%" = "bf16"
        "type Conv2d" = {forward = "e4m3 kahan"}
    """
    how = cpd.Recipe(tomllib.loads(text))
    assert how.attention == cpd.Recipe("bf16")
    assert how.rules == (
        ("*.lm_head", None),
        ("last 15%", cpd.Recipe("bf16")),
        ("type Conv2d", cpd.Recipe(sums="e4m3 kahan")),
    )
    assert cpd.Recipe(tomllib.loads(how.to_toml())) == how
    with pytest.raises(ValueError, match=r"rules\.head.*did you mean mxfp8"):
        cpd.Recipe({"forward": "native", "rules": {"head": "mxpf8"}})


def test_the_recipe_file_of_the_guide_is_one():
    guide = Path(__file__).parents[3] / "python" / "MODELS.md"
    (text,) = re.findall(r"```toml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    how = cpd.Recipe(tomllib.loads(text))
    assert [selector for selector, _ in how.rules] == ["*.lm_head", "last 15%", "type Conv2d"]


def test_operands_of_more_bits_than_float32_are_refused():
    with pytest.raises(ValueError, match=r"activation takes .* up to 23 bits.*'e4m33'.* has 33"):
        cpd.Recipe("native", activation="e4m33")


def test_a_weight_whose_type_does_not_hold_the_recipes_format():
    report = cpd.convert(_two().half(), "bf16", coverage=False)
    (note,) = report.notes
    assert re.search(r"weights in float16 do not hold bf16.*\(first: 0\)", note)
    assert note in str(report)


@pytest.mark.parametrize(
    ("recipe", "names"),
    [("int8", "activation, weight, gradient"), (cpd.Recipe("native", weight="int8"), "weight")],
)
@pytest.mark.parametrize("rules", [(), [("0", None)]])
def test_integers_without_a_scale_warn(recipe, names, rules):
    """A recipe that casts to int8 without a scale gives a warning. This cast rounds small values,
    such as all weights of a model, to zero."""
    with pytest.warns(cpd.PrecisionWarning) as caught:
        report = cpd.convert(_two(), recipe, rules, coverage=False)
    (warning,), (note,) = caught, report.notes
    assert str(warning.message) == note
    assert note.startswith(f"int8 has no scale: it rounds {names} to whole numbers")
    assert note.endswith(f"'int8 row' has a scale for each row (first: {len(rules)})")
    assert warning.filename == __file__


@pytest.mark.filterwarnings("error")
def test_a_model_is_unchanged_where_the_warning_is_an_error():
    model = _two()
    with pytest.raises(cpd.PrecisionWarning, match="int8 has no scale"):
        cpd.convert(model, "int8")
    assert type(model[0]) is torch.nn.Linear


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("recipe", ["mxfp8", SUMS, "int8 row", "nvfp4"])
def test_recipes_that_say_what_they_mean_have_no_notes(recipe):
    assert cpd.convert(_two(), recipe, coverage=False).notes == ()


@pytest.mark.parametrize("name", ["deepseek-v3", "nvfp4"])
def test_a_named_recipe_without_its_rules(name):
    how = cpd.Recipe(name)
    ((selector, _),) = how.rules
    assert selector == {"deepseek-v3": "last 1", "nvfp4": "last 15%"}[name]
    assert how.replace(rules=()).rules == ()
    last = cpd.convert(_two(), how.replace(rules=()), coverage=False).rows[-1]
    assert last.how != cpd.convert(_two(), how, coverage=False).rows[-1].how


def test_reports_say_what_a_format_does():
    def first_line(*given, **options):
        return str(cpd.convert(_two(), *given, coverage=False, **options)).splitlines()[0]

    said = "emulated (activation, weight and gradient of all three GEMMs in {}, native sums): 2"
    for text in ("e4m3fn", "int8 row", "mxfp4", "fp8-row"):
        assert first_line(text) == said.format(text)
    assert first_line(cpd.Format("(4,3)")) == said.format("(4,3)")
    assert first_line(torch.float8_e5m2) == said.format("e5m2")
    assert first_line("bf16") == "emulated (recipe bf16): 2"
    assert first_line(sums="e4m3 kahan") == "emulated (sums in e4m3 kahan, operands not cast): 2"


def test_reports_name_the_recipe():
    report = cpd.convert(_two(), "nvfp4", coverage=False)
    assert report.recipe == "nvfp4"
    assert str(report).startswith("emulated (recipe nvfp4): 2")
    assert json.loads(report.to_json())["recipe"] == "nvfp4"
    empty = cpd.convert(torch.nn.ReLU(), "mxfp8", coverage=False)
    assert str(empty) == "nothing to emulate: no module of the model computes"
