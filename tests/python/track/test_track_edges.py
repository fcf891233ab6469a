# SPDX-License-Identifier: Apache-2.0
"""Tests a tracker's step numbers, its sums over reducers, and values that it writes only once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import cpd  # noqa: E402
from cpd.parallel.traffic import StepTraffic  # noqa: E402
from cpd.track import Tracker  # noqa: E402
from cpd.track.lightning_callback import _called  # noqa: E402


class Written:
    def __init__(self):
        self.steps = []

    def write(self, scalars, step):
        self.steps.append(step)


def reducer(seconds, sent, report=None):
    traffic = StepTraffic(0, sent, seconds, True)
    return SimpleNamespace(traffic=traffic, report=report or {})


def test_steps_are_counted_where_they_have_no_number():
    out = Written()
    tracker = Tracker(nn.Linear(1, 1), out, every=0, reducer=reducer(1.0, 8))
    for number in (None, None, 10, None):
        tracker.step() if number is None else tracker.step(number)
    assert out.steps == [0, 1, 10, 11]


def test_shares_of_layers_are_of_their_values():
    report = SimpleNamespace(zeros_share=0.25, zeros=2, underflowed=4, values=16)
    tracker = Tracker(nn.Linear(1, 1), every=0, reducer=reducer(1.0, 8, {"w": report}))
    found = tracker.step()
    assert found["reduce/w/zeros"] == 0.25
    assert found["reduce/w/underflowed"] == 4 / 16


def test_a_module_is_named_where_there_are_several():
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    whole = nn.ModuleDict({"one": one, "two": two})
    assert _called(whole, "two") is two
    assert _called(nn.ModuleDict({"one": one}), "") is one
    for name in ("", "three"):
        with pytest.raises(ValueError, match=r"module must name the module .* of one, two"):
            _called(whole, name)


def test_a_model_in_ddp_is_the_model_itself():
    """For a model in DDP, a tracker uses the layers' names without DDP, and reports the coverage of
    the model."""
    model = nn.Sequential(nn.Linear(4, 4))
    cpd.convert(model, "mxfp8")
    wrapped = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = model
    with Tracker(wrapped, every=1) as tracker:
        model(torch.rand(2, 4)).sum().backward()
        found = tracker.step()
    assert found["coverage/share"] == 1.0
    assert "0/activation/own/sqnr" in found
