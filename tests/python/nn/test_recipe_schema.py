# SPDX-License-Identifier: Apache-2.0
"""Tests the JSON schema of recipes: it accepts what `cpd.Recipe` reads, and refuses a wrong key,
type or bound that `cpd.Recipe` refuses."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest

import cpd
from cpd.nn.recipe_schema import schema

jsonschema = pytest.importorskip("jsonschema")

MADE = {
    **{name: cpd.Recipe(name) for name in cpd.Recipe.named()},
    "every key": cpd.Recipe(
        forward="e6m9 kahan",
        grad_input="fp32",
        grad_weight="e6m9 chunked chunk=64",
        grad_bias="bf16",
        activation="mxfp8",
        weight="mxfp8",
        gradient=cpd.Cast("e5m2", rounding="stochastic"),
        output="bf16",
        grad_input_gradient="e4m3fn",
        grad_input_weight=None,
        grad_weight_activation="bf16",
        grad_weight_gradient="bf16",
        norm="bf16",
        softmax="fp16",
        embedding="fp16",
        residual="bf16",
        attention="bf16",
        optimizer="e6m9 update=stochastic momentum=bf16",
        reduce="e4m3 aps",
        loss_scale=1024.0,
        rules=[("last 1", None), ("*.head", "mxfp8")],
        schedule=[("epoch", 0, "bf16"), ("epoch", 3, None)],
        source="made for this test",
    ),
}
WRONG = [
    {"sums": ["fp32", "fp32"]},
    {"forward": "native", "weigth": "mxfp8"},
    {"forward": 3},
    {"forward": "native", "weight": 4},
    {"forward": "native", "weight": {"text": "e4m3fn", "seed": 3}},
    {"forward": "native", "layer": 1},
    {"forward": "native", "loss_scale": 0},
    {"forward": "native", "loss_scale": "static"},
    {"forward": "native", "scales_at": "output"},
    {"forward": "native", "reduce": 8},
    {"forward": "native", "rules": [{"layers": "a"}]},
    {"forward": "native", "rules": [{"layers": "a", "recipe": {"weight": 8}}]},
    {"forward": "native", "schedule": [{"recipe": "bf16"}]},
    {"forward": "native", "schedule": [{"step": -1, "recipe": "bf16"}]},
    {"forward": "native", "attention": {"forward": "native", "wieght": "bf16"}},
]


@pytest.fixture(scope="module")
def validator():
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(made)))


@pytest.mark.parametrize("name", MADE)
def test_accepts(validator, name):
    data = MADE[name].to_dict()
    validator.validate(data)
    assert cpd.Recipe(data) == MADE[name]


@pytest.mark.parametrize("data", WRONG, ids=str)
def test_refuses(validator, data):
    assert not validator.is_valid(data)
    with pytest.raises((ValueError, TypeError)):
        cpd.Recipe(data)


def test_every_key_is_there_and_explained():
    properties = schema()["$defs"]["recipe"]["properties"]
    assert list(properties) == list(inspect.signature(cpd.Recipe).parameters)
    assert set(MADE["every key"].to_dict()) == set(properties) - {"scales_at", "format", "sums"}
    for key, of in properties.items():
        assert len(of["description"]) > 10, key
        assert "\n" not in of["description"]


def test_rules_may_be_a_table(validator):
    data = {"forward": "native", "rules": {"last 1": "none", "*.head": {"forward": "bf16"}}}
    validator.validate(data)
    assert len(cpd.Recipe(data).rules) == 2


def test_the_page_s_file(validator, tmp_path):
    """The schema and CPD both accept the example file on the schema's page."""
    page = Path(__file__).parents[3] / "python/docs/api/recipe_schema.md"
    (text,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    validator.validate(tomllib.loads(text))
    (tmp_path / "mine.toml").write_text(text)
    expected = cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8-e5m2")
    assert cpd.Recipe(tmp_path / "mine.toml") == expected
