# SPDX-License-Identifier: Apache-2.0
"""Tests how much of a training step runs emulated, in models of transformers and timm with random
weights. Products that are not emulated belong to modules that the report names with a reason."""

import warnings

import pytest

import cpd
import models_at_hand as at_hand

ATTENTION = "the recipe leaves attention's products to torch (attention=)"
EXCEPTIONS = {
    "bf16": {},
    "mxfp8": {ATTENTION: "its source keeps attention in bf16"},
    "nvfp4": {ATTENTION: "its source keeps attention in bf16"},
    "te-delayed": {ATTENTION: "its source keeps attention in bf16"},
}
"""For each recipe, the reasons that the report may give for leaving a product to torch, and why
they are valid."""
QUICK = ("gpt2", "mixtral", "mamba", "vit")


def _cases():
    for name in (*at_hand.TRANSFORMERS, *at_hand.TIMM):
        for recipe in EXCEPTIONS:
            marks = () if name in QUICK else pytest.mark.exhaustive
            yield pytest.param(name, recipe, marks=marks, id=f"{name}-{recipe}")


@pytest.mark.few("", 3)
@pytest.mark.parametrize(("name", "recipe"), _cases())
def test_nothing_is_silently_left_out(name, recipe):
    of = at_hand.of_transformers if name in at_hand.TRANSFORMERS else at_hand.of_timm
    model, inputs = of(name)
    report = cpd.convert(model, recipe, coverage=0)
    at_hand.loss_of(model(**inputs)).backward()
    coverage = report.coverage()
    reasons = {row.name: row.why_not for row in report.not_emulated}
    left = {reasons.get(one.module) for one in coverage.left}
    assert left <= set(EXCEPTIONS[recipe])
    excused = sum(one.macs for one in coverage.left)
    assert coverage.share + excused / coverage.macs == pytest.approx(1)
    assert coverage.never_called == ()
    assert coverage.emulated_parameters == coverage.parameters


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("recipe", ["bf16", "mxfp8", "nvfp4", "ibm-fp8-2018"])
@pytest.mark.exhaustive
def test_models_train_with_little_left(name, recipe):
    import torch

    model, inputs = at_hand.of_transformers(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = cpd.convert(model, recipe)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(200):
            optimizer.zero_grad()
            loss = at_hand.loss_of(model(**inputs))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(name, recipe, f"{losses[0]:.3f} -> {losses[-1]:.3f}", report.coverage(), sep="  ")
    assert losses[-1] < 0.2 * losses[0]
    assert report.coverage().share > 0.93
