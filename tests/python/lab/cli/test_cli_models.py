# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd roundoff --model`, and what `cpd train` reports about a codec."""

from __future__ import annotations

import json
import sys
import types

import pytest

pytest.importorskip("torch")

from cpd.cli import main
from cpd_lab.train import TrainOptions
from cpd_lab.train.layers import Layer, weight_named


def _json(tmp_path, *words):
    path = tmp_path / "out.json"
    assert main([*words, "--json", str(path)]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_weight_of_a_models_second_convolution(tmp_path):
    words = ["roundoff", "--model", "lenet", "--epochs", "1", "--nodes", "8"]
    words += ["--group-sizes", "2,8", "--layer"]
    by_place = _json(tmp_path, *words, "conv2")
    (name,) = by_place["layers"]
    assert name == TrainOptions(model="lenet").layers[2].name
    assert _json(tmp_path, *words, name) == by_place
    patterns = _json(tmp_path, *words, "*.bias")["layers"]
    assert len(patterns) == 5
    assert all(layer.endswith(".bias") for layer in patterns)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "lenett"], "did you mean lenet?"),
        (
            ["--model", "lenet", "--layer", "conv3"],
            "there is no conv3: the model has 2 layers Conv",
        ),
        (["--layer", "hidden1.wieght", "--epochs", "1", "--nodes", "2"], "did you mean hidden1.w"),
        (["--model", "lenet", "--gradients", "x.npz"], "--gradients takes no model"),
    ],
)
def test_models_and_layers_that_do_not_exist(words, message, capsys):
    assert main(["roundoff", *words]) != 0
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_weights_by_their_place():
    layers = [
        Layer("a.weight", (4, 3, 3, 3), "Conv2d"),
        Layer("a.bias", (4,), "Conv2d"),
        Layer("b.weight", (5, 4), "Linear"),
        Layer("c.weight", (6, 4, 3), "Conv1d"),
    ]
    assert [weight_named(n, layers) for n in ("conv1", "conv2", "fc1")] == [
        "a.weight", "c.weight", "b.weight"
    ]  # fmt: skip
    assert weight_named("conv", layers) == "conv"


def test_what_a_codec_chose_is_printed_and_written(tmp_path, capsys):
    words = ["train", "--epochs", "1", "--reduce", "uniform bits=4 coding=fixed", "--nodes", "2"]
    written = _json(tmp_path, *words)
    out = capsys.readouterr().out
    assert "codec " in out
    assert "bits a value; of 100 % of the parameters" in out
    assert "bits chosen: hidden1.weight 4…4" in out
    layer = written["codec"]["hidden1.weight"]
    assert layer["values"] == 2 * 44 * 64 * 64
    assert layer["bits"] == {"4": 2 * 44}
    assert 8 * layer["bytes"] / layer["values"] == pytest.approx(4, abs=0.1)


def test_a_format_has_no_such_line(capsys):
    assert main(["train", "--epochs", "1", "--reduce", "e4m3", "--nodes", "2"]) == 0
    assert "codec" not in capsys.readouterr().out


def test_layers_of_one_value_are_left_to_fp32(monkeypatch):
    options = TrainOptions(wire="terngrad")
    assert options.of_one_value == ()
    layers = (*options.layers, Layer("gain", (1,), "Scale"))
    monkeypatch.setattr(TrainOptions, "layers", layers)
    assert TrainOptions(wire="terngrad").of_one_value == ("gain",)
    assert "gain" in TrainOptions(wire="terngrad").exempt_patterns
    assert TrainOptions(format="e4m3").of_one_value == ()


class _Writer:
    """A writer that replaces TensorBoard's writer and records the scalars."""

    made = None

    def __init__(self, folder):
        type(self).made = self
        self.folder, self.scalars, self.closed = folder, {}, False

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value

    def close(self):
        self.closed = True


def test_steps_for_tensorboard(tmp_path, monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = _Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    words = ["train", "--epochs", "1", "--reduce", "uniform bits=4 coding=fixed", "--nodes", "2"]
    written = _json(tmp_path, *words, "--tensorboard", str(tmp_path / "runs"))
    writer = _Writer.made
    assert writer.closed
    assert writer.folder == tmp_path / "runs"
    steps = {step for _, step in writer.scalars}
    assert steps == set(range(1, 45))
    tags = {tag for tag, _ in writer.scalars}
    assert {"train/loss", "train/rate", "wire/hidden1.weight/zeros"} <= tags
    assert writer.scalars["wire/hidden1.weight/bits", 1] == 4
    layer = written["codec"]["hidden1.weight"]
    shares = [writer.scalars["wire/hidden1.weight/zeros", step] for step in steps]
    assert sum(shares) / len(shares) == pytest.approx(layer["zeros"] / layer["values"])
    losses = [writer.scalars["train/loss", step] for step in steps]
    assert sum(losses) / len(losses) == pytest.approx(written["loss"][0], rel=1e-6)


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["train", "--epochs", "1", "--tensorboard", str(tmp_path)]) != 0
    assert "needs the package tensorboard" in capsys.readouterr().err
