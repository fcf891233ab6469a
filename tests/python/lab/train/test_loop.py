# SPDX-License-Identifier: Apache-2.0
"""Tests trainings of every model, and the effect of each option of the training loop."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from cpd.cli import main
from cpd.comm import local
from cpd.study.costs import cost as cost_of
from cpd_lab.train import (
    DATA,
    MODELS,
    Data,
    MovingAverage,
    RealRanks,
    TrainOptions,
    epoch_order,
    evaluated,
    load_digits,
    train,
)
from cpd_lab.train.metrics import loss_of
from cpd_lab.train.models import seeded
from cpd_lab.train.optimizers import optimizer

QUICK = TrainOptions(epochs=1, depth=2, width=16)
WIDTHS = {"mlp": 16, "lenet": 6, "cifarnet": 8, "resnet110": 2, "text_lstm": 16, "gpt": 16}


def quick(name, **options):
    """Trains for three steps over two nodes."""
    sizes = {"nodes": 2, "batch": 4, "images": 24, "tests": 10, "epochs": 1, "length": 8}
    return TrainOptions(model=name, **{**sizes, "width": WIDTHS.get(name, 4), **options})


def data_of(options):
    """Returns the data that the options name, or random images if the data need files."""
    if options.data != "cifar10":
        return options.load_data()
    draw = torch.Generator().manual_seed(0)
    count = options.images + options.tests
    x, y = torch.randn(count, 3, 32, 32, generator=draw), torch.arange(count) % 10
    return Data(
        *(x[: options.images], y[: options.images], x[options.images :], y[options.images :]),
        source="noise",
        classes=10,
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains(name):
    options = quick(name, format="e4m3", aps="on", quantized_share=0.5)
    data = data_of(options)
    result = train(options, data=data)
    assert result.state == "finished"
    assert result.weights == train(options, data=data).weights
    assert result.weights != train(replace(options, format="e5m2"), data=data).weights
    metric = {"classes": "accuracy", "pixels": "mean_iou", "text": "loss"}[DATA[options.data].kind]
    assert result.metric == metric
    assert {len(curve) for curve in result.curves.values()} == {1}
    assert (result.steps_per_epoch, result.left_out, result.held_out) == (3, 0, 10)
    assert result.share == options.share >= 0.5
    shapes = [layer.shape for layer in options.layers]
    assert [tuple(g.shape) for g in result.last_gradients[1]] == shapes
    assert [layer.values for layer in result.layers] == [6 * one.size for one in options.layers]
    json.dumps(options.key())


@pytest.mark.parametrize("name", ["lenet", "fcn", "text_lstm", "gpt"])
def test_models_learn(name):
    options = TrainOptions(model=name, nodes=2, batch=16, images=256, tests=64, width=8, epochs=4)
    if name == "lenet":
        options = replace(options, epochs=8, lr=0.1)
    if name in ("text_lstm", "gpt"):
        options = replace(options, lr=0.01, length=16)
    losses = train(options).loss
    assert losses[-1] < 0.9 * losses[0]


def averaged(digits, where, **options):
    return train(replace(QUICK, divide=where, **options), data=digits).weights


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.mark.parametrize("format", ["e4m3", "e5m2", "e3m0"])
@pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
def test_with_aps_and_a_power_of_two_it_is_the_same_where_an_average_divides(digits, format):
    assert averaged(digits, "before", format=format, aps="on") == averaged(
        digits, "after", format=format, aps="on"
    )


def test_elsewhere_it_is_not(digits):
    assert averaged(digits, "before", format="e4m3") != averaged(digits, "after", format="e4m3")
    assert averaged(digits, "before", nodes=6) != averaged(digits, "after", nodes=6)


def test_without_a_division_gradients_are_sums(digits):
    """If gradients are summed without a division, the effective learning rate is multiplied by the
    number of nodes. Dividing the rate by 8 gives the same weights."""
    sums = train(replace(QUICK, divide="none", lr=QUICK.lr / 8), data=digits)
    assert sums.weights == train(QUICK, data=digits).weights


def test_a_sum_of_losses_and_the_divided_rate_are_the_mean(digits):
    """A loss times 16 gives the weights of the mean loss, if the learning rate is divided by 16:
    powers of two change only exponents."""
    assert train(replace(QUICK, loss_sum=16.0), data=digits).weights == averaged(digits, "before")
    other = replace(QUICK, loss_sum=16.0, weight_decay=0.5)
    assert train(other, data=digits).weights != averaged(digits, "before", weight_decay=0.5)


def loop(options, digits, steps):
    """A separate implementation of the training loop for one node. Yields the model and its moving
    average after each step."""
    model = seeded(options.seed, options.make_model)
    made = optimizer(
        options.optimizer,
        model.parameters(),
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    average = MovingAverage(model, options.ema)
    order = epoch_order(options.seed, 1, len(digits.train_x), 1, options.batch)
    for step, (rows,) in zip(range(steps), order, strict=False):
        factor = options.rates.at(step / len(order), options.epochs)
        made.param_groups[0]["lr"] = options.lr * factor
        made.zero_grad()
        loss_of(model(digits.train_x[rows]), digits.train_y[rows]).backward()
        made.step()
        average.update()
    return model, average


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "nesterov", "weight_decay": 0.01},
        {"optimizer": "adam", "lr": 0.001},
        {"optimizer": "lars", "lr": 5.0},
        {"schedule": "warmup 0.25 steps 0.5 0.75"},
        {"schedule": "linear", "ema": 0.875},
    ],
)
def test_optimizers_schedules_and_averages_are_a_loops(digits, options):
    chosen = replace(QUICK, nodes=1, batch=64, **options)
    data = digits.first(1024, 100)
    result = train(chosen, data=data)
    model, average = loop(chosen, data, 16)
    for mine, expected in zip(result.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, expected)
    with average.in_use():
        assert result.curves["accuracy"] == [evaluated(model, data)["accuracy"]]


def test_a_step_is_seen_before_it_is_made(digits):
    seen = []
    options = replace(QUICK, format="e4m3", aps="on", epochs=2, schedule="linear")
    result = train(options, data=digits, on_step=lambda step: seen.append(step))
    assert [step.number for step in seen] == list(range(1, 23))
    assert [step.epoch for step in seen] == [1] * 11 + [2] * 11
    assert seen[11].rate == pytest.approx(0.025)
    assert result.weights == train(options, data=digits).weights
    last = seen[-1]
    assert len(last.nodes) == 8
    for number, (name, gradient) in enumerate(last.gradients.items()):
        of_nodes = [node[name] for node in last.nodes]
        assert all(
            torch.equal(one, kept[number])
            for one, kept in zip(of_nodes, result.last_gradients, strict=True)
        )
        torch.testing.assert_close(last.mean[name], torch.stack(of_nodes).mean(0))
        assert float((gradient - last.mean[name]).norm() / gradient.norm()) < 0.2
        assert last.report[name].non_finite == 0
    assert np.mean([step.loss for step in seen[:11]]) == pytest.approx(result.loss[0])


def test_a_watcher_may_end_the_training(digits):
    result = train(replace(QUICK, epochs=5), data=digits, on_step=lambda step: step.number == 13)
    assert len(result.curve) == len(result.loss) == 2
    assert result.state == "finished"
    assert result.layers[0].values == 13 * 8 * 16 * 64


def test_gradients_need_not_be_kept(digits):
    result = train(QUICK, data=digits, keep_gradients=False)
    assert result.last_gradients == []
    assert result.weights == train(QUICK, data=digits, keep="recompute").weights


def test_the_wires_bytes_are_what_ranks_move(digits):
    options = replace(QUICK, format="e4m3", aps="on", min_size=100)
    result = train(options, data=digits)
    cost, schedule = result.cost, options.reduction(1)
    names, sizes = zip(*((one.name, one.size) for one in options.layers), strict=True)
    world = len(result.last_gradients)
    moved = 0
    for spec, numbers in schedule._parts(names, 0, sizes):
        ranks = [[g[n] for n in numbers] for g in result.last_gradients]
        shapes = [tuple(tensor.shape) for tensor in ranks[0]]
        moved += cost_of(spec, world, shapes, ranks=ranks).bytes_sent
    assert cost.exact
    assert cost.bytes_sent == moved


def test_real_ranks_on_a_gpu_are_refused(digits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with local(1) as group, pytest.raises(ValueError, match="device must be cpu where nodes are p"):
        group.run(
            lambda comm: train(
                replace(QUICK, nodes=1, device="cuda"), data=digits, ranks=RealRanks(comm)
            )
        )


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mlp", ["1 hidden layer of 16", "digits: 24 training images", "accuracy 0."]),
        ("lenet", ["lenet (width 6)", "digits: 24 training images", "accuracy 0."]),
        ("fcn", ["fcn (width 4)", "shapes: 24 training images (0 left", "mean IoU 0."]),
        ("gpt", ["gpt (1 layer, width 16)", "text: 24 training runs of 8 characters", "loss 4."]),
    ],
)
def test_a_command_prints_and_writes_the_result(name, lines, tmp_path, capsys):
    depth = {"depth": 1} if name in ("mlp", "gpt") else {}
    options = quick(name, reduce="e4m3 aps", quantized_share=0.9, **depth)
    files = {"--json": tmp_path / "run.json", "--save-gradients": tmp_path / "last.npz"}
    extra = [str(word) for pair in files.items() for word in pair]
    assert main(["train", *shlex.split(options.arguments()), *extra]) == 0
    said = capsys.readouterr().out
    for line in (*lines, f"(min size {options.chosen_min_size})"):
        assert line in said
    assert ("bytes sent by node 0 in a step" in said) == (name != "mlp")
    result = train(options)
    assert said.splitlines()[-1] == f"weights {result.weights}"
    row = json.loads(files["--json"].read_text())
    assert row["curves"] == result.curves
    assert (row["key"], row["quantized_share"]) == (options.key(), options.share)
    assert (row["options"], row["weights"]) == (options.arguments(), result.weights)
    assert (row["format"], row["aps"], row["loss_scale"]) == ("e4m3", True, 1)
    with np.load(files["--save-gradients"]) as saved:
        assert saved.files == [layer.name for layer in options.layers]
        last = saved.files[-1]
        assert np.array_equal(saved[last][1], result.last_gradients[1][-1].numpy())
