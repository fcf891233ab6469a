# SPDX-License-Identifier: Apache-2.0
"""Compares losses, metrics and the moving average with results derived by hand."""

import pytest

pytest.importorskip("torch")

import torch

from cpd_lab.train import Data, MovingAverage, evaluated
from cpd_lab.train.metrics import confusion, loss_of, mean_accuracy, mean_iou
from cpd_lab.train.optimizers import OPTIMIZERS, optimizer


def test_confusion_and_what_is_made_of_it():
    targets = torch.tensor([[0, 0, 0, 1], [1, 1, 2, 2]])
    found = torch.tensor([[0, 0, 1, 1], [1, 0, 2, 2]])
    counts = confusion(found, targets, classes=4)
    assert counts.tolist() == [[2, 1, 0, 0], [1, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    # IoU is hits / (hits + misses + false alarms). Classes 0 and 1: 2 / (2 + 1 + 1); class 2: 2 /
    # 2. Class 3 does not occur and is left out.
    assert mean_iou(counts) == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert mean_accuracy(counts) == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_a_class_that_is_found_and_not_there_counts_for_iou_alone():
    counts = confusion(torch.tensor([0, 1]), torch.tensor([0, 0]), classes=2)
    assert mean_iou(counts) == 0.25
    assert mean_accuracy(counts) == 0.5


def test_losses_of_pixels_and_characters_are_torchs():
    outputs, targets = torch.randn(2, 4, 3, 5), torch.randint(4, (2, 3, 5))
    expected = torch.nn.functional.cross_entropy(outputs, targets)
    torch.testing.assert_close(loss_of(outputs, targets), expected)
    characters, following = torch.randn(2, 6, 9), torch.randint(9, (2, 6))
    expected = torch.nn.functional.cross_entropy(characters.transpose(1, 2), following)
    torch.testing.assert_close(loss_of(characters, following), expected)


class Given(torch.nn.Module):
    """A model that returns rows of a given tensor. The model's input is the indices of the rows."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = torch.nn.Parameter(outputs)
        self.norm = torch.nn.BatchNorm1d(1)

    def forward(self, x):
        assert not self.training
        return self.outputs[x]


def given_data(targets, kind, classes):
    x = torch.arange(len(targets))
    return Data(x, targets, x, targets, "given", classes, kind)


def test_evaluated_classes_pixels_and_text():
    nan = float("nan")
    model = Given(torch.tensor([[1.0, 0.0], [0.0, 1.0], [nan, nan], [0.0, 1.0]]))
    data = given_data(torch.tensor([0, 1, 0, 0]), "classes", 2)
    assert evaluated(model, data) == {"accuracy": 0.75}  # NaN is class 0
    assert model.training
    pixels = Given(torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]]))
    found = evaluated(pixels, given_data(torch.tensor([[[0, 0]]]), "pixels", 2))
    assert found == {"mean_iou": 0.25, "mean_accuracy": 0.5, "accuracy": 0.5}
    text = Given(torch.zeros(1, 3, 4))
    found = evaluated(text, given_data(torch.tensor([[0, 1, 2]]), "text", 4))
    assert found["loss"] == pytest.approx(1.3862944, rel=1e-6)
    assert found["accuracy"] == pytest.approx(1 / 3)


def test_a_moving_average_is_a_loops():
    model = torch.nn.Linear(2, 1)
    average, expected = MovingAverage(model, 0.75), model.weight.detach().clone()
    for _ in range(3):
        with torch.no_grad():
            model.weight.add_(1)
        average.update()
        expected = 0.75 * expected + 0.25 * model.weight.detach()
    own = model.weight.detach().clone()
    with average.in_use():
        torch.testing.assert_close(model.weight.detach(), expected)
    assert torch.equal(model.weight.detach(), own)


def test_no_moving_average_leaves_the_weights():
    model = torch.nn.Linear(2, 1)
    average, own = MovingAverage(model, 0.0), model.weight.data_ptr()
    average.update()
    with average.in_use():
        assert model.weight.data_ptr() == own


def test_optimizers_are_torchs_and_lars():
    parameters = [torch.nn.Parameter(torch.ones(2))]
    made = {
        n: optimizer(n, parameters, lr=0.5, momentum=0.8, weight_decay=0.25) for n in OPTIMIZERS
    }
    assert [type(one).__name__ for one in made.values()] == ["SGD", "SGD", "Adam", "LARS"]
    assert [one.defaults.get("nesterov") for one in made.values()][:2] == [False, True]
    assert made["adam"].defaults["betas"] == (0.8, 0.999)
    for one in made.values():
        assert (one.defaults["lr"], one.defaults["weight_decay"]) == (0.5, 0.25)
    with pytest.raises(ValueError, match=r"got 'adm' \(did you mean adam\?\)"):
        optimizer("adm", parameters, lr=1, momentum=0)
    with pytest.raises(ValueError, match="nesterov needs a momentum above 0"):
        optimizer("nesterov", parameters, lr=1, momentum=0)
