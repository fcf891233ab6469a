# SPDX-License-Identifier: Apache-2.0
"""Tests that `cpd.track.Tracker` writes exactly the numbers that the observer of layers, the
coverage report and the all-reduces give."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import cpd  # noqa: E402
from cpd.nn.observed_rows import scalars_of  # noqa: E402
from cpd.parallel.traffic import StepTraffic  # noqa: E402
from cpd.track import Tracker  # noqa: E402


class Seen:
    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []

    def write(self, scalars, step):
        self.steps.append((step, dict(scalars)))


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    cpd.convert(made, "mxfp8")
    return made


def test_what_is_written_is_what_the_observer_has():
    made, other, seen = model(), model(), Seen()
    watch = cpd.observe(other, every=2, what_if=["nvfp4"])
    with Tracker(made, seen, every=2, what_if=["nvfp4"]) as track:
        for step in range(4):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            for one in (made, other):
                one(x).square().mean().backward()
            found = track.step(10 * step)
            assert found == dict(seen.steps).get(10 * step, {})
    watch.remove()
    assert [step for step, _ in seen.steps] == [0, 20]
    for step, scalars in seen.steps:
        rows = [row for row in watch.rows if row.step == step // 10]
        coverage = {k: x for k, x in scalars.items() if k.startswith("coverage/")}
        assert {k: x for k, x in scalars.items() if k not in coverage} == scalars_of(rows)
        assert coverage == ({"coverage/share": 1.0, "coverage/mxfp8": 1.0} if step == 0 else {})
    assert not made._forward_pre_hooks


def test_steps_of_several_calls():
    """If a training step calls the model several times, `cpd.track.Tracker` writes the numbers of
    the last call that it observed."""
    made, seen = model(), Seen()
    with Tracker(made, seen, every=1) as track:
        for scale in (1.0, 64.0):
            made(torch.full((8, 16), scale)).sum().backward()
        track.step()
    ((step, scalars),) = seen.steps
    assert step == 0
    assert scalars["0/activation/amax"] == 64.0


def test_virtual_nodes():
    made, seen = model(), Seen()
    nodes = cpd.VirtualNodes(made, 2, cpd.Reduce("e3m0"))
    with Tracker(made, seen, every=0, reducer=nodes) as track:
        nodes.step(lambda x: made(x).square().mean(), torch.randn(8, 16) * 1e-3)
        found = track.step()
    assert found["reduce/bytes"] == nodes.traffic.bytes_sent
    assert found["reduce/seconds"] == nodes.traffic.seconds > 0
    report = nodes.report["0.weight"]
    assert found["reduce/0.weight/zeros"] == report.zeros_share
    assert found["reduce/0.weight/underflowed"] == report.underflowed / report.values > 0


def test_several_reducers_are_added_up():
    class Part:
        def __init__(self, *numbers):
            self.traffic = StepTraffic(*numbers)

    parts = {"a": Part(0, 100, 0.5), "b": Part(0, 20, 0.25)}
    with Tracker(model(), every=0, reducer=parts) as track:
        assert track.step() == {"reduce/bytes": 120.0, "reduce/seconds": 0.75}
        parts["b"].traffic = StepTraffic(1, None, 0.25)  # its communicator does not count
        assert track.step() == {"reduce/seconds": 0.75}


def test_mistakes():
    with pytest.raises(ValueError, match="every must be at least 0, got -1"):
        Tracker(model(), every=-1)
    with pytest.raises(TypeError, match=r"reducer must be the state of cpd.ddp_hook"):
        Tracker(model(), reducer=cpd.Reduce("e4m3"))
    with pytest.raises(TypeError, match="a writer must have"):
        Tracker(model(), 3)
    with pytest.raises(TypeError, match="model must be"):
        Tracker(3)
