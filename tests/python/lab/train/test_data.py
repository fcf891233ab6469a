# SPDX-License-Identifier: Apache-2.0
"""Tests data sets that need no files: digits, drawn shapes, a text. Tests also the augmentation of
images."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from cpd_lab.train import load_digits
from cpd_lab.train.images import AUGMENTS, centred
from cpd_lab.train.shapes import load_shapes, shape_images
from cpd_lab.train.text import load_text, text_runs


def test_shapes_are_the_same_for_every_count():
    images, classes = shape_images(20, seed=3)
    assert images.shape == (20, 3, 32, 32)
    assert images.dtype == torch.float32
    assert classes.shape == (20, 32, 32)
    assert classes.dtype == torch.int64
    fewer = shape_images(7, seed=3)
    assert torch.equal(fewer[0], images[:7])
    assert torch.equal(fewer[1], classes[:7])
    assert not torch.equal(shape_images(7, seed=4)[0], images[:7])
    data = load_shapes(20, 5)
    assert data.kind == "pixels"
    assert not torch.equal(data.train_x[:5], data.test_x)


def test_every_class_of_the_shapes_is_there():
    counts = torch.bincount(shape_images(200, seed=0)[1].flatten(), minlength=4)
    shares = counts / counts.sum()
    assert 0.5 < shares[0] < 0.9
    assert (shares[1:] > 0.03).all()


@pytest.mark.parametrize(("count", "seed"), [(0, 0), (1, -1), (1, 2**32)])
def test_shapes_that_are_refused(count, seed):
    with pytest.raises(ValueError, match="must be"):
        shape_images(count, seed)


def test_runs_of_a_text_are_spread_over_either_part():
    text, data = load_text(), text_runs(30, 7, length=10)
    assert data.train_x.shape == (30, 10)
    assert data.test_y.shape == (7, 10)
    assert torch.equal(data.train_x[:, 1:], data.train_y[:, :-1])
    assert data.train_x[0].tolist() == text.train[:10].tolist()
    assert data.train_y[-1].tolist() == text.train[-10:].tolist()
    assert torch.equal(data.test_x, text.tests(7, 10)[:, :-1])
    assert data.classes == len(text.characters)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1, 8), "images must be at least 1, got 0"),
        ((1, 0, 8), "tests must be at least 1, got 0"),
        ((1, 1, 0), "length must be at least 1, got 0"),
        ((1, 1, 10**9), "length must be below"),
    ],
)
def test_runs_that_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        text_runs(*numbers)


def test_the_first_digits():
    digits = load_digits()
    assert torch.equal(digits.first(10, 5).train_x, digits.train_x[:10])
    with pytest.raises(ValueError, match=r"images must be 1…1438 \(of digits\), got 1439"):
        digits.first(1439, 1)


def test_cut_out_images_lack_a_square():
    images = torch.rand(40, 3, 32, 32) + 1
    made = AUGMENTS["cutout"](images, torch.Generator().manual_seed(0))
    for image in made:
        rows, columns = (image[0] == 0).nonzero().T
        assert len(rows) == 64
        assert int(rows.max() - rows.min()) == int(columns.max() - columns.min()) == 7
        assert torch.equal((image == 0).all(0), image[0] == 0)


def test_cropped_images_are_windows():
    images = torch.arange(6 * 3 * 32 * 32.0).reshape(6, 3, 32, 32)
    made = AUGMENTS["crop24"](images, torch.Generator().manual_seed(1))
    assert made.shape == (6, 3, 24, 24)
    for image, whole in zip(made, images, strict=True):
        straight = image if image[0, 0, 0] < image[0, 0, 1] else image.flip(2)
        down, right = divmod(int(straight[0, 0, 0] - whole[0, 0, 0]), 32)
        assert torch.equal(straight, whole[:, down : down + 24, right : right + 24])
    assert torch.equal(centred(images, 24), images[:, :, 4:28, 4:28])
