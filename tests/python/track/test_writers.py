# SPDX-License-Identifier: Apache-2.0
"""Tests which objects are accepted as a writer, and which numbers each kind receives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cpd.track import Writer  # noqa: E402
from cpd.track.writers import writer_of  # noqa: E402

SCALARS = {"reduce/bytes": 1516.0, "0/weight/amax": 0.5}


class Calls:
    """An object that has the named methods and records their calls."""

    def __init__(self, *methods: str) -> None:
        self.calls: list[tuple] = []
        for name in methods:
            setattr(self, name, lambda *a, _name=name, **k: self.calls.append((_name, a, k)))


@pytest.mark.parametrize(
    ("methods", "calls"),
    [
        (
            ("add_scalar", "add_histogram"),
            [("add_scalar", (tag, x, 7), {}) for tag, x in SCALARS.items()],
        ),
        (("log_metrics", "log_hyperparams"), [("log_metrics", (SCALARS,), {"step": 7})]),
        (("init_trackers", "log"), [("log", (SCALARS,), {"step": 7})]),
    ],
    ids=["tensorboard", "lightning", "accelerate"],
)
def test_what_each_kind_is_given(methods, calls):
    given = Calls(*methods)
    writer_of(given).write(SCALARS, 7)
    assert given.calls == calls


def test_a_run_of_wandb():
    """In a wandb run, CPD's numbers have their own step axis, so a user may log at other steps."""
    given = Calls("define_metric", "log")
    writer_of(given).write(SCALARS, 7)
    *defined, logged = given.calls
    assert defined == [
        ("define_metric", ("cpd/step",), {}),
        ("define_metric", ("cpd/*",), {"step_metric": "cpd/step"}),
    ]
    named = {"cpd/reduce/bytes": 1516.0, "cpd/0/weight/amax": 0.5, "cpd/step": 7}
    assert logged == ("log", (named,), {})


def test_several_and_ones_own():
    class Own:
        def write(self, scalars, step):
            seen.append((dict(scalars), step))

    seen: list[tuple] = []
    own, other = Own(), Calls("add_scalar")
    assert isinstance(own, Writer)
    assert writer_of(own) is own
    writer_of([own, other]).write(SCALARS, 3)
    assert seen == [(SCALARS, 3)]
    assert len(other.calls) == 2


@pytest.mark.parametrize(
    "given", [3, "tensorboard", object(), [object()], Calls("log"), Calls("define_metric")]
)
def test_anything_else(given):
    """Other objects raise TypeError, even an object with half of the methods of a wandb run."""
    with pytest.raises(TypeError, match=r"a writer must have write\(scalars, step\), or be a Summ"):
        writer_of(given)


@pytest.mark.parametrize(
    ("package", "make", "kind"),
    [
        ("torch.utils.tensorboard", lambda p, path: p.SummaryWriter(path), "_OfTensorBoard"),
        ("lightning.pytorch.loggers", lambda p, path: p.CSVLogger(path), "_OfLightning"),
        ("accelerate", lambda p, path: p.Accelerator(cpu=True), "_OfAccelerate"),
    ],
)
def test_the_real_ones_are_known(tmp_path, package, make, kind):
    given = make(pytest.importorskip(package), tmp_path)
    assert type(writer_of(given)).__name__ == kind


def test_the_real_run_of_wandb(tmp_path):
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(silent=True)
    with wandb.init(project="cpd", mode="offline", dir=tmp_path, settings=settings) as run:
        writer = writer_of(run)
        assert type(writer).__name__ == "_OfWandb"
        run.log({"loss": 1.0})
        run.log({"loss": 0.5})
        writer.write(SCALARS, 1)  # a step behind the run's own
        assert run.summary["cpd/reduce/bytes"] == 1516.0
        assert run.summary["cpd/step"] == 1
