# SPDX-License-Identifier: Apache-2.0
"""Tests that the report of `cpd.convert` warns of calls that will raise an error."""

import pytest
import torch
from torch import nn

import cpd

BY_PRODUCT = ("h100-fp8", "h100-fp8 a=e5m2", "h100-fp8 b=e5m2")
HYBRID = cpd.Recipe("e4m3fn", gradient="e5m2")


@pytest.mark.parametrize("sums", ["h100-fp8", BY_PRODUCT, "h100-fp16"], ids=str)
@pytest.mark.parametrize(
    "recipe", ["te-current", "te-delayed", "mxfp8", "mxfp8-hybrid", "e5m2", HYBRID], ids=str
)
def test_units_that_lack_the_operands(recipe, sums):
    """The report's notes name each product that will raise an error because the matrix unit does
    not accept its operands. The notes name no other product."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 64)
    report = cpd.convert(layer, cpd.Recipe(recipe, sums=sums), coverage=False)
    noted = {note.partition(":")[0] for note in report.notes if "the matrix unit takes" in note}

    def raises(*inputs):
        try:
            y = layer(torch.randn(64, 64, requires_grad=True))
            torch.autograd.grad(y, inputs, torch.randn(64, 64), allow_unused=True)
        except ValueError as error:
            return "must hold values of" in str(error)
        return False

    assert bool(noted) == raises(layer.weight, layer.bias)
    if "forward" in noted:
        with pytest.raises(ValueError, match="must hold values of"), torch.no_grad():
            layer(torch.randn(64, 64))


def test_the_note_says_what_to_give_the_unit():
    report = cpd.convert(nn.Linear(64, 64), cpd.Recipe("te-current", sums="h100-fp8"))
    first, second = (note for note in report.notes if "the matrix unit takes" in note)
    assert first.startswith("grad_input:")
    assert "give the unit a=e5m2 (" in first
    assert second.startswith("grad_weight:")
    assert "give the unit b=e5m2 (" in second
    given = cpd.Recipe("te-current", sums=BY_PRODUCT)
    assert not cpd.convert(nn.Linear(64, 64), given).notes


@pytest.mark.parametrize("cast", ["e4m3fn:nosub", "int8 row", "e2m1", "e8m0"])
def test_any_format_may_stand_beside_a_unit(cast):
    sums = cpd.Accumulator("h100-fp8", a="e4m3fn:nosub")
    notes = cpd.convert(nn.Linear(64, 64), cpd.Recipe(cast, sums=sums)).notes
    lacks = cast in ("int8 row", "e8m0")  # int8 has seven bits, e8m0 a wider range
    assert any("the matrix unit takes" in note for note in notes) == lacks


@pytest.mark.parametrize("layer", [nn.Conv1d(4, 4, 1), nn.ConvTranspose2d(4, 4, 1)], ids=str)
@pytest.mark.parametrize("recipe", ["te-delayed", "te-current", "mxfp8"])
def test_convolutions_of_units_that_scale_sums(layer, recipe):
    """`convert` refuses a layer that a call would refuse. The error names the rule that leaves the
    layer to torch."""
    model = nn.Sequential(nn.Linear(4, 4), layer)
    given = cpd.Recipe(recipe, sums=BY_PRODUCT)
    with pytest.raises(ValueError, match=rf"^1: .*\('type {type(layer).__name__}', None\)"):
        cpd.convert(model, given)
    assert type(model[0]) is nn.Linear
    report = cpd.convert(model, given, rules=[(f"type {type(layer).__name__}", None)])
    assert [row.name for row in report.emulated] == ["0"]
