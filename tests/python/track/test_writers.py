# SPDX-License-Identifier: Apache-2.0
"""Tests the objects that become a writer, and the numbers that each receives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cpd.track import Writer  # noqa: E402
from cpd.track.writers import writer_of  # noqa: E402

SCALARS = {"reduce/bytes": 1516.0, "0/weight/amax": 0.5}


class Calls:
    """Records the calls of some methods."""

    def __init__(self, *methods: str) -> None:
        self.calls: list[tuple] = []
        for name in methods:
            setattr(self, name, lambda *a, _name=name, **k: self.calls.append((_name, a, k)))


def test_tensorboards_writer():
    given = Calls("add_scalar", "add_histogram")
    writer_of(given).write(SCALARS, 7)
    assert given.calls == [("add_scalar", (tag, x, 7), {}) for tag, x in SCALARS.items()]


def test_a_lightning_logger():
    given = Calls("log_metrics", "log_hyperparams")
    writer_of(given).write(SCALARS, 7)
    assert given.calls == [("log_metrics", (SCALARS,), {"step": 7})]


def test_an_accelerator():
    given = Calls("init_trackers", "log")
    writer_of(given).write(SCALARS, 7)
    assert given.calls == [("log", (SCALARS,), {"step": 7})]


def test_a_run_of_wandb():
    """The writer's steps have their own axis. So the user may log at other steps."""
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


@pytest.mark.parametrize("given", [3, "tensorboard", object(), [object()]])
def test_anything_else(given):
    with pytest.raises(TypeError, match=r"a writer must have write\(scalars, step\), or be a Summ"):
        writer_of(given)


def test_the_real_ones_are_known(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    assert type(writer_of(tensorboard.SummaryWriter(tmp_path))).__name__ == "_OfTensorBoard"


def test_the_real_logger_of_lightning(tmp_path):
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    assert type(writer_of(loggers.CSVLogger(tmp_path))).__name__ == "_OfLightning"


def test_the_real_accelerator():
    accelerate = pytest.importorskip("accelerate")
    assert type(writer_of(accelerate.Accelerator(cpu=True))).__name__ == "_OfAccelerate"


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
